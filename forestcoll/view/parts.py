"""What a topology is made of, in words for the page: boxes, switches, the bandwidth of a rank."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from forestcoll.graph import CapacityGraph
from forestcoll.topology import show
from forestcoll.view.layout import Layout


def describe_parts(graph: CapacityGraph, layout: Layout) -> list[list[str]]:
    """What a topology is made of: boxes, switches by where they stand, GB/s of a rank."""
    facts = []
    sizes = Counter(sum(graph.gpu[v] for v in box.nodes) for box in layout.boxes)
    if sizes:
        made = ", ".join(
            f"{count:,} of {size} GPU{'s' * (size > 1)}" for size, count in sizes.items()
        )
        facts.append(["boxes", made])
    tiers = Counter(layout.layers[v] for v in range(graph.n) if not graph.gpu[v])
    if tiers:
        places = [f"{tiers[k]:,} {f'in tier {k}' if k else 'in boxes'}" for k in sorted(tiers)]
        facts.append(["switches", ", ".join(places)])
    rates = {node: [Fraction(0), Fraction(0)] for node in graph.ranks}
    for e, ends in enumerate(zip(graph.tail, graph.head, strict=True)):
        for way, node in enumerate(ends):
            if node in rates:
                rates[node][way] += graph.bandwidth(e)
    words = []
    for way, name in enumerate(("out", "in")):
        least, most = min(r[way] for r in rates.values()), max(r[way] for r in rates.values())
        span = show(most) if least == most else f"{show(least)} to {show(most)}"
        words.append(f"{span} GB/s {name}")
    facts.append(["each rank", ", ".join(words)])
    return facts
