"""An abstract run of a onesided program: launches, signals, and which accesses they order.

What orders what, as the runtime has it:

* A thread block is many threads. Only a thread barrier (`nop`, `barrier`, the ends of a launch)
  orders what they do: the instructions between two barriers are not ordered among themselves, so
  data instructions that depend on each other, a wait and what reads the data it announces, and data
  and the signal that announces it all need a `nop` in between.
* A put through a port channel is done by somebody else, later. Later puts and signals of the same
  channel come after it; its thread block knows of its end only by `flush`, or by being told by the
  receiver.
* A relaxed signal or wait orders no data; it only says that the sender's launch has begun, hence
  that everything before that launch at the sender's rank is over.
* There is no barrier between launches: a rank may be a launch ahead of its peers. Between its
  launches its caller does what it likes with input and output, which counts as writing both.

The n-th wait takes the n-th signal (wiring.py made sure of one producer and one consumer each, and
of equal counts). So a launch leaves all counters as it found them, every launch is ordered within
as the first is, and what can collide with it does so in the next one: two launches show it all.
Pipelines run `rounds` rounds on as many slices; two show every collision of neighbouring rounds.
"""

from __future__ import annotations

from collections import deque

from forestcoll.program import DATA, PACKETS, PUTS, SIGNALS, WAITS, Instruction, Op
from forestcoll.verify.trace import SYNC, WHOLE, Blocked, Code, Line, Trace, raise_deadlock
from forestcoll.verify.wiring import End, end_of, other_end

_DATA = DATA - PACKETS.keys() - PUTS
_RELAXED = frozenset({Op.RELAXED_SIGNAL, Op.RELAXED_WAIT})
Token = tuple[int, int]  # the events that a signal comes after: all data before it, and its launch


class Block:
    """Where a thread block stands."""

    __slots__ = ("begin", "blocked", "ends", "launch", "line", "nops", "open", "sync", "tails")

    def __init__(self, ends: list[End]) -> None:
        self.ends = ends
        self.line = 0
        self.launch = 0
        self.begin = -1  # the event that began the launch
        self.sync = -1  # the last thread barrier
        self.open: list[int] = []  # events of own threads since then
        self.nops = 0  # thread barriers so far
        # of each port channel: last event, thread barriers before it, the thread that pushed it
        self.tails: dict[int, tuple[int, int, int]] = {}
        self.blocked: Blocked | None = None


class Run:
    """An abstract run under way; packets.py adds packets to it."""

    def __init__(self, code: Code, launches: int) -> None:
        self.code, self.launches, self.trace = code, launches, Trace(code)
        self.blocks: list[Block] = []
        self.signals: dict[End, deque[Token]] = {}  # that have arrived at an end
        self.waiting: dict[End, int] = {}
        self.signaller: dict[End, int] = {}
        self.semaphores: dict[tuple[int, int], deque[int]] = {}
        self.credit: dict[tuple[int, int], int] = {}  # what is left of the initial values
        self.sleeping: dict[tuple[int, int], int] = {}
        self.releaser: dict[tuple[int, int], int] = {}
        self.barriers: dict[tuple[int, int], list[int]] = {}  # who has come
        self.members: dict[tuple[int, int], list[int]] = {}
        self.running: list[int] = [0] * code.program.n
        self.caller: list[int] = [-1] * code.program.n
        self.proxies = -1 - code.program.n  # chains of asynchronous puts, downwards
        self.ready: deque[int] = deque()
        self._index()

    def _index(self) -> None:
        program = self.code.program
        for b, r in enumerate(self.code.rank):
            block = program.ranks[r].thread_blocks[self.code.number[b]]
            ends = [end_of(r, c) for c in block.channels]
            self.blocks.append(Block(ends))
            for line in self.code.lines[b]:
                i = line.instruction
                if i.op in SIGNALS:
                    self.signaller.update((other_end(ends[c]), b) for c in i.channels)
                if i.op is Op.RELEASE:
                    self.releaser.update(((r, s), b) for s in i.semaphores)
                if i.op is Op.BARRIER and b not in self.members.setdefault((r, i.ident), []):
                    self.members[r, i.ident].append(b)

    def run(self) -> Trace:
        for r in range(self.code.program.n):
            self._begin(r, 0, ())
            for s, value in enumerate(self.code.program.ranks[r].semaphores):
                self.semaphores[r, s] = deque()
                self.credit[r, s] = value
        while self.ready:
            b = self.ready.popleft()
            self.blocks[b].blocked = None
            self._advance(b)
        if stuck := self._culprits():
            raise_deadlock(self.code, stuck, queue=None)
        return self.trace

    def _begin(self, r: int, launch: int, ends: tuple[int, ...]) -> None:
        """Rank r's caller has its buffers back; then launch `launch` begins, if there is one."""
        while True:
            at = self.trace.add(~r, launch, WHOLE, -1 - r, self.caller[r], ends)
            self.caller[r] = at
            if launch == self.launches:
                return
            for b in range(self.code.first[r], self.code.first[r + 1]):
                if self.code.lines[b]:
                    state = self.blocks[b]
                    state.line, state.launch = 0, launch
                    state.begin = state.sync = at
                    state.open = []
                    state.nops += 1
                    self.running[r] += 1
                    self.ready.append(b)
            if self.running[r]:
                return
            launch, ends = launch + 1, ()

    def _end(self, b: int) -> None:
        r, state = self.code.rank[b], self.blocks[b]
        self.running[r] -= 1
        if self.running[r]:
            return
        ends: list[int] = []
        for other in range(self.code.first[r], self.code.first[r + 1]):
            if self.code.lines[other]:
                ends += (self.blocks[other].sync, *self.blocks[other].open)
        self._begin(r, state.launch + 1, tuple(ends))

    def _advance(self, b: int) -> None:
        state, lines = self.blocks[b], self.code.lines[b]
        while state.line < len(lines):
            if not self._execute(b, state, lines[state.line]):
                return
            state.line += 1
        self._end(b)

    def _execute(self, b: int, state: Block, line: Line) -> bool:
        """Do one instruction; False when it has to wait."""
        i = line.instruction
        op = i.op
        if op is Op.NOP:
            self._nop(b, state)
        elif op in WAITS:
            return self._wait(b, state, i)
        elif op in SIGNALS and op not in PUTS:
            for position, c in enumerate(i.channels):
                self._signal(b, state, c, position, relaxed=op in _RELAXED)
        elif op in _DATA:
            state.open.append(self._event(b, state, WHOLE, b, ()))
        elif op in PUTS:
            self._put(b, state, i)
        elif op is Op.FLUSH:
            self._flush(b, state, i.channels or tuple(sorted(state.tails)))
        elif op is Op.BARRIER:
            return self._barrier(b, state, i.ident)
        elif op is Op.ACQUIRE:
            return self._acquire(b, state, i)
        else:
            assert op is Op.RELEASE, op
            r = self.code.rank[b]
            for s in i.semaphores:
                self.semaphores[r, s].append(state.sync)
                self._wake(self.sleeping.pop((r, s), -1))
        return True

    def _event(self, b: int, state: Block, item: int, chain: int, cross: tuple[int, ...]) -> int:
        at = state.line + state.launch * len(self.code.lines[b])
        return self.trace.add(b, at, item, chain, state.sync, cross)

    def _wake(self, b: int) -> None:
        if b >= 0 and self.blocks[b].blocked is not None:
            self.blocks[b].blocked = None
            self.ready.append(b)

    def _nop(self, b: int, state: Block) -> None:
        """A thread barrier of the thread block: one event after everything before it."""
        state.nops += 1
        if state.open:
            state.sync = self._event(b, state, SYNC, b, tuple(state.open))
            state.open = []

    def _synchronise(self, blocks: list[int]) -> None:
        """A thread barrier of all these thread blocks."""
        for b in blocks:
            self.blocks[b].nops += 1
        cross: list[int] = []
        for b in blocks:
            cross += self.blocks[b].open
            if b != blocks[-1]:
                cross.append(self.blocks[b].sync)
        last = blocks[-1]
        at = self._event(last, self.blocks[last], SYNC, last, tuple(cross))
        for b in blocks:
            self.blocks[b].sync = at
            self.blocks[b].open = []

    def _tail(self, state: Block, channel: int, position: int) -> tuple[int, ...]:
        """What thread `position` may rely on to have been pushed through a port before it."""
        if channel not in state.tails:
            return ()
        event, nops, pusher = state.tails[channel]
        return (event,) if pusher == position or nops != state.nops else ()

    def _put(self, b: int, state: Block, i: Instruction) -> None:
        kinds = [state.ends[c][2] for c in i.channels]
        if "port" not in kinds:
            state.open.append(self._event(b, state, WHOLE, b, ()))
            return
        for position, c in enumerate(i.channels):
            if kinds[position] != "port":
                state.open.append(self._event(b, state, position, b, ()))
                continue
            self.proxies -= 1
            tail = self._tail(state, c, position)
            event = self._event(b, state, position, self.proxies, tail)
            state.tails[c] = (event, state.nops, position)
            if i.op in SIGNALS:
                self._deliver(state, c, (event, state.begin))
            if i.op is Op.PUT_SIGNAL_FLUSH:
                state.open.append(self._event(b, state, SYNC, b, (event,)))

    def _signal(self, b: int, state: Block, c: int, position: int, *, relaxed: bool) -> None:
        if relaxed:
            self._deliver(state, c, (state.begin, state.begin))
        elif state.ends[c][2] == "memory":
            self._deliver(state, c, (state.sync, state.begin))
        else:
            self.proxies -= 1
            tail = self._tail(state, c, position)
            event = self._event(b, state, SYNC, self.proxies, tail)
            state.tails[c] = (event, state.nops, position)
            self._deliver(state, c, (event, state.begin))

    def _deliver(self, state: Block, c: int, token: Token) -> None:
        end = other_end(state.ends[c])
        self.signals.setdefault(end, deque()).append(token)
        self._wake(self.waiting.pop(end, -1))

    def _flush(self, b: int, state: Block, channels: tuple[int, ...]) -> None:
        cross: tuple[int, ...] = ()
        for position, c in enumerate(channels):
            cross += self._tail(state, c, position)
        state.open.append(self._event(b, state, SYNC, b, cross))

    def _wait(self, b: int, state: Block, i: Instruction) -> bool:
        ends = [state.ends[c] for c in i.channels]
        for end in ends:
            if not self.signals.get(end):
                self.waiting[end] = b
                needs = f"waits for a signal of rank {end[1]}"
                state.blocked = Blocked(state.line, needs, self.signaller.get(end))
                return False
        which = 1 if i.op in _RELAXED else 0
        cross = tuple([self.signals[end].popleft()[which] for end in ends])
        state.open.append(self._event(b, state, SYNC, b, cross))
        return True

    def _acquire(self, b: int, state: Block, i: Instruction) -> bool:
        r = self.code.rank[b]
        for s in i.semaphores:
            if not self.credit[r, s] and not self.semaphores[r, s]:
                self.sleeping[r, s] = b
                needs = f"waits for semaphore {s}"
                state.blocked = Blocked(state.line, needs, self.releaser.get((r, s)))
                return False
        cross: list[int] = []
        for s in i.semaphores:
            if self.credit[r, s]:
                self.credit[r, s] -= 1
            else:
                cross.append(self.semaphores[r, s].popleft())
        state.open.append(self._event(b, state, SYNC, b, tuple(cross)))
        return True

    def _barrier(self, b: int, state: Block, ident: int) -> bool:
        r = self.code.rank[b]
        came = self.barriers.setdefault((r, ident), [])
        members = self.members[r, ident]
        came.append(b)
        if len(came) < len(members):
            missing = next(m for m in members if m not in came)
            state.blocked = Blocked(state.line, f"waits at barrier {ident}", missing)
            return False
        self._synchronise(came)
        for other in came[:-1]:
            self.blocks[other].line += 1
            self._wake(other)
        self.barriers[r, ident] = []
        return True

    def _culprits(self) -> dict[int, Blocked]:
        """Who is stuck on whom; in a finished thread block's place, who holds up its rank."""
        stuck = {b: s.blocked for b, s in enumerate(self.blocks) if s.blocked is not None}
        for b, why in stuck.items():
            if why.block is None or why.block in stuck:
                continue
            rank = self.code.rank[why.block]
            mates = range(self.code.first[rank], self.code.first[rank + 1])
            holding = next((m for m in mates if m in stuck), None)
            needs = f"{why.needs}, whose launch is not over"
            stuck[b] = Blocked(why.line, needs, holding)
        return stuck


def run_onesided(code: Code, launches: int) -> Trace:
    """All launches of a onesided program that passed the checks of structure.py and wiring.py.

    Raises PlanError with the circle of thread blocks where they wait for each other for ever.
    """
    return Run(code, launches).run()
