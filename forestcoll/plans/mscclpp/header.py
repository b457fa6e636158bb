"""The fields of an MSCCL++ plan outside its gpus: what each means for the Program."""

from __future__ import annotations

from collections.abc import Sequence

from forestcoll.common.errors import UnsupportedError, did_you_mean
from forestcoll.plans.mscclpp.rules import body_of
from forestcoll.plans.mscclpp.text import Object
from forestcoll.plans.rules import (
    MAX_BYTES,
    OLD_WORDS,
    OTHER_COLLECTIVES,
    Notes,
)
from forestcoll.program import BY_PLAN_WORD, Buffer, Collective, Protocol, RankProgram


def read_collective(top: Object, notes: Notes) -> Collective:
    word = top.text("collective")
    if word in OLD_WORDS:
        notes.add(f"collective {word!r}: the runtime says {OLD_WORDS[word]!r}")
        word = OLD_WORDS[word]
    if word in OTHER_COLLECTIVES:
        raise UnsupportedError(
            f"{top.source}: collective {word!r} is not supported; the collectives are "
            f"{', '.join(BY_PLAN_WORD)}"
        )
    if word not in BY_PLAN_WORD:
        hint = did_you_mean(word[:40], BY_PLAN_WORD)
        raise top.fail(f"collective {word[:40]!r} does not exist{hint}")
    return BY_PLAN_WORD[word]


def read_protocol(top: Object, notes: Notes, ranks: Sequence[RankProgram]) -> tuple[Protocol, bool]:
    """The protocol, and whether scratch has two halves that are taken by turns.

    Without packets a rank's own operations take turns, but those that reach another's memory do not
    (execution_kernel.hpp:46-56, 160): no difference where nobody reaches another's scratch.

    After the operations, because an operation that is not supported says more.
    """
    if top.has("reuse_resources") and top.flag("reuse_resources"):
        raise UnsupportedError(
            f"{top.source}: reuse_resources (a scratch buffer of fixed size, shared between plans) "
            "is not supported; set it false"
        )
    protocol = top.text("protocol")
    double = top.has("use_double_scratch_buffer") and top.flag("use_double_scratch_buffer")
    if protocol not in ("Simple", "LL"):
        notes.add(f"protocol {protocol[:40]!r}: the runtime takes any word but 'LL' for 'Simple'")
    if not double or protocol == "LL":
        return ("LL" if protocol == "LL" else "Simple"), double
    if any(_reaches_scratch(rank) for rank in ranks):
        raise UnsupportedError(
            f"{top.source}: use_double_scratch_buffer (two halves of scratch, taken by turns) is "
            "not supported without packets (protocol 'LL'): puts ignore the halves; set it false"
        )
    notes.add("use_double_scratch_buffer: it doubles scratch, which nothing here needs")
    return "Simple", False


def _reaches_scratch(rank: RankProgram) -> bool:
    """Whether an operation of the rank reads or writes another's scratch, or a switch's."""
    return any(
        ref.buffer is Buffer.SCRATCH and (ref.rank is not None or i.switches)
        for block in rank.thread_blocks
        for step in block.steps
        for i in body_of(step)
        for ref in (*i.src, *i.dst)
    )


def read_places(top: Object, own: Object | None) -> tuple[bool, bool]:
    plan = top.flag("inplace")
    if own is None or not own.has("in_place"):
        return plan, not plan
    flags = own.flag("in_place"), own.flag("out_of_place")
    if not flags[0 if plan else 1]:
        raise own.fail(f"contradicts the plan's inplace: {str(plan).lower()}")
    return flags


def read_sizes(top: Object, notes: Notes) -> tuple[int, int]:
    low = top.integer("min_message_size", 0, MAX_BYTES) if top.has("min_message_size") else 0
    high = (
        top.integer("max_message_size", 0, 2**64 - 1) if top.has("max_message_size") else MAX_BYTES
    )
    if low >= 2**31:
        notes.add(f"min_message_size {low}: the loader reads only 31 bits of it")
    if high == 0:
        raise top.fail("max_message_size 0 serves no size; leave it out for no limit")
    if low > high:
        raise top.fail(f"min_message_size {low} is larger than max_message_size {high}")
    return low, min(high, MAX_BYTES)


def read_root(collective: Collective, own: Object | None, n: int, notes: Notes) -> int:
    if not collective.rooted:
        return -1
    if own is not None and own.has("root"):
        return own.integer("root", 0, n - 1)
    notes.add("the plan does not say the root; rank 0 is assumed")
    return 0


def read_names(own: Object | None, n: int) -> tuple[str, ...]:
    if own is None or not own.has("names"):
        return ()
    names = own.list("names")
    if len(names) != n:
        raise names.fail(f"{len(names)} names for {n} ranks")
    return tuple(names.text(k) for k in range(n))
