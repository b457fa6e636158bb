"""Trees that let switches copy and add in the fabric (NVLS, SHARP): one copy in, many out.

A broadcast tree that enters a switch which copies may leave it over any of its links, and loads the
link into it once. So the switch is one more vertex that trees span, with nothing of its own to
send: Edmonds' theorem and the packing hold as they are, and the switch needs no in = out. Spanning
it costs a tree nothing but one copy into the switch, and a tree that has no use for it drops it
afterwards. Reduce trees are broadcast trees turned round; there the switch adds.

An allreduce has both halves on the same links at once: a linear program (`flows.model`) of which
the one group is all ranks. What beats nothing of this kind need not beat every schedule: the bound
is the one that allows for copies and sums in whatever way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from forestcoll.common.errors import ForestError, InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Path, Phase, Tree, check
from forestcoll.schedule.group import find_group_symmetries as symmetries_found
from forestcoll.schedule.group import span_switches, whole_group
from forestcoll.solver.allreduce import plan
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.flows.model import Model
from forestcoll.solver.groups.forests import pack_flow
from forestcoll.solver.optimum import check_root
from forestcoll.solver.packing import pack
from forestcoll.solver.shallow.height import forest_bound
from forestcoll.solver.task import Optimum, Packed, Task, analyse, assemble, forward
from forestcoll.solver.walks import without_loops

RANKS = 256
"""Ranks up to which trees that use the fabric are looked for."""
FEWER = 64
"""Ranks up to which they are looked for even if they can be better in their number alone."""


def better(
    graph: CapacityGraph, collective: Collective, root: int | None, plain: Optimum
) -> Optimum | None:
    """What trees that use the fabric reach, where that is more than `plain`; else None."""
    if plain.bound.algbw <= plain.algbw or not usable(graph, collective):
        return None
    fabric = _optimum(graph, collective, root)
    if fabric is None or fabric.algbw <= plain.algbw:
        return None
    return replace(fabric, bound=min(plain.bound, fabric.bound, key=lambda b: b.algbw))


def may_beat(forest: Forest) -> bool:
    """Whether trees that use the fabric may be better than `forest`, whose trees do not.

    No trees are faster than its bound, or lower than `forest_bound`; they could be fewer, but of
    many ranks that is not worth the search.
    """
    bound = forest.bound
    if forest.n <= FEWER or bound is None or forest.algbw < bound.algbw:
        return True
    least = forest_bound(forest)
    return least is None or forest.height > least


def usable(graph: CapacityGraph, collective: Collective) -> bool:
    """Whether some switch copies, or adds where that is what the collective needs."""
    if len(graph.ranks) > RANKS:
        return False
    copies = span_switches(graph) is not graph
    back = graph.reverse()
    adds = span_switches(back) is not back
    if collective is Collective.ALLREDUCE:
        return copies or adds
    return adds if collective.reduces else copies


def forest(
    graph: CapacityGraph, collective: Collective, root: int | None = None, name: str = ""
) -> Forest | None:
    """A forest whose trees copy and add in the fabric; None where the graph has no such switch.

    None as well where a copy would have to be counted twice: between a rank and a switch that
    copies stands one that does not. Raises InfeasibleError where ranks cannot reach each other.
    """
    root = check_root(graph, collective, root)
    if not usable(graph, collective):
        return None
    if collective is Collective.ALLREDUCE:
        return _allreduce(graph, name)
    task = _task(forward(graph, collective), root)
    if task is None:
        return None
    fit = fit_trees(task, "auto")
    trees = contract(pack(task.graph, fit.capacity, task.supply(fit.trees)), graph)
    packed = Packed(trees, fit.trees * task.roots, task.algbw)
    bound = analyse(forward(graph, collective), root).bound
    assembled = assemble(name, graph, collective, {collective.phases[0]: packed}, bound, root)
    return _check_forest(assembled, task.algbw)


def _optimum(graph: CapacityGraph, collective: Collective, root: int | None) -> Optimum | None:
    if collective is not Collective.ALLREDUCE:
        way = forward(graph, collective)
        task = _task(way, root)
        if task is None:
            return None
        rate, bound = task.rate * task.graph.unit, analyse(way, root).bound
        return Optimum(task.algbw, rate, task.trees_per_root, bound)
    both_halves = _allreduce(graph, "")
    if both_halves is None or both_halves.bound is None:
        return None
    algbw = both_halves.algbw
    return Optimum(algbw, algbw / both_halves.n, both_halves.trees_per_root, both_halves.bound)


# --------------------------------------------------------------------------------- one phase


def _task(graph: CapacityGraph, root: int | None) -> Task | None:
    """Broadcast trees that span the switches that copy, too; None where these are out of reach."""
    wide = span_switches(graph)
    if root is not None:
        wide = replace(wide, shares=())
    try:
        return analyse(wide, root)
    except InfeasibleError:
        analyse(graph, root)  # the ranks themselves can be reached, or this says why not
        return None


def contract(trees: Iterable[Tree], graph: CapacityGraph) -> list[Tree]:
    """The trees over the ranks of `graph` alone; paths run through the other vertices.

    Trees that become equal are one.
    """
    ranks = set(graph.ranks)
    merged: dict[tuple[int, tuple[Path, ...]], int] = defaultdict(int)
    for tree in trees:
        into: dict[int, Path] = {}  # per vertex that is no rank, the path from the rank before it
        paths: list[Path] = []
        for path in tree.edges:
            whole = into[path[0]] + path[1:] if path[0] in into else path
            if path[-1] in ranks:
                paths.append(without_loops(whole))
            else:
                into[path[-1]] = whole
        merged[tree.root, tuple(paths)] += tree.weight
    return [Tree(root, "broadcast", weight, paths) for (root, paths), weight in merged.items()]


def _check_forest(forest: Forest, algbw: Fraction) -> Forest | None:
    """The forest, once it is checked; None where it is slower than `algbw` (GB/s)."""
    try:
        return forest if check(forest) >= algbw else None
    except ForestError as error:
        raise RuntimeError(f"internal error: {error}") from None


# --------------------------------------------------------------------------------- allreduce


def _allreduce(graph: CapacityGraph, name: str) -> Forest | None:
    """Both halves at once. Equal parts of all ranks are tried first: they make fewer trees."""
    group = whole_group(graph, Collective.ALLREDUCE)
    alike = symmetries_found(graph, [group])
    bound = plan(graph).bound
    best: Forest | None = None
    for equal in (True,) if graph.shares else (True, False):
        model = Model(graph, [group], alike, equal=equal, spanning=True)
        try:
            solution = model.solve()
        except UnsupportedError:  # another way has been found, or the plain trees remain
            break
        algbw = model.algbw(solution)
        if not algbw:  # a switch that trees should span is out of reach
            break
        if best is None or algbw > best.algbw:
            phases: dict[Phase, Packed] = {}
            for flow in reversed(model.flows(solution)):  # reduce trees first
                packed = pack_flow(flow, algbw, "auto")
                trees = contract(packed.trees, graph)
                phases[flow.phase] = replace(packed, trees=trees, algbw=algbw)
            both = assemble(name, graph, Collective.ALLREDUCE, phases, bound)
            best = _check_forest(both, algbw) or best
        if best is not None and best.algbw == bound.algbw:
            break
    return best
