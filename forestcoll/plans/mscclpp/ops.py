"""Operations of MSCCL++ thread blocks: what they work on, and what the kernel makes of them.

What the kernel does with each (microsoft/mscclpp 1f5f065d, execution_kernel.hpp) decides; the
loader checks names and types only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from forestcoll.common.errors import did_you_mean
from forestcoll.common.input_limits import INSTRUCTIONS
from forestcoll.plans.findings import At, Findings
from forestcoll.plans.mscclpp.shapes import BUFFERS, IDLE_CONTEXT, KINDS, OPERATION, WAYS, Object
from forestcoll.plans.mscclpp.write import MAX_REFS
from forestcoll.program import (
    BY_JSON,
    DATA,
    FABRIC,
    OPERATIONS,
    SEMAPHORES,
    SYNCS,
    Buffer,
    Channel,
    Instruction,
    Op,
    Operation,
    Pipeline,
    Ref,
    Step,
)
from forestcoll.program.targets import Target

DATA_WORDS: Mapping[str, tuple[Operation, Sequence[str]]] = {
    word: (OPERATIONS[op], ("switch",) if op in FABRIC else (*OPERATIONS[op].kinds,))
    for word, op in BY_JSON.items()
    if op in DATA
} | {
    "gstorepkt": (
        Operation(src=(1, 1), dst=(1, 1), packet_src=0, packet_dst=0, switched="dst"),
        ("switch",),
    )
}
"""Data operations by name: what they take, and the types of channel that they work over."""
SYNC_WORDS = {word: op for word, op in BY_JSON.items() if op in SYNCS}
USES = {
    **dict.fromkeys(DATA_WORDS, ("channel_ids", "src_buff", "dst_buff", "tbg_info")),
    **dict.fromkeys(SYNC_WORDS, ("channel_ids",)),
    **{word: ("semaphore_ids",) for word, op in BY_JSON.items() if op in SEMAPHORES},
    "nop": (), "barrier": ("barrier_id", "num_threadblocks"), "pipeline": ("iter_context", "ops"),
}  # fmt: skip
"""Operation -> the fields that it uses."""
OWN = {name: frozenset(("name", "channel_type", *used)) for name, used in USES.items()}
UNIONS = {key: used[0] for used in USES.values() for key in used}
"""Field -> the first of its group: the loader writes all groups into the same bytes."""
UNKNOWN = {"glre": "; the executor has the fused glres only"}
LACKS = {
    "gstorepkt": "a multicast of packets by an NVLS switch",
    "glre": "a reduction in an NVLS switch (the runtime does not know it either)",
}
"""Operations that no Program holds."""
CHANNEL_TYPES = (*KINDS, "none")
SWITCH = WAYS[2]
Refs = list[Ref | None]
"""Operands; None stands for one that could not be read."""
Remote = tuple[int | None, str | None]  # rank and buffer letter; None where unknown


@dataclass(slots=True)
class Rank:
    """A rank's lists. `channels`: by type, None where one could not be read."""

    chunks: dict[str, int] = field(default_factory=dict)  # by buffer letter
    channels: dict[str, list[Channel]] = field(default_factory=lambda: {"memory": [], "port": []})
    switches: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    remotes: list[tuple[int | None, str | None, frozenset[str]]] = field(default_factory=list)
    semaphores: list[int] = field(default_factory=list)
    broken: bool = False  # some entry of channels could not be read


@dataclass(slots=True)
class Plan:
    """The head, and all ranks."""

    word: str = ""  # the collective
    packets: bool = False  # protocol LL
    double: bool = False  # use_double_scratch_buffer
    reuse: bool = False  # reuse_resources
    alignment: int = 16
    ranks: list[Rank] = field(default_factory=list)
    pipelines: set[tuple[int, int]] = field(default_factory=set)  # (num_chunks, unit_size) in use


@dataclass(slots=True)
class Block:
    """A thread block's own lists: what its operations count in."""

    channels: list[Channel] = field(default_factory=list)
    own: dict[str, list[int | None]] = field(
        default_factory=lambda: {"memory": [], "port": [], "switch": []}
    )
    """By type: places in `channels` or, of switches, in the rank's."""
    remotes: dict[str, list[Remote]] = field(default_factory=lambda: {"memory": [], "port": []})
    broken: bool = False  # some list could not be read: ids may point into it


@lru_cache(maxsize=4096)
def _plain(
    op: Op,
    channels: tuple[int, ...] = (),
    semaphores: tuple[int, ...] = (),
    ident: int = 0,
    group: int = 0,
) -> Instruction:
    """An operation without operands: there are few different ones, and many of each."""
    return Instruction(op, (), (), (), channels, semaphores, ident, group)


class OpReader:
    """Reads the operations of a plan's thread blocks."""

    def __init__(self, plan: Plan, target: Target, out: Findings) -> None:
        self.plan, self.target, self.out = plan, target, out
        self.refs: dict[tuple[int | None, int, str, int, int], Ref] = {}
        self.plain: dict[str, Instruction] = {}
        """Operations without operands, by their words: those that are right in the thread block."""
        self.plains: dict[tuple[object, ...], dict[str, Instruction]] = {}
        """The same of all thread blocks, by what they depend on."""
        self.count = 0
        self.rank, self.block, self.number = Rank(), Block(), 0
        self.at: At = {}
        self.held = 0  # operations of the thread block
        self.wide = False  # whether one of them names several channels
        self.loop = 0  # num_chunks of the pipeline around an operation, 0: none, -1: unknown

    def read(self, r: int, entry: Object, block: Block) -> tuple[Step, ...]:
        """The steps of a thread block, as far as they can be held."""
        self.number, self.rank, self.block, self.at = r, self.plan.ranks[r], block, entry.at
        steps: list[tuple[int, Step]] = []
        ops = entry.get("ops")
        self.wide, self.held, self.loop = False, len(ops), 0
        alike = repr(block.own), block.broken, len(self.rank.semaphores)
        self.plain = self.plains.setdefault(alike, {})
        nop = _plain(Op.NOP)
        for s, op in enumerate(ops):
            step: Step | None
            if len(op) == 1 and op.get("name") == "nop":  # by far the most frequent
                step = nop
            elif op.get("name") == "pipeline":
                step = self.read_pipeline(self.entry(op, s))
            else:
                step = self.read_operation(op, s)
            if step is not None:
                steps.append((s, step))
        self.count += self.held
        if self.held > self.target.steps:
            entry.add("MPP-OPS", f"{self.held} operations")
        if self.count > INSTRUCTIONS:
            entry.refuse("RUN-REFUSED", f"more than {INSTRUCTIONS} operations {INSTRUCTIONS.note}")
        if self.wide:
            self.check_threads(steps)
        return tuple([step for _, step in steps])

    def entry(self, values: dict[str, Any], s: int, k: int = -1) -> Object:
        """An operation, `operation 3 (put)` or in a pipeline `operation 3.1 (put)`."""
        name, at = values.get("name"), self.at.copy()
        at["step"] = s
        where = f"operation {s}" + (f".{k}" if k >= 0 else "")
        if type(name) is str and name in USES:
            where += f" ({name})"
        return Object(values, where, at, self.out, OPERATION)

    def check_threads(self, steps: list[tuple[int, Step]]) -> None:
        """Between barriers, one thread alone signals on a memory channel."""
        last: dict[int, tuple[int, int]] = {}  # channel -> thread, step
        for s, step in steps:
            # a round meets the next one
            for one in 2 * step.body if isinstance(step, Pipeline) else (step,):
                if one.op in (Op.NOP, Op.BARRIER):
                    last.clear()
                if one.op not in (Op.SIGNAL, Op.RELAXED_SIGNAL):
                    continue
                for thread, channel in enumerate(one.channels):
                    other, step_before = last.setdefault(channel, (thread, s))
                    if other != thread and self.block.channels[channel].kind == "memory":
                        at: At = {**self.at, "step": s}
                        number = self.block.own["memory"].index(channel)
                        self.out.add("MPP-SIGNAL-THREADS", f"thread {thread} signals on channel "
                                     f"{number}, as thread {other} does in operation "
                                     f"{step_before}", **at)  # fmt: skip

    # --- pipelines --------------------------------------------------------------------------------

    def read_pipeline(self, op: Object) -> Pipeline | None:
        """A loop with what is in it."""
        self.check_groups(op)
        if self.loop:
            op.refuse("MPP-PIPE-NESTED", f"{op.where} is a pipeline in a pipeline")
            return None
        context = op.child("iter_context")
        if context is None:
            return None
        chunks, unit = context.get("num_chunks"), context.get("unit_size")
        if chunks and unit:
            self.plan.pipelines.add((chunks, unit))
        body = op.get("ops")
        if "ops" in op and not body:
            op.fault("MPP-PIPE-EMPTY", f"{op.where} has no operations")
        self.loop = chunks or -1
        steps = []
        for k, item in enumerate(body):
            if item.get("name") == "pipeline":
                self.read_pipeline(self.entry(item, op.at["step"], k))
            else:
                steps.append(self.read_operation(item, op.at["step"], k))
        self.loop = 0
        self.held += len(body)
        return Pipeline(tuple([i for i in steps if i is not None]), chunks or 0, unit or 0)

    # --- one operation ----------------------------------------------------------------------------

    def read_operation(self, values: dict[str, Any], s: int, k: int = -1) -> Instruction | None:
        """An operation, None where no Program holds it."""
        name = values.get("name")
        if name == "nop" and len(values) == 1:
            return _plain(Op.NOP)
        words = "" if "src_buff" in values else repr(values)
        step = self.plain.get(words)
        if step is not None:
            self.wide |= len(step.channels) > 1
            return step
        op = self.entry(values, s, k)
        if type(name) is not str:
            op.get("name")
            return None
        if name in LACKS:
            self.out.lack(f"{op.where}: {name!r} ({LACKS[name]}) is not supported", **op.at)
        if name not in USES:
            hint = UNKNOWN.get(name) or did_you_mean(name[:40], USES)
            op.refuse("MPP-OP-NAME", f"{op.where} is {name[:40]!r}{hint}")
            return None
        if not OWN[name].issuperset(values):
            self.check_groups(op)
            self.read_unused(op, OWN[name])
        if name in DATA_WORDS:
            return self.read_data(op, name)
        step = self.read_sync(op, name)
        if step is not None and words and not op.wrong:
            self.plain[words] = step
        return step

    def read_unused(self, op: Object, used: frozenset[str]) -> None:
        """What the loader reads although the operation does not use it: wrong, it aborts too.

        Behind an array's end it writes over other fields (execution_plan.cc:478-599).
        """
        for key, row in OPERATION.items():
            if key in used or key not in op or key == "ops":
                continue
            if key == "tbg_info":
                self.read_part(op)
            elif key == "iter_context":
                if (context := op.child(key, IDLE_CONTEXT)) is not None:
                    context.get("num_chunks"), context.get("unit_size")
                op.get("ops")
            elif key in ("src_buff", "dst_buff"):
                op.get(key)
                for operand in op.entries(key, f" of {op.where}"):
                    for inner in operand.shape:
                        if inner in WAYS and inner in operand:
                            self.resolve(operand, inner, str(op.values.get("channel_type")))
                        elif inner not in WAYS:
                            operand.get(inner)
            elif row.type is list:
                op.get(key)
            else:
                op.value(key, row)

    def check_groups(self, op: Object) -> None:
        """The loader writes every group of fields that is there into the same bytes."""
        fields = [key for key in op.values if key in UNIONS]
        groups = {UNIONS[key] for key in fields if key not in ("ops", "tbg_info")}
        used = USES.get(str(op.values.get("name")), ())
        if len(groups) > 1:
            op.fault("MPP-UNION", f"{op.where} has {', '.join(fields)}")
        elif not groups.issubset(map(UNIONS.get, used)):
            op.add("MPP-FIELD-UNUSED", f"{op.where} has {', '.join(fields)}")

    # --- synchronisation --------------------------------------------------------------------------

    def read_sync(self, op: Object, name: str) -> Instruction | None:
        """What makes others go on, or waits for them."""
        over = self.check_over(op, ("memory", "port") if name in SYNC_WORDS else (), name)
        if over is None:
            return None
        for key in USES[name]:
            if op.values.get(key, []) == []:
                op.fault("MPP-OP-INCOMPLETE", f"{op.where} has no {key}")
        if name in ("nop", "barrier"):
            return _plain(BY_JSON[name], (), (), op.get("barrier_id"), op.get("num_threadblocks"))
        if name not in SYNC_WORDS:
            return _plain(BY_JSON[name], (), self.read_semaphores(op))
        ids = self.read_ids(op, over)
        self.wide |= len(ids) > 1
        if len(set(ids)) < len(ids):
            op.fault("MPP-CHANNEL-TWICE", f"{op.where} names a channel twice")
        if name == "flush":
            op.add("MPP-FLUSH", f"{op.where} is a flush")
        return _plain(SYNC_WORDS[name], self.places(over, ids))

    def check_over(self, op: Object, kinds: Sequence[str], name: str) -> str | None:
        """The type of channel, None where the operation (of `kinds`) or the loader has no such."""
        over = op.values.get("channel_type", "none")
        if over in (kinds or CHANNEL_TYPES):
            return str(over)
        rule = "MPP-OP-INCOMPLETE" if kinds and over == "none" else "MPP-OP-CHANNEL-TYPE"
        why = ": it does nothing" if over == "none" else ""
        if name in ("pws", "pwsf") and over == "memory":
            why = ": over memory it never signals; use put, nop, signal"
        words = f"works over {' or '.join(kinds or CHANNEL_TYPES)} channels"
        op.refuse(rule, f"{op.where} {words}, not {str(over)[:40]!r}{why}")
        return None

    def read_ids(self, op: Object, over: str) -> list[int]:
        """The operation's channel_ids, each checked against the thread block's own list."""
        ids: list[int] = op.get("channel_ids")
        own = self.block.own[over]
        for number in ids:
            if not 0 <= number < len(own) and not self.block.broken:
                words = f"{over} channel {number}; the thread block has {len(own)}"
                op.refuse("MPP-OP-CHANNEL-ID", f"{op.where}: {words}")
        return ids

    def places(self, over: str, ids: list[int]) -> tuple[int, ...]:
        """Channels of an operation, as the Program counts them; none where one is not there."""
        own = self.block.own[over]
        places = [own[number] for number in ids if 0 <= number < len(own)]
        known = [place for place in places if place is not None]
        return tuple(known) if len(known) == len(ids) else ()

    def read_semaphores(self, op: Object) -> tuple[int, ...]:
        """What an acquire or a release names."""
        ids, most = op.get("semaphore_ids"), len(self.rank.semaphores)
        if len(set(ids)) < len(ids):
            op.fault("MPP-SEMAPHORES", f"{op.where} names a semaphore twice")
        for number in ids:
            if not 0 <= number < most:
                words = f"{op.where}: semaphore {number}; the rank has {most}"
                op.refuse("MPP-SEMAPHORE-ID", words)
        return tuple(ids)

    # --- data -------------------------------------------------------------------------------------

    def read_data(self, op: Object, name: str) -> Instruction | None:
        """An operation on buffers."""
        what, kinds = DATA_WORDS[name]
        over = self.check_over(op, kinds, name)
        if over is None:
            return None
        ids = self.read_ids(op, over) if kinds and "channel_ids" in op else []
        part = self.read_part(op) if "tbg_info" in op else (0, 1)
        switched = what.switched
        src = self.read_side(op, "src_buff", what.src, over, what.remote_src, switched == "both")
        dst = self.read_side(op, "dst_buff", what.dst, over, what.remote_dst, switched != "")
        self.check_lengths(op, src, dst, what)
        if what.packets:
            self.check_packets(op, src, dst, name, what)
        elif self.plan.double:
            for ref in (*src, *dst):
                if ref and ref.rank is not None and ref.buffer is Buffer.SCRATCH:
                    words = f"{op.where} reaches the scratch of rank {ref.rank}"
                    op.add("MPP-DOUBLE-SCRATCH", words)
        if what.remote_dst == 0:
            self.check_put(op, src, dst, ids, over)
        if name == "get":
            for a, b in zip(src, dst, strict=False):
                if a and b and a.offset != b.offset:
                    op.add("MPP-GET-SWAP", f"{op.where} from chunk {a.offset} to {b.offset}")
        if not self.out.held or name not in BY_JSON:
            return None
        refs, to = tuple(filter(None, src)), tuple(filter(None, dst))
        if what.spreads and len(refs) > 1 and refs.count(refs[0]) == len(refs):
            refs = refs[:1]  # the Program's spelling of one source for all destinations
        items = (*op.get("src_buff"), *op.get("dst_buff")) if what.switched else ()
        through = tuple([item[SWITCH] for item in items if SWITCH in item])
        channels = self.places(over, ids) if ids else ()
        return Instruction(BY_JSON[name], refs, to, (), channels, (), 0, 0, part, through)

    def read_side(
        self, op: Object, key: str, count: tuple[int, int], over: str, remote: int, switched: bool
    ) -> Refs:
        """The sources, or the destinations; from the `remote`-th on they lie at peers."""
        items = op.values.get(key)
        if type(items) is not list or any(type(item) is not dict for item in items):
            items = op.get(key)
        low, most = count[0], min(count[1], 1 if op.values["name"] == "copy" else MAX_REFS)
        if len(items) > MAX_REFS:
            op.fault("MPP-OP-REFS", f"{op.where} has {len(items)} entries in {key}")
        elif not low <= len(items) <= most:
            need = str(low) if low == most else f"{low} to {most}"
            words = f"{op.where} has {len(items)} entries in {key}; it takes {need}"
            op.fault("MPP-OP-OPERANDS", words)
        refs: Refs = []
        for k, item in enumerate(items):
            way = SWITCH if switched else "buffer_id" if k >= remote else "type"
            refs.append(self.plain_operand(item, over, way))
            if refs[-1] is None:
                entry = op.within(item, f"{key}[{k}] of {op.where}", OPERATION[key].of)
                refs[-1] = self.read_operand(entry, over, way)
        return refs

    def plain_operand(self, item: dict[str, Any], over: str, way: str) -> Ref | None:
        """The same as `read_operand` of one that is right; else None."""
        index, size, name = item.get("index"), item.get("size"), item.get(way)
        if len(item) != 3 or type(index) is not int or type(size) is not int:
            return None
        peer, letter = None, name
        if way != "type":
            refs = self.block.remotes.get(over, ())
            if type(name) is not int or not 0 <= name < len(refs):
                return None
            peer, letter = refs[name]
            if peer is None:
                return None
        if type(letter) is not str or self.loop not in (0, size):
            return None
        key = peer, self.number, letter, index, size
        ref = self.refs.get(key)
        if ref is None:
            rank = self.rank if peer is None else self.plan.ranks[peer]
            if 0 <= index < index + size <= rank.chunks.get(letter, -1):
                ref = self.refs[key] = Ref(BUFFERS[letter], index, size, peer)
        return ref

    def read_operand(self, entry: Object, over: str, way: str) -> Ref | None:
        """An operand, with findings for what is wrong with it."""
        index, size = entry.get("index"), entry.get("size")
        stated = [one for one in WAYS if one in entry]
        if stated != [way]:
            words = f"{entry.where} names {' and '.join(stated) or 'no buffer'}; it takes {way}"
            entry.refuse("MPP-OP-OPERANDS", words)
            return None
        place = self.resolve(entry, way, over)
        if self.loop > 0 and size and size != self.loop:
            rule = "MPP-PIPE-UNDERFLOW" if size < self.loop else "MPP-PIPE-SHORT"
            words = f"{entry.where} covers {size} chunks in a pipeline over {self.loop}"
            entry.fault(rule, words)
        if place is None or index is None or size is None:
            return None
        rank, letter = place
        held = self.plan.ranks[rank].chunks.get(letter)
        if held is not None and (index < 0 or index + size > held):
            words = f"chunks {index} to {index + size - 1} of buffer {letter!r} of rank {rank}"
            entry.fault("MPP-BOUNDS", f"{entry.where}: {words}, which holds {held}")
        return Ref(BUFFERS[letter], index, size, rank if way == "buffer_id" else None)

    def resolve(self, entry: Object, way: str, over: str) -> tuple[int, str] | None:
        """The rank and the buffer letter of an operand; None where they cannot be known."""
        named = entry.get(way)
        if named is None or way == "type":
            return named and (self.number, named)
        rule, words, end = "MPP-BUFFER-ID", "remote buffer", f"refers to {{}} by {over}"
        own: Sequence[tuple[int | None, str | None]] = self.block.remotes.get(over, ())
        if way == SWITCH:
            rule, words, end = "MPP-SWITCH-ID", "switch channel", "has {}"
            own = [
                (None, None) if k is None else (self.number, self.rank.switches[k][0])
                for k in self.block.own["switch"]
            ]
        if not 0 <= named < len(own):
            if not self.block.broken:
                end = end.format(len(own))
                entry.refuse(rule, f"{entry.where}: {words} {named}; the thread block {end}")
            return None
        if way == SWITCH:
            self.out.add("MPP-SWITCH", "it uses switch channels")
        rank, letter = own[named]
        return None if rank is None or not letter else (rank, letter)

    def read_part(self, op: Object) -> tuple[int, int]:
        """(index, size) of a slice; a null is none."""
        if op.values["tbg_info"] is None or (info := op.child("tbg_info")) is None:
            return 0, 1
        index, size = info.get("tb_id"), info.get("tbg_size")
        if index is not None and size is not None and not 0 <= index < size < 2**31:
            op.refuse("MPP-TBG", f"{op.where}: tb_id {index} of tbg_size {size}")
        if self.loop and size != 1:
            op.fault("MPP-PIPE-TBG", f"{op.where} is a slice in a pipeline")
        return index or 0, size or 1

    def check_lengths(self, op: Object, src: Refs, dst: Refs, what: Operation) -> None:
        """All operands of one length; where the i-th goes to the i-th, as many on both sides."""
        groups = [{ref.count for ref in (*src, *dst) if ref}]
        if what.pairs:
            if len(src) != len(dst):
                counts = f"{len(src)} sources for {len(dst)} destinations"
                op.fault("MPP-OP-OPERANDS", f"{op.where} has {counts}; the i-th goes to the i-th")
            groups = [{ref.count for ref in two if ref} for two in zip(src, dst, strict=False)]
        for sizes in groups:
            if len(sizes) > 1:
                words = f"{op.where} works on {', '.join(map(str, sorted(sizes)))} chunks"
                op.fault("MPP-OP-SIZES", words)
                return

    def check_packets(self, op: Object, src: Refs, dst: Refs, name: str, what: Operation) -> None:
        """Where packets lie, and how they go."""
        if not self.plan.packets:
            op.fault("MPP-PACKET-PROTOCOL", f"{op.where}, but protocol is not LL")
        if self.loop:
            op.fault("MPP-PIPE-PACKETS", f"{op.where} in a pipeline")
        if name == "ppkt" and op.values["channel_type"] == "port":
            words = f"{op.where} over a port sends memory of the first plan that a process ran"
            if self.plan.reuse and all(ref and ref.buffer is Buffer.SCRATCH for ref in src):
                # one scratch for all plans of that kind
                words += ": the same scratch if that had reuse_resources too"
                self.out.add("MPP-PACKET-PORT", words, **op.at, severity="warning")
            else:
                op.add("MPP-PACKET-PORT", words)
            self.out.lack(f"{op.where}: ppkt over a port is not supported", **op.at)
        for side, refs, low in (
            ("src_buff", src, what.packet_src),
            ("dst_buff", dst, what.packet_dst),
        ):
            for k, ref in enumerate(refs):
                if k >= low and ref and ref.buffer is not Buffer.SCRATCH:
                    words = f"{side}[{k}] of {op.where} lies in buffer '{ref.buffer.value}'"
                    op.fault("MPP-PACKET-SCRATCH", words)

    def check_put(self, op: Object, src: Refs, dst: Refs, ids: list[int], over: str) -> None:
        """A put's channels lead to its destinations."""
        letters = {ref.buffer.value for ref in src if ref}
        if over == "memory" and len(letters) > 1:
            named = ", ".join(sorted(map(repr, letters)))
            op.fault("MPP-PUT-SOURCES", f"{op.where} has sources in buffers {named}")
        if (over == "port" or ids) and len(ids) != len(dst):
            words = f"{op.where} has {len(dst)} destinations, but {len(ids)} channels"
            op.fault("MPP-PUT-CHANNEL", words)
            return
        own = self.block.own[over]
        for number, ref in zip(ids, dst, strict=False):
            place = own[number] if 0 <= number < len(own) else None
            peer = None if place is None else self.block.channels[place].peer
            if ref and peer is not None and peer != ref.rank:
                words = f"{op.where} puts to rank {ref.rank} over a channel to rank {peer}"
                op.fault("MPP-PUT-CHANNEL", words)
