"""Checks of onesided programs: `check_structure` for all, `check_limits` for writers.

Both return nothing; PlanError names rank, thread block, step, the limit and the figure. The limits
are those of microsoft/mscclpp (execution_common.hpp, execution_kernel.hpp, executor.cc).
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.errors import PlanError
from forestcoll.plans.mscclpp.packets import check_packet, check_protocol
from forestcoll.plans.mscclpp.switches import (
    check_block,
    check_groups,
    check_number,
    check_switched,
)
from forestcoll.plans.rules import check_equal_counts, check_ref, place
from forestcoll.program import (
    CHANNELLED,
    DATA,
    OPERATIONS,
    PACKETS,
    PUTS,
    SEMAPHORES,
    SYNCS,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Step,
    ThreadBlock,
)
from forestcoll.targets import Target

MAX_REFS = 10  # sources, or destinations, of one operation
MAX_REMOTE = 16  # remote buffers that a thread block reaches by one kind of channel
MAX_IDS = 8  # channels of one operation
MAX_SEMAPHORES = 16  # semaphores of one operation
MAX_BARRIERS = 16  # barrier ids of a rank
MAX_INDEX = 1023  # parallel channels of one kind between two ranks
ALIGNMENT = 16  # bytes; chunks and slices are multiples of it

At = tuple[int, int, int]


def body_of(step: Step) -> tuple[Instruction, ...]:
    """The instructions of a step: the body of a pipeline, or the step itself."""
    return step.body if isinstance(step, Pipeline) else (step,)


def operations_of(block: ThreadBlock) -> Iterator[tuple[int, Instruction]]:
    """(step, instruction) of a thread block, bodies of pipelines included."""
    for s, step in enumerate(block.steps):
        for instruction in body_of(step):
            yield s, instruction


def kind_of(block: ThreadBlock, step: Instruction) -> str:
    """The kind of channel that an operation goes over; without channels it is memory."""
    return block.channels[step.channels[0]].kind if step.channels else "memory"


def check_structure(program: Program) -> None:
    """PlanError unless every operation has the operands, channels and semaphores that it needs."""
    if program.style != "onesided":
        raise PlanError(
            f"MSCCL++ JSON holds onesided programs; this one is {program.style} "
            f"(MSCCL XML holds those)"
        )
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            _check_block(program, r, b, block)
            check_block(program, r, b, block)
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline):
                    _check_pipeline(step, (r, b, s))
                for instruction in body_of(step):
                    _check_operation(program, rank, block, instruction, (r, b, s))


def _check_block(program: Program, r: int, b: int, block: ThreadBlock) -> None:
    if block.recv != -1 or block.send != -1 or block.channel:
        raise PlanError(f"{place(r, b)}: recv, send and channel belong to fifo programs")
    for channel in block.channels:
        if not 0 <= channel.peer < program.n:
            raise PlanError(
                f"{place(r, b)}: a channel to rank {channel.peer}; ranks are 0 to {program.n - 1}"
            )
        if channel.peer == r:
            raise PlanError(f"{place(r, b)}: a channel of rank {r} to itself")
        if channel.kind not in ("memory", "port"):
            raise PlanError(f"{place(r, b)}: a {channel.kind} channel; only memory and port exist")
        if not 0 <= channel.index <= MAX_INDEX:
            raise PlanError(
                f"{place(r, b)}: channel number {channel.index} to rank {channel.peer}; at most "
                f"{MAX_INDEX + 1} run side by side, counted from 0"
            )


def _check_pipeline(step: Pipeline, at: At) -> None:
    if not step.body:
        raise PlanError(f"{place(*at)}: a pipeline without operations")
    if step.chunks < 1:
        raise PlanError(
            f"{place(*at)}: a pipeline over {step.chunks} chunks; it needs one at least"
        )
    if not 1 <= step.unit_bytes < 2**32:
        raise PlanError(
            f"{place(*at)}: a pipeline unit of {step.unit_bytes} bytes; it must be 1 to 2^32 - 1"
        )
    for instruction in step.body:
        if instruction.op not in DATA:
            continue
        if instruction.op in PACKETS:
            raise PlanError(
                f"{place(*at)}: {instruction.op} in a pipeline; the runtime would do all of it in "
                f"every round"
            )
        counts = {ref.count for ref in instruction.src + instruction.dst}
        if counts != {step.chunks} or instruction.part != (0, 1):
            raise PlanError(
                f"{place(*at)}: {instruction.op} in a pipeline over {step.chunks} chunks covers "
                f"{', '.join(map(str, sorted(counts)))} chunks, part {instruction.part}; it must "
                f"cover exactly the pipeline's, or the runtime copies beyond them"
            )


def _check_operation(
    program: Program, rank: RankProgram, block: ThreadBlock, step: Instruction, at: At
) -> None:
    if step.after:
        raise PlanError(
            f"{place(*at)}: `after` belongs to fifo programs; use semaphores or a barrier"
        )
    if not OPERATIONS[step.op].json:
        raise PlanError(f"{place(*at)}: {step.op} is a fifo operation; MSCCL++ JSON has none")
    _check_unused(step, at)
    _check_channels(block, step, at)
    if step.op in DATA:
        _check_operands(program, step, at)
        if step.op in PUTS:
            _check_put(block, step, at)
        check_packet(program, block, step, at)
    check_switched(program, block, step, at)
    for semaphore in step.semaphores:
        if not 0 <= semaphore < len(rank.semaphores):
            raise PlanError(
                f"{place(*at)}: semaphore {semaphore}; the rank has {len(rank.semaphores)}"
            )
    if step.op is Op.BARRIER and (step.ident < 0 or not 1 <= step.group <= len(rank.thread_blocks)):
        raise PlanError(
            f"{place(*at)}: barrier {step.ident} of {step.group} thread blocks; the rank has "
            f"{len(rank.thread_blocks)}"
        )


def _check_unused(step: Instruction, at: At) -> None:
    """The runtime keeps groups of fields in the same bytes: an operation may only use its own."""
    data, sync = step.op in DATA, step.op in SYNCS
    for field, given, allowed in (
        ("src and dst", step.src or step.dst, data),
        ("channels", step.channels, (data and step.op in CHANNELLED) or sync),
        ("semaphores", step.semaphores, step.op in SEMAPHORES),
        ("ident and group", step.ident or step.group, step.op is Op.BARRIER),
        ("part", step.part != (0, 1), data),
    ):
        if given and not allowed:
            raise PlanError(f"{place(*at)}: {step.op} has no {field}")
    if sync and not step.channels:
        raise PlanError(f"{place(*at)}: {step.op} without a channel")
    if step.op in SEMAPHORES and not step.semaphores:
        raise PlanError(f"{place(*at)}: {step.op} without a semaphore")
    index, size = step.part
    if not 0 <= index < size < 2**31:
        raise PlanError(f"{place(*at)}: part {index} of {size} does not exist")


def _check_channels(block: ThreadBlock, step: Instruction, at: At) -> None:
    for c in step.channels:
        if not 0 <= c < len(block.channels):
            raise PlanError(
                f"{place(*at)}: channel {c}; the thread block has {len(block.channels)}"
            )
    kinds = {block.channels[c].kind for c in step.channels}
    if len(kinds) > 1:
        raise PlanError(f"{place(*at)}: {step.op} mixes memory and port channels; make it two")
    if step.op in DATA and "port" in kinds and "port" not in OPERATIONS[step.op].kinds:
        raise PlanError(f"{place(*at)}: {step.op} works over memory channels only, not port ones")


def _check_operands(program: Program, step: Instruction, at: At) -> None:
    row = OPERATIONS[step.op]
    most = 1 if step.op is Op.COPY else MAX_REFS
    for what, refs, (low, high), remote in (
        ("sources", step.src, row.src, row.remote_src),
        ("destinations", step.dst, row.dst, row.remote_dst),
    ):
        high = min(high, most)
        if not low <= len(refs) <= high:
            numbers = f"{low}" if low == high else f"{low} to {high}"
            raise PlanError(f"{place(*at)}: {step.op} has {len(refs)} {what}; it needs {numbers}")
        for k, ref in enumerate(refs):
            if (ref.rank is not None) != (k >= remote):
                side = "another rank's" if k >= remote else "local"
                raise PlanError(f"{place(*at)}: {what}[{k}] of {step.op} must be {side} memory")
            if ref.rank == at[0]:
                raise PlanError(f"{place(*at)}: {what}[{k}] of {step.op} is remote, but on itself")
            check_ref(program, at[0], ref, at)
    check_equal_counts(step.src + step.dst, step.op, at)
    if step.op is Op.GET and len(step.src) != len(step.dst):
        raise PlanError(
            f"{place(*at)}: get of {len(step.src)} sources to {len(step.dst)} destinations"
        )


def _check_put(block: ThreadBlock, step: Instruction, at: At) -> None:
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
    port = kind_of(block, step) == "port"
    if step.op is not Op.PUT and not port:
        raise PlanError(
            f"{place(*at)}: {step.op} needs port channels: over memory channels the runtime "
            f"would never signal; use put, nop, signal"
        )
    if not port and len({ref.buffer for ref in step.src}) > 1:
        raise PlanError(
            f"{place(*at)}: the sources of a put over memory channels lie in one buffer: the "
            f"runtime takes the first one's for all"
        )
    if (port or step.channels) and len(step.channels) != len(step.dst):
        raise PlanError(
            f"{place(*at)}: {step.op} to {len(step.dst)} destinations over "
            f"{len(step.channels)} channels; it needs one each"
        )
    for c, ref in zip(step.channels, step.dst, strict=False):
        if block.channels[c].peer != ref.rank:
            raise PlanError(
                f"{place(*at)}: {step.op} to rank {ref.rank} over a channel to rank "
                f"{block.channels[c].peer}"
            )


def check_limits(program: Program, target: Target) -> None:
    """PlanError where the runtime would refuse the plan, or silently run another one."""
    check_protocol(program)
    check_groups(program)
    for r, rank in enumerate(program.ranks):
        if not rank.thread_blocks:
            raise PlanError(
                f"rank {r} has no thread block; the runtime cannot launch an empty rank"
            )
        if len(rank.thread_blocks) > target.thread_blocks:
            raise PlanError(
                f"rank {r} has {len(rank.thread_blocks)} thread blocks; {target.name} holds "
                f"{target.thread_blocks} a rank: use fewer trees"
            )
        for s, value in enumerate(rank.semaphores):
            if not 0 <= value < 2**31:
                raise PlanError(
                    f"rank {r}: semaphore {s} starts at {value}; it must be 0 to 2^31-1"
                )
        for b, block in enumerate(rank.thread_blocks):
            _check_block_limits(r, b, block, target)
            check_number(r, b, block)


def _check_block_limits(r: int, b: int, block: ThreadBlock, target: Target) -> None:
    held = sum(len(step.body) + 1 if isinstance(step, Pipeline) else 1 for step in block.steps)
    if held > target.steps:
        raise PlanError(
            f"{place(r, b)}: {held} operations (pipelines and what is in them counted alike); "
            f"{target.name} holds {target.steps}: use fewer trees or more thread blocks"
        )
    remote: dict[str, set[tuple[int | None, str]]] = {"memory": set(), "port": set()}
    for kind in ("memory", "port"):
        channels = sum(channel.kind == kind for channel in block.channels)
        if channels > target.channels:
            raise PlanError(
                f"{place(r, b)}: {channels} {kind} channels; {target.name} holds "
                f"{target.channels} of a kind in a thread block: use more thread blocks"
            )
    for s, step in enumerate(block.steps):
        if isinstance(step, Pipeline) and step.unit_bytes % ALIGNMENT:
            raise PlanError(
                f"{place(r, b, s)}: a pipeline unit of {step.unit_bytes} bytes; the runtime works "
                f"in blocks of {ALIGNMENT}, make it a multiple"
            )
    for s, operation in operations_of(block):
        _check_operation_limits(operation, target, (r, b, s))
        for ref in operation.src + operation.dst:
            if ref.rank is not None:
                remote[kind_of(block, operation)].add((ref.rank, ref.buffer))
    for kind, buffers in remote.items():
        if len(buffers) > MAX_REMOTE:
            raise PlanError(
                f"{place(r, b)}: reaches {len(buffers)} remote buffers by {kind} channels; "
                f"{target.name} holds {MAX_REMOTE}: use more thread blocks"
            )


def _check_operation_limits(step: Instruction, target: Target, at: At) -> None:
    if len(step.channels) > MAX_IDS:
        raise PlanError(
            f"{place(*at)}: {step.op} over {len(step.channels)} channels; {target.name} holds "
            f"{MAX_IDS} in one operation: make it several"
        )
    if len(step.semaphores) > MAX_SEMAPHORES:
        raise PlanError(
            f"{place(*at)}: {step.op} of {len(step.semaphores)} semaphores; {target.name} holds "
            f"{MAX_SEMAPHORES} in one operation: make it several"
        )
    if step.op is Op.BARRIER and step.ident >= MAX_BARRIERS:
        raise PlanError(
            f"{place(*at)}: barrier {step.ident}; {target.name} has barriers 0 to "
            f"{MAX_BARRIERS - 1}"
        )
    if step.op is Op.FLUSH:
        raise PlanError(
            f"{place(*at)}: flush does nothing in {target.name}; use put_signal_flush, or wait "
            f"for the peer's answer before the source is written again"
        )
    if step.op is Op.GET and any(
        a.offset != b.offset for a, b in zip(step.src, step.dst, strict=True)
    ):
        raise PlanError(
            f"{place(*at)}: get from one chunk number to another; {target.name} swaps the two, so "
            f"only equal ones work: let the peer put"
        )
    for ref in step.src + step.dst:
        if ref.count > target.count:
            raise PlanError(
                f"{place(*at)}: {ref.count} chunks in one step; {target.name} holds {target.count}"
            )


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
