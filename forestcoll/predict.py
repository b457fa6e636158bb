"""How long a plan should take on the machine that it is for: what a measured time is held against.

The plan is simulated there: its messages, slots and thread blocks on links at their nominal
bandwidth (`simulate`). Beside that stands what the links alone allow, for copies and sums on the
GPUs unless the plan has switches do them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll import simulate
from forestcoll.compile.verdict import machine_of
from forestcoll.errors import ForestCollError, PlanError
from forestcoll.forest import Forest
from forestcoll.graph import CapacityGraph
from forestcoll.plans import FORMATS

if TYPE_CHECKING:
    from forestcoll.alltoall.routes import Routes
    from forestcoll.program import Program
    from forestcoll.simulate import Where
    from forestcoll.simulate.fabric import Latencies
    from forestcoll.topology import Topology

FOREST = ".forest.json"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of a program on the links of a topology, or of a forest or routes, which state no latencies.

    `algbw`: GB/s of 10^9 bytes that the links allow, and where that comes from.
    """

    program: Program
    where: Where
    algbw: Fraction
    source: str

    @property
    def simulated(self) -> bool:
        """Whether times are simulated: of more ranks the links alone speak."""
        return self.program.n <= simulate.RANKS

    def microseconds(self, size: int) -> float:
        """For nccl-tests' size in bytes; transfers meet as each link's own rule says."""
        if not self.simulated:
            return float(size / self.algbw / 1000)
        return simulate.run(self.program, self.where, size).time

    def band(self, size: int) -> simulate.Band | None:
        """Under both rules of links; None for more ranks than are simulated."""
        return simulate.band(self.program, self.where, size) if self.simulated else None


def by_source(program: Program, path: Path) -> Prediction:
    """By what a plan was made from: a forest's file, or routes'. Errors as of the two."""
    if program.collective.phases:
        return by_forest(program, path)
    from forestcoll.alltoall.file import loads
    from forestcoll.alltoall.routes import Routes

    found, _, _ = loads(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(found, Routes):
        raise PlanError(f"{path}: holds flows, no routes")
    return by_routes(program, found)


def by_forest(program: Program, path: Path) -> Prediction:
    """The algbw of the forest in a file. Raises ForestCollError: no forest, or another one's."""
    from forestcoll import forest_file
    from forestcoll.lower.nvls import most_algbw

    forest = forest_file.load(path)
    ours = (program.collective, program.n, program.root)
    if (forest.collective, forest.n, forest.root) != ours:
        raise PlanError(
            f"{path}: a forest for {forest.collective} over {forest.n} ranks, not for the plan's "
            f"{program.collective} over {program.n}" + _root(program)
        )
    algbw = most_algbw(forest) if program.in_switches else forest.plain_algbw
    return Prediction(program, forest, algbw, path.name)


def by_topology(program: Program, topology: Topology) -> Prediction:
    """The best algbw that a topology allows all of its GPUs."""
    from forestcoll.compile.optimum import optimum

    if len(topology.gpus) != program.n:
        raise PlanError(
            f"{topology.name} has {len(topology.gpus)} GPUs; the plan is for {program.n} ranks"
        )
    if not program.collective.phases:
        from forestcoll.alltoall.demand import uniform
        from forestcoll.alltoall.flows import solve

        flows = solve(uniform(topology))
        return Prediction(program, topology, flows.algbw, f"the optimum of {topology.name}")
    root = program.root if program.root >= 0 else None
    best = optimum(topology, program.collective, root=root, fabric=program.in_switches)
    if program.in_switches and best.in_switches is not None:
        best = best.in_switches
    return Prediction(program, topology, best.algbw, f"the optimum of {topology.name}")


def by_routes(program: Program, found: Routes) -> Prediction:
    """The algbw of an all-to-all's routes. Raises ForestCollError: those of another one."""
    if len(found.graph.ranks) != program.n:
        raise PlanError(
            f"routes among {len(found.graph.ranks)} ranks, not among the plan's {program.n}"
        )
    return Prediction(program, found.graph, found.algbw, "the routes beside it")


def beside(program: Program, plan: Path) -> tuple[Prediction | None, str]:
    """By the forest file (or routes) beside a plan file, as `synthesize` writes it; and a note.

    The note says why a file that is there does not serve; without a file it is empty.
    """
    if not program.collective.phases:
        from forestcoll.alltoall.plans import routes_beside

        try:
            routes = routes_beside(plan)
            return None if routes is None else by_routes(program, routes), ""
        except ForestCollError as error:
            return None, f"no prediction by the routes beside the plan: {error}"
    path = forest_beside(plan)
    if path is None:
        return None, ""
    try:
        return by_forest(program, path), ""
    except ForestCollError as error:
        return None, f"no prediction by the forest beside the plan: {error}"


def band_of(
    program: Program, plan: Path, topology: Topology | None = None
) -> tuple[simulate.Band | None, str]:
    """What a plan reaches, for a report: on a topology, else on what `beside` finds; and its note.

    A file states no latencies: they are the catalogue's where its links are, else 0. None where
    nothing is known of the links, or it takes long.
    """
    if topology is not None or program.n > simulate.RANKS:
        return None if topology is None else simulate.plan_band(program, topology), ""
    found, text = beside(program, plan)
    if found is None:
        return None, text
    where = found.where
    if isinstance(where, Forest):
        return simulate.plan_band(program, where, _latencies(where)), text
    if isinstance(where, CapacityGraph):
        where = machine_of(where, program.name) or where
    return simulate.plan_band(program, where), text


def forest_band_of(forest: Forest, topology: Topology | None = None) -> simulate.Band | None:
    """The same of the trees of a forest alone."""
    if forest.n > simulate.RANKS:
        return None
    links = _latencies(forest) if topology is None else topology.latencies()
    return simulate.simulated_band(forest, links)


def _latencies(forest: Forest) -> Latencies | None:
    machine = machine_of(forest.graph, forest.name)
    return None if machine is None else machine.latencies()


def forest_beside(plan: Path) -> Path | None:
    """The forest file that `synthesize` writes beside a plan file, if it is there."""
    suffixes = [form.suffix for form in FORMATS.values()]
    for suffix in (*suffixes, *(Path(suffix).suffix for suffix in suffixes)):
        if plan.name.endswith(suffix):
            path = plan.with_name(plan.name.removesuffix(suffix) + FOREST)
            return path if path.is_file() else None
    return None


def _root(program: Program) -> str:
    return f" from rank {program.root}" if program.collective.rooted else ""
