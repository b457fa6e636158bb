"""An abstract run of a fifo program: what happens in which order, and whether it gets stuck.

A message is cut into pieces of at most `piece` chunks, as finely as the runtime does at the largest
size that the program serves; a connection holds at most `queue` pieces, and a sender blocks while
it is full. (Smaller sizes mean coarser pieces, which block less and order more.) Queues are counted
in real pieces; events are as coarse as atoms.py allows. One pass over the instruction lists stands
for all:

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
from collections.abc import Sequence

from forestcoll.program import RECEIVES, SENDS, Instruction, Program
from forestcoll.program.targets import Target, message_slots
from forestcoll.verify.atoms import Atoms
from forestcoll.verify.trace import WHOLE, Blocked, Code, Trace, raise_deadlock

_MESSAGE, _SPACE, _STEP = range(3)


def slots_of(program: Program, chunks: int, target: Target | None = None) -> tuple[int, int]:
    """(most chunks in one message piece, pieces that a connection holds) of the real runtime.

    `chunks`: of the collective's whole data. `target`: None for what `targets.runtime_of` finds. A
    program that serves every size is cut finest: a piece a chunk. (Onesided ones have no messages.)
    """
    size, count = message_slots(program, target)
    if not program.max_bytes:
        return 1, count
    return max(1, size // -(-program.max_bytes // chunks)), count


class _Connection:
    __slots__ = ("events", "free", "queued", "receiver", "sender")

    def __init__(self, sender: int, queue: int) -> None:
        self.sender = sender
        self.receiver = -1
        self.free = queue  # pieces that it has room for, and pieces that it holds
        self.queued = 0
        self.events: deque[int] = deque()  # of the sender; the receiver's are still to come


class _Step:
    __slots__ = ("after", "begins", "line", "pieces", "receives", "sends")

    def __init__(self, line: int, i: Instruction, first: int, begins: Sequence[int]) -> None:
        self.line = line
        self.receives = i.op in RECEIVES
        self.sends = i.op in SENDS
        self.begins = begins  # piece with which each event begins
        self.pieces = 1
        self.after = tuple([(first + b, s) for b, s in i.after])


class _Block:
    """Where a thread block stands: at its step, `event` and `piece` are what comes next."""

    __slots__ = ("blocked", "cross", "done", "event", "into", "last", "out", "piece", "steps")

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self.into: _Connection | None = None
        self.out: _Connection | None = None
        self.done: list[int] = []  # last event of each finished step
        self.piece = 0
        self.event = 0
        self.last = -1
        self.cross: tuple[int, ...] = ()  # what the step's first event comes after
        self.blocked: tuple[int, int] | None = None  # what for, on which block


class _Run:
    def __init__(self, code: Code, atoms: Atoms, queue: int, piece: int) -> None:
        self.code, self.queue, self.trace = code, queue, Trace(code, piece)
        self.blocks = [_Block() for _ in code.rank]
        self.waiting: dict[tuple[int, int], list[int]] = {}  # on (block, step)
        self.ready = deque(range(len(self.blocks)))
        for b in range(len(self.blocks)):
            self._steps(b, atoms, piece)
        self._connect()

    def _steps(self, b: int, atoms: Atoms, piece: int) -> None:
        first = self.code.first[self.code.rank[b]]
        for line, (entry, operands) in enumerate(
            zip(self.code.lines[b], atoms.operands[b], strict=True)
        ):
            step = _Step(line, entry.instruction, first, (0,))
            if step.receives or step.sends:
                low, high = (operands.src or operands.dst)[0]
                start = atoms.starts[low]
                step.pieces = -(-(atoms.starts[high] - start) // piece)
                if piece > 1:
                    step.begins = range(step.pieces)
                elif high - low > 1:
                    step.begins = [x - start for x in atoms.starts[low:high]]
            self.blocks[b].steps.append(step)

    def _connect(self) -> None:
        connections: dict[tuple[int, int, int], _Connection] = {}
        ends = [
            (r, self.code.program.ranks[r].thread_blocks[self.code.number[b]])
            for b, r in enumerate(self.code.rank)
        ]
        for b, (r, block) in enumerate(ends):
            if block.send != -1:
                made = connections[r, block.send, block.channel] = _Connection(b, self.queue)
                self.blocks[b].out = made
        for b, (r, block) in enumerate(ends):
            into = connections.get((block.recv, r, block.channel))
            if into is not None:
                into.receiver = b
                self.blocks[b].into = into

    def run(self) -> Trace:
        while self.ready:
            b = self.ready.popleft()
            self.blocks[b].blocked = None
            self._advance(b, self.blocks[b])
        words = {b: self._words(s) for b, s in enumerate(self.blocks) if s.blocked is not None}
        if words:
            raise_deadlock(self.code, words, queue=self.queue)
        return self.trace

    def _advance(self, b: int, state: _Block) -> None:
        """Run thread block `b` until it ends or has to wait; wake those who waited for it."""
        done, steps = state.done, state.steps
        while len(done) < len(steps):
            step = steps[len(done)]
            if step.after and not state.piece and not self._after(b, state, step):
                return
            if not (step.receives or step.sends):
                self._event(b, state, step, WHOLE, ())
            elif state.piece < step.pieces and not self._message(b, state, step):
                return
            state.piece = state.event = 0
            done.append(state.last)
            for other in self.waiting.pop((b, step.line), ()):
                self.ready.append(other)

    def _after(self, b: int, state: _Block, step: _Step) -> bool:
        """Whether all that the step comes after is done."""
        events = []
        for target, s in step.after:
            done = self.blocks[target].done
            if len(done) <= s:
                self.waiting.setdefault((target, s), []).append(b)
                state.blocked = (_STEP, target)
                return False
            if target != b:
                events.append(done[s])
        state.cross = tuple(events)
        return True

    def _message(self, b: int, state: _Block, step: _Step) -> bool:
        """Move pieces until the step's last; False when the block has to wait before that."""
        into = state.into if step.receives else None
        out = state.out if step.sends else None
        while state.piece < step.pieces:
            many = step.pieces - state.piece
            if into is not None:
                many = min(many, into.queued)
                if not many:
                    state.blocked = (_MESSAGE, into.sender)
                    return False
            if out is not None:
                if into is None and self._hand_over(out, out.receiver, _MESSAGE):
                    continue
                many = min(many, out.free)
                if not many:
                    state.blocked = (_SPACE, out.receiver)
                    return False
            self._move(b, state, step, many)
            if into is not None:
                into.queued -= many
                into.free += many
                if out is None and state.piece < step.pieces:
                    self._hand_over(into, into.sender, _SPACE)
                self._wake(into.sender)
            if out is not None:
                out.queued += many
                out.free -= many
                self._wake(out.receiver)
        return True

    def _hand_over(self, connection: _Connection, other: int, waits_for: int) -> bool:
        """Let sender and receiver finish a message together, if both do nothing but that.

        `other` is one of them; it has to wait in the middle of it, `waits_for` tells what for, and
        the queue is empty. Piece by piece they would come to the same.
        """
        blocked = self.blocks[other].blocked
        if blocked is None or blocked[0] != waits_for or connection.queued:
            return False
        ends = connection.sender, connection.receiver
        pairs = [(self.blocks[b], self.blocks[b].steps[len(self.blocks[b].done)]) for b in ends]
        (sender, send), (receiver, take) = pairs
        if send.receives or take.sends:
            return False
        many = send.pieces - sender.piece
        self._move(ends[0], sender, send, many)
        self._move(ends[1], receiver, take, many)
        self._wake(other)
        return True

    def _move(self, b: int, state: _Block, step: _Step, many: int) -> None:
        """Add the events that begin with the next `many` pieces."""
        end = state.piece + many
        while state.event < len(step.begins) and step.begins[state.event] < end:
            cross: tuple[int, ...] = ()
            if step.receives:
                assert state.into is not None  # wiring.py found a partner for each message
                cross = (state.into.events.popleft(),)
            event = self._event(b, state, step, state.event, cross)
            if step.sends:
                assert state.out is not None
                state.out.events.append(event)
            state.event += 1
        state.piece = end

    def _event(self, b: int, state: _Block, step: _Step, item: int, cross: tuple[int, ...]) -> int:
        event = self.trace.add(b, step.line, item, b, state.last, cross + state.cross)
        state.last, state.cross = event, ()
        return event

    def _wake(self, b: int) -> None:
        """Let `b` look again, unless it waits for a dependency and will be woken by that."""
        blocked = self.blocks[b].blocked
        if blocked is not None and blocked[0] != _STEP:
            self.blocks[b].blocked = None
            self.ready.append(b)

    def _words(self, state: _Block) -> Blocked:
        assert state.blocked is not None
        (kind, on), line = state.blocked, len(state.done)
        rank = self.code.rank[on]
        if kind == _MESSAGE:
            return Blocked(line, f"waits for a message of rank {rank}", on)
        if kind == _SPACE:
            return Blocked(line, f"cannot send, its queue to rank {rank} is full", on, full=True)
        done = len(self.blocks[on].done)
        after = next(s for t, s in state.steps[line].after if t == on and done <= s)
        return Blocked(line, f"comes after {self.code.where(on, after)}", on)


def run_fifo(code: Code, atoms: Atoms, queue: int, piece: int) -> Trace:
    """One pass of a fifo program that passed the checks of structure.py and wiring.py.

    Of a receiving event, the first entry of `cross` is the event that sent its message. Raises
    PlanError with the circle of thread blocks where they wait for each other for ever.
    """
    return _Run(code, atoms, queue, piece).run()
