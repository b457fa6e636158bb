"""Fifo programs run for several launches of several slices, with the queues that the runtime has.

fifo.py argues that one pass over the instruction lists stands for all of them. Here they are really
repeated, counting messages only: a thread block goes on to its next slice as soon as its own list
is through, a rank to its next launch when all its thread blocks are, and both whatever its peers do
meanwhile. A message that is left over, or a queue that is too short for a rank that is a launch
ahead, shows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from forestcoll.errors import PlanError
from forestcoll.program import Instruction, Program
from forestcoll.verify.fifo import slots_of
from forestcoll.verify.layout import sizes_of
from forestcoll.verify.structure import RECEIVES, SENDS
from forestcoll.verify.trace import Blocked, Code, flatten, raise_deadlock


@dataclass(slots=True)
class _Queue:
    """A connection: pieces of messages that it has room for, and that it holds."""

    free: int
    held: int = 0
    sender: int = -1
    receiver: int = -1
    reader_waits: bool = False  # for a piece
    writer_waits: bool = False  # for room


@dataclass(slots=True)
class _Block:
    """A thread block: what each step of its list needs, and how many it has done in all."""

    pieces: list[int]
    receives: list[bool]
    sends: list[bool]
    after: list[tuple[tuple[int, int], ...]]
    into: _Queue | None = None
    out: _Queue | None = None
    done: int = 0
    piece: int = 0
    blocked: Blocked | None = None
    asleep: list[int] = field(default_factory=list)  # who waits for one of its steps


def run_repeatedly(program: Program, *, launches: int = 3, slices: int = 2) -> int:
    """How many steps were done in `launches` of `slices` each; the queues are empty after each.

    For fifo programs that `verify` has proven right. Raises PlanError with the circle of thread
    blocks where they wait for each other for ever, and for messages left over.
    """
    return _Run(program, launches, slices).run()


class _Run:
    def __init__(self, program: Program, launches: int, slices: int) -> None:
        self.code: Code = flatten(program, 1)
        self.launches, self.slices = launches, slices
        piece, self.queue = slots_of(program, sizes_of(program).total)
        self.blocks = [self._block(b, piece) for b in range(len(self.code.lines))]
        self.queues: dict[tuple[int, int, int], _Queue] = {}
        self._connect()
        self.left = [0] * program.n  # thread blocks of a rank that are still in its launch
        self.launch = [-1] * program.n
        self.ready: deque[int] = deque()

    def _block(self, b: int, piece: int) -> _Block:
        first = self.code.first[self.code.rank[b]]
        found: list[Instruction] = [line.instruction for line in self.code.lines[b]]
        return _Block(
            [-(-(*i.src, *i.dst)[0].count // piece) for i in found],
            [i.op in RECEIVES for i in found],
            [i.op in SENDS for i in found],
            [tuple((first + other, s) for other, s in i.after) for i in found],
        )

    def _connect(self) -> None:
        for b, r in enumerate(self.code.rank):
            block = self.code.program.ranks[r].thread_blocks[self.code.number[b]]
            state = self.blocks[b]
            if block.send != -1:
                state.out = self._at((r, block.send, block.channel))
                state.out.sender = b
            if block.recv != -1:
                state.into = self._at((block.recv, r, block.channel))
                state.into.receiver = b

    def _at(self, key: tuple[int, int, int]) -> _Queue:
        return self.queues.setdefault(key, _Queue(self.queue))

    def run(self) -> int:
        for r in range(len(self.launch)):
            self._begin(r)
        while self.ready:
            b = self.ready.popleft()
            self.blocks[b].blocked = None
            self._advance(b, self.blocks[b])
        stuck = {b: s.blocked for b, s in enumerate(self.blocks) if s.blocked is not None}
        if stuck:
            raise_deadlock(self.code, stuck, queue=self.queue)
        for (src, dst, channel), queue in self.queues.items():
            if queue.held:
                raise PlanError(
                    f"rank {src} to rank {dst} on channel {channel}: {queue.held} pieces of "
                    f"messages are left over after {self.launches} launches",
                    rule="XML-MESSAGE-LOST",
                    at=(src,),
                )
        return sum(state.done for state in self.blocks)

    def _begin(self, r: int) -> None:
        """The next launch of rank r, if there is one."""
        blocks = [
            b for b in range(self.code.first[r], self.code.first[r + 1]) if self.code.lines[b]
        ]
        self.launch[r] += 1
        if self.launch[r] < self.launches and blocks:
            self.left[r] = len(blocks)
            self.ready.extend(blocks)

    def _advance(self, b: int, state: _Block) -> None:
        """Run a thread block to the end of its launch, or until it has to wait."""
        length, r = len(state.pieces), self.code.rank[b]
        end = (self.launch[r] + 1) * self.slices * length
        while state.done < end:
            turn, s = divmod(state.done, length)
            if not state.piece and not self._after(b, state, turn, s):
                return
            if (state.receives[s] or state.sends[s]) and not self._message(b, state, s):
                return
            state.piece = 0
            state.done += 1
            if state.asleep:
                sleepers, state.asleep = state.asleep, []
                self.ready.extend(sleepers)
        self.left[r] -= 1
        if not self.left[r]:
            self._begin(r)

    def _after(self, b: int, state: _Block, turn: int, s: int) -> bool:
        """Whether the steps that step s comes after are done in this slice."""
        for other, step in state.after[s]:
            if other == b:
                continue  # its own earlier steps
            peer = self.blocks[other]
            if peer.done <= turn * len(peer.pieces) + step:
                peer.asleep.append(b)
                at = self.code.where(other, step)
                state.blocked = Blocked(s, f"waits for {at}", other)
                return False
        return True

    def _message(self, b: int, state: _Block, s: int) -> bool:
        """The pieces of a message, as far as they come and there is room."""
        into = state.into if state.receives[s] else None
        out = state.out if state.sends[s] else None
        while (rest := state.pieces[s] - state.piece) > 0:
            if into is not None and not into.held:
                state.blocked = Blocked(s, "waits for a message", into.sender)
                into.reader_waits = True
                return False
            if out is not None and not out.free:
                state.blocked = Blocked(s, "waits for room", out.receiver, full=True)
                out.writer_waits = True
                return False
            at_once = min(
                rest, rest if into is None else into.held, rest if out is None else out.free
            )
            state.piece += at_once
            if into is not None:
                into.held -= at_once
                into.free += at_once
                if into.writer_waits:
                    into.writer_waits = False
                    self.ready.append(into.sender)
            if out is not None:
                out.free -= at_once
                out.held += at_once
                if out.reader_waits:
                    out.reader_waits = False
                    self.ready.append(out.receiver)
        return True
