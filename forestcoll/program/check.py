"""The structure that a program must have, whatever reads, writes, runs or proves it.

`check` looks at every field, operand, range, channel and count, and needs no run. PlanError names
rank, thread block and step. Whether the program computes the right thing is for `verify`; what a
plan format and its runtimes, or an engine, ask beyond it stands with them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.program.chunks import BUFFER_NAMES, ChunkCounts, count_chunks
from forestcoll.program.ops import (
    CHANNELLED,
    OPERATIONS,
    PACKETS,
    PUTS,
    RECEIVES,
    SEMAPHORES,
    SENDS,
    SIGNALS,
    STYLES,
    WAITS,
    Op,
)
from forestcoll.program.program import (
    Buffer,
    Instruction,
    Once,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    Switch,
    ThreadBlock,
    where,
)

LARGEST = 2**31 - 1
"""Of all counts and numbers: runtimes and engines keep them in 32 bits."""
_SYNCHRONIZES: Final = SIGNALS | WAITS
_NAMES_THINGS: Final = _SYNCHRONIZES | SEMAPHORES | {Op.BARRIER}
"""Operations that need channels, semaphores or a barrier."""


class _At(NamedTuple):
    """Where an instruction stands; in words only where something is wrong with it."""

    rank: int
    block: int
    step: int
    op: Op

    def __str__(self) -> str:
        return where(*self)

    def __format__(self, spec: str) -> str:
        return str(self)


@Once
def check(program: Program) -> ChunkCounts:
    """The chunk counts of the program's buffers, once its structure is right."""
    check_frame(program)
    counts = count_chunks(program)
    check_instructions(program, counts)
    check_switches(program)
    return counts


def accept(program: Program) -> Program:
    """The program, whose instructions are the lowering's own and are not looked at by `check`.

    What is made of it for a user is read back from its file, and checked as any other there.
    """
    check.keep(program, count_chunks(program))
    return program


def check_frame(program: Program) -> None:
    """Check what concerns the program as a whole."""
    n = program.n
    if n < 1:
        raise PlanError("the program has no ranks")
    if program.style not in ("fifo", "onesided"):
        raise PlanError(f"style '{program.style}' is neither fifo nor onesided")
    if program.double_scratch and (program.style, program.protocol) != ("onesided", "LL"):
        raise PlanError("two halves of scratch are for packets (onesided, protocol LL)")
    if not (program.in_place or program.out_of_place):
        raise PlanError("the program claims to work neither in place nor out of place")
    if program.collective.has_root and not -1 <= program.root < n:
        raise PlanError(f"root {program.root} is no rank; there are ranks 0 to {n - 1}")
    if program.names and len(program.names) != n:
        raise PlanError(f"{len(program.names)} names for {n} ranks")
    if program.min_bytes < 0 or program.max_bytes < 0:
        raise PlanError(f"sizes {program.min_bytes} to {program.max_bytes} bytes are negative")
    if program.max_bytes and program.max_bytes < program.min_bytes:
        raise PlanError(
            f"no size is served: at least {program.min_bytes} and at most {program.max_bytes} bytes"
        )


def check_instructions(program: Program, sizes: ChunkCounts) -> None:
    """Check every thread block, step and operand of the program."""
    # by what thread blocks have, what is right there: many instructions are one or share operands
    fine: dict[object, set[object]] = {}
    packets, fifo = False, program.style == "fifo"
    for r, rank in enumerate(program.ranks):
        _check_rank(program, r, rank)
        own = {buffer: sizes.of(r, buffer) for buffer in BUFFER_NAMES}
        for b, block in enumerate(rank.thread_blocks):
            _check_block(program, r, b, block)
            ends = block.recv < 0, block.send < 0, own[Buffer.SCRATCH]
            lists = len(block.channels), len(rank.semaphores), len(rank.thread_blocks)
            here = fine.setdefault(ends if fifo else lists, set())
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline):
                    _check_pipeline(program, r, b, s, step)
                for i in step.body if isinstance(step, Pipeline) else (step,):
                    if id(i) in here:
                        continue
                    packets |= i.op in PACKETS
                    alike: object = id(i)
                    if fifo:
                        named = i.channels, i.semaphores, i.ident, i.group, i.part, i.switches
                        alike = id(i.src), id(i.dst), i.op, named
                    elif i.src or i.dst:
                        alike = id(i), r, b
                    if alike not in here:
                        _check_instruction(program, sizes, own, _At(r, b, s, i.op), i)
                        here.add(alike)
                    if i.after:
                        _check_after(program, _At(r, b, s, i.op), i)
                    elif fifo:
                        here.add(id(i))
    if program.double_scratch and not packets:
        raise PlanError("two halves of scratch, but no packets: plain puts ignore the halves")


def _check_rank(program: Program, r: int, rank: RankProgram) -> None:
    for index, value in enumerate(rank.semaphores):
        if not 0 <= value <= LARGEST:
            raise PlanError(f"rank {r}: semaphore {index} starts at {value}, not 0 to {LARGEST}")
    if rank.semaphores and program.style == "fifo":
        raise PlanError(f"rank {r}: semaphores in a fifo program")


def check_switches(program: Program) -> None:
    """Check that every rank of a switch's group has that switch: they set it up together."""
    switches_of_rank = [
        {s for block in rank.thread_blocks for s in block.switches} for rank in program.ranks
    ]
    for r, switches in enumerate(switches_of_rank):
        for switch in sorted(switches, key=lambda s: (s.ranks, s.buffer)):
            lacking = [peer for peer in switch.ranks if switch not in switches_of_rank[peer]]
            if lacking:
                raise PlanError(
                    f"rank {r}: a switch to the {BUFFER_NAMES[switch.buffer]} of ranks "
                    f"{', '.join(map(str, switch.ranks))}, but rank {lacking[0]} has no such "
                    "switch; they would wait for each other before the first launch"
                )


def _check_switch(n: int, r: int, at: str, number: int, switch: Switch) -> None:
    ranks = switch.ranks
    if len(set(ranks)) != len(ranks) or len(ranks) < 2 or r not in ranks:
        raise PlanError(
            f"{at}: switch {number} has the group {list(ranks)}; it must be this rank and others, "
            "each once"
        )
    if any(not 0 <= peer < n for peer in ranks):
        raise PlanError(f"{at}: switch {number} has the group {list(ranks)} of {n} ranks")
    if switch.buffer not in BUFFER_NAMES:
        raise PlanError(f"{at}: switch {number} has the unknown buffer '{switch.buffer}'")


def _check_block(program: Program, r: int, b: int, block: ThreadBlock) -> None:
    at, n = f"rank {r}, thread block {b}", program.n
    if block.switches and program.style == "fifo":
        raise PlanError(f"{at}: switches in a fifo program")
    for number, switch in enumerate(block.switches):
        _check_switch(n, r, at, number, switch)
    if program.style == "fifo":
        if block.channels:
            raise PlanError(f"{at}: onesided channels in a fifo program")
        if block.channel < 0:
            raise PlanError(f"{at}: channel {block.channel} is negative")
        for way, peer in (("receives from", block.recv), ("sends to", block.send)):
            if peer != -1 and (not 0 <= peer < n or peer == r):
                raise PlanError(f"{at}: {way} rank {peer}; {_peers(r, n)}")
        return
    if block.recv != -1 or block.send != -1 or block.channel:
        raise PlanError(f"{at}: a fifo connection in a onesided program; use channels")
    for i, c in enumerate(block.channels):
        if not 0 <= c.peer < n or c.peer == r:
            raise PlanError(f"{at}: channel {i} leads to rank {c.peer}; {_peers(r, n)}")
        if c.kind not in ("memory", "port"):
            raise PlanError(f"{at}: channel {i} is of kind '{c.kind}', neither memory nor port")
        if c.index < 0:
            raise PlanError(f"{at}: channel {i} has index {c.index}, below 0")


def _peers(rank: int, n: int) -> str:
    return "there is no other rank" if n == 1 else f"a peer is one of 0 to {n - 1} and not {rank}"


def _check_pipeline(program: Program, r: int, b: int, s: int, loop: Pipeline) -> None:
    at = where(r, b, s)
    if program.style == "fifo":
        raise PlanError(f"{at}: a pipeline in a fifo program, whose whole list is repeated anyway")
    if not loop.body or any(isinstance(i, Pipeline) for i in loop.body):
        raise PlanError(f"{at}: a pipeline needs a body of plain instructions")
    if not (1 <= loop.chunks <= LARGEST and 1 <= loop.unit_bytes <= 2**32):
        raise PlanError(
            f"{at}: a pipeline over {loop.chunks} chunks in units of {loop.unit_bytes} bytes; "
            "both must be at least 1 and fit in 32 bits"
        )
    for i in loop.body:
        if i.op in PACKETS:
            raise PlanError(
                f"{at} ({i.op.value}): packets in a pipeline; the runtime would do all of them "
                "every round"
            )
        for ref in (*i.src, *i.dst):
            if ref.count != loop.chunks:
                raise PlanError(
                    f"{at} ({i.op.value}): {ref.count} chunks in a pipeline over {loop.chunks}; "
                    "every data instruction of a pipeline must cover exactly its chunks"
                )
        if i.part != (0, 1):
            raise PlanError(f"{at} ({i.op.value}): a part inside a pipeline, which slices itself")


def _check_instruction(
    program: Program, counts: ChunkCounts, own: dict[Buffer, int], at: _At, i: Instruction
) -> None:
    """`own`: chunks of the rank's buffers."""
    r, b, _, op = at
    if op not in STYLES[program.style]:
        raise PlanError(f"{at}: no operation of {program.style} programs")
    block = program.ranks[r].thread_blocks[b]
    _check_operands(at, i)
    _check_fields(program, at, i)
    _check_switched(block, at, i)
    src, dst = block.operands(r, i)
    for ref in src + dst:
        within = 0 <= ref.offset < ref.offset + ref.count <= own.get(ref.buffer, -1)
        if ref.rank is not None or not within:
            _check_range(counts, at, ref)
    if program.style == "fifo":
        _check_direction(block, at, i)
        if any(ref.rank is not None for ref in i.src + i.dst):
            raise PlanError(f"{at}: a remote buffer; fifo programs reach only their own")
    else:
        _check_remote(block, at, i)
        _check_packets(program, block, at, i)


def _check_direction(block: ThreadBlock, at: _At, i: Instruction) -> None:
    for ops, peer, word in (SENDS, block.send, "send"), (RECEIVES, block.recv, "recv"):
        if peer == -1 and i.op in ops:
            raise PlanError(
                f"{at}: its thread block has no {word} peer", rule="XML-DIRECTION", at=at[:3]
            )


def _check_packets(program: Program, block: ThreadBlock, at: _At, i: Instruction) -> None:
    """Packets lie in scratch, nothing else does, and they go where the kernel sends them.

    Plain data in scratch would lie across packets, and could be taken for some.
    """
    row = OPERATIONS[i.op]
    plain = (*i.src[: row.packet_src], *i.dst[: row.packet_dst])
    if program.protocol == "LL" and any(ref.buffer is Buffer.SCRATCH for ref in plain):
        raise PlanError(
            f"{at}: plain data in scratch, which holds packets in a program of protocol LL: at "
            "another size they would be taken for packets"
        )
    if not row.packets:
        return
    if program.protocol != "LL":
        raise PlanError(f"{at}: packets in a program of protocol {program.protocol}; LL has it")
    for ref in (*i.src[row.packet_src :], *i.dst[row.packet_dst :]):
        if ref.buffer is not Buffer.SCRATCH:
            raise PlanError(f"{at}: packets in the {BUFFER_NAMES[ref.buffer]}, not in scratch")
    peers = [ref.rank for ref in i.dst[row.remote_dst :]]
    # Over memory the kernel looks at no channel, so a plan need not name any.
    if row.remote and i.channels and [block.channels[c].peer for c in i.channels] != peers:
        raise PlanError(
            f"{at}: to ranks {peers} over channels to ranks "
            f"{[block.channels[c].peer for c in i.channels]}; it needs one to each, in order"
        )
    kinds = {block.channels[c].kind for c in i.channels}
    if "port" in kinds and (i.op is not Op.FORWARD_PACKETS or len(kinds) > 1):
        raise PlanError(
            f"{at}: only forward_packets goes over port channels (all of one kind): the runtime's "
            "put_packets there sends other memory than the plan says"
        )


def _check_operands(at: _At, i: Instruction) -> None:
    row, src, dst = OPERATIONS[i.op], i.src, i.dst
    for what, refs, (low, high) in ("source", src, row.src), ("destination", dst, row.dst):
        if not low <= len(refs) <= high:
            need = "no" if high == 0 else f"{low}" if low == high else f"at least {low}"
            raise PlanError(
                f"{at}: {len(refs)} {what}s; it takes {need} {what}{'s' * (need != '1')}"
            )
    if row.pairs and not (row.spreads and len(src) == 1):
        if len(src) != len(dst):
            raise PlanError(f"{at}: {len(src)} sources for {len(dst)} destinations")
        pairs = list(zip(src, dst, strict=True))
    else:
        refs = (*src, *dst)
        pairs = [(refs[0], other) for other in refs[1:]]
    for one, other in pairs:
        if one.count != other.count:
            raise PlanError(
                f"{at}: operands of {one.count} and {other.count} chunks; "
                "they must be of one length"
            )


def _check_switched(block: ThreadBlock, at: _At, i: Instruction) -> None:
    """The switches of an instruction are there, as many as it needs, and to the right buffers."""
    row = OPERATIONS[i.op]
    if not (i.switches or row.switched):
        return
    needs = row.switches
    if len(i.switches) != needs:
        raise PlanError(f"{at}: {len(i.switches)} switches; it takes {needs}")
    for number, ref in zip(i.switches, (i.dst if needs == 1 else (*i.src, *i.dst)), strict=False):
        if not 0 <= number < len(block.switches):
            raise PlanError(f"{at}: switch {number}; the thread block has {len(block.switches)}")
        if block.switches[number].buffer is not ref.buffer:
            raise PlanError(
                f"{at}: the {ref.buffer.name.lower()} through a switch to the "
                f"{block.switches[number].buffer.name.lower()}"
            )


def _check_fields(program: Program, at: _At, i: Instruction) -> None:
    r, (index, size) = at.rank, i.part
    named = i.channels or i.semaphores or i.ident or i.group
    if not (named or index or size != 1 or i.op in _NAMES_THINGS):
        return
    if not 0 <= index < size:
        raise PlanError(f"{at}: part {index} of {size} does not exist")
    if size > 1 and (program.style == "fifo" or not (i.src or i.dst)):
        raise PlanError(f"{at}: only onesided data instructions can be done in parts")
    if i.channels and i.op not in CHANNELLED:
        raise PlanError(f"{at}: takes no channels")
    if i.op in _SYNCHRONIZES and not i.channels:
        raise PlanError(f"{at}: names no channel")
    if bool(i.semaphores) != (i.op in SEMAPHORES):
        raise PlanError(f"{at}: {'takes no semaphores' if i.semaphores else 'names no semaphore'}")
    semaphores = len(program.ranks[r].semaphores)
    for sem in i.semaphores:
        if not 0 <= sem < semaphores:
            raise PlanError(f"{at}: semaphore {sem}; rank {r} has {semaphores}")
    if len(set(i.semaphores)) != len(i.semaphores):
        raise PlanError(f"{at}: names a semaphore twice")
    if i.op is not Op.BARRIER and (i.ident or i.group):
        raise PlanError(f"{at}: takes no barrier")
    blocks = len(program.ranks[r].thread_blocks)
    if i.op is Op.BARRIER and not (1 <= i.group <= blocks and 0 <= i.ident <= LARGEST):
        raise PlanError(
            f"{at}: barrier {i.ident} of {i.group} thread blocks; the rank has {blocks}"
        )


def _check_range(sizes: ChunkCounts, at: _At, ref: Ref) -> None:
    owner = r = at.rank
    if ref.rank is not None:
        owner = ref.rank
        if not 0 <= owner < sizes.ranks or owner == r:
            raise PlanError(f"{at}: a buffer of rank {owner}; {_peers(r, sizes.ranks)}")
    if ref.buffer not in BUFFER_NAMES:
        raise PlanError(f"{at}: unknown buffer '{ref.buffer}'")
    limit = sizes.of(owner, ref.buffer)
    if ref.count < 1 or ref.offset < 0 or ref.offset + ref.count > limit:
        raise PlanError(
            f"{at}: {ref.count} chunks at offset {ref.offset} of rank {owner}'s "
            f"{BUFFER_NAMES[ref.buffer]}, which has {limit} chunks"
        )


def _check_after(program: Program, at: _At, i: Instruction) -> None:
    r, b, s, _ = at
    blocks = program.ranks[r].thread_blocks
    for target, step in i.after:
        if not 0 <= target < len(blocks):
            raise PlanError(
                f"{at}: comes after thread block {target}; rank {r} has {len(blocks)} thread blocks"
            )
        if not 0 <= step < len(blocks[target].steps):
            raise PlanError(
                f"{at}: comes after step {step} of thread block {target}, "
                f"which has {len(blocks[target].steps)} steps"
            )
        if target == b and step >= s:
            raise PlanError(f"{at}: comes after step {step} of its own thread block: a circle")


def _check_remote(block: ThreadBlock, at: _At, i: Instruction) -> None:
    if i.after:
        raise PlanError(f"{at}: 'after' has no meaning in onesided programs; use semaphores")
    for c in i.channels:
        if not 0 <= c < len(block.channels):
            raise PlanError(f"{at}: channel {c}; the thread block has {len(block.channels)}")
    if (i.op in SIGNALS or i.op in WAITS) and len(set(i.channels)) != len(i.channels):
        raise PlanError(f"{at}: names a channel twice; its threads would race for one semaphore")
    remote = _remote_operands(at, i)
    if not remote or not i.channels:
        if i.op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
            raise PlanError(f"{at}: puts need destinations at peers and their channels")
        return
    channels = [block.channels[c] for c in i.channels]
    ports = i.op in PUTS or i.op is Op.FORWARD_PACKETS
    if ports and any(c.kind == "port" for c in channels):
        # A port put pushes its i-th destination through its i-th channel.
        if [c.peer for c in channels] != [ref.rank for ref in remote]:
            raise PlanError(
                f"{at}: channels to ranks {[c.peer for c in channels]} for destinations "
                f"at ranks {[ref.rank for ref in remote]}; they must be the same, in order"
            )
    elif missing := [ref.rank for ref in remote if all(c.peer != ref.rank for c in channels)]:
        raise PlanError(f"{at}: none of its channels leads to rank {missing[0]}")
    if not ports and any(c.kind == "port" for c in channels):
        raise PlanError(f"{at}: needs memory channels; a port cannot be read or stored through")
    if i.op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH) and any(c.kind != "port" for c in channels):
        raise PlanError(
            f"{at}: works on port channels only (a memory channel drops the signal); "
            "use put, nop, signal"
        )


def _remote_operands(at: _At, i: Instruction) -> tuple[Ref, ...]:
    """The operands that are at peers; raises unless exactly the allowed ones are."""
    row = OPERATIONS[i.op]
    own = (*i.src[: row.remote_src], *i.dst[: row.remote_dst])
    remote = (*i.src[row.remote_src :], *i.dst[row.remote_dst :])
    for ref in own:
        if ref.rank is not None:
            raise PlanError(f"{at}: an operand at rank {ref.rank} that must be local")
    for ref in remote:
        if ref.rank is None:
            raise PlanError(f"{at}: a local operand where one at a peer is needed")
    return remote
