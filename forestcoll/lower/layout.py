"""Which chunks each tree carries, and where a chunk lies in a rank's buffers.

All weights are divided by what they have in common; one unit of weight is one chunk of the whole.
A root owns a range of chunks, in rank order, and cuts it among its trees.

Network planes: on which channels, even or odd, a message between boxes takes the right one.

The runtimes of NCCL's family choose a GPU's network adapter by the channel: of the adapters nearest
to it, a GPU takes the one at place (its device number + the channel) modulo how many there are for
each GPU (NCCL 2.23 src/graph/topo.cc, ncclTopoGetLocalNet). Where every GPU has two adapters, each
with a fabric of its own, the parity of the channel is the only way to say which fabric carries a
message. GPUs that share two adapters take one each; earlier runtimes took the first one on even
channels, so there the parity is that of the plane.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from forestcoll.common.errors import PlanError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Buffer, Collective, Ref
from forestcoll.schedule.forest import Forest, Path, Phase, Tree

# --- network planes


Parity = Callable[[Path], int]


def no_parity(path: Path) -> int:
    """-1: any channel will do."""
    return -1


@lru_cache(maxsize=16)
def parity_of(graph: CapacityGraph) -> Parity:
    """What tells, of a tree's path, 0 for even channels, 1 for odd ones, -1 for any."""
    planes = planes_of(graph)
    if not planes:
        return no_parity
    device: dict[int, int] = {}  # number of a GPU in its box
    met: dict[str, int] = defaultdict(int)
    for node in range(graph.n):
        if graph.gpu[node]:
            device[node] = met[graph.box(node)]
            met[graph.box(node)] += 1
    own: dict[int, set[int]] = defaultdict(set)  # planes that a GPU has a link to
    for tail, head in graph.ends:
        if head in planes:
            own[tail].add(planes[head])

    def parity(path: Path) -> int:
        plane = next((planes[v] for v in path if v in planes), -1)
        if plane >= 0 and len(own[path[0]]) == 2:
            return (plane + device[path[0]]) % 2
        return plane

    return parity


def planes_of(graph: CapacityGraph) -> dict[int, int]:
    """Per switch outside of all boxes its plane, 0 or 1; empty unless there are exactly two.

    A plane is what hangs together outside of the boxes. With one, or more than two (rails), the
    adapter follows from the GPU, and channels say nothing.
    """
    boxes = set(graph.boxes)
    if len(boxes) < 2 or "" in boxes:
        return {}
    outside = {v for v in range(graph.n) if not graph.gpu[v] and graph.box(v) not in boxes}
    near: dict[int, set[int]] = defaultdict(set)
    entrances = set()
    for tail, head in graph.ends:
        if tail in outside and head in outside:
            near[tail].add(head)
            near[head].add(tail)
        elif tail in outside:
            entrances.add(tail)
        elif head in outside:
            entrances.add(head)
    planes: dict[int, int] = {}
    plane = 0
    for switch in sorted(entrances):
        if switch in planes:
            continue
        planes[switch] = plane
        reached = [switch]
        for node in reached:
            for other in sorted(near[node] - planes.keys()):
                planes[other] = plane
                reached.append(other)
        plane += 1
    return planes if plane == 2 else {}


# --- chunks


own_ref = lru_cache(2**16)(Ref)
"""A Ref; those alike share one object, for ranks have much in the same places."""


def ref_at(ref: Ref, rank: int) -> Ref:
    """Returns the same place at another rank."""
    return own_ref(ref.buffer, ref.offset, ref.count, rank)


@dataclass(frozen=True, slots=True)
class RankTree:
    """A tree over rank numbers that carries the chunks `first` ... `first + count - 1`."""

    root: int
    phase: Phase
    first: int
    count: int
    parent: tuple[int, ...]  # per rank; -1 at the root
    order: tuple[int, ...]  # all ranks, parents before their children
    # per rank, of the channels to or from its parent
    parities: tuple[int, ...] = ()
    instance: int = 0  # which of the equal parts of the forest it is in
    ordered: bool = False  # whether sums are made in the order of the children, last ones first

    def children(self) -> list[list[int]]:
        """Per rank its children, ascending, or as they are added."""
        children: list[list[int]] = [[] for _ in self.parent]
        for rank in reversed(self.order) if self.ordered else range(len(self.parent)):
            if self.parent[rank] >= 0:
                children[self.parent[rank]].append(rank)
        return children


def from_next(ranks: Iterable[int], rank: int) -> list[int]:
    """The ranks in the order in which `rank` serves them: the next one first, then round.

    Were all to begin with rank 0, the links to it would be full while the others idle.
    """
    return sorted(ranks, key=lambda other: turn(other, rank))


def turn(other: int, rank: int) -> tuple[bool, int]:
    """The place of `other` in that order."""
    return other <= rank, other


@dataclass(frozen=True, slots=True, eq=False)  # the trees of a forest have one for all targets
class Layout:
    """The chunks of a collective: how many, whose, and the trees that carry them."""

    collective: Collective
    n: int
    chunks: int  # of the whole: the larger of a rank's two buffers
    start: tuple[int, ...]  # per root rank its first chunk, then `chunks`
    trees: tuple[RankTree, ...]
    local: int = 0  # thread blocks that share a rank's local copies; 0: `local_blocks` says
    # per rank the first chunk of the whole that its input and its output have
    inputs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    outputs: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = (0,) * self.n
        inputs = self.start if self.collective.input_is_part else whole
        outputs = self.start if self.collective.output_is_part else whole
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)

    @property
    def input_chunks(self) -> int:
        """Chunks of a rank's input."""
        return self.collective.chunks(self.n, self.chunks)[0]

    @property
    def output_chunks(self) -> int:
        """Chunks of a rank's output."""
        return self.collective.chunks(self.n, self.chunks)[1]

    def input(self, rank: int, chunk: int, count: int) -> Ref:
        """Returns where `rank` finds its own part of `count` chunks of the whole from `chunk`."""
        return own_ref(Buffer.INPUT, chunk - self.inputs[rank], count)

    def output(self, rank: int, chunk: int, count: int) -> Ref:
        """Returns where `rank` has the result of `count` chunks of the whole from `chunk`."""
        return own_ref(Buffer.OUTPUT, chunk - self.outputs[rank], count)

    def copies(self, rank: int, most: int, parts: int) -> list[tuple[Ref, Ref]]:
        """What `rank` as a root copies from input to output, in at least `parts` pieces if it can.

        No piece has more than `most` chunks. In place source and destination are the very same
        memory, and nothing changes.
        """
        low, high = self.start[rank], self.start[rank + 1]
        pieces = max(-(-(high - low) // most), min(parts, high - low))
        return [
            (self.input(rank, a, b - a), self.output(rank, a, b - a))
            for a, b in cut_evenly(low, high, pieces)
        ]


def local_blocks(layout: Layout) -> int:
    """Thread blocks that share a rank's local copies: several where one rank copies all data."""
    return layout.local or (4 if layout.collective.has_root else 1)


def layout(
    forest: Forest,
    instances: int = 1,
    parity: Parity = no_parity,
    grain: int = 0,
    units: int = 1,
) -> Layout:
    """The forest over chunks; every tree is cut into `instances` equal ones.

    `grain`: trees of more chunks than that are cut into as many as come nearest to it (0: none).
    `units`: chunks in place of each, so that trees can be cut into nearly equal ones.

    Trees that differ only in switches on the way become one, unless `parity` tells them apart: no
    runtime can choose switches.
    Raises PlanError where a path relays through a GPU, or the shares do not fit the collective.
    """
    return _layout(forest, instances, parity, grain, units)


@lru_cache(maxsize=32)  # a forest is lowered many times
def _layout(forest: Forest, instances: int, parity: Parity, grain: int, units: int) -> Layout:
    graph, collective = forest.graph, forest.collective
    for path in (path for tree in forest.trees for path in tree.edges):
        for node in path[1:-1]:
            if graph.gpu[node]:
                raise PlanError(
                    f"{graph.names[path[0]]} -> {graph.names[path[-1]]} relays through "
                    f"{graph.names[node]}, a GPU that is no rank: no runtime can do that; "
                    "solve with --relays none, or write only --format forest"
                )
    merged = _rank_trees(forest, parity)
    whole = math.gcd(forest.total, *(t.count for t in merged))
    trees = [replace(t, count=t.count // whole * units) for t in merged]
    if grain:
        trees = [
            replace(tree, count=high - low)
            for tree in trees
            for number in (max(1, (2 * tree.count + grain) // (2 * grain)),)  # the nearest to it
            for low, high in cut_evenly(0, tree.count, number)
        ]
    chunks = forest.total // whole * units
    parts = [0] * forest.n
    phase = collective.phases[0]  # every root's share is cut once in each
    for tree in trees:
        if tree.phase == phase:
            parts[tree.root] += tree.count
    if sum(parts) != chunks:
        raise PlanError(
            f"the trees carry {sum(parts)} of {chunks} shares of the {collective}: "
            "check the forest first"
        )
    if collective.has_parts and len(set(parts)) > 1:
        low = parts.index(min(parts))
        raise PlanError(
            f"{graph.rank_names[low]} has {parts[low]} of {chunks} shares, another rank "
            f"{max(parts)}: plans of {collective} need equal parts"
        )
    start = [0]
    for part in parts:
        start.append(start[-1] + part * instances)
    placed = tuple(_place(trees, start, instances))
    return Layout(collective, forest.n, chunks * instances, tuple(start), placed)


def cut_evenly(low: int, high: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yields the ends of as many parts of a range, which differ by one at most."""
    return pairwise(low + (high - low) * part // max(1, parts) for part in range(parts + 1))


def _rank_trees(forest: Forest, parity: Parity) -> list[RankTree]:
    """Trees alike between ranks are one of their summed weight, in order of first appearance."""
    rank_of = forest.graph.rank_of
    merged: dict[tuple[int, Phase, tuple[int, ...], tuple[int, ...]], RankTree] = {}
    for number, tree in enumerate(forest.trees):
        parent = [-1] * forest.n
        parities = [-1] * forest.n
        for path in tree.edges:
            ends = (path[0], path[-1]) if tree.phase == "broadcast" else (path[-1], path[0])
            parent[rank_of[ends[1]]] = rank_of[ends[0]]
            parities[rank_of[ends[1]]] = parity(path)
        root = rank_of[tree.root]
        ordered = bool(forest.sums) and tree.phase == "reduce"
        served = [rank_of[path[0]] for path in reversed(tree.edges)] if ordered else range(forest.n)
        order = _order(number, tree, root, parent, served)
        key = (root, tree.phase, tuple(parent), tuple(parities))
        one = RankTree(root, tree.phase, 0, 0, key[2], order, key[3], 0, ordered)
        alike = merged.setdefault(key, one)
        merged[key] = replace(alike, count=alike.count + tree.weight)
    return list(merged.values())


def _order(
    number: int, tree: Tree, root: int, parent: list[int], served: Iterable[int]
) -> tuple[int, ...]:
    """Ranks from the root outwards, children as they are `served`.

    PlanError if the edges are no tree that reaches all.
    """
    children = defaultdict(list)
    for rank in served:
        children[parent[rank]].append(rank)
    order = [root]
    for rank in order:
        order.extend(children[rank])
    if len(order) != len(parent) or len(tree.edges) != len(parent) - 1 or parent[root] != -1:
        raise PlanError(
            f"tree {number} of the forest is no spanning tree of the ranks: check the forest first"
        )
    return tuple(order)


def _place(trees: list[RankTree], start: list[int], instances: int) -> Iterator[RankTree]:
    """The trees with the chunks they carry, root by root; both phases cut alike where they can."""
    roots: dict[int, list[RankTree]] = defaultdict(list)
    for tree in trees:
        roots[tree.root].append(tree)
    for root in sorted(roots):
        reduce = [t for t in roots[root] if t.phase == "reduce"]
        broadcast = [t for t in roots[root] if t.phase == "broadcast"]
        if reduce and broadcast:
            reduce, broadcast = _align(reduce, broadcast)
        for phase in (reduce, broadcast):
            chunk = start[root]
            for instance in range(instances):
                for tree in phase:
                    yield RankTree(
                        tree.root, tree.phase, chunk, tree.count, tree.parent, tree.order,
                        tree.parities, instance, tree.ordered,
                    )  # fmt: skip
                    chunk += tree.count
            if phase and chunk != start[root + 1]:
                raise PlanError(
                    f"rank {root}'s {phase[0].phase} trees carry {chunk - start[root]} chunks, "
                    f"its share is {start[root + 1] - start[root]}: check the forest first"
                )


def _align(
    reduce: list[RankTree], broadcast: list[RankTree]
) -> tuple[list[RankTree], list[RankTree]]:
    """Both lists so ordered that equal cuts coincide: mirror images first, then equal weights."""
    pairs: list[tuple[RankTree, RankTree]] = []
    for alike in (lambda t: (t.count, t.parent), lambda t: (t.count,)):
        waiting: dict[tuple[object, ...], list[RankTree]] = defaultdict(list)
        for tree in reversed(broadcast):
            waiting[alike(tree)].append(tree)
        left = []
        for tree in reduce:
            if waiting[alike(tree)]:
                pairs.append((tree, waiting[alike(tree)].pop()))
            else:
                left.append(tree)
        reduce = left
        taken = {id(b) for _, b in pairs}
        broadcast = [t for t in broadcast if id(t) not in taken]
    return [r for r, _ in pairs] + reduce, [b for _, b in pairs] + broadcast
