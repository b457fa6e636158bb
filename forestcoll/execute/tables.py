"""A program as the flat integer tables that the interpreter reads (interpreter.hpp).

Blocks, connections, semaphores and barriers get one number each over all ranks. A channel of the
onesided style is a pair of semaphores: each end raises the other's and takes from its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from forestcoll.common.errors import PlanError
from forestcoll.execute import _engine
from forestcoll.program import (
    RECEIVES,
    SENDS,
    SIGNALS,
    WAITS,
    Buffer,
    Instruction,
    Op,
    Program,
    Ref,
    ThreadBlock,
)
from forestcoll.program.program import where

BUFFERS = {Buffer.INPUT: 0, Buffer.OUTPUT: 1, Buffer.SCRATCH: 2}
"""The buffers by their numbers in tables; behind them the allocations that they lie in."""
CODES = {name: code for code, name in enumerate(_engine.op_names())}
"""The operations' numbers; that of a pipeline's head has no row in program/ops.py."""
LOOP = "loop"

End = tuple[int, int, str, int]
"""Rank, peer, kind and index of one end of a channel; the other one has the ranks exchanged."""


@dataclass(slots=True)
class Tables:
    """The tables (tables.hpp has their columns), and the way back from numbers to the plan."""

    instructions: list[tuple[int, ...]]
    operands: list[tuple[int, int, int, int]]
    dependencies: list[tuple[int, int, int]]
    names: list[int]
    loops: list[tuple[int, int, int, int]]
    blocks: list[tuple[int, ...]]
    connections: list[tuple[int, int]]  # (writer, reader)
    semaphores: list[int]  # initial values
    takers: list[tuple[int, str]]  # of each: (rank, name)
    barriers: list[int]  # of each: its rank
    scratch: list[int]  # per rank: chunks that it needs


def build(program: Program) -> Tables:
    """The tables of a program that has passed `check`; PlanError: a channel without other end."""
    return _Builder(program).build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.tables = Tables([], [], [], [], [], [], [], [], [], [], [0] * program.n)
        self.first_block: list[int] = []
        self.channels: dict[End, int] = {}
        self.first_semaphore: list[int] = []
        self.connections: dict[tuple[int, int, int], int] = {}
        self.barriers: dict[tuple[int, int], int] = {}

    def build(self) -> Tables:
        t, ranks = self.tables, self.program.ranks
        total = 0
        for rank in ranks:
            self.first_block.append(total)
            total += len(rank.thread_blocks)
        self.number_semaphores()
        for r, b, block in self.program.blocks():
            self.add_block(r, b, block)
        if self.program.double_scratch:  # where the second half begins, all of it decides
            t.scratch = [rank.scratch_chunks for rank in ranks]
        return t

    def number_semaphores(self) -> None:
        t = self.tables
        for r, _, block in self.program.blocks():
            for c in block.channels:
                end = r, c.peer, c.kind, c.index
                if end not in self.channels:
                    self.channels[end] = len(self.channels)
                    name = f"a signal from rank {c.peer} on {c.kind} channel {c.index}"
                    t.takers.append((r, name))
        t.semaphores = [0] * len(self.channels)
        for r, rank in enumerate(self.program.ranks):
            self.first_semaphore.append(len(t.semaphores))
            t.semaphores += rank.semaphores
            t.takers += [(r, f"semaphore {k}") for k in range(len(rank.semaphores))]

    def connection(self, block: ThreadBlock, ours: int, side: int, *key: int) -> int:
        """The number of the connection that a block writes to (side 0) or reads from, or -1.

        Ends that no instruction uses may lack a partner, or share one.
        """
        used = RECEIVES if side else SENDS
        if not any(i.op in used for _, i in block.instructions()):
            return -1
        ends = self.tables.connections
        number = self.connections.setdefault((key[0], key[1], key[2]), len(ends))
        if number == len(ends):
            ends.append((-1, -1))
        writer, reader = ends[number]
        ends[number] = (writer, ours) if side else (ours, reader)
        return number

    def add_block(self, r: int, b: int, block: ThreadBlock) -> None:
        t, number = self.tables, self.first_block[r] + b
        begin = len(t.instructions)
        for s, step in enumerate(block.steps):
            if isinstance(step, Instruction):
                self.add(r, b, s, step, -1)
                continue
            loop, first = len(t.loops), len(t.instructions) + 1
            t.instructions.append((CODES[LOOP], s, *[0] * 10, 1, loop, 0, 0))
            t.loops.append((first, first + len(step.body) - 1, step.chunks, step.unit_bytes))
            for i in step.body:
                self.add(r, b, s, i, loop)
        incoming = self.connection(block, number, 1, block.recv, r, block.channel)
        outgoing = self.connection(block, number, 0, r, block.send, block.channel)
        fifo = int(self.program.style == "fifo")
        row = (r, b, begin, len(t.instructions), len(block.steps), incoming, outgoing, fifo)
        t.blocks.append(row)

    def add(self, r: int, b: int, step: int, i: Instruction, loop: int) -> None:
        t, block = self.tables, self.program.ranks[r].thread_blocks[b]
        operands, after, names = len(t.operands), len(t.dependencies), len(t.names)
        src, dst = block.operands(r, i)
        # a port reads from where the allocation begins
        begin = len(BUFFERS) if block.reads_by_port(i) else 0
        t.operands += [self.operand(r, ref, begin) for ref in src]
        t.operands += [self.operand(r, ref, 0) for ref in dst]
        for other, on in i.after:
            steps = len(self.program.ranks[r].thread_blocks[other].steps)
            t.dependencies.append((self.first_block[r] + other, on, steps))
        if i.op in SIGNALS or i.op in WAITS:
            for c in i.channels:
                channel = block.channels[c]
                end: End = (r, channel.peer, channel.kind, channel.index)
                other_end: End = (channel.peer, r, channel.kind, channel.index)
                if other_end not in self.channels:
                    raise PlanError(
                        f"{where(r, b, step, i.op)}: {channel.kind} channel {channel.index} to "
                        f"rank {channel.peer} has no counterpart there"
                    )
                t.names.append(self.channels[other_end if i.op in SIGNALS else end])
        t.names += [self.first_semaphore[r] + k for k in i.semaphores]
        barrier = group = 0
        if i.op is Op.BARRIER:
            group = i.group
            barrier = self.barriers.setdefault((r, i.ident), len(t.barriers))
            if barrier == len(t.barriers):
                t.barriers.append(r)
        counts = (operands, len(src), len(dst), after, len(i.after), names, len(t.names) - names)
        t.instructions.append((CODES[i.op], step, *counts, barrier, group, *i.part, loop, 0, 0))

    def operand(self, r: int, ref: Ref, begin: int) -> tuple[int, int, int, int]:
        owner = r if ref.rank is None else ref.rank
        if ref.buffer is Buffer.SCRATCH:
            scratch = self.tables.scratch
            scratch[owner] = max(scratch[owner], ref.offset + ref.count)
        return owner, BUFFERS[ref.buffer] + begin, ref.offset, ref.count
