"""A topology in a few lines: what it is made of and how much each GPU can move."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.topology import Topology


def census(topology: Topology) -> str:
    """`"16 GPUs, 3 switches, 32 links"` (a two-way link counts once)."""
    gpus = len(topology.gpus)
    links = sum(link.count for link in topology.links)
    parts = [words.plural(gpus, "GPU"), words.plural(len(topology.nodes) - gpus, "switch")]
    return ", ".join([*parts, words.plural(links, "link")])


def table(topology: Topology, about: str) -> RenderableType:
    """Name, counts, bandwidth of the GPUs and of the links by kind."""
    rows = [("name", topology.name)]
    if about:
        rows.append(("what", about))
    rows.append(("made of", census(topology)))
    if len(topology.boxes) > 1:
        sizes = sorted({len(box) for box in topology.boxes})
        rows.append(("boxes", f"{len(topology.boxes)} of {' or '.join(map(str, sizes))} nodes"))
    into, out = _gpu_bandwidth(topology)
    rows.append(("GPU in", _spread(into)))
    rows.append(("GPU out", _spread(out)))
    rows.extend(("links", line) for line in _links(topology))
    copying = [n for n, node in topology.nodes.items() if node.multicast or node.aggregation]
    if copying:
        rows.append(("in-fabric", f"{words.listed(copying)}: copy or add in the switch"))
    if topology.adapters:
        rows.append(("ports", _ports(topology)))
    rows.extend(("note", note) for note in topology.notes)
    return tables.facts(rows)


def summary(topology: Topology, about: str) -> dict[str, object]:
    """The same for machines."""
    into, out = _gpu_bandwidth(topology)
    return {
        "name": topology.name,
        "description": about,
        "gpus": list(topology.gpus),
        "switches": [n for n, node in topology.nodes.items() if node.kind == "switch"],
        "links": sum(link.count for link in topology.links),
        "gpu_in": {g: str(into[g]) for g in topology.gpus},
        "gpu_out": {g: str(out[g]) for g in topology.gpus},
        "ports": [
            {
                "name": port.name,
                "GB/s": None if port.bandwidth is None else str(port.bandwidth),
                "near": list(port.near),
            }
            for port in topology.adapters
        ],
        "notes": list(topology.notes),
    }


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
    kinds: Counter[tuple[str, str, Fraction, bool]] = Counter()
    for link in topology.links:
        ends = [_noun(topology.nodes[node].kind) for node in (link.src, link.dst)]
        if not link.oneway:
            ends.sort()
        kinds[ends[0], ends[1], Fraction(link.bandwidth), link.oneway] += link.count
    lines = [
        f"{count} {a} {'->' if oneway else '-'} {b}, {words.decimal(bandwidth)} GB/s"
        + ("" if oneway else " each way")
        for (a, b, bandwidth, oneway), count in kinds.most_common(8)
    ]
    return lines + (["..."] if len(kinds) > 8 else [])


def _noun(kind: str) -> str:
    return "GPU" if kind == "gpu" else kind
