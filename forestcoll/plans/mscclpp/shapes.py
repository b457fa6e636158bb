"""The fields of an MSCCL++ plan that the loader reads, and what the runtime takes in each.

(microsoft/mscclpp 1f5f065d, execution_plan.cc.) The loader checks types and names alone; the other
limits are the kernel's. Unknown fields are left alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Literal

from forestcoll.plans.fields import LARGE, POSITIVE, Field, Shape
from forestcoll.plans.mscclpp.rules import (
    ALIGNMENT,
    MAX_BARRIERS,
    MAX_IDS,
    MAX_REFS,
    MAX_SEMAPHORES,
)
from forestcoll.program import Buffer

NO_LIMIT = 2**64 - 1
BUFFERS = {buffer.value: buffer for buffer in Buffer}
KINDS = ("memory", "port", "switch")
"""Of channels."""
WAYS = ("type", "buffer_id", "switch_channel_id")
"""How an operand may name its buffer."""
_INT, _WORD, _FLAG = Field(), Field(str), Field(bool, usual=False, need="")


def _word(rule: str, fits: Sequence[str] | dict[str, Any], *held: str) -> Field:
    return Field(str, rule, fits, held)


def _optional(
    usual: int | None, rule: str, fits: Container[int], held: Container[int] = ()
) -> Field:
    return Field(int, rule, fits, held, usual, "")


def _list(of: Any = int, rule: str = "", most: int = 0, *, optional: bool = False) -> Field:
    need: Literal["refuse", ""] = "" if optional else "refuse"
    return Field(list, rule, range(most + 1), usual=(), need=need, of=of)


_BUFFER = _word("MPP-BUFFER-TYPE", BUFFERS)
OPERAND: Shape = {
    "index": _INT, "size": Field(int, "MPP-SIZE-ZERO", POSITIVE),
    "type": _BUFFER, "buffer_id": _INT, "switch_channel_id": _INT,
}  # fmt: skip
CONTEXT: Shape = {
    "num_chunks": Field(int, "MPP-PIPE-CHUNKS", POSITIVE),
    "unit_size": Field(int, "MPP-PIPE-UNIT", range(ALIGNMENT, 2**32, ALIGNMENT), range(1, 2**32)),
}
IDLE_CONTEXT: Shape = {
    "num_chunks": _INT, "unit_size": Field(int, "MPP-PIPE-UNIT", range(1, 2**32)),
}  # fmt: skip
"""Of an operation that is no pipeline: the loader divides by unit_size all the same."""
OPERATION: Shape = {
    "name": _WORD,
    "channel_ids": _list(int, "MPP-OP-CHANNELS", MAX_IDS, optional=True),
    "src_buff": _list(OPERAND, "MPP-OP-REFS", MAX_REFS, optional=True),
    "dst_buff": _list(OPERAND, "MPP-OP-REFS", MAX_REFS, optional=True),
    "tbg_info": Field(dict, need="", of={"tb_id": _INT, "tbg_size": _INT}),
    "iter_context": Field(dict, of=CONTEXT),
    "ops": _list(dict),
    "barrier_id": _optional(0, "MPP-BARRIER-ID", range(MAX_BARRIERS), range(LARGE)),
    "num_threadblocks": _optional(0, "MPP-BARRIER-UNMATCHED", POSITIVE),
    "semaphore_ids": _list(int, "MPP-SEMAPHORES", MAX_SEMAPHORES, optional=True),
}
_CHUNKS = range(2**31)
ACCESS = _word("MPP-CHANNEL-TYPE", KINDS[:2], "switch", "none")
"""A type of channel by which remote buffers are reached."""
_GROUP = {"ranks": _list(), "size": Field(int, "MPP-SWITCH-GROUP", POSITIVE, None)}
_GPU = {
    "id": _INT,
    "input_chunks": Field(int, "MPP-CHUNKS-ZERO", _CHUNKS[1:]),
    "output_chunks": Field(int, "MPP-CHUNKS-ZERO", _CHUNKS[1:]),
    "scratch_chunks": Field(int, "MPP-CHUNKS", _CHUNKS),
    "channels": _list({
        "channel_type": _word("MPP-CHANNEL-TYPE", KINDS), "connected_to": _list(),
        "buffer_type": _BUFFER, "rank_groups": _list(_GROUP),
    }),
    "remote_buffers": _list({
        "rank": _INT, "type": _BUFFER, "access_channel_types": _list(str),
    }),
    "semaphores": _list({
        "init_value": Field(int, "MPP-SEMAPHORE-INIT", range(2**31), range(-(2**31), 0), usual=0),
    }, optional=True),
    "threadblocks": _list({
        "id": _INT,
        "channels": _list({
            "channel_type": _word("MPP-CHANNEL-TYPE", KINDS, "none"), "channel_ids": _list(),
            "buff": Field(str, "MPP-BUFFER-TYPE", BUFFERS, None, need=""),
        }),
        "remote_buffer_refs": _list({
            "access_channel_type": ACCESS,
            "remote_buffer_ids": _list(),
        }, optional=True),
        "ops": _list(dict),
    }),
}  # fmt: skip
_MEBI = range(1, 2**20 + 1)
PLAN: Shape = {
    "name": _WORD,
    "collective": _WORD,
    "protocol": Field(str, "MPP-PROTOCOL", ("Simple", "LL"), None),
    "inplace": Field(bool),
    "reuse_resources": _FLAG,
    "use_double_scratch_buffer": _FLAG,
    "buffer_alignment": _optional(
        ALIGNMENT, "MPP-ALIGNMENT", range(ALIGNMENT, LARGE, ALIGNMENT), _MEBI
    ),
    "num_threads_per_block": _optional(1024, "MPP-THREADS", range(32, 1025, 32), _MEBI),
    "min_message_size": _optional(0, "MPP-MIN-SIZE", range(2**31), range(2**63)),
    "max_message_size": _optional(NO_LIMIT, "MPP-SIZE-RANGE", range(1, NO_LIMIT + 1)),
    "gpus": _list(_GPU),
}
OWN: Shape = {
    "forestcoll": Field(dict, usual={}, need="", of={
        "name": Field(str, need=""), "in_place": Field(bool, need=""),
        "out_of_place": Field(bool, usual=False), "names": _list(str, optional=True),
        "root": _optional(None, "", ()), "sums": Field(str, need=""),
        "max_bytes": _optional(None, "RUN-REFUSED", range(2**63)),
    }),
}  # fmt: skip
"""What only this package reads."""
