"""Topologies in a few lines, differences, measured links, and routes through a fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, Rows, grid, line, notes, same, texts

if TYPE_CHECKING:
    from pathlib import Path

    from forestcoll.solver.routes.repair import Repair
    from forestcoll.study.routes import Pinned
    from forestcoll.topology import Topology
    from forestcoll.topology.calibrate import Calibration
    from forestcoll.topology.difference import Group
    from forestcoll.verify.segments import Walked

SHOWN = 8
"""Slow links of a kind, and odd pairs, that are told."""
NAMED = 3
"""Members of a class of differences that are named."""


def census(topology: Topology) -> str:
    """`"16 GPUs, 3 switches, 32 links"` (a two-way link counts once)."""
    gpus = len(topology.gpus)
    links = sum(link.count for link in topology.links)
    parts = [words.plural(gpus, "GPU"), words.plural(len(topology.nodes) - gpus, "switch")]
    return ", ".join([*parts, words.plural(links, "link")])


def topology_facts(topology: Topology, about: str) -> list[Fact]:
    """Name, counts, bandwidth of the GPUs and of the links by kind."""
    nodes, sizes = topology.nodes, " or ".join(map(str, sorted({len(b) for b in topology.boxes})))
    many, into = len(topology.boxes), {gpu: Fraction() for gpu in topology.gpus}
    out = dict(into)
    for (src, dst), bandwidth in topology.rates().items():
        for way, end in ((out, src), (into, dst)):
            if end in way:
                way[end] += bandwidth
    copying = [name for name, node in nodes.items() if node.multicast or node.aggregation]
    copied = f"{words.join_names(copying)}: copy or add in the switch" if copying else ""
    ports = [
        {"name": port.name, "GB/s": port.bandwidth, "near": port.near} for port in topology.adapters
    ]
    return [
        same("name", topology.name),
        same("description", about, "what"),
        Fact("gpus", topology.gpus, census(topology), "made of"),
        Fact("switches", [name for name, node in nodes.items() if node.kind == "switch"]),
        line("boxes", f"{many} of {sizes} nodes" if many > 1 else ""),
        Fact("gpu_in", into, _spread(into), "GPU in"),
        Fact("gpu_out", out, _spread(out), "GPU out"),
        Fact("links", sum(link.count for link in topology.links)),
        *texts("links", _links(topology)),
        line("in-fabric", copied),
        Fact("ports", ports, _ports(topology) if ports else ""),
        *notes(topology.notes),
    ]


def _ports(topology: Topology) -> str:
    """`"16 at 22.5 GB/s, 2 near each GPU"`: network ports, which are no links yet."""
    rates = Counter(port.bandwidth for port in topology.adapters)
    listed = ", ".join(
        f"{count} at {'an unknown rate' if rate is None else words.decimal(rate) + ' GB/s'}"
        for rate, count in rates.most_common(4)
    )
    near = sorted({sum(g in p.near for p in topology.adapters) for g in topology.gpus})
    return f"{listed}; {' to '.join(map(str, dict.fromkeys((near[0], near[-1]))))} near each GPU"


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


def differences(groups: Sequence[Group]) -> Rows:
    """A row a class: what differs, how many, the two sides, some of the names."""
    rows = []
    for group in groups:
        names, alone = group.names, len(group.names) == 1
        some = ", ".join(names[:NAMED]) + ", ..." * (len(names) > NAMED)
        rows.append(
            [
                same("differs", group.kind),
                line("", str(len(names))),
                Fact("class", group.pattern, names[0] if alone else group.pattern, "where"),
                Fact("before", group.before or None, group.before or "-", "A"),
                Fact("after", group.after or None, group.after or "-", "B"),
                Fact("names", names, "" if alone else some, "such as"),
            ]
        )
    return Rows("", rows, right=(1,))


def calibration(fit: Calibration) -> Rows:
    """A row a class of links, and one for each link that is off its class."""
    rows = []
    for one in fit.classes:
        links = str(one.links)
        if one.measured_links < one.links:
            links = f"{one.measured_links} of {one.links}"
        rows.append(
            (
                one.name,
                links,
                words.decimal(one.nominal),
                words.decimal(one.measured),
                words.percent(one.measured, one.nominal),
                "" if one.latency is None else words.decimal(one.latency),
            )
        )
        for (src, dst), rate in one.slow[:SHOWN]:
            percent = words.percent(rate, one.nominal)
            rows.append((f"  {src} -> {dst}", "1", "", words.decimal(rate), percent, ""))
        if len(one.slow) > SHOWN:
            rows.append((f"  and {len(one.slow) - SHOWN} more", "", "", "", "", ""))
    heads = ("links", "measured", "nominal", "measured GB/s", "", "us")
    return grid(heads, rows)


def odd_pairs(fit: Calibration) -> list[str]:
    """What to say of pairs that the links do not explain, the worst first."""
    worst = sorted(fit.odd, key=lambda one: one.measured / one.expected)
    said = [
        f"{one.src} -> {one.dst} measured {one.measured:.4g} GB/s where its links give "
        f"{one.expected:.4g}: look at this pair; it changes no link"
        for one in worst[:SHOWN]
    ]
    if len(worst) > SHOWN:
        said.append(f"{len(worst) - SHOWN} more pairs are off by more than 15 %")
    return said


def routes_facts(
    pinned: Pinned,
    repaired: Repair | None,
    walked: Walked,
    folder: Path | None,
    files: Mapping[str, str],
) -> list[Fact]:
    """What is said of routes that were made, repaired if need be, walked and written."""
    sent, carried, fabric = pinned.sent, pinned.loads, pinned.loads.spreading.fabric
    rate, slowest = carried.slowest()
    reached = min(rate, sent.algbw)
    names = carried.spreading.edges.graph.names
    here, there = (names[v] for v in carried.ends[slowest].tolist())
    planes = len({plane for edge in pinned.edges for way in edge.ways for plane in way.planes})
    images = sent.edges.images
    ways = images * sum(len(way.planes) for edge in pinned.edges for way in edge.ways)
    lines = [
        f"{words.plural(pairs, 'queue pair')}: {words.percent(algbw, sent.algbw)}"
        for pairs, algbw in pinned.hashed.items()
    ]
    hashed = "; ".join(lines) or "not counted: no edge goes over switches that 'alike' has as equal"
    if images > 1:
        hashed = "not counted: too many edges"
    size = words.size(sum(map(len, files.values())))
    where = None if folder is None else f"{words.plural(len(files), 'file')} in {folder} ({size})"
    spares = [spare.most_flows for spare in pinned.spares]
    lasts = [f"{k} gone: {most:,} flows at most on a link" for k, most in enumerate(spares, 1)]
    how = "has even shares of all" if pinned.by == "shares" else "takes one"
    proof = "at their targets, loads as meant"
    if images > 1:
        proof = f"at their targets: of {len(pinned.edges):,} templates in a plane, and their images"
    after = []
    if repaired is not None:  # what a failure took away, with other paths in its place
        retired, algbw = repaired.changes, min(reached, repaired.algbw)
        new = sum(change.replaced is not None for change in retired)
        lost = (
            f"{len(retired):,} paths: {new:,} over other switches, {len(retired) - new:,} by others"
        )
        left = f"{words.rate(algbw)}, {words.percent(algbw, reached)}"
        after = [
            Fact("retired", len(retired), lost),
            Fact("replaced", new),
            Fact("algbw_after", algbw, left, "after that"),
        ]
    text = f"{ways:,} on {words.plural(planes, 'plane')}; of equal switches an edge {how}"
    return [
        Fact("routes", sent.what, f"{sent.what} on {fabric.left.name}"),
        Fact("edges", images * len(pinned.edges), f"{images * len(pinned.edges):,} between boxes"),
        Fact("paths", ways, text),
        Fact("flows", carried.most_flows, f"{carried.most_flows:,} at most on a link of switches"),
        Fact("algbw", reached, words.rate),
        Fact("schedule", sent.algbw, words.percent(reached, sent.algbw), "of schedule"),
        Fact("slowest", [here, there], f"{here} to {there}: {words.rate(rate)}"),
        Fact("ecmp", {str(k): v for k, v in pinned.hashed.items()}, hashed, "by ECMP"),
        Fact("spares", spares, "; ".join(lasts) or None),
        *after,
        Fact(
            "walked",
            walked.addresses,
            f"{walked.addresses:,} addresses by the tables of {walked.switches:,} "
            f"switch{'es' * (walked.switches > 1)}: all come off {proof}",
        ),
        Fact("written", sorted(files) if folder else [], where),
    ]
