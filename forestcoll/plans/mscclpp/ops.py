"""Operations of MSCCL++ thread blocks: what they work on, and what the kernel makes of them.

What the kernel does with each (microsoft/mscclpp 1f5f065d, execution_kernel.hpp) decides; the
loader checks names and types only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from forestcoll.common.errors import did_you_mean
from forestcoll.common.input_limits import INSTRUCTIONS
from forestcoll.plans.findings import At, Findings
from forestcoll.plans.mscclpp.rules import (
    ALIGNMENT,
    MAX_BARRIERS,
    MAX_IDS,
    MAX_REFS,
    MAX_SEMAPHORES,
)
from forestcoll.plans.mscclpp.text import Entry, kind
from forestcoll.program import (
    BY_JSON,
    DATA,
    FABRIC,
    OPERATIONS,
    SEMAPHORES,
    SPREADS,
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

DATA_WORDS: Final[Mapping[str, tuple[Operation, Sequence[str]]]] = {
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
SYNC_WORDS: Final = dict.fromkeys(word for word, op in BY_JSON.items() if op in SYNCS)
SEMAPHORE_WORDS: Final = dict.fromkeys(word for word, op in BY_JSON.items() if op in SEMAPHORES)
NAMES: Final = (*DATA_WORDS, *SYNC_WORDS, *SEMAPHORE_WORDS, "nop", "barrier", "pipeline")
GROUPS: Final = {
    **dict.fromkeys((*DATA_WORDS, *SYNC_WORDS), "data"),
    **dict.fromkeys(SEMAPHORE_WORDS, "semaphore"),
    "nop": "", "barrier": "barrier", "pipeline": "loop",
}  # fmt: skip
"""Operation -> the group of fields that it uses; those of different groups share their bytes."""
FIELDS: Final = {
    "channel_ids": "data", "src_buff": "data", "dst_buff": "data", "tbg_info": "data",
    "iter_context": "loop", "ops": "loop", "barrier_id": "barrier", "num_threadblocks": "barrier",
    "semaphore_ids": "semaphore",
}  # fmt: skip
UNKNOWN: Final = {"glre": "; the executor has the fused glres only"}
LACKS: Final = {
    "gstorepkt": "a multicast of packets by an NVLS switch",
    "glre": "a reduction in an NVLS switch (the runtime does not know it either)",
}
"""Operations that no Program holds."""
BUFFERS: Final = {buffer.value: buffer for buffer in Buffer}
CHANNEL_TYPES: Final = ("memory", "port", "switch", "none")
WAYS: Final = ("type", "buffer_id", "switch_channel_id")
"""How an operand may name its buffer."""
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
    ids: dict[str, list[int]] = field(
        default_factory=lambda: {"memory": [], "port": [], "switch": []}
    )
    """The same as the file has them: places in the rank's lists."""
    remotes: dict[str, list[Remote]] = field(default_factory=lambda: {"memory": [], "port": []})
    broken: bool = False  # some list could not be read: ids may point into it


@dataclass(frozen=True, slots=True)
class Operand:
    """An entry of src_buff or dst_buff: None where it could not be read."""

    ref: Ref | None
    local: bool | None = None  # False: remote; None: of a switch, or unknown
    peer: int | None = None
    letter: str | None = None
    index: int | None = None
    size: int | None = None
    switch: int = 0


class OpReader:
    """Reads the operations of a plan's thread blocks."""

    def __init__(self, plan: Plan, target: Target, out: Findings) -> None:
        self.plan, self.target, self.out = plan, target, out
        self.operands: dict[tuple[object, ...], Operand] = {}
        self.plain: dict[tuple[object, ...], Instruction] = {}
        self.nop = Instruction(Op.NOP)
        self.count = 0
        self.rank, self.block, self.number, self.b = Rank(), Block(), 0, 0
        self.wide = False  # whether an operation of the thread block names several channels
        self.step = 0
        self.inner = -1
        self.loop = 0  # num_chunks of the pipeline around it, 0: none, -1: unknown

    @property
    def at(self) -> At:
        """Where the operation stands."""
        return {"rank": self.number, "block": self.b, "step": self.step}

    @property
    def where(self) -> str:
        """`operation 3` or `operation 3.1`."""
        return f"operation {self.step}" + (f".{self.inner}" if self.inner >= 0 else "")

    def add(self, rule: str, words: str) -> None:
        """Note of the operation what the runtime minds."""
        self.out.add(rule, self.where + words, **self.at)

    def fault(self, rule: str, words: str) -> None:
        """Note of it what no run survives."""
        self.out.fault(rule, self.where + words, **self.at)

    def refuse(self, rule: str, words: str) -> None:
        """Note of it what no Program holds."""
        self.out.refuse(rule, self.where + words, **self.at)

    def entry(self, values: dict[str, Any], where: str = "") -> Entry:
        """An object in the operation."""
        return Entry(values, where or self.where, self.at, self.out)

    def read(self, r: int, b: int, entry: Entry, block: Block) -> tuple[Step, ...]:
        """The steps of a thread block, as far as they can be held."""
        self.number, self.b, self.rank, self.block = r, b, self.plan.ranks[r], block
        at, ops = entry.at, entry.objects("ops")
        held = len(ops)
        steps: list[Step] = []
        self.wide = False
        nop = self.nop
        for s, op in enumerate(ops):
            name = op.get("name")
            if len(op) == 1 and name == "nop":  # by far the most frequent
                steps.append(nop)
                continue
            self.step, self.inner, self.loop = s, -1, 0
            if name == "pipeline":
                step: Step | None = self.read_pipeline(op)
                body = op.get("ops")
                held += len(body) if isinstance(body, list) else 0
            else:
                step = self.read_operation(op)
            if step is not None:
                steps.append(step)
        self.count += held
        if held > self.target.steps:
            self.out.add("MPP-OPS", f"{held} operations", **at)
        if self.count > INSTRUCTIONS:
            self.out.refuse("RUN-REFUSED", f"more than {INSTRUCTIONS} operations "
                            f"{INSTRUCTIONS.note}", **at)  # fmt: skip
        if self.wide:
            self.check_threads(ops, at)
        return tuple(steps)

    def check_threads(self, ops: list[dict[str, Any]], at: At) -> None:
        """Between barriers, one thread alone signals on a memory channel."""
        last: dict[object, tuple[int, int]] = {}  # channel -> thread, step
        for s, op in enumerate(ops):
            body = op.get("ops") if op.get("name") == "pipeline" else (op,)
            if op.get("name") == "pipeline" and isinstance(body, list):
                body = 2 * body  # a round meets the next one
            for one in body if isinstance(body, list | tuple) else ():
                name = one.get("name") if isinstance(one, dict) else None
                if name in ("nop", "barrier"):
                    last.clear()
                if name not in ("signal", "rlxsignal") or one.get("channel_type") != "memory":
                    continue
                ids = one.get("channel_ids")
                for thread, channel in enumerate(ids if isinstance(ids, list) else ()):
                    if not isinstance(channel, int):
                        continue
                    other, step = last.setdefault(channel, (thread, s))
                    if other != thread:
                        here: At = {**at, "step": s}
                        self.out.add("MPP-SIGNAL-THREADS", f"thread {thread} signals on channel "
                                     f"{channel}, as thread {other} does in operation {step}",
                                     **here)  # fmt: skip

    # --- pipelines --------------------------------------------------------------------------------

    def read_pipeline(self, op: dict[str, Any]) -> Pipeline | None:
        """A loop with what is in it."""
        self.check_groups(op)
        if self.loop:
            self.refuse("MPP-PIPE-NESTED", " is a pipeline in a pipeline")
            return None
        if "iter_context" not in op:
            self.refuse("MPP-MISSING", " (pipeline) has no object iter_context")
            return None
        chunks, unit = self.read_context(op)
        if not isinstance(op["iter_context"], dict):
            return None
        if unit is not None and (unit < ALIGNMENT or unit % ALIGNMENT or unit >= 2**32):
            note = self.add if 1 <= unit < 2**32 else self.refuse
            note("MPP-PIPE-UNIT", f": unit_size is {unit}")
        elif unit is not None and chunks is not None and chunks >= 1:
            self.plan.pipelines.add((chunks, unit))
        if chunks is not None and chunks < 1:
            self.refuse("MPP-PIPE-CHUNKS", f": num_chunks is {chunks}")
            chunks = None
        body = self.entry(op).objects("ops")
        if "ops" in op and not body:
            self.fault("MPP-PIPE-EMPTY", " has no operations")
        steps = []
        self.loop = chunks or -1
        for k, item in enumerate(body):
            self.inner = k
            if item.get("name") == "pipeline":
                self.read_pipeline(item)
                continue
            step = self.read_operation(item)
            if step is not None:
                steps.append(step)
        return Pipeline(tuple(steps), chunks or 0, unit or 0)

    def read_context(self, op: dict[str, Any]) -> tuple[int | None, int | None]:
        """(num_chunks, unit_size), which the loader reads whatever the operation is."""
        context = op["iter_context"]
        if not isinstance(context, dict):
            words = f"iter_context of {self.where} is {kind(context)}, not an object"
            self.out.refuse("MPP-TYPE", words, **self.at)
            return None, None
        entry = self.entry(context)
        chunks, unit = entry.integer("num_chunks"), entry.integer("unit_size")
        if unit is not None and unit % 2**32 == 0:
            self.refuse("MPP-PIPE-UNIT", f": unit_size is {unit}: the loader divides by 0")
            unit = None
        return chunks, unit

    # --- one operation ----------------------------------------------------------------------------

    def read_operation(self, op: dict[str, Any]) -> Instruction | None:
        """An operation, None where no Program holds it."""
        name = op.get("name")
        if name == "nop" and len(op) == 1:
            return self.nop
        if type(name) is not str:
            self.entry(op).text("name")
            return None
        if name in LACKS:
            self.out.lack(f"{self.where}: {name!r} ({LACKS[name]}) is not supported", **self.at)
        if name not in GROUPS:
            hint = UNKNOWN.get(name) or did_you_mean(name[:40], NAMES)
            self.refuse("MPP-OP-NAME", f" is {name[:40]!r}{hint}")
            return None
        if name in SYNC_WORDS and len(op) == 3:
            operation = self.plain_sync(op, name)
            if operation is not None:
                return operation
        if name not in DATA_WORDS or not _DATA_KEYS.issuperset(op):
            self.check_groups(op)
            self.check_unused(op, name)
        if name in DATA_WORDS:
            return self.read_data(op, name)
        if name in SYNC_WORDS:
            return self.read_sync(op, name)
        if name in SEMAPHORE_WORDS:
            return self.read_semaphores(op, name)
        return self.read_barrier(op) if name == "barrier" else self.nop

    def make(
        self,
        op: Op,
        channels: tuple[int, ...] = (),
        semaphores: tuple[int, ...] = (),
        ident: int = 0,
        group: int = 0,
    ) -> Instruction:
        """An operation without operands: there are few different ones, and many of each."""
        key = op, channels, semaphores, ident, group
        operation = self.plain.get(key)
        if operation is None:
            operation = Instruction(op, (), (), (), channels, semaphores, ident, group)
            self.plain[key] = operation
        return operation

    def check_unused(self, op: dict[str, Any], name: str) -> None:
        """What the loader reads although the operation does not use it: wrong, it aborts too.

        Behind an array's end it writes over other fields (execution_plan.cc:478-599).
        """
        own = GROUPS[name]
        if "iter_context" in op:
            self.read_context(op)
            self.entry(op).objects("ops")
        if name not in DATA_WORDS:
            self.check_unused_data(op, name)
        if own != "barrier":
            for key in ("barrier_id", "num_threadblocks"):
                self.entry(op).optional(key, 0)
        if own != "semaphore" and "semaphore_ids" in op:
            ids = self.entry(op).integers("semaphore_ids")
            if len(ids) > MAX_SEMAPHORES:
                self.add("MPP-SEMAPHORES", f" ({name}) names {len(ids)} semaphores")

    def check_groups(self, op: dict[str, Any]) -> None:
        """The loader writes every group of fields that is there into the same bytes."""
        groups = {FIELDS[key] for key in op if key in FIELDS and key not in ("ops", "tbg_info")}
        words = f"{self.where} ({op.get('name')}) has {', '.join(k for k in op if k in FIELDS)}"
        if len(groups) > 1:
            self.out.fault("MPP-UNION", words, **self.at)
        elif groups and groups != {GROUPS.get(str(op.get("name")), "")}:
            self.out.add("MPP-FIELD-UNUSED", words, **self.at)

    def check_unused_data(self, op: dict[str, Any], name: str) -> None:
        """Data fields of an operation that moves none: the loader follows them all the same."""
        channel_type = op.get("channel_type", "none")
        if channel_type not in CHANNEL_TYPES and name not in SYNC_WORDS:
            self.refuse("MPP-OP-CHANNEL-TYPE", f" ({name}) has the channel_type "
                       f"{str(channel_type)[:40]!r}")  # fmt: skip
        if "channel_ids" in op and name not in SYNC_WORDS:
            ids = self.entry(op).integers("channel_ids")
            if len(ids) > MAX_IDS:
                self.add("MPP-OP-CHANNELS", f" ({name}) names {len(ids)} channels")
        if "tbg_info" in op:
            self.read_part(op["tbg_info"], name)
        for key in ("src_buff", "dst_buff"):
            items = self.entry(op).objects(key) if key in op else []
            if len(items) > MAX_REFS:
                self.add("MPP-OP-REFS", f" ({name}) has {len(items)} entries in {key}")
            for k, item in enumerate(items):
                where = f"{key}[{k}] of {self.where} ({name})"
                one = self.entry(item, where)
                one.integer("index"), one.integer("size")
                for what in WAYS:
                    if what in item:
                        self.resolve(item, what, where, str(channel_type))

    # --- synchronisation --------------------------------------------------------------------------

    def plain_sync(self, op: dict[str, Any], name: str) -> Instruction | None:
        """The same as `read_sync` where all is right; else None."""
        ids, over = op.get("channel_ids"), op.get("channel_type")
        if over not in ("memory", "port") or type(ids) is not list or name == "flush":
            return None
        own = self.block.own[over]
        if not 0 < len(ids) <= MAX_IDS or (len(ids) > 1 and len(set(map(str, ids))) < len(ids)):
            return None
        for number in ids:
            if type(number) is not int or not 0 <= number < len(own):
                return None
        self.wide |= len(ids) > 1
        return self.make(BY_JSON[name], self.places(over, ids))

    def read_sync(self, op: dict[str, Any], name: str) -> Instruction | None:
        """A signal, a wait, or a flush."""
        out, over = self.out, op.get("channel_type")
        if over not in ("memory", "port"):
            rule = "MPP-OP-CHANNEL-TYPE" if "channel_type" in op else "MPP-OP-INCOMPLETE"
            self.refuse(rule, f" ({name}) works over memory or port channels, not "
                       f"{str(over)[:40]!r}")  # fmt: skip
            return None
        ids = self.read_ids(op, name, over)
        if not ids:
            self.fault("MPP-OP-INCOMPLETE", f" ({name}) names no channel")
        self.wide |= len(ids) > 1
        if len(set(ids)) < len(ids):
            self.fault("MPP-CHANNEL-TWICE", f" ({name}) names a channel twice")
        if name == "flush":
            self.add("MPP-FLUSH", " is a flush")
        return self.make(BY_JSON[name], self.places(over, ids)) if out.held else None

    def read_ids(self, op: dict[str, Any], name: str, over: str) -> list[int]:
        """The operation's channel_ids, each checked against the thread block's own list."""
        if "channel_ids" not in op:
            return []
        ids = self.entry(op).integers("channel_ids")
        own = self.block.own[over]
        if len(ids) > MAX_IDS:
            self.add("MPP-OP-CHANNELS", f" ({name}) names {len(ids)} channels")
        for number in ids:
            if not 0 <= number < len(own) and not self.block.broken:
                words = f"{over} channel {number}; the thread block has {len(own)}"
                self.refuse("MPP-OP-CHANNEL-ID", f" ({name}): {words}")
        return ids

    def places(self, over: str, ids: list[int]) -> tuple[int, ...]:
        """Channels of an operation, as the Program counts them."""
        own = self.block.own[over]
        return tuple([own[number] or 0 for number in ids])

    def read_semaphores(self, op: dict[str, Any], name: str) -> Instruction:
        """An acquire or a release."""
        ids = []
        if "semaphore_ids" in op:
            ids = self.entry(op).integers("semaphore_ids")
        if not ids:
            self.fault("MPP-OP-INCOMPLETE", f" ({name}) names no semaphore")
        if len(ids) > MAX_SEMAPHORES or len(set(ids)) < len(ids):
            note = self.fault if len(set(ids)) < len(ids) else self.add
            note("MPP-SEMAPHORES", f" ({name}) names {len(ids)} semaphores, "
                 f"{len(set(ids))} of them different")  # fmt: skip
        for number in ids:
            if not 0 <= number < len(self.rank.semaphores):
                note = self.refuse if number < 0 else self.fault
                note("MPP-SEMAPHORE-ID", f" ({name}): semaphore {number}; the rank has "
                     f"{len(self.rank.semaphores)}")  # fmt: skip
        return self.make(BY_JSON[name], (), tuple(ids))

    def read_barrier(self, op: dict[str, Any]) -> Instruction:
        """A barrier of thread blocks."""
        for key in ("barrier_id", "num_threadblocks"):
            if key not in op:
                self.fault("MPP-OP-INCOMPLETE", f" (barrier) has no {key}")
        number = self.entry(op).optional("barrier_id", 0)
        if not 0 <= number < MAX_BARRIERS:
            note = self.refuse if number < 0 else self.add
            note("MPP-BARRIER-ID", f" is barrier {number}")
        count = self.entry(op).optional("num_threadblocks", 1)
        if count < 1:
            note = self.refuse if count < 0 else self.fault
            note("MPP-BARRIER-UNMATCHED", f" is for {count} thread blocks")
        if "num_threadblocks" not in op:
            count = 0
        return self.make(Op.BARRIER, (), (), number, count)

    # --- data -------------------------------------------------------------------------------------

    def read_data(self, op: dict[str, Any], name: str) -> Instruction | None:
        """An operation on buffers."""
        what, kinds = DATA_WORDS[name]
        out, over = self.out, op.get("channel_type", "none")
        if kinds and over not in kinds:
            stated = "channel_type" in op and over != "none"
            rule = "MPP-OP-CHANNEL-TYPE" if stated else "MPP-OP-INCOMPLETE"
            self.refuse(rule, f" ({name}) works over {' or '.join(kinds)} channels, not "
                       f"{str(over)[:40]!r}{_why(name, over)}")  # fmt: skip
            return None
        if over not in CHANNEL_TYPES:  # the loader looks, whatever the operation is
            self.refuse("MPP-OP-CHANNEL-TYPE", f" ({name}) has the channel_type "
                       f"{str(over)[:40]!r}")  # fmt: skip
            return None
        ids = self.read_ids(op, name, over) if kinds and "channel_ids" in op else []
        part = (0, 1)
        if op.get("tbg_info") is not None:
            part = self.read_part(op["tbg_info"], name)
        src = self.read_side(
            op, name, "src_buff", what.src, what.remote_src, what.switched == "both"
        )
        dst = self.read_side(op, name, "dst_buff", what.dst, what.remote_dst, bool(what.switched))
        self.check_lengths(src, dst, name, what)
        if what.packets:
            self.check_packets(src, dst, name, what, over)
        elif self.plan.double:
            for operand in (*src, *dst):
                if operand.local is False and operand.letter == "s":
                    self.add("MPP-DOUBLE-SCRATCH", f" ({name}) reaches the scratch of "
                            f"rank {operand.peer}")  # fmt: skip
        if what.remote_dst == 0:
            self.check_put(src, dst, ids, name, over)
        if name == "get" and any(a.index != b.index for a, b in zip(src, dst, strict=False)):
            self.add("MPP-GET-SWAP", f" (get) from chunk {src[0].index} to "
                    f"{dst[0].index}")  # fmt: skip
        if not out.held or name not in BY_JSON:
            return None
        return self.make_data(BY_JSON[name], src, dst, over, ids, part)

    def make_data(
        self, op: Op, src: list[Operand], dst: list[Operand], over: str, ids: list[int],
        part: tuple[int, int],
    ) -> Instruction:  # fmt: skip
        """The instruction of operands that are all known."""
        refs = tuple([one.ref for one in src if one.ref is not None])
        to = tuple([one.ref for one in dst if one.ref is not None])
        if op in FABRIC:
            switched = dst if op is Op.FABRIC_STORE else (*src, *dst)
            through = tuple([one.switch for one in switched])
            return Instruction(op, refs, to, part=part, switches=through)
        if op in SPREADS and len(refs) > 1 and refs.count(refs[0]) == len(refs):
            refs = refs[:1]  # the Program's spelling of one source for all destinations
        channels = self.places(over, ids) if ids else ()
        return Instruction(op, refs, to, (), channels, (), 0, 0, part)

    def read_side(
        self, op: dict[str, Any], name: str, key: str, count: tuple[int, int], remote: int,
        switched: bool,
    ) -> list[Operand]:  # fmt: skip
        """The sources, or the destinations; from the `remote`-th on they lie at peers."""
        items = op.get(key)
        if type(items) is not list or any(type(item) is not dict for item in items):
            items = self.entry(op).objects(key) if key in op else []
        low, most = count[0], min(count[1], 1 if name == "copy" else MAX_REFS)
        if len(items) > MAX_REFS:
            self.fault("MPP-OP-REFS", f" ({name}) has {len(items)} entries in {key}")
        elif not low <= len(items) <= most:
            need = str(low) if low == most else f"{low} to {most}"
            self.fault("MPP-OP-OPERANDS", f" ({name}) has {len(items)} entries in "
                           f"{key}; it takes {need}")  # fmt: skip
        over = op.get("channel_type", "none")
        return [
            self.plain_operand(item, over, k >= remote)
            or self.read_operand(item, f"{key}[{k}]", name, over, switched, k >= remote)
            for k, item in enumerate(items)
        ] if not switched else [
            self.read_operand(item, f"{key}[{k}]", name, over, switched, k >= remote)
            for k, item in enumerate(items)
        ]  # fmt: skip

    def plain_operand(self, item: dict[str, Any], over: str, remote: bool) -> Operand | None:
        """The same as `read_operand` of one that is right; else None."""
        index, size = item.get("index"), item.get("size")
        if len(item) != 3 or type(index) is not int or type(size) is not int:
            return None
        if not remote:
            letter, peer = item.get("type"), None
            if type(letter) is not str:
                return None
            held = self.rank.chunks.get(letter)
        else:
            number, refs = item.get("buffer_id"), self.block.remotes.get(over, ())
            if type(number) is not int or not 0 <= number < len(refs):
                return None
            peer, letter = refs[number]
            if peer is None or letter is None:
                return None
            held = self.plan.ranks[peer].chunks.get(letter)
        if (
            held is None
            or index < 0
            or size < 1
            or index + size > held
            or self.loop not in (0, size)
        ):
            return None
        key = (peer if remote else ~self.number, letter, index, size)
        operand = self.operands.get(key)
        if operand is None:
            ref = Ref(BUFFERS[letter], index, size, peer)
            at = peer if remote else self.number
            operand = Operand(ref, not remote, at, letter, index, size)
            self.operands[key] = operand
        return operand

    def read_operand(
        self, item: dict[str, Any], key: str, name: str, over: str, switch: bool, remote: bool
    ) -> Operand:
        """An operand, with findings for what is wrong with it."""
        out, where = self.out, f"{key} of {self.where} ({name})"
        entry = self.entry(item, where)
        index, size = entry.integer("index"), entry.integer("size")
        stated = [way for way in WAYS if way in item]
        wanted = "switch_channel_id" if switch else "buffer_id" if remote else "type"
        if stated != [wanted]:
            out.refuse("MPP-OP-OPERANDS", f"{where} names {' and '.join(stated) or 'no buffer'}; "
                       f"it takes {wanted}", **self.at)  # fmt: skip
            return Operand(None, index=index, size=size)
        local, peer, letter = self.resolve(item, wanted, where, over)
        if size is not None and size < 1:
            out.refuse("MPP-SIZE-ZERO", f"{where} covers {size} chunks", **self.at)
        elif index is not None and size is not None and letter is not None and peer is not None:
            held = self.plan.ranks[peer].chunks.get(letter)
            if held is not None and (index < 0 or index + size > held):
                out.fault("MPP-BOUNDS", f"{where}: chunks {index} to {index + size - 1} of buffer "
                          f"{letter!r} of rank {peer}, which holds {held}", **self.at)  # fmt: skip
        if self.loop > 0 and size is not None and size >= 1 and size != self.loop:
            rule = "MPP-PIPE-UNDERFLOW" if size < self.loop else "MPP-PIPE-SHORT"
            words = f"{where} covers {size} chunks in a pipeline over {self.loop}"
            out.fault(rule, words, **self.at)
        ref = None
        if letter in BUFFERS and index is not None and size is not None:
            ref = Ref(BUFFERS[letter], index, size, None if local is not False else peer)
        return Operand(ref, local, peer, letter, index, size, item[wanted] if switch else 0)

    def resolve(
        self, item: dict[str, Any], key: str, where: str, over: str
    ) -> tuple[bool | None, int | None, str | None]:
        """(whether local, rank, buffer letter) of an operand; None for what cannot be known."""
        out = self.out
        if key == "type":
            letter = self.entry(item, where).text("type")
            if letter is not None and letter not in BUFFERS:
                words = f"{where} is of type {letter[:40]!r}"
                out.refuse("MPP-BUFFER-TYPE", words, **self.at)
                letter = None
            return True, self.number, letter
        number = self.entry(item, where).integer(key)
        if number is None:
            return None, None, None
        if key == "switch_channel_id":
            own = self.block.own["switch"]
            if not 0 <= number < len(own):
                if not self.block.broken:
                    out.refuse("MPP-SWITCH-ID", f"{where}: switch channel {number}; the thread "
                               f"block has {len(own)}", **self.at)  # fmt: skip
                return None, None, None
            group = own[number]
            out.add("MPP-SWITCH", "it uses switch channels")
            letter = None if group is None else self.rank.switches[group][0]
            return None, self.number, letter or None
        refs = self.block.remotes.get(over, [])
        if not 0 <= number < len(refs):
            if not self.block.broken:
                out.refuse("MPP-BUFFER-ID", f"{where}: remote buffer {number}; the thread block "
                           f"refers to {len(refs)} by {over}", **self.at)  # fmt: skip
            return False, None, None
        peer, letter = refs[number]
        return False, peer, letter

    def read_part(self, info: object, name: str) -> tuple[int, int]:
        """(index, size) of a slice."""
        if not isinstance(info, dict):
            words = f"tbg_info of {self.where} ({name}) is no object"
            self.out.refuse("MPP-TYPE", words, **self.at)
            return 0, 1
        entry = self.entry(info)
        index, size = entry.integer("tb_id"), entry.integer("tbg_size")
        if index is not None and size is not None and not 0 <= index < size < 2**31:
            note = self.fault if min(index, size) >= 0 < size < 2**31 else self.refuse
            note("MPP-TBG", f" ({name}): tb_id {index} of tbg_size {size}")
        if self.loop and size != 1:
            self.fault("MPP-PIPE-TBG", f" ({name}) is a slice in a pipeline")
        return index or 0, size or 1

    def check_lengths(
        self, src: list[Operand], dst: list[Operand], name: str, what: Operation
    ) -> None:
        """All operands of one length; where the i-th goes to the i-th, as many on both sides."""
        if what.pairs:
            if len(src) != len(dst):
                counts = f"{len(src)} sources for {len(dst)} destinations"
                self.fault("MPP-OP-OPERANDS", f" ({name}) has {counts}; the i-th goes to the i-th")
            groups = [{a.size, b.size} for a, b in zip(src, dst, strict=False)]
        else:
            groups = [{operand.size for operand in (*src, *dst)}]
        for sizes in groups:
            if len(sizes) > 1 and len(sizes - {None}) > 1:
                shown = ", ".join(map(str, sorted(s for s in sizes if s is not None)))
                self.fault("MPP-OP-SIZES", f" ({name}) works on {shown} chunks")
                return

    def check_packets(
        self, src: list[Operand], dst: list[Operand], name: str, what: Operation, over: object
    ) -> None:
        """Where packets lie, and how they go."""
        out = self.out
        if not self.plan.packets:
            self.fault("MPP-PACKET-PROTOCOL", f" ({name}), but protocol is not LL")
        if self.loop:
            self.fault("MPP-PIPE-PACKETS", f" ({name}) in a pipeline")
        if name == "ppkt" and over == "port":
            text = (
                f"{self.where} (ppkt) over a port sends memory of the first plan that a process ran"
            )
            if self.plan.reuse and all(operand.letter == "s" for operand in src):
                # one scratch for all plans of that kind
                text += ": the same scratch if that had reuse_resources too"
                out.add("MPP-PACKET-PORT", text, **self.at, severity="warning")
            else:
                out.add("MPP-PACKET-PORT", text, **self.at)
            out.lack(f"{self.where}: ppkt over a port is not supported", **self.at)
        for side, operands, low in (
            ("src_buff", src, what.packet_src),
            ("dst_buff", dst, what.packet_dst),
        ):
            for k, operand in enumerate(operands):
                if k >= low and operand.letter not in ("s", None):
                    out.fault("MPP-PACKET-SCRATCH", f"{side}[{k}] of {self.where} ({name}) lies in "
                              f"buffer {operand.letter!r}", **self.at)  # fmt: skip

    def check_put(
        self, src: list[Operand], dst: list[Operand], ids: list[int], name: str, over: object
    ) -> None:
        """A put's channels lead to its destinations."""
        letters = {operand.letter for operand in src} - {None}
        if over == "memory" and len(letters) > 1:
            self.fault("MPP-PUT-SOURCES", f" ({name}) has sources in buffers "
                           f"{', '.join(sorted(map(repr, letters)))}")  # fmt: skip
        if (over == "port" or ids) and len(ids) != len(dst):
            self.fault("MPP-PUT-CHANNEL", f" ({name}) has {len(dst)} destinations, "
                           f"but {len(ids)} channels")  # fmt: skip
            return
        own = self.block.own[str(over)]
        for number, operand in zip(ids, dst, strict=False):
            place = own[number] if 0 <= number < len(own) else None
            if place is None or operand.peer is None:
                continue
            peer = self.block.channels[place].peer
            if peer != operand.peer:
                words = f"puts to rank {operand.peer} over a channel to rank {peer}"
                self.fault("MPP-PUT-CHANNEL", f" ({name}) {words}")


_DATA_KEYS: Final = frozenset(
    ("name", "channel_type", "channel_ids", "src_buff", "dst_buff", "tbg_info")
)


def _why(name: str, over: object) -> str:
    if name in ("pws", "pwsf") and over == "memory":
        return ": over memory it never signals; use put, nop, signal"
    return ": it does nothing" if over == "none" else ""
