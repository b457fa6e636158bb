"""Structure of a regular graph: groups of its symmetries, each checked link by link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.components import (
    Components,
    find_components,
    find_inner_symmetries,
    find_translations,
)
from forestcoll.graph.symmetry.group import SymmetryGroup


@dataclass(frozen=True, slots=True)
class Structure:
    """A group of a graph, with the parts that it rotates; no parts where it moves single ranks."""

    group: SymmetryGroup
    parts: Components | None


@lru_cache(maxsize=2)
def find_structures(graph: CapacityGraph) -> tuple[Structure, ...]:
    """Ways in which the graph is regular, checked link by link; empty where none is found."""
    if graph.shares:
        return ()
    moved = find_translations(graph)
    if moved is not None:
        return (Structure(moved, None),)
    return tuple(
        Structure(find_inner_symmetries(graph, parts), parts) for parts in find_components(graph)
    )


def alike_ranks(graph: CapacityGraph) -> list[int]:
    """One rank (node) of each orbit of the largest group known; all ranks where there is none."""
    known = max((s.group for s in find_structures(graph)), key=lambda g: g.size, default=None)
    if known is None:
        return list(graph.ranks)
    return [v for v in graph.ranks if known.node[v] == v]
