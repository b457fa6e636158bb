"""Walks over a graph: who is next to whom, how far a walk comes.

Most of what the solver asks of a graph begins with a walk: which ranks hang together, how many
tiers of switches there are, what can be reached when some nodes pass nothing on. The links of a
walk are lists of neighbours, so that it may go along links, against them, or over some alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from forestcoll.graph.capacity_graph import CapacityGraph, T

Near = Sequence[Iterable[int]] | Mapping[int, Iterable[int]]
"""Per node those that a walk goes on to."""


def neighbours(n: int, links: Iterable[tuple[int, int]], both: bool = False) -> list[list[int]]:
    """Per node those that links lead to, in the order of the links; `both`: in either direction."""
    near: list[list[int]] = [[] for _ in range(n)]
    for u, v in links:
        near[u].append(v)
        if both:
            near[v].append(u)
    return near


def links_out(n: int, links: Iterable[tuple[int, int, T]]) -> list[list[tuple[int, T]]]:
    """Per node (neighbour, value) of each link (tail, head, value) that leaves it, in order."""
    out: list[list[tuple[int, T]]] = [[] for _ in range(n)]
    for u, v, value in links:
        out[u].append((v, value))
    return out


def hops(
    near: Near, starts: Iterable[int], passes: Callable[[int], object] | None = None
) -> dict[int, int]:
    """How many links each node is away from the nearest of `starts`, the nearest nodes first.

    Nodes out of reach are left out. A walk ends at a node that does not pass it on (`passes`),
    except where it starts there.
    """
    far = dict.fromkeys(starts, 0)
    queue = list(far)
    for u in queue:
        if passes is not None and far[u] and not passes(u):
            continue
        for v in near[u]:
            if v not in far:
                far[v] = far[u] + 1
                queue.append(v)
    return far


def by_box(graph: CapacityGraph, nodes: Iterable[int] | None = None) -> dict[str, list[int]]:
    """The nodes of each box (all of the graph, if not said), those without a box under ""."""
    boxes: dict[str, list[int]] = {}
    for v in range(graph.n) if nodes is None else nodes:
        boxes.setdefault(graph.box(v), []).append(v)
    return boxes


def without_loops(path: Iterable[int]) -> tuple[int, ...]:
    """The path without the loops it makes."""
    out: list[int] = []
    for v in path:
        if v in out:
            del out[out.index(v) :]
        out.append(v)
    return tuple(out)
