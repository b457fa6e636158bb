"""How long a plan should take on the machine that it is for: what a measured time is held against.

The plan is simulated there: its messages, slots and thread blocks on links at their nominal
bandwidth (`simulate`). Beside that stands what the links alone allow (`figures`).
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.compile.verdict import has_links_of, machine_of
from forestcoll.plans import FORMATS
from forestcoll.study.figures import Figures, best_of, figures_of
from forestcoll.verify import simulate

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Where

FOREST = ".forest.json"
NO_LATENCIES = "the links' latencies are unknown and count as 0; --topology NAME or FILE tells them"


class Site(NamedTuple):
    """What a plan is simulated on: `where`, and the topology that has its links' latencies.

    A forest's ways are those of its trees. `links` None: latencies are unknown, and count as 0.
    `note`: what a user should know of it, or "".
    """

    where: Where
    links: Topology | None
    note: str = ""


class Prediction(NamedTuple):
    """Of a program on its site."""

    program: Program
    site: Site
    figures: Figures

    @property
    def algbw(self) -> Fraction:
        """GB/s that links allow the plan."""
        return self.figures.algbw

    @property
    def simulates(self) -> bool:
        """Whether times are simulated: of more ranks the links alone speak."""
        return self.program.n <= simulate.RANKS

    def microseconds(self, size: int) -> float:
        """For nccl-tests' size in bytes; transfers meet as each link's own rule says."""
        if not self.simulates:
            return float(size / self.algbw / 1000)
        return simulate.run(self.program, self.site.where, size, links=self.site.links).time

    def band(self, size: int) -> simulate.Band | None:
        """Under both rules of links; None for more ranks than are simulated."""
        if not self.simulates:
            return None
        return simulate.band(self.program, self.site.where, size, links=self.site.links)


def by_source(program: Program, path: Path) -> Prediction:
    """By what a plan was made from: a forest's file, or routes'. Errors as of the two."""
    if program.collective.phases:
        return by_forest(program, path)
    from forestcoll.solver.alltoall.file import loads
    from forestcoll.solver.alltoall.routes import Routes

    source, _, _ = loads(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(source, Routes):
        raise PlanError(f"{path}: holds flows, no routes")
    return by_routes(program, source)


def by_forest(program: Program, path: Path) -> Prediction:
    """The algbw of the forest in a file. Raises ForestCollError: no forest, or another one's."""
    forest = forest_of(program, path)
    return Prediction(program, _own_site(forest, forest.name), _figures(program, forest, path))


def by_topology(program: Program, topology: Topology, forest: Path | None = None) -> Prediction:
    """By the plan's `forest` file where that has the topology's links; else by its optimum."""
    if len(topology.gpus) != program.n:
        raise PlanError(
            f"{topology.name} has {len(topology.gpus)} GPUs; the plan is for {program.n} ranks"
        )
    site, figures = _on(program, topology, forest)
    if figures is None:
        figures = best_of(topology, program.collective, program.root if program.root >= 0 else None)
        if program.in_switches and figures.in_switches is not None:
            figures = Figures(figures.in_switches, figures.source, best=True)
    return Prediction(program, site, figures)


def by_routes(program: Program, routes: Routes) -> Prediction:
    """The algbw of an all-to-all's routes. Raises ForestCollError: those of another one."""
    if len(routes.graph.ranks) != program.n:
        raise PlanError(
            f"routes among {len(routes.graph.ranks)} ranks, not among the plan's {program.n}"
        )
    figures = figures_of(routes, program, "the routes beside it")
    return Prediction(program, _own_site(routes.graph, program.name), figures)


def beside(program: Program, plan: Path) -> tuple[Prediction | None, str]:
    """By the forest file (or routes) beside a plan file, as `synthesize` writes it; and a note.

    The note says why a file that is there does not serve; without a file it is empty.
    """
    what = "forest" if program.collective.phases else "routes"
    try:
        if program.collective.phases:
            path = forest_beside(plan)
            return None if path is None else by_forest(program, path), ""
        from forestcoll.compile.alltoall_plans import routes_beside

        routes = routes_beside(plan)
        return None if routes is None else by_routes(program, routes), ""
    except ForestCollError as error:
        return None, f"no prediction by the {what} beside the plan: {error}"


def figures_of_file(
    program: Program, plan: Path, topology: Topology | None = None
) -> tuple[Site | None, Figures | None, str]:
    """What is known of a plan file without solving anything, and a note.

    It is simulated over the ways of the forest file beside it, where that has the topology's links;
    latencies are the topology's, without one the catalogue's where the links are its. Its figures
    are those of that forest, or of the routes beside it, unless these are of other links. Site
    None: no links are known, the note says why a file does not tell them.
    """
    if topology is not None and program.collective.phases:
        site, figures = _on(program, topology, forest_beside(plan))
        return site, figures, site.note
    prediction, text = beside(program, plan)
    if topology is None:
        return (
            (None, None, text)
            if prediction is None
            else (prediction.site, prediction.figures, prediction.site.note)
        )
    fits = prediction is not None and has_links_of(_graph_of(prediction.site.where), topology)
    return Site(topology, topology), prediction.figures if prediction and fits else None, ""


def site_with(
    program: Program, made_from: Forest | Routes | CapacityGraph, topology: Topology | None = None
) -> Site:
    """As `known_of` has it, of a plan and what it was made from, or the graph that it is for.

    Errors as of `by_routes`.
    """
    if not hasattr(made_from, "graph"):
        return Site(topology, topology) if topology else _own_site(made_from, program.name)
    if not program.collective.phases:
        own = by_routes(program, cast("Routes", made_from)).site
        return own if topology is None else Site(topology, topology)
    forest = cast("Forest", made_from)
    return (
        _own_site(forest, forest.name)
        if topology is None
        else _meet(topology, forest, "its forest")
    )


def _own_site(where: Forest | CapacityGraph, name: str) -> Site:
    """The links that a file says, with the latencies of the catalogue where they are its."""
    machine = machine_of(_graph_of(where), name)
    return Site(where, machine, "" if machine else NO_LATENCIES)


def _graph_of(where: Where) -> CapacityGraph:
    return cast("CapacityGraph", getattr(where, "graph", where))


def _on(program: Program, topology: Topology, path: Path | None) -> tuple[Site, Figures | None]:
    """A topology, over the ways of the plan's forest in a file where that has its links.

    Then with the figures of that forest, else without.
    """
    if path is None or not program.collective.phases:
        return Site(topology, topology), None
    try:
        forest = forest_of(program, path)
    except ForestCollError as error:
        return Site(topology, topology, f"ranks take the shortest ways: {error}"), None
    site = _meet(topology, forest, str(path))
    return site, None if site.note else _figures(program, forest, path)


def _meet(topology: Topology, forest: Forest, file: str) -> Site:
    if has_links_of(forest.graph, topology):
        return Site(forest, topology)
    text = f"ranks take the shortest ways: {file}: its links are not those of {topology.name}"
    return Site(topology, topology, text)


def _figures(program: Program, forest: Forest, path: Path) -> Figures:
    return figures_of(forest, program, path.name)


def forest_of(program: Program, path: Path) -> Forest:
    """The plan's forest in a file. Raises ForestCollError: no forest, or another one's."""
    from forestcoll.schedule import forest_file

    forest = forest_file.load(path)
    ours = (program.collective, program.n, program.root)
    if (forest.collective, forest.n, forest.root) != ours:
        root = f" from rank {program.root}" if program.collective.has_root else ""
        raise PlanError(
            f"{path}: a forest for {forest.collective} over {forest.n} ranks, not for the plan's "
            f"{program.collective} over {program.n}{root}"
        )
    return forest


def forest_beside(plan: Path) -> Path | None:
    """The forest file that `synthesize` writes beside a plan file, if it is there."""
    suffixes = [form.suffix for form in FORMATS.values()]
    for suffix in (*suffixes, *(Path(suffix).suffix for suffix in suffixes)):
        if plan.name.endswith(suffix):
            path = plan.with_name(plan.name.removesuffix(suffix) + FOREST)
            return path if path.is_file() else None
    return None
