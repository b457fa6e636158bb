"""Runs one rank's steps over a process group: batches of sends and receives, then sums.

Nothing but `torch.distributed.batch_isend_irecv` and element-wise operations is used, so any
backend will do. Messages between two ranks are in the same order at both; each step has at most one
from a rank to another, so that backends without tags match them right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from forestcoll.common.errors import ExecutionError
from forestcoll.execute.torch.cutting import Job, Message, Range, Sum
from forestcoll.execute.torch.operators import Operator
from forestcoll.execute.torch.plan import Plan
from forestcoll.execute.torch.rounds import Memory

BATCH = 256
"""Transfers in a batch: with more, backends have been seen to hang."""
TAG = 0x460000
"""The least of our messages', where the backend has tags: others' traffic does not meet them."""


class Buffers(NamedTuple):
    """What a rank works on: flat and contiguous; scratch and the rest are the engine's own."""

    input: torch.Tensor
    output: torch.Tensor


class _Pool:
    """Scratch memory of the processor, kept for the next call: fresh pages are slow."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = Lock()

    def take(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """At least `count` elements of `like`'s type, where `like` is."""
        if like.device.type != "cpu":  # those have allocators that keep memory
            return torch.empty(count, dtype=like.dtype, device=like.device)
        size = count * like.element_size()
        with self._lock:
            fitting = [t for t in self._free if t.numel() >= size]
            buffer = min(fitting, key=lambda t: t.numel(), default=None)
            if buffer is not None:
                self._free = [t for t in self._free if t is not buffer]
        if buffer is None:
            buffer = torch.empty(size + -size % 4096, dtype=torch.uint8)
        return buffer.view(like.dtype)

    def give_back(self, memory: torch.Tensor) -> None:
        """Keep it: nothing uses it any more."""
        if memory.device.type == "cpu":
            with self._lock:
                self._free.append(memory.view(torch.uint8))
                self._free.sort(key=lambda t: -t.numel())
                del self._free[8:]


_pool = _Pool()


@dataclass(slots=True)
class Flight:
    """A step under way: what to wait for (and whether it can fail alone), what to unpack."""

    number: int
    works: list[tuple[Any, str]] = field(default_factory=list)
    unpack: list[tuple[list[torch.Tensor], torch.Tensor]] = field(default_factory=list)


OnChunk = Callable[[torch.Tensor, int], object]
"""Given a part of the flat result that is final, and its first element."""
Ready = Iterable[tuple[Any, ...]]
"""(first element, elements) of the flat input as they are finished, or with what to `wait()` on."""


class Watch:
    """Who makes the input part by part, and who takes the result so.

    A part goes to `on_chunk` once nothing is written to it or sent from it any more. On processors
    that is done by a thread beside the transfers; on GPUs it is put into their stream. `epilogue`
    is given each complete sum, before it goes to any other rank. What any of them raises is raised
    when all transfers are over, for peers wait for them.
    """

    def __init__(
        self,
        on_chunk: OnChunk | None = None,
        ready: Ready | None = None,
        epilogue: OnChunk | None = None,
    ) -> None:
        self.on_chunk, self.epilogue = on_chunk, epilogue
        self.producer = None if ready is None else iter(ready)
        self.made: list[tuple[int, int]] = []
        self.error: BaseException | None = None
        self.queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self.thread: Thread | None = None
        self.final: dict[int, list[tuple[int, int]]] = {}

    def begin(self, job: Job, output: torch.Tensor, in_place: bool) -> None:
        """Finds out which step is the last with anything to do with each part of `output`."""
        if self.on_chunk is None:
            return
        self.output, kinds = output, (Memory.OUTPUT, Memory.INPUT)[: 1 + in_place]
        touched = [
            (piece.start, piece.start + piece.length, number)
            for number, step in enumerate(job.steps)
            for piece in step.ranges
            if piece.memory in kinds
        ]
        borders = sorted({0, output.numel(), *(at for part in touched for at in part[:2])})
        place = {at: k for k, at in enumerate(borders)}
        last = torch.full((len(borders) - 1,), len(job.steps) - 1)  # of what nothing touches
        for low, high, number in touched:
            last[place[low] : place[high]] = number
        self.final = defaultdict(list)
        for k, number in enumerate(last.tolist()):
            parts = self.final[number]
            low = parts.pop()[0] if parts and parts[-1][1] == borders[k] else borders[k]
            parts.append((low, borders[k + 1]))
        if not output.is_cuda:
            self.thread = Thread(target=self._take, name="forestcoll parts", daemon=True)
            self.thread.start()

    def _take(self) -> None:
        with torch.no_grad():
            while (part := self.queue.get()) is not None:
                self._give(part)

    def _give(self, part: tuple[int, int]) -> None:
        self._call(self.on_chunk, self.output[slice(*part)], part[0])

    def complete(self, total: torch.Tensor, begin: int) -> None:
        """A sum is complete that begins so far into the flat result, and nobody else has it yet."""
        self._call(self.epilogue, total, begin)

    def _call(self, function: OnChunk | None, view: torch.Tensor, begin: int) -> None:
        try:
            if self.error is None and function is not None:
                function(view, begin)
        except BaseException as error:
            self.error = error

    def finish(self, number: int) -> None:
        """After a step: what is final now goes on."""
        for part in self.final.get(number, ()):
            if self.thread is None:
                self._give(part)
            else:
                self.queue.put(part)

    def wait_for(self, ranges: Iterable[Range]) -> None:
        """Until those of the input are made; nothing more to come: until all is."""
        for piece in ranges:
            while self.producer is not None and piece.memory == Memory.INPUT:
                if self._is_made(piece.start, piece.start + piece.length):
                    break
                self._pull()

    def wait_for_all(self) -> None:
        """Until nothing more is made."""
        while self.producer is not None:
            self._pull()

    def _pull(self) -> None:
        try:
            tile = next(self.producer)  # type: ignore[arg-type]
            for event in tile[2:]:
                event.wait()
            self.made.append((int(tile[0]), int(tile[0]) + int(tile[1])))
        except StopIteration:
            self.producer = None
        except BaseException as error:
            self.error = error
            self.producer = None

    def _is_made(self, low: int, high: int) -> bool:
        self.made.sort()
        for start, end in self.made:
            if start <= low < end:
                low = end
        return low >= high

    def end(self) -> None:
        """Waits for whoever takes the result. Raises what it, or the producer, raised."""
        if self.thread is not None:
            self.queue.put(None)
            self.thread.join()
        if self.error is not None:
            raise self.error


Transfer = tuple[Any, torch.Tensor, int]
"""dist.isend or dist.irecv, what is sent or where it lands, and the peer's rank in the plan."""


class Run:
    """One call on one rank, step by step, `lead` of them under way at a time."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        buffers: Buffers,
        op: Operator,
        group: Any,
        tag: int = TAG,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch or Watch()
        self.plan, self.job, self.op, self.group, self.tag = plan, job, op, group, tag
        self.rank = dist.get_rank(group)
        self.peers = [dist.get_global_rank(group, r) for r in range(plan.ranks)]
        own = job.scratch + job.lead * job.packed
        self.own = _pool.take(max(own, 1), buffers.input)
        self.memories = (buffers.input, buffers.output, self.own)
        self.wire = None if op.wire is op.sums else op.wire  # of messages, where memory has another

    def __call__(self) -> None:
        """Runs all steps. ExecutionError: a peer failed, or did not answer in time."""
        flights: list[Flight] = []
        for number in range(len(self.job.steps)):
            if len(flights) == self.job.lead:
                self.end(flights.pop(0))
            self.watch.wait_for(self.job.steps[number].ranges)
            flights.append(self.start(number))
        for flight in flights:
            self.end(flight)
        # Not after an error: transfers may still be under way then.
        _pool.give_back(self.own)

    def start(self, number: int) -> Flight:
        """Begins all transfers of a step."""
        flight = Flight(number)
        self.post_all(flight, self.transfers(flight))
        return flight

    def post_all(self, flight: Flight, transfers: Iterable[Transfer]) -> None:
        """Begins all of a flight's transfers, batch after batch."""
        operations = [self.operation(*transfer) for transfer in transfers]
        for batch in sorted({batch for batch, _ in operations}):
            self.post(flight, [op for b, op in operations if b == batch])

    def operation(self, kind: Any, memory: torch.Tensor, peer: int) -> tuple[int, dist.P2POp]:
        """Returns (batch, operation). A message is in the same batch at both ends."""
        n = self.plan.ranks
        distance = (peer - self.rank if kind is dist.isend else self.rank - peer) % n
        data = memory.view(torch.uint8)  # transports move bytes; not all know every type
        operation = dist.P2POp(kind, data, self.peers[peer], self.group, self.tag)
        return distance // (BATCH // 2), operation

    def post(self, flight: Flight, batch: list[dist.P2POp]) -> None:
        try:
            works = dist.batch_isend_irecv(batch)
        except RuntimeError as error:
            raise self.failure(flight, f"{len(batch)} transfers", error) from error
        if len(works) == len(batch):
            words = [_words(op) for op in batch]
        else:
            words = [f"{len(batch)} transfers"] * len(works)
        flight.works.extend(zip(works, words, strict=True))

    def end(self, flight: Flight) -> None:
        """Finishes a step, and tells who watches."""
        self.finish(flight)
        self.watch.finish(flight.number)

    def finish(self, flight: Flight) -> None:
        """Waits for a step's transfers, and puts what came in its places."""
        self.settle(flight)
        for parts, memory in flight.unpack:
            torch._foreach_copy_(parts, list(memory.split([p.numel() for p in parts])))
        self.add_up(flight.number)

    def settle(self, flight: Flight) -> None:
        for work, words in flight.works:
            try:
                work.wait()
            except RuntimeError as error:
                raise self.failure(flight, words, error) from error

    def add_up(self, number: int) -> None:
        """Makes the sums of a step."""
        for each in self.job.steps[number].sums:
            self.sum(each)

    def failure(self, flight: Flight, words: str, error: Exception) -> ExecutionError:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        step = f"step {flight.number + 1} of {len(self.job.steps)}"
        return ExecutionError(
            f"rank {self.rank}: {self.plan.collective} with {self.plan.name}: {words} failed in "
            f"{step}: {reason[0]} (a peer died or did not answer in time; this "
            "process group is of no use any more)"
        )

    def view(self, piece: Range) -> torch.Tensor:
        memory, start, length = piece
        return self.memories[memory][start : start + length]

    def transfers(self, flight: Flight) -> Iterator[Transfer]:
        """Yields a step's messages; those that lie in several places are packed."""
        step = self.job.steps[flight.number]
        at = self.job.scratch + flight.number % self.job.lead * self.job.packed
        for message in step.receives:
            memory, at = self.place(message, at)
            if len(message.ranges) > 1 or self.wire:
                flight.unpack.append(([self.view(r) for r in message.ranges], memory))
            yield dist.irecv, memory, message.peer
        for message in step.sends:
            memory, at = self.place(message, at)
            if len(message.ranges) > 1 or self.wire:
                torch.cat([self.view(r) for r in message.ranges], out=memory)
            yield dist.isend, memory, message.peer

    def place(self, message: Message, at: int) -> tuple[torch.Tensor, int]:
        """Where a message lies in one piece, and what is left to pack into."""
        if self.wire is not None:
            return torch.empty(message.length, dtype=self.wire, device=self.own.device), at
        if len(message.ranges) == 1:
            return self.view(message.ranges[0]), at
        return self.own[at : at + message.length], at + message.length

    def sum(self, each: Sum) -> None:
        target, first = self.view(each.target), self.view(each.first)
        if each.second is None:
            target.copy_(first)
            return
        self.op.combine(first, self.view(each.second), out=target)
        if each.last:
            if self.op.finish is not None and self.op.sums is None:
                self.op.finish(target, self.plan.ranks)
            self.watch.complete(target, each.begin)


def _words(op: dist.P2POp) -> str:
    verb = "sending to" if op.op is dist.isend else "receiving from"
    return f"{verb} rank {op.peer}"
