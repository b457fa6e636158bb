"""The expanded topology: nodes, links, and what follows from them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from forestcoll.common.display import Shown
from forestcoll.common.errors import InfeasibleError, TopologyError, did_you_mean
from forestcoll.common.input_limits import LINKS, NODES, PARALLEL_LINKS
from forestcoll.topology.numbers import bandwidth, exact

if TYPE_CHECKING:
    import networkx as nx
    from pydantic import TypeAdapter
    from pydantic_core.core_schema import CoreSchema


class _AsExact:
    """Has pydantic read a number as `exact` does."""

    read = staticmethod(exact)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls.read)


class _AsBandwidth(_AsExact):
    """The same with `bandwidth`: "200Gb/s" is 25."""

    read = staticmethod(bandwidth)


Kind = Literal["gpu", "switch"]
LinkRule = Literal["fair", "fifo", "weighted"]
Exact = Annotated[Fraction, _AsExact]
Bandwidth = Annotated[Fraction, _AsBandwidth]

RULES: tuple[LinkRule | None, ...] = (None, *get_args(LinkRule))
DEFAULT_LATENCY = Fraction(1)  # microseconds a link, where the file states none

_ID = re.compile(r"[\w.:@+#-]+(?:/[\w.:@+#-]+)*")
_IDS = re.compile(rf"(?:{_ID.pattern}\n)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_id(node: str) -> None:
    """Nothing when `node` may be a node id; else `TopologyError`."""
    if len(node) > 200 or _ID.fullmatch(node) is None:
        shown = node if len(node) <= 60 else node[:60] + "..."
        raise TopologyError(
            f"{shown!r} cannot be a node id: use up to 200 letters, digits and . _ - : @ + # "
            "in parts joined by '/'"
        )


def check_ids(nodes: Iterable[str]) -> None:
    """The same for many at once."""
    nodes = list(nodes)
    if max(map(len, nodes), default=0) > 200 or not _IDS.fullmatch("\n".join([*nodes, ""])):
        for node in nodes:
            check_id(node)


def check_name(name: str) -> None:
    """Nothing when `name` may name a topology, and so its files; else `TopologyError`."""
    if _NAME.fullmatch(name) is None:
        raise TopologyError(
            f"{name[:60]!r} cannot be the name of a topology: it names files, so use up to 100 "
            f"letters, digits and . _ - +, such as '{slug(name)}'"
        )


def slug(text: str) -> str:
    """`text` made fit to name a topology: "H100 topology" gives "h100-topology"."""
    return re.sub(r"[^a-z0-9._+]+", "-", text.lower()).strip("-._+")[:100] or "topology"


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU, or a switch that may copy (`multicast`) or add (`aggregation`) in the fabric."""

    kind: Kind
    multicast: bool = False
    aggregation: bool = False

    def __post_init__(self) -> None:
        flags = type(self.multicast), type(self.aggregation)
        if self.kind not in ("gpu", "switch") or flags != (bool, bool):
            _settle(self)
        if self.kind == "gpu" and (self.multicast or self.aggregation):
            raise TopologyError("multicast and aggregation are for switches; this node is a gpu")


@dataclass(frozen=True, slots=True)
class Link:
    """`count` parallel links of `bandwidth` GB/s each; both ways at that rate unless `oneway`.

    `rule`: what simulated transfers do that meet on it: share it evenly ("fair") or in proportion
    to their bytes ("weighted"), or wait for each other ("fifo"); None: by where it is.
    """

    src: str
    dst: str
    bandwidth: Bandwidth  # GB/s (10^9 bytes a second) of one of the parallel links, each direction
    latency: Exact | None = None  # microseconds
    count: int = 1
    oneway: bool = False
    rule: LinkRule | None = None

    def __post_init__(self) -> None:
        types = tuple(map(type, (self.src, self.dst, self.bandwidth, self.count, self.oneway)))
        latency = self.latency is None or type(self.latency) is Fraction
        if types != (str, str, Fraction, int, bool) or not latency or self.rule not in RULES:
            _settle(self)
        for number in (self.bandwidth, self.latency):
            if number is not None:
                exact(number)  # raises for one of too many digits
        if self.src == self.dst:
            raise TopologyError(f"'{self.src}' is linked to itself; a link joins two nodes")
        if self.bandwidth <= 0:
            raise TopologyError(f"bandwidth {self.bandwidth} must be more than 0 GB/s")
        if self.latency is not None and self.latency < 0:
            raise TopologyError(f"latency {self.latency} must not be negative (microseconds)")
        if not 1 <= self.count <= PARALLEL_LINKS:
            raise TopologyError(f"count {self.count} must be between 1 and {PARALLEL_LINKS:,}")

    def between(self, src: str, dst: str) -> Link:
        """The same link between two other nodes; not validated again, there may be a million."""
        if src == dst:
            raise TopologyError(f"'{src}' is linked to itself; a link joins two nodes")
        other = object.__new__(Link)
        put = object.__setattr__
        put(other, "src", src)
        put(other, "dst", dst)
        put(other, "bandwidth", self.bandwidth)
        put(other, "latency", self.latency)
        put(other, "count", self.count)
        put(other, "oneway", self.oneway)
        put(other, "rule", self.rule)
        return other

    def directions(self) -> Iterator[tuple[str, str]]:
        """(from, to) once, or both ways round."""
        yield self.src, self.dst
        if not self.oneway:
            yield self.dst, self.src


def copies(links: Sequence[Link], src: Sequence[str], dst: Sequence[str]) -> list[Link]:
    """`links`, over and over, between other nodes; not validated again, there may be a million.

    Field by field: a tenth of the time that `Link.between` takes.
    """
    for one, other in zip(src, dst, strict=True):
        if one == other:
            raise TopologyError(f"'{one}' is linked to itself; a link joins two nodes")
    same_links = [object.__new__(Link) for _ in src]
    columns: dict[str, Iterable[object]] = {"src": src, "dst": dst}
    for name in ("bandwidth", "latency", "count", "oneway", "rule"):
        columns[name] = cycle([getattr(link, name) for link in links])
    for name, values in columns.items():
        deque(
            map(getattr(Link, name).__set__, same_links, values), maxlen=0
        )  # runs the map, keeps none
    return same_links


@dataclass(frozen=True, slots=True)
class Adapter:
    """A network port that a machine's own dump names. Nothing beyond it is described there."""

    name: str
    bandwidth: Bandwidth | None  # GB/s; None where the dump does not say
    near: tuple[str, ...]  # ids of the GPUs that are nearest on PCIe
    attributes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _settle(self)


@dataclass(frozen=True, slots=True)
class Topology(Shown):
    """Nodes in order (the order of the GPUs is the order of the ranks) and the links between them.

    `adapters` and `notes` (what a reader had to assume, in words) say more about where the topology
    comes from; they are no part of equality and not written by `dumps_topology`. `merged`: what
    can tell nodes apart that are alike and stand as one (`alike.Merged`), or None.

    Raises `TopologyError` when a link names no node, an id is malformed, or there is no GPU.
    """

    name: str
    nodes: dict[str, Node]
    links: tuple[Link, ...]
    adapters: tuple[Adapter, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    merged: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if type(self.nodes) is dict:
            object.__setattr__(self, "nodes", dict(self.nodes))  # the caller's may change
        if not self._is_settled():
            _settle(self)
        check_name(self.name)
        check_sizes(len(self.nodes), len(self.links))
        check_ids(self.nodes)
        if not {link.src for link in self.links} | {link.dst for link in self.links} <= {
            *self.nodes
        }:
            for i, link in enumerate(self.links):
                for end in (link.src, link.dst):
                    if end not in self.nodes:
                        raise TopologyError(f"links[{i}]: {unknown_node(end, self.nodes)}")
        if not self.gpus:
            raise TopologyError(f"topology '{self.name}' has no GPU: give some nodes kind: gpu")

    def __repr__(self) -> str:
        gpus = sum(node.kind == "gpu" for node in self.nodes.values())
        switches = len(self.nodes) - gpus
        return f"<Topology {self.name}: {gpus} GPUs, {switches} switches, {len(self.links)} links>"

    def _is_settled(self) -> bool:
        tuples = self.links, self.adapters, self.notes
        if (type(self.name), type(self.nodes), *map(type, tuples)) != (str, dict, *[tuple] * 3):
            return False
        kinds = [{*map(type, values)} for values in (self.nodes, self.nodes.values(), *tuples)]
        stated: tuple[set[type], ...] = ({str}, {Node}, {Link}, {Adapter}, {str})
        return all(types <= own for types, own in zip(kinds, stated, strict=True))

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of the GPUs, in rank order."""
        return tuple(name for name, node in self.nodes.items() if node.kind == "gpu")

    @property
    def boxes(self) -> tuple[tuple[str, ...], ...]:
        """Node ids box by box: a box is what shares all that stands before the last "/" of an id.

        Nodes whose id has no "/" are in no box. For the solver a hint where symmetry may be found,
        not a promise that the boxes are alike.
        """
        boxes: dict[str, list[str]] = {}
        for name in self.nodes:
            box = name.rpartition("/")[0]
            if box:
                boxes.setdefault(box, []).append(name)
        return tuple(tuple(box) for box in boxes.values())

    def rates(self) -> dict[tuple[str, str], Fraction]:
        """GB/s from node to node, parallel links added up, each direction on its own."""
        merged: dict[tuple[str, str], Fraction] = {}
        for link in self.links:
            bandwidth = link.bandwidth if link.count == 1 else link.bandwidth * link.count
            for ends in link.directions():
                rate = merged.get(ends)
                merged[ends] = bandwidth if rate is None else rate + bandwidth
        return merged

    def latencies(self) -> dict[tuple[str, str], Fraction]:
        """Microseconds from node to node over one link; the longest where several are parallel."""
        merged: dict[tuple[str, str], Fraction] = {}
        for link in self.links:
            own = DEFAULT_LATENCY if link.latency is None else link.latency
            for ends in link.directions():
                longest = merged.get(ends)
                if longest is None or (longest is not own and longest < own):
                    merged[ends] = own
        return merged

    def rules(self) -> dict[tuple[str, str], LinkRule]:
        """How transfers meet from node to node, where a link says so; parallel links: the first."""
        stated: dict[tuple[str, str], LinkRule] = {}
        for link in self.links:
            if link.rule is not None:
                for ends in link.directions():
                    stated.setdefault(ends, link.rule)
        return stated

    def latency(self, src: str, dst: str) -> Fraction:
        """Microseconds over the link from `src` to `dst`. Linear: for many links, `latencies`."""
        latency = self.latencies().get((src, dst))
        if latency is None:
            raise TopologyError(f"there is no link from '{src}' to '{dst}'")
        return latency

    @staticmethod
    def from_networkx(graph: nx.Graph[Any], name: str = "") -> Topology:
        """The topology that a networkx graph describes: see `topology.from_networkx`."""
        return from_networkx(graph, name)

    def to_networkx(self) -> nx.MultiDiGraph[Any]:
        """A directed multigraph: an edge per link and direction, keyed by the link's number.

        Node attributes kind, multicast, aggregation; edge attributes bandwidth (Fraction, of one of
        the parallel links), latency, count, rule where it has one; graph attribute name.
        """
        import networkx as nx

        graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=self.name)
        for name, node in self.nodes.items():
            graph.add_node(
                name, kind=node.kind, multicast=node.multicast, aggregation=node.aggregation
            )
        for i, link in enumerate(self.links):
            values: dict[str, object] = {
                "bandwidth": link.bandwidth,
                "latency": link.latency,
                "count": link.count,
            }
            if link.rule is not None:
                values |= {"rule": link.rule}
            for src, dst in link.directions():
                graph.add_edge(src, dst, key=i, **values)
        return graph


def _settle(value: Any) -> None:
    """Gives every field of a dataclass the type that it states; `TopologyError` where it cannot.

    What Python callers give in other types, pydantic converts or refuses. What is read from a file
    has the right types already, and importing pydantic takes longer than most commands.
    """
    from pydantic import ValidationError

    kind: type = type(value)
    for name, adapter in _adapters(kind).items():
        try:
            settled = adapter.validate_python(getattr(value, name))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"[{part!r}]" for part in first["loc"])
            raise TopologyError(
                f"{kind.__name__}: {name}{place}: {first['msg']}, not {first['input']!r}"
            ) from None
        object.__setattr__(value, name, settled)


@lru_cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    from pydantic import TypeAdapter

    hints = get_type_hints(kind, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(kind)}


def check_sizes(nodes: int, links: int) -> None:
    """Nothing within the limits of a topology; else `TopologyError`."""
    if nodes > NODES:
        raise TopologyError(f"more than {NODES:,} nodes: make the topology smaller {NODES.note}")
    if links > LINKS:
        raise TopologyError(f"more than {LINKS:,} links: make the topology smaller {LINKS.note}")


def unknown_node(node: str, names: Iterable[str]) -> str:
    """ "unknown node 'gpu9'; did you mean 'gpu7'?"."""
    return f"unknown node '{node}'{did_you_mean(node, names)}"


def from_networkx(graph: nx.Graph[Any], name: str = "") -> Topology:
    """The topology that `Topology.to_networkx` shows, or any networkx graph of that kind.

    Node attribute `kind` (default gpu), `multicast`, `aggregation`; edge attribute `bandwidth` in
    GB/s (needed), `latency`, `count`, `rule`. An undirected edge is a link both ways. Directed
    edges are one way; two opposite ones with the same key and attributes become one link both ways.
    """
    nodes: dict[str, Node] = {}
    for node, data in graph.nodes(data=True):
        kind = data.get("kind", "gpu")
        if kind not in ("gpu", "switch"):
            raise TopologyError(f"node '{node}': kind {kind!r} is neither 'gpu' nor 'switch'")
        flags = {f: bool(data.get(f, False)) for f in ("multicast", "aggregation")}
        if str(node) in nodes:
            raise TopologyError(f"two nodes are called '{node}' when written as text")
        nodes[str(node)] = Node(kind, **flags)
    title = name or str(graph.graph.get("name") or "networkx")
    return Topology(title, nodes, tuple(_links_of(graph)))


def _links_of(graph: nx.Graph[Any]) -> list[Link]:
    edges: list[tuple[Any, str, str, dict[str, Any]]]
    if graph.is_multigraph():
        listed = graph.edges(keys=True, data=True)  # type: ignore[call-overload]
        edges = [(key, str(u), str(v), data) for u, v, key, data in listed]
    else:
        edges = [(0, str(u), str(v), data) for u, v, data in graph.edges(data=True)]
    links: dict[tuple[Any, str, str], Link] = {}
    for key, src, dst, data in edges:
        if "bandwidth" not in data:
            raise TopologyError(f"edge '{src}' -> '{dst}' has no attribute 'bandwidth' (GB/s)")
        link = Link(
            src,
            dst,
            data["bandwidth"],
            data.get("latency"),
            data.get("count", 1),
            oneway=graph.is_directed(),
            rule=data.get("rule"),
        )
        back = replace(link, src=dst, dst=src)
        if links.get((key, dst, src)) == back:
            links[key, dst, src] = replace(back, oneway=False)
        else:
            links[key, src, dst] = link
    return list(links.values())


def find_cut(
    nodes: Sequence[str], arcs: Iterable[tuple[str, str]], ranks: Sequence[str]
) -> tuple[frozenset[str], str, str] | None:
    """(nodes that no arc leaves, a rank among them, a rank outside), or None without such a set.

    Two searches from the first rank, along the arcs and against them: linear time.
    """
    ahead: dict[str, list[str]] = {node: [] for node in nodes}
    behind: dict[str, list[str]] = {node: [] for node in nodes}
    for src, dst in arcs:
        ahead[src].append(dst)
        behind[dst].append(src)
    start = ranks[0]
    reached = _reach(start, ahead)
    for rank in ranks:
        if rank not in reached:
            return frozenset(reached), start, rank
    reaching = _reach(start, behind)
    for rank in ranks:
        if rank not in reaching:
            return frozenset(node for node in nodes if node not in reaching), rank, start
    return None


def _reach(start: str, next_to: Mapping[str, Sequence[str]]) -> set[str]:
    seen = {start}
    stack = [start]
    while stack:
        for node in next_to[stack.pop()]:
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return seen


def check_connected(topology: Topology, ranks: Sequence[str] | None = None) -> None:
    """Nothing when every rank (default: every GPU) can send to every other, over any nodes.

    Raises `TopologyError` for fewer than two ranks, `InfeasibleError` naming a cut otherwise.
    """
    chosen = topology.gpus if ranks is None else tuple(ranks)
    for rank in chosen:
        if rank not in topology.nodes:
            raise TopologyError(unknown_node(rank, topology.nodes))
    if len(chosen) < 2:
        raise TopologyError(
            f"topology '{topology.name}': {len(chosen)} rank{'s' * (len(chosen) != 1)}; "
            "a collective needs at least two GPUs"
        )
    arcs = (ends for link in topology.links for ends in link.directions())
    cut = find_cut(tuple(topology.nodes), arcs, chosen)
    if cut is not None:
        raise InfeasibleError(cut_in_words(cut[0], chosen, order=tuple(topology.nodes)))


def cut_in_words(cut: frozenset[str], ranks: Sequence[str], order: Sequence[str]) -> str:
    """ "ranks a, b cannot reach c: no link leaves {a, b, switch}"."""
    inside = [rank for rank in ranks if rank in cut]
    outside = [rank for rank in ranks if rank not in cut]
    several = "ranks" if len(inside) > 1 else "rank"
    return (
        f"{several} {_few(inside)} cannot reach {_few(outside)}: "
        f"no link leaves {{{_few([node for node in order if node in cut])}}}"
    )


def _few(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
