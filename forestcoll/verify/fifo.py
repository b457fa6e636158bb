"""An abstract run of a fifo program: what happens in which order, and whether it gets stuck.

A message is cut into pieces of at most `piece` chunks, as finely as the runtime does at the largest
size that the program serves; a connection holds at most `queue` pieces, and a sender blocks while
it is full. (Smaller sizes mean coarser pieces, which block less and order more.) One pass over the
instruction lists stands for all:

* Slices. The lists are repeated for slice after slice of every chunk. Slices touch disjoint memory,
  a dependency stays within its slice, and a pass leaves every connection empty. So any slice's
  events are ordered exactly as in a pass of its own; and since doing slice after slice is one legal
  order, and in a network of this kind one complete run means that all complete, more slices cannot
  get stuck either.
* Launches. Ranks touch only their own memory, so by the same argument a rank that is a launch ahead
  only finds its messages queued.
"""

from __future__ import annotations

from collections import deque

from forestcoll.program import Instruction, Program
from forestcoll.verify.structure import RECEIVES, SENDS
from forestcoll.verify.trace import WHOLE, Blocked, Code, Trace, raise_deadlock

_MESSAGE, _SPACE, _STEP = range(3)


# What a message slot holds (bytes) and how many there are, with default buffers: buffer size / 8
# steps, half of them a message in Simple (and 2 messages); LL spends half of its lines on flags,
# LL128 one in sixteen. Source: ROCm/rccl 0cbce2a, msccl_setup.cc (mscclSetupCount), init.cc.
_SLOTS = {"Simple": (2 << 20, 2), "LL": (32 << 10, 8), "LL128": (576_000, 8)}


def slots_of(program: Program, chunks: int) -> tuple[int, int]:
    """(most chunks in one message piece, pieces that a connection holds) of the real runtimes.

    `chunks`: of the collective's whole data. A program that serves every size is cut finest: a
    piece a chunk.
    """
    size, count = _SLOTS.get(program.protocol, _SLOTS["Simple"])
    if not program.max_bytes:
        return 1, count
    return max(1, size // -(-program.max_bytes // chunks)), count


class _Connection:
    __slots__ = ("free", "messages", "receiver", "sender")

    def __init__(self, sender: int, queue: int) -> None:
        self.sender = sender
        self.receiver = -1
        self.free = queue
        self.messages: deque[int] = deque()  # the events that sent them


class _Step:
    __slots__ = ("after", "pieces", "receives", "sends")

    def __init__(self, i: Instruction, first: int, piece: int) -> None:
        self.receives = i.op in RECEIVES
        self.sends = i.op in SENDS
        message = self.receives or self.sends
        self.pieces = -(-(*i.src, *i.dst)[0].count // piece) if message else 1
        self.after = tuple((first + b, s) for b, s in i.after)


class _Run:
    def __init__(self, code: Code, queue: int, piece: int) -> None:
        self.code, self.queue, self.trace = code, queue, Trace(code, piece)
        self.connections: dict[tuple[int, int, int], _Connection] = {}
        self.incoming: list[_Connection | None] = []
        self.outgoing: list[_Connection | None] = []
        self.steps: list[list[_Step]] = []
        self.done: list[list[int]] = []  # last event of each finished step
        self.piece: list[int] = []
        self.last: list[int] = []
        self.waiting: dict[tuple[int, int], list[int]] = {}  # on (block, step)
        self.blocked: dict[int, tuple[int, int, int]] = {}  # (what for, line, on which block)
        self._connect()

    def _connect(self) -> None:
        for b, r in enumerate(self.code.rank):
            block = self.code.program.ranks[r].thread_blocks[self.code.number[b]]
            out = None
            if block.send != -1:
                out = self.connections[r, block.send, block.channel] = _Connection(b, self.queue)
            self.outgoing.append(out)
            first = self.code.first[r]
            self.steps.append(
                [_Step(x.instruction, first, self.trace.piece) for x in self.code.lines[b]]
            )
            self.done.append([])
            self.piece.append(0)
            self.last.append(-1)
        for b, r in enumerate(self.code.rank):
            block = self.code.program.ranks[r].thread_blocks[self.code.number[b]]
            into = self.connections.get((block.recv, r, block.channel))
            if into is not None:
                into.receiver = b
            self.incoming.append(into)

    def run(self) -> Trace:
        ready = deque(range(len(self.steps)))
        while ready:
            b = ready.popleft()
            self.blocked.pop(b, None)
            self._advance(b, ready)
        if self.blocked:
            words = {b: self._words(b) for b in self.blocked}
            raise_deadlock(self.code, words, queue=self.queue)
        return self.trace

    def _advance(self, b: int, ready: deque[int]) -> None:
        """Run thread block `b` until it ends or has to wait; wake those who waited for it."""
        done, steps = self.done[b], self.steps[b]
        into, out, add = self.incoming[b], self.outgoing[b], self.trace.add
        while len(done) < len(steps):
            line = len(done)
            step = steps[line]
            cross: tuple[int, ...] = ()
            if step.after and not self.piece[b]:
                found = self._dependencies(b, line, step)
                if found is None:
                    return
                cross = found
            while self.piece[b] < step.pieces:
                if step.receives:
                    assert into is not None  # wiring.py found a partner for each message
                    if not into.messages:
                        self.blocked[b] = (_MESSAGE, line, into.sender)
                        return
                if step.sends:
                    assert out is not None
                    if not out.free:
                        self.blocked[b] = (_SPACE, line, out.receiver)
                        return
                if step.receives:
                    assert into is not None
                    cross = (into.messages.popleft(), *cross)
                    into.free += 1
                    self._wake(into.sender, ready)
                item = self.piece[b] if step.receives or step.sends else WHOLE
                event = add(b, line, item, b, self.last[b], cross)
                self.last[b], cross = event, ()
                if step.sends:
                    assert out is not None
                    out.messages.append(event)
                    out.free -= 1
                    self._wake(out.receiver, ready)
                self.piece[b] += 1
            self.piece[b] = 0
            done.append(self.last[b])
            for other in self.waiting.pop((b, line), ()):
                ready.append(other)

    def _dependencies(self, b: int, line: int, step: _Step) -> tuple[int, ...] | None:
        events = []
        for target, s in step.after:
            if len(self.done[target]) <= s:
                self.waiting.setdefault((target, s), []).append(b)
                self.blocked[b] = (_STEP, line, target)
                return None
            if target != b:
                events.append(self.done[target][s])
        return tuple(events)

    def _wake(self, b: int, ready: deque[int]) -> None:
        """Let `b` look again, unless it waits for a dependency and will be woken by that."""
        if b in self.blocked and self.blocked[b][0] != _STEP:
            del self.blocked[b]
            ready.append(b)

    def _words(self, b: int) -> Blocked:
        kind, line, on = self.blocked[b]
        rank = self.code.rank[on]
        if kind == _MESSAGE:
            return Blocked(line, f"waits for a message of rank {rank}", on)
        if kind == _SPACE:
            return Blocked(line, f"cannot send, its queue to rank {rank} is full", on, full=True)
        after = next(s for t, s in self.steps[b][line].after if t == on and len(self.done[t]) <= s)
        return Blocked(line, f"comes after {self.code.where(on, after)}", on)


def run_fifo(code: Code, queue: int, piece: int) -> Trace:
    """One pass of a fifo program that passed the checks of structure.py and wiring.py.

    Of a receiving event, the first entry of `cross` is the event that sent its message. Raises
    PlanError with the circle of thread blocks where they wait for each other for ever.
    """
    return _Run(code, queue, piece).run()
