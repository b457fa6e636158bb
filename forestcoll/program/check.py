"""The structure that a program must have, whatever reads, writes, runs or proves it.

`check` looks at every field, operand, range, channel and count, and needs no run. PlanError names
rank, thread block and step. Whether the program computes the right thing is for `verify`; what a
plan format and its runtimes, or an engine, ask beyond it stands with them.
"""

from __future__ import annotations

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
_SYNCHRONIZES = SIGNALS | WAITS
_NAMES_THINGS = _SYNCHRONIZES | SEMAPHORES | {Op.BARRIER}
"""Operations that need channels, semaphores or a barrier."""


@Once
def check(program: Program) -> ChunkCounts:
    """The chunk counts of the program's buffers, once its structure is right."""
    _refuse("", _frame_fault(program))
    counts = count_chunks(program)
    _check_instructions(program, counts)
    _check_switches(program)
    return counts


def accept(program: Program) -> Program:
    """The program, whose instructions are the lowering's own and are not looked at by `check`.

    What is made of it for a user is read back from its file, and checked as any other there.
    """
    check.keep(program, count_chunks(program))
    return program


def _refuse(at: str, fault: str) -> None:
    """PlanError with the place, where there is a fault: what functions below find, "" for none."""
    if fault:
        raise PlanError(at + fault)


def _frame_fault(program: Program) -> str:
    """What is wrong with the program as a whole."""
    n = program.n
    if n < 1:
        return "the program has no ranks"
    if program.style not in ("fifo", "onesided"):
        return f"style '{program.style}' is neither fifo nor onesided"
    if program.double_scratch and (program.style, program.protocol) != ("onesided", "LL"):
        return "two halves of scratch are for packets (onesided, protocol LL)"
    if not (program.in_place or program.out_of_place):
        return "the program claims to work neither in place nor out of place"
    if program.collective.has_root and not -1 <= program.root < n:
        return f"root {program.root} is no rank; there are ranks 0 to {n - 1}"
    if program.names and len(program.names) != n:
        return f"{len(program.names)} names for {n} ranks"
    low, high = program.min_bytes, program.max_bytes
    if low < 0 or high < 0:
        return f"sizes {low} to {high} bytes are negative"
    if 0 < high < low:
        return f"no size is served: at least {low} and at most {high} bytes"
    return ""


def _check_instructions(program: Program, sizes: ChunkCounts) -> None:
    """Check every thread block, step and operand of the program."""
    # by what thread blocks have, what is right there: many instructions are one or share operands
    fine: dict[object, set[object]] = {}
    packets, fifo = False, program.style == "fifo"
    for r, rank in enumerate(program.ranks):
        _refuse(f"rank {r}: ", _rank_fault(program, rank))
        own = {buffer: sizes.of(r, buffer) for buffer in BUFFER_NAMES}
        for b, block in enumerate(rank.thread_blocks):
            _refuse(f"rank {r}, thread block {b}: ", _block_fault(program, r, block))
            ends = block.recv < 0, block.send < 0, own[Buffer.SCRATCH]
            lists = len(block.channels), len(rank.semaphores), len(rank.thread_blocks)
            here = fine.setdefault(ends if fifo else lists, set())
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline):
                    _refuse(where(r, b, s), _pipeline_fault(program, step))
                for i in step.body:
                    if id(i) in here:
                        continue
                    packets |= i.op in PACKETS
                    alike: object = id(i)
                    if fifo:
                        named = i.channels, i.semaphores, i.ident, i.group, i.part, i.switches
                        alike = id(i.src), id(i.dst), i.op, named
                    elif i.src or i.dst:
                        alike = id(i), r, b
                    fault = ""
                    if alike not in here:
                        fault = _instruction_fault(program, sizes, own, (r, b, s), i)
                        here.add(alike)
                    if i.after:
                        fault = fault or _after_fault(rank, r, b, s, i)
                    elif fifo:
                        here.add(id(i))
                    if fault:
                        raise PlanError(f"{where(r, b, s, i.op)}: {fault}")
    if program.double_scratch and not packets:
        raise PlanError("two halves of scratch, but no packets: plain puts ignore the halves")


def _rank_fault(program: Program, rank: RankProgram) -> str:
    for index, value in enumerate(rank.semaphores):
        if not 0 <= value <= LARGEST:
            return f"semaphore {index} starts at {value}, not 0 to {LARGEST}"
    return "semaphores in a fifo program" if rank.semaphores and program.style == "fifo" else ""


def _check_switches(program: Program) -> None:
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


def _switch_fault(n: int, r: int, switch: Switch) -> str:
    ranks = switch.ranks
    if len(set(ranks)) != len(ranks) or len(ranks) < 2 or r not in ranks:
        return f"the group {list(ranks)}; it must be this rank and others, each once"
    if any(not 0 <= peer < n for peer in ranks):
        return f"the group {list(ranks)} of {n} ranks"
    return "" if switch.buffer in BUFFER_NAMES else f"the unknown buffer '{switch.buffer}'"


def _block_fault(program: Program, r: int, block: ThreadBlock) -> str:
    n, fifo = program.n, program.style == "fifo"
    if block.switches and fifo:
        return "switches in a fifo program"
    for number, switch in enumerate(block.switches):
        fault = _switch_fault(n, r, switch)
        if fault:
            return f"switch {number} has {fault}"
    if fifo:
        if block.channels:
            return "onesided channels in a fifo program"
        if block.channel < 0:
            return f"channel {block.channel} is negative"
        for way, peer in (("receives from", block.recv), ("sends to", block.send)):
            if peer != -1 and (not 0 <= peer < n or peer == r):
                return f"{way} rank {peer}; {_peers(r, n)}"
        return ""
    if block.recv != -1 or block.send != -1 or block.channel:
        return "a fifo connection in a onesided program; use channels"
    for i, c in enumerate(block.channels):
        if not 0 <= c.peer < n or c.peer == r:
            return f"channel {i} leads to rank {c.peer}; {_peers(r, n)}"
        if c.kind not in ("memory", "port"):
            return f"channel {i} is of kind '{c.kind}', neither memory nor port"
        if c.index < 0:
            return f"channel {i} has index {c.index}, below 0"
    return ""


def _peers(rank: int, n: int) -> str:
    return "there is no other rank" if n == 1 else f"a peer is one of 0 to {n - 1} and not {rank}"


def _pipeline_fault(program: Program, loop: Pipeline) -> str:
    """What follows the place: what is wrong, of an instruction in it behind its operation."""
    if program.style == "fifo":
        return ": a pipeline in a fifo program, whose whole list is repeated anyway"
    if not loop.body or any(isinstance(i, Pipeline) for i in loop.body):
        return ": a pipeline needs a body of plain instructions"
    if not (1 <= loop.chunks <= LARGEST and 1 <= loop.unit_bytes <= 2**32):
        return (
            f": a pipeline over {loop.chunks} chunks in units of {loop.unit_bytes} bytes; "
            "both must be at least 1 and fit in 32 bits"
        )
    for i in loop.body:
        at = f" ({i.op.value}): "
        if i.op in PACKETS:
            return f"{at}packets in a pipeline; the runtime would do all of them every round"
        for ref in (*i.src, *i.dst):
            if ref.count != loop.chunks:
                return (
                    f"{at}{ref.count} chunks in a pipeline over {loop.chunks}; every data "
                    "instruction of a pipeline must cover exactly its chunks"
                )
        if i.part != (0, 1):
            return f"{at}a part inside a pipeline, which slices itself"
    return ""


def _instruction_fault(
    program: Program,
    counts: ChunkCounts,
    own: dict[Buffer, int],
    at: tuple[int, int, int],
    i: Instruction,
) -> str:
    """`own`: chunks of the rank's buffers."""
    r, b, _ = at
    if i.op not in STYLES[program.style]:
        return f"no operation of {program.style} programs"
    rank = program.ranks[r]
    block = rank.thread_blocks[b]
    fault = _operands_fault(i) or _fields_fault(program, r, i) or _fabric_fault(block, i)
    if fault:
        return fault
    src, dst = block.operands(r, i)
    for ref in src + dst:
        within = 0 <= ref.offset < ref.offset + ref.count <= own.get(ref.buffer, -1)
        if ref.rank is not None or not within:
            fault = fault or _range_fault(counts, r, ref)
    if program.style != "fifo":
        return fault or _remote_fault(block, i) or _packets_fault(program, block, i)
    for ops, peer, word in (SENDS, block.send, "send"), (RECEIVES, block.recv, "recv"):
        if peer == -1 and i.op in ops and not fault:
            words = f"{where(*at, i.op)}: its thread block has no {word} peer"
            raise PlanError(words, rule="XML-DIRECTION", at=at)
    if any(ref.rank is not None for ref in i.src + i.dst):
        fault = fault or "a remote buffer; fifo programs reach only their own"
    return fault


def _packets_fault(program: Program, block: ThreadBlock, i: Instruction) -> str:
    """Packets lie in scratch, nothing else does, and they go where the kernel sends them.

    Plain data in scratch would lie across packets, and could be taken for some.
    """
    row = OPERATIONS[i.op]
    plain = (*i.src[: row.packet_src], *i.dst[: row.packet_dst])
    if program.protocol == "LL" and any(ref.buffer is Buffer.SCRATCH for ref in plain):
        return (
            "plain data in scratch, which holds packets in a program of protocol LL: at another "
            "size they would be taken for packets"
        )
    if not row.packets:
        return ""
    if program.protocol != "LL":
        return f"packets in a program of protocol {program.protocol}; LL has it"
    for ref in (*i.src[row.packet_src :], *i.dst[row.packet_dst :]):
        if ref.buffer is not Buffer.SCRATCH:
            return f"packets in the {BUFFER_NAMES[ref.buffer]}, not in scratch"
    peers = [ref.rank for ref in i.dst[row.remote_dst :]]
    channels = [block.channels[c] for c in i.channels]
    ends, kinds = [c.peer for c in channels], {c.kind for c in channels}
    # Over memory the kernel looks at no channel, so a plan need not name any.
    if row.remote and channels and ends != peers:
        return f"to ranks {peers} over channels to ranks {ends}; it needs one to each, in order"
    if "port" in kinds and (i.op is not Op.FORWARD_PACKETS or len(kinds) > 1):
        return (
            "only forward_packets goes over port channels (all of one kind): the runtime's "
            "put_packets there sends other memory than the plan says"
        )
    return ""


def _operands_fault(i: Instruction) -> str:
    row, src, dst = OPERATIONS[i.op], i.src, i.dst
    for what, refs, (low, high) in ("source", src, row.src), ("destination", dst, row.dst):
        if not low <= len(refs) <= high:
            need = "no" if high == 0 else f"{low}" if low == high else f"at least {low}"
            return f"{len(refs)} {what}s; it takes {need} {what}{'s' * (need != '1')}"
    if row.pairs and not (row.spreads and len(src) == 1):
        if len(src) != len(dst):
            return f"{len(src)} sources for {len(dst)} destinations"
        pairs = list(zip(src, dst, strict=True))
    else:
        refs = (*src, *dst)
        pairs = [(refs[0], other) for other in refs[1:]]
    for one, other in pairs:
        if one.count != other.count:
            return f"operands of {one.count} and {other.count} chunks; they must be of one length"
    return ""


def _fabric_fault(block: ThreadBlock, i: Instruction) -> str:
    """The switches of an instruction are there, as many as it needs, and to the right buffers."""
    needs = OPERATIONS[i.op].switches
    if len(i.switches) != needs:
        return f"{len(i.switches)} switches; it takes {needs}"
    for number, ref in zip(i.switches, (i.dst if needs == 1 else (*i.src, *i.dst)), strict=False):
        if not 0 <= number < len(block.switches):
            return f"switch {number}; the thread block has {len(block.switches)}"
        buffer = block.switches[number].buffer
        if buffer is not ref.buffer:
            return f"the {ref.buffer.name.lower()} through a switch to the {buffer.name.lower()}"
    return ""


def _fields_fault(program: Program, r: int, i: Instruction) -> str:
    index, size = i.part
    named = i.channels or i.semaphores or i.ident or i.group
    if not (named or index or size != 1 or i.op in _NAMES_THINGS):
        return ""
    if not 0 <= index < size:
        return f"part {index} of {size} does not exist"
    if size > 1 and (program.style == "fifo" or not (i.src or i.dst)):
        return "only onesided data instructions can be done in parts"
    if i.channels and i.op not in CHANNELLED:
        return "takes no channels"
    if i.op in _SYNCHRONIZES and not i.channels:
        return "names no channel"
    if bool(i.semaphores) != (i.op in SEMAPHORES):
        return "takes no semaphores" if i.semaphores else "names no semaphore"
    semaphores = len(program.ranks[r].semaphores)
    for sem in i.semaphores:
        if not 0 <= sem < semaphores:
            return f"semaphore {sem}; rank {r} has {semaphores}"
    if len(set(i.semaphores)) != len(i.semaphores):
        return "names a semaphore twice"
    if i.op is not Op.BARRIER:
        return "takes no barrier" if i.ident or i.group else ""
    blocks = len(program.ranks[r].thread_blocks)
    if not (1 <= i.group <= blocks and 0 <= i.ident <= LARGEST):
        return f"barrier {i.ident} of {i.group} thread blocks; the rank has {blocks}"
    return ""


def _range_fault(sizes: ChunkCounts, r: int, ref: Ref) -> str:
    owner = r if ref.rank is None else ref.rank
    if ref.rank is not None and (not 0 <= owner < sizes.ranks or owner == r):
        return f"a buffer of rank {owner}; {_peers(r, sizes.ranks)}"
    if ref.buffer not in BUFFER_NAMES:
        return f"unknown buffer '{ref.buffer}'"
    limit = sizes.of(owner, ref.buffer)
    if ref.count < 1 or ref.offset < 0 or ref.offset + ref.count > limit:
        return (
            f"{ref.count} chunks at offset {ref.offset} of rank {owner}'s "
            f"{BUFFER_NAMES[ref.buffer]}, which has {limit} chunks"
        )
    return ""


def _after_fault(rank: RankProgram, r: int, b: int, s: int, i: Instruction) -> str:
    blocks = rank.thread_blocks
    for target, step in i.after:
        if not 0 <= target < len(blocks):
            return f"comes after thread block {target}; rank {r} has {len(blocks)} thread blocks"
        steps = len(blocks[target].steps)
        if not 0 <= step < steps:
            return f"comes after step {step} of thread block {target}, which has {steps} steps"
        if target == b and step >= s:
            return f"comes after step {step} of its own thread block: a circle"
    return ""


def _remote_fault(block: ThreadBlock, i: Instruction) -> str:
    if i.after:
        return "'after' has no meaning in onesided programs; use semaphores"
    for c in i.channels:
        if not 0 <= c < len(block.channels):
            return f"channel {c}; the thread block has {len(block.channels)}"
    if (i.op in SIGNALS or i.op in WAITS) and len(set(i.channels)) != len(i.channels):
        return "names a channel twice; its threads would race for one semaphore"
    row = OPERATIONS[i.op]
    remote = (*i.src[row.remote_src :], *i.dst[row.remote_dst :])
    for ref in (*i.src[: row.remote_src], *i.dst[: row.remote_dst]):
        if ref.rank is not None:
            return f"an operand at rank {ref.rank} that must be local"
    if any(ref.rank is None for ref in remote):
        return "a local operand where one at a peer is needed"
    by_port = i.op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH)
    if not remote or not i.channels:
        return "puts need destinations at peers and their channels" if by_port else ""
    channels = [block.channels[c] for c in i.channels]
    ends, kinds = [c.peer for c in channels], {c.kind for c in channels}
    at = [ref.rank for ref in remote]
    ports = i.op in PUTS or i.op is Op.FORWARD_PACKETS
    if ports and "port" in kinds:
        # A port put pushes its i-th destination through its i-th channel.
        if ends != at:
            return (
                f"channels to ranks {ends} for destinations at ranks {at}; they must be the same, "
                "in order"
            )
    elif missing := [rank for rank in at if rank not in ends]:
        return f"none of its channels leads to rank {missing[0]}"
    if not ports and "port" in kinds:
        return "needs memory channels; a port cannot be read or stored through"
    if by_port and kinds != {"port"}:
        return (
            "works on port channels only (a memory channel drops the signal); use put, nop, signal"
        )
    return ""
