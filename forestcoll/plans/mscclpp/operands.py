"""Operands of MSCCL++ data operations: how many, where they lie, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forestcoll.plans.findings import Findings
from forestcoll.plans.mscclpp.op_context import OpContext, check_ids
from forestcoll.plans.mscclpp.rules import MAX_IDS, MAX_REFS
from forestcoll.program import BY_JSON, DATA, FABRIC, OPERATIONS, SEMAPHORES, SYNCS, Operation

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
SYNC_WORDS = tuple(word for word, op in BY_JSON.items() if op in SYNCS)
SEMAPHORE_WORDS = tuple(word for word, op in BY_JSON.items() if op in SEMAPHORES)
GROUPS = {
    **dict.fromkeys((*DATA_WORDS, *SYNC_WORDS), "data"),
    **dict.fromkeys(SEMAPHORE_WORDS, "semaphore"),
    "nop": "", "barrier": "barrier", "pipeline": "loop",
}  # fmt: skip
"""Operation -> the group of fields that it uses; those of different groups share their bytes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An entry of src_buff or dst_buff: None where it could not be read."""

    local: bool | None  # False: remote; None: of a switch, or unknown
    peer: int | None
    letter: str | None
    index: int | None
    size: int | None


def check_data(op: dict[str, Any], name: str, here: OpContext) -> None:
    """Note what is wrong with a data operation's channels and operands."""
    (what, kinds), out, at = DATA_WORDS[name], here.access.out, here.at
    kind = op.get("channel_type", "none")
    if kinds and kind not in kinds:
        given = "channel_type" in op and kind != "none"
        out.add("MPP-OP-CHANNEL-TYPE" if given else "MPP-OP-INCOMPLETE", f"{here.where} ({name}) "
                f"works over {' or '.join(kinds)} channels, not {str(kind)[:40]!r}"
                f"{_why(name, kind)}", **at)  # fmt: skip
        return
    ids = check_ids(op, name, kind, here) if kinds else []
    if op.get("tbg_info") is not None:
        _check_part(op["tbg_info"], name, here)
    sides = []
    for key, count, side in (("src_buff", what.src, "s"), ("dst_buff", what.dst, "d")):
        items = here.access.objects(op, key, here.where, at) if key in op else []
        most = 1 if name == "copy" else MAX_REFS
        _check_number(len(items), key, name, (count[0], min(count[1], most)), here)
        from_remote = what.remote_src if side == "s" else what.remote_dst
        switched = what.switched == "both" or (what.switched == "dst" and side == "d")
        sides.append([
            _read_operand(item, f"{key}[{k}]", name, kind, switched,
                          k >= from_remote, here)
            for k, item in enumerate(items)
        ])  # fmt: skip
    src, dst = sides
    _check_lengths(src, dst, name, what, here)
    if what.packets:
        _check_packets(src, dst, name, what, kind, here)
    elif here.plan.double:
        for operand in (*src, *dst):
            if operand.local is False and operand.letter == "s":
                out.add("MPP-DOUBLE-SCRATCH", f"{here.where} ({name}) reaches the scratch of rank "
                        f"{operand.peer}", **at)  # fmt: skip
    if what.remote_dst == 0:
        _check_put(src, dst, ids, name, kind, here)
    if name == "get" and any(a.index != b.index for a, b in zip(src, dst, strict=False)):
        out.add("MPP-GET-SWAP", f"{here.where} (get) from chunk {src[0].index} to {dst[0].index}",
                **at)  # fmt: skip


def check_unused_data(op: dict[str, Any], name: str, here: OpContext) -> None:
    """Data fields of an operation that moves none: the loader reads them all the same."""
    out, at, access = here.access.out, here.at, here.access
    kind = op.get("channel_type", "none")
    if kind not in ("memory", "port", "switch", "none"):
        out.add("MPP-OP-CHANNEL-TYPE", f"{here.where} ({name}) has the channel_type "
                f"{str(kind)[:40]!r}", **at)  # fmt: skip
    if "channel_ids" in op:
        ids = access.integers(op, "channel_ids", here.where, at)
        if len(ids) > MAX_IDS:
            out.add("MPP-OP-CHANNELS", f"{here.where} ({name}) names {len(ids)} channels", **at)
    if "tbg_info" in op:
        _check_part(op["tbg_info"], name, here)
    for key in ("src_buff", "dst_buff"):
        items = access.objects(op, key, here.where, at) if key in op else []
        if len(items) > MAX_REFS:
            out.add("MPP-OP-REFS", f"{here.where} ({name}) has {len(items)} entries in {key}",
                    **at)  # fmt: skip
        for k, item in enumerate(items):
            where = f"{key}[{k}] of {here.where} ({name})"
            access.integer(item, "index", where, at)
            access.integer(item, "size", where, at)
            for what in ("type", "buffer_id", "switch_channel_id"):
                if what in item:
                    _resolve(item, what, where, str(kind), here)


def _why(name: str, kind: object) -> str:
    if name in ("pws", "pwsf") and kind == "memory":
        return ": over memory it never signals; use put, nop, signal"
    return ": it does nothing" if kind == "none" else ""


def _check_number(got: int, key: str, name: str, count: tuple[int, int], here: OpContext) -> None:
    out, at = here.access.out, here.at
    if got > MAX_REFS:
        out.add("MPP-OP-REFS", f"{here.where} ({name}) has {got} entries in {key}", **at)
    elif not count[0] <= got <= count[1]:
        need = str(count[0]) if count[0] == count[1] else f"{count[0]} to {count[1]}"
        out.add("MPP-OP-OPERANDS", f"{here.where} ({name}) has {got} entries in {key}; it takes "
                f"{need}", **at)  # fmt: skip


def _check_part(info: object, name: str, here: OpContext) -> None:
    out, at = here.access.out, here.at
    if not isinstance(info, dict):
        out.add("MPP-TYPE", f"tbg_info of {here.where} ({name}) is no object", **at)
        return
    index = here.access.integer(info, "tb_id", here.where, at)
    size = here.access.integer(info, "tbg_size", here.where, at)
    if index is not None and size is not None and not 0 <= index < size:
        out.add("MPP-TBG", f"{here.where} ({name}): tb_id {index} of tbg_size {size}", **at)
    if here.loop and size != 1:
        out.add("MPP-PIPE-TBG", f"{here.where} ({name}) is a slice in a pipeline", **at)


def _read_operand(
    item: dict[str, Any],
    key: str,
    name: str,
    kind: str,
    switch: bool,
    remote: bool,
    here: OpContext,
) -> Operand:
    out, at, access = here.access.out, here.at, here.access
    where = f"{key} of {here.where} ({name})"
    index = access.integer(item, "index", where, at)
    size = access.integer(item, "size", where, at)
    given = [k for k in ("type", "buffer_id", "switch_channel_id") if k in item]
    wanted = "switch_channel_id" if switch else "buffer_id" if remote else "type"
    if given != [wanted]:
        out.add("MPP-OP-OPERANDS", f"{where} names {' and '.join(given) or 'no buffer'}; it takes "
                f"{wanted}", **at)  # fmt: skip
        return Operand(None, None, None, index, size)
    found = _resolve(item, wanted, where, kind, here)
    local, peer, letter = found
    if size is not None and size < 1:
        out.add("MPP-SIZE-ZERO", f"{where} covers {size} chunks", **at)
    elif index is not None and size is not None and letter is not None:
        _check_range(where, peer, letter, index, size, here)
    if here.loop > 0 and size is not None and size >= 1 and size != here.loop:
        rule = "MPP-PIPE-UNDERFLOW" if size < here.loop else "MPP-PIPE-SHORT"
        out.add(rule, f"{where} covers {size} chunks in a pipeline over {here.loop}", **at)
    return Operand(local, peer, letter, index, size)


def _resolve(
    item: dict[str, Any], key: str, where: str, kind: str, here: OpContext
) -> tuple[bool | None, int | None, str | None]:
    """(whether local, rank, buffer letter) of an operand; None for what cannot be known."""
    out, at, access = here.access.out, here.at, here.access
    if key == "type":
        letter = access.text(item, "type", where, at)
        if letter is not None and letter not in ("i", "o", "s"):
            out.add("MPP-BUFFER-TYPE", f"{where} is of type {letter[:40]!r}", **at)
            letter = None
        return True, here.number, letter
    number = access.integer(item, key, where, at)
    if number is None:
        return None, None, None
    if key == "switch_channel_id":
        own = here.block.channels["switch"]
        if not 0 <= number < len(own):
            if not here.block.broken:
                out.add("MPP-SWITCH-ID", f"{where}: switch channel {number}; the thread block has "
                        f"{len(own)}", **at)  # fmt: skip
            return None, None, None
        group = own[number]
        out.add("MPP-SWITCH", "it uses switch channels")
        letter = None if group is None else here.rank.switches[group][0]
        return None, here.number, letter or None
    refs = here.block.remotes.get(kind, [])
    if not 0 <= number < len(refs):
        if not here.block.broken:
            out.add("MPP-BUFFER-ID", f"{where}: remote buffer {number}; the thread block refers to "
                    f"{len(refs)} by {kind}", **at)  # fmt: skip
        return False, None, None
    peer, letter = refs[number]
    return False, peer, letter


def _check_range(
    where: str, peer: int | None, letter: str, index: int, size: int, here: OpContext
) -> None:
    if peer is None:
        return
    held = here.plan.ranks[peer].chunks.get(letter)
    if held is not None and (index < 0 or index + size > held):
        here.access.out.add(
            "MPP-BOUNDS", f"{where}: chunks {index} to {index + size - 1} of buffer {letter!r} of "
            f"rank {peer}, which holds {held}", **here.at,
        )  # fmt: skip


def _check_lengths(
    src: list[Operand], dst: list[Operand], name: str, what: Operation, here: OpContext
) -> None:
    out, at = here.access.out, here.at
    if what.pairs:
        if len(src) != len(dst):
            out.add("MPP-OP-OPERANDS", f"{here.where} ({name}) has {len(src)} sources for "
                    f"{len(dst)} destinations; the i-th goes to the i-th", **at)  # fmt: skip
        groups = [{a.size, b.size} for a, b in zip(src, dst, strict=False)]
    else:
        groups = [{operand.size for operand in (*src, *dst)}]
    for sizes in groups:
        if len(sizes - {None}) > 1:
            shown = ", ".join(map(str, sorted(s for s in sizes if s is not None)))
            out.add("MPP-OP-SIZES", f"{here.where} ({name}) works on {shown} chunks", **at)
            return


def _check_packets(
    src: list[Operand],
    dst: list[Operand],
    name: str,
    what: Operation,
    kind: object,
    here: OpContext,
) -> None:
    out: Findings = here.access.out
    at = here.at
    if not here.plan.packets:
        out.add("MPP-PACKET-PROTOCOL", f"{here.where} ({name}), but protocol is not LL", **at)
    if here.loop:
        out.add("MPP-PIPE-PACKETS", f"{here.where} ({name}) in a pipeline", **at)
    if name == "ppkt" and kind == "port":
        text = f"{here.where} (ppkt) over a port sends memory of the first plan that a process ran"
        if here.plan.reuse and all(operand.letter == "s" for operand in src):
            # one scratch for all plans of that kind
            text += ": the same scratch if that had reuse_resources too"
            out.add("MPP-PACKET-PORT", text, **at, severity="warning")
        else:
            out.add("MPP-PACKET-PORT", text, **at)
    for side, operands, low in (
        ("src_buff", src, what.packet_src),
        ("dst_buff", dst, what.packet_dst),
    ):
        for k, operand in enumerate(operands):
            if k >= low and operand.letter not in ("s", None):
                out.add("MPP-PACKET-SCRATCH", f"{side}[{k}] of {here.where} ({name}) lies in "
                        f"buffer {operand.letter!r}", **at)  # fmt: skip


def _check_put(
    src: list[Operand],
    dst: list[Operand],
    ids: list[int],
    name: str,
    kind: object,
    here: OpContext,
) -> None:
    out, at = here.access.out, here.at
    letters = {operand.letter for operand in src} - {None}
    if kind == "memory" and len(letters) > 1:
        out.add("MPP-PUT-SOURCES", f"{here.where} ({name}) has sources in buffers "
                f"{', '.join(sorted(map(repr, letters)))}", **at)  # fmt: skip
    if (kind == "port" or ids) and len(ids) != len(dst):
        out.add("MPP-PUT-CHANNEL", f"{here.where} ({name}) has {len(dst)} destinations, but "
                f"{len(ids)} channels", **at)  # fmt: skip
        return
    own = here.block.channels[str(kind)]
    for number, operand in zip(ids, dst, strict=False):
        channel = own[number] if 0 <= number < len(own) else None
        if channel is None or operand.peer is None:
            continue
        peer = here.rank.channels[str(kind)][channel]
        if peer != operand.peer:
            out.add("MPP-PUT-CHANNEL", f"{here.where} ({name}) puts to rank {operand.peer} over a "
                    f"channel to rank {peer}", **at)  # fmt: skip
