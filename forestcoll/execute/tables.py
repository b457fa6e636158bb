"""A program as the flat integer tables that the interpreter reads (interpreter.hpp).

Blocks, connections, semaphores and barriers get one number each over all ranks. A channel of the
onesided style is a pair of semaphores: each end raises the other's and takes from its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forestcoll.common.errors import PlanError
from forestcoll.execute import _engine
from forestcoll.execute.check import (
    channel_key,
    channel_keys,
)
from forestcoll.program import (
    PACKETS,
    RECEIVES,
    SENDS,
    SIGNALS,
    WAITS,
    Buffer,
    Instruction,
    Op,
    Pipeline,
    Program,
    ThreadBlock,
)

_BUFFERS = {Buffer.INPUT: 0, Buffer.OUTPUT: 1, Buffer.SCRATCH: 2}


@dataclass(slots=True)
class Tables:
    """What `_engine.Engine` takes, and the way back from its numbers to the plan's."""

    instructions: list[tuple[int, ...]] = field(default_factory=list)
    operands: list[tuple[int, int, int, int]] = field(default_factory=list)
    dependencies: list[tuple[int, int, int]] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    loops: list[tuple[int, int, int, int]] = field(default_factory=list)
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    connections: list[tuple[int, int]] = field(default_factory=list)  # (writer, reader)
    semaphores: list[int] = field(default_factory=list)  # initial values
    barriers: int = 0
    scratch: list[int] = field(default_factory=list)  # per rank: chunks that it needs

    ops: list[tuple[int, Op | None]] = field(default_factory=list)  # per instruction: (step, op)
    semaphore_names: list[str] = field(default_factory=list)
    raisers: list[list[int]] = field(default_factory=list)  # per semaphore: blocks that raise it
    members: list[list[int]] = field(default_factory=list)  # per barrier: blocks
    # packets that are written, and read: (block or instruction, rank, first chunk, end)
    packed: list[tuple[int, int, int, int]] = field(default_factory=list)
    unpacked: list[tuple[int, int, int, int]] = field(default_factory=list)

    def writers(self, instruction: int) -> list[int]:
        """Blocks that write packets which this instruction reads, ascending."""
        wanted = [read[1:] for read in self.unpacked if read[0] == instruction]
        return sorted(
            {
                block
                for block, rank, low, high in self.packed
                if any(rank == r and low < b and a < high for r, a, b in wanted)
            }
        )

    def engine(self) -> _engine.Engine:
        """The engine, ready to launch."""
        return _engine.Engine(
            instructions=np.array(self.instructions, np.int32).reshape(-1, 16),
            operands=np.array(self.operands, np.int64).reshape(-1, 4),
            dependencies=np.array(self.dependencies, np.int32).reshape(-1, 3),
            names=self.names,
            loops=np.array(self.loops, np.int64).reshape(-1, 4),
            blocks=np.array(self.blocks, np.int32).reshape(-1, 8),
            connections=np.array(self.connections, np.int32).reshape(-1, 2),
            semaphores=self.semaphores,
            barriers=self.barriers,
        )


def build(program: Program) -> Tables:
    """The tables of a program that has passed `check`; PlanError: a channel without other end."""
    return _Builder(program).build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.tables = Tables()
        self.codes = {name: k for k, name in enumerate(_engine.op_names())}
        self.first_block: list[int] = []
        self.channels: dict[tuple[int, int, str, int], int] = {}
        self.first_semaphore: list[int] = []
        self.barriers: dict[tuple[int, int], int] = {}

    def build(self) -> Tables:
        total = 0
        for rank in self.program.ranks:
            self.first_block.append(total)
            total += len(rank.thread_blocks)
        self.tables.scratch = [0] * self.program.n
        self.number_semaphores()
        ends = self.number_connections()
        for r, rank in enumerate(self.program.ranks):
            for b, block in enumerate(rank.thread_blocks):
                self.add_block(r, b, block, ends[r, b])
        if self.program.double_scratch:  # where the second half begins, all of it decides
            self.tables.scratch = [rank.scratch_chunks for rank in self.program.ranks]
        return self.tables

    def add_semaphore(self, name: str, value: int) -> int:
        self.tables.semaphore_names.append(name)
        self.tables.raisers.append([])
        self.tables.semaphores.append(value)
        return len(self.tables.semaphores) - 1

    def number_semaphores(self) -> None:
        for rank, peer, kind, index in channel_keys(self.program):
            name = f"a signal from rank {peer} on {kind} channel {index}"
            self.channels[rank, peer, kind, index] = self.add_semaphore(name, 0)
        for rank_program in self.program.ranks:
            self.first_semaphore.append(len(self.tables.semaphores))
            for k, value in enumerate(rank_program.semaphores):
                self.add_semaphore(f"semaphore {k}", value)

    def number_connections(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(incoming, outgoing) connection of each (rank, thread block)."""
        numbers: dict[tuple[int, int, int], int] = {}
        pairs: list[list[int]] = []
        ends: dict[tuple[int, int], tuple[int, int]] = {}
        for r, rank in enumerate(self.program.ranks):
            for b, block in enumerate(rank.thread_blocks):
                used = []
                # Ends that no instruction uses may lack a partner, or share one.
                for side, key, uses in (
                    (1, (block.recv, r, block.channel), _receives(block)),
                    (0, (r, block.send, block.channel), _sends(block)),
                ):
                    if not uses:
                        used.append(-1)
                        continue
                    k = numbers.setdefault(key, len(numbers))
                    if k == len(pairs):
                        pairs.append([-1, -1])
                    pairs[k][side] = self.first_block[r] + b
                    used.append(k)
                ends[r, b] = (used[0], used[1])
        self.tables.connections = [(w, d) for w, d in pairs]
        return ends

    def add_block(self, r: int, b: int, block: ThreadBlock, ends: tuple[int, int]) -> None:
        t = self.tables
        begin = len(t.instructions)
        for s, step in enumerate(block.steps):
            if isinstance(step, Instruction):
                self.add(r, b, s, step, -1)
                continue
            loop = len(t.loops)
            self.add_loop_head(s, loop)
            first = len(t.instructions)
            t.loops.append((first, first + len(step.body) - 1, step.chunks, step.unit_bytes))
            for i in step.body:
                self.add(r, b, s, i, loop)
        fifo = int(self.program.style == "fifo")
        t.blocks.append((r, b, begin, len(t.instructions), len(block.steps), *ends, fifo))

    def add_loop_head(self, step: int, loop: int) -> None:
        row = (self.codes["loop"], step, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, loop, 0, 0)
        self.tables.instructions.append(row)
        self.tables.ops.append((step, None))

    def add(self, r: int, b: int, step: int, i: Instruction, loop: int) -> None:
        t = self.tables
        operands, after, names = len(t.operands), len(t.dependencies), len(t.names)
        src, dst = self.program.ranks[r].thread_blocks[b].operands(r, i)
        by_port = self.program.ranks[r].thread_blocks[b].reads_by_port(i)
        for k, ref in enumerate((*src, *dst)):
            owner = r if ref.rank is None else ref.rank
            # a port reads from where the allocation begins
            buffer = _BUFFERS[ref.buffer] + (len(_BUFFERS) if by_port and k < len(src) else 0)
            t.operands.append((owner, buffer, ref.offset, ref.count))
            if ref.buffer == Buffer.SCRATCH:
                t.scratch[owner] = max(t.scratch[owner], ref.offset + ref.count)
        if i.op in PACKETS:
            for found, at, refs in (
                (t.unpacked, len(t.instructions), i.src[PACKETS[i.op].packet_src :]),
                (t.packed, self.first_block[r] + b, i.dst[PACKETS[i.op].packet_dst :]),
            ):
                for ref in refs:
                    owner = r if ref.rank is None else ref.rank
                    found.append((at, owner, ref.offset, ref.offset + ref.count))
        for block, on in i.after:
            steps = len(self.program.ranks[r].thread_blocks[block].steps)
            t.dependencies.append((self.first_block[r] + block, on, steps))
        if i.channels or i.semaphores:
            t.names.extend(self.semaphores(r, b, step, i))
        barrier = self.barrier(r, b, i) if i.op is Op.BARRIER else 0
        t.instructions.append(
            (
                self.codes[i.op],
                step,
                operands,
                len(src),
                len(dst),
                after,
                len(i.after),
                names,
                len(t.names) - names,
                barrier,
                i.group if i.op is Op.BARRIER else 0,
                *i.part,
                loop,
                0,
                0,
            )
        )
        t.ops.append((step, i.op))

    def semaphores(self, r: int, b: int, step: int, i: Instruction) -> list[int]:
        block = self.first_block[r] + b
        found = []
        if i.op in SIGNALS or i.op in WAITS:
            for c in i.channels:
                rank, peer, kind, index = channel_key(
                    r, self.program.ranks[r].thread_blocks[b].channels[c]
                )
                other = self.channels.get((peer, rank, kind, index))
                if other is None:
                    raise PlanError(
                        f"rank {r}, thread block {b}, step {step} ({i.op}): {kind} channel {index} "
                        f"to rank {peer} has no counterpart there"
                    )
                found.append(other if i.op in SIGNALS else self.channels[rank, peer, kind, index])
        elif i.op in (Op.ACQUIRE, Op.RELEASE):
            found = [self.first_semaphore[r] + k for k in i.semaphores]
        if i.op in SIGNALS or i.op is Op.RELEASE:
            for k in found:
                if block not in self.tables.raisers[k]:
                    self.tables.raisers[k].append(block)
        return found

    def barrier(self, r: int, b: int, i: Instruction) -> int:
        t = self.tables
        k = self.barriers.setdefault((r, i.ident), len(self.barriers))
        if k == len(t.members):
            t.members.append([])
            t.barriers += 1
        block = self.first_block[r] + b
        if block not in t.members[k]:
            t.members[k].append(block)
        return k


def _sends(block: ThreadBlock) -> bool:
    return any(not isinstance(i, Pipeline) and i.op in SENDS for i in block.steps)


def _receives(block: ThreadBlock) -> bool:
    return any(not isinstance(i, Pipeline) and i.op in RECEIVES for i in block.steps)
