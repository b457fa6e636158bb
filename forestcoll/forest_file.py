"""Forests as files: JSON that carries the whole topology, the trees, and the proof (exact).

The models below are the format; `forest.schema.json` beside this file is their JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forestcoll.errors import ForestError, TopologyError
from forestcoll.forest import Bound, Forest, Path, Phase, Symmetry, Tree, in_order
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.symmetry import Image, SymmetryGroup, symmetry_group

FORMAT = "forestcoll.forest/1"
SCHEMA_PATH = FilePath(__file__).with_name("forest.schema.json")
SIZE_LIMIT = 2**30
"""Bytes of a forest file that are read at most."""
IMAGES_LIMIT = 4_000_000
"""Tree edges that the symmetry of a file may expand to."""

Exact = Annotated[str, Field(pattern=r"^-?[0-9]{1,400}(/[0-9]{1,400})?$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeModel(_Model):
    id: str
    kind: Literal["gpu", "switch"]
    multicast: bool = False
    aggregation: bool = False


class LinkModel(_Model):
    src: str
    dst: str
    bandwidth: Exact


class TopologyModel(_Model):
    name: str
    nodes: list[NodeModel]
    links: list[LinkModel]


class AlikeModel(_Model):
    """A permutation of the nodes under which the graph stays the same; ids left out stay."""

    image: dict[str, str]
    turned: bool = False  # links are turned round, phases trade places


class BoundModel(_Model):
    algbw: Exact
    cut: list[str] | None = None
    method: Literal["cut", "partition", "linear-program"] = "cut"
    optimum: Exact | None = None  # of the linear program, where `algbw` and `cut` are a plain cut
    parts: list[list[str]] | None = None
    weights: list[Exact] | None = None
    potentials: dict[str, Exact] | None = None
    phases: list[Phase] | None = None  # of the parts; this and below: allreduce only
    reduce_potentials: dict[str, Exact] | None = None
    symmetries: list[AlikeModel] | None = None


class TreeModel(_Model):
    root: str
    phase: Literal["broadcast", "reduce"]
    share: Exact
    edges: list[list[str]]


class SymmetryModel(_Model):
    generators: list[dict[str, str]]


class ForestModel(_Model):
    """A forest file."""

    format: Literal["forestcoll.forest/1"]
    collective: Collective
    topology: TopologyModel
    ranks: list[str]
    shares: dict[str, Annotated[int, Field(ge=0, le=2**62)]] | None = None  # parts that differ
    algbw: Exact
    bound: BoundModel | None = None
    trees: list[TreeModel]
    symmetry: SymmetryModel | None = None


def schema() -> dict[str, Any]:
    """The JSON Schema of a forest file."""
    return ForestModel.model_json_schema()


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
    allreduce = forest.collective is Collective.ALLREDUCE
    if bound.method == "linear-program" and not (forest.collective.rooted or allreduce):
        # A reader who knows cuts only finds a true one, above the optimum that the dual proves.
        value, number = min((_cut_value(forest, part), i) for i, part in enumerate(bound.parts))
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


def _cut_value(forest: Forest, part: frozenset[int]) -> Fraction:
    """N times what crosses the cut in GB/s, divided by its ranks."""
    graph = forest.graph
    rest = frozenset(range(graph.n)) - part
    crossing = graph.leaving(part if forest.collective is Collective.ALLGATHER else rest)
    return crossing * Fraction(sum(graph.parts), graph.held(part))


def load(path: FilePath) -> Forest:
    """The forest in the file `path`; see `loads`."""
    if path.stat().st_size > SIZE_LIMIT:
        raise ForestError(f"{path}: larger than {SIZE_LIMIT} bytes, no forest file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ForestError(f"{path}: not UTF-8 text (byte {e.start})") from None
    return loads(text, str(path))


def loads(text: str, source: str = "forest") -> Forest:
    """The forest that `text` describes; its trees give the algbw that the file states.

    Raises ForestError with the place in the file. Says nothing yet of spanning, shares and bound:
    `forest.check` and `certificate.check_bound` do.
    """
    forest, stated = parse(text, source)
    if forest.algbw != stated:
        raise ForestError(f"{source}: states algbw {stated}, its trees give {forest.algbw}")
    return forest


def parse(text: str, source: str = "forest") -> tuple[Forest, Fraction]:
    """(forest, the algbw that the file states), without comparing the two."""
    try:
        model = ForestModel.model_validate(json.loads(text, object_pairs_hook=_no_repeats))
    except RecursionError:
        raise ForestError(f"{source}: nested too deeply for a forest file") from None
    except json.JSONDecodeError as e:
        raise ForestError(f"{source}: line {e.lineno}: not JSON: {e.msg}") from None
    except ValidationError as e:
        first = e.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        raise ForestError(f"{source}: {place.lstrip('.') or 'file'}: {first['msg']}") from None
    except ValueError as e:
        raise ForestError(f"{source}: {e}") from None
    try:
        return _forest(model), _fraction(model.algbw)
    except (ForestError, TopologyError) as e:
        raise ForestError(f"{source}: {e}") from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [k for k, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands twice")
    return out


def _fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ForestError(f"{text}: division by zero") from None


def _forest(model: ForestModel) -> Forest:
    graph = replace(graph_of(model.topology, model.ranks), shares=_shares(model))
    ids = {name: v for v, name in enumerate(graph.names)}

    def node(name: str, what: str) -> int:
        if name not in ids:
            raise ForestError(f"{what}: unknown node {name!r}")
        return ids[name]

    shares = [_fraction(t.share) for t in model.trees]
    for number, share in enumerate(shares):
        if share <= 0:
            raise ForestError(f"trees[{number}].share: {share}, must be more than 0")
    total = math.lcm(*(s.denominator for s in shares)) if shares else 1
    out = []
    for number, (tree, share) in enumerate(zip(model.trees, shares, strict=True)):
        what = f"trees[{number}]"
        root = node(tree.root, f"{what}.root")
        try:
            edges = tuple(tuple([ids[v] for v in path]) for path in tree.edges)
        except KeyError:
            for i, path in enumerate(tree.edges):
                for v in path:
                    node(v, f"{what}.edges[{i}]")
            raise
        weight = int(share * total)
        out.append(Tree(root, tree.phase, weight, in_order(root, tree.phase, edges)))
    bound = None
    if model.bound is not None:
        bound = _read_bound(model.bound, node, graph)
    root = -1
    if model.collective.rooted and out and out[0].root in graph.ranks:
        root = graph.ranks.index(out[0].root)
    group = None
    if model.symmetry is not None:
        generators = _generators(model.symmetry, ids)
        group = None if model.collective.rooted else _group(graph, generators)
        if group is None:
            out = _images(out, generators)
    return Forest(
        name=model.topology.name,
        graph=graph,
        collective=model.collective,
        total=total,
        trees=tuple(out),
        bound=bound,
        root=root,
        group=group,
    )


def _read_bound(model: BoundModel, node: Callable[[str, str], int], graph: CapacityGraph) -> Bound:
    def part(ids: list[str]) -> frozenset[int]:
        return frozenset(node(v, "bound") for v in ids)

    def potentials(given: dict[str, str] | None) -> tuple[tuple[int, Fraction], ...]:
        return tuple((node(v, "bound"), _fraction(p)) for v, p in (given or {}).items())

    def symmetry(alike: AlikeModel) -> Symmetry:
        image = list(range(graph.n))
        for v, to in alike.image.items():
            image[node(v, "bound")] = node(to, "bound")
        return Symmetry(tuple(image), alike.turned)

    parts = [model.cut] if model.method == "cut" else model.parts
    if parts is None or parts == [None]:
        raise ForestError(f"bound: method {model.method!r} without its node sets")
    weights = tuple(_fraction(w) for w in model.weights or ())
    if model.method == "linear-program" and len(weights) != len(parts):
        raise ForestError(f"bound: {len(parts)} parts but {len(weights)} weights")
    return Bound(
        algbw=_fraction(model.optimum or model.algbw),
        method=model.method,
        parts=tuple(part(p) for p in parts if p is not None),
        weights=weights,
        potentials=potentials(model.potentials),
        phases=tuple(model.phases or ()),
        reduce_potentials=potentials(model.reduce_potentials),
        symmetries=tuple(symmetry(alike) for alike in model.symmetries or ()),
    )


def graph_of(topology: TopologyModel, ranks: list[str]) -> CapacityGraph:
    """The graph of a file's topology, capacities scaled to integers exactly; else ForestError."""
    nodes = topology.nodes
    ids = {n.id: v for v, n in enumerate(nodes)}
    if len(ids) != len(nodes):
        raise ForestError("topology.nodes: an id stands twice")
    bandwidth: dict[tuple[int, int], Fraction] = {}
    values: dict[str, Fraction] = {}
    for number, link in enumerate(topology.links):
        where = f"topology.links[{number}]"
        for end in (link.src, link.dst):
            if end not in ids:
                raise ForestError(f"{where}: unknown node {end!r}")
        if link.src == link.dst:
            raise ForestError(f"{where}: from {link.src!r} to itself")
        value = values.get(link.bandwidth)
        if value is None:
            value = values[link.bandwidth] = _fraction(link.bandwidth)
            if value <= 0:
                raise ForestError(f"{where}.bandwidth: {value}, must be more than 0")
        pair = (ids[link.src], ids[link.dst])
        bandwidth[pair] = bandwidth[pair] + value if pair in bandwidth else value
    for name in ranks:
        if name not in ids or nodes[ids[name]].kind != "gpu":
            raise ForestError(f"ranks: {name!r} is no GPU of the topology")
    if len(set(ranks)) != len(ranks):
        raise ForestError("ranks: a rank stands twice")
    if len(ranks) < 2:
        raise ForestError(f"ranks: {len(ranks)}, a collective needs at least 2")
    return CapacityGraph.from_bandwidths(
        name=topology.name,
        names=tuple(n.id for n in nodes),
        gpu=tuple(n.kind == "gpu" for n in nodes),
        multicast=tuple(n.multicast for n in nodes),
        aggregation=tuple(n.aggregation for n in nodes),
        ranks=tuple(ids[r] for r in ranks),
        bandwidths=bandwidth,
    )


def _shares(model: ForestModel) -> tuple[int, ...]:
    """The parts of the ranks, in rank order; empty where they are equal."""
    if model.shares is None:
        return ()
    if model.collective not in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        raise ForestError(f"shares: {model.collective} has no parts that could differ")
    if set(model.shares) != set(model.ranks):
        odd = min(set(model.shares) ^ set(model.ranks))
        raise ForestError(f"shares: must name every rank and nothing else, see {odd!r}")
    parts = [model.shares[rank] for rank in model.ranks]
    common = math.gcd(*parts)
    if not common:
        raise ForestError("shares: all parts are 0")
    return () if min(parts) == max(parts) else tuple(part // common for part in parts)


def _generators(model: SymmetryModel, ids: Mapping[str, int]) -> list[Image]:
    """The image of every node under each generator."""
    found = []
    for number, given in enumerate(model.generators):
        if not (given.keys() <= ids.keys() and set(given) == set(given.values())):
            raise ForestError(f"symmetry.generators[{number}] is no permutation of node ids")
        found.append(tuple(ids[given.get(name, name)] for name in ids))
    return found


def _group(graph: CapacityGraph, generators: list[Image]) -> SymmetryGroup | None:
    """The group as a compact forest relies on it; None where images have to be written out."""
    try:
        group = symmetry_group(graph, generators)
    except ForestError:  # no symmetries of the graph, or none that commute and move ranks freely
        return None
    return group if group.size > 1 else None


def _images(trees: list[Tree], generators: list[Image]) -> list[Tree]:
    """All distinct images of each tree under the group that the generators generate."""
    out: list[Tree] = []
    edges = 0
    for tree in trees:
        seen = {_look(tree)}
        queue = deque([tree])
        while queue:
            t = queue.popleft()
            out.append(t)
            edges += len(t.edges)
            if edges > IMAGES_LIMIT:
                raise ForestError(f"symmetry: expands to more than {IMAGES_LIMIT} tree edges")
            for image in generators:
                paths = tuple(tuple([image[v] for v in path]) for path in t.edges)
                other = replace(t, root=image[t.root], edges=paths)
                look = _look(other)
                if look not in seen:
                    seen.add(look)
                    queue.append(other)
    return out


def _look(tree: Tree) -> tuple[int, tuple[Path, ...]]:
    return tree.root, tuple(sorted(tree.edges))
