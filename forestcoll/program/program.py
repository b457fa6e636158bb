"""What every rank does: thread blocks of instructions, independent of any device or file format.

Two styles of communication exist, and one instruction set holds both:

* **fifo** (MSCCL XML): a thread block owns at most one incoming and one outgoing connection on one
  channel. `send` hands a message over, the n-th `recv` of a connection takes the n-th `send`; a
  connection holds a bounded number of messages. The whole instruction list of every thread block is
  repeated for slice after slice of every chunk: that loop is the pipelining.
* **onesided** (MSCCL++): `put` writes into a peer's buffer, `signal` and `wait` count semaphores of
  a channel. Loops are explicit (`Pipeline`): its body is repeated for slice after slice of its
  chunks.

Buffers are counted in chunks. One chunk is `input bytes / input_chunks` (the same for all buffers);
how input and output compare is said in collective.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from forestcoll.program.collective import Collective

Style = Literal["fifo", "onesided"]
Protocol = Literal["Simple", "LL", "LL128"]


class Buffer(StrEnum):
    """A rank's three buffers; the values are the letters that both plan formats use."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


class Op(StrEnum):
    """Instructions. `src` and `dst` are tuples of `Ref`; (R) marks operands that may be remote.

    local          nop                       nothing (fifo: carries dependencies; onesided:
                                             barrier of the block's threads)
                   copy      src -> dst
                   reduce    dst[0] = dst[0] op src[0] op src[1] ...              (fifo: MSCCL `re`)
                   reduce_to dst[0] = src[0] op src[1] op ...             (onesided: MSCCL++ `re`)
    fifo           send      src -> connection
                   recv      connection -> dst
                   recv_copy_send         (rcs)  connection -> dst, and forward
                   recv_reduce_send       (rrs)  connection op src -> forward only
                   recv_reduce_copy       (rrc)  connection op src -> dst
                   recv_reduce_copy_send  (rrcs) connection op src -> dst, and forward
    onesided       put              src[0] -> every dst (R); or src[i] -> dst[i], equal counts
                   put_signal       as put, then signal on the same channels      (MSCCL++ `pws`)
                   put_signal_flush as put_signal, and wait until the source may be reused (`pwsf`)
                   get              src[i] (R) -> dst[i]
                   read_reduce      dst[0] = src[0] op src[1..] (R)                (MSCCL++ `rre`)
                   read_reduce_put  as read_reduce, and result -> dst[1..] (R)     (MSCCL++ `rres`)
                   reduce_put       dst[0] = src[0] op src[1..] local; result -> dst[1..] (R) `res`
                   signal, wait     on each of `channels`
                   relaxed_signal, relaxed_wait   the same without ordering data (handshakes)
                   flush            wait until earlier puts have left
                   barrier          among `group` thread blocks of the rank, barrier id `ident`
                   acquire, release `semaphores` of the rank (MSCCL++ sem_acquire, sem_release)
    packets        (onesided, protocol LL) a packet carries data and the launch's number; whoever
                   reads one waits until it bears the number of its own launch. Packets lie in
                   scratch, and nothing else does. (P) marks operands that are packets.
                   put_packets      src[i] -> dst[i] (R, P)                        (MSCCL++ `ppkt`)
                   forward_packets  src[0] (P) -> every dst (R, P)                         `rppkt`
                   copy_packets     src[0] -> dst[0] (P)                                   `cpkt`
                   unpack           src[0] (P) -> dst[0]                                   `upkt`
                   reduce_packets   dst[0] = src[0] op src[1] (P) op ...                   `repkt`
                   reduce_put_packets       the same, and result -> dst[1..] (R, P)        `respkt`
                   reduce_copy_packets      the same, and result -> dst[1] (P)             `recpkt`
                   reduce_copy_put_packets  the same, and result -> dst[2..] (R, P)        `recspkt`
    switches       (onesided) an operand on one of `switches` is that part of the buffer of every
                   rank of its group at once; the switch copies or adds (NVLS)
                   fabric_store         src[0] -> dst[0] on switches[0]           (MSCCL++ `gstore`)
                   fabric_reduce_store  dst[0] on switches[1] = sum of src[0] on switches[0] `glres`
    """

    NOP = "nop"
    COPY = "copy"
    REDUCE = "reduce"
    REDUCE_TO = "reduce_to"
    SEND = "send"
    RECV = "recv"
    RECV_COPY_SEND = "recv_copy_send"
    RECV_REDUCE_SEND = "recv_reduce_send"
    RECV_REDUCE_COPY = "recv_reduce_copy"
    RECV_REDUCE_COPY_SEND = "recv_reduce_copy_send"
    PUT = "put"
    PUT_SIGNAL = "put_signal"
    PUT_SIGNAL_FLUSH = "put_signal_flush"
    GET = "get"
    READ_REDUCE = "read_reduce"
    READ_REDUCE_PUT = "read_reduce_put"
    REDUCE_PUT = "reduce_put"
    SIGNAL = "signal"
    WAIT = "wait"
    RELAXED_SIGNAL = "relaxed_signal"
    RELAXED_WAIT = "relaxed_wait"
    FLUSH = "flush"
    BARRIER = "barrier"
    ACQUIRE = "acquire"
    RELEASE = "release"
    PUT_PACKETS = "put_packets"
    FORWARD_PACKETS = "forward_packets"
    COPY_PACKETS = "copy_packets"
    UNPACK = "unpack"
    REDUCE_PACKETS = "reduce_packets"
    REDUCE_PUT_PACKETS = "reduce_put_packets"
    REDUCE_COPY_PACKETS = "reduce_copy_packets"
    REDUCE_COPY_PUT_PACKETS = "reduce_copy_put_packets"
    FABRIC_STORE = "fabric_store"
    FABRIC_REDUCE_STORE = "fabric_reduce_store"


@dataclass(frozen=True, slots=True)
class PacketShape:
    """Which operands of a packet operation are what.

    Sources from `packets_in` on are packets in own scratch, the first ones plain. Destinations
    before `plain_out` are plain and local, those before `own_out` packets in own scratch, the rest
    (`peers`: there are some) packets in scratch of peers.
    """

    packets_in: int
    plain_out: int
    own_out: int
    peers: bool = False
    many: bool = False  # may have more than one source


PACKETS: Final = {
    Op.PUT_PACKETS: PacketShape(2**31, 0, 0, peers=True, many=True),
    Op.FORWARD_PACKETS: PacketShape(0, 0, 0, peers=True),
    Op.COPY_PACKETS: PacketShape(2**31, 0, 1),
    Op.UNPACK: PacketShape(0, 1, 1),
    Op.REDUCE_PACKETS: PacketShape(1, 1, 1, many=True),
    Op.REDUCE_PUT_PACKETS: PacketShape(1, 1, 1, peers=True, many=True),
    Op.REDUCE_COPY_PACKETS: PacketShape(1, 1, 2, many=True),
    Op.REDUCE_COPY_PUT_PACKETS: PacketShape(1, 1, 2, peers=True, many=True),
}


@dataclass(frozen=True, slots=True)
class Ref:
    """`count` chunks at chunk `offset` of a buffer of rank `rank`; None: of the own rank."""

    buffer: Buffer
    offset: int
    count: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation of one thread block. Fields that an operation does not use stay empty."""

    op: Op
    src: tuple[Ref, ...] = ()
    dst: tuple[Ref, ...] = ()
    after: tuple[tuple[int, int], ...] = ()  # (thread block, step) of this rank, must be done
    channels: tuple[int, ...] = ()  # onesided: indices into this thread block's `channels`
    semaphores: tuple[int, ...] = ()  # indices into the rank's `semaphores`
    ident: int = 0  # barrier id
    group: int = 0  # thread blocks at the barrier
    part: tuple[int, int] = (0, 1)  # (index, size): does this slice of every operand's whole range
    switches: tuple[int, ...] = ()  # onesided: indices into this thread block's `switches`


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop in a onesided thread block: `body` runs for each `unit_bytes` slice of the chunks.

    Every data instruction of the body covers exactly `chunks` chunks and no `part`. The number of
    rounds is ceil(chunks * chunk bytes / unit_bytes), the same at both ends of a channel.
    """

    body: tuple[Instruction, ...]
    chunks: int
    unit_bytes: int


Step = Instruction | Pipeline


@dataclass(frozen=True, slots=True)
class Channel:
    """One end of a onesided channel: this thread block's `index`-th ... to `peer`.

    `index` numbers the channels of one kind from this rank to `peer` (0, 1, ...): the n-th channel
    from i to j pairs with the n-th from j to i.
    """

    peer: int
    kind: Literal["memory", "port"]
    index: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A way through a switch that copies and adds to one buffer of all `ranks`, its group.

    Every rank of the group has it: the same switch in any of them is the same way.
    """

    ranks: tuple[int, ...]
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """One thread block of one rank. fifo style: `recv`, `send`, `channel`; onesided: the others."""

    steps: tuple[Step, ...]
    recv: int = -1  # peer rank, -1: none
    send: int = -1
    channel: int = 0
    channels: tuple[Channel, ...] = ()
    switches: tuple[Switch, ...] = ()

    def __repr__(self) -> str:
        peers = {p for p in (self.recv, self.send) if p >= 0} | {c.peer for c in self.channels}
        with_ = f" with ranks {_some(sorted(peers))}" if peers else ""
        return f"<ThreadBlock: {len(self.steps)} steps{with_}>"

    def operands(self, rank: int, i: Instruction) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
        """What an instruction of this block of `rank` reads and writes, behind switches too."""
        if not i.switches:
            return i.src, i.dst
        behind = [
            self._behind(rank, s, ref) for s, ref in zip(i.switches, _switched(i), strict=True)
        ]
        if i.op is Op.FABRIC_REDUCE_STORE:
            return behind[0], behind[1]
        return i.src, behind[0]

    def reads_by_port(self, i: Instruction) -> bool:
        """Whether it is a port that reads the instruction's sources, not the block's threads.

        Channels that the block does not have are passed over: others refuse them.
        """
        known = range(len(self.channels))
        return i.op in PUTS and any(
            self.channels[c].kind == "port" for c in i.channels if c in known
        )

    def _behind(self, rank: int, switch: int, ref: Ref) -> tuple[Ref, ...]:
        ranks = self.switches[switch].ranks
        return tuple([replace(ref, rank=None if r == rank else r) for r in ranks])


def _switched(i: Instruction) -> tuple[Ref, ...]:
    """The operands on switches, in the order of `i.switches`."""
    return (*i.src, *i.dst) if i.op is Op.FABRIC_REDUCE_STORE else i.dst


def _some(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers[:8]))
    return f"{listed} and {len(numbers) - 8} more" if len(numbers) > 8 else listed


FABRIC: Final = frozenset({Op.FABRIC_STORE, Op.FABRIC_REDUCE_STORE})
"""Operations through switches that copy and add."""


PUTS: Final = frozenset({Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH})
"""Operations that write plain data into peers' buffers, over memory or through a port."""


@dataclass(frozen=True, slots=True)
class RankProgram:
    """All that one rank does. Chunk counts: sizes of its buffers; `semaphores`: initial values."""

    thread_blocks: tuple[ThreadBlock, ...]
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    semaphores: tuple[int, ...] = ()

    def __repr__(self) -> str:
        chunks = f"{self.input_chunks} in, {self.output_chunks} out, {self.scratch_chunks} scratch"
        return f"<RankProgram: {len(self.thread_blocks)} thread blocks; chunks: {chunks}>"


@dataclass(frozen=True, slots=True)
class Program:
    """A collective for all ranks. `ranks[i]` is what rank i does; `names[i]` its node id or ''."""

    name: str
    collective: Collective
    style: Style
    ranks: tuple[RankProgram, ...]
    in_place: bool  # right when input and output are the same memory (as NCCL defines it)
    out_of_place: bool  # right when they are not; the input is then left unchanged
    root: int = -1  # broadcast, reduce
    protocol: Protocol = "Simple"
    names: tuple[str, ...] = ()
    min_bytes: int = 0  # sizes served, nccl-tests' size, both inclusive; max 0: no limit
    max_bytes: int = 0
    double_scratch: bool = False  # LL: scratch is there twice, launches take the two by turns
    extra: dict[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        blocks = max((len(rank.thread_blocks) for rank in self.ranks), default=0)
        return (
            f"<Program {self.name or 'without a name'}: {self.collective}, {self.n} ranks, "
            f"{self.style}, {self.protocol}, at most {blocks} thread blocks a rank>"
        )

    @property
    def n(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def scratch_factor(self) -> int:
        """Scratch in sizes of its chunks: packets take twice their data, two halves twice that."""
        packets = self.style == "onesided" and self.protocol == "LL"
        return (2 if packets else 1) * (2 if self.double_scratch else 1)

    def lead(self, rank: int, ref: Ref) -> int:
        """Chunks by which packets of `rank` miss the half of scratch that their reader looks at.

        Above 0: beyond it. In every other launch a rank addresses packets at peers where its own
        scratch has its second half (microsoft/mscclpp 1f5f065d, executor.cc: launchKernelHelper;
        execution_kernel.hpp: scratchOffset_), and everybody reads where his own has it.
        """
        if not self.double_scratch or ref.rank is None or ref.buffer is not Buffer.SCRATCH:
            return 0
        return self.ranks[rank].scratch_chunks - self.ranks[ref.rank].scratch_chunks

    def part_meant(self, rank: int, ref: Ref, *, by_port: bool) -> int:
        """In place: whose part of the longer user buffer an operand of `rank` is.

        Of the shorter one the runtime knows where it lies only for the threads of its own rank.
        Ports read from where the allocation begins, which is rank 0's part, and at peers all are
        as far from their allocation's begin as at the own rank (microsoft/mscclpp 1f5f065d,
        executor.cc: setupRegisteredMemories; execution_plan.cc: getConstOffset).
        """
        if ref.rank in (None, rank) and by_port:
            return 0
        return rank

    @property
    def shorter(self) -> Buffer | None:
        """The user buffer that in place is one rank's part of the other, if one is."""
        if self.collective.input_is_part:
            return Buffer.INPUT
        return Buffer.OUTPUT if self.collective.output_is_part else None

    def misplaced(self) -> Iterator[tuple[int, int, int, Instruction, Ref]]:
        """(rank, thread block, step, instruction, operand): what in place is not where it says."""
        if self.style == "fifo" or self.shorter is None:
            return
        for r, b, s, i in self.instructions():
            block = self.ranks[r].thread_blocks[b]
            src, dst = block.operands(r, i)
            by_port = block.reads_by_port(i)
            for k, ref in enumerate((*src, *dst)):
                owner = r if ref.rank is None else ref.rank
                port = by_port and k < len(src)
                if ref.buffer is self.shorter and self.part_meant(r, ref, by_port=port) != owner:
                    yield r, b, s, i, ref

    @property
    def in_switches(self) -> bool:
        """Whether switches copy or add."""
        return any(i.op in FABRIC for *_, i in self.instructions())

    def instructions(self) -> Iterator[tuple[int, int, int, Instruction]]:
        """(rank, thread block, step, instruction) of all; bodies of pipelines have their step."""
        for r, rank in enumerate(self.ranks):
            for b, block in enumerate(rank.thread_blocks):
                for s, step in enumerate(block.steps):
                    for i in step.body if isinstance(step, Pipeline) else (step,):
                        yield r, b, s, i
