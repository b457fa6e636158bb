"""Groups for routes of a fabric that is regular but for a few boxes.

Where a box has lost a NIC no large group moves every rank. But what is left of the fabric without
the odd ranks is as regular as before (`structures`), and symmetries of that which keep the rest in
place are symmetries of the whole. The odd ranks among themselves (three boxes with a NIC out) are
looked at in the same way, all at once: where a symmetry moves some of them and keeps another in
place, that one's paths over those that move could not be told from their images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.abelian import AbelianGroup, abelian_group
from forestcoll.graph.symmetry.group import Image
from forestcoll.graph.symmetry.structures import find_structures
from forestcoll.solver.alltoall.fold import Folding


def partial_group(graph: CapacityGraph, folding: Folding) -> AbelianGroup | None:
    """A large abelian group that may keep some ranks in place; None where none is found.

    `folding`: orbits of the ranks under all symmetries that are known.
    """
    sizes = Counter(folding.node[rank] for rank in graph.ranks)
    largest = max(sizes.values())
    regular = [rank for rank in graph.ranks if sizes[folding.node[rank]] == largest]
    odd = [rank for rank in graph.ranks if sizes[folding.node[rank]] < largest]
    generators: list[Image] = []
    best: AbelianGroup | None = None
    for chosen in (regular, odd):
        if len(chosen) < 2:
            continue
        for image in _symmetries(graph, chosen):
            try:
                best = abelian_group(graph, [*generators, image])
            except ForestError:  # not of the whole graph, or not with those before
                continue
            generators.append(image)
    return best


def _symmetries(graph: CapacityGraph, ranks: Sequence[int]) -> list[Image]:
    """Generators of the largest group of the graph without the other ranks, which stay in place."""
    kept, part = restrict(graph, ranks)
    groups = [structure.group for structure in find_structures(part)]
    if not groups:
        return []
    images = []
    for generator in max(groups, key=lambda group: group.size).generators:
        image = list(range(graph.n))
        for v, to in enumerate(generator):
            image[kept[v]] = kept[to]
        images.append(tuple(image))
    return images


def restrict(graph: CapacityGraph, ranks: Sequence[int]) -> tuple[list[int], CapacityGraph]:
    """(nodes that are kept, the graph of them): `ranks`, and switches that any of them is joined to
    without the others."""
    near: list[list[int]] = [[] for _ in range(graph.n)]
    gone = set(graph.ranks) - set(ranks)
    for u, v in zip(graph.tail, graph.head, strict=True):
        if u not in gone and v not in gone:
            near[u].append(v)
            near[v].append(u)
    queue = list(ranks)
    reached = set(queue)
    for u in queue:
        fresh = [v for v in dict.fromkeys(near[u]) if v not in reached]
        reached.update(fresh)
        queue.extend(fresh)
    kept = sorted(reached)
    place = {v: i for i, v in enumerate(kept)}
    links = [
        (place[u], place[v], c)
        for u, v, c in zip(graph.tail, graph.head, graph.capacity, strict=True)
        if u in place and v in place
    ]
    part = replace(
        graph,
        names=tuple(graph.names[v] for v in kept),
        gpu=tuple(graph.gpu[v] for v in kept),
        multicast=tuple(graph.multicast[v] for v in kept),
        aggregation=tuple(graph.aggregation[v] for v in kept),
        ranks=tuple(place[v] for v in graph.ranks if v in place),
        tail=tuple(u for u, _, _ in links),
        head=tuple(v for _, v, _ in links),
        capacity=tuple(c for _, _, c in links),
    )
    return kept, part
