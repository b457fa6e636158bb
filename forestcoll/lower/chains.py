"""What goes over several connections without a stop in between: chains, for fused fifo programs.

A chain is a way through the ranks that the same chunks take. The first rank sends; every other one
hands on what arrives as it arrives (`rcs`, or with its own part added `rrs`, `rrcs`); the last one
keeps it. At each rank of a tree one child is on the chain of the parent: one to which much else
goes from there, for a thread block can hand on to one rank only, and of those the one with the
deepest subtree. An allreduce's reduce tree goes over into the broadcast tree of the same chunks.

Every tree edge is in one chain. Where chains meet, one needs what the other left: `Need`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.messages import both, cut_trees, partial_sums, touch
from forestcoll.program import Buffer, Ref


@dataclass(frozen=True, slots=True)
class Stop:
    """What a chain does at a rank.

    `src`: at the start what is sent, later what is added to what arrives. `keep`: where what has
    arrived lies if the chain ends here; `stored`: also if it goes on.
    """

    rank: int
    src: Ref | None
    keep: Ref | None
    stored: bool
    parity: int = -1  # of the channels of the connection that leads here


@dataclass(frozen=True, slots=True)
class Chain:
    """`count` chunks from `chunk` along the stops; `tree` is the first one that it is part of."""

    tree: int
    instance: int
    chunk: int
    count: int
    stops: tuple[Stop, ...]

    @property
    def hops(self) -> int:
        """Connections that it goes over."""
        return len(self.stops) - 1


Place = tuple[int, int]  # chain, stop
Need = tuple[Place, Place]  # what the first leaves there, the second uses


def chains_of(
    layout: Layout, most: int, early: frozenset[int]
) -> tuple[list[Chain], list[Need], list[int]]:
    """All chains, none of more than `most` chunks, what they need of each other, and scratch.

    The scratch (chunks per rank) has room for every partial sum, also those that need none. `early`
    as in `messages.early_copies`.
    """
    maker = _Maker(layout, list(cut_trees(layout.trees, most)), early)
    maker.make()
    chains, needs, _ = joined(maker.chains, maker.needs, most, [0] * len(maker.chains))
    return chains, needs, maker.scratch


class _Maker:
    def __init__(self, layout: Layout, trees: list[RankTree], early: frozenset[int]) -> None:
        self.layout, self.trees, self.early = layout, trees, early
        self.chains: list[Chain] = []
        self.needs: list[Need] = []
        self._sums, self.scratch = partial_sums(trees, layout.n)
        self._final: dict[int, Place] = {}  # reduce tree -> where its root has the sum
        self._turns = _turns(trees, layout.n)

    def make(self) -> None:
        broadcasts = [t for t, tree in enumerate(self.trees) if tree.phase == "broadcast"]
        same = {self._range(t): t for t in broadcasts}
        begun = set()
        for t, tree in enumerate(self.trees):
            if tree.phase == "reduce":
                down = same.get(self._range(t))
                self._reduce(t, down)
                begun.add(down)
        for t in broadcasts:
            if t not in begun:
                self._broadcast(t, None)

    def _range(self, t: int) -> tuple[int, int, int]:
        tree = self.trees[t]
        return tree.root, tree.first, tree.count

    def _reduce(self, t: int, down: int | None) -> None:
        """The chains of a reduce tree; the one that ends it goes on along broadcast tree `down`."""
        tree, layout = self.trees[t], self.layout
        kids = self._main_last(tree)
        arrival: dict[int, Place] = {}  # child -> where its part reaches the parent
        for leaf in tree.order:
            if kids[leaf]:
                continue
            start = layout.input(leaf, tree.first, tree.count)
            stops = [Stop(leaf, start, None, stored=False)]
            child = leaf
            while child != tree.root:
                parent = tree.parent[child]
                arrival[child] = (len(self.chains), len(stops))
                stops.append(self._sum(t, parent, child == kids[parent][0], tree.parities[child]))
                if child != kids[parent][-1]:
                    break
                child = parent
            self.chains.append(self._chain(t, stops))
        for found in kids:
            for place, child in enumerate(found):
                if place:
                    self._need(arrival[found[0]], arrival[child])
                if place < len(found) - 1:
                    self._need(arrival[child], arrival[found[-1]])
        self._final[t] = arrival[kids[tree.root][-1]]
        if down is not None:
            self._broadcast(down, self._final[t])

    def _sum(self, t: int, rank: int, first: bool, parity: int) -> Stop:
        """Where a part of a sum arrives at `rank`."""
        tree = self.trees[t]
        at_root = rank == tree.root
        total = self.layout.output(rank, tree.first, tree.count)
        if not at_root:
            total = Ref(Buffer.SCRATCH, self._sums[t, rank], tree.count)
        own = self.layout.input(rank, tree.first, tree.count)
        return Stop(rank, own if first else total, total, stored=at_root, parity=parity)

    def _broadcast(self, t: int, root: Place | None) -> None:
        """The chains of a broadcast tree; `root`: the end of the chain that brings the sum."""
        tree, layout = self.trees[t], self.layout
        kids = self._main_last(tree)
        given = layout.collective.reduces or tree.root in self.early
        reached: dict[int, Place] = {}
        for parent in tree.order:
            for child in reversed(kids[parent]):
                onward = self._down(t, child, kids)
                if parent == tree.root and child == kids[parent][-1] and root is not None:
                    chain, at = root
                    place = (chain, at)
                    self.chains[chain] = replace(
                        self.chains[chain], stops=(*self.chains[chain].stops, *onward)
                    )
                elif parent == tree.root or child != kids[parent][-1]:
                    ready = given or parent != tree.root
                    source = (layout.output if ready else layout.input)(
                        parent, tree.first, tree.count
                    )
                    place = (len(self.chains), 0)
                    start = Stop(parent, source, None, stored=False)
                    self.chains.append(self._chain(t, [start, *onward]))
                    for before in [root] if parent == tree.root else [reached[parent]]:
                        if before is not None:
                            self._need(before, place)
                    if parent == tree.root and root is None:
                        self._await_sums(tree, place)
                else:
                    continue  # it is on the way of the chain that reaches its parent
                for stop, there in enumerate(onward):
                    reached[there.rank] = (place[0], place[1] + 1 + stop)

    def _down(self, t: int, rank: int, kids: Sequence[Sequence[int]]) -> list[Stop]:
        """From `rank` downwards along the deepest subtrees."""
        tree = self.trees[t]
        stops = []
        while True:
            keep = self.layout.output(rank, tree.first, tree.count)
            stops.append(Stop(rank, None, keep, stored=True, parity=tree.parities[rank]))
            if not kids[rank]:
                return stops
            rank = kids[rank][-1]

    def _await_sums(self, tree: RankTree, place: Place) -> None:
        """The start of a broadcast needs the sums of all its chunks."""
        for up, final in self._final.items():
            reduce = self.trees[up]
            if reduce.first < tree.first + tree.count and tree.first < reduce.first + reduce.count:
                self._need(final, place)

    def _main_last(self, tree: RankTree) -> list[list[int]]:
        """Per rank its children by height, and last the one that is on the parent's chain."""
        children = tree.children()
        height = _heights(tree, children)
        for rank, found in enumerate(children):
            found.sort(key=lambda c: (height[c], c))
            over = tree.parent[rank]
            if over >= 0 and len(found) > 1:
                turns = self._turns[rank]
                down = tree.phase == "broadcast"
                main = min(reversed(found), key=lambda c: turns[(over, c) if down else (c, over)])
                found.remove(main)
                found.append(main)
        return children

    def _need(self, first: Place, second: Place) -> None:
        self.needs.append((first, second))

    def _chain(self, t: int, stops: Iterable[Stop]) -> Chain:
        tree = self.trees[t]
        return Chain(t, tree.instance, tree.first, tree.count, tuple(stops))


def _heights(tree: RankTree, children: list[list[int]]) -> list[int]:
    """Per rank the hops to the farthest rank below it."""
    height = [0] * len(children)
    for rank in reversed(tree.order):
        height[rank] = max((1 + height[c] for c in children[rank]), default=0)
    return height


def _turns(trees: Iterable[RankTree], n: int) -> list[dict[tuple[int, int], int]]:
    """Per rank, how good it is for thread blocks to go on from one rank to another; 0 is best.

    (from, to) pairs in the order of their use, put into the first group that has neither end: one
    channel serves one group.
    """
    uses: list[Counter[tuple[int, int]]] = [Counter() for _ in range(n)]
    for tree in trees:
        for rank, parent in enumerate(tree.parent):
            over = tree.parent[parent] if parent >= 0 else -1
            if over >= 0:
                turn = (over, rank) if tree.phase == "broadcast" else (rank, over)
                uses[parent][turn] += 1
    found = []
    for counts in uses:
        groups: dict[tuple[int, int], int] = {}
        taken: Counter[tuple[int, bool]] = Counter()  # bits: groups that have this end
        for (a, b), _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            both = taken[a, False] | taken[b, True]
            group = (~both & (both + 1)).bit_length() - 1  # the lowest bit that is not set
            groups[a, b] = group
            taken[a, False] |= 1 << group
            taken[b, True] |= 1 << group
        found.append(groups)
    return found


def joined(
    chains: list[Chain], needs: Iterable[Need], most: int, lanes: Sequence[int]
) -> tuple[list[Chain], list[Need], list[int]]:
    """Chains of neighbouring chunks that do the same all the way in the same lane as one.

    Only those of one level: as each needs chains of lower levels only, no circle can come of it.
    """
    needs = list(needs)
    level = [0] * len(chains)
    for this, before in topological(len(chains), needs, lambda c: c):
        level[this] = max((1 + level[b] for b in before), default=0)
    ways = [(level[c], lanes[c], *_way(chain)) for c, chain in enumerate(chains)]
    order = sorted(range(len(chains)), key=lambda c: (ways[c], chains[c].chunk))
    result: list[Chain] = []
    last = -1
    number = [0] * len(chains)
    for c in order:
        if last >= 0 and ways[last] == ways[c] and _continues(result[-1], chains[c], most):
            result[-1] = _sum_of(result[-1], chains[c])
        else:
            result.append(chains[c])
        last = c
        number[c] = len(result) - 1
    renamed = {((number[a], i), (number[b], j)) for (a, i), (b, j) in needs}
    found = [0] * len(result)
    for c, place in enumerate(number):
        found[place] = lanes[c]
    return result, sorted(renamed), found


def _way(chain: Chain) -> tuple[object, ...]:
    stops = [(s.rank, s.parity, s.src is not None, s.stored) for s in chain.stops]
    buffers = ["" if s.src is None else s.src.buffer.value for s in chain.stops]
    return chain.instance, stops, buffers


def _continues(last: Chain, chain: Chain, most: int) -> bool:
    return (
        last.chunk + last.count == chain.chunk
        and last.count + chain.count <= most
        and all(
            (a.src is None or b.src is None or touch(a.src, b.src))
            and (a.keep is None or b.keep is None or touch(a.keep, b.keep))
            for a, b in zip(last.stops, chain.stops, strict=True)
        )
    )


def _sum_of(last: Chain, chain: Chain) -> Chain:
    stops = [
        replace(
            a,
            src=a.src and b.src and both(a.src, b.src),
            keep=a.keep and b.keep and both(a.keep, b.keep),
        )
        for a, b in zip(last.stops, chain.stops, strict=True)
    ]
    return replace(
        last, tree=min(last.tree, chain.tree), count=last.count + chain.count, stops=tuple(stops)
    )


def topological(
    n: int, needs: Iterable[Need], key: Callable[[int], object]
) -> Iterator[tuple[int, set[int]]]:
    """0 ... n - 1, each after all that it needs, the smallest key first; with what it needs.

    Needs of a chain of itself do not count.
    """
    before: list[set[int]] = [set() for _ in range(n)]
    after: list[set[int]] = [set() for _ in range(n)]
    for (first, _), (second, _) in needs:
        if first != second:
            before[second].add(first)
            after[first].add(second)
    left = [len(found) for found in before]
    ready: list[tuple[object, int]] = [(key(c), c) for c in range(n) if not left[c]]
    heapify(ready)
    done = 0
    while ready:
        _, c = heappop(ready)
        done += 1
        yield c, before[c]
        for other in after[c]:
            left[other] -= 1
            if not left[other]:
                heappush(ready, (key(other), other))
    assert done == n, "chains need each other in a circle"
