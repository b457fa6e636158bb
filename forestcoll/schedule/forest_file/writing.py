"""A forest to JSON: the same forest gives the same bytes, a line per tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Bound, Forest, Path

FORMAT = "forestcoll.forest/1"


def dumps(forest: Forest) -> str:
    """The forest as canonical JSON: the same forest gives the same bytes, a line per tree.

    Of a compact forest the representatives and the group's generators.
    """
    names = forest.graph.names
    graph = forest.graph
    head: dict[str, Any] = {
        "format": FORMAT,
        "collective": forest.collective.value,
        "ranks": [names[v] for v in graph.ranks],
    }
    if graph.shares:
        head["shares"] = {names[v]: s for v, s in zip(graph.ranks, graph.shares, strict=True)}
    head["algbw"] = str(forest.algbw)
    if forest.bound is not None:
        head["bound"] = _bound(forest, forest.bound)
    lines = ["{"]
    for key in ("format", "collective"):
        lines.append(f' "{key}": {json.dumps(head.pop(key))},')
    lines.append(topology_text(forest.name, graph))
    for key, value in head.items():
        lines.append(f' "{key}": {json.dumps(value)},')
    lines.append(f' "trees": [\n{_rows(_tree_rows(forest), 2)}\n ]{_symmetry(forest)}\n}}\n')
    return "\n".join(lines)


def _tree_rows(forest: Forest) -> Iterator[str]:
    """The JSON of each tree. Trees share most of their paths: each is put in words once."""
    texts = _PathTexts(forest.graph.names)
    weights = {tree.weight for tree in forest.trees}
    shares = {weight: str(Fraction(weight, forest.total)) for weight in weights}
    for tree in forest.trees:
        edges = ", ".join(map(texts.__getitem__, tree.edges))
        yield (
            f'{{"root": {texts.names[tree.root]}, "phase": "{tree.phase}", '
            f'"share": "{shares[tree.weight]}", "edges": [{edges}]}}'
        )


class _PathTexts(dict[Path, str]):
    """The JSON of paths, made when it is asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [json.dumps(name) for name in names]

    def __missing__(self, path: Path) -> str:
        text = self[path] = "[" + ", ".join(map(self.names.__getitem__, path)) + "]"
        return text


def topology_text(name: str, graph: CapacityGraph) -> str:
    """The key `topology` of a file with its value, a line a node and link, and the comma."""
    nodes = (json.dumps(_node(graph, v)) for v in range(graph.n))
    names = [json.dumps(name) for name in graph.names]
    width = {c: json.dumps(str(c * graph.unit)) for c in set(graph.capacity)}
    links = (
        f'{{"src": {names[t]}, "dst": {names[h]}, "bandwidth": {width[c]}}}'
        for t, h, c in zip(graph.tail, graph.head, graph.capacity, strict=True)
    )
    return (
        f' "topology": {{\n  "name": {json.dumps(name)},\n'
        f'  "nodes": [\n{_rows(nodes, 3)}\n  ],\n'
        f'  "links": [\n{_rows(links, 3)}\n  ]\n }},'
    )


def _rows(items: Iterable[str], indent: int) -> str:
    return ",\n".join(" " * indent + item for item in items)


def _symmetry(forest: Forest) -> str:
    """The key `symmetry` of a compact forest with the comma before it; nothing of others."""
    if forest.group is None:
        return ""
    names = forest.graph.names
    maps = (
        json.dumps({names[v]: names[to] for v, to in enumerate(image) if to != v})
        for image in forest.group.generators
    )
    return f',\n "symmetry": {{\n  "generators": [\n{_rows(maps, 3)}\n  ]\n }}'


def _node(graph: CapacityGraph, v: int) -> dict[str, object]:
    if graph.gpu[v]:
        return {"id": graph.names[v], "kind": "gpu"}
    return {
        "id": graph.names[v],
        "kind": "switch",
        "multicast": graph.multicast[v],
        "aggregation": graph.aggregation[v],
    }


def _bound(forest: Forest, bound: Bound) -> dict[str, object]:
    names = forest.graph.names
    parts = [[names[v] for v in sorted(part)] for part in bound.parts]
    out: dict[str, object] = {"algbw": str(bound.algbw), "method": bound.method}
    if bound.method == "cut":
        out["cut"] = parts[0]
        return out
    allreduce = forest.collective.two_phases
    if bound.method == "linear-program" and not (forest.collective.rooted or allreduce):
        # A reader who knows cuts only finds a true one, above the optimum that the dual proves.
        value, number = min((cut_value(forest, part), i) for i, part in enumerate(bound.parts))
        out |= {"algbw": str(value), "cut": parts[number], "optimum": str(bound.algbw)}
    out["parts"] = parts
    if bound.method == "linear-program":
        out["weights"] = [str(w) for w in bound.weights]
        out["potentials"] = {names[v]: str(p) for v, p in bound.potentials}
    if bound.method == "linear-program" and allreduce:
        out["phases"] = list(bound.phases)
        out["reduce_potentials"] = {names[v]: str(p) for v, p in bound.reduce_potentials}
        out["symmetries"] = [
            {
                "image": {names[v]: names[to] for v, to in enumerate(s.image) if to != v},
                "turned": s.turned,
            }
            for s in bound.symmetries
        ]
    return out


def cut_value(forest: Forest, part: frozenset[int]) -> Fraction:
    """GB/s: N times what crosses the cut, divided by its ranks; with shares, by what they hold."""
    graph = forest.graph
    rest = frozenset(range(graph.n)) - part
    crossing = graph.leaving(rest if forest.collective.reduces else part)
    return crossing * Fraction(sum(graph.parts), graph.held(part))
