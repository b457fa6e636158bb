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
bounding it means having fewer such connections. `pipelines.hpp` in graph/kernel/lowering says which
are left: those from box to box, and one a rank with children, for all of them, where the output
cannot take the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.limits import Limits
from forestcoll.program import (
    Buffer,
    Channel,
    Instruction,
    Op,
    Pipeline,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.schedule.forest import Forest

BUSY = 32
"""Thread blocks of a half at work at a rank, where there are as many trees.

So many channels NCCL has at most; more would take processors from computation.
"""
Apart = Literal["no", "inner", "all"]
"""Ranks of which every child is in a group of its own: none, all but the root, all."""
_APART = ("no", "inner", "all")
_WORDS = (
    *(Instruction, Ref, Pipeline, Channel, *Buffer, "memory", "port"),
    *(Op.NOP, Op.COPY, Op.REDUCE_TO, Op.PUT, Op.PUT_SIGNAL),
    *(Op.READ_REDUCE, Op.READ_REDUCE_PUT, Op.REDUCE_PUT, Op.SIGNAL, Op.WAIT),
    *(Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.ACQUIRE, Op.RELEASE),
)
"""What thread blocks are made of."""
_LIMITS = ("operations", "channels of one kind", "remote buffers")


class Spread(NamedTuple):
    """How the work of a rank is spread over thread blocks.

    `grain`: trees of many chunks are cut into trees of about so many, each with thread blocks of
    its own, so that every block moves as much (0: trees stay whole, and small ones share thread
    blocks). `children`: in a broadcast every child of a rank has a thread block that puts to it, so
    that no link waits while the block puts to another. `units`: chunks in place of each, before
    trees are cut, so that parts are nearly equal. `uneven`: slices of neighbouring trees differ in
    length, so that thread blocks that read over one link do not all wait at the same time.
    """

    grain: int = 0
    children: bool = False
    units: int = 1
    uneven: bool = False

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
    layout: Layout, limits: Limits, unit_bytes: int, spread: Spread = TOGETHER
) -> tuple[tuple[RankProgram, ...], str]:
    """What every rank does, and how the halves of an allreduce meet ("" for other collectives).

    Raises PlanError where a limit cannot be kept.
    """
    target, both = limits.target, layout.collective.two_phases
    blocks = blocks_of(layout, limits, spread)
    busy = target.thread_blocks if spread.grain else BUSY
    halves = 2 if both else 1
    while refused := blocks.deal(halves, busy):
        halves -= 1
        if halves:
            continue
        root, trees, alone = refused  # what a single one of them breaks
        if alone is not None:
            rank, limit, figure, bound = alone
            where = f"{limits.rank(rank)} in a tree of root {root}"
            raise limits.refuse(where, f"{_LIMITS[limit]} in one thread block", figure, bound)
        raise PlanError(
            f"{limits.title}: {trees} trees need more than {target.thread_blocks} thread blocks "
            f"of {target.steps} operations and {target.channels} channels of a kind, all that "
            f"{target.name} holds; {limits.hint}"
        )
    ranks = tuple(
        RankProgram(
            tuple(ThreadBlock(steps, channels=channels) for steps, channels in own),
            layout.input_chunks,
            layout.output_chunks,
            scratch,
            (0,) * semaphores,
        )
        for own, scratch, semaphores in blocks.program(unit_bytes, spread.uneven)
    )
    return ranks, (OVERLAPPED if halves == 2 else SERIAL) if both else ""


def blocks_of(layout: Layout, limits: Limits, spread: Spread = TOGETHER) -> _kernel.OnesidedBlocks:
    """Returns the trees of a layout, cut in groups, for thread blocks that are to be dealt out."""
    target, collective, boxes = limits.target, layout.collective, limits.boxes
    return _kernel.OnesidedBlocks(
        layout.trees,
        [_APART.index(spread.apart(tree, collective.two_phases)) for tree in layout.trees],
        layout.inputs[: layout.n],
        layout.outputs[: layout.n],
        [boxes.index(box) for box in boxes],
        collective.reduces,
        collective.two_phases,
        (
            target.thread_blocks,
            target.steps,
            target.channels,
            target.peers,
            target.remote_buffers,
            target.semaphores,
        ),
        _WORDS,
    )
