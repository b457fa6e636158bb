"""From an MSCCL XML text to the Program that the runtimes would run, and all that is wrong.

`read` is the one reading, for `loads` and for the linter: <algo>, its gpus, their thread blocks
(steps.py reads what is in them), and whether all of it fits together. The runtimes' rules, not the
file's labels, decide (Azure/msccl-executor-nccl, msccl_parser.cc and msccl_kernel.cu).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import RANKS
from forestcoll.plans.findings import Findings, FirstError
from forestcoll.plans.msccl.steps import RECEIVING, SENDING, Buffers, Lane, LaneReader
from forestcoll.plans.msccl.text import Element, scan
from forestcoll.plans.msccl.write import (
    FORMAT_LIMITS,
    MAX_BLOCKS_PER_CHANNEL,
    MAX_CHILDREN,
    MAX_CHUNKS,
    MAX_NODES,
)
from forestcoll.plans.rules import admit, read_word
from forestcoll.program import (
    BY_PLAN_WORD,
    Collective,
    Program,
    Protocol,
    RankProgram,
    ThreadBlock,
)
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import Target, most_bytes

# Words that the loaders take (msccl_parser.cc 335-373), and what their sizes count.
KNOWN = frozenset((*BY_PLAN_WORD, "send", "recv", "gather", "scatter", "alltoall", "alltoallv"))
TIMES_RANKS = frozenset(("allgather", "reducescatter", "alltoall"))
CHANNELS = {"msccl": 32, "rccl": 128}
"""MAXCHANNELS of each runtime (include/device.h:65)."""
MOST_CHANNELS = max(CHANNELS.values())
MOST = 2**31 - 1
MAX_BLOCKS = 1024  # of a rank, in msccl (msccl_struct.h:17-18)
End = tuple[int, int, int]
"""Of a connection: from rank, to rank, channel."""


def loads(text: str, source: str) -> Program:
    """The Program that the runtimes would run for this text; `source` names it in errors.

    Lenient where the runtimes are, and with files of older tools; `Program.extra["notes"]` then
    says, a line each, what a current runtime would refuse. PlanError with line numbers otherwise.
    """
    out = FirstError(source)
    return out.sign(admit(read(text, FORMAT_LIMITS, out), out))


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
    protocol: Protocol
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


class _Block(NamedTuple):
    """A thread block as far as it could be read; peers and channel are None where unknown."""

    tag: Element
    recv: int | None
    send: int | None
    channel: int | None
    lane: Lane


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
        self.lanes = LaneReader(target, out)
        # which thread block claims which end of a connection
        self.senders: dict[End, tuple[int, Element]] = {}
        self.receivers: dict[End, tuple[int, Element]] = {}
        self.unknown = False  # some end could not be read
        self.head: _Head

    def read(self) -> Program | None:
        """All of the file."""
        self.head = head = self.read_head()
        ranks: dict[int, RankProgram] = {}
        top = 0  # channels in use
        gpus = self.read_gpus()
        for rank, gpu in sorted(gpus.items()):
            buffers = self.read_buffers(gpu)
            reach: dict[str, int] = {}
            blocks = self.read_blocks(rank, gpu, buffers, reach)
            self.check_channels(rank, blocks)
            used = [b.channel for b in blocks.values() if b.channel is not None]
            top = max([top, *(1 + c for c in used if c < self.channels)])
            self.check_buffers(gpu, buffers, reach)
            self.lanes.check({b: block.lane for b, block in blocks.items()})
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
        names = tuple(gpu.values["name"] for _, gpu in sorted(gpus.items())
                      if "name" in gpu)  # fmt: skip
        return Program(
            name=self.algo.values.get("name", ""),
            collective=head.collective or Collective.ALLREDUCE,
            style="fifo",
            ranks=tuple(ranks.get(r, idle) for r in range(head.ranks or 0)),
            in_place=head.in_place,
            out_of_place=head.out_of_place,
            root=head.root,
            protocol=head.protocol,
            names=names if len(names) == head.ranks else (),
            min_bytes=head.min_bytes,
            max_bytes=head.max_bytes,
            extra={"format": "msccl-xml"}
            | {key: text for key, text in self.algo.values.items() if key == "sums"},
        )

    # --- algo -------------------------------------------------------------------------------------

    def read_head(self) -> _Head:
        """The <algo>'s values, with a finding for each that breaks a rule."""
        tag = self.algo
        word = read_word(tag, "coll", "XML-COLLECTIVE", KNOWN, self.told)
        ranks, total = tag.get("ngpus"), tag.get("nchunksperloop")
        if ranks is not None and not 1 <= ranks <= MAX_CHILDREN:
            held = 1 <= ranks <= RANKS
            limit = "" if held else f"; it must lie between 1 and {RANKS} {RANKS.note}"
            tag.tell("add" if held else "refuse", "XML-NGPUS", f"ngpus is {ranks}{limit}")
            ranks = ranks if held else None
        if total is not None and total > MAX_CHUNKS:
            tag.refuse("RUN-REFUSED", f"nchunksperloop is {total}; no step reaches a chunk beyond "
                       f"{MAX_CHUNKS}")  # fmt: skip
        channels = tag.get("nchannels")
        if channels is not None and not 1 <= channels <= self.channels:
            tag.add("XML-NCHANNELS", f"nchannels is {channels}; {self.target.name} has "
                    f"{self.channels} channels")  # fmt: skip
        protocol: Protocol = tag.get("proto") or "Simple"
        low, high = tag.get("minBytes"), tag.get("maxBytes")
        if low is not None and high is not None and 0 < high < low:
            tag.fault("XML-SIZE-RANGE", f"minBytes {low} is above maxBytes {high}")
        inside, outside = flags = tag.get("inplace"), tag.get("outofplace")
        if flags == (0, 0):
            tag.fault("XML-PLACES", "inplace and outofplace are both 0")
        # Files of the first MSCCL only say `inplace`, and serve exactly the calls that it names.
        in_place = bool(inside) if inside is not None else outside == 0
        out_of_place = bool(outside) if outside is not None else not in_place
        head = _Head(word, BY_PLAN_WORD.get(word), ranks, total, channels, protocol,
                     in_place, out_of_place, low or 0, high or 0, -1)  # fmt: skip
        if ranks and total and head.collective and head.shape() is None:
            tag.refuse("XML-CHUNKS-SHARE", f"{total} chunks cannot be dealt out to {ranks} ranks "
                       f"evenly")  # fmt: skip
        if low is not None and high is not None:
            self.check_rounds(head)
        self.remark(head)
        head.root = self.read_root(head)
        return head

    def check_rounds(self, head: _Head) -> None:
        """Whether the plan is offered for more bytes than the runtimes can count the rounds of."""
        high = head.max_bytes
        most = most_bytes(self.target, head.protocol, head.total) if head.total else 0
        if most and (not high or high > most):
            limit = f"maxBytes is {high}" if high else "no limit is set"
            self.algo.add("XML-ROUNDS", f"{head.protocol} is right up to {most} bytes in "
                          f"{self.target.name}, but {limit}")  # fmt: skip

    def remark(self, head: _Head) -> None:
        """What is worth knowing although nothing is wrong."""
        tag = self.algo
        if head.total and head.total > 1:
            over = f" over all {head.ranks} ranks" if head.word in TIMES_RANKS else ""
            sizes = Sizes("fifo", 1, head.total)
            tag.add("XML-SIZES", f"it serves {sizes.words()}: {head.total} elements of any type"
                    f"{over}")  # fmt: skip
        if head.collective is not None and head.collective.has_root:
            tag.add("XML-ROOT-IGNORED", f"a {head.word} with any root would use this plan")
            if tag.values.get("proto") == "Simple":
                tag.add("XML-PROXY-STEPS", f"{head.word} with Simple")
            flags = [tag.values.get(key, "") for key in ("inplace", "outofplace")]
            if sorted(flags) == ["0", "1"]:
                tag.add("XML-PLACES-ROOTED", f"a {head.word} of one place")
        if head.protocol == "LL128":
            tag.add("XML-LL128", "proto is LL128")

    def read_root(self, head: _Head) -> int:
        """The root, -1 where there is none or the file does not say it."""
        if head.collective is None or not head.collective.has_root or head.ranks is None:
            return -1
        if "root" not in self.algo:
            return self.out.missing_root("<algo>")
        root: int | None = self.algo.get("root")
        if root is not None and not 0 <= root < head.ranks:
            words = f"root is {root}; it must lie between 0 and {head.ranks - 1}"
            self.algo.refuse("RUN-REFUSED", words)
        return -1 if root is None else root

    # --- gpus -------------------------------------------------------------------------------------

    def read_gpus(self) -> dict[int, Element]:
        """The gpus by rank; findings for ids, and for ranks without work."""
        algo, ranks = self.algo, self.head.ranks
        gpus: dict[int, Element] = {}
        if len(algo.children) > MAX_CHILDREN:
            algo.add("XML-CHILDREN", f"<algo> has {len(algo.children)} gpus")
        for tag in algo.children:
            rank = tag.get("id")
            if rank is None:
                continue
            if rank < 0 or (ranks is not None and rank >= ranks):
                tag.refuse("XML-GPU-ID", f"gpu {rank} of {ranks} ranks")
                continue
            tag.at = {"rank": rank, "line": tag.line}
            if rank in gpus:
                words = f"gpu {rank} stands twice, first on line {gpus[rank].line}"
                tag.refuse("XML-GPU-ID", words)
                continue
            gpus[rank] = tag
            if not any(block.steps for block in tag.children):
                what = "no step at all" if tag.children else "no thread block"
                tag.add("XML-GPU-MISSING", f"gpu {rank} has {what}")
        for rank in range(ranks or 0):
            if rank not in gpus:
                self.out.add("XML-GPU-MISSING", f"there is no gpu {rank}; ngpus is {ranks}",
                             rank=rank, line=algo.line)  # fmt: skip
        return gpus

    def read_buffers(self, tag: Element) -> Buffers:
        """The rank's buffers; findings for sizes that cannot be."""
        told: dict[str, int] = {}
        for key, most in (("i_chunks", MOST), ("o_chunks", MOST), ("s_chunks", MAX_CHUNKS)):
            value = tag.get(key)
            if value is None:
                continue
            told[key[0]] = value
            if value > most:
                tag.refuse("RUN-REFUSED", f"{key} is {value}; it is at most {most}")
        shape = self.head.shape()
        real = told if shape is None else {**told, "i": shape[0], "o": shape[1]}
        return Buffers(told, real)

    def check_buffers(self, tag: Element, buffers: Buffers, reach: dict[str, int]) -> None:
        """Compare what the gpu says with what its steps reach (`reach`: chunks by letter)."""
        for letter in ("i", "o"):
            told, real = buffers.told.get(letter), buffers.real.get(letter)
            if told is None or real is None or told == real or (told == 0 and letter not in reach):
                continue  # a plan for calls in place may leave one of the two out
            words = f"{letter}_chunks is {told}, but nchunksperloop makes it {real}"
            tag.add("XML-GPU-CHUNKS", words)
        spare = buffers.told.get("s", 0) - reach.get("s", 0)
        if spare > 0:
            words = f"{spare} of {buffers.told['s']} chunks of scratch are never used"
            tag.add("XML-SCRATCH-SPARE", words)

    # --- thread blocks ----------------------------------------------------------------------------

    def read_blocks(
        self, rank: int, gpu: Element, buffers: Buffers, reach: dict[str, int]
    ) -> dict[int, _Block]:
        """The rank's thread blocks by id; `reach` grows by what their steps touch."""
        tags = gpu.children
        self.count_blocks(gpu)
        blocks: dict[int, _Block] = {}
        for tag in tags:
            tag.at = {"rank": rank, "line": tag.line}
            b = tag.get("id")
            if b is None:
                continue
            tag.at = {"rank": rank, "block": b, "line": tag.line}
            if b in blocks:
                words = f"tb {b} stands twice, first on line {blocks[b].tag.line}"
                tag.refuse("XML-TB-ID", words)
                continue
            if not 0 <= b < len(tags):
                tag.refuse("XML-TB-ID", f"tb {b} among {len(tags)}")
            blocks[b] = self.read_block(rank, tag, buffers, reach)
        return dict(sorted(blocks.items()))

    def count_blocks(self, gpu: Element) -> None:
        """Whether the runtime holds as many thread blocks, and elements of the file."""
        count, ranks, words = (
            len(gpu.children),
            self.head.ranks,
            f"{len(gpu.children)} thread blocks",
        )
        if self.target.name == "rccl" and count > self.target.thread_blocks:
            gpu.add("RCCL-TB-COUNT", words)
        elif count > MAX_BLOCKS:
            gpu.add("XML-TB-COUNT", words)
        elif self.sms is not None and count > self.sms:
            gpu.add("XML-TB-SMS", f"{words}; the GPU is taken to have {self.sms} SMs")
        if count > MAX_CHILDREN:
            gpu.add("XML-CHILDREN", f"a gpu has {words}")
        steps = sum(len(tag.steps) for tag in gpu.children)
        nodes = 1 + (ranks or 0) + count + steps
        if nodes > MAX_NODES:
            gpu.add("XML-NODES", f"a rank loads {nodes} elements: algo, {ranks} gpu, {count} tb, "
                    f"{steps} step")  # fmt: skip

    def read_block(
        self, rank: int, tag: Element, buffers: Buffers, reach: dict[str, int]
    ) -> _Block:
        """One thread block with its steps."""
        types = {row[1][0] if len(row) == 5 else row[1].get("type", "") for row in tag.steps}
        if not tag.steps:
            tag.add("XML-TB-EMPTY", "it has no step")
        elif len(tag.steps) > MAX_CHILDREN:
            tag.add("XML-CHILDREN", f"{len(tag.steps)} steps")
        recv, send = (
            self.read_peer(rank, tag, key, bool(types & ops))
            for key, ops in (("recv", RECEIVING), ("send", SENDING))
        )
        channel = tag.get("chan")
        self.check_channel(tag, channel)
        lane = self.lanes.read(tag, recv, send, buffers, reach)
        return _Block(tag, recv, send, channel, lane)

    def read_peer(self, rank: int, tag: Element, key: str, busy: bool) -> int | None:
        """The rank at one end of the thread block, -1: none; `busy`: its steps use it."""
        peer: int | None = tag.get(key)
        if peer is None or peer == -1:
            return peer
        ranks = self.head.ranks
        if peer < -1 or (ranks is not None and peer >= ranks):
            tag.refuse("XML-PEER", f"{key} is {peer}, not a rank of {ranks}")
            return None
        if peer == rank:
            tag.fault("XML-PEER", f"{key} is {peer}, the rank itself")
        elif tag.steps and not busy:
            tag.add("XML-PEER-IDLE", f"{key} is {peer}, but no step uses it")
        return peer

    def check_channel(self, tag: Element, channel: int | None) -> None:
        """Whether the runtime has the channel, and connects it."""
        most, stated = self.channels, self.head.channels
        if channel is None:
            return
        lost = stated is not None and channel >= stated  # it is never connected
        if not 0 <= channel < most:
            held = 0 <= channel < 2**15 and not lost
            words = f"chan is {channel}; {self.target.name} has 0 to {most - 1}, and takes {most} "
            tag.tell("add" if held else "refuse", "XML-CHANNEL", f"{words}unchecked")
        elif lost:
            words = f"chan is {channel}, but nchannels {stated}: it is never connected"
            tag.refuse("XML-CHANNEL", words)

    def check_channels(self, rank: int, blocks: dict[int, _Block]) -> None:
        """Ownership of connections, and how many thread blocks a channel serves."""
        counts: Counter[tuple[str, int]] = Counter()
        for b, block in blocks.items():
            c, tag = block.channel, block.tag
            if c is None or block.recv is None or block.send is None:
                self.unknown = True
                continue
            if not 0 <= c < self.channels or rank in (block.recv, block.send):
                self.unknown = True
                continue
            if max(counts["send", c], counts["recv", c]) >= MAX_BLOCKS_PER_CHANNEL:
                tag.add("XML-CHANNEL-LOAD", f"channel {c} already serves {MAX_BLOCKS_PER_CHANNEL} "
                        "thread blocks of one direction")  # fmt: skip
            for way, peer, table, end, verb in (
                ("send", block.send, self.senders, (rank, block.send, c), "sends to"),
                ("recv", block.recv, self.receivers, (block.recv, rank, c), "receives from"),
            ):
                counts[way, c] += peer >= 0
                if peer < 0:
                    continue
                if end in table:
                    words = f"it {verb} rank {peer} on channel {c}, as thread block {table[end][0]}"
                    tag.fault("XML-CONNECTION-SHARED", f"{words} does")
                table.setdefault(end, (b, tag))

    def check_partners(self) -> None:
        """Every end of a connection has another end."""
        senders, receivers = self.senders, self.receivers
        if self.unknown:
            return  # the missing end may be the one that could not be read
        for end in sorted(senders.keys() ^ receivers.keys()):
            src, dst, channel = end
            _, tag = (senders if end in senders else receivers)[end]
            words = f"it sends to rank {dst} on channel {channel}, where nobody receives from {src}"
            if end in receivers:
                words = f"it receives from rank {src} on channel {channel}, where nobody sends to "
                words += f"{dst}"
            tag.add("XML-PARTNER", words)


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
