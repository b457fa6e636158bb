"""MSCCL++ execution plans: `dumps` writes what loader and kernel really run, `loads` reads.

The schema is that of microsoft/mscclpp (execution_plan.cc). Three id spaces, none of them checked
by the loader, are numbered here: a rank's channels of one kind, a thread block's own list of them,
and the remote buffers that it reaches by one kind of channel. docs/plans.md has the limits.

A program that is right in itself is asked first whether the format and its runtime hold it:
PlanError names rank, thread block, step, the limit and the figure. The limits are those of
microsoft/mscclpp (execution_common.hpp, execution_kernel.hpp, executor.cc).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, islice, repeat
from typing import Any

from forestcoll.common.errors import PlanError
from forestcoll.plans.rules import check_group, check_header
from forestcoll.program import (
    DATA,
    OPERATIONS,
    PACKETS,
    PUTS,
    SPREADS,
    SYNCS,
    Buffer,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    Step,
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
    for r, b, block in program.blocks():
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
    packets = any(i.op in PACKETS for *_, i in program.instructions())
    if program.protocol not in ("Simple", "LL") or (program.protocol == "LL") != packets:
        has = "has packet operations" if packets else "has no packet operations"
        raise PlanError(
            f"protocol {program.protocol}, but the program {has}: for MSCCL++ LL is just that "
            f"there are some, and everything else is Simple"
        )
    check_halves(program)
    of = [place.node for place in places(program.names, program.n).places]
    far = {  # with ports to other nodes
        r
        for r, _, block in program.blocks()
        for channel in block.channels
        if channel.kind == "port" and of[channel.peer] != of[r]
    }
    check_group(target, program.names, far, program.name)
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
    for *_, block in program.blocks():
        for step in block.steps:
            if isinstance(step, Pipeline):
                chunk = min(chunk, (2**16 - 1) * step.unit_bytes // step.chunks)
    return chunk // ALIGNMENT * ALIGNMENT * total


# What the loader itself can hold; a target narrows it to what runs on its devices.
FORMAT_LIMITS = Target(
    "MSCCL++ JSON", "mscclpp-json", "onesided", 4096, 64, 16, 2**31 - 1, 4096, False
)
THREADS = 1024  # threads of a thread block
WIDTH = 100  # of a line; what does not fit is broken up

_KINDS = ("memory", "port")
_BUFFERS = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
_TYPES = {buffer: f'"type": "{buffer.value}"' for buffer in _BUFFERS}


def dumps(program: Program, target: Target | None = None, *, in_place: bool | None = None) -> str:
    """The plan as JSON text, ending in a newline; `loads` gives back an equal Program.

    A plan serves in-place or out-of-place calls, never both: `in_place` chooses. None takes what
    the program can do, and where it can do both, in place unless the collective changes the size,
    which is how frameworks call. Raises PlanError, naming limit, figure, rank and thread block,
    for what the runtime would refuse or silently run as something else.
    """
    limits = FORMAT_LIMITS if target is None else target
    if limits.format != "mscclpp-json":
        raise PlanError(f"target {limits.name} reads {limits.format}, not MSCCL++ JSON")
    check_header(program)
    check_structure(program)
    check_limits(program, limits)
    for name in (program.name, *program.names):
        if any(0xD800 <= ord(char) <= 0xDFFF for char in name):
            raise PlanError(f"the name {name!r} has a character outside Unicode")
    name, word = program.name, program.collective.value
    document = {
        "name": name if word in name else f"{name}.{word}".lstrip("."),
        "collective": program.collective.definition.plan_word,
        "protocol": program.protocol,
        "inplace": _choose_place(program, in_place),
        "reuse_resources": False,
        "use_double_scratch_buffer": program.double_scratch,
        "buffer_alignment": ALIGNMENT,
        "num_threads_per_block": THREADS,
        "min_message_size": program.min_bytes,
        "max_message_size": _largest_call(program),
        "forestcoll": _own(program),
        "gpus": [_gpu(r, rank) for r, rank in enumerate(program.ranks)],
    }
    # The runtime keeps one context per name: two plans of one process must never share theirs.
    text = render(document) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    bare, full = json.dumps(document["name"]), json.dumps(f"{document['name']}.{digest}")
    return text.replace(bare, full, 1)  # the first string value of the text is the name


def _choose_place(program: Program, in_place: bool | None) -> bool:
    if in_place is None:
        apart = program.collective.definition.apart
        return program.in_place and not (apart and program.out_of_place)
    if not (program.in_place if in_place else program.out_of_place):
        wanted = "in-place" if in_place else "out-of-place"
        raise PlanError(f"the program is not right for {wanted} calls, so no plan for them exists")
    return in_place


def _largest_call(program: Program) -> int:
    """The largest size that the plan serves: as asked for, within what the device can count."""
    largest = largest_size(program)
    if max(program.min_bytes, program.max_bytes) > largest:
        raise PlanError(
            f"sizes {program.min_bytes} to {program.max_bytes or 'any'}: offsets of 32 bits and "
            f"65535 rounds of a pipeline end this plan at {largest} bytes; lower max_bytes, or "
            f"give 0 for the largest that works"
        )
    if program.min_bytes >= 2**31:
        raise PlanError(
            f"min_bytes {program.min_bytes}: the loader reads it as a 32-bit number; at most "
            f"{2**31 - 1} works"
        )
    return program.max_bytes or largest


def _own(program: Program) -> dict[str, Any]:
    """What only this package reads; the loader ignores fields that it does not know."""
    own: dict[str, Any] = {
        "name": program.name,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
    }
    if program.collective.has_root:
        own["root"] = program.root
    if program.names:
        own["names"] = list(program.names)
    if "sums" in program.extra:
        own["sums"] = program.extra["sums"]
    if program.max_bytes == largest_size(program):
        own["max_bytes"] = program.max_bytes  # else reading would take it for "no limit"
    return own


def _gpu(r: int, rank: RankProgram) -> dict[str, Any]:
    flat = _flat_channels(rank)
    buffers = _remote_buffers(rank)
    switches = switches_of(rank)
    return {
        "id": r,
        "input_chunks": rank.input_chunks,
        "output_chunks": rank.output_chunks,
        "scratch_chunks": rank.scratch_chunks,
        "channels": [
            {"channel_type": kind, "connected_to": [peer for peer, _ in flat[kind]]}
            for kind in _KINDS
            if flat[kind]
        ]
        + [_switch(switch) for switch in switches],
        "remote_buffers": [
            _line({"rank": peer, "type": buffer.value, "access_channel_types": kinds})
            for (peer, buffer), kinds in buffers.items()
        ],
        "semaphores": [{"init_value": value} for value in rank.semaphores],
        "threadblocks": [
            _Writer(block, flat, list(buffers), switches).threadblock(b)
            for b, block in enumerate(rank.thread_blocks)
        ],
    }


def _switch(switch: Switch) -> dict[str, Any]:
    # one entry a group: entries with several make a channel of each all the same
    group = {"size": len(switch.ranks), "ranks": list(switch.ranks)}
    return {
        "channel_type": "switch",
        "buffer_type": switch.buffer.value,
        "rank_groups": [group],
    }


def _flat_channels(rank: RankProgram) -> dict[str, dict[tuple[int, int], int]]:
    """Per kind, (peer, number) of every channel of the rank, in order, to its place in the list."""
    most: dict[tuple[str, int], int] = {}
    for block in rank.thread_blocks:
        for channel in block.channels:
            key = (channel.kind, channel.peer)
            most[key] = max(most.get(key, 0), channel.index + 1)
    flat: dict[str, dict[tuple[int, int], int]] = {kind: {} for kind in _KINDS}
    for kind, peer in sorted(most):
        for index in range(most[kind, peer]):
            flat[kind][peer, index] = len(flat[kind])
    return flat


def _remote_buffers(rank: RankProgram) -> dict[tuple[int, Buffer], list[str]]:
    """The buffers of others that a rank touches, in order, and by which kinds of channel."""
    kinds: dict[tuple[int, Buffer], set[str]] = {}
    for block in rank.thread_blocks:
        for _, step in block.instructions():
            for ref in step.src + step.dst:
                if ref.rank is not None:
                    kinds.setdefault((ref.rank, ref.buffer), set()).add(kind_of(block, step))
    order = sorted(kinds, key=lambda key: (key[0], _BUFFERS.index(key[1])))
    return {key: sorted(kinds[key]) for key in order}


class Line(str):
    """JSON text of a value, on one line: what is made once need not be rendered again."""

    __slots__ = ()


class Fields(tuple[str, ...]):
    """JSON texts of an object's fields, each on one line."""


class _Writer:
    """Writes one thread block and numbers its own channels and remote buffers."""

    def __init__(
        self,
        block: ThreadBlock,
        flat: dict[str, dict[tuple[int, int], int]],
        buffers: list[tuple[int, Buffer]],
        switches: list[Switch],
    ) -> None:
        self.block, self.flat, self.buffers, self.switches = block, flat, buffers, switches
        self.refs: dict[str, dict[tuple[int, Buffer], int]] = {}
        kinds = [channel.kind for channel in block.channels]
        self.own_ids = [kinds[:c].count(kind) for c, kind in enumerate(kinds)]

    def threadblock(self, b: int) -> dict[str, Any]:
        operations = [self.step(step) for step in self.block.steps]
        place = {key: k for k, key in enumerate(self.buffers)}
        switches = [self.switches.index(switch) for switch in self.block.switches]
        return {
            "id": b,
            # A run of one kind is an entry, so that the order of the list survives.
            "channels": [
                {
                    "channel_type": kind,
                    "channel_ids": [self.flat[kind][c.peer, c.index] for c in run],
                }
                for kind, run in groupby(self.block.channels, key=lambda channel: channel.kind)
            ]
            + [{"channel_type": "switch", "channel_ids": ids} for ids in (switches,) if ids],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": [place[key] for key in refs]}
                for kind, refs in sorted(self.refs.items())
            ],
            "ops": operations,
        }

    def step(self, step: Step) -> dict[str, Any] | Line | Fields:
        if isinstance(step, Pipeline):
            return {
                "name": "pipeline",
                "iter_context": _line({"unit_size": step.unit_bytes, "num_chunks": step.chunks}),
                "ops": [self.operation(inner) for inner in step.body],
            }
        return self.operation(step)

    def operation(self, step: Instruction) -> Line | Fields:
        kind = kind_of(self.block, step)
        ids = tuple([self.own_ids[c] for c in step.channels])
        if step.op not in DATA:
            return _synchronisation(step.op, kind, ids, step.semaphores, step.ident, step.group)
        out = [f'"name": "{OPERATIONS[step.op].json}"']
        if step.switches or any(ref.rank is not None for ref in step.src + step.dst):
            out.append(f'"channel_type": "{"switch" if step.switches else kind}"')
        if ids:
            out.append(f'"channel_ids": {list(ids)}')
        # The kernel takes the i-th source for the i-th destination and never repeats one.
        puts = step.op in SPREADS
        src = step.src * (len(step.dst) if puts and len(step.src) == 1 else 1)
        plain = [-1] * (len(src) + len(step.dst) - len(step.switches))
        refs = map(self.operand, (*src, *step.dst), repeat(kind), (*plain, *step.switches))
        out.append(f'"src_buff": [{", ".join(islice(refs, len(src)))}]')
        out.append(f'"dst_buff": [{", ".join(refs)}]')
        if step.part != (0, 1):
            out.append(f'"tbg_info": {{"tb_id": {step.part[0]}, "tbg_size": {step.part[1]}}}')
        return Fields(out)

    def operand(self, ref: Ref, kind: str, switch: int) -> str:
        if switch >= 0:
            where = f'"switch_channel_id": {switch}'
        elif ref.rank is None:
            where = _TYPES[ref.buffer]
        else:
            refs = self.refs.setdefault(kind, {})
            where = f'"buffer_id": {refs.setdefault((ref.rank, ref.buffer), len(refs))}'
        return f'{{{where}, "index": {ref.offset}, "size": {ref.count}}}'


def _line(value: dict[str, Any]) -> Line:
    return Line(json.dumps(value))


@lru_cache(maxsize=4096)
def _synchronisation(
    op: Op, kind: str, ids: tuple[int, ...], semaphores: tuple[int, ...], ident: int, group: int
) -> Line:
    """An operation without operands: there are few different ones, and many of each."""
    out: dict[str, Any] = {"name": OPERATIONS[op].json}
    if op in SYNCS:
        out["channel_type"] = kind
    if ids:
        out["channel_ids"] = ids
    if op is Op.BARRIER:
        out["barrier_id"], out["num_threadblocks"] = ident, group
    if semaphores:
        out["semaphore_ids"] = semaphores
    return _line(out)


def render(value: Any, indent: int = 0, room: int = WIDTH) -> str:
    """JSON text of plain values; a list or object stands on one line where it fits `room`."""
    if isinstance(value, Line):
        return value if len(value) <= room else render(json.loads(value), indent, room)
    wide = WIDTH - indent - 3
    if isinstance(value, Fields) and max(map(len, value)) > wide:
        value = json.loads(f"{{{', '.join(value)}}}")
    if not isinstance(value, (dict, list, Fields)):
        return _plain(value)
    if not value:
        return str(value)
    pad = " " * (indent + 2)
    left, right, items = "{", "}", value
    if isinstance(value, dict):
        labels = [f"{_plain(key)}: " for key in value]
        items = [
            label + render(item, indent + 2, wide - len(label))
            for label, item in zip(labels, value.values(), strict=True)
        ]
    elif isinstance(value, list):
        left, right = "[", "]"
        items = [render(item, indent + 2, wide) for item in value]
    line = left + ", ".join(items) + right
    if len(line) <= room and "\n" not in line:
        return line
    body = f",\n{pad}".join(items)
    return f"{left}\n{pad}{body}\n{' ' * indent}{right}"


_plain = lru_cache(4096, typed=True)(json.dumps)
