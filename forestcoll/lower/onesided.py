"""Programs in onesided style (MSCCL++): peers use each other's buffers and count signals.

The trees are dealt out to classes; a thread block does, at its rank, all trees of its class, one
pipeline after the other, between the handshakes with which it begins and ends.

An allreduce has thread blocks for its sums and others for its broadcasts, so that one slice is
handed down while the next is added up. Where a target has too few thread blocks for that, each does
first the sums and then the broadcasts of its class.

Scratch. A pipeline walks through its chunks: in round i all its operands are moved by i units, no
operand stays, none begins again (microsoft/mscclpp 1f5f065d, execution_kernel.hpp: handlePipeline
adds one offset to every operand, and getOffset takes it modulo something only with
`reuse_resources`, whose ring has a fixed size, and which `re` misreads: it looks at its outputs to
tell which of its inputs lie in the ring). So a ring of a few units cannot be said in a pipeline:
what a connection of a pipeline needs of scratch is as long as the chunks that go through it, and
bounding it means having fewer such connections. partial_sums.py says which are left: those
from box to box, and one a rank with children, for all of them, where the output cannot take the
sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forestcoll.lower.handshakes import (
    Apart,
    Boxes,
    Shakes,
    cut,
    epilogue,
    lanes_of,
    plain,
    prologue,
)
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.limits import Limits
from forestcoll.lower.pipelines import Emitter
from forestcoll.lower.thread_blocks import (
    BUSY,
    Channels,
    Class,
    Host,
    Room,
    Unit,
    deal,
    hosts,
    refuse,
    units,
)
from forestcoll.program import (
    Instruction,
    Pipeline,
    RankProgram,
    Step,
    ThreadBlock,
)
from forestcoll.program.targets import Target


@dataclass(frozen=True, slots=True)
class Spread:
    """How the work of a rank is spread over thread blocks.

    `grain`: trees of many chunks are cut into trees of about so many, each with thread blocks of
    its own, so that every block moves as much (0: trees stay whole, and small ones share thread
    blocks). `children`: in a broadcast every child of a rank has a thread block that puts to it, so
    that no link waits while the block puts to another. `units`: chunks in place of each, before
    trees are cut, so that parts are nearly equal.
    """

    grain: int = 0
    children: bool = False
    units: int = 1

    def apart(self, tree: RankTree, both: bool) -> Apart:
        """Which ranks of the tree have a thread block a child; `both`: of an allreduce.

        The root of an allreduce hands down in the very operation that ends the sum.
        """
        if not self.children or tree.phase == "reduce":
            return "no"
        return "inner" if both else "all"


TOGETHER = Spread()
MOST_IN_STEP = 8
"""Trees of a bundle at most: as many blocks as an operation moves."""
OVERLAPPED = "reduce and broadcast overlap, slice by slice"
SERIAL = "reduce and broadcast of a class one after the other: too few thread blocks to overlap"


def lower_onesided(
    layout: Layout, limits: Limits, boxes: Boxes, unit_bytes: int, spread: Spread = TOGETHER
) -> tuple[tuple[RankProgram, ...], str]:
    """What every rank does, and how the halves of an allreduce meet ("" for other collectives).

    Raises PlanError where a limit cannot be kept.
    """
    room = Room(boxes, limits.target)
    both = layout.collective.two_phases
    pieces = [cut(t, boxes, limits.target, spread.apart(t, both)) for t in layout.trees]
    bundles = sorted({_in_a_class(layout, boxes, limits.target), MOST_IN_STEP})
    attempts = [
        (halves, most)
        for halves in ((2, 1) if both else (1,))
        for most in ([1] if spread.grain else bundles)
    ]
    busy = limits.target.thread_blocks if spread.grain else BUSY
    for last, (halves, most) in enumerate(attempts, 1 - len(attempts)):
        emitter = Emitter(layout, pieces, boxes, limits.target, halves)
        wanted = units(layout, emitter, room, most)
        found = _dealt(layout, wanted, limits, room, busy)
        if not isinstance(found, Unit):
            ranks = _programs(layout, emitter, *found, room, unit_bytes)
            return ranks, (OVERLAPPED if halves == 2 else SERIAL) if both else ""
        if not last:
            refuse(found, wanted, limits, room)
    raise AssertionError("there is a last attempt")


def _in_a_class(layout: Layout, boxes: Boxes, target: Target) -> int:
    """How many trees a thread block has to do anyway, at the rank with the most to do."""
    busy = [0] * layout.n
    for tree in layout.trees:
        if tree.phase == layout.trees[0].phase:
            inner = set(tree.parent)
            for rank, parent in enumerate(tree.parent):
                busy[rank] += rank in inner or boxes[rank] != boxes[parent]
    return min(MOST_IN_STEP, -(-max(busy) // min(BUSY, target.thread_blocks)))


def _dealt(
    layout: Layout, wanted: Sequence[Unit], limits: Limits, room: Room, busy: int
) -> tuple[list[Class], list[list[Host]]] | Unit:
    """Classes and every rank's thread blocks, of which no rank has too many; or a unit too much."""
    limit = limits.target.thread_blocks
    most = len(wanted)
    while True:
        classes = deal(wanted, room, most, busy)
        if isinstance(classes, Unit):
            return classes
        blocks = [hosts(classes, rank, room) for rank in range(layout.n)]
        longest = max(map(len, blocks))
        if longest <= limit:
            return classes, blocks
        if len(classes) == 1:
            return wanted[0]
        # few classes have few thread blocks, in proportion
        most = max(1, min(len(classes) - 1, len(classes) * limit // longest))


def _programs(
    layout: Layout,
    emitter: Emitter,
    classes: Sequence[Class],
    blocks: Sequence[Sequence[Host]],
    room: Room,
    unit_bytes: int,
) -> tuple[RankProgram, ...]:
    numbered = Channels(classes, blocks, emitter.boxes)
    return tuple(
        RankProgram(
            tuple(_block(host, rank, emitter, classes, numbered, unit_bytes) for host in found),
            layout.input_chunks,
            layout.output_chunks,
            emitter.places.scratch[rank],
            (0,) * emitter.semaphores[rank],
        )
        for rank, found in enumerate(blocks)
    )


def _block(
    host: Host,
    rank: int,
    emitter: Emitter,
    classes: Sequence[Class],
    numbered: Channels,
    unit_bytes: int,
) -> ThreadBlock:
    """A thread block of a rank: handshakes, pipelines in the order of their keys, handshakes."""
    found = {
        (block, x): numbered.channel(rank, block, x)
        for block in host.blocks
        for x in lanes_of(classes[block[0]].shares[rank, block[1]].lanes)
    }
    channels = sorted(set(found.values()), key=lambda c: (c.kind, c.peer, c.index))
    near = sum(1 << number for number, c in enumerate(channels) if c.kind == "memory")
    place = {channel: number for number, channel in enumerate(channels)}
    shakes, parts = Shakes(), []
    for block in host.blocks:
        members = classes[block[0]]
        number = {x: place[found[block, x]] for b, x in found if b == block}
        shakes |= members.shares[rank, block[1]].shakes.renumbered(number)
        parts += [(part, number) for part in members.parts[rank, block[1]] if part.steps]
    peers = emitter.target.peers
    steps: list[Step] = [*prologue(shakes, near, peers)]
    for part, number in sorted(parts, key=lambda pair: pair[0].key):
        steps += [_numbered(i, number) for i in part.before]
        body = tuple(_numbered(i, number) for i in part.body)
        steps.append(Pipeline(body, part.chunks, unit_bytes))
        steps += [_numbered(i, number) for i in part.after]
    steps += epilogue(shakes, near, peers)
    return ThreadBlock(tuple(steps), channels=tuple(channels))


def _numbered(i: Instruction, number: dict[int, int]) -> Instruction:
    """The instruction with indices into the thread block's channels in place of lanes."""
    if not i.channels:
        return i
    channels = tuple([number[x] for x in i.channels])
    if i.src or i.dst:
        return Instruction(i.op, i.src, i.dst, channels=channels)
    return plain(i.op, channels)
