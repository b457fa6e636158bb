"""Rules of <algo> and <gpu>: what the loaders ask for, and what the selection looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.plans.findings import Findings
from forestcoll.plans.msccl.rules import MAX_CHILDREN
from forestcoll.plans.msccl.tags import Numbers, Tag
from forestcoll.plans.rules import MAX_BYTES, OLD_WORDS
from forestcoll.program import BY_PLAN_WORD, Collective, Protocol
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import Target, most_bytes

# Words that the loaders take (msccl_parser.cc 335-373), and what their sizes count.
KNOWN = frozenset((*BY_PLAN_WORD, "send", "recv", "gather", "scatter", "alltoall", "alltoallv"))
TIMES_RANKS = frozenset(("allgather", "reducescatter", "alltoall"))
PROTOCOLS = ("Simple", "LL", "LL128")
CHANNELS = {"msccl": 32, "rccl": 128}
"""MAXCHANNELS of each runtime (include/device.h:65)."""


@dataclass(frozen=True, slots=True)
class Head:
    """What <algo> says, as far as it says it: None where it cannot be known."""

    word: str  # the collective
    collective: Collective | None
    ranks: int | None
    total: int | None  # nchunksperloop
    channels: int | None
    protocol: str

    def buffers(self) -> tuple[int, int] | None:
        """(input, output) chunks that the runtime makes of nchunksperloop."""
        if self.total is None or self.ranks is None or self.word not in KNOWN:
            return None
        if self.collective is None:
            return self.total, self.total
        try:
            return self.collective.chunks(self.ranks, self.total)
        except PlanError:
            return None


def read_head(tag: Tag, target: Target, override: Collective | None, numbers: Numbers) -> Head:
    """The <algo>'s values, with a finding for each that breaks a rule."""
    out, line = numbers.out, tag.line
    given = tag.attributes.get("coll")
    word = _check_word(given, override, line, out)
    collective = BY_PLAN_WORD.get(word)
    ranks = numbers.get(tag, "ngpus")
    if ranks is not None and not 1 <= ranks <= MAX_CHILDREN:
        out.add("XML-NGPUS", f"ngpus is {ranks}", line=line)
        ranks = None
    total = numbers.get(tag, "nchunksperloop")
    if total is not None and total < 1:
        out.add("XML-CHUNKS-ZERO", f"nchunksperloop is {total}", line=line)
        total = None
    channels = numbers.get(tag, "nchannels")
    if channels is not None and not 1 <= channels <= CHANNELS[target.name]:
        out.add("XML-NCHANNELS", f"nchannels is {channels}; {target.name} has "
                f"{CHANNELS[target.name]} channels", line=line)  # fmt: skip
    protocol = tag.attributes.get("proto")
    if protocol is None:
        out.add("XML-MISSING", "<algo> has no proto", line=line)
    elif protocol not in PROTOCOLS:
        hint = did_you_mean(protocol[:40], PROTOCOLS)
        out.add("XML-PROTOCOL", f"proto is {protocol[:40]!r}{hint}", line=line)
    head = Head(word, collective, ranks, total, channels, protocol or "Simple")
    if ranks and total and collective and head.buffers() is None:
        out.add("XML-CHUNKS-SHARE", f"{total} chunks cannot be dealt out to {ranks} ranks evenly",
                line=line)  # fmt: skip
    _check_selection(tag, numbers)
    _check_rounds(tag, head, target, numbers)
    _remark(tag, head, out)
    return head


def _check_word(given: str | None, override: Collective | None, line: int, out: Findings) -> str:
    if given is None:
        out.add("XML-MISSING", "<algo> has no coll", line=line)
    elif given not in KNOWN:
        said = OLD_WORDS.get(given)
        hint = f"; the loaders say {said!r}" if said else did_you_mean(given[:40], KNOWN)
        out.add("XML-COLLECTIVE", f"coll is {given[:40]!r}{hint}", line=line)
    if override is not None:
        return override.definition.plan_word
    return OLD_WORDS.get(given or "", given or "")


def _check_selection(tag: Tag, numbers: Numbers) -> None:
    """Sizes and places: whether any call would ever be given to the plan."""
    out, line = numbers.out, tag.line
    low, high = numbers.get(tag, "minBytes"), numbers.get(tag, "maxBytes")
    for key, value in (("minBytes", low), ("maxBytes", high)):
        if value is not None and not 0 <= value <= MAX_BYTES:
            out.add("XML-SIZE-RANGE", f"{key} is {value}; it lies in 0 to 2^63 - 1", line=line)
    if low is not None and high is not None and 0 < high < low:
        out.add("XML-SIZE-RANGE", f"minBytes {low} is above maxBytes {high}", line=line)
    places = [numbers.get(tag, key) for key in ("inplace", "outofplace")]
    for key, value in zip(("inplace", "outofplace"), places, strict=True):
        if value not in (None, 0, 1):
            out.add("XML-FLAG", f"{key} is {value}", line=line)
    if places == [0, 0]:
        out.add("XML-PLACES", "inplace and outofplace are both 0", line=line)


def _check_rounds(tag: Tag, head: Head, target: Target, numbers: Numbers) -> None:
    """Whether the plan is offered for more bytes than the runtimes can count the rounds of."""
    low, high = numbers.get(tag, "minBytes"), numbers.get(tag, "maxBytes")
    if not head.total or low is None or high is None or low < 0 or high < 0:
        return
    protocol = cast("Protocol", head.protocol if head.protocol in PROTOCOLS else "Simple")
    most = most_bytes(target, protocol, head.total)
    if most and (not high or high > most):
        limit = f"maxBytes is {high}" if high else "no limit is set"
        numbers.out.add("XML-ROUNDS", f"{protocol} is right up to {most} bytes in "
                        f"{target.name}, but {limit}",
                        line=tag.line)  # fmt: skip


def _remark(tag: Tag, head: Head, out: Findings) -> None:
    """What is worth knowing although nothing is wrong."""
    if head.total and head.total > 1:
        over = f" over all {head.ranks} ranks" if head.word in TIMES_RANKS else ""
        sizes = Sizes("fifo", 1, head.total)
        out.add("XML-SIZES", f"it serves {sizes.words()}: {head.total} elements of any type{over}",
                line=tag.line)  # fmt: skip
    if head.collective is not None and head.collective.rooted:
        out.add("XML-ROOT-IGNORED", f"a {head.word} with any root would use this plan",
                line=tag.line)  # fmt: skip
        if head.protocol == "Simple":
            out.add("XML-PROXY-STEPS", f"{head.word} with Simple", line=tag.line)
        if sorted(tag.attributes.get(key, "") for key in ("inplace", "outofplace")) == ["0", "1"]:
            out.add("XML-PLACES-ROOTED", f"a {head.word} of one place", line=tag.line)
    if head.protocol == "LL128":
        out.add("XML-LL128", "proto is LL128", line=tag.line)


def read_gpus(algo: Tag, head: Head, numbers: Numbers) -> dict[int, Tag]:
    """The gpus by rank; findings for ids, and for ranks without work."""
    out = numbers.out
    gpus: dict[int, Tag] = {}
    if len(algo.children) > MAX_CHILDREN:
        out.add("XML-CHILDREN", f"<algo> has {len(algo.children)} gpus", line=algo.line)
    for tag in algo.children:
        rank = numbers.get(tag, "id")
        if rank is None:
            continue
        if rank < 0 or (head.ranks is not None and rank >= head.ranks):
            out.add("XML-GPU-ID", f"gpu {rank} of {head.ranks} ranks", line=tag.line)
        elif rank in gpus:
            out.add("XML-GPU-ID", f"gpu {rank} stands twice, first on line {gpus[rank].line}",
                    rank=rank, line=tag.line)  # fmt: skip
        else:
            gpus[rank] = tag
            if not any(block.children for block in tag.children):
                what = "no step at all" if tag.children else "no thread block"
                out.add("XML-GPU-MISSING", f"gpu {rank} has {what}", rank=rank, line=tag.line)
    if head.ranks is not None:
        for rank in range(head.ranks):
            if rank not in gpus:
                out.add("XML-GPU-MISSING", f"there is no gpu {rank}; ngpus is {head.ranks}",
                        rank=rank, line=algo.line)  # fmt: skip
    return gpus


@dataclass(frozen=True, slots=True)
class Buffers:
    """Chunks of a rank's buffers by letter; what is not known is absent.

    The loaders check offsets against what the gpu says, but a chunk has the size that
    nchunksperloop gives it: that is where memory ends.
    """

    told: dict[str, int]
    real: dict[str, int]


def read_buffers(rank: int, tag: Tag, head: Head, numbers: Numbers) -> Buffers:
    """The rank's buffers; findings for sizes that cannot be."""
    told: dict[str, int] = {}
    for key, letter in (("i_chunks", "i"), ("o_chunks", "o"), ("s_chunks", "s")):
        value = numbers.get(tag, key, rank)
        if value is not None and value < 0:
            numbers.out.add("XML-CHUNKS-NEGATIVE", f"{key} is {value}", rank=rank, line=tag.line)
        elif value is not None:
            told[letter] = value
    shape = head.buffers()
    real = dict(told) if shape is None else {**told, "i": shape[0], "o": shape[1]}
    return Buffers(told, real)


def check_buffers(
    rank: int, tag: Tag, buffers: Buffers, reach: dict[str, int], out: Findings
) -> None:
    """Compare what the gpu says with what its steps reach (`reach`: chunks by letter)."""
    for letter, key in (("i", "i_chunks"), ("o", "o_chunks")):
        told, real = buffers.told.get(letter), buffers.real.get(letter)
        if told is None or real is None or told == real or (told == 0 and letter not in reach):
            continue  # a plan for calls in place may leave one of the two out
        out.add("XML-GPU-CHUNKS", f"{key} is {told}, but nchunksperloop makes it {real}",
                rank=rank, line=tag.line)  # fmt: skip
    spare = buffers.told.get("s", 0) - reach.get("s", 0)
    if spare > 0:
        out.add("XML-SCRATCH-SPARE", f"{spare} of {buffers.told['s']} chunks of scratch are never "
                f"used", rank=rank, line=tag.line)  # fmt: skip
