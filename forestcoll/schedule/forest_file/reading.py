"""JSON to a forest; what is wrong is said with its place in the file."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from forestcoll.common.errors import ForestError, TopologyError
from forestcoll.common.input_limits import (
    DIGITS,
    FOREST_DIGITS,
    GENERATORS,
    IMAGE_NODES,
    PATH_NODES,
    PROOF_STEPS,
    TREE_EDGES,
    TREES,
)
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import Image, SymmetryGroup, rotation_group, symmetry_group
from forestcoll.schedule.forest import Bound, Forest, Path, Symmetry, Tree, in_order, trees_moved
from forestcoll.schedule.forest_file.model import (
    AlikeModel,
    BoundModel,
    ForestModel,
    SymmetryModel,
    TopologyModel,
)
from forestcoll.schedule.forest_file.writing import cut_value
from forestcoll.topology.numbers import add, common_denominator

M = TypeVar("M", bound=BaseModel)


def parse(text: str, source: str = "forest") -> tuple[Forest, Fraction]:
    """(forest, the algbw that the file states), without comparing the two."""
    model = parse_model(ForestModel, "forest", text, source)
    try:
        forest = _forest(model)
        if model.bound is not None:
            _check_plain_cut(model.bound, forest)
        return forest, Fraction(model.algbw)
    except (ForestError, TopologyError) as e:
        raise ForestError(f"{source}: {e}") from None


def parse_model(kind: type[M], word: str, text: str, source: str) -> M:
    """The model that a JSON text holds; ForestError with its place where it holds none.

    `word`: what to call such a file, "forest" or "groups".
    """
    try:
        return kind.model_validate(
            json.loads(text, object_pairs_hook=_no_repeats, parse_int=_integer)
        )
    except RecursionError:
        raise ForestError(f"{source}: nested too deeply for a {word} file") from None
    except json.JSONDecodeError as e:
        raise ForestError(f"{source}: line {e.lineno}: not JSON: {e.msg}") from None
    except ValidationError as e:
        first = e.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ForestError(f"{source}: {place.lstrip('.') or 'file'}: {said}") from None
    except ValueError as e:
        raise ForestError(f"{source}: {e}") from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return out


def _integer(digits: str) -> int:
    if len(digits) > FOREST_DIGITS:
        raise ValueError(
            f"the number {digits[:20]}... has {len(digits)} digits {FOREST_DIGITS.note}"
        )
    return int(digits)


def node_finder(graph: CapacityGraph) -> Callable[..., int]:
    """Returns what finds a node by its name, for words on where in the file that stands."""
    ids = graph.node_of

    def find(name: str, where: str = "") -> int:
        if name not in ids:
            raise ForestError(f"{where}{where and ': '}unknown node {name!r}")
        return ids[name]

    return find


def _forest(model: ForestModel) -> Forest:
    graph = replace(graph_of(model.topology, model.ranks), shares=_shares(model))
    node = node_finder(graph)
    ids = graph.node_of
    shares = [Fraction(t.share) for t in model.trees]
    for number, share in enumerate(shares):
        if share <= 0:
            raise ForestError(f"trees[{number}].share: {share}, must be more than 0")
    total = common_denominator(shares)
    paths = _Paths(ids)
    out = []
    for number, (tree, share) in enumerate(zip(model.trees, shares, strict=True)):
        what = f"trees[{number}]"
        root = node(tree.root, f"{what}.root")
        try:
            edges = [*map(paths.__getitem__, map(tuple, tree.edges))]
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
    if model.collective.has_root and out and out[0].root in graph.ranks:
        root = graph.ranks.index(out[0].root)
    group = None
    if model.symmetry is not None:
        generators = generators_of(model.symmetry, ids)
        group = None if model.collective.has_root else _group(graph, generators, out)
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
        sums=model.sums or "",
    )


class _Paths(dict[tuple[str, ...], Path]):
    """Paths by the names of their nodes. Trees share most of them: equal ones are one object."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def __missing__(self, names: tuple[str, ...]) -> Path:
        path = self[names] = tuple([self._ids[name] for name in names])
        return path


_DUAL = {"algbw", "method", "cut", "optimum", "parts", "weights", "potentials"}
_CLAIMS = {
    "cut": {"algbw", "method", "cut"},
    "partition": {"algbw", "method", "parts"},
    "linear-program": _DUAL | {"phases", "reduce_potentials", "symmetries"},
}
"""The fields of a bound by each method."""


def _check_plain_cut(model: BoundModel, forest: Forest) -> None:
    """ForestError unless the plain cut beside a linear program's optimum is worth what it says."""
    if model.method != "linear-program" or (model.optimum is None and model.cut is None):
        return
    if model.optimum is None or model.cut is None:
        raise ForestError("bound: optimum and cut come together")
    ids = forest.graph.node_of
    cut = frozenset(ids[name] for name in model.cut if name in ids)
    inside = len(cut & set(forest.graph.ranks))
    if len(cut) != len(model.cut) or not 0 < inside < forest.n or not forest.graph.parts_in(cut):
        raise ForestError("bound.cut: must part the ranks in two, each node named once")
    value = cut_value(forest, cut)
    if value != Fraction(model.algbw):
        raise ForestError(f"bound.algbw: states {model.algbw}, its cut gives {value}")


def _read_bound(model: BoundModel, node: Callable[[str, str], int], graph: CapacityGraph) -> Bound:
    def part(ids: list[str]) -> frozenset[int]:
        return frozenset(node(v, "bound") for v in ids)

    def potentials(given: dict[str, str] | None) -> tuple[tuple[int, Fraction], ...]:
        return tuple((node(v, "bound"), Fraction(p)) for v, p in (given or {}).items())

    def symmetry(alike: AlikeModel) -> Symmetry:
        image = list(range(graph.n))
        for v, to in alike.image.items():
            image[node(v, "bound")] = node(to, "bound")
        return Symmetry(tuple(image), alike.turned)

    for field in sorted(model.model_fields_set - _CLAIMS[model.method]):
        if getattr(model, field) is not None:
            raise ForestError(f"bound.{field}: a bound by the method {model.method!r} has none")
    parts = [model.cut] if model.method == "cut" else model.parts
    if parts is None or parts == [None]:
        raise ForestError(f"bound: method {model.method!r} without its node sets")
    weights = tuple(Fraction(w) for w in model.weights or ())
    sets = 1 if model.method == "partition" else len(parts)  # each node is in one of them at most
    check_cost(graph, sets, len(model.symmetries or ()), "bound")
    if model.method == "linear-program" and len(weights) != len(parts):
        raise ForestError(f"bound: {len(parts)} parts but {len(weights)} weights")
    given = (model.potentials or {}), (model.reduce_potentials or {})
    common_denominator([*weights, *(Fraction(p) for side in given for p in side.values())])
    return Bound(
        algbw=Fraction(model.optimum or model.algbw),
        method=model.method,
        parts=tuple(part(p) for p in parts if p is not None),
        weights=weights,
        potentials=potentials(model.potentials),
        phases=tuple(model.phases or ()),
        reduce_potentials=potentials(model.reduce_potentials),
        symmetries=tuple(symmetry(alike) for alike in model.symmetries or ()),
    )


def check_cost(graph: CapacityGraph, parts: int, symmetries: int, where: str) -> None:
    """ForestError where a bound of so many node sets and symmetries takes too long to check."""
    counts = (
        ("steps to check", parts * (len(graph.tail) + graph.n), PROOF_STEPS),
        ("images of nodes", symmetries * graph.n, IMAGE_NODES),
    )
    for what, count, limit in counts:
        if count > limit:
            raise ForestError(f"{where}: {count:,} {what} {limit.note}")


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
            value = values[link.bandwidth] = Fraction(link.bandwidth)
            if value <= 0:
                raise ForestError(f"{where}.bandwidth: {value}, must be more than 0")
            if not Fraction(1, 10**DIGITS) <= value <= 10**DIGITS:
                raise ForestError(
                    f"{where}.bandwidth: {link.bandwidth[:20]}... GB/s, must be between "
                    f"10^-{DIGITS} and 10^{DIGITS} {DIGITS.note}"
                )
        pair = (ids[link.src], ids[link.dst])
        bandwidth[pair] = add(bandwidth[pair], value, where) if pair in bandwidth else value
    for name in ranks:
        if name not in ids or nodes[ids[name]].kind != "gpu":
            raise ForestError(f"ranks: {name!r} is no GPU of the topology")
    if len(set(ranks)) != len(ranks):
        raise ForestError("ranks: a rank stands twice")
    if len(ranks) < 2:
        raise ForestError(f"ranks: {len(ranks)}, a collective needs at least 2")
    bare = CapacityGraph(
        names=tuple(n.id for n in nodes),
        gpu=tuple(n.kind == "gpu" for n in nodes),
        multicast=tuple(n.multicast for n in nodes),
        aggregation=tuple(n.aggregation for n in nodes),
        ranks=tuple(ids[r] for r in ranks),
    )
    return bare.with_bandwidths(bandwidth, topology.name)


def _shares(model: ForestModel) -> tuple[int, ...]:
    """The parts of the ranks, in rank order; empty where they are equal, but of an allreduce."""
    if model.shares is None:
        return ()
    if not model.collective.weighable:
        raise ForestError(f"shares: {model.collective} has no parts that could differ")
    if set(model.shares) != set(model.ranks):
        odd = min(set(model.shares) ^ set(model.ranks))
        raise ForestError(f"shares: must name every rank and nothing else, see {odd!r}")
    parts = [model.shares[rank] for rank in model.ranks]
    common = math.gcd(*parts)
    if not common:
        raise ForestError("shares: all parts are 0")
    equal = min(parts) == max(parts) and model.collective.has_parts
    return () if equal else tuple(part // common for part in parts)


def generators_of(model: SymmetryModel, ids: Mapping[str, int]) -> list[Image]:
    """The image of every node under each generator."""
    if len(model.generators) > GENERATORS:
        raise ForestError(
            f"symmetry: {len(model.generators):,} generators {GENERATORS.note}; each that is "
            "needed doubles the images or more"
        )
    images = []
    for number, given in enumerate(model.generators):
        if not (given.keys() <= ids.keys() and set(given) == set(given.values())):
            raise ForestError(f"symmetry.generators[{number}] is no permutation of node ids")
        images.append(tuple(ids[given.get(name, name)] for name in ids))
    return images


def _group(
    graph: CapacityGraph, generators: list[Image], trees: list[Tree]
) -> SymmetryGroup | None:
    """The group as a compact forest relies on it; None where images have to be written out."""
    with suppress(ForestError):  # of a group that moves ranks freely
        group = symmetry_group(graph, generators)
        return group if group.size > 1 else None
    with suppress(ForestError):  # of one that keeps some ranks, and their trees
        one = rotation_group(graph, generators)
        return None if trees_moved(one, trees) else one
    return None


def _images(trees: list[Tree], generators: list[Image]) -> list[Tree]:
    """All distinct images of each tree under the group that the generators generate."""
    out: list[Tree] = []
    edges = nodes = 0
    for tree in trees:
        length = sum(map(len, tree.edges))
        seen = {_look(tree)}
        queue = deque([tree])
        while queue:
            t = queue.popleft()
            out.append(t)
            edges += len(t.edges)
            nodes += length
            counts = (("trees", len(out), TREES), ("tree edges", edges, TREE_EDGES))
            for what, count, limit in (*counts, ("nodes on their paths", nodes, PATH_NODES)):
                if count > limit:
                    raise ForestError(
                        f"symmetry: expands to more than {limit:,} {what} {limit.note}"
                    )
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
