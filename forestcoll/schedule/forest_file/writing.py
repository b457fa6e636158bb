"""A forest to JSON: the same forest gives the same bytes, a line per tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from forestcoll.common.text_file import Block, Rows, dump_block
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Bound, Forest, Path

FORMAT = "forestcoll.forest/1"


def dumps(forest: Forest) -> str:
    """The forest as canonical JSON: the same forest gives the same bytes, a line per tree.

    Of a compact forest the representatives and the group's generators.
    """
    graph = forest.graph
    names = graph.names
    block = Block(
        format=FORMAT,
        collective=forest.collective.value,
        topology=topology_block(forest.name, graph),
        ranks=graph.rank_names,
    )
    if graph.shares:
        block["shares"] = {names[v]: s for v, s in zip(graph.ranks, graph.shares, strict=True)}
    block["algbw"] = str(forest.algbw)
    if forest.bound is not None:
        block["bound"] = _bound(forest, forest.bound)
    block["trees"] = Rows(_tree_rows(forest), 2)
    if forest.group is not None:
        maps = (json.dumps(moves(names, image)) for image in forest.group.generators)
        block["symmetry"] = Block(generators=Rows(maps, 3))
    if forest.sums:
        block["sums"] = forest.sums
    return dump_block(block)


def moves(names: Sequence[str], image: Sequence[int]) -> dict[str, str]:
    """Returns where a symmetry moves each node, by name; those that stay are left out."""
    return {names[v]: names[to] for v, to in enumerate(image) if to != v}


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


def topology_block(name: str, graph: CapacityGraph) -> Block:
    """Returns the `topology` of a file, a line a node and link."""
    nodes = (json.dumps(_node(graph, v)) for v in range(graph.n))
    names = [json.dumps(name) for name in graph.names]
    width = {c: json.dumps(str(c * graph.unit)) for c in set(graph.capacity)}
    links = (
        f'{{"src": {names[t]}, "dst": {names[h]}, "bandwidth": {width[c]}}}'
        for t, h, c in graph.arcs
    )
    return Block(name=name, nodes=Rows(nodes, 3), links=Rows(links, 3))


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
    if bound.method == "linear-program" and not (forest.collective.has_root or allreduce):
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
            {"image": moves(names, s.image), "turned": s.turned} for s in bound.symmetries
        ]
    return out


def cut_value(forest: Forest, part: frozenset[int]) -> Fraction:
    """GB/s: N times what crosses the cut, divided by its ranks; with shares, by what they hold."""
    graph = forest.graph
    rest = graph.outside(part)
    crossing = graph.leaving(rest if forest.collective.reduces else part)
    return crossing * Fraction(sum(graph.parts), graph.parts_in(part))
