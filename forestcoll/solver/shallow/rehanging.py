"""Low forests on irregular switch fabrics, by negotiated re-hanging (`graph/kernel/rehanging`).

Who hangs on whom, by which path and at which depth is chosen together, box by box, until no link
carries more trees than its capacity. Then the trees are as fast as those capacities allow, and
counting the loads is all the proof that it takes. Boxes spread what enters them on their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """Trees that are wanted: `supply[v]` of them from node v, at most `capacity[e]` over link e.

    `least`: no forest of them is lower.
    """

    graph: CapacityGraph
    capacity: Sequence[int]
    supply: Sequence[int]
    least: int

    @staticmethod
    def on(graph: CapacityGraph, capacity: Sequence[int], supply: Sequence[int]) -> Wanted:
        """These, with the bound on their height."""
        return Wanted(graph, capacity, supply, least_height(graph, capacity, supply))

    @staticmethod
    def of(task: Task, k: int, algbw: Fraction) -> Wanted:
        """Those of `task`, `k` per root, with all that links can carry where it runs at `algbw`."""
        graph = task.given
        capacity = floors(task.roots * k * graph.unit / algbw, graph.capacity)
        return Wanted.on(graph, capacity, task.supply(k))


def pack_irregular(wanted: Wanted, higher: int = HIGHER) -> list[Tree] | None:
    """Broadcast trees as they are wanted; None where none are found. For what `suits`.

    Heights from the lower bound up are tried, `higher` more; trees inside boxes may add to them.
    """
    boxes = find_boxes(wanted.graph, wanted.capacity, wanted.supply)
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
    boxes, both = _mirror(graph, tuple(capacity), tuple(supply))
    return _search(boxes, both, height, 0, shared=True)


@lru_cache(maxsize=4)
def _mirror(
    graph: CapacityGraph, capacity: tuple[int, ...], supply: tuple[int, ...]
) -> tuple[Boxes, list[int]]:
    """(the boxes that hold trees of both phases, per link what these share): for any height."""
    room = dict(zip(graph.ends, capacity, strict=True))
    both = [min(c, room.get((h, t), 0)) for (t, h), c in room.items()]
    return find_boxes(graph, [c // 2 for c in both], supply), both


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


_Entry = tuple[int, int, int]
"""(depth, unit, place): hops before it enters the `place`-th box of its tree; 0: the root's."""
_Shares = list[tuple[Spread, int]]
"""The ways in which a unit's trees spread, one after the other, and how many do."""


def _choose_spreads(boxes: Boxes, hung: Hung) -> list[list[_Shares]] | None:
    """Per unit how each box spreads it, first the root's own, then in the order of its tree."""
    first, last = [path[0] for path in hung.paths], [path[-1] for path in hung.paths]
    entries: dict[int, list[_Entry]] = defaultdict(list)  # by the rank where they enter
    senders: list[set[int]] = []  # per unit the ranks that send to other boxes
    sending: list[dict[int, set[int]]] = [{} for _ in boxes.members]  # per box and unit those in it
    for unit, ((root, _), tree) in enumerate(zip(hung.units, hung.trees, strict=True)):
        entries[root].append((0, unit, 0))
        for place, (depth, number) in enumerate(zip(tree[::2], tree[1::2], strict=True), 1):
            entries[last[number]].append((depth, unit, place))
        senders.append({first[number] for number in tree[1::2]})
        for v in senders[unit]:
            sending[boxes.box[v]].setdefault(unit, set()).add(v)
    weights = [many for _, many in hung.units]
    chosen = [
        [[(_NOTHING, many)]] * (len(tree) // 2 + 1)
        for many, tree in zip(weights, hung.trees, strict=True)
    ]
    for box, (members, links) in enumerate(zip(boxes.members, boxes.links_inside(), strict=True)):
        if len(members) == 1:
            continue
        spreads: Mapping[int, list[Spread]] | None
        if box in boxes.gated:
            spreads = boxes.gated[box].spreads
        else:
            interior = Interior(boxes.graph, members, links)
            onward = {
                v: sum(
                    weights[u] for _, u, _ in entries[v] if u in sending[box] and senders[u] != {v}
                )
                for v in members
            }
            starts = {v: sum(weights[u] for _, u, _ in entries[v]) for v in members}
            spreads = interior.spread(starts, onward)
        if spreads is None:
            return None
        passed_on = {unit: frozenset(ranks) for unit, ranks in sending[box].items()}
        for rank, some in spreads.items():
            _assign(rank, entries[rank], some, passed_on, weights, chosen)
    return chosen


_NOTHING = Spread(0, (), {})
_NOBODY = frozenset[int]()
_FIRST = 1 << 32
"""What comes before what enters deeper: more than any depth."""


def _assign(
    rank: int,
    entries: list[_Entry],
    spreads: Sequence[Spread],
    senders: Mapping[int, frozenset[int]],
    weights: Sequence[int],
    chosen: Sequence[list[_Shares]],
) -> None:
    """Chooses trees for what enters at a rank; `senders`: the ranks of its box that send it on.

    First for those that other ranks of the box send on, what enters deepest before the rest: a
    tree in which these ranks are near, then a low one.
    """
    if len(spreads) == 1:
        for _, unit, place in entries:
            chosen[unit][place] = [(spreads[0], weights[unit])]
        return
    left = [spread.weight for spread in spreads]
    queues = {  # the best last; spreads come the lowest first
        nodes: sorted(
            range(len(spreads)),
            key=lambda i: (max([spreads[i].depth[v] for v in nodes], default=0), i),
            reverse=True,
        )
        for nodes in {_NOBODY, *senders.values()}
    }
    onward = [senders.get(unit, _NOBODY) for _, unit, _ in entries]
    first = {nodes: 0 if nodes <= {rank} else _FIRST for nodes in queues}
    keys = [first[nodes] + depth for nodes, (depth, _, _) in zip(onward, entries, strict=True)]
    for at in sorted(range(len(entries)), key=keys.__getitem__, reverse=True):
        _, unit, place = entries[at]
        queue, rest = queues[onward[at]], weights[unit]
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
        chosen[unit][place] = shares
