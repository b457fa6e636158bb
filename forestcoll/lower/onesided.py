"""Programs in onesided style (MSCCL++): peers write into each other's buffers and count signals.

The trees are dealt out to classes; thread block j of every rank does all trees of class j, one
pipeline after the other, in the same order everywhere: the lowest unfinished tree of a class can
always go on, and the n-th signal of a channel is meant for the n-th wait.

A thread block begins with a handshake on all its channels ("this launch has begun here, my output
and scratch may be written") and, where its puts go through a proxy, ends with one ("all that you
sent is here, your buffers may be reused"). A root's reduce and broadcast trees over the same
chunks are in one class, so that no thread block broadcasts what another one still adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, NoReturn

from forestcoll.errors import PlanError
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Budget
from forestcoll.program import (
    Buffer,
    Channel,
    Collective,
    Instruction,
    Op,
    Pipeline,
    RankProgram,
    Ref,
    Step,
    ThreadBlock,
)
from forestcoll.targets import Target

CLASSES = 32
"""Classes to start with, if there are that many trees: as many as NCCL has channels."""

NOP = Instruction(Op.NOP)
Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it: memory channels inside, port between


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank does for one tree, and what that takes of a thread block's limits."""

    pipeline: Pipeline
    peers: frozenset[int]
    remote: frozenset[tuple[int, Buffer]]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Trees that must share a thread block, and per rank the parts of each of them."""

    trees: tuple[int, ...]
    weight: int
    parts: tuple[tuple[_Part, ...], ...]


@dataclass(slots=True)
class _Class:
    """Trees that share a thread block: what they take at every rank so far."""

    number: int
    n: int
    weight: int = 0
    units: list[_Unit] = field(default_factory=list)
    peers: list[set[int]] = field(init=False)
    remote: list[set[tuple[int, Buffer]]] = field(init=False)
    steps: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.peers = [set() for _ in range(self.n)]
        self.remote = [set() for _ in range(self.n)]
        self.steps = [0] * self.n

    def add(self, unit: _Unit) -> None:
        self.units.append(unit)
        self.weight += unit.weight
        for rank, parts in enumerate(unit.parts):
            for part in parts:
                self.peers[rank] |= part.peers
                self.remote[rank] |= part.remote
                self.steps[rank] += 1 + len(part.pipeline.body)


def lower_onesided(
    layout: Layout, budget: Budget, boxes: Boxes, unit_bytes: int
) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = budget.target
    slots, scratch = _slots(layout)
    emit = _Emitter(layout, target, boxes, unit_bytes, slots)
    units = [emit.unit(trees) for trees in _together(layout)]
    classes = _classes(units, layout, budget, boxes)
    programs = []
    used: list[dict[tuple[int, str], int]] = [defaultdict(int) for _ in range(layout.n)]
    for rank in range(layout.n):
        blocks = tuple(_block(c, rank, layout, target, boxes, used[rank]) for c in classes)
        programs.append(
            RankProgram(blocks, layout.input_chunks, layout.output_chunks, scratch[rank])
        )
    return tuple(programs)


def _slots(layout: Layout) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Scratch offset at its parent of what (tree, rank) sends up, and chunks that a rank needs."""
    used = [0] * layout.n
    slots = {}
    for number, tree in enumerate(layout.trees):
        if tree.phase == "reduce":
            for rank in tree.order[1:]:
                slots[number, rank] = used[tree.parent[rank]]
                used[tree.parent[rank]] += tree.count
    return slots, used


def _together(layout: Layout) -> Iterator[tuple[int, ...]]:
    """Groups of trees that no two thread blocks may share: those with chunks in common."""
    order = sorted(range(len(layout.trees)), key=lambda i: layout.trees[i].first)
    group: list[int] = []
    end = -1
    for number in order:
        tree = layout.trees[number]
        if group and tree.first >= end:
            yield tuple(group)
            group = []
        group.append(number)
        end = max(end, tree.first + tree.count)
    if group:
        yield tuple(group)


class _Emitter:
    """Writes the pipelines, with peers in place of channels until the thread block is known."""

    def __init__(
        self,
        layout: Layout,
        target: Target,
        boxes: Boxes,
        unit_bytes: int,
        slots: dict[tuple[int, int], int],
    ) -> None:
        self._layout = layout
        self._target = target
        self._boxes = boxes
        self._unit_bytes = unit_bytes
        self._slots = slots

    def unit(self, trees: tuple[int, ...]) -> _Unit:
        parts: list[list[_Part]] = [[] for _ in range(self._layout.n)]
        for number in trees:
            tree = self._layout.trees[number]
            body = self._reduce if tree.phase == "reduce" else self._broadcast
            children = tree.children()
            for rank in range(self._layout.n):
                parts[rank].append(self._part(body(number, rank, children[rank]), tree.count))
        weight = sum(self._layout.trees[t].count for t in trees)
        return _Unit(trees, weight, tuple(tuple(p) for p in parts))

    def _part(self, body: list[Instruction], chunks: int) -> _Part:
        return _Part(
            Pipeline(tuple(body), chunks, self._unit_bytes),
            frozenset(peer for i in body for peer in i.channels),
            frozenset((r.rank, r.buffer) for i in body for r in i.dst if r.rank is not None),
        )

    def _broadcast(self, number: int, rank: int, children: list[int]) -> list[Instruction]:
        layout, tree = self._layout, self._layout.trees[number]
        chunks = (tree.first, tree.count)
        body: list[Instruction] = []
        source = layout.output(rank, *chunks)
        # the root sends what it has copied to its output: in place the copy writes the input, so
        # that no put, which a proxy may do any time later, can read the input beside it
        if rank == tree.root and layout.collective is not Collective.ALLREDUCE:
            body += [Instruction(Op.COPY, (layout.input(rank, *chunks),), (source,)), NOP]
        if rank != tree.root:
            body += self._sync(Op.WAIT, rank, [tree.parent[rank]])
            if children:
                body.append(NOP)
        to = {c: replace(layout.output(c, *chunks), rank=c) for c in children}
        return [*body, *self._put(rank, source, to)]

    def _reduce(self, number: int, rank: int, children: list[int]) -> list[Instruction]:
        layout, tree = self._layout, self._layout.trees[number]
        chunks = (tree.first, tree.count)
        body: list[Instruction] = []
        total = layout.input(rank, *chunks)
        if children:
            body += [*self._sync(Op.WAIT, rank, children), NOP]
            parts = [Ref(Buffer.SCRATCH, self._slots[number, c], tree.count) for c in children]
            own, total = total, layout.output(rank, *chunks) if rank == tree.root else parts[0]
            body += self._sum(total, [own, *parts])
        if rank != tree.root:
            if children:
                body.append(NOP)
            slot = Ref(Buffer.SCRATCH, self._slots[number, rank], tree.count, tree.parent[rank])
            body += self._put(rank, total, {tree.parent[rank]: slot})
        return body

    def _sum(self, total: Ref, parts: list[Ref]) -> Iterator[Instruction]:
        """total = sum of the parts; an operation takes two operands more than it may have peers."""
        most = self._target.peers + 2
        yield Instruction(Op.REDUCE_TO, tuple(parts[:most]), (total,))
        for low in range(most, len(parts), most - 1):
            yield NOP
            yield Instruction(Op.REDUCE_TO, (total, *parts[low : low + most - 1]), (total,))

    def _put(self, rank: int, source: Ref, to: dict[int, Ref]) -> Iterator[Instruction]:
        """Writes `source` to every peer and signals; proxies keep order, so need no barrier."""
        near = [p for p in sorted(to) if _kind(rank, p, self._boxes) == "memory"]
        far = [p for p in sorted(to) if _kind(rank, p, self._boxes) == "port"]
        for op, peers in ((Op.PUT_SIGNAL, far), (Op.PUT, near)):
            for some in _batches(peers, self._target.peers):
                yield Instruction(op, (source,), tuple(to[p] for p in some), channels=some)
        if near:
            yield NOP
            yield from self._sync(Op.SIGNAL, rank, near)

    def _sync(self, op: Op, rank: int, peers: Iterable[int]) -> Iterator[Instruction]:
        return _sync(op, rank, peers, self._boxes, self._target)


def _sync(
    op: Op, rank: int, peers: Iterable[int], boxes: Boxes, target: Target
) -> Iterator[Instruction]:
    """`op` on the channels to all peers: one kind of channel, and so many of them, an operation."""
    kinds = sorted((_kind(rank, p, boxes), p) for p in peers)
    for _, some in groupby(kinds, key=lambda pair: pair[0]):
        for batch in _batches([p for _, p in some], target.peers):
            yield Instruction(op, channels=batch)


def _kind(rank: int, peer: int, boxes: Boxes) -> Kind:
    return "memory" if boxes[rank] == boxes[peer] else "port"


def _batches(items: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def _classes(units: list[_Unit], layout: Layout, budget: Budget, boxes: Boxes) -> list[_Class]:
    """The units dealt out, the lightest class first; more classes where few cannot hold them."""
    target = budget.target
    most = min(len(units), target.thread_blocks)
    number = min(most, CLASSES)
    while True:
        classes = [_Class(j, layout.n) for j in range(number)]
        stuck = next((u for u in units if not _place(u, classes, target, boxes)), None)
        if stuck is None:
            return [c for c in classes if c.units]
        if number == most:
            _refuse(stuck, units, most, layout, budget, boxes)
        number = min(most, number + max(1, number // 4))


def _place(unit: _Unit, classes: list[_Class], target: Target, boxes: Boxes) -> bool:
    """Whether some class has room for the unit, which it then holds."""
    for candidate in sorted(classes, key=lambda c: (c.weight, c.number)):
        if _obstacle(unit, candidate, target, boxes) is None:
            candidate.add(unit)
            return True
    return False


def _obstacle(
    unit: _Unit, candidate: _Class, target: Target, boxes: Boxes
) -> tuple[int, str, int, int] | None:
    """The rank, limit, figure and bound that keep the unit out of the class, or None."""
    for rank, parts in enumerate(unit.parts):
        peers = candidate.peers[rank].union(*(p.peers for p in parts))
        remote = candidate.remote[rank].union(*(p.remote for p in parts))
        steps = candidate.steps[rank] + sum(1 + len(p.pipeline.body) for p in parts)
        steps += len(_prologue(rank, peers, boxes, target)) + 1
        steps += len(_epilogue(rank, peers, boxes, target))
        if steps > target.steps:
            return rank, "operations in one thread block", steps, target.steps
        for what, held, limit in (
            ("channels of one kind in one thread block", peers, target.channels),
            (
                "remote buffers in one thread block",
                [p for p, _ in remote],
                target.remote_buffers,
            ),
        ):
            kinds = [_kind(rank, peer, boxes) for peer in held]
            figure = max(kinds.count(kind) for kind in KINDS)
            if figure > limit:
                return rank, what, figure, limit
    return None


def _refuse(
    stuck: _Unit,
    units: list[_Unit],
    most: int,
    layout: Layout,
    budget: Budget,
    boxes: Boxes,
) -> NoReturn:
    """PlanError: the unit fits no thread block, even alone, or there are too few of them."""
    target = budget.target
    alone = _obstacle(stuck, _Class(0, layout.n), target, boxes)
    if alone is not None:
        rank, what, figure, limit = alone
        root = layout.trees[stuck.trees[0]].root
        raise budget.refuse(f"{budget.rank(rank)} in a tree of root {root}", what, figure, limit)
    raise PlanError(
        f"{budget.title}: {len(units)} trees need more than {most} thread blocks of {target.steps} "
        f"operations and {target.channels} channels of a kind, all that {target.name} holds; "
        f"{budget.hint}"
    )


def _prologue(rank: int, peers: Iterable[int], boxes: Boxes, target: Target) -> list[Instruction]:
    """My launch has begun: my output and scratch may be written. Then the same of every peer."""
    peers = sorted(peers)
    shake = [
        *_sync(Op.RELAXED_SIGNAL, rank, peers, boxes, target),
        *_sync(Op.RELAXED_WAIT, rank, peers, boxes, target),
    ]
    return [*shake, NOP] if shake else []


def _epilogue(rank: int, peers: Iterable[int], boxes: Boxes, target: Target) -> list[Instruction]:
    """What proxies still read is free once the peers have all; other puts are done by now."""
    far = [p for p in sorted(peers) if _kind(rank, p, boxes) == "port"]
    if not far:
        return []
    # the barrier: every thread has seen its own waits end before one of them says so
    return [
        NOP,
        *_sync(Op.SIGNAL, rank, far, boxes, target),
        *_sync(Op.WAIT, rank, far, boxes, target),
    ]


def _block(
    members: _Class,
    rank: int,
    layout: Layout,
    target: Target,
    boxes: Boxes,
    used: dict[tuple[int, str], int],
) -> ThreadBlock:
    """Thread block of a class at one rank. `used` counts the rank's channels to each peer."""
    peers = sorted(members.peers[rank], key=lambda p: (_kind(rank, p, boxes), p))
    channels = []
    for peer in peers:
        kind = _kind(rank, peer, boxes)
        channels.append(Channel(peer, kind, used[peer, kind]))
        used[peer, kind] += 1
    work = sorted(
        (
            (layout.trees[tree].phase == "broadcast", tree, part.pipeline)
            for unit in members.units
            for tree, part in zip(unit.trees, unit.parts[rank], strict=True)
        ),
        key=lambda item: item[:2],
    )
    steps: list[Step] = [*_prologue(rank, peers, boxes, target)]
    for place, (broadcast, _, pipeline) in enumerate(work):
        if place and broadcast and not work[place - 1][0]:
            steps.append(NOP)  # sums are written by all threads, and about to be sent
        steps.append(pipeline)
    steps += _epilogue(rank, peers, boxes, target)
    return ThreadBlock(tuple(_numbered(steps, peers)), channels=tuple(channels))


def _numbered(steps: Iterable[Step], peers: list[int]) -> Iterator[Step]:
    """The steps with indices into the thread block's channels in place of peers."""
    index = {peer: place for place, peer in enumerate(peers)}

    def number(instruction: Instruction) -> Instruction:
        return replace(instruction, channels=tuple(index[p] for p in instruction.channels))

    for step in steps:
        if isinstance(step, Pipeline):
            yield replace(step, body=tuple(map(number, step.body)))
        else:
            yield number(step)
