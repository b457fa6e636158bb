"""NCCL_GRAPH_FILE: the rings and chains of a box, by channel, that NCCL and RCCL read from a file.

A file is for one box. Between boxes a ring goes on by rank, over the adapters (`net`) that stand
first and last in its channel. The reader checks next to nothing (NVIDIA/nccl 5067397c,
src/graph/search.cc 891-965, xml.cc), so what it would crash on, hang in or read as rank 0 is
refused here. A `dev` is hexadecimal; a GPU's `rank`, where it stands, counts instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import TopologyError
from forestcoll.plans.findings import Findings
from forestcoll.topology.source import Element, parse_xml

VERSION = "1"
KINDS = {0: "ring", 1: "tree", 2: "collnet chain", 3: "NVLS", 4: "collnet direct"}
RING = 0
PATTERNS = {RING: 4, 1: 3}
"""Of a ring; of a tree that is a chain, whose first GPU talks to both adapters."""
TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
NUMBERS = ("id", "pattern", "crossnic", "nchannels", "samechannels")
SPEEDS = ("speedintra", "speedinter")
MOST_CHANNELS = 64
"""Of NCCL (RCCL: 128)."""


@dataclass(frozen=True, slots=True)
class Channel:
    """GPUs in order, as (number in the box, rank); `adapter`: its number."""

    gpus: tuple[tuple[int, int], ...]
    adapter: int


def dumps(channels: Sequence[Channel], speed: Fraction, intra: str, inter: str) -> str:
    """The file of a box: a ring a channel, and the same GPUs as a chain for trees.

    `speed`: GB/s of a channel, from which the library tells which algorithm is faster; `intra`,
    `inter`: what GPUs reach each other over, and the last one the adapter, of `TYPES`: it takes
    LL128 only where that keeps 128 bytes together.
    """
    lines = [f'<graphs version="{VERSION}">']
    for kind, pattern in PATTERNS.items():
        lines.append(
            f'  <graph id="{kind}" pattern="{pattern}" crossnic="0" nchannels="{len(channels)}" '
            f'speedintra="{float(speed):g}" speedinter="{float(speed):g}" latencyinter="0" '
            f'typeintra="{intra}" typeinter="{inter}" samechannels="0">'
        )
        for channel in channels:
            net = f'      <net dev="{channel.adapter:#x}"/>'
            gpus = [f'      <gpu dev="{dev:#x}" rank="{rank}"/>' for dev, rank in channel.gpus]
            lines += ["    <channel>", net, *gpus, net, "    </channel>"]
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>", ""])


def read(text: str, source: str, out: Findings) -> dict[int, list[list[int]]]:
    """Graph -> channel -> ranks (or numbers of GPUs, where no ranks stand), as the library has it.

    `out` hears what is wrong.
    """
    try:
        root = parse_xml(text, source)
    except TopologyError as error:
        out.refuse("GRAPH-SYNTAX", str(error).removeprefix(f"{source}:"))
        return {}
    if root.tag != "graphs" or root.get("version") != VERSION:
        version = root.get("version") or "none"
        out.refuse("GRAPH-VERSION", f"<{root.tag[:40]}>, version {version[:20]}", line=root.line)
        return {}
    graphs: dict[int, list[list[int]]] = {}
    for graph in root.children_of("graph"):
        number = _graph(graph, out)
        if number in graphs:
            out.add("GRAPH-ID", f"a second graph {number}", line=graph.line)
        graphs[number] = [_channel(one, out) for one in graph.children_of("channel")]
        _check_channels(graph, number, graphs[number], out)
    if RING not in graphs:
        out.add("GRAPH-RINGS", "no graph 0", line=root.line)
    return graphs


def _graph(graph: Element, out: Findings) -> int:
    """The graph's number, once its attributes are looked at; -1 where it is none."""
    for name in (*NUMBERS, *SPEEDS, "typeintra", "typeinter"):
        if name not in graph.attributes:
            out.add("GRAPH-MISSING", f"<graph> has no {name}", line=graph.line)
    for name in ("typeintra", "typeinter"):
        word = graph.get(name)
        if word and word not in TYPES:
            out.add("GRAPH-TYPE", f"{name}={word[:20]!r}", line=graph.line)
    number = _integer(graph, "id", 10, out)
    if number not in KINDS:
        out.add("GRAPH-ID", f"a graph {number}", line=graph.line)
    return number


def _channel(channel: Element, out: Findings) -> list[int]:
    """The ranks of a channel."""
    nets = [k for k, child in enumerate(channel.children) if child.tag == "net"]
    for child in channel.children:
        if child.tag not in ("net", "gpu"):
            out.add("GRAPH-ELEMENT", f"<{child.tag[:40]}> in <channel>", line=child.line)
        elif "dev" not in child.attributes:
            out.add("GRAPH-MISSING", f"<{child.tag}> has no dev", line=child.line)
        elif child.tag == "net":
            _integer(child, "dev", 16, out)
    if nets not in ([], [0, len(channel.children) - 1]):
        out.add("GRAPH-NET", f"{len(nets)} nets in <channel>", line=channel.line)
    gpus = [child for child in channel.children if child.tag == "gpu"]
    return [
        _integer(gpu, "rank", 0, out) if "rank" in gpu.attributes else _integer(gpu, "dev", 16, out)
        for gpu in gpus
    ]


def _integer(element: Element, name: str, base: int, out: Findings) -> int:
    """An attribute as the library reads it; -1, with a finding, where it is no number."""
    text = element.get(name)
    try:
        return int(text, base)
    except ValueError:
        if name in element.attributes:
            out.add("GRAPH-NUMBER", f"{name}={text[:20]!r} of <{element.tag}>", line=element.line)
        return -1


def _check_channels(graph: Element, number: int, channels: list[list[int]], out: Findings) -> None:
    """That all channels that are said are there, and each has every GPU of the box once."""
    count = _integer(graph, "nchannels", 10, out)
    if count != len(channels) or not 0 < count <= MOST_CHANNELS:
        out.add("GRAPH-CHANNELS", f"nchannels {count}, {len(channels)} listed", line=graph.line)
    if number not in PATTERNS:
        return  # in-switch graphs list heads alone
    box = set().union(*map(set, channels)) if channels else set()
    if not box:
        out.add("GRAPH-GPUS", "no GPU in it", line=graph.line)
    for channel, ranks in zip(graph.children_of("channel"), channels, strict=True):
        twice = [rank for rank, times in Counter(ranks).items() if times > 1]
        missing = sorted(box - set(ranks))
        if twice:
            out.add("GRAPH-TWICE", f"GPU {twice[0]} stands twice", line=channel.line)
        elif missing:
            words = f"GPU {missing[0]} is in another channel, not here"
            out.add("GRAPH-GPUS", words, line=channel.line)
