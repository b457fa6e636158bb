"""Where an operation of an MSCCL++ plan stands, and the channels that it names there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forestcoll.plans.findings import At
from forestcoll.plans.mscclpp.rules import MAX_IDS
from forestcoll.plans.mscclpp.text import Access
from forestcoll.plans.mscclpp.values import Block, Plan, Rank


@dataclass(slots=True)
class OpContext:
    """Where an operation stands: its place, the lists that it counts in, and its pipeline."""

    at: At
    plan: Plan
    rank: Rank
    block: Block
    number: int  # the rank's
    access: Access
    where: str  # `operation 3` or `operation 3.1`
    loop: int = 0  # num_chunks of the pipeline around it, 0: none


def check_ids(op: dict[str, Any], name: str, kind: str, here: OpContext) -> list[int]:
    """The operation's channel_ids, each checked against the thread block's own list."""
    if "channel_ids" not in op:
        return []
    out, at = here.access.out, here.at
    ids = here.access.integers(op, "channel_ids", here.where, at)
    own = here.block.channels[kind]
    if len(ids) > MAX_IDS:
        out.add("MPP-OP-CHANNELS", f"{here.where} ({name}) names {len(ids)} channels", **at)
    for number in ids:
        if not 0 <= number < len(own) and not here.block.broken:
            out.add("MPP-OP-CHANNEL-ID", f"{here.where} ({name}): {kind} channel {number}; the "
                    f"thread block has {len(own)}", **at)  # fmt: skip
    return ids
