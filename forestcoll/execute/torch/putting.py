"""A transport over NCCL's put and signal: data go to where they land without a word between both.

Every rank has a window that the others write into: a place for each peer and step under way, and as
many to send from. A message is put into the receiver's place; once that has taken it out it signals
back, a credit. NCCL counts a peer's signals in order, data and credits alike (NVIDIA/nccl 5067397c
docs/userguide/source/api/p2p.rst: signal and context have to be 0), so which one to wait for
follows from the plan: all ranks begin and finish their steps in the same order.

All is put into the current stream; no kernel of ours runs. Needs nccl4py (`nccl.core`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.torch.agreement import group_of
from forestcoll.execute.torch.cutting import ALIGNMENT, Job, Message
from forestcoll.execute.torch.engine import Flight, Run
from forestcoll.execute.torch.plan import Plan

_on: WeakKeyDictionary[Any, PutSignal] = WeakKeyDictionary()


class PutSignal:
    """Calls on `group` go by put and signal, until it is closed; all ranks make and close it.

    Calls with splits stay as they are. Raises UnsupportedError where nccl4py is not there.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group_of(group)
        try:
            self.nccl: Any = import_module("nccl.core")
            self.empty = import_module("nccl.core.interop.torch").empty
        except ImportError as error:
            raise UnsupportedError(
                "put and signal need nccl4py, which is not installed: pip install nccl4py"
            ) from error
        rank, n = dist.get_rank(self.group), dist.get_world_size(self.group)
        told = [b"" if rank else bytes(self.nccl.get_unique_id())]
        dist.broadcast_object_list(told, dist.get_global_rank(self.group, 0), self.group)
        unique = self.nccl.UniqueId.from_bytes(told[0])
        self.communicator = self.nccl.Communicator.init(n, rank, unique)
        self.windows: list[tuple[Any, torch.Tensor]] = []
        _on[self.group] = self

    def window(self, size: int, device: torch.device) -> tuple[Any, torch.Tensor]:
        """The window and its memory, of so many bytes at least; all ranks ask alike.

        Smaller ones stay until the end: calls may be under way.
        """
        if not self.windows or self.windows[-1][1].numel() < size:
            memory = self.empty(2 * size, dtype=torch.uint8, device=device)
            flag = self.nccl.WindowFlag.COLL_SYMMETRIC
            self.windows.append((self.communicator.register_window(memory, flag), memory))
        return self.windows[-1]

    def close(self) -> None:
        """Calls on the group go by sends and receives again."""
        _on.pop(self.group, None)
        self.communicator.destroy()


def run_of(group: Any) -> type[Run]:
    """What runs a plan's steps on the group."""
    return _PutRun if group in _on else Run


def _widest(plan: Plan, total: int, element: int) -> int:
    """Elements that no message exceeds at any rank, of `total`; a multiple of 256.

    A step holds a slice of each piece that goes from one rank to another.
    """
    slices, spare = plan.count_slices(total * element), 2 * ALIGNMENT // element + 3
    widths = Counter[tuple[int, int]]()
    for source, result in plan.flow.moves():
        value = plan.flow.values[result]
        width = value.length * total // (plan.flow.units * slices) + spare
        widths[plan.flow.values[source].rank, value.rank] += width
    return -(-max(widths.values(), default=1) // 256) * 256


def _signals(job: Job) -> tuple[dict[tuple[int, int, bool], int], Counter[int]]:
    """How many signals of a peer have come when (peer, step, ours) may go on; all in the end.

    `ours`: a message to the peer, once earlier ones are taken out; else one from it.
    """
    due: dict[tuple[int, int, bool], int] = {}
    count, credits = Counter[int](), Counter[int]()
    for number in range(len(job.steps) + job.lead):
        for message in job.steps[number - job.lead].sends if number >= job.lead else ():
            count[message.peer] += 1
            credits[message.peer] = count[message.peer]
        for step in job.steps[number : number + 1]:
            for message in step.sends:
                due[message.peer, number, True] = credits[message.peer]
            for message in step.receives:
                count[message.peer] += 1
                due[message.peer, number, False] = count[message.peer]
    return due, count


class _PutRun(Run):
    """One call on one rank, over the group's window: [ours, peer, step under way, element]."""

    def __call__(self) -> None:
        self.over, like, flow = _on[self.group], self.memories[0], self.plan.flow
        total = like.numel() // flow.collective.input_parts(flow.ranks) * flow.parts
        width = _widest(self.plan, total, like.element_size())
        shape = 2, flow.ranks, self.job.lead, width
        size = math.prod(shape) * like.element_size()
        self.window, memory = self.over.window(size, like.device)
        self.table = memory[:size].view(like.dtype).view(shape)
        self.due, ends = _signals(self.job)
        self.seen: Counter[int] = Counter()
        self.stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else None
        super().__call__()
        self.wait(ends)  # the next call finds all places free

    def wait(self, due: Mapping[int, int]) -> None:
        """Has the stream wait until that many signals of each peer have come."""
        new, news = self.over.nccl.WaitSignalDesc, Counter(due)
        news.subtract({peer: self.seen[peer] for peer in due})
        if waits := [new(peer, op_count=count) for peer, count in news.items() if count > 0]:
            self.over.communicator.wait_signal(waits, stream=self.stream)
        self.seen |= Counter(due)

    def places(
        self, number: int, messages: Iterable[Message], ours: bool
    ) -> list[tuple[int, list[torch.Tensor], torch.Tensor]]:
        """(peer, parts of its message, where it lies in our window), once that may be used."""
        self.wait({m.peer: self.due[m.peer, number, ours] for m in messages})
        row = self.table[int(ours), :, number % self.job.lead]
        return [
            (m.peer, [self.view(part) for part in m.ranges], row[m.peer, : m.length])
            for m in messages
        ]

    def start(self, number: int) -> Flight:
        """Puts all messages of a step."""
        places = self.places(number, self.job.steps[number].sends, True)
        for _, parts, memory in places:
            torch.cat(parts, out=memory)
        theirs = self.table[0, self.rank, number % self.job.lead]
        offset = theirs.data_ptr() - self.table.data_ptr()
        with self.over.nccl.group():
            for peer, _, memory in places:
                data = memory.view(torch.uint8)
                self.over.communicator.put_signal(
                    data, peer, self.window, offset, stream=self.stream
                )
        return Flight(number)

    def finish(self, flight: Flight) -> None:
        """Takes a step's messages out, adds, and gives their places back."""
        places = self.places(flight.number, self.job.steps[flight.number].receives, False)
        flight.unpack += [(parts, memory) for _, parts, memory in places]
        super().finish(flight)
        for peer, *_ in places:
            self.over.communicator.signal(peer, stream=self.stream)
