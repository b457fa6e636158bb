"""Operations: one row says what an operation of a thread block is; every set of them is derived.

How many operands it takes and where they lie, what it does over connections and channels, and what
MSCCL XML and MSCCL++ JSON call it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MANY = 2**30
"""As many operands as somebody likes; from the MANY-th on: none."""

REDUCTIONS = ("sum", "prod", "min", "max", "avg")
"""What an operation that adds may do instead of adding."""

Kind = Literal["memory", "port"]
"""Of channels."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What an operation is.

    `src`, `dst`: fewest and most sources and destinations. From the `remote_src`-th source or
    `remote_dst`-th destination on they lie at peers, from the `packet_src`-th or `packet_dst`-th on
    they are packets.
    `kinds`: the channels that it goes over; none: it has none, and no peer.
    `switched`: the operands that a switch stands for.
    """

    style: Literal["fifo", "onesided", "both"] = "onesided"
    src: tuple[int, int] = (0, 0)
    dst: tuple[int, int] = (0, 0)
    remote_src: int = MANY
    remote_dst: int = MANY
    packet_src: int = MANY
    packet_dst: int = MANY
    kinds: tuple[Kind, ...] = ()
    pairs: bool = False  # the i-th source goes to the i-th destination
    spreads: bool = False  # or one source to all destinations
    adds: bool = False
    receives: bool = False  # over the thread block's connection
    sends: bool = False
    signals: bool = False  # on its channels
    waits: bool = False
    semaphores: bool = False
    switched: Literal["", "dst", "both"] = ""
    xml: str = ""  # the word of MSCCL XML
    json: str = ""  # the word of MSCCL++ JSON

    @property
    def moves_data(self) -> bool:
        """Whether it has operands."""
        return self.src[1] + self.dst[1] > 0

    @property
    def packets(self) -> bool:
        """Whether some of its operands are packets."""
        return min(self.packet_src, self.packet_dst) < MANY

    @property
    def remote(self) -> bool:
        """Whether some of its operands lie at peers."""
        return min(self.remote_src, self.remote_dst) < MANY

    @property
    def switches(self) -> int:
        """How many switches it goes through."""
        return {"": 0, "dst": 1, "both": 2}[self.switched]


_ONE, _SOME, _TWO = (1, 1), (1, MANY), (2, MANY)
_ANY: tuple[Kind, ...] = ("memory", "port")
_MEMORY: tuple[Kind, ...] = ("memory",)
_PORT: tuple[Kind, ...] = ("port",)


def _put(json: str, kinds: tuple[Kind, ...], *, signals: bool = False) -> Operation:
    """Sources of the own rank to destinations at peers."""
    return Operation(
        src=_SOME, dst=_SOME, remote_dst=0, kinds=kinds, pairs=True, spreads=True,
        signals=signals, json=json,
    )  # fmt: skip


OPERATIONS: dict[Op, Operation] = {
    Op.NOP: Operation(style="both", json="nop"),
    Op.COPY: Operation(style="both", src=_SOME, dst=_SOME, pairs=True, xml="cpy", json="copy"),
    Op.REDUCE: Operation(style="both", src=_SOME, dst=_ONE, adds=True, xml="re"),
    Op.REDUCE_TO: Operation(src=_SOME, dst=_ONE, adds=True, json="re"),
    # fifo: over the thread block's connections
    Op.SEND: Operation(style="fifo", src=_ONE, sends=True, xml="s"),
    Op.RECV: Operation(style="fifo", dst=_ONE, receives=True, xml="r"),
    Op.RECV_COPY_SEND: Operation(style="fifo", dst=_ONE, receives=True, sends=True, xml="rcs"),
    Op.RECV_REDUCE_SEND: Operation(
        style="fifo", src=_ONE, receives=True, sends=True, adds=True, xml="rrs"
    ),
    Op.RECV_REDUCE_COPY: Operation(
        style="fifo", src=_ONE, dst=_ONE, receives=True, adds=True, xml="rrc"
    ),
    Op.RECV_REDUCE_COPY_SEND: Operation(
        style="fifo", src=_ONE, dst=_ONE, receives=True, sends=True, adds=True, xml="rrcs"
    ),
    # onesided: memory of peers
    Op.PUT: _put("put", _ANY),
    Op.PUT_SIGNAL: _put("pws", _PORT, signals=True),
    Op.PUT_SIGNAL_FLUSH: _put("pwsf", _PORT, signals=True),
    Op.GET: Operation(
        src=_SOME, dst=_SOME, remote_src=0, kinds=_MEMORY, pairs=True, json="get"
    ),
    Op.READ_REDUCE: Operation(
        src=_TWO, dst=_ONE, remote_src=1, kinds=_MEMORY, adds=True, json="rre"
    ),
    Op.READ_REDUCE_PUT: Operation(
        src=_TWO, dst=_TWO, remote_src=1, remote_dst=1, kinds=_MEMORY, adds=True, json="rres"
    ),
    Op.REDUCE_PUT: Operation(
        src=_SOME, dst=_TWO, remote_dst=1, kinds=_MEMORY, adds=True, json="res"
    ),
    # onesided: who may go on
    Op.SIGNAL: Operation(kinds=_ANY, signals=True, json="signal"),
    Op.WAIT: Operation(kinds=_ANY, waits=True, json="wait"),
    Op.RELAXED_SIGNAL: Operation(kinds=_ANY, signals=True, json="rlxsignal"),
    Op.RELAXED_WAIT: Operation(kinds=_ANY, waits=True, json="rlxwait"),
    Op.FLUSH: Operation(kinds=_ANY, json="flush"),
    Op.BARRIER: Operation(json="barrier"),
    Op.ACQUIRE: Operation(semaphores=True, json="sem_acquire"),
    Op.RELEASE: Operation(semaphores=True, json="sem_release"),
    # onesided: packets
    Op.PUT_PACKETS: Operation(
        src=_SOME, dst=_SOME, remote_dst=0, packet_dst=0, kinds=_ANY, pairs=True, spreads=True,
        json="ppkt",
    ),
    Op.FORWARD_PACKETS: Operation(
        src=_ONE, dst=_SOME, remote_dst=0, packet_src=0, packet_dst=0, kinds=_ANY, json="rppkt"
    ),
    Op.COPY_PACKETS: Operation(src=_ONE, dst=_ONE, packet_dst=0, json="cpkt"),
    Op.UNPACK: Operation(src=_ONE, dst=_ONE, packet_src=0, json="upkt"),
    Op.REDUCE_PACKETS: Operation(src=_TWO, dst=_ONE, packet_src=1, adds=True, json="repkt"),
    Op.REDUCE_PUT_PACKETS: Operation(
        src=_TWO, dst=_TWO, remote_dst=1, packet_src=1, packet_dst=1, kinds=_MEMORY, adds=True,
        json="respkt",
    ),
    Op.REDUCE_COPY_PACKETS: Operation(
        src=_TWO, dst=(2, 2), packet_src=1, packet_dst=1, adds=True, json="recpkt"
    ),
    Op.REDUCE_COPY_PUT_PACKETS: Operation(
        src=_TWO, dst=(3, MANY), remote_dst=2, packet_src=1, packet_dst=1, kinds=_MEMORY, adds=True,
        json="recspkt",
    ),
    # onesided: switches that copy and add
    Op.FABRIC_STORE: Operation(src=_ONE, dst=_ONE, switched="dst", json="gstore"),
    Op.FABRIC_REDUCE_STORE: Operation(
        src=_ONE, dst=_ONE, switched="both", adds=True, json="glres"
    ),
}  # fmt: skip


def those(test: Callable[[Operation], object]) -> frozenset[Op]:
    """The operations whose row passes a test."""
    return frozenset(op for op, row in OPERATIONS.items() if test(row))


STYLES = {
    "fifo": those(lambda row: row.style != "onesided"),
    "onesided": those(lambda row: row.style != "fifo"),
}
"""The operations of each style of programs."""
SENDS = those(lambda row: row.sends)
RECEIVES = those(lambda row: row.receives)
FUSED = those(lambda row: row.receives and (row.sends or row.adds))
"""Those that receive and at once do more."""
PACKETS = {op: row for op, row in OPERATIONS.items() if row.packets}
PUTS = those(lambda row: row.spreads and not row.packets)
"""Those that write plain data into peers' buffers, over memory or through a port."""
SPREADS = those(lambda row: row.spreads)
SIGNALS = those(lambda row: row.signals)
WAITS = those(lambda row: row.waits)
SEMAPHORES = those(lambda row: row.semaphores)
SYNCS = those(lambda row: row.kinds and not row.moves_data)
"""Those that have channels and move nothing."""
CHANNELLED = those(lambda row: row.kinds)
FABRIC = those(lambda row: row.switched)
"""Operations through switches that copy and add."""
DATA = those(lambda row: row.moves_data)
ADDS = those(lambda row: row.adds)
BY_XML = {row.xml: op for op, row in OPERATIONS.items() if row.xml}
BY_JSON = {row.json: op for op, row in OPERATIONS.items() if row.json}
