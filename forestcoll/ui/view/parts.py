"""What a topology is made of, in words for the page: boxes, switches, the bandwidth of a rank."""

from __future__ import annotations

from collections import Counter

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import show
from forestcoll.ui.view.layout import Layout


def describe_parts(graph: CapacityGraph, layout: Layout) -> list[list[str]]:
    """What a topology is made of: boxes, switches by where they stand, GB/s of a rank."""
    facts = []
    sizes = Counter(sum(graph.gpu[v] for v in box.nodes) for box in layout.boxes)
    if sizes:
        made = [f"{count:,} of {size} GPU{'s' * (size > 1)}" for size, count in sizes.items()]
        facts.append(["boxes", ", ".join(made)])
    tiers = Counter(layout.layers[v] for v in range(graph.n) if not graph.gpu[v])
    if tiers:
        places = [f"{tiers[k]:,} {f'in tier {k}' if k else 'in boxes'}" for k in sorted(tiers)]
        facts.append(["switches", ", ".join(places)])
    words = []
    for ends, name in ((graph.tail, "out"), (graph.head, "in")):
        rates = [0] * graph.n
        for node, capacity in zip(ends, graph.capacity, strict=True):
            rates[node] += capacity
        own = {rates[node] for node in graph.ranks}
        span = [show(rate * graph.unit) for rate in sorted({min(own), max(own)})]
        words.append(f"{' to '.join(span)} GB/s {name}")
    facts.append(["each rank", ", ".join(words)])
    return facts
