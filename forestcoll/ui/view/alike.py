"""Boxes and switches that are alike: of each kind one is drawn, in place of thousands.

A box is alike another where its nodes, their links, what these carry and what they lead to are the
same (colour refinement, whole boxes at a time). A switch or a GPU outside of boxes is a box of its
own. What is drawn in their place is the first of each kind; kinds between whose first ones links
are missing that others have stay whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from forestcoll.graph.capacity_graph import CapacityGraph

MOST_DRAWN = 400
"""Nodes that are drawn one by one."""
MOST_ROUNDS = 24
"""Of what takes longer no two are taken as alike: lines of thousands of switches."""


def find_twins(graph: CapacityGraph, kinds: Sequence[int]) -> list[int]:
    """Per node the one that is drawn for it, itself where it is drawn. `kinds`: a number a link.

    Linear in links, times the rounds until no kind splits.
    """
    boxes: dict[Hashable, list[int]] = defaultdict(list)
    full = {graph.box(v) for v in range(graph.n) if graph.gpu[v]} - {""}
    for v in range(graph.n):
        boxes[graph.box(v) if graph.box(v) in full else v].append(v)
    members = list(boxes.values())
    of, name = [0] * graph.n, [""] * graph.n
    for number, nodes in enumerate(members):
        for v in nodes:
            of[v] = number
            name[v] = graph.names[v][len(graph.box(v)) :] if len(nodes) > 1 else ""
    ranks = set(graph.ranks)
    colours = _number([tuple((name[v], graph.gpu[v], v in ranks) for v in m) for m in members])
    for _ in range(MOST_ROUNDS):
        seen: list[Counter[Hashable]] = [Counter() for _ in members]
        for u, v, kind in zip(graph.tail, graph.head, kinds, strict=True):
            seen[of[u]][name[u], name[v], kind, colours[of[v]], of[u] == of[v]] += 1
            seen[of[v]][name[u], name[v], kind, colours[of[u]]] += 1
        found = _number([(c, frozenset(s.items())) for c, s in zip(colours, seen, strict=True)])
        if max(found) == max(colours):
            return _pick(graph, members, of, colours)
        colours = found
    return list(range(graph.n))


def _number(values: Sequence[Hashable]) -> list[int]:
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def _pick(
    graph: CapacityGraph, members: Sequence[list[int]], of: Sequence[int], colours: Sequence[int]
) -> list[int]:
    links = set(zip(graph.tail, graph.head, strict=True))
    whole: set[int] = set()
    while True:
        first: dict[int, int] = {}
        twin = list(range(graph.n))
        for number, colour in enumerate(colours):
            if colour not in whole:
                own = members[first.setdefault(colour, number)]
                for v, w in zip(members[number], own, strict=True):
                    twin[v] = w
        torn = {
            colours[of[end]]
            for u, v in links
            if (twin[u], twin[v]) not in links or (of[u] != of[v] and of[twin[u]] == of[twin[v]])
            for end in (u, v)
        }
        if torn <= whole:
            return twin
        whole |= torn
