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

from forestcoll.common.errors import PlanError
from forestcoll.program import RECEIVES, SENDS, Instruction, Program
from forestcoll.program.chunks import count_chunks
from forestcoll.program.targets import Target
from forestcoll.verify.fifo import slots_of
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


_Step = tuple[int, bool, bool, tuple[tuple[int, int], ...]]
"""Pieces of its message, whether it receives and sends that, and the steps that it comes after."""


@dataclass(slots=True)
class _Block:
    """A thread block: what each step of its list needs, and how many it has done in all."""

    steps: list[_Step]
    into: _Queue
    out: _Queue
    done: int = 0
    piece: int = 0
    asleep: list[int] = field(default_factory=list)  # who waits for one of its steps


def run_repeatedly(
    program: Program, *, launches: int = 3, slices: int = 2, target: Target | None = None
) -> int:
    """How many steps were done in `launches` of `slices` each; the queues are empty after each.

    For fifo programs that `verify` has proven right. Raises PlanError with the circle of thread
    blocks where they wait for each other for ever, and for messages left over. `target`: whose
    messages are counted, see `fifo.slots_of`.
    """
    return _Run(program, launches, slices, target).run()


class _Run:
    def __init__(self, program: Program, launches: int, slices: int, target: Target | None) -> None:
        self.code: Code = flatten(program, 1)
        self.launches, self.slices = launches, slices
        piece, self.queue = slots_of(program, count_chunks(program).total, target)
        self.queues: dict[tuple[int, int, int], _Queue] = {}
        self.blocks = [self._block(b, piece) for b in range(len(self.code.lines))]
        self.left = [0] * program.n  # thread blocks of a rank that are still in its launch
        self.launch = [-1] * program.n
        self.ready: deque[int] = deque()

    def _block(self, b: int, piece: int) -> _Block:
        rank = self.code.rank[b]
        first = self.code.first[rank]
        found: list[Instruction] = [line.instruction for line in self.code.lines[b]]
        steps = [
            (
                -(-(*i.src, *i.dst)[0].count // piece),
                i.op in RECEIVES,
                i.op in SENDS,
                # its own earlier steps are done anyway
                tuple((first + other, s) for other, s in i.after if first + other != b),
            )
            for i in found
        ]
        block = self.code.program.ranks[rank].thread_blocks[self.code.number[b]]
        into, out = _Queue(0), _Queue(0)  # of those that have no peer, never used
        if block.send != -1:
            out = self._at((rank, block.send, block.channel))
            out.sender = b
        if block.recv != -1:
            into = self._at((block.recv, rank, block.channel))
            into.receiver = b
        return _Block(steps, into, out)

    def _at(self, key: tuple[int, int, int]) -> _Queue:
        return self.queues.setdefault(key, _Queue(self.queue))

    def run(self) -> int:
        for r in range(len(self.launch)):
            self._begin(r)
        while self.ready:
            b = self.ready.popleft()
            self._advance(b, self.blocks[b])
        stuck = {b: why for b in range(len(self.blocks)) if (why := self._blocked(b)) is not None}
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
        steps, r = state.steps, self.code.rank[b]
        length = len(steps)
        end = (self.launch[r] + 1) * self.slices * length
        turn, s = divmod(state.done, length)
        while state.done < end:
            pieces, receives, sends, after = steps[s]
            if after and not state.piece:
                waits = self._unfinished(turn, after)
                if waits is not None:
                    self.blocks[waits[0]].asleep.append(b)
                    return
            if receives or sends:
                if not self._message(state, s, pieces, receives, sends):
                    return
                state.piece = 0
            state.done += 1
            s += 1
            if s == length:
                turn, s = turn + 1, 0
            if state.asleep:
                sleepers, state.asleep = state.asleep, []
                self.ready.extend(sleepers)
        self.left[r] -= 1
        if not self.left[r]:
            self._begin(r)

    def _unfinished(self, turn: int, after: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
        """The first of the steps `after` that is not done in this slice."""
        for other, step in after:
            peer = self.blocks[other]
            if peer.done <= turn * len(peer.steps) + step:
                return other, step
        return None

    def _message(self, state: _Block, s: int, pieces: int, receives: bool, sends: bool) -> bool:
        """The pieces of a message, as far as they come and there is room."""
        into, out = state.into, state.out
        while (rest := pieces - state.piece) > 0:
            if receives:
                if not into.held:
                    into.reader_waits = True
                    return False
                rest = min(rest, into.held)
            if sends:
                if not out.free:
                    out.writer_waits = True
                    return False
                rest = min(rest, out.free)
            state.piece += rest
            if receives:
                into.held -= rest
                into.free += rest
                if into.writer_waits:
                    into.writer_waits = False
                    self.ready.append(into.sender)
            if sends:
                out.free -= rest
                out.held += rest
                if out.reader_waits:
                    out.reader_waits = False
                    self.ready.append(out.receiver)
        return True

    def _blocked(self, b: int) -> Blocked | None:
        """What a thread block that can go on no further waits for; None of one that is through."""
        state, launch = self.blocks[b], self.launch[self.code.rank[b]]
        length = len(state.steps)
        if launch == self.launches or state.done == (launch + 1) * self.slices * length:
            return None
        turn, s = divmod(state.done, length)
        _, receives, _, after = state.steps[s]
        waits = None if state.piece else self._unfinished(turn, after)
        if waits is not None:
            return Blocked(s, f"waits for {self.code.where(*waits)}", waits[0])
        if receives and not state.into.held:
            return Blocked(s, "waits for a message", state.into.sender)
        return Blocked(s, "waits for room", state.out.receiver, full=True)
