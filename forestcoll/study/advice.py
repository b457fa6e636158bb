"""Advice: what links allow, what stock libraries make of them, what plans gain, and the ways to it.

Figures are those of `compare`, of calls of SIZES and of LIBRARY's ways, which NCCL and RCCL take
themselves. What a failure leaves is counted on the links alone: the optimum, and the same ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.compile.formats import seat, targets_of
from forestcoll.compile.problem import parse_collective
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.plans import FORMATS
from forestcoll.plans.stock.trees import MOST_CHILDREN, MOST_TREES
from forestcoll.program.targets import BEFORE_GFX90A, MSCCLPP, RCCL, library_on, sms_of
from forestcoll.solver.baselines import BASELINES
from forestcoll.study.comparison.outcome import Comparison
from forestcoll.study.comparison.play import compare
from forestcoll.study.degrade.losses import Hardest, Workload, find_hardest

if TYPE_CHECKING:
    from forestcoll.common.clock import Progress
    from forestcoll.program import Collective
    from forestcoll.topology import Topology
    from forestcoll.topology.calibrate.calls import Run

SIZES: Final = (1 << 16, 1 << 23, 1 << 30)
"""Bytes of the calls that stand for small, medium and large ones."""
LIBRARY: Final = ("rings", "double-tree", "in-switch")
"""The baselines that stock libraries take."""
WORTH: Final = 1.02
"""How many times as fast a plan is that is worth anything."""
HALF: Final = 50
"""Percent of the bound below which latency decides, not the links."""
SLOW: Final = 1.25
"""How many times as long as on the links a measured call takes that is below what they allow."""
LOADERS: Final = {
    "rccl": "RCCL of ROCm 6.1 to 7.2 loads plans",
    "msccl": "msccl-executor-nccl, a build of NCCL, loads plans in NCCL's place",
    "mscclpp": "MSCCL++ loads plans, for programs of the library too, through its shim",
}
"""What loads plans, by the runtime's name."""
KINDS: Final = ("adapter", "link", "gpu")


class Reach(NamedTuple):
    """What the links allow one of LIBRARY's ways, GB/s; None: it does not serve, `why` says why."""

    name: str
    algbw: Fraction | None
    why: str = ""


class State(NamedTuple):
    """A machine as it is (`failure`: None), or after its hardest failure of a kind, by the links.

    `bound`: GB/s that no schedule exceeds; None where there is none, for `reason`.
    """

    failure: Hardest | None
    bound: Fraction | None
    reached: tuple[Reach, ...]
    reason: str = ""

    @property
    def library(self) -> Reach | None:
        """The fastest of the library's ways."""
        there = [one for one in self.reached if one.algbw]
        return max(there, key=lambda one: one.algbw or 0, default=None)

    @property
    def gain(self) -> Fraction | None:
        """How many times as much the bound is as the library reaches."""
        best = self.library
        return None if best is None or not self.bound or not best.algbw else self.bound / best.algbw


class Gain(NamedTuple):
    """Calls of `size` bytes: how many times as fast ours are as the library's best, by both rules.

    `name`: that one, under the `rule` of links by which ours gains least; None where one of both
    has no plan.
    """

    size: int
    name: str | None
    rule: str = ""
    least: float = 1.0
    most: float = 1.0
    reason: str = ""


class Way(NamedTuple):
    """A way to have it: `name` of a runtime or an export; `why` not, or what it comes to."""

    name: str
    serves: bool
    why: str


class Timed(NamedTuple):
    """A call that was measured, in microseconds, and what the library's best takes on the links."""

    size: int
    us: float
    expected: float

    @property
    def slow(self) -> bool:
        """Whether it takes SLOW times as long."""
        return self.us > SLOW * self.expected


class Advice(NamedTuple):
    """What `advise` says of a machine; `measured`: sizes ascending."""

    comparison: Comparison
    states: tuple[State, ...]
    gains: tuple[Gain, ...]
    ways: tuple[Way, ...]
    measured: tuple[Timed, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether no call gains on the machine as it is."""
        return all(gain.least < WORTH for gain in self.gains if gain.name)


def advise(
    topology: Topology, collective: Collective | str = "allreduce", progress: Progress | None = None
) -> Advice:
    """What a machine allows, what the library makes of it, and what to do.

    Raises what `compare` raises.
    """
    kind = parse_collective(collective)
    comparison = compare(
        topology, kind, sizes=SIZES, against=LIBRARY, quick=True, progress=progress
    )
    workload = Workload(topology, kind)
    now = State(None, comparison.bound, tuple(_reach(topology, kind)))
    broken = [_after(workload, hardest) for hardest in find_hardest(workload, KINDS, progress)]
    gains = tuple(_gain(comparison, size) for size in SIZES)
    return Advice(comparison, (now, *broken), gains, tuple(list_ways(topology, kind)))


# --- by the links


def _reach(topology: Topology, collective: Collective) -> Iterator[Reach]:
    graph = CapacityGraph.from_topology(topology)
    for name in LIBRARY:
        record = BASELINES[name]
        try:
            fastest = record.forests(graph, collective)[0]
        except ForestCollError as error:
            yield Reach(name, None, str(error))
            continue
        yield Reach(name, fastest.algbw if record.in_switch else fastest.plain_algbw)


def _after(workload: Workload, hardest: Hardest) -> State:
    if hardest.algbw is None:
        return State(hardest, None, (), hardest.reason)
    left = hardest.failure.apply(workload.topology)
    return State(hardest, hardest.algbw, tuple(_reach(left, workload.collective)))


# --- by size


def _gain(comparison: Comparison, size: int) -> Gain:
    times = {rule: comparison.speedup(size, rule) for rule in comparison.rules}
    there = {rule: time for rule, time in times.items() if time is not None}
    if len(there) < len(times):
        return Gain(size, None)
    rule = min(there, key=lambda r: there[r])
    mine, theirs = comparison.cell("forestcoll", size, rule), comparison.best_baseline(size, rule)
    assert mine is not None
    assert theirs is not None
    least, most = min(there.values()), max(there.values())
    share = f"{theirs.name}: {theirs.percent:.0f} % of the bound"
    if max(mine.percent, theirs.percent) < HALF:
        reason = "hops and messages take the time, not links"
    elif least * WORTH < 1:
        reason = f"{share}, the plan: {mine.percent:.0f} %"
    elif least < WORTH:
        reason = "both use the links as well"
    else:
        busy = theirs.busiest[0]
        used = round(100 * busy.utilisation)
        reason = f"{share}, {busy.src} -> {busy.dst} busy {used} % of the time"
    return Gain(size, theirs.name, rule, least, most, reason)


def hold(told: Advice, run: Run, source: str) -> Advice:
    """The advice with what was measured of its collective, the best of each size.

    Times between SIZES lie on lines between those of the library's best; below they are those of
    the least, above they grow with the bytes. Raises UnsupportedError where there are none, or it
    was timed among other ranks.
    """
    compared = told.comparison
    if len(run.hosts) != compared.ranks:
        raise UnsupportedError(
            f"{source}: timed among {len(run.hosts)} ranks; {compared.name} has {compared.ranks}"
        )
    word = compared.collective.replace("-", "")
    best: dict[int, float] = {}
    for call in run.calls:
        if call.collective.replace("_", "") == word and call.size and call.us:
            best[call.size] = min(call.us, best.get(call.size, call.us))
    if not best:
        raise UnsupportedError(f"{source}: no {compared.collective} was timed in it")
    known = []
    for size in compared.sizes:
        cells = [compared.best_baseline(size, rule) for rule in compared.rules]
        times = [cell.time for cell in cells if cell is not None]
        if not times:
            raise UnsupportedError(f"{source}: no way of the library has a plan to hold it against")
        known.append((size, max(times)))
    timed = (Timed(size, us, _between(known, size)) for size, us in sorted(best.items()))
    return told._replace(measured=tuple(timed))


def _between(known: Sequence[tuple[int, float]], size: int) -> float:
    if size <= known[0][0]:
        return known[0][1]
    for (low, first), (high, last) in pairwise(known):
        if size <= high:
            return first + (last - first) * (size - low) / (high - low)
    return known[-1][1] * size / known[-1][0]


# --- ways to it


def list_ways(topology: Topology, collective: Collective) -> Iterator[Way]:
    """Stock libraries first, then what loads plans."""
    yield _trees(topology, collective)
    yield _rails(topology)
    graph = CapacityGraph.from_topology(topology)
    library = library_on(topology.name)
    for form, target in targets_of(FORMATS, "any", sms_of(topology.name)).items():
        name = library.name if library.format == form else target.name
        if target.name == MSCCLPP.name and BEFORE_GFX90A.search(topology.name):
            yield Way(name, False, "for AMD's gfx90a and later")
            continue
        try:
            seat({form: target}, graph, topology.name, any_target=False)
        except PlanError as error:
            yield Way(name, False, str(error))
            continue
        yield Way(name, True, LOADERS[name])
    yield Way("torch", True, "PyTorch's collectives take plans, over the library that is there")


def _trees(topology: Topology, collective: Collective) -> Way:
    from forestcoll.solver.stock.spanning_trees import pack

    name, graph = "rccl-trees", CapacityGraph.from_topology(topology)
    if library_on(topology.name) is not RCCL:
        return Way(name, False, "for AMD's GPUs alone")
    if not collective.two_phases:
        return Way(name, False, "of an allreduce alone")
    if len(set(graph.boxes)) > 1:
        return Way(name, False, "of one box alone")
    with suppress(UnsupportedError):
        packing = pack(graph, MOST_TREES, MOST_CHILDREN)
        trees = f"{len(packing.trees)} tree{'s' * (len(packing.trees) > 1)}"
        return Way(name, True, f"{trees}: {float(packing.algbw):.1f} GB/s")
    return Way(name, False, "no trees of two children a rank")


def _rails(topology: Topology) -> Way:
    from forestcoll.solver.stock.rails import choose

    try:
        rails = choose(topology, topology)
    except UnsupportedError as error:
        return Way("nccl-graph", False, str(error))
    hops = len(rails.boxes) * len(rails.channels)
    return Way(
        "nccl-graph",
        True,
        f"where adapters are slow or out, rings on common rails: {rails.changes} of {hops} hops "
        "between boxes change rail; else the library's own rings do",
    )
