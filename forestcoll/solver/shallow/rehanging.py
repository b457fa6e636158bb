"""Low forests on irregular switch fabrics, by negotiated re-hanging (`graph/kernel/rehanging`).

Who hangs on whom, by which path and at which depth is chosen together, box by box, until no link
carries more trees than its capacity. Then the trees are as fast as those capacities allow, and
counting the loads is all the proof that it takes. Boxes spread what enters them on their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.fixed_trees import floors
from forestcoll.solver.shallow.boxes import Boxes, find_boxes
from forestcoll.solver.shallow.height import least_height
from forestcoll.solver.shallow.inside import Hung, Interior, Spread, hang
from forestcoll.solver.shares import slices
from forestcoll.solver.task import Task

MOST_EDGES = 4_000_000
"""Units times boxes up to which trees are searched for this way."""
MORE_THAN = 64
"""Ranks up to which the other packers are quick, and low enough."""
MANY = 8
"""Trees of a root from which several are hung as one."""
HIGHER = 3
"""Heights above the lower bound that are tried."""


def suits(graph: CapacityGraph, root: int | None) -> bool:
    """Whether this is the way: many roots, more than a few ranks, switches.

    Where switches copy or add, these are trees that do not let them.
    """
    return root is None and MORE_THAN < len(graph.ranks) < graph.n


@dataclass(frozen=True)
class Wanted:
    """Trees that are wanted: `supply[v]` of them from node v, at most `capacity[e]` over link e."""

    graph: CapacityGraph
    capacity: Sequence[int]
    supply: Sequence[int]

    @cached_property
    def least(self) -> int:
        """No forest of them is lower."""
        return least_height(self.graph, self.capacity, self.supply)

    @staticmethod
    def of(task: Task, k: int, algbw: Fraction) -> Wanted:
        """Those of `task`, `k` per root, with all that links can carry where it runs at `algbw`."""
        graph = task.given
        capacity = floors(task.roots * k * graph.unit / algbw, graph.capacity)
        return Wanted(graph, capacity, task.supply(k))


def pack_irregular(wanted: Wanted, higher: int = HIGHER) -> list[Tree] | None:
    """Broadcast trees as they are wanted; None where none are found. For what `suits`.

    Heights from the lower bound up are tried, `higher` more; trees inside boxes may add to them.
    """
    boxes = find_boxes(wanted.graph, tuple(wanted.capacity), tuple(wanted.supply))
    return _search(boxes, wanted.capacity, wanted.least, higher)


def rehang_mirrored(
    graph: CapacityGraph,
    capacity: Sequence[int],
    supply: Sequence[int],
    height: int,
) -> list[Tree] | None:
    """Trees of this height that serve both phases of an allreduce.

    No link carries more than its `capacity` of them and of the same trees turned round together.
    Between boxes a link shares what it has with the one in the other direction, as the search
    needs it; inside boxes each phase has half.
    """
    room = dict(zip(graph.ends, capacity, strict=True))
    both = [min(c, room.get((h, t), 0)) for (t, h), c in room.items()]
    boxes = find_boxes(graph, tuple([c // 2 for c in both]), tuple(supply))
    return _search(boxes, both, height, 0, shared=True)


def _search(
    boxes: Boxes, capacity: Sequence[int], least: int, higher: int, shared: bool = False
) -> list[Tree] | None:
    """Trees of the least height that is found, `capacity` for the links between boxes."""
    graph, supply = boxes.graph, boxes.supply
    if sum(supply) * boxes.count > MOST_EDGES:
        return None
    limits = zip(graph.ends, capacity, boxes.inner, strict=True)
    links = {pair: c for pair, c, inner in limits if inner < 0}
    for gated in boxes.gated.values():
        for (t, h), taken in gated.loads.items():
            links[t, h] -= taken
            if shared:
                links[h, t] -= taken
    units = [(v, many) for v in graph.ranks for many in _portions(supply[v])]
    problem = graph.n, {pair: c for pair, c in links.items() if c > 0}, graph.ranks, units
    least = max(least, 1 + max((gated.hops for gated in boxes.gated.values()), default=0))
    rooted, leaving, box = Counter[int](), Counter[int](), boxes.box
    for v in graph.ranks:
        rooted[box[v]] += supply[v]
    for (t, h), c in links.items():
        if box[t] != box[h]:  # no way leads on from another box's switch
            leaving[box[t]] += c if box[h] < 0 else min(c, rooted[box[t]])
    if any(trees * (boxes.count - 1) > leaving[b] for b, trees in rooted.items()):
        least = max(least, 2 + min(boxes.spread))  # below, roots send to all boxes themselves
    for height in range(least, least + higher + 1):
        hung = hang(*problem, height, boxes.box, boxes.spread, boxes.entries, boxes.apart, shared)
        if hung is not None:
            trees = _assemble(boxes, hung)
            if trees is not None:
                return trees
    return None


def _portions(trees: int) -> list[int]:
    """How many trees of a root hang as one: of many most, then most of the rest; few one by one.

    What is equal is searched once, and written once; what is small fills the links.
    """
    rest = trees // 4
    return [1] * trees if trees < MANY else [trees - rest, *_portions(rest)]


def _assemble(boxes: Boxes, hung: Hung) -> list[Tree] | None:
    """The trees over all ranks: between boxes as found, inside them as each box packs its own."""
    chosen = _choose_spreads(boxes, hung)
    if chosen is None:
        return None
    weights: Counter[tuple[int, ...]] = Counter()
    edges: dict[tuple[int, ...], tuple[Path, ...]] = {}
    for (root, many), tree, ways in zip(hung.units, hung.trees, chosen, strict=True):
        numbers = tree[1::2]
        for inside, weight in slices(ways, many):
            key = (root, *numbers, *map(id, inside))
            weights[key] += weight
            if key not in edges:
                paths = [*inside[0].paths]
                for number, spread in zip(numbers, inside[1:], strict=True):
                    paths.append(hung.paths[number])
                    paths += spread.paths
                edges[key] = tuple(paths)
    return [Tree(key[0], "broadcast", weights[key], paths) for key, paths in edges.items()]


_Entry = tuple[frozenset[int], int, int, int]
"""(senders, depth, unit, place): where the `place`-th box of a tree is entered; 0: the root's.

`senders`: the ranks of the box that send it on to others; `depth`: hops before.
"""
_Shares = list[tuple[Spread, int]]
"""The ways in which a unit's trees spread, one after the other, and how many do."""


def _choose_spreads(boxes: Boxes, hung: Hung) -> list[list[_Shares]] | None:
    """Per unit how each box spreads it, first the root's own, then in the order of its tree."""
    first, last = [path[0] for path in hung.paths], [path[-1] for path in hung.paths]
    weights = [many for _, many in hung.units]
    chosen: list[list[_Shares]] = []
    entries: dict[int, list[_Entry]] = defaultdict(list)  # by the rank where they enter
    same: dict[frozenset[int], frozenset[int]] = {}  # equal sets of senders are one
    for unit, ((root, many), tree) in enumerate(zip(hung.units, hung.trees, strict=True)):
        depths, numbers = [0, *tree[::2]], tree[1::2]
        chosen.append([[(_NOTHING, many)]] * len(depths))
        sending: dict[int, set[int]] = defaultdict(set)
        for v in {first[number] for number in numbers}:
            sending[boxes.box[v]].add(v)
        sets = [frozenset(ranks) for ranks in sending.values()]
        senders = dict(zip(sending, map(same.setdefault, sets, sets), strict=True))
        for place, v in enumerate((root, *(last[number] for number in numbers))):
            entry = senders.get(boxes.box[v], _NOBODY), depths[place], unit, place
            entries[v].append(entry)
    for box, (members, links) in enumerate(zip(boxes.members, boxes.links_inside(), strict=True)):
        if len(members) == 1:
            continue
        spreads: Mapping[int, list[Spread]] | None
        if box in boxes.gated:
            spreads = boxes.gated[box].spreads
        else:
            starts = {v: sum(weights[u] for _, _, u, _ in entries[v]) for v in members}
            spreads = Interior(boxes.graph, members, links).spread(starts)
        if spreads is None:
            return None
        for rank, some in spreads.items():
            for unit, place, shares in _assign(rank, entries[rank], some, weights):
                chosen[unit][place] = shares
    return chosen


_NOTHING = Spread(0, (), {})
_NOBODY = frozenset[int]()


def _assign(
    rank: int, entries: list[_Entry], spreads: Sequence[Spread], weights: Sequence[int]
) -> Iterator[tuple[int, int, _Shares]]:
    """(unit, place, trees) for each of the entries of a rank.

    First choose those that other ranks of the box send on, what enters deepest before the rest: a
    tree in which these ranks are near, then a low one.
    """
    if len(spreads) == 1:
        yield from ((unit, place, [(spreads[0], weights[unit])]) for _, _, unit, place in entries)
        return
    left = [spread.weight for spread in spreads]
    queues = {  # the best last; spreads come the lowest first
        senders: sorted(
            range(len(spreads)),
            key=lambda i: (max([spreads[i].depth[v] for v in senders], default=0), i),
            reverse=True,
        )
        for senders in {senders for senders, _, _, _ in entries}
    }
    alone = {rank}
    for senders, _, unit, place in sorted(
        entries, key=lambda entry: (not entry[0] <= alone, entry[1]), reverse=True
    ):
        queue, rest = queues[senders], weights[unit]
        shares: _Shares = []
        while rest:
            best = queue[-1]
            taken = left[best] if left[best] < rest else rest
            if taken:
                left[best] -= taken
                rest -= taken
                shares.append((spreads[best], taken))
            else:
                queue.pop()
        yield unit, place, shares
