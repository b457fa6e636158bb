"""From an MSCCL XML text to the Program that the runtimes would run, and all that is wrong.

`read` is the one reading, for `loads` and for the linter: <algo>, its gpus, their thread blocks
(steps.py reads what is in them), and whether all of it fits together. The runtimes' rules, not the
file's labels, decide (Azure/msccl-executor-nccl, msccl_parser.cc and msccl_kernel.cu).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, cast

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.common.input_limits import RANKS
from forestcoll.plans.findings import At, Findings, FirstError
from forestcoll.plans.msccl.rules import (
    MAX_BLOCKS_PER_CHANNEL,
    MAX_CHILDREN,
    MAX_CHUNKS,
    MAX_NODES,
)
from forestcoll.plans.msccl.steps import RECEIVING, SENDING, Buffers, Lane, LaneReader
from forestcoll.plans.msccl.text import Element, Numbers, scan
from forestcoll.plans.msccl.write import FORMAT_LIMITS
from forestcoll.plans.rules import MAX_BYTES, OLD_WORDS, OTHER_COLLECTIVES, check_header
from forestcoll.program import (
    BY_PLAN_WORD,
    Collective,
    Program,
    Protocol,
    RankProgram,
    ThreadBlock,
)
from forestcoll.program.check import check
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import Target, most_bytes

# Words that the loaders take (msccl_parser.cc 335-373), and what their sizes count.
KNOWN: Final = frozenset(
    (*BY_PLAN_WORD, "send", "recv", "gather", "scatter", "alltoall", "alltoallv")
)
TIMES_RANKS: Final = frozenset(("allgather", "reducescatter", "alltoall"))
PROTOCOLS: Final = ("Simple", "LL", "LL128")
CHANNELS: Final = {"msccl": 32, "rccl": 128}
"""MAXCHANNELS of each runtime (include/device.h:65)."""
MOST_CHANNELS: Final = max(CHANNELS.values())
MAX_BLOCKS: Final = 1024  # of a rank, in msccl (msccl_struct.h:17-18)
End = tuple[int, int, int]
"""Of a connection: from rank, to rank, channel."""


def loads(text: str, source: str) -> Program:
    """The Program that the runtimes would run for this text; `source` names it in errors.

    Lenient where the runtimes are, and with files of older tools; `Program.extra["notes"]` then
    says, a line each, what a current runtime would refuse. PlanError with line numbers otherwise.
    """
    out = FirstError(source)
    program = read(text, FORMAT_LIMITS, out)
    assert program is not None  # else it raised
    try:
        check_header(program)
        check(program)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    return out.sign(program)


def read(
    text: str,
    target: Target,
    out: Findings,
    *,
    sms: int | None = None,
    collective: Collective | None = None,
) -> Program | None:
    """The Program in the text, or None where no Program can hold it; `out` hears what is wrong.

    `sms`: thread blocks that run at once, where that is to be looked at; `collective` stands in for
    what the file says. The root is -1 where it is needed and not said.
    """
    algo = scan(text, out)
    return None if algo is None else _Reader(algo, target, out, sms, collective).read()


@dataclass(slots=True)
class _Head:
    """What <algo> says, as far as it says it: None where it cannot be known."""

    word: str  # the collective
    collective: Collective | None
    ranks: int | None
    total: int | None  # nchunksperloop
    channels: int | None
    protocol: str
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int
    root: int

    def shape(self) -> tuple[int, int] | None:
        """(input, output) chunks that the runtime makes of nchunksperloop."""
        if self.total is None or self.ranks is None or self.word not in KNOWN:
            return None
        if self.collective is None:
            return self.total, self.total
        try:
            return self.collective.chunks(self.ranks, self.total)
        except PlanError:
            return None


@dataclass(slots=True)
class _Block:
    """A thread block as far as it could be read; peers and channel are None where unknown."""

    tag: Element
    recv: int | None
    send: int | None
    channel: int | None
    lane: Lane


@dataclass(slots=True)
class _Ends:
    """Who claims which end of a connection: rank, thread block, line."""

    senders: dict[End, tuple[int, int, int]] = field(default_factory=dict)
    receivers: dict[End, tuple[int, int, int]] = field(default_factory=dict)
    unknown: bool = False  # some end could not be read


class _Reader:
    """Reads one file; `out` hears what is wrong."""

    def __init__(
        self,
        algo: Element,
        target: Target,
        out: Findings,
        sms: int | None,
        collective: Collective | None,
    ) -> None:
        self.algo, self.target, self.out, self.sms = algo, target, out, sms
        self.told = collective
        self.channels = CHANNELS.get(target.name, MOST_CHANNELS)
        self.numbers = Numbers(out)
        self.lanes = LaneReader(target, self.numbers)
        self.ends = _Ends()
        self.head: _Head

    def read(self) -> Program | None:
        """All of the file."""
        self.head = head = self.read_head()
        ranks: dict[int, RankProgram] = {}
        top = 0  # channels in use
        gpus = self.read_gpus()
        for rank, gpu in sorted(gpus.items()):
            buffers = self.read_buffers(rank, gpu)
            reach: dict[str, int] = {}
            blocks = self.read_blocks(rank, gpu, buffers, reach)
            self.check_channels(rank, blocks)
            used = [b.channel for b in blocks.values() if b.channel is not None]
            top = max([top, *(1 + c for c in used if c < self.channels)])
            self.check_buffers(rank, gpu, buffers, reach)
            self.lanes.check(rank, {b: block.lane for b, block in blocks.items()})
            if self.out.held:
                ranks[rank] = _make_rank(blocks, self.shape(), buffers)
        self.check_partners()
        if head.channels is not None and 0 < top < head.channels:
            self.out.add("XML-NCHANNELS-SPARE", f"nchannels is {head.channels}, but the highest "
                         f"chan is {top - 1}", line=self.algo.line)  # fmt: skip
        return self.make(ranks, gpus) if self.out.held else None

    def shape(self) -> tuple[int, int]:
        """(input, output) chunks of every rank, of a plan that a Program can hold."""
        total = self.head.total or 0
        return self.head.shape() or (total, total)

    def make(self, ranks: dict[int, RankProgram], gpus: dict[int, Element]) -> Program:
        """The Program of what was read; nothing in it is unknown."""
        head = self.head
        idle = RankProgram((), *self.shape(), 0)
        names = tuple(gpu.attributes["name"] for _, gpu in sorted(gpus.items())
                      if "name" in gpu.attributes)  # fmt: skip
        return Program(
            name=self.algo.attributes.get("name", ""),
            collective=head.collective or Collective.ALLREDUCE,
            style="fifo",
            ranks=tuple(ranks.get(r, idle) for r in range(head.ranks or 0)),
            in_place=head.in_place,
            out_of_place=head.out_of_place,
            root=head.root,
            protocol=cast("Protocol", head.protocol),
            names=names if len(names) == head.ranks else (),
            min_bytes=head.min_bytes,
            max_bytes=head.max_bytes,
            extra={"format": "msccl-xml"},
        )

    # --- algo -------------------------------------------------------------------------------------

    def read_head(self) -> _Head:
        """The <algo>'s values, with a finding for each that breaks a rule."""
        tag, out, at = self.algo, self.out, At(line=self.algo.line)
        word = self.read_word()
        ranks = self.numbers.get(tag, "ngpus")
        if ranks is not None and not 1 <= ranks <= MAX_CHILDREN:
            fits = 1 <= ranks <= RANKS
            limit = "" if fits else f"; it must lie between 1 and {RANKS} {RANKS.note}"
            (out.add if fits else out.refuse)("XML-NGPUS", f"ngpus is {ranks}{limit}", **at)
            ranks = ranks if fits else None
        total = self.numbers.get(tag, "nchunksperloop")
        if total is not None and total < 1:
            out.refuse("XML-CHUNKS-ZERO", f"nchunksperloop is {total}", **at)
            total = None
        elif total is not None and total > MAX_CHUNKS:
            out.refuse("RUN-REFUSED", f"nchunksperloop is {total}; no step reaches a chunk beyond "
                       f"{MAX_CHUNKS}", **at)  # fmt: skip
        channels = self.numbers.optional(tag, "nchannels")
        if channels is not None and not 1 <= channels <= self.channels:
            out.add("XML-NCHANNELS", f"nchannels is {channels}; {self.target.name} has "
                    f"{self.channels} channels", **at)  # fmt: skip
        protocol = self.word(tag, "proto")
        if protocol is not None and protocol not in PROTOCOLS:
            hint = did_you_mean(protocol[:40], PROTOCOLS)
            out.refuse("XML-PROTOCOL", f"proto is {protocol[:40]!r}{hint}", **at)
        low, high, places = self.read_selection()
        head = _Head(word, BY_PLAN_WORD.get(word), ranks, total, channels, protocol or "Simple",
                     *places, low or 0, high or 0, -1)  # fmt: skip
        if ranks and total and head.collective and head.shape() is None:
            out.refuse("XML-CHUNKS-SHARE", f"{total} chunks cannot be dealt out to {ranks} ranks "
                       f"evenly", **at)  # fmt: skip
        self.check_rounds(head, low, high)
        self.remark(head)
        head.root = self.read_root(head)
        return head

    def word(self, tag: Element, key: str) -> str | None:
        """An attribute that is no number, None where it is missing."""
        text = tag.attributes.get(key)
        if text is None:
            self.out.refuse("XML-MISSING", f"<{tag.name}> has no {key}{tag.hint(key)}",
                            line=tag.line)  # fmt: skip
        return text

    def read_word(self) -> str:
        """The word for the collective, as current runtimes spell it."""
        out, at = self.out, At(line=self.algo.line)
        if self.told is not None and "coll" not in self.algo.attributes:
            out.add("XML-MISSING", "<algo> has no coll", **at)
            return self.told.definition.plan_word
        word = self.word(self.algo, "coll")
        if word is not None and word not in KNOWN:
            said = OLD_WORDS.get(word)
            hint = f"; the loaders say {said!r}" if said else did_you_mean(word[:40], KNOWN)
            accepted = said or self.told or word in OTHER_COLLECTIVES
            note = out.add if accepted else out.refuse
            note("XML-COLLECTIVE", f"coll is {word[:40]!r}{hint}", **at)
        if self.told:
            return self.told.definition.plan_word
        if word in OTHER_COLLECTIVES:
            out.other(word, f"coll={word!r} is not supported; the collectives are "
                      f"{', '.join(BY_PLAN_WORD)}", **at)  # fmt: skip
        return OLD_WORDS.get(word or "", word or "")

    def read_selection(self) -> tuple[int | None, int | None, tuple[bool, bool]]:
        """Sizes and places: whether any call would ever be given to the plan."""
        tag, out, at = self.algo, self.out, At(line=self.algo.line)
        low, high = (self.numbers.optional(tag, key) for key in ("minBytes", "maxBytes"))
        for key, value in (("minBytes", low), ("maxBytes", high)):
            if value is not None and not 0 <= value <= MAX_BYTES:
                out.refuse("XML-SIZE-RANGE", f"{key} is {value}; it lies in 0 to 2^63 - 1", **at)
        if low is not None and high is not None and 0 < high < low:
            out.fault("XML-SIZE-RANGE", f"minBytes {low} is above maxBytes {high}", **at)
        flags = [self.numbers.optional(tag, key) for key in ("inplace", "outofplace")]
        for key, value in zip(("inplace", "outofplace"), flags, strict=True):
            if value not in (None, 0, 1):
                out.refuse("XML-FLAG", f"{key} is {value}", **at)
        if flags == [0, 0]:
            out.fault("XML-PLACES", "inplace and outofplace are both 0", **at)
        # Files of the first MSCCL only say `inplace`, and serve exactly the calls that it names.
        inside, outside = flags
        in_place = bool(inside) if inside is not None else outside == 0
        return low, high, (in_place, bool(outside) if outside is not None else not in_place)

    def check_rounds(self, head: _Head, low: int | None, high: int | None) -> None:
        """Whether the plan is offered for more bytes than the runtimes can count the rounds of."""
        if not head.total or low is None or high is None or low < 0 or high < 0:
            return
        protocol = cast("Protocol", head.protocol if head.protocol in PROTOCOLS else "Simple")
        most = most_bytes(self.target, protocol, head.total)
        if most and (not high or high > most):
            limit = f"maxBytes is {high}" if high else "no limit is set"
            self.out.add("XML-ROUNDS", f"{protocol} is right up to {most} bytes in "
                         f"{self.target.name}, but {limit}", line=self.algo.line)  # fmt: skip

    def remark(self, head: _Head) -> None:
        """What is worth knowing although nothing is wrong."""
        out, at = self.out, At(line=self.algo.line)
        if head.total and head.total > 1:
            over = f" over all {head.ranks} ranks" if head.word in TIMES_RANKS else ""
            sizes = Sizes("fifo", 1, head.total)
            out.add("XML-SIZES", f"it serves {sizes.words()}: {head.total} elements of any type"
                    f"{over}", **at)  # fmt: skip
        if head.collective is not None and head.collective.has_root:
            out.add("XML-ROOT-IGNORED", f"a {head.word} with any root would use this plan", **at)
            if head.protocol == "Simple":
                out.add("XML-PROXY-STEPS", f"{head.word} with Simple", **at)
            flags = [self.algo.attributes.get(key, "") for key in ("inplace", "outofplace")]
            if sorted(flags) == ["0", "1"]:
                out.add("XML-PLACES-ROOTED", f"a {head.word} of one place", **at)
        if head.protocol == "LL128":
            out.add("XML-LL128", "proto is LL128", **at)

    def read_root(self, head: _Head) -> int:
        """The root, -1 where there is none or the file does not say it."""
        if head.collective is None or not head.collective.has_root or head.ranks is None:
            return -1
        if "root" not in self.algo.attributes:
            return self.out.missing_root("<algo>")
        root = self.numbers.get(self.algo, "root")
        if root is not None and not 0 <= root < head.ranks:
            self.out.refuse("RUN-REFUSED", f"root is {root}; it must lie between 0 and "
                            f"{head.ranks - 1}", line=self.algo.line)  # fmt: skip
        return -1 if root is None else root

    # --- gpus -------------------------------------------------------------------------------------

    def read_gpus(self) -> dict[int, Element]:
        """The gpus by rank; findings for ids, and for ranks without work."""
        out, algo, ranks = self.out, self.algo, self.head.ranks
        gpus: dict[int, Element] = {}
        if len(algo.children) > MAX_CHILDREN:
            out.add("XML-CHILDREN", f"<algo> has {len(algo.children)} gpus", line=algo.line)
        for tag in algo.children:
            rank = self.numbers.get(tag, "id")
            if rank is None:
                continue
            if rank < 0 or (ranks is not None and rank >= ranks):
                out.refuse("XML-GPU-ID", f"gpu {rank} of {ranks} ranks", line=tag.line)
            elif rank in gpus:
                out.refuse("XML-GPU-ID", f"gpu {rank} stands twice, first on line "
                           f"{gpus[rank].line}", rank=rank, line=tag.line)  # fmt: skip
            else:
                gpus[rank] = tag
                if not any(block.steps for block in tag.children):
                    what = "no step at all" if tag.children else "no thread block"
                    out.add("XML-GPU-MISSING", f"gpu {rank} has {what}", rank=rank, line=tag.line)
        for rank in range(ranks or 0):
            if rank not in gpus:
                out.add("XML-GPU-MISSING", f"there is no gpu {rank}; ngpus is {ranks}",
                        rank=rank, line=algo.line)  # fmt: skip
        return gpus

    def read_buffers(self, rank: int, tag: Element) -> Buffers:
        """The rank's buffers; findings for sizes that cannot be."""
        told: dict[str, int] = {}
        at: At = {"rank": rank, "line": tag.line}
        for key in ("i_chunks", "o_chunks", "s_chunks"):
            value = self.numbers.get(tag, key, rank)
            if value is not None and value < 0:
                self.out.refuse("XML-CHUNKS-NEGATIVE", f"{key} is {value}", **at)
            elif value is not None:
                told[key[0]] = value
        for letter, most in (("i", 2**31 - 1), ("o", 2**31 - 1), ("s", MAX_CHUNKS)):
            if told.get(letter, 0) > most:
                self.out.refuse("RUN-REFUSED", f"{letter}_chunks is {told[letter]}; it is at most "
                                f"{most}", **at)  # fmt: skip
        shape = self.head.shape()
        real = told if shape is None else {**told, "i": shape[0], "o": shape[1]}
        return Buffers(told, real)

    def check_buffers(
        self, rank: int, tag: Element, buffers: Buffers, reach: dict[str, int]
    ) -> None:
        """Compare what the gpu says with what its steps reach (`reach`: chunks by letter)."""
        at: At = {"rank": rank, "line": tag.line}
        for letter in ("i", "o"):
            told, real = buffers.told.get(letter), buffers.real.get(letter)
            if told is None or real is None or told == real or (told == 0 and letter not in reach):
                continue  # a plan for calls in place may leave one of the two out
            self.out.add("XML-GPU-CHUNKS", f"{letter}_chunks is {told}, but nchunksperloop makes "
                         f"it {real}", **at)  # fmt: skip
        spare = buffers.told.get("s", 0) - reach.get("s", 0)
        if spare > 0:
            self.out.add("XML-SCRATCH-SPARE", f"{spare} of {buffers.told['s']} chunks of scratch "
                         f"are never used", **at)  # fmt: skip

    # --- thread blocks ----------------------------------------------------------------------------

    def read_blocks(
        self, rank: int, gpu: Element, buffers: Buffers, reach: dict[str, int]
    ) -> dict[int, _Block]:
        """The rank's thread blocks by id; `reach` grows by what their steps touch."""
        tags = gpu.children
        self.count_blocks(rank, gpu)
        blocks: dict[int, _Block] = {}
        for tag in tags:
            b = self.numbers.get(tag, "id", rank)
            if b is None:
                continue
            at: At = {"rank": rank, "block": b, "line": tag.line}
            if b in blocks:
                self.out.refuse("XML-TB-ID", f"tb {b} stands twice, first on line "
                                f"{blocks[b].tag.line}", **at)  # fmt: skip
                continue
            if not 0 <= b < len(tags):
                self.out.refuse("XML-TB-ID", f"tb {b} among {len(tags)}", **at)
            blocks[b] = self.read_block(rank, tag, at, buffers, reach)
        return dict(sorted(blocks.items()))

    def count_blocks(self, rank: int, gpu: Element) -> None:
        """Whether the runtime holds as many thread blocks, and elements of the file."""
        count, out, ranks = len(gpu.children), self.out, self.head.ranks
        at: At = {"rank": rank, "line": gpu.line}
        if self.target.name == "rccl" and count > self.target.thread_blocks:
            out.add("RCCL-TB-COUNT", f"{count} thread blocks", **at)
        elif count > MAX_BLOCKS:
            out.add("XML-TB-COUNT", f"{count} thread blocks", **at)
        elif self.sms is not None and count > self.sms:
            out.add("XML-TB-SMS", f"{count} thread blocks; the GPU is taken to have {self.sms} SMs",
                    **at)  # fmt: skip
        if count > MAX_CHILDREN:
            out.add("XML-CHILDREN", f"gpu {rank} has {count} thread blocks", **at)
        steps = sum(len(tag.steps) for tag in gpu.children)
        nodes = 1 + (ranks or 0) + count + steps
        if nodes > MAX_NODES:
            out.add("XML-NODES", f"rank {rank} loads {nodes} elements: algo, {ranks} gpu, {count} "
                    f"tb, {steps} step", **at)  # fmt: skip

    def read_block(
        self, rank: int, tag: Element, at: At, buffers: Buffers, reach: dict[str, int]
    ) -> _Block:
        """One thread block with its steps."""
        out, ranks = self.out, self.head.ranks
        types = {row[1][0] if len(row) == 5 else row[1].get("type", "") for row in tag.steps}
        if not tag.steps:
            out.add("XML-TB-EMPTY", "it has no step", **at)
        elif len(tag.steps) > MAX_CHILDREN:
            out.add("XML-CHILDREN", f"{len(tag.steps)} steps", **at)
        peers: list[int | None] = []
        for key, ops in (("recv", RECEIVING), ("send", SENDING)):
            peer = self.numbers.get(tag, key, rank, at["block"])
            if peer is not None and (peer < -1 or (ranks is not None and peer >= ranks)):
                out.refuse("XML-PEER", f"{key} is {peer}, not a rank of {ranks}", **at)
                peer = None
            elif peer == rank:
                out.fault("XML-PEER", f"{key} is {peer}, the rank itself", **at)
            elif peer is not None and peer >= 0 and tag.steps and not types & ops:
                out.add("XML-PEER-IDLE", f"{key} is {peer}, but no step uses it", **at)
            peers.append(peer)
        channel = self.numbers.get(tag, "chan", rank, at["block"])
        self.check_channel(channel, at)
        recv, send = peers
        lane = self.lanes.read(rank, at["block"], tag, recv, send, buffers, reach)
        return _Block(tag, recv, send, channel, lane)

    def check_channel(self, channel: int | None, at: At) -> None:
        """Whether the runtime has the channel, and connects it."""
        most, stated = self.channels, self.head.channels
        if channel is None:
            return
        lost = stated is not None and channel >= stated  # it is never connected
        if not 0 <= channel < most:
            note = self.out.refuse if channel < 0 or channel >= 2**15 or lost else self.out.add
            note("XML-CHANNEL", f"chan is {channel}; {self.target.name} has 0 to {most - 1}, and "
                 f"takes {most} unchecked", **at)  # fmt: skip
        elif lost:
            self.out.refuse("XML-CHANNEL", f"chan is {channel}, but nchannels {stated}: it is "
                            f"never connected", **at)  # fmt: skip

    def check_channels(self, rank: int, blocks: dict[int, _Block]) -> None:
        """Ownership of connections, and how many thread blocks a channel serves."""
        counts: Counter[tuple[str, int]] = Counter()
        for b, block in blocks.items():
            c, at = block.channel, At(rank=rank, block=b, line=block.tag.line)
            if c is None or block.recv is None or block.send is None:
                self.ends.unknown = True
                continue
            if not 0 <= c < self.channels or rank in (block.recv, block.send):
                self.ends.unknown = True
                continue
            if max(counts["send", c], counts["recv", c]) >= MAX_BLOCKS_PER_CHANNEL:
                self.out.add("XML-CHANNEL-LOAD", f"channel {c} already serves "
                             f"{MAX_BLOCKS_PER_CHANNEL} thread blocks of one direction",
                             **at)  # fmt: skip
            for way, peer, table, end, verb in (
                ("send", block.send, self.ends.senders, (rank, block.send, c), "sends to"),
                ("recv", block.recv, self.ends.receivers, (block.recv, rank, c), "receives from"),
            ):
                counts[way, c] += peer >= 0
                if peer < 0:
                    continue
                if end in table:
                    self.out.fault("XML-CONNECTION-SHARED", f"it {verb} rank {peer} on channel "
                                   f"{c}, as thread block {table[end][1]} does", **at)  # fmt: skip
                table.setdefault(end, (rank, b, block.tag.line))

    def check_partners(self) -> None:
        """Every end of a connection has another end."""
        senders, receivers = self.ends.senders, self.ends.receivers
        if self.ends.unknown:
            return  # the missing end may be the one that could not be read
        for end in sorted(senders.keys() ^ receivers.keys()):
            src, dst, channel = end
            if end in senders:
                rank, b, line = senders[end]
                text = f"sends to rank {dst} on channel {channel}, where nobody receives from {src}"
            else:
                rank, b, line = receivers[end]
                text = f"receives from rank {src} on channel {channel}, where nobody sends to {dst}"
            self.out.add("XML-PARTNER", f"it {text}", rank=rank, block=b, line=line)


def _make_rank(blocks: dict[int, _Block], shape: tuple[int, int], buffers: Buffers) -> RankProgram:
    """A rank's program; all that it needs is known."""
    lanes = {b: block.lane for b, block in blocks.items()}
    blocks_read = []
    for block in blocks.values():
        assert block.recv is not None
        assert block.send is not None
        assert block.channel is not None
        blocks_read.append(
            ThreadBlock(block.lane.steps(lanes), block.recv, block.send, block.channel)
        )
    return RankProgram(tuple(blocks_read), *shape, buffers.told["s"])
