"""From an MSCCL++ execution plan to the Program that the runtime would run.

The JSON is read strictly (no duplicate keys, no NaN, bounded size and depth), and every number that
the loader takes as an index without a look is checked here, with rank, thread block and operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, cast

from forestcoll.common.errors import PlanError, UnsupportedError, did_you_mean
from forestcoll.common.input_limits import BLOCKS, CHUNKS, INSTRUCTIONS, RANKS
from forestcoll.plans.mscclpp import header
from forestcoll.plans.mscclpp.rules import (
    ALIGNMENT,
    MAX_INDEX,
    body_of,
    check_limits,
    check_structure,
    largest_size,
)
from forestcoll.plans.mscclpp.text import List, Object, parse, raises
from forestcoll.plans.rules import (
    MAX_BYTES,
    Notes,
    check_header,
)
from forestcoll.program import (
    BY_JSON,
    DATA,
    FABRIC,
    PACKETS,
    SPREADS,
    Buffer,
    Channel,
    Collective,
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
from forestcoll.program.targets import MSCCLPP

_TOP = 2**31 - 1

UNSUPPORTED = {
    "gstorepkt": "a multicast of packets by an NVLS switch",
    "glre": "a reduction in an NVLS switch (the runtime does not know it either)",
}
_BUFFERS = {buffer.value: buffer for buffer in Buffer}
Kind = Literal["memory", "port"]


@dataclass(slots=True)
class _Rank:
    """What operations of a rank refer to, flattened as the loader does it."""

    channels: dict[str, list[Channel]] = field(default_factory=dict)
    buffers: list[tuple[int, Buffer, frozenset[str]]] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """What is kept while a plan is read."""

    notes: Notes
    n: int
    count: int = 0  # of operations so far
    # equal references share one object, and so do equal operations without any
    refs: dict[Ref, Ref] = field(default_factory=dict)
    plain: dict[tuple[object, ...], Instruction] = field(default_factory=dict)


def loads(
    text: str, source: str, *, check: bool = True, collective: Collective | None = None
) -> Program:
    """The Program in an execution plan's text; `source` names it in errors.

    Reads plans of the MSCCL++ DSL too. `Program.extra["notes"]` says, a line each, what the runtime
    does differently from what the plan says. UnsupportedError for reused resources, packets through
    switches, and two halves of scratch without packets; PlanError for what is wrong.

    Without `check` it may hold ranges and operations that no runtime would survive; a linter says
    more about those. `collective` stands in for what the file says.
    """
    value = parse(text, raises(source))
    assert value is not None  # else it raised
    top = Object(source, "", value)
    if not top.has("gpus"):
        hint = "; this looks like a forest file" if top.has("trees") else ""
        raise PlanError(f"{source}: no 'gpus', so it is no MSCCL++ plan{hint}")
    notes = Notes()
    name = top.text("name")
    collective = collective or header.read_collective(top, notes)
    gpus = top.list("gpus")
    if not 1 <= len(gpus) <= RANKS:
        raise gpus.fail(f"{len(gpus)} ranks; a plan has 1 to {RANKS} {RANKS.note}")
    reader = _Reader(notes, len(gpus))
    ranks = tuple(_read_rank(reader, r, gpus.object(r, f"rank {r}")) for r in range(len(gpus)))
    protocol, double = header.read_protocol(top, notes, ranks)
    steps = (step for rank in ranks for block in rank.thread_blocks for step in block.steps)
    if protocol == "LL" and not any(i.op in PACKETS for step in steps for i in body_of(step)):
        notes.add("protocol 'LL' without packets: the runtime does the same as for 'Simple'")
        protocol, double = "Simple", False
    own = top.object("forestcoll") if top.has("forestcoll") else None
    in_place, out_of_place = header.read_places(top, own)
    low, high = header.read_sizes(top, notes)
    program = Program(
        name=own.text("name") if own and own.has("name") else name,
        collective=collective,
        style="onesided",
        ranks=ranks,
        in_place=in_place,
        out_of_place=out_of_place,
        root=header.read_root(collective, own, len(ranks), notes),
        names=header.read_names(own, len(ranks)),
        min_bytes=low,
        max_bytes=high,
        protocol=protocol,
        double_scratch=double,
        extra={
            key: str(top.integer(key, 1, 2**20)) if top.has(key) else str(usual)
            for key, usual in (("buffer_alignment", ALIGNMENT), ("num_threads_per_block", 1024))
        },
    )
    return _checked(program, own, notes, source) if check else program


def _checked(program: Program, own: Object | None, notes: Notes, source: str) -> Program:
    """The program after the checks that need all of it, with its notes."""
    try:
        check_header(program)
        check_structure(program)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    try:
        check_limits(program, MSCCLPP)
    except PlanError as error:
        notes.add(f"the runtime cannot run it: {error}")
    # The format has no way to say "no limit"; all that the device can count means just that,
    # unless the file adds that the number is meant.
    largest = largest_size(program)
    meant = own is not None and own.has("max_bytes") and own.integer("max_bytes", 0, MAX_BYTES)
    limited = program.max_bytes < largest or meant == program.max_bytes
    return replace(
        program,
        max_bytes=program.max_bytes if limited else 0,
        extra=program.extra | notes.extra("mscclpp-json"),
    )


def _read_rank(reader: _Reader, r: int, gpu: Object) -> RankProgram:
    if gpu.integer("id", 0, _TOP) != r:
        raise gpu.fail(f"id {gpu.integer('id', 0, _TOP)} at position {r}; they must be equal")
    rank = _Rank(
        _read_channels(reader.n, gpu),
        _read_remote_buffers(reader.n, gpu),
        _read_switches(reader.n, gpu),
    )
    semaphores = _objects(gpu, "semaphores")
    blocks = gpu.list("threadblocks")
    if len(blocks) > BLOCKS:
        raise blocks.fail(f"{len(blocks)} thread blocks {BLOCKS.note}")
    return RankProgram(
        tuple(
            _read_block(reader, rank, b, blocks.object(b, f"rank {r}, thread block {b}"))
            for b in range(len(blocks))
        ),
        input_chunks=gpu.integer("input_chunks", 1, CHUNKS),
        output_chunks=gpu.integer("output_chunks", 1, CHUNKS),
        scratch_chunks=gpu.integer("scratch_chunks", 0, CHUNKS),
        semaphores=tuple(s.integer("init_value", -(2**31), _TOP) for s in semaphores),
    )


def _read_channels(n: int, gpu: Object) -> dict[str, list[Channel]]:
    """Per kind, the rank's channels in order; the k-th to one peer has number k."""
    flat: dict[str, list[Channel]] = {"memory": [], "port": []}
    seen: dict[tuple[str, int], int] = {}
    entries = gpu.list("channels")
    for k in range(len(entries)):
        entry = entries.object(k)
        kind = _kind(entry, "channel_type")
        if kind == "switch":
            continue
        if kind == "none":
            raise entry.fail("a channel of type 'none'")
        peers = entry.list("connected_to")
        for p in range(len(peers)):
            peer = peers.integer(p, 0, n - 1)
            index = seen.get((kind, peer), 0)
            if index > MAX_INDEX:
                raise peers.fail(f"more than {MAX_INDEX + 1} {kind} channels to rank {peer}")
            seen[kind, peer] = index + 1
            flat[kind].append(Channel(peer, cast("Kind", kind), index))
    return flat


def _read_switches(n: int, gpu: Object) -> list[Switch]:
    """The rank's switch channels: one a group, in order.

    Ranks may list a group in any order: the runtime sets it up at its lowest rank.
    """
    found = []
    entries = gpu.list("channels")
    for k in range(len(entries)):
        entry = entries.object(k)
        if _kind(entry, "channel_type") != "switch":
            continue
        word = entry.text("buffer_type")
        if word not in _BUFFERS:
            raise entry.fail(f"buffer_type {word[:40]!r}; buffers are 'i', 'o' and 's'")
        groups = entry.list("rank_groups")
        for g in range(len(groups)):
            ranks = groups.object(g).list("ranks")
            group = sorted(ranks.integer(p, 0, n - 1) for p in range(len(ranks)))
            found.append(Switch(tuple(group), _BUFFERS[word]))
    return found


def _read_remote_buffers(n: int, gpu: Object) -> list[tuple[int, Buffer, frozenset[str]]]:
    entries = gpu.list("remote_buffers")
    out = []
    for k in range(len(entries)):
        entry = entries.object(k)
        access = entry.list("access_channel_types")
        kinds = frozenset(_word_kind(access, access.text(a)) for a in range(len(access)))
        out.append((entry.integer("rank", 0, n - 1), _buffer(entry), kinds))
    return out


def _kind(entry: Object, key: str) -> str:
    return _word_kind(entry, entry.text(key))


def _word_kind(where: Object | List, word: str) -> str:
    if word not in ("memory", "port", "switch", "none"):
        raise where.fail(f"channel type {word[:40]!r}; it is memory, port, switch or none")
    return word


def _buffer(entry: Object) -> Buffer:
    word = entry.text("type")
    if word not in _BUFFERS:
        raise entry.fail(f"type {word[:40]!r} is no buffer; buffers are 'i', 'o' and 's'")
    return _BUFFERS[word]


@dataclass(slots=True)
class _Block:
    """The lists of a thread block that its operations count in."""

    channels: tuple[Channel, ...]
    own: dict[str, list[int]]  # per kind, places in `channels`
    remote: dict[str, list[tuple[int, Buffer]]]
    switches: tuple[Switch, ...]


def _read_block(reader: _Reader, rank: _Rank, b: int, entry: Object) -> ThreadBlock:
    if entry.integer("id", 0, _TOP) != b:
        raise entry.fail(f"id {entry.integer('id', 0, _TOP)} at position {b}; they must be equal")
    channels: list[Channel] = []
    own: dict[str, list[int]] = {"memory": [], "port": []}
    switches: list[Switch] = []
    lists = entry.list("channels")
    for k in range(len(lists)):
        item = lists.object(k)
        kind = _kind(item, "channel_type")
        ids = item.list("channel_ids")
        if kind == "switch":
            known = rank.switches
            switches += [known[ids.index(i, len(known), kind)] for i in range(len(ids))]
        if kind not in own:
            continue
        for i in range(len(ids)):
            own[kind].append(len(channels))
            channels.append(rank.channels[kind][ids.index(i, len(rank.channels[kind]), kind)])
    block = _Block(tuple(channels), own, _read_refs(rank, entry), tuple(switches))
    ops = entry.list("ops")
    steps: list[Step] = []
    for k in range(len(ops)):
        op = ops.object(k, f"{entry.where}, operation {k}")
        if op.text("name") == "pipeline":
            steps.append(_read_pipeline(reader, block, op))
        else:
            steps.append(_read_operation(reader, block, op))
    return ThreadBlock(tuple(steps), channels=block.channels, switches=block.switches)


def _read_refs(rank: _Rank, entry: Object) -> dict[str, list[tuple[int, Buffer]]]:
    remote: dict[str, list[tuple[int, Buffer]]] = {"memory": [], "port": []}
    if not entry.has("remote_buffer_refs"):
        return remote
    lists = entry.list("remote_buffer_refs")
    for k in range(len(lists)):
        item = lists.object(k)
        kind = _kind(item, "access_channel_type")
        if kind not in remote:
            continue
        ids = item.list("remote_buffer_ids")
        for i in range(len(ids)):
            peer, buffer, kinds = rank.buffers[ids.index(i, len(rank.buffers), "remote buffer")]
            if kind not in kinds:
                raise ids.fail(f"the buffer is not listed for access by {kind} channels, so the "
                               f"runtime would take another one")  # fmt: skip
            remote[kind].append((peer, buffer))
    return remote


def _read_pipeline(reader: _Reader, block: _Block, op: Object) -> Pipeline:
    context = op.object("iter_context")
    ops = op.list("ops")
    body = []
    for k in range(len(ops)):
        inner = ops.object(k, f"{op.where}.{k}")
        if inner.text("name") == "pipeline":
            raise inner.fail("a pipeline in a pipeline; the runtime cannot run that")
        body.append(_read_operation(reader, block, inner))
    return Pipeline(
        tuple(body),
        chunks=context.integer("num_chunks", 1, CHUNKS),
        unit_bytes=context.integer("unit_size", 1, 2**32 - 1),
    )


def _read_operation(reader: _Reader, block: _Block, entry: Object) -> Instruction:
    reader.count += 1
    if reader.count > INSTRUCTIONS:
        raise entry.fail(f"more than {INSTRUCTIONS} operations {INSTRUCTIONS.note}")
    word = entry.text("name")
    if word in UNSUPPORTED:
        raise UnsupportedError(
            f"{entry.source}: {entry.where}: {word!r} ({UNSUPPORTED[word]}) is not supported"
        )
    if word not in BY_JSON:
        hint = did_you_mean(word[:40], [*BY_JSON, "pipeline"])
        raise entry.fail(f"operation {word[:40]!r} does not exist{hint}")
    op = BY_JSON[word]
    if op is Op.NOP and len(entry) == 1:  # by far the most frequent
        return _plain(reader, op)
    kind = _kind(entry, "channel_type") if entry.has("channel_type") else "none"
    if (kind == "switch") != (op in FABRIC):
        what = "needs" if op in FABRIC else "cannot go over"
        raise entry.fail(f"{word!r} {what} a channel of type 'switch'")
    part = (0, 1)
    if entry.has("tbg_info"):
        group = entry.object("tbg_info")
        part = (group.integer("tb_id", 0, _TOP), group.integer("tbg_size", 1, _TOP))
    src, dst = _read_operands(reader, block, entry, op, kind)
    if op in FABRIC:
        through = _read_through(block, entry, op)
        return Instruction(op, src, dst, part=part, switches=through)
    channels = _read_ids(block, entry, kind)
    semaphores = tuple(_integers(entry, "semaphore_ids"))
    ident = entry.integer("barrier_id", 0, _TOP) if entry.has("barrier_id") else 0
    size = entry.integer("num_threadblocks", 0, _TOP) if entry.has("num_threadblocks") else 0
    if src or dst:
        return Instruction(op, src, dst, (), channels, semaphores, ident, size, part)
    return _plain(reader, op, channels, semaphores, ident, size, part)


def _read_through(block: _Block, entry: Object, op: Op) -> tuple[int, ...]:
    """The thread block's switches that an operation goes through: of its sources, destinations."""
    return tuple(
        item.index("switch_channel_id", len(block.switches))
        for key in (("dst_buff",) if op is Op.FABRIC_STORE else ("src_buff", "dst_buff"))
        for item in _objects(entry, key)
    )


def _plain(
    reader: _Reader,
    op: Op,
    channels: tuple[int, ...] = (),
    semaphores: tuple[int, ...] = (),
    ident: int = 0,
    group: int = 0,
    part: tuple[int, int] = (0, 1),
) -> Instruction:
    """An operation without operands."""
    key = (op, channels, semaphores, ident, group, part)
    found = reader.plain.get(key)
    if found is None:
        found = Instruction(op, (), (), (), channels, semaphores, ident, group, part)
        reader.plain[key] = found
    return found


def _read_ids(block: _Block, entry: Object, kind: str) -> tuple[int, ...]:
    if not entry.has("channel_ids"):
        return ()
    ids = entry.list("channel_ids")
    if kind == "none" and len(ids):
        raise entry.fail("channel_ids without channel_type; the runtime would do nothing")
    own = block.own.get(kind, [])
    return tuple(own[ids.index(k, len(own), f"{kind} channel")] for k in range(len(ids)))


def _integers(entry: Object, key: str) -> list[int]:
    if not entry.has(key):
        return []
    values = entry.list(key)
    return [values.integer(k, 0, _TOP) for k in range(len(values))]


def _read_operands(
    reader: _Reader, block: _Block, entry: Object, op: Op, kind: str
) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    src, dst = (
        tuple([_read_ref(reader, block, item, kind) for item in _objects(entry, key)])
        if entry.has(key)
        else ()
        for key in ("src_buff", "dst_buff")
    )
    if op in SPREADS:
        if kind == "none":
            raise entry.fail("a put without channel_type; the runtime would do nothing")
        if len(src) != len(dst):
            raise entry.fail(
                f"{len(src)} sources for {len(dst)} destinations; the runtime takes the i-th for "
                f"the i-th"
            )
        if len(src) > 1 and len(set(src)) == 1:
            src = src[:1]  # the Program's spelling of one source for all destinations
    if op is Op.GET and any(a.offset != b.offset for a, b in zip(src, dst, strict=False)):
        text = f"{entry.where}: get between different chunks; the runtime swaps the two"
        reader.notes.add(text, "get")
    if op is Op.FLUSH:
        reader.notes.add(f"{entry.where}: flush does nothing in the runtime", "flush")
    if op not in DATA and (src or dst):
        raise entry.fail(f"{entry.text('name')!r} has no buffers, but src_buff or dst_buff")
    return src, dst


def _objects(entry: Object, key: str) -> list[Object]:
    if not entry.has(key):
        return []
    items = entry.list(key)
    return [items.object(k) for k in range(len(items))]


def _read_ref(reader: _Reader, block: _Block, item: Object, kind: str) -> Ref:
    offset = item.integer("index", 0, CHUNKS)
    count = item.integer("size", 1, CHUNKS)
    ways = [key for key in ("type", "buffer_id", "switch_channel_id") if item.has(key)]
    if len(ways) != 1 or (ways[0] == "switch_channel_id" and kind != "switch"):
        more = ", or switch_channel_id" if kind == "switch" else ""
        raise item.fail(f"needs either type (local) or buffer_id (remote){more}")
    if ways[0] == "switch_channel_id":
        number = item.index("switch_channel_id", len(block.switches))
        ref = Ref(block.switches[number].buffer, offset, count)
    elif item.has("type"):
        ref = Ref(_buffer(item), offset, count)
    elif kind not in block.remote:
        raise item.fail("buffer_id in an operation without channel_type")
    else:
        peer, buffer = block.remote[kind][item.index("buffer_id", len(block.remote[kind]))]
        ref = Ref(buffer, offset, count, peer)
    return reader.refs.setdefault(ref, ref)
