"""Programs in onesided style (MSCCL++): peers write into each other's buffers and count signals.

The trees are dealt out to classes; a thread block does, at its rank, all trees of its class, one
pipeline after the other. The order is the same everywhere, and data flows along it: the first
unfinished pipeline can always go on, and the n-th signal of a channel is meant for the n-th wait.

A thread block begins with a handshake on all its channels ("this launch has begun here, my output
and scratch may be written") and, where its puts go through a proxy, ends with one ("all that you
sent is here, your buffers may be reused").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from forestcoll.lower.classes import Class, deal, epilogue, prologue, units
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Budget
from forestcoll.lower.pieces import Boxes, cut, kind_of
from forestcoll.lower.pipelines import NOP, Emitter
from forestcoll.program import Channel, Instruction, Op, Pipeline, RankProgram, Step, ThreadBlock
from forestcoll.targets import Target


def lower_onesided(
    layout: Layout, budget: Budget, boxes: Boxes, unit_bytes: int
) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = budget.target
    pieces = [cut(tree, boxes, target) for tree in layout.trees]
    emitter = Emitter(layout, pieces, boxes, target)
    classes = deal(list(units(layout, pieces, emitter, target, boxes)), budget, boxes)
    programs = []
    for rank in range(layout.n):
        used: dict[tuple[int, str], int] = defaultdict(int)
        blocks = tuple(
            _block(members, rank, boxes, target, used, unit_bytes)
            for members in classes
            if rank in members.parts
        )
        programs.append(
            RankProgram(
                blocks,
                layout.input_chunks,
                layout.output_chunks,
                emitter.scratch[rank],
                (0,) * emitter.semaphores[rank],
            )
        )
    return tuple(programs)


def _block(
    members: Class,
    rank: int,
    boxes: Boxes,
    target: Target,
    used: dict[tuple[int, str], int],
    unit_bytes: int,
) -> ThreadBlock:
    """Thread block of a class at one rank. `used` counts the rank's channels to each peer."""
    peers = sorted(members.peers[rank], key=lambda p: (kind_of(rank, p, boxes), p))
    channels = []
    for peer in peers:
        kind = kind_of(rank, peer, boxes)
        channels.append(Channel(peer, kind, used[peer, kind]))
        used[peer, kind] += 1
    steps: list[Step] = [*prologue(rank, peers, boxes, target)]
    summed = False
    for part in sorted(members.parts[rank], key=lambda p: p.key):
        broadcast = part.key[0]
        if broadcast and summed:
            steps.append(NOP)  # sums are written by all threads, and about to be sent
        summed = not broadcast
        steps += [*part.before, Pipeline(part.body, part.chunks, unit_bytes), *part.after]
    steps += epilogue(rank, peers, boxes, target)
    return ThreadBlock(tuple(_numbered(steps, peers)), channels=tuple(channels))


def _numbered(steps: Iterable[Step], peers: list[int]) -> Iterator[Step]:
    """The steps with indices into the thread block's channels in place of peers."""
    index = {peer: place for place, peer in enumerate(peers)}

    def number(i: Instruction) -> Instruction:
        if not i.channels:
            return i
        channels = tuple([index[p] for p in i.channels])
        if i.src or i.dst:
            return Instruction(i.op, i.src, i.dst, channels=channels)
        return _plain(i.op, channels)

    for step in steps:
        if isinstance(step, Pipeline):
            yield Pipeline(tuple(map(number, step.body)), step.chunks, step.unit_bytes)
        else:
            yield number(step)


@lru_cache(maxsize=4096)
def _plain(op: Op, channels: tuple[int, ...]) -> Instruction:
    """Signals and waits: there are few different ones."""
    return Instruction(op, channels=channels)
