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
bounding it means having fewer such connections. pipelines.py says which are left: those
from box to box, and one a rank with children, for all of them, where the output cannot take the
sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forestcoll.common.errors import PlanError
from forestcoll.lower.handshakes import Boxes, Shakes, bits_of
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.limits import Limits
from forestcoll.lower.onesided_blocks import (
    BUSY,
    Block,
    Channels,
    Class,
    Room,
    channels_of,
    deal,
    units,
)
from forestcoll.lower.pipelines import Apart, Pipelines, cut
from forestcoll.program import Instruction, Pipeline, RankProgram, Step, ThreadBlock
from forestcoll.schedule.forest import Forest


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


def forks(forest: Forest, trees: Sequence[RankTree]) -> bool:
    """Whether `Spread.children` makes thread blocks for any children; `trees`: of its layout."""
    both = forest.collective.two_phases
    return any(
        len(children) > 1
        for tree in trees
        if (apart := Spread(children=True).apart(tree, both)) != "no"
        for rank, children in enumerate(tree.children())
        if apart == "all" or rank != tree.root
    )


OVERLAPPED = "reduce and broadcast overlap, slice by slice"
SERIAL = "reduce and broadcast of a class one after the other: too few thread blocks to overlap"


def lower_onesided(
    layout: Layout, limits: Limits, boxes: Boxes, unit_bytes: int, spread: Spread = TOGETHER
) -> tuple[tuple[RankProgram, ...], str]:
    """What every rank does, and how the halves of an allreduce meet ("" for other collectives).

    Raises PlanError where a limit cannot be kept.
    """
    target, both = limits.target, layout.collective.two_phases
    room = Room(boxes, target)
    groups = [cut(t, boxes, target, spread.apart(t, both)) for t in layout.trees]
    busy = target.thread_blocks if spread.grain else BUSY
    for halves in (2, 1) if both else (1,):
        pipelines = Pipelines(layout, groups, boxes, target, halves)
        wanted = [*units(layout, pipelines, room)]
        try:
            classes, blocks = deal(wanted, layout.n, room, busy, limits)
            break
        except PlanError:
            if halves == 1:
                raise
    channels = channels_of(classes, blocks, boxes)
    ranks = tuple(
        RankProgram(
            tuple(
                _block(rank, own, classes, channels, target.peers, unit_bytes)
                for own in blocks_of_rank
            ),
            layout.input_chunks,
            layout.output_chunks,
            pipelines.scratch[rank],
            (0,) * pipelines.semaphores[rank],
        )
        for rank, blocks_of_rank in enumerate(blocks)
    )
    return ranks, (OVERLAPPED if halves == 2 else SERIAL) if both else ""


def _block(
    rank: int,
    members: Sequence[Block],
    classes: Sequence[Class],
    channels: Channels,
    peers: int,
    unit_bytes: int,
) -> ThreadBlock:
    """A thread block of a rank: pipelines in the order of their keys, between handshakes."""
    works = [(block, classes[block[0]][rank, block[1]]) for block in members]
    channel_of = {(b, x): channels[rank, b, x] for b, work in works for x in bits_of(work.lanes)}
    own = sorted(set(channel_of.values()), key=lambda c: (c.kind, c.peer, c.index))
    near = sum(1 << number for number, c in enumerate(own) if c.kind == "memory")
    place = {channel: number for number, channel in enumerate(own)}
    shakes, pipes = [0] * 4, []
    for block, work in works:
        number = {x: place[channel_of[block, x]] for x in bits_of(work.lanes)}
        for kind, mask in enumerate(work.shakes):
            for x in bits_of(mask):
                shakes[kind] |= 1 << number[x]
        pipes += [(pipe, number) for pipe in work.pipes]
    steps: list[Step] = []
    for pipe, number in sorted(pipes, key=lambda pair: pair[0].key):
        steps += pipe.before
        steps.append(Pipeline(_number(pipe.body, number), pipe.chunks, unit_bytes))
        steps += pipe.after
    around = Shakes(*shakes).around(steps, near, peers)
    return ThreadBlock(tuple(around), channels=tuple(own))


def _number(body: Sequence[Instruction], number: dict[int, int]) -> tuple[Instruction, ...]:
    """The instructions with indices into the thread block's channels in place of lanes."""
    return tuple(
        Instruction(i.op, i.src, i.dst, channels=tuple([number[x] for x in i.channels]))
        if i.channels
        else i
        for i in body
    )
