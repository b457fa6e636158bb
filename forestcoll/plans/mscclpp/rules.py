"""What MSCCL++ JSON and its runtime hold: checks of onesided programs.

The writer asks them of a program that is right in itself.

Both return nothing; PlanError names rank, thread block, step, the limit and the figure. The limits
are those of microsoft/mscclpp (execution_common.hpp, execution_kernel.hpp, executor.cc).
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.plans.rules import check_group
from forestcoll.program import (
    OPERATIONS,
    PACKETS,
    PUTS,
    SPREADS,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Switch,
    ThreadBlock,
)
from forestcoll.program.program import where
from forestcoll.program.rank_placement import places
from forestcoll.program.targets import HALF_CHUNKS, MSCCLPP, Target

MAX_REFS = 10  # sources, or destinations, of one operation
MAX_REMOTE = MSCCLPP.remote_buffers  # that a thread block reaches by one kind of channel
MAX_IDS = MSCCLPP.peers  # channels of one operation
MAX_SEMAPHORES = MSCCLPP.semaphores  # semaphores of one operation
MAX_BARRIERS = 16  # barrier ids of a rank
MAX_INDEX = 1023  # parallel channels of one kind between two ranks
MAX_SWITCHES = 16  # switch channels of a thread block
ALIGNMENT = 16  # bytes; chunks and slices are multiples of it


def kind_of(block: ThreadBlock, step: Instruction) -> str:
    """The kind of channel that an operation goes over; without channels it is memory."""
    return block.channels[step.channels[0]].kind if step.channels else "memory"


def switches_of(rank: RankProgram) -> list[Switch]:
    """The rank's switches, each once, in the order in which all ranks set theirs up."""
    switches = {switch for block in rank.thread_blocks for switch in block.switches}
    return sorted(switches, key=lambda switch: (switch.ranks, switch.buffer.value))


def check_structure(program: Program) -> None:
    """PlanError unless MSCCL++ JSON has words for all of the program."""
    if program.style != "onesided":
        raise PlanError(
            f"MSCCL++ JSON holds onesided programs; this one is {program.style} "
            f"(MSCCL XML holds those)"
        )
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for channel in block.channels:
                if channel.index > MAX_INDEX:
                    raise PlanError(
                        f"{where(r, b)}: channel number {channel.index} to rank {channel.peer}; at "
                        f"most {MAX_INDEX + 1} run side by side, counted from 0"
                    )
            for s, instruction in block.instructions():
                for fault in _faults(block, instruction):
                    raise PlanError(f"{where(r, b, s)}: {fault}")


def _faults(block: ThreadBlock, step: Instruction) -> Iterator[str]:
    op, src, dst = step.op, step.src, step.dst
    if not OPERATIONS[op].json:
        yield f"{op} is a fifo operation; MSCCL++ JSON has none"
    channels = [block.channels[c] for c in step.channels]
    if len({channel.kind for channel in channels}) > 1:
        yield f"{op} mixes memory and port channels; make it two"
    most = 1 if op is Op.COPY else MAX_REFS
    for what, refs in (("sources", src), ("destinations", dst)):
        if len(refs) > most:
            yield f"{op} has {len(refs)} {what}; it needs 1 to {most}"
    kind = kind_of(block, step)
    if op in SPREADS and len(src) > 1 and len(set(src)) == 1:
        yield f"{op} names one source {len(src)} times; name it once, it goes to every destination"
    if op in SPREADS and kind == "memory" and len({ref.buffer for ref in src}) > 1:
        yield (
            f"the sources of {op} over memory channels lie in one buffer: the runtime takes the "
            "first one's for all"
        )
    if op not in PUTS:
        return
    if (kind == "port" or channels) and len(channels) != len(dst):
        yield (f"{op} to {len(dst)} destinations over {len(channels)} channels; it needs one each")
    for channel, ref in zip(channels, dst, strict=False):
        if channel.peer != ref.rank:
            yield f"{op} to rank {ref.rank} over a channel to rank {channel.peer}"


def check_protocol(program: Program) -> None:
    """PlanError where protocol, packets and halves of scratch do not go together."""
    packets = any(i.op in PACKETS for *_, i in program.instructions())
    if program.protocol not in ("Simple", "LL") or (program.protocol == "LL") != packets:
        has = "has packet operations" if packets else "has no packet operations"
        raise PlanError(
            f"protocol {program.protocol}, but the program {has}: for MSCCL++ LL is just that "
            f"there are some, and everything else is Simple"
        )
    check_halves(program)


def check_halves(program: Program) -> None:
    """PlanError where the second half of scratch would begin within a packet."""
    if not program.double_scratch:
        return
    for r, rank in enumerate(program.ranks):
        if rank.scratch_chunks % HALF_CHUNKS:
            raise PlanError(
                f"rank {r}: {rank.scratch_chunks} scratch chunks; in two halves they must be a "
                f"multiple of {HALF_CHUNKS}, or the second half begins within a packet"
            )


def check_limits(program: Program, target: Target) -> None:
    """PlanError where the runtime would refuse the plan, or silently run another one."""
    check_protocol(program)
    check_group(target, program.names, _far(program), program.name)
    for r, rank in enumerate(program.ranks):
        if not rank.thread_blocks:
            raise PlanError(
                f"rank {r} has no thread block; the runtime cannot launch an empty rank"
            )
        if len(rank.thread_blocks) > target.thread_blocks:
            raise PlanError(
                f"rank {r} has {len(rank.thread_blocks)} thread blocks; {target.name} holds "
                f"{target.thread_blocks} per rank: use fewer trees"
            )
        for s, value in enumerate(rank.semaphores):
            if not 0 <= value < 2**31:
                raise PlanError(
                    f"rank {r}: semaphore {s} starts at {value}; it must be 0 to 2^31-1"
                )
        for b, block in enumerate(rank.thread_blocks):
            for step, words in _limit_faults(block, target):
                raise PlanError(f"{where(r, b, *step)}: {words}")


def _far(program: Program) -> set[int]:
    """The ranks with ports to other nodes."""
    of = [place.node for place in places(program.names, program.n).places]
    return {
        r
        for r, rank in enumerate(program.ranks)
        for block in rank.thread_blocks
        for channel in block.channels
        if channel.kind == "port" and of[channel.peer] != of[r]
    }


def _limit_faults(block: ThreadBlock, target: Target) -> Iterator[tuple[tuple[int, ...], str]]:
    """The step, if it is of one, and what is wrong."""
    held = sum(len(step.body) + 1 if isinstance(step, Pipeline) else 1 for step in block.steps)
    if held > target.steps:
        yield (
            (),
            f"{held} operations (pipelines and what is in them counted alike); {target.name} holds "
            f"{target.steps}: use fewer trees or more thread blocks",
        )
    if len(block.switches) > MAX_SWITCHES:
        yield (
            (),
            f"{len(block.switches)} switches; {target.name} holds {MAX_SWITCHES} in a thread "
            "block: use more thread blocks",
        )
    remote: dict[str, set[tuple[int | None, str]]] = {"memory": set(), "port": set()}
    for kind in remote:
        channels = sum(channel.kind == kind for channel in block.channels)
        if channels > target.channels:
            yield (
                (),
                f"{channels} {kind} channels; {target.name} holds {target.channels} of a kind in a "
                "thread block: use more thread blocks",
            )
    for s, step in enumerate(block.steps):
        if isinstance(step, Pipeline) and step.unit_bytes % ALIGNMENT:
            yield (
                (s,),
                f"a pipeline unit of {step.unit_bytes} bytes; the runtime works in blocks of "
                f"{ALIGNMENT}, make it a multiple",
            )
    for s, operation in block.instructions():
        yield from (((s,), words) for words in _operation_faults(operation, target))
        for ref in operation.src + operation.dst:
            if ref.rank is not None:
                remote[kind_of(block, operation)].add((ref.rank, ref.buffer))
    for kind, buffers in remote.items():
        if len(buffers) > MAX_REMOTE:
            yield (
                (),
                f"reaches {len(buffers)} remote buffers by {kind} channels; {target.name} holds "
                f"{MAX_REMOTE}: use more thread blocks",
            )


def _operation_faults(step: Instruction, target: Target) -> Iterator[str]:
    for numbers, what, most in (
        (step.channels, "over {} channels", MAX_IDS),
        (step.semaphores, "of {} semaphores", MAX_SEMAPHORES),
    ):
        if len(numbers) > most:
            yield (
                f"{step.op} {what.format(len(numbers))}; {target.name} holds {most} in one "
                "operation: make it several"
            )
    if step.op is Op.BARRIER and step.ident >= MAX_BARRIERS:
        yield f"barrier {step.ident}; {target.name} has barriers 0 to {MAX_BARRIERS - 1}"
    if step.op is Op.FLUSH:
        yield (
            f"flush does nothing in {target.name}; use put_signal_flush, or wait for the peer's "
            "answer before the source is written again"
        )
    if step.op is Op.GET and any(
        a.offset != b.offset for a, b in zip(step.src, step.dst, strict=True)
    ):
        yield (
            f"get from one chunk number to another; {target.name} swaps the two, so only equal "
            "ones work: let the peer put"
        )
    for ref in step.src + step.dst:
        if ref.count > target.count:
            yield f"{ref.count} chunks in one step; {target.name} holds {target.count}"


def largest_size(program: Program) -> int:
    """The largest size in bytes (nccl-tests' size) that the runtime runs right; 0 if none.

    Offsets and sizes are 32-bit numbers of bytes on the device, rounds of a pipeline 16-bit ones.
    """
    total = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
    factor = program.scratch_factor
    most = max(
        max(r.input_chunks, r.output_chunks, r.scratch_chunks * factor) for r in program.ranks
    )
    chunk = (2**32 - 1) // most
    for rank in program.ranks:
        for block in rank.thread_blocks:
            for step in block.steps:
                if isinstance(step, Pipeline):
                    chunk = min(chunk, (2**16 - 1) * step.unit_bytes // step.chunks)
    return chunk // ALIGNMENT * ALIGNMENT * total
