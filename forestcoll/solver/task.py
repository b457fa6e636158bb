"""Optimum of one phase of trees: how fast it can be, exactly, and the cut that proves it.

Bottleneck cut: the node set with the least bandwidth leaving it for what it has to send.

With parts a(v), one unit of time at rate x moves x a(v) of the data of rank v to everyone:

    1 / x = max over node sets S, not holding all ranks, of a(S) / bandwidth leaving S

Where all parts are equal, a(S) counts ranks; of a broadcast the root alone has a part.

Balanced sub-capacities: the optimum where a switch receives more than it sends, or less.

Such a switch can neither copy nor add, so the plain cut promises too much: one link in and two
links out cannot feed two ranks at full rate. What a schedule really uses of each link is a
sub-capacity c <= b with in = out at every node that is no rank, and on balanced capacities the
plain cut is exact. The optimum is therefore a linear program in c and the rate x:

    maximise x  with  0 <= c <= b,  in = out at every non-rank,
                      c(leaving S) >= x * ranks in S    for every S holding some, not all ranks

(broadcast: >= x for every S that holds the root and not all ranks). Its cuts are too many to write
down, so only those that a max-flow finds violated are added; its dual is the proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CAPACITY_LIMIT, CapacityGraph, is_balanced, require_size
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.graph.symmetry.quotient import ALIKE_FROM, alike_ranks, fold
from forestcoll.program import Collective
from forestcoll.schedule.dual import as_bound
from forestcoll.schedule.forest import Bound, Forest, Path, Phase, Tree, check
from forestcoll.schedule.group import scale, whole_group
from forestcoll.solver.flows.folded import Folded
from forestcoll.solver.flows.model import Model

Cut = frozenset[int]


def least_cut(graph: CapacityGraph, root: int | None) -> tuple[Fraction, Cut]:
    """(rate in units of capacity, cut) of allgather (root None) or broadcast from rank `root`.

    Every switch is taken for one that may copy. Raises InfeasibleError where the rate is 0.
    """
    rate, cut = tightest_cut(graph, root)
    if rate == 0:
        raise explain_separation(graph, cut)
    return rate, cut


@lru_cache(maxsize=4)
def tightest_cut(graph: CapacityGraph, root: int | None) -> tuple[Fraction, Cut]:
    """As `least_cut`, where no link leaves the cut too."""
    links, parts = (*graph.wires, graph.capacity), graph.parts
    if len(graph.ranks) < 2:
        raise UnsupportedError("a collective needs at least two ranks")
    if root is None:
        most = sum(graph.capacity)
        if most * sum(parts) >= CAPACITY_LIMIT:
            raise UnsupportedError(
                f"the links add up to {most} units and the parts to {sum(parts)}: too many for "
                "exact 64-bit flows (limit 2^62); give parts or bandwidths with fewer digits"
            )
    source = None if root is None else graph.ranks[root]
    sinks = alike_ranks(graph, source) if len(graph.ranks) > ALIKE_FROM else graph.ranks
    if 2 * len(sinks) < len(graph.ranks):
        leaving, held, nodes = fold(graph, sinks).least_cut(source)
    elif source is None:
        leaving, held, nodes = _kernel.best_ratio(*links, graph.ranks, parts, graph.ranks)
    else:
        (leaving, nodes), held = _kernel.least_flow(*links, source, graph.ranks), 1
    return Fraction(leaving, held), frozenset(nodes)


def explain_separation(graph: CapacityGraph, cut: Cut) -> InfeasibleError:
    """The error of a cut that no link leaves, though ranks are inside and outside."""
    relay = "let other GPUs pass data on (--relays idle), " * graph.lacks_gpus
    return InfeasibleError(f"{graph.explain_cut(cut)}; add a link, {relay}or leave these ranks out")


COMPACT_FROM = 2_048
"""Above that many ranks, compact forests are made where that is possible and nothing else asked."""
PATIENT = 128
"""Ranks up to which the general packers and the joint program of an allreduce take seconds."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best that trees can do.

    `algbw` in GB/s; `rate` is GB/s per rank (algbw / N), a unit of a part where the parts of ranks
    differ (algbw / their sum), for broadcast and reduce algbw itself.
    `trees_per_root` is the least k at which the optimum is reached in whole units; for allreduce,
    where roots may have different shares, the mean of those that were found. `bound` is
    above `algbw` only where a switch copies or adds in the fabric, and for an allreduce that is too
    large for its joint optimum; then `note` says so.
    """

    algbw: Fraction
    rate: Fraction
    trees_per_root: int
    bound: Bound
    note: str = ""
    in_switches: Optimum | None = None  # where trees that let switches copy and add are faster

    def __repr__(self) -> str:
        return (
            f"<Optimum {self.algbw} GB/s, {self.trees_per_root} trees per root, bound "
            f"{self.bound.algbw} GB/s>"
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One phase of broadcast trees to be packed at its optimum.

    `graph` is balanced at every node that is no rank; `given` is the same graph before that, with
    all of its capacity. `root` is None when every rank sends its part (allgather), else the rank
    number of the only root (broadcast). `rate` is in units of the capacity of `graph`: per rank
    (per unit of a part where parts differ), or for one root in all.
    """

    graph: CapacityGraph
    given: CapacityGraph
    root: int | None
    rate: Fraction
    bound: Bound

    @property
    def roots(self) -> int:
        """How many ranks are roots, or the sum of their parts where parts differ."""
        return sum(self.graph.parts) if self.root is None else 1

    @property
    def algbw(self) -> Fraction:
        """GB/s."""
        return self.rate * self.roots * self.graph.unit

    @property
    def trees_per_root(self) -> int:
        """The least k at which all links hold whole numbers of trees."""
        return self.rate.numerator // self._common

    def capacities(self) -> list[int]:
        """Per link, how many trees it carries when every root has `trees_per_root`."""
        common = self._common
        return [self.rate.denominator * (c // common) for c in self.graph.capacity]

    def supply(self, trees: int) -> list[int]:
        """Per node, how many trees are rooted there: `trees` a root, or a unit of a part."""
        supply = [0] * self.graph.n
        if self.root is not None:
            supply[self.graph.ranks[self.root]] = trees
            return supply
        for node, part in zip(self.graph.ranks, self.graph.parts, strict=True):
            supply[node] = trees * part
        return supply

    @property
    def _common(self) -> int:
        return math.gcd(self.rate.numerator, *self.graph.capacity)


@dataclass(frozen=True, slots=True)
class Packed:
    """Broadcast trees of one phase (those of a reduction on the reversed graph).

    `total`: the weight of all of them; `algbw`: GB/s at least, alone on the links that they have.
    """

    trees: Sequence[Tree]
    total: int
    algbw: Fraction


def assemble(
    name: str,
    graph: CapacityGraph,
    collective: Collective,
    phases: Mapping[Phase, Packed],
    bound: Bound | None = None,
    root: int | None = None,
    group: SymmetryGroup | None = None,
) -> Forest:
    """The forest of these phases, one after the other as they are listed; not checked yet."""
    total = math.lcm(*(packed.total for packed in phases.values()))
    turned: dict[Path, Path] = {}

    def turn(tree: Tree) -> Tree:
        """The tree turned round; paths that trees share they go on sharing."""
        tree = tree.reverse()
        return replace(tree, edges=tuple([turned.setdefault(path, path) for path in tree.edges]))

    trees = [
        replace(
            turn(tree) if phase == "reduce" else tree,
            weight=tree.weight * (total // packed.total),
        )
        for phase, packed in phases.items()
        for tree in packed.trees
    ]
    at = -1 if root is None else root
    return Forest(name, graph, collective, total, tuple(trees), bound, at, group)


def check_promise(forest: Forest, algbw: Fraction) -> None:
    """Checks the whole forest; RuntimeError where it is slower than `algbw` (GB/s), as promised.

    One link that carries more than it may is enough for that. No trees here let switches copy or
    add, so no load is counted once for many.
    """
    check(forest)
    if forest.plain_algbw < algbw:
        raise RuntimeError(
            f"internal error: the forest reaches {forest.plain_algbw} GB/s, not {algbw}"
        )


def forward(graph: CapacityGraph, collective: Collective) -> CapacityGraph:
    """The graph on which the trees of a collective are broadcast trees, those of a phase alone."""
    return graph.reverse() if collective.phases == ("reduce",) else graph


@lru_cache(maxsize=4)
def analyse(graph: CapacityGraph, root: int | None) -> Task:
    """The optimum of allgather (root None) or of broadcast from rank `root`.

    For reduce-scatter and reduce pass the reversed graph. A switch without copying cannot send more
    than it receives; where in and out differ, the best balanced part of the capacities takes the
    graph's place. Where the plain cut can still be reached, the bound is that cut ("cut"); else it
    is the dual ("linear-program"). Multicast and aggregation are not used, but the bound allows for
    them: where a copying switch could do better than balanced traffic, it is larger than the rate.
    Raises InfeasibleError when some rank cannot reach another.
    """
    require_size(graph.capacity, sum(graph.parts))
    rate, cut = least_cut(graph, root)
    roots = sum(graph.parts) if root is None else 1
    task = Task(graph, graph, root, rate, Bound(rate * roots * graph.unit, "cut", (cut,)))
    if is_balanced(graph):
        return task
    return _fold(task) or _trim(task) or _balance(task)


def _trim(task: Task) -> Task | None:
    """The same rate on a balanced part of the links, or None where that is not found.

    What a switch receives or sends too much is taken away link by link, as far as every rank still
    gets everything: quick, and it keeps the cut as proof. It fails where the rate is out of reach.
    """
    graph, p, q = task.graph, task.rate.numerator, task.rate.denominator
    capacity = _kernel.trim(
        *graph.wires,
        [c * q for c in graph.capacity],
        task.supply(p),
        graph.ranks,
    )
    if capacity is None:
        return None
    trimmed = scale(graph, capacity, graph.unit / q)
    return replace(task, graph=trimmed, rate=p * graph.unit / q / trimmed.unit)


def _fold(task: Task) -> Task | None:
    """The optimum over balanced sub-capacities of a large graph where many ranks are alike."""
    graph = task.graph
    if len(graph.ranks) <= PATIENT:
        return None
    folded = Folded(graph, task.root)
    if 2 * len(folded.sinks) >= len(graph.ranks):
        return None
    algbw, bound, capacity, common = folded.solve(task.bound.parts[0])
    trimmed = scale(graph, capacity, graph.unit / common)
    rate = algbw / task.roots / trimmed.unit
    return replace(
        task, graph=trimmed, rate=rate, bound=min(task.bound, bound, key=lambda b: b.algbw)
    )


def _balance(task: Task) -> Task:
    """The optimum over balanced sub-capacities, by the linear program."""
    graph, root = task.graph, task.root
    collective = Collective.ALLGATHER if root is None else Collective.BROADCAST
    model = Model(graph, [whole_group(graph, collective, root)], (), any_size=True)
    solution = model.solve()
    trimmed, rate = model.flows(solution)[0].graph, model.algbw(solution) / task.roots
    bound = task.bound
    if rate * task.roots != bound.algbw:
        bound = as_bound(graph, model.prove(solution), collective)
    return Task(trimmed, graph, root, rate / trimmed.unit, bound)
