"""What MSCCL++ asks of packets (protocol LL), and the words in which they refuse a program.

`check_packet` is for one operation, `check_protocol` for the whole program; both return nothing and
raise PlanError. The rules are those of microsoft/mscclpp 1f5f065d (execution_kernel.hpp for the
operations, execution_plan.cc and executor.cc for scratch).
"""

from __future__ import annotations

from forestcoll.errors import PlanError
from forestcoll.plans.rules import BUFFER_WORDS, place
from forestcoll.program import PACKETS, Buffer, Instruction, Op, Program, Ref, ThreadBlock

HALF_CHUNKS = 8
"""Chunks of scratch come in eights where scratch has two halves.

The runtime takes half of all bytes, whatever a chunk has: only so does the second half begin at a
multiple of 16 bytes, which a packet's one store needs.
"""

At = tuple[int, int, int]


def packet_operands(step: Instruction) -> tuple[Ref, ...]:
    """The operands of an operation that are packets."""
    shape = PACKETS.get(step.op)
    return () if shape is None else step.src[shape.packet_src :] + step.dst[shape.packet_dst :]


def check_packet(program: Program, block: ThreadBlock, step: Instruction, at: At) -> None:
    """PlanError unless the operation's packets lie in scratch, and go where the kernel sends them.

    Of operations without packets: unless they leave scratch alone in a program that has some.
    """
    shape = PACKETS.get(step.op)
    if program.protocol == "LL":
        _check_scratch(step, at)
    if shape is None:
        return
    if program.protocol != "LL":
        raise PlanError(
            f"{place(*at)}: {step.op} in a plan of protocol {program.protocol}: the runtime makes "
            f"room for packets in scratch only where it is LL"
        )
    for ref in packet_operands(step):
        if ref.buffer is not Buffer.SCRATCH:
            raise PlanError(
                f"{place(*at)}: packets of {step.op} in the {BUFFER_WORDS[ref.buffer]} buffer; "
                f"they are twice as long as their data and lie in scratch"
            )
    if not shape.remote:
        return
    peers = [ref.rank for ref in step.dst[shape.remote_dst :]]
    if step.channels and [block.channels[c].peer for c in step.channels] != peers:
        raise PlanError(
            f"{place(*at)}: {step.op} to ranks {peers} over channels to ranks "
            f"{[block.channels[c].peer for c in step.channels]}; it needs one to each, in order"
        )
    port = any(block.channels[c].kind == "port" for c in step.channels)
    if step.op is Op.PUT_PACKETS:
        _check_put(step, at, port)


def _check_put(step: Instruction, at: At, port: bool) -> None:
    if port:
        raise PlanError(
            f"{place(*at)}: put_packets over port channels: the runtime names the wrong memory "
            f"there; copy_packets into own scratch, then forward_packets"
        )
    if len(step.src) not in (1, len(step.dst)):
        raise PlanError(
            f"{place(*at)}: {step.op} of {len(step.src)} sources to {len(step.dst)} destinations; "
            f"give one source for all, or one each"
        )
    if len(step.src) > 1 and len(set(step.src)) == 1:
        raise PlanError(
            f"{place(*at)}: {step.op} names one source {len(step.src)} times; name it once, it "
            f"goes to every destination"
        )
    if len({ref.buffer for ref in step.src}) > 1:
        raise PlanError(
            f"{place(*at)}: the sources of {step.op} lie in one buffer: the runtime takes the "
            f"first one's for all"
        )


def _check_scratch(step: Instruction, at: At) -> None:
    shape = PACKETS.get(step.op)
    refs = (*step.src, *step.dst)
    if shape is not None:
        refs = (*step.src[: shape.packet_src], *step.dst[: shape.packet_dst])
    if any(ref.buffer is Buffer.SCRATCH for ref in refs):
        raise PlanError(
            f"{place(*at)}: {step.op} has plain data in scratch, which holds packets in a plan of "
            f"protocol LL: its chunks lie across theirs, and at another size they would be taken "
            f"for packets"
        )


def check_protocol(program: Program) -> None:
    """PlanError where protocol, packets and halves of scratch do not go together."""
    packets = any(i.op in PACKETS for *_, i in program.instructions())
    if program.protocol not in ("Simple", "LL") or (program.protocol == "LL") != packets:
        has = "has packet operations" if packets else "has no packet operations"
        raise PlanError(
            f"protocol {program.protocol}, but the program {has}: for MSCCL++ LL is just that "
            f"there are some, and everything else is Simple"
        )
    if not program.double_scratch:
        return
    if not packets:
        raise PlanError("two halves of scratch without packets: plain puts ignore the halves")
    for r, rank in enumerate(program.ranks):
        if rank.scratch_chunks % HALF_CHUNKS:
            raise PlanError(
                f"rank {r}: {rank.scratch_chunks} scratch chunks; in two halves they must be a "
                f"multiple of {HALF_CHUNKS}, or the second half begins within a packet"
            )
