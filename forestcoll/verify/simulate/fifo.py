"""Threads of a fifo program (MSCCL XML): messages in slots, slice after slice of every chunk.

The whole list of a thread block is repeated for slice after slice of a chunk: as much as a message
holds. Where a chunk is smaller than that, a step of several chunks sends as many of them in one
message as it holds. A message is handed over in parts. A connection holds a number of messages;
their receiver frees a slot when it has taken the data out. Inside a box the sending thread block
writes into the receiver's slots; between boxes it writes into its own, and a proxy sends them on.

Sources: Azure/msccl-executor-nccl c6f6b36 (msccl_kernel_impl.h, msccl_setup.cc, prims_simple.h);
message sizes and slots: targets.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from forestcoll.program import (
    ADDS,
    RECEIVES,
    SENDS,
    Instruction,
    Op,
    Pipeline,
    Program,
    ThreadBlock,
)
from forestcoll.program.targets import message_slots, runtime_on
from forestcoll.verify.simulate.code import MOVE, Coder, Origin, Passage, Size, Thread

MESSAGES: Final = SENDS | RECEIVES
Connection = tuple[int, int, int]  # sender, receiver, channel
_Written = tuple[Passage, Passage]
"""What a message became in the thread of its block, and in the proxy's."""


@dataclass(frozen=True, slots=True)
class Slices:
    """How chunks are cut: the rounds, a chunk's bytes in a round, chunks in a message at most."""

    rounds: int
    size: Size
    chunks: int


def slices(chunk: Fraction, message: int) -> Slices:
    """The slices of chunks of so many bytes, for messages that hold so many."""
    rounds = max(1, math.ceil(chunk / message))
    full = min(chunk, Fraction(message))
    last = chunk - (rounds - 1) * full
    most = max(1, math.floor(message / chunk)) if rounds == 1 and chunk else 1
    return Slices(rounds, Size(float(full), float(last)), most)


@dataclass(slots=True)
class _Queue:
    """Counters of a connection, and its proxy where it leaves a box.

    `free`: parts that the sender may write; `here`: parts that the receiver may take; `room`: slots
    of the receiver that the proxy may fill, `staged`: parts that it may send.
    """

    free: int
    here: int
    far: bool
    back: float  # microseconds until the sender knows of a free slot
    room: int = -1
    staged: int = -1
    proxy: Thread | None = None


class FifoCoder:
    """Writes the threads of all thread blocks of a fifo program."""

    def __init__(self, program: Program, chunk: Fraction, coder: Coder) -> None:
        self.program, self.coder, self.options = program, coder, coder.options
        runtime = self.options.runtime or runtime_on(program, coder.fabric.machine or program.name)
        message, slots = message_slots(program, runtime)
        self.slices = slices(chunk, message)
        self.parts = self.options.parts if program.protocol == "Simple" else 1
        self._slots = slots * self.parts
        self._wire = float(runtime.messages.wire(program.protocol))
        self._queues: dict[Connection, _Queue] = {}
        graph = coder.fabric.graph
        self._boxes = [graph.box(node) for node in graph.ranks]

    def write(self) -> None:
        """Adds all threads to the coder."""
        for rank, own in enumerate(self.program.ranks):
            awaited = {
                place
                for block in own.thread_blocks
                for step in block.steps
                if isinstance(step, Instruction)
                for place in step.after
            }
            flags = {place: self.coder.counter() for place in sorted(awaited)}
            for number, block in enumerate(own.thread_blocks):
                self._block(rank, number, block, flags)

    def _queue(self, sender: int, receiver: int, channel: int) -> _Queue:
        key = (sender, receiver, channel)
        found = self._queues.get(key)
        if found is None:
            counter = self.coder.counter
            far = self._boxes[sender] != self._boxes[receiver]
            back = self.coder.latency(receiver, sender)
            found = _Queue(counter(self._slots), counter(), far, back)
            if far:
                found.room, found.staged = counter(self._slots), counter()
                found.proxy = self.coder.thread(sender, -1, proxy=True)
                found.proxy.loop(self.slices.rounds)
            self._queues[key] = found
        return found

    def _block(
        self, rank: int, number: int, block: ThreadBlock, flags: dict[tuple[int, int], int]
    ) -> None:
        thread = self.coder.thread(rank, number)
        thread.loop(self.slices.rounds)
        known: dict[tuple[Op, int], _Written] = {}
        for place, step in enumerate(block.steps):
            assert not isinstance(step, Pipeline)
            peer = block.send if step.op in SENDS else block.recv if step.op in RECEIVES else -1
            thread.origin = Origin(place, step.op, peer)
            for after in step.after:
                thread.reach(flags[after], 1, 1)
            if step.op in MESSAGES:
                self._alike(thread, rank, block, step, known)
            elif step.op is not Op.NOP:
                self._local(thread, step)
            if (number, place) in flags:
                thread.post(flags[number, place])

    def _local(self, thread: Thread, step: Instruction) -> None:
        size = self.slices.size.times(sum(ref.count for ref in step.src))
        time = self.options.sum_time if step.op in ADDS else self.options.copy_time
        thread.delay(time(size.full), time(size.last))

    def _alike(
        self,
        thread: Thread,
        rank: int,
        block: ThreadBlock,
        step: Instruction,
        known: dict[tuple[Op, int], _Written],
    ) -> None:
        """A message; as those of the block before that were `known`, where it has but one way."""
        sends = step.op in SENDS
        proxy = self._queue(rank, block.send, block.channel).proxy if sends else None
        if proxy is not None:
            proxy.origin, proxy.block = thread.origin, thread.block
        kind = step.op, (*step.src, *step.dst)[0].count
        if kind in known:
            own, theirs = known[kind]
            thread.again(own)
            if proxy is not None:
                proxy.again(theirs)
            return
        own_first, their_first = len(thread.origins), len(proxy.origins) if proxy else 0
        self._message(thread, rank, block, step)
        if not sends or self.coder.alone(rank, block.send):
            theirs = proxy.since(their_first) if proxy else thread.since(len(thread.origins))
            known[kind] = thread.since(own_first), theirs

    def _message(self, thread: Thread, rank: int, block: ThreadBlock, step: Instruction) -> None:
        into = self._queue(block.recv, rank, block.channel) if step.op in RECEIVES else None
        out = self._queue(rank, block.send, block.channel) if step.op in SENDS else None
        count = (*step.src, *step.dst)[0].count
        time = self.options.sum_time if step.op in ADDS else self.options.copy_time
        for first in range(0, count, self.slices.chunks):
            chunks = min(self.slices.chunks, count - first)
            size = self.slices.size.times(chunks / self.parts)
            for _ in range(self.parts):
                if into is not None:
                    thread.take(into.here)
                if out is not None:
                    self._send(thread, rank, block.send, out, size)
                elif into is not None:
                    thread.delay(time(size.full), time(size.last))
                if into is not None:
                    thread.post(into.room if into.far else into.free, into.back)

    def _send(self, thread: Thread, rank: int, peer: int, out: _Queue, size: Size) -> None:
        wire = size.times(self._wire)
        thread.take(out.free)
        route = self.coder.between(rank, peer, wire)
        if out.proxy is None:
            thread.transfer(MOVE, route, wire, self.options.cap(), out.here)
            return
        copy = self.options.copy_time
        thread.delay(copy(size.full), copy(size.last))
        thread.post(out.staged)
        out.proxy.take(out.staged)
        out.proxy.take(out.room)
        out.proxy.transfer(MOVE, route, wire, 0.0, out.here)
        out.proxy.post(out.free)
