"""The text of an MSCCL++ plan: strict JSON, and the fields that the loader reads, by type.

Refused: keys that stand twice in one object, NaN and infinities, deep nesting, texts with so many
values that they would not fit in memory. Unknown keys are left alone. The loader checks types and
names alone (microsoft/mscclpp 1f5f065d, execution_plan.cc); the other limits are the kernel's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from typing import Any, Literal

from forestcoll.common.input_limits import PLAN_DIGITS, PLAN_VALUES
from forestcoll.plans.findings import LARGE, POSITIVE, Entry, Field, Findings, Shape
from forestcoll.plans.mscclpp.write import (
    ALIGNMENT,
    MAX_BARRIERS,
    MAX_IDS,
    MAX_REFS,
    MAX_SEMAPHORES,
)
from forestcoll.program import Buffer

TYPES: dict[type, str] = {
    int: "an integer", str: "a string", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
_LONG = re.compile(rf"[0-9]{{{PLAN_DIGITS + 1}}}")


def parse(text: str, out: Findings) -> dict[str, Any] | None:
    """The outermost object of a JSON text, or None; what cannot be read in it is None."""
    if len(text) > PLAN_VALUES and sum(map(text.count, ",{[")) > PLAN_VALUES:
        out.refuse("MPP-SYNTAX", f"more than {PLAN_VALUES} values {PLAN_VALUES.note}")
        return None

    def integer(digits: str) -> int | None:
        if len(digits) <= PLAN_DIGITS:
            return int(digits)
        long = f"the number {digits[:20]}... has {len(digits)} digits {PLAN_DIGITS.note}"
        out.refuse("MPP-TYPE", long)
        return None

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(items)
        if len(fields) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    words = f"the key {key[:40]!r} stands twice in one object"
                    out.refuse("MPP-DUPLICATE-KEY", words)
                seen.add(key)
        return fields

    wrong, line = "", -1
    try:
        value = json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=lambda word: out.refuse("MPP-SYNTAX", f"{word} is no JSON"),
            parse_int=integer if _LONG.search(text) else None,
            object_pairs_hook=pairs,
        )
        if not isinstance(value, dict):
            wrong = f"the file holds {kind(value)}; a plan is an object"
    except json.JSONDecodeError as error:
        wrong, line = f"not well-formed JSON: {error.msg}", error.lineno
    except RecursionError:
        wrong = "nested too deep to be a plan"
    if wrong:
        out.refuse("MPP-SYNTAX", wrong, line=line)
        return None
    return value  # type: ignore[no-any-return]


def kind(value: object) -> str:
    """A JSON value's type, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "a number with a point" if isinstance(value, float) else TYPES[type(value)]


class Object(Entry):
    """An object of the file; what is of another type than the loader reads is refused."""

    __slots__ = ()
    missing, mistyped = "MPP-MISSING", "MPP-TYPE"

    def value(self, key: str, field: Field) -> Any:
        """The value, of a list those items that are of the right type."""
        value: Any = self.values[key]
        if type(value) is not field.type:
            self.mistype(f"{key} of {self.where} is", value, field.type)
            return None
        if not isinstance(value, list):
            return value
        wanted = field.of if isinstance(field.of, type) else dict
        items = [item for item in value if type(item) is wanted]
        if len(items) < len(value):
            other = next(item for item in value if type(item) is not wanted)
            self.mistype(f"{key} of {self.where} holds", other, wanted)
        return items

    def mistype(self, words: str, value: object, wanted: type) -> None:
        """Tell of a value of another type."""
        self.refuse(self.mistyped, f"{words} {kind(value)}, not {TYPES[wanted]}")

    def within(self, values: dict[str, Any], where: str, shape: Shape) -> Object:
        """An object in this one, of the same place."""
        return type(self)(values, where, self.at, self.out, shape)

    def child(self, key: str, shape: Shape | None = None) -> Object | None:
        """The object that a field is; None where it is none."""
        values = self.get(key)
        if values is None:
            return None
        return self.within(values, f"{key} of {self.where}", shape or self.shape[key].of)

    def entries(self, key: str, of: str = "") -> list[Object]:
        """The objects of a list, each named by its place in it."""
        make, at, out, shape = type(self), self.at, self.out, self.shape[key].of
        items = enumerate(self.get(key))
        return [make(item, f"{key}[{k}]{of}", at, out, shape) for k, item in items]


class Own(Object):
    """The object that only this package reads: no loader minds what is in it."""

    __slots__ = ()
    missing = mistyped = "RUN-REFUSED"


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
