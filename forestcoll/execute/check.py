"""What the engine asks of a program beyond its structure: what its tables and loops hold.

Together they keep a stranger's plan from crashing the process: every index, range and count that
the engine follows blindly has been tested. Whether the plan computes the right thing is not.
"""

from __future__ import annotations

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.program import (
    FABRIC,
    PACKETS,
    PUTS,
    RECEIVES,
    SENDS,
    Program,
    Ref,
    ThreadBlock,
)
from forestcoll.program.check import LARGEST
from forestcoll.program.check import check as check_structure
from forestcoll.program.program import where

Messages = list[tuple[int, int]]
"""Of a thread block: step, chunks."""

Ends = dict[tuple[int, int, int], tuple[int, Messages]]
"""Sender, receiver, channel -> the thread block at one end, and its messages."""

MAX_SOURCES = 80  # tables.hpp: max_sources
MAX_PARTS = 2**20


def check(program: Program) -> None:
    """PlanError with rank, thread block and step; UnsupportedError beyond the engine's limits."""
    check_structure(program)
    for r, rank in enumerate(program.ranks):
        sizes = (rank.input_chunks, rank.output_chunks, rank.scratch_chunks)
        if max(sizes) > LARGEST or min(sizes[:2]) < 1:
            raise PlanError(
                f"rank {r}: buffers of {sizes} chunks; input and output need 1 to {LARGEST}, "
                "scratch no more"
            )
    for r, b, s, i in program.instructions():
        block = program.ranks[r].thread_blocks[b]
        sources, targets = block.operands(r, i)
        wide = max(len(sources), len(targets) if i.op in PACKETS or i.op in FABRIC else 0)
        if i.op not in PUTS and wide > MAX_SOURCES:
            raise UnsupportedError(
                f"{where(r, b, s, i.op)}: {wide} sources; this engine adds at most {MAX_SOURCES}"
            )
        if i.part[1] > MAX_PARTS:
            raise UnsupportedError(f"{where(r, b, s, i.op)}: a part of {i.part[1]}")
        for ref in i.dst:
            _check_half(program, where(r, b, s, i.op), r, ref)
    if program.style == "fifo":
        _check_connections(program)


def _check_half(program: Program, at: str, rank: int, ref: Ref) -> None:
    """In the second half's launches, packets to a peer stay within its scratch."""
    if ref.rank is None or program.lead(rank, ref) <= 0:
        return
    own, size = program.ranks[rank].scratch_chunks, program.ranks[ref.rank].scratch_chunks
    if ref.offset + ref.count + own > 2 * size:
        raise PlanError(
            f"{at}: packets beyond rank {ref.rank}'s scratch in every other launch: rank {rank} "
            f"has two halves of {own} chunks and puts them {own} chunks further then, rank "
            f"{ref.rank} has two of {size}; give all ranks the larger scratch_chunks"
        )


def _check_connections(program: Program) -> None:
    """One owner for each end of a connection, a partner for it, messages of equal size."""
    senders: Ends = {}
    receivers: Ends = {}
    for r, b, block in program.blocks():
        sent, received = _messages(block)
        for peer, key, messages, owners, what in (
            (block.send, (r, block.send, block.channel), sent, senders, "sends to"),
            (block.recv, (block.recv, r, block.channel), received, receivers, "receives from"),
        ):
            if peer < 0 or not messages:
                continue
            if key in owners:
                raise PlanError(
                    f"rank {r}, thread block {b}: {what} rank {peer} on channel "
                    f"{block.channel}, which thread block {owners[key][0]} does already"
                )
            owners[key] = (b, messages)
    for side, (ends, others, what) in enumerate(
        ((senders, receivers, "sends to"), (receivers, senders, "receives from"))
    ):
        for key in ends.keys() - others.keys():
            raise PlanError(
                f"rank {key[side]}, thread block {ends[key][0]}: {what} rank {key[1 - side]} on "
                f"channel {key[2]}, but no thread block there does the opposite"
            )
    for (a, z, channel), (b, sent) in senders.items():
        for k, ((s, have), (t, want)) in enumerate(
            zip(sent, receivers[a, z, channel][1], strict=False)
        ):
            if have != want:
                raise PlanError(
                    f"rank {z}, thread block {receivers[a, z, channel][0]}, step {t}: receives "
                    f"{want} chunks, but message {k} on channel {channel} from rank {a}, thread "
                    f"block {b}, step {s} has {have}"
                )


def _messages(block: ThreadBlock) -> tuple[Messages, Messages]:
    """(step, chunks) of every message that is sent, and of every one that is received."""
    sent, received = [], []
    for s, i in block.instructions():
        if i.op not in SENDS | RECEIVES:
            continue
        count = (i.src or i.dst)[0].count
        if i.op in SENDS:
            sent.append((s, count))
        if i.op in RECEIVES:
            received.append((s, count))
    return sent, received
