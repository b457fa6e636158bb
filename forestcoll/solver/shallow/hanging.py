"""The kernel's search for low trees, as trees over nodes: see `graph/kernel/rehanging.hpp`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Path

MOVES = 2
"""Re-hangings at most, for each box of each unit."""
MOVES_MORE = 200_000
"""And as many more whatever the size: small problems may be hard."""

ATTEMPTS = 3
"""Seeds that are tried where the first comes near."""
NEARLY = 100
"""Units over the capacities that are near."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Per unit its root and how boxes hang: depth, number of the path, depth, path, ..."""

    roots: list[int]
    paths: list[Path]
    trees: list[list[int]]


def hang(
    nodes: int,
    links: Mapping[tuple[int, int], int],
    ranks: Sequence[int],
    supply: Sequence[int],
    height: int,
    box: Sequence[int],
    entries: Sequence[int],
    grow: bool = False,
    shared: bool = False,
) -> Hung | None:
    """How the boxes of every tree hang within `height` hops, or None where that is not found.

    `links`: (tail, head) -> how many trees it may carry. `supply[v]` trees are rooted at v.
    `box`, `entries`: per node, as in `Boxes`. `shared`: a link and the one in the other direction,
    which has to be there and as wide, carry as many trees together.
    """
    among, more = set(ranks), nodes
    tail: list[int] = []
    head: list[int] = []
    capacity: list[int] = []
    first: dict[tuple[int, int], int] = {}  # the first of the arcs that stand for a link
    for (t, h), c in links.items():
        first[t, h] = len(tail)
        if t in among and h in among:  # by way of a node that stands for the link
            tail += (t, more)
            head += (more, h)
            capacity += (c, c)
            more += 1
        else:
            tail.append(t)
            head.append(h)
            capacity.append(c)
    twin: list[int] = []
    if shared:
        twin = [-1] * len(tail)
        for (t, h), e in first.items():
            last = first[h, t] + (t in among and h in among)
            twin[e], twin[last] = last, e
    roots = [v for v in ranks for _ in range(supply[v])]
    moves = MOVES * (max(box[v] for v in ranks) + 1) * len(roots) + MOVES_MORE
    rest = [-1] * (more - nodes)
    links_given = (more, tail, head, capacity, [*box, *rest], ranks, [*entries, *rest])
    for seed in range(ATTEMPTS):
        overload, _, paths, trees = _kernel.rehang(
            *links_given, roots, height, grow, moves, seed, twin
        )
        if overload == 0:
            if rest:
                paths = [tuple([v for v in path if v < nodes]) for path in paths]
            return Hung(roots, paths, trees)
        if not 0 < overload < NEARLY:
            break
    return None


def search_trees(
    nodes: int,
    links: Mapping[tuple[int, int], int],
    ranks: Sequence[int],
    supply: Sequence[int],
    height: int,
) -> Counter[tuple[int, tuple[Path, ...]]] | None:
    """How often each (root, paths) is a tree, where every rank is a box of its own."""
    box = [-1] * nodes
    for number, v in enumerate(ranks):
        box[v] = number
    hung = hang(nodes, links, ranks, supply, height, box, [-1] * nodes)
    if hung is None:
        return None
    return Counter(
        (root, tuple(hung.paths[number] for number in tree[1::2]))
        for root, tree in zip(hung.roots, hung.trees, strict=True)
    )
