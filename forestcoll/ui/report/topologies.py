"""A topology in a few lines: what it is made of and how much each GPU can move."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, notes, texts, views

if TYPE_CHECKING:
    from forestcoll.topology import Topology


def census(topology: Topology) -> str:
    """`"16 GPUs, 3 switches, 32 links"` (a two-way link counts once)."""
    gpus = len(topology.gpus)
    links = sum(link.count for link in topology.links)
    parts = [words.plural(gpus, "GPU"), words.plural(len(topology.nodes) - gpus, "switch")]
    return ", ".join([*parts, words.plural(links, "link")])


def _facts(topology: Topology, about: str) -> list[Fact]:
    """Name, counts, bandwidth of the GPUs and of the links by kind."""
    nodes, sizes = topology.nodes, " or ".join(map(str, sorted({len(b) for b in topology.boxes})))
    many, (into, out) = len(topology.boxes), _gpu_bandwidth(topology)
    ports = [
        {"name": port.name, "GB/s": port.bandwidth, "near": port.near} for port in topology.adapters
    ]
    return [
        Fact("name", topology.name, topology.name),
        Fact("description", about, about, "what"),
        Fact("gpus", topology.gpus, census(topology), "made of"),
        Fact("switches", [name for name, node in nodes.items() if node.kind == "switch"]),
        Fact("", None, f"{many} of {sizes} nodes" if many > 1 else "", "boxes"),
        Fact("gpu_in", into, _spread(into), "GPU in"),
        Fact("gpu_out", out, _spread(out), "GPU out"),
        Fact("links", sum(link.count for link in topology.links)),
        *texts("links", _links(topology)),
        Fact("", None, _in_fabric(topology), "in-fabric"),
        Fact("ports", ports, _ports(topology) if ports else ""),
        *notes(topology.notes),
    ]


table, summary = views(_facts)


def _in_fabric(topology: Topology) -> str:
    nodes = topology.nodes.items()
    copying = [name for name, node in nodes if node.multicast or node.aggregation]
    return f"{words.join_names(copying)}: copy or add in the switch" if copying else ""


def _ports(topology: Topology) -> str:
    """`"16 at 22.5 GB/s, 2 near each GPU"`: network ports, which are no links yet."""
    rates = Counter(port.bandwidth for port in topology.adapters)
    listed = ", ".join(
        f"{count} at {'an unknown rate' if rate is None else words.decimal(rate) + ' GB/s'}"
        for rate, count in rates.most_common(4)
    )
    near = sorted({sum(g in p.near for p in topology.adapters) for g in topology.gpus})
    return f"{listed}; {' to '.join(map(str, dict.fromkeys((near[0], near[-1]))))} near each GPU"


def _gpu_bandwidth(
    topology: Topology,
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    into: dict[str, Fraction] = defaultdict(Fraction)
    out: dict[str, Fraction] = defaultdict(Fraction)
    for (src, dst), bandwidth in topology.directed().items():
        out[src] += bandwidth
        into[dst] += bandwidth
    return ({g: into[g] for g in topology.gpus}, {g: out[g] for g in topology.gpus})


def _spread(values: dict[str, Fraction]) -> str:
    low, high = min(values.values()), max(values.values())
    if low == high:
        return f"{words.decimal(low)} GB/s each"
    return f"{words.decimal(low)} to {words.decimal(high)} GB/s"


def _links(topology: Topology) -> list[str]:
    """`"16 GPU - switch, 300 GB/s each way"`, the most frequent first; at most eight kinds."""
    kinds: Counter[str] = Counter()
    for link in topology.links:
        ends = [topology.nodes[node].kind.replace("gpu", "GPU") for node in (link.src, link.dst)]
        rate = f"{words.decimal(Fraction(link.bandwidth))} GB/s"
        if link.oneway:
            kinds[f"{' -> '.join(ends)}, {rate}"] += link.count
        else:
            kinds[f"{' - '.join(sorted(ends))}, {rate} each way"] += link.count
    lines = [f"{count} {kind}" for kind, count in kinds.most_common(8)]
    return lines + ["..."] * (len(kinds) > 8)
