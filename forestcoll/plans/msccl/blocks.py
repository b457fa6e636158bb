"""Rules of <tb>: ids, peers, channels, connections and their partners at the other rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forestcoll.plans.findings import Findings
from forestcoll.plans.msccl.algo import CHANNELS, Head
from forestcoll.plans.msccl.rules import MAX_BLOCKS_PER_CHANNEL, MAX_CHILDREN, MAX_NODES
from forestcoll.plans.msccl.tags import Numbers, Tag
from forestcoll.program import BY_XML, RECEIVES, SENDS
from forestcoll.program.targets import Target

MAX_BLOCKS = 1024  # of a rank, in msccl (msccl_struct.h:17-18)
SENDING = frozenset(word for word, op in BY_XML.items() if op in SENDS)
RECEIVING = frozenset(word for word, op in BY_XML.items() if op in RECEIVES)


@dataclass(slots=True)
class Block:
    """A thread block as far as it could be read; peers and channel are None where unknown."""

    id: int
    tag: Tag
    recv: int | None
    send: int | None
    channel: int | None
    types: frozenset[str]  # of its steps


@dataclass(slots=True)
class Connections:
    """Who claims which end: (from rank, to rank, channel) -> (rank, thread block, line)."""

    senders: dict[tuple[int, int, int], tuple[int, int, int]] = field(default_factory=dict)
    receivers: dict[tuple[int, int, int], tuple[int, int, int]] = field(default_factory=dict)
    unknown: bool = False  # some end could not be read


def read_blocks(
    rank: int, gpu: Tag, head: Head, target: Target, sms: int, numbers: Numbers
) -> dict[int, Block]:
    """The rank's thread blocks by id."""
    out, tags = numbers.out, gpu.children
    _check_numbers_of(rank, gpu, head, target, sms, out)
    blocks: dict[int, Block] = {}
    for tag in tags:
        b = numbers.get(tag, "id", rank)
        if b is None:
            continue
        if b in blocks:
            out.add("XML-TB-ID", f"tb {b} stands twice, first on line {blocks[b].tag.line}",
                    rank=rank, block=b, line=tag.line)  # fmt: skip
            continue
        if not 0 <= b < len(tags):
            out.add("XML-TB-ID", f"tb {b} among {len(tags)}", rank=rank, block=b, line=tag.line)
        blocks[b] = _read_block(rank, b, tag, head, target, numbers)
    return blocks


def _check_numbers_of(
    rank: int, gpu: Tag, head: Head, target: Target, sms: int, out: Findings
) -> None:
    count, line = len(gpu.children), gpu.line
    if target.name == "rccl" and count > target.thread_blocks:
        out.add("RCCL-TB-COUNT", f"{count} thread blocks", rank=rank, line=line)
    elif count > MAX_BLOCKS:
        out.add("XML-TB-COUNT", f"{count} thread blocks", rank=rank, line=line)
    elif count > sms:
        out.add("XML-TB-SMS", f"{count} thread blocks; the GPU is taken to have {sms} SMs",
                rank=rank, line=line)  # fmt: skip
    if count > MAX_CHILDREN:
        out.add("XML-CHILDREN", f"gpu {rank} has {count} thread blocks", rank=rank, line=line)
    steps = sum(len(tag.children) for tag in gpu.children)
    nodes = 1 + (head.ranks or 0) + count + steps
    if nodes > MAX_NODES:
        out.add("XML-NODES", f"rank {rank} loads {nodes} elements: algo, {head.ranks} gpu, {count} "
                f"tb, {steps} step", rank=rank, line=line)  # fmt: skip


def _read_block(rank: int, b: int, tag: Tag, head: Head, target: Target, numbers: Numbers) -> Block:
    out = numbers.out
    types = frozenset(step.attributes.get("type", "") for step in tag.children)
    if not tag.children:
        out.add("XML-TB-EMPTY", "it has no step", rank=rank, block=b, line=tag.line)
    elif len(tag.children) > MAX_CHILDREN:
        out.add("XML-CHILDREN", f"{len(tag.children)} steps", rank=rank, block=b, line=tag.line)
    peers: list[int | None] = []
    for key in ("recv", "send"):
        peer = numbers.get(tag, key, rank, b)
        wrong = peer is not None and (
            peer < -1 or peer == rank or (head.ranks is not None and peer >= head.ranks)
        )
        if wrong:
            what = "the rank itself" if peer == rank else f"not a rank of {head.ranks}"
            out.add("XML-PEER", f"{key} is {peer}, {what}", rank=rank, block=b, line=tag.line)
        peers.append(None if wrong else peer)
    for peer, key, ops in ((peers[0], "recv", RECEIVING), (peers[1], "send", SENDING)):
        if peer is not None and peer >= 0 and tag.children and not types & ops:
            out.add("XML-PEER-IDLE", f"{key} is {peer}, but no step uses it",
                    rank=rank, block=b, line=tag.line)  # fmt: skip
    channel = numbers.get(tag, "chan", rank, b)
    if channel is not None:
        channel = _check_channel(rank, b, tag, channel, head, target, out)
    return Block(b, tag, peers[0], peers[1], channel, types)


def _check_channel(
    rank: int, b: int, tag: Tag, channel: int, head: Head, target: Target, out: Findings
) -> int | None:
    most = CHANNELS[target.name]
    if not 0 <= channel < most:
        out.add("XML-CHANNEL", f"chan is {channel}; {target.name} has 0 to {most - 1}, and takes "
                f"{most} unchecked", rank=rank, block=b, line=tag.line)  # fmt: skip
        return None
    if head.channels is not None and channel >= head.channels:
        out.add("XML-CHANNEL", f"chan is {channel}, but nchannels {head.channels}: it is never "
                f"connected", rank=rank, block=b, line=tag.line)  # fmt: skip
    return channel


def check_channels(rank: int, blocks: dict[int, Block], ends: Connections, out: Findings) -> None:
    """Ownership of connections, and how many thread blocks a channel serves."""
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    for b in sorted(blocks):
        block = blocks[b]
        if block.channel is None or block.recv is None or block.send is None:
            ends.unknown = True
            continue
        c, line = block.channel, block.tag.line
        if max(sends[c], receives[c]) >= MAX_BLOCKS_PER_CHANNEL:
            out.add("XML-CHANNEL-LOAD", f"channel {c} already serves {MAX_BLOCKS_PER_CHANNEL} "
                    f"thread blocks of one direction", rank=rank, block=b, line=line)  # fmt: skip
        sends[c] += block.send >= 0
        receives[c] += block.recv >= 0
        for peer, table, key, verb in (
            (block.send, ends.senders, (rank, block.send, c), "sends to"),
            (block.recv, ends.receivers, (block.recv, rank, c), "receives from"),
        ):
            if peer < 0:
                continue
            if key in table:
                out.add("XML-CONNECTION-SHARED", f"it {verb} rank {peer} on channel {c}, as thread "
                        f"block {table[key][1]} does", rank=rank, block=b, line=line)  # fmt: skip
            table.setdefault(key, (rank, b, line))


def check_partners(ends: Connections, out: Findings) -> None:
    """Every end of a connection has another end."""
    if ends.unknown:
        return  # the missing end may be the one that could not be read
    for key in sorted(ends.senders.keys() ^ ends.receivers.keys()):
        src, dst, channel = key
        if key in ends.senders:
            rank, b, line = ends.senders[key]
            text = f"it sends to rank {dst} on channel {channel}, where nobody receives from {src}"
        else:
            rank, b, line = ends.receivers[key]
            text = f"it receives from rank {src} on channel {channel}, where nobody sends to {dst}"
        out.add("XML-PARTNER", text, rank=rank, block=b, line=line)


def check_spare_channels(algo: Tag, head: Head, used: int, out: Findings) -> None:
    """Whether nchannels asks for more than the highest channel in use (`used` - 1)."""
    if head.channels is not None and 0 < used < head.channels:
        out.add("XML-NCHANNELS-SPARE", f"nchannels is {head.channels}, but the highest chan is "
                f"{used - 1}", line=algo.line)  # fmt: skip
