"""MSCCL++ plans that cannot be followed as they are, written so that nearly all of them can.

The linter has looked at the plan itself by then. What is found in the other one is true of both.

* `gstorepkt` reads packets of the own scratch, and has the switch store them in everybody's: as
  `rppkt` to all others of the group does. Where it stores into the place that it reads, its own
  rank gets what it has; elsewhere it cannot be said with `rppkt`.
* `ppkt` over a port sends packets of the own scratch as they are; `rppkt` waits for them first.
* `reuse_resources` gives scratch a fixed size; where the data are longer, a pipeline takes it from
  the start again. With scratch as long as the data nothing of a run changes but that.
"""

from __future__ import annotations

import json
from typing import Any

Plan = dict[str, Any]
REUSE = (
    "reuse_resources: scratch was taken to be as long as the data; whether a round of a pipeline "
    "finds its place in a shorter one free again was not looked at"
)
PUTS = (
    "ppkt over a port was followed as an rppkt, which waits for the packets: whether they are all "
    "there when it starts was not looked at"
)
STORES = "gstorepkt was followed as an rppkt to every other rank of the group"


def stand_in(text: str) -> tuple[str, list[str]]:
    """The text of a plan that can be followed, and what was taken for what; none: there is none.

    The plan is one that the rules find no fault with.
    """
    plan: Plan = json.loads(text)
    said: list[str] = []
    if plan.get("reuse_resources") is True:
        plan["reuse_resources"] = False
        said.append(REUSE)
    operations = [
        (gpu, block, op)
        for gpu in plan["gpus"]
        for block in gpu["threadblocks"]
        for op in block["ops"]
    ]
    puts = [
        op for *_, op in operations if op["name"] == "ppkt" and op.get("channel_type") == "port"
    ]
    stores = [one for one in operations if one[2]["name"] == "gstorepkt"]
    moved = any(op["src_buff"][0]["index"] != op["dst_buff"][0]["index"] for *_, op in stores)
    if moved or not all(map(_one_source, puts)):
        return text, []
    for op in puts:
        op |= {"name": "rppkt", "src_buff": op["src_buff"][:1]}
    for gpu, block, op in stores:
        _forward(gpu, block, op)
    said += [words for words, some in ((PUTS, puts), (STORES, stores)) if some]
    return json.dumps(plan), said


def _one_source(op: Plan) -> bool:
    first = op["src_buff"][0]
    return first.get("type") == "s" and all(source == first for source in op["src_buff"])


def _forward(gpu: Plan, block: Plan, op: Plan) -> None:
    """The operation becomes a forwarding of its packets, to scratch that the thread block names."""
    groups = [
        group["ranks"]
        for channel in gpu["channels"]
        if channel["channel_type"] == "switch"
        for group in channel["rank_groups"]
    ]
    own = [
        number
        for item in block["channels"]
        if item["channel_type"] == "switch"
        for number in item["channel_ids"]
    ]
    (to,) = op.pop("dst_buff")
    index, size = to["index"], to["size"]
    peers = [p for p in groups[own[to["switch_channel_id"]]] if p != gpu["id"]]
    op |= {"name": "rppkt", "channel_type": "memory", "dst_buff": []}
    for peer in peers:
        op["dst_buff"].append(
            {"buffer_id": _buffer(gpu, block, peer), "index": index, "size": size}
        )


def _buffer(gpu: Plan, block: Plan, peer: int) -> int:
    """The thread block's number for the peer's scratch, reached by memory."""
    gpu["remote_buffers"].append({"rank": peer, "type": "s", "access_channel_types": ["memory"]})
    refs = block.setdefault("remote_buffer_refs", [])
    before = sum(
        len(item["remote_buffer_ids"]) for item in refs if item["access_channel_type"] == "memory"
    )
    refs.append(
        {"access_channel_type": "memory", "remote_buffer_ids": [len(gpu["remote_buffers"]) - 1]}
    )
    return before
