"""One abstract run of a program: its events in a possible order, and what orders them.

Events are numbered in the order of the run, so that every arrow of the happens-before relation goes
from a smaller to a larger number. Memory plays no part here: the same trace serves in place and out
of place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from forestcoll.common.errors import PlanError
from forestcoll.program import Instruction, Pipeline, Program

SYNC = -2
"""`Trace.item` of an event that touches no memory."""
WHOLE = -1
"""`Trace.item` of an event that does its instruction's whole data work."""


class Line(NamedTuple):
    """An instruction in a flattened thread block: its step, and the round of its pipeline or -1."""

    step: int
    instruction: Instruction
    round: int = -1


@dataclass(frozen=True, slots=True)
class Code:
    """All thread blocks with their loops unrolled: `lines[b]` is what block b runs in a launch."""

    program: Program
    rank: tuple[int, ...]  # of every thread block, counted over all ranks
    number: tuple[int, ...]  # of every thread block within its rank
    first: tuple[int, ...]  # index of each rank's first thread block, and the end
    lines: tuple[tuple[Line, ...], ...]

    def where(self, block: int, line: int) -> str:
        """`rank 0, thread block 1, step 2 (recv)`; lines past the end: the end of the block."""
        at = f"rank {self.rank[block]}, thread block {self.number[block]}"
        if not self.lines[block]:
            return at
        entry = self.lines[block][line % len(self.lines[block])]
        return f"{at}, step {entry.step} ({entry.instruction.op.value})"


def flatten(program: Program, rounds: int) -> Code:
    """The program with every pipeline unrolled to `rounds` rounds."""
    rank: list[int] = []
    number: list[int] = []
    first: list[int] = []
    lines: list[tuple[Line, ...]] = []
    for r, rp in enumerate(program.ranks):
        first.append(len(rank))
        for b, block in enumerate(rp.thread_blocks):
            rank.append(r)
            number.append(b)
            code: list[Line] = []
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline):
                    code += [Line(s, i, t) for t in range(rounds) for i in step.body]
                else:
                    code.append(Line(s, step))
            lines.append(tuple(code))
    first.append(len(rank))
    return Code(program, tuple(rank), tuple(number), tuple(first), tuple(lines))


@dataclass(slots=True)
class Trace:
    """Events 0, 1, ... in the order of the run; one entry of each list an event.

    `chain`: events of one chain (a thread block, a rank's caller, one asynchronous put) are related
    by `prev`: event e comes after `prev[e]` and after all events of its chain before `prev[e]`.
    `cross[e]`: further events that e comes after. `block`: thread block, or ~rank for the caller of
    a rank between launches. `line`: position in the block's code plus code length times launch; for
    a caller the launch that follows. `item`: SYNC, WHOLE, or which part of a message (fifo) or
    destination (asynchronous put) of the instruction this event handles. `piece`: chunks in a part
    of a message; where it is 1, a part is an atom. `weak[e]`: events that happened before e, whose
    reads are over but whose writes e need not see (packets.py says when).
    """

    code: Code
    piece: int = 1
    block: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    item: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    prev: list[int] = field(default_factory=list)
    cross: list[tuple[int, ...]] = field(default_factory=list)
    weak: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.block)

    def add(
        self, block: int, line: int, item: int, chain: int, prev: int, cross: tuple[int, ...]
    ) -> int:
        """Append an event and return its number."""
        self.block.append(block)
        self.line.append(line)
        self.item.append(item)
        self.chain.append(chain)
        self.prev.append(prev)
        self.cross.append(cross)
        return len(self.block) - 1

    def where(self, event: int) -> str:
        """The event in words: rank, thread block and step, or whose caller it is."""
        b = self.block[event]
        if b < 0:
            when = "before its first launch" if self.line[event] == 0 else "between two launches"
            return f"rank {~b}'s caller {when}"
        return self.code.where(b, self.line[event])

    def at(self, event: int) -> tuple[int, ...]:
        """Rank, thread block and step of the event, and which of a pipeline's instructions it is.

        The rank alone of its caller's.
        """
        b = self.block[event]
        if b < 0:
            return (~b,)
        lines = self.code.lines[b]
        line = self.line[event] % len(lines)
        step, start = lines[line].step, line
        while (
            start and lines[start - 1].step == step and lines[start - 1].round == lines[line].round
        ):
            start -= 1
        return self.code.rank[b], self.code.number[b], step, line - start

    def launch(self, event: int) -> int:
        """The launch in which the event happens; of a caller, the launch that follows it."""
        b = self.block[event]
        return self.line[event] if b < 0 else self.line[event] // len(self.code.lines[b])


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a thread block cannot go on: where it stands, what it needs, and from which other."""

    line: int
    needs: str
    block: int | None
    full: bool = False  # it is a full connection that stops it


def raise_deadlock(code: Code, blocked: Mapping[int, Blocked], *, queue: int | None) -> NoReturn:
    """Raise the PlanError of a run in which nothing moves: the circle of who waits for whom."""
    path = [min(blocked)]
    while (following := blocked[path[-1]].block) is not None and following in blocked:
        if following in path:
            path = path[path.index(following) :]
            break
        path.append(following)
    links = [f"{code.where(b, blocked[b].line)} {blocked[b].needs}" for b in path[:_LONGEST_CIRCLE]]
    if len(path) > _LONGEST_CIRCLE:
        links.append(f"... ({len(path)} thread blocks)")
    closing = "; and so round again" if blocked[path[-1]].block == path[0] else ""
    advice = (
        f" (a connection holds {queue} message{'s' * (queue != 1)}: one of them must receive first)"
        if any(blocked[b].full for b in path)
        else ""
    )
    first = path[0]
    step = code.lines[first][blocked[first].line].step
    raise PlanError(
        f"deadlock: {'; '.join(links)}{closing}{advice}",
        rule="RUN-DEADLOCK",
        at=(code.rank[first], code.number[first], step),
    )


_LONGEST_CIRCLE = 12
