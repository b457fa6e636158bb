"""Lower bounds on the height of a forest, counted in hops.

Every bound holds for all forests with these numbers of trees over these links. First, no tree is
lower than the hops that a rank is away. Then, suppose that no tree were higher than 2, and look at
a box C of m ranks. A tree from outside comes to C straight from its root, or all m ranks hang
outside, which takes m units of what may enter C instead of 1. With `need` trees from outside and
room for `room` units, at most (room - need) / (m - 1) trees do without: all others are sent by
their roots directly, and for that the links of a root, of a box, of a pod, or those between all
switches may be too few. Then some tree has height 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import or_

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest
from forestcoll.solver.fixed_trees import floors
from forestcoll.solver.walks import by_box, hops, neighbours

MOST_RANKS = 2_048
"""Ranks up to which the bound of a forest is looked for."""


def least_height(
    graph: CapacityGraph, capacity: Sequence[int], supply: Sequence[int], copying: bool = False
) -> int:
    """No forest with `supply[v]` trees from each node v, `capacity[e]` over link e, is lower.

    Broadcast trees; for reduce trees, of the reversed graph. `copying`: switches that are able may
    copy; a star then loads the link into one only once. What is sent from box to box stays as it is
    if only switches inside boxes copy.
    """
    facts = _Facts(graph, capacity, supply)
    hops = facts.hops()
    if copying and not facts.copies_stay_inside():
        return hops
    if hops >= 3 or facts.too_few_direct():
        return max(3, hops)
    lacking = facts.too_few_stars_between() if copying else facts.too_few_stars()
    return max(2, hops) if lacking else hops


def forest_bound(forest: Forest) -> int | None:
    """The least height of any forest with as many trees, as fast as this one; None: too large.

    An allreduce is looked at as its broadcasts alone.
    """
    if forest.n > MOST_RANKS:
        return None
    reverse = forest.collective.reduces and forest.collective is not Collective.ALLREDUCE
    graph = forest.graph.reverse() if reverse else forest.graph
    phase = "reduce" if reverse else "broadcast"
    capacity = floors(graph.unit * forest.total / forest.algbw, graph.capacity)
    supply = [0] * graph.n
    weights: dict[int, int] = {}
    for tree in forest.trees:
        if tree.phase == phase:
            orbit = forest.orbit(tree.root)
            weights[orbit] = weights.get(orbit, 0) + tree.weight
    for v in graph.ranks:
        supply[v] = weights.get(forest.orbit(v), 0)
    return least_height(graph, capacity, supply, copying=any(graph.multicast))


class _Facts:
    """What the links of a graph allow trees of height 2 to do."""

    def __init__(
        self, graph: CapacityGraph, capacity: Sequence[int], supply: Sequence[int]
    ) -> None:
        self.graph = graph
        self.supply = supply
        self.links = [(t, h, c) for t, h, c in graph.along(capacity) if c]
        self.ranks = set(graph.ranks)
        self.sent = [0] * graph.n  # per node what may leave it
        for t, _, c in self.links:
            self.sent[t] += c
        named = by_box(graph)
        alone = [[v] for v in named.pop("", ())]
        parts = sorted((*named.values(), *alone))
        self.boxes = [nodes for nodes in parts if any(v in self.ranks for v in nodes)]
        self.box = [-1] * graph.n
        for number, nodes in enumerate(self.boxes):
            for v in nodes:
                self.box[v] = number
        self.held = [sum(v in self.ranks for v in nodes) for nodes in self.boxes]
        self.rooted = [sum(supply[v] for v in nodes) for nodes in self.boxes]

    def hops(self) -> int:
        """The most hops that any rank is away from a root at least."""
        everyone = sum(1 << v for v in self.ranks if self.supply[v])
        reached = [everyone & 1 << v if v in self.ranks else 0 for v in range(self.graph.n)]
        into = neighbours(self.graph.n, ((h, t) for t, h, _ in self.links))
        relays = [v for v in range(self.graph.n) if v not in self.ranks]

        def gather(v: int) -> int:
            return reduce(or_, (reached[u] for u in into[v]), reached[v])

        count, before = 0, None
        while reached != before and any(reached[v] != everyone for v in self.ranks):
            count, before = count + 1, list(reached)
            passed = None
            while passed != reached:
                passed = list(reached)
                for w in relays:
                    reached[w] = gather(w)
            for v, mask in [(v, gather(v)) for v in self.ranks]:
                reached[v] = mask
        return count

    @cached_property
    def room(self) -> list[int]:
        """Per box how much may enter it."""
        room = [0] * len(self.boxes)
        for t, h, c in self.links:
            if self.box[h] >= 0 and self.box[t] != self.box[h]:
                room[self.box[h]] += c
        return room

    @cached_property
    def spare(self) -> list[int]:
        """Per box how many trees from outside may come to it without a send from their root."""
        whole, spare = sum(self.rooted), []
        for room, own, count in zip(self.room, self.rooted, self.held, strict=True):
            need = whole - own
            most = need if count == 1 else max(0, room - need) // (count - 1)
            spare.append(min(need, most))
        return spare

    def _direct(self, trees: int, boxes: Iterable[int]) -> int:
        """How many sends from their roots into these boxes `trees` trees from outside need."""
        return sum(max(0, trees - self.spare[b]) for b in boxes)

    def copies_stay_inside(self) -> bool:
        """Whether every switch that copies joins nodes of one box only, and leads to no other."""
        box, outward = self.box, self._outward()
        copying = self.graph.multicast
        if any(able and (v in outward or box[v] < 0) for v, able in enumerate(copying)):
            return False
        return all(box[t] == box[h] for t, h, _ in self.links if copying[t] or copying[h])

    def too_few_direct(self) -> bool:
        """Whether some links cannot carry what roots have to send directly at height 2."""
        whole = sum(self.rooted)
        if all(s >= whole - own for s, own in zip(self.spare, self.rooted, strict=True)):
            return False
        return (
            self._ranks_lack()
            or self._sets_lack()
            or self._relays_lack(self.spare, [1] * len(self.boxes))
        )

    def too_few_stars(self) -> bool:
        """Whether some links cannot carry what roots send when every tree is a star."""
        everyone = len(self.ranks) - 1
        if any(self.sent[v] < self.supply[v] * everyone for v in self.ranks):
            return True
        return self.too_few_stars_between()

    def too_few_stars_between(self) -> bool:
        """The same, of links between boxes alone."""
        whole = sum(self.rooted)
        for room, own, held in zip(self.room, self.rooted, self.held, strict=True):
            if room < (whole - own) * held:
                return True
        return self._relays_lack([0] * len(self.boxes), self.held)

    def _ranks_lack(self) -> bool:
        """Links of single roots, as far as they lead out of the box without passing a rank."""
        outward = self._outward()
        out = [0] * self.graph.n
        for t, h, c in self.links:
            if t in self.ranks and (
                h in outward if h not in self.ranks else self.box[h] != self.box[t]
            ):
                out[t] += c
        every = range(len(self.boxes))
        for v in self.ranks:
            others = (b for b in every if b != self.box[v])
            if self.supply[v] and self._direct(self.supply[v], others) > out[v]:
                return True
        return False

    def _outward(self) -> Collection[int]:
        """The nodes, no ranks, from which a way leads on to another box without passing ranks."""
        ways = [(h, t) for t, h, _ in self.links if t not in self.ranks]
        return hops(
            neighbours(self.graph.n, ways), (t for h, t in ways if self.box[h] != self.box[t])
        ).keys()

    def _sets_lack(self) -> bool:
        """Links that leave a box, a leaf with its boxes, a pod."""
        for inside in self._sets():
            held = {self.box[v] for v in inside if v in self.ranks}
            others = [b for b in range(len(self.boxes)) if b not in held]
            trees = sum(self.supply[v] for v in inside if v in self.ranks)
            leaving = sum(c for t, h, c in self.links if t in inside and h not in inside)
            if self._direct(trees, others) > leaving:
                return True
        return False

    def _sets(self) -> Iterator[set[int]]:
        """Every box, and what hangs together below each tier of switches."""
        for nodes in self.boxes:
            yield set(nodes)
        near = neighbours(self.graph.n, ((t, h) for t, h, _ in self.links), both=True)
        above = hops(near, (v for v in range(self.graph.n) if self.box[v] >= 0))
        for level in range(1, max(above.values()) + 1):
            low = [v for v in range(self.graph.n) if above.get(v, 0) <= level]
            below, seen = set(low), set[int]()
            parts: list[set[int]] = []
            for v in low:
                if v not in seen:
                    parts.append(hops(near, [v], below.__contains__).keys() & below)
                    seen |= parts[-1]
            if len(parts) == 1:
                break
            yield from (part for part in parts if not self.ranks.isdisjoint(part))

    def _relays_lack(self, spare: Sequence[int], sends: Sequence[int]) -> bool:
        """Links between switches outside of boxes, against the least that direct sends take.

        Per box: trees that do without, and into how many of its ranks each other tree is sent.
        """
        near = neighbours(self.graph.n, ((t, h) for t, h, _ in self.links if t not in self.ranks))
        total = sum(c for t, h, c in self.links if self.box[t] < 0 and self.box[h] < 0)
        first: list[set[int]] = [set() for _ in self.boxes]
        for t, h, _ in self.links:
            if self.box[t] >= 0 and self.box[h] < 0:
                first[self.box[t]].add(h)
        counts: list[dict[int, int]] = [defaultdict(int) for _ in self.boxes]
        least_of: dict[frozenset[int], dict[int, int]] = {}
        for number, begin in enumerate(first):
            start = frozenset(begin)
            if start not in least_of:
                least_of[start] = self._distances(start, near)
            for other, far in least_of[start].items():
                if other != number:
                    counts[other][far] += self.rooted[number]
        least = 0
        for without, times, trees in zip(spare, sends, counts, strict=True):
            direct = sum(trees.values()) - without
            for far in sorted(trees):
                taken = max(0, min(direct, trees[far]))
                least += times * taken * far
                direct -= taken
        return least > total

    def _distances(self, start: frozenset[int], near: Sequence[Sequence[int]]) -> dict[int, int]:
        """Links between switches on the way from these to each box, at least."""
        distances: dict[int, int] = {}
        for v, far in hops(near, start, lambda v: self.box[v] < 0).items():
            if self.box[v] >= 0:
                distances.setdefault(self.box[v], far - 1)
        return distances
