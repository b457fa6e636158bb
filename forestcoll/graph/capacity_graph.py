"""The topology as the solver sees it: integer nodes, integer capacities, one exact unit."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeVar

from forestcoll.common.errors import InfeasibleError, TopologyError, UnsupportedError, did_you_mean
from forestcoll.topology import Link, Topology, cut_in_words, find_cut, show
from forestcoll.topology.globs import is_glob, matcher
from forestcoll.topology.numbers import add, decimal

Relays = Literal["none", "idle", "all"]
T = TypeVar("T")

CAPACITY_LIMIT = 2**62
"""Sums of capacities, times the number of ranks, stay under this: the kernel is int64."""


@dataclass(frozen=True, slots=True)
class CapacityGraph:
    """A directed graph with integer capacities.

    Nodes are 0..n-1, in the order of the topology. Link e goes from `tail[e]` to `head[e]` and
    carries `capacity[e] * unit` GB/s; parallel links are merged, self-loops do not occur.
    """

    names: tuple[str, ...]
    gpu: tuple[bool, ...]  # per node: GPU (else switch)
    multicast: tuple[bool, ...]  # per node: switch that copies in the fabric
    aggregation: tuple[bool, ...]  # per node: switch that adds in the fabric
    ranks: tuple[int, ...]  # node of rank 0, 1, ...
    tail: tuple[int, ...] = ()
    head: tuple[int, ...] = ()
    capacity: tuple[int, ...] = ()
    unit: Fraction = Fraction(1)  # GB/s of one unit of capacity
    shares: tuple[int, ...] = ()  # ranks' parts of data, or an allreduce's sums; (): equal, free
    lacks_gpus: bool = field(default=False, compare=False)  # of the topology, which may relay

    @staticmethod
    def from_topology(
        topology: Topology, ranks: Sequence[str] | None = None, relays: Relays = "none"
    ) -> CapacityGraph:
        """The graph of `topology` for a collective among `ranks` (ids or globs; default: all GPUs).

        GPUs that are not ranks are left out with their links (relays "none"), or stay and may pass
        data on ("idle", "all"; the two differ only where several groups run at once, since only
        then a GPU can be busy without being a rank). Every switch stays.

        Raises `TopologyError` for unknown or repeated ranks, fewer than two, and bandwidths whose
        common unit is so small that the capacities would leave 62 bits.
        """
        chosen = topology.gpus if ranks is None else select_ranks(topology, ranks)
        if len(chosen) < 2:
            raise TopologyError(
                f"topology '{topology.name}': {len(chosen)} rank{'s' * (len(chosen) != 1)}; "
                "a collective needs at least two GPUs"
            )
        if relays not in ("none", "idle", "all"):
            raise TopologyError(f"relays is 'none', 'idle' or 'all', not {relays!r}")
        among = set(chosen)
        nodes = {
            name: node
            for name, node in topology.nodes.items()
            if relays != "none" or node.kind == "switch" or name in among
        }
        links: Sequence[Link] = topology.links
        if len(nodes) < len(topology.nodes):
            links = [link for link in links if link.src in nodes and link.dst in nodes]
        number = {name: i for i, name in enumerate(nodes)}
        bare = CapacityGraph(
            names=tuple(nodes),
            gpu=tuple(node.kind == "gpu" for node in nodes.values()),
            multicast=tuple(node.multicast for node in nodes.values()),
            aggregation=tuple(node.aggregation for node in nodes.values()),
            ranks=tuple(number[name] for name in chosen),
            lacks_gpus=len(nodes) < len(topology.nodes),
        )
        return bare._link(topology.name, *_arcs(links, number))

    def with_bandwidths(
        self, bandwidths: Mapping[tuple[int, int], Fraction], name: str = ""
    ) -> CapacityGraph:
        """The same nodes, link (tail, head) with the given GB/s; the unit is their largest divisor.

        Raises `TopologyError` when the capacities in that unit would leave 62 bits.
        """
        ends = [tail for tail, _ in bandwidths], [head for _, head in bandwidths]
        return self._link(name, *ends, list(bandwidths.values()))

    def _link(
        self, name: str, tail: list[int], head: list[int], bandwidth: list[Fraction]
    ) -> CapacityGraph:
        """The same nodes with these links between different ones, of which there may be millions.

        Most links of a large fabric share a few numbers, as objects too: by them it is quick.
        """
        numbers = {id(value): value for value in bandwidth}
        counts = Counter(map(id, bandwidth))
        unit = _common_unit(name, [(numbers[i], n) for i, n in counts.items()], len(self.ranks))
        units = {i: (value / unit).numerator for i, value in numbers.items()}
        capacity = tuple([units[id(value)] for value in bandwidth])
        return replace(self, tail=tuple(tail), head=tuple(head), capacity=capacity, unit=unit)

    def __hash__(self) -> int:
        """Of a few numbers: there may be millions, and graphs are keys of caches."""
        few = self.tail[:64], self.head[:64], self.capacity[:64]
        return hash((self.n, self.ranks[:64], len(self.tail), *few, self.unit, self.shares[:64]))

    def __repr__(self) -> str:
        return (
            f"<CapacityGraph: {self.n} nodes, {len(self.ranks)} of them ranks, {len(self.tail)} "
            f"links in units of {self.unit} GB/s>"
        )

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def ends(self) -> Iterator[tuple[int, int]]:
        """(tail, head) of every link, in order."""
        return zip(self.tail, self.head, strict=True)

    @property
    def arcs(self) -> Iterator[tuple[int, int, int]]:
        """(tail, head, capacity) of every link, in order."""
        return self.along(self.capacity)

    def along(self, values: Iterable[T]) -> Iterator[tuple[int, int, T]]:
        """(tail, head, value) of every link, in order, where `values` has one for each."""
        return zip(self.tail, self.head, values, strict=True)

    @property
    def wires(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Number of nodes, tails and heads: what the kernel takes of a graph first."""
        return self.n, self.tail, self.head

    @property
    def links(self) -> dict[tuple[int, int], int]:
        """(tail, head) -> units of capacity of the link between the two."""
        return dict(zip(self.ends, self.capacity, strict=True))

    @property
    def numbers(self) -> dict[tuple[int, int], int]:
        """(tail, head) -> the number of the link between the two."""
        return {ends: e for e, ends in enumerate(self.ends)}

    @property
    def rank_of(self) -> dict[int, int]:
        """Node -> the number of its rank."""
        return {node: rank for rank, node in enumerate(self.ranks)}

    @property
    def rank_names(self) -> tuple[str, ...]:
        """The names of the ranks, in their order."""
        return tuple(self.names[v] for v in self.ranks)

    @property
    def node_of(self) -> dict[str, int]:
        """Name -> node."""
        return {name: node for node, name in enumerate(self.names)}

    def keep(
        self,
        links: Sequence[int],
        capacity: Sequence[int] | None = None,
        unit: Fraction | None = None,
    ) -> CapacityGraph:
        """The graph of these links alone, by number; `capacity` of all links, in other units."""
        units = self.capacity if capacity is None else capacity
        return replace(
            self,
            tail=tuple(self.tail[e] for e in links),
            head=tuple(self.head[e] for e in links),
            capacity=tuple(units[e] for e in links),
            unit=self.unit if unit is None else unit,
        )

    def restrict(self, nodes: Sequence[int], links: Mapping[tuple[int, int], int]) -> CapacityGraph:
        """The graph of these nodes in this order, with these links between them (units)."""
        place = {v: i for i, v in enumerate(nodes)}
        return CapacityGraph(
            names=tuple(self.names[v] for v in nodes),
            gpu=tuple(self.gpu[v] for v in nodes),
            multicast=tuple(self.multicast[v] for v in nodes),
            aggregation=tuple(self.aggregation[v] for v in nodes),
            ranks=tuple(place[v] for v in self.ranks if v in place),
            tail=tuple(place[u] for u, _ in links),
            head=tuple(place[v] for _, v in links),
            capacity=tuple(links.values()),
            unit=self.unit,
        )

    def induce(self, nodes: Sequence[int]) -> CapacityGraph:
        """The graph of these nodes in this order, with all links between them."""
        among = set(nodes)
        return self.restrict(
            nodes, {(u, v): c for u, v, c in self.arcs if u in among and v in among}
        )

    @property
    def copies(self) -> bool:
        """Whether some switch copies or adds."""
        return any(self.multicast) or any(self.aggregation)

    @property
    def plain(self) -> CapacityGraph:
        """The same where GPUs alone copy and add: switches only pass on, as in most plans."""
        if not self.copies:
            return self
        no = (False,) * self.n
        return replace(self, multicast=no, aggregation=no)

    @property
    def parts(self) -> tuple[int, ...]:
        """Per rank its part of the data (allgather, reduce-scatter); all 1 where they are equal."""
        return self.shares or (1,) * len(self.ranks)

    def parts_in(self, nodes: frozenset[int]) -> int:
        """The parts of all ranks in `nodes` together: how many they are, where parts are equal."""
        return sum(p for v, p in zip(self.ranks, self.parts, strict=True) if v in nodes)

    def bandwidth(self, link: int) -> Fraction:
        """GB/s of link `link`, exact."""
        return self.capacity[link] * self.unit

    def box(self, node: int) -> str:
        """The box (host) that holds `node`: what stands before the last "/" of its id, or ""."""
        return self.names[node].rpartition("/")[0]

    @property
    def boxes(self) -> tuple[str, ...]:
        """The box of each rank."""
        return tuple(self.box(node) for node in self.ranks)

    def reverse(self) -> CapacityGraph:
        """The same graph with every link turned round (multicast and aggregation trade places)."""
        return replace(
            self,
            multicast=self.aggregation,
            aggregation=self.multicast,
            tail=self.head,
            head=self.tail,
        )

    def outside(self, nodes: frozenset[int]) -> frozenset[int]:
        """All other nodes."""
        return frozenset(range(self.n)) - nodes

    def crossing(self, nodes: frozenset[int], values: Iterable[T]) -> list[T]:
        """The value of each link from inside `nodes` to outside."""
        return [value for u, v, value in self.along(values) if u in nodes and v not in nodes]

    def leaving(self, nodes: frozenset[int]) -> Fraction:
        """GB/s of all links from inside `nodes` to outside, exact."""
        return sum(self.crossing(nodes, self.capacity)) * self.unit

    def check_connected(self) -> None:
        """Nothing when every rank can send to every other; else `InfeasibleError` with the cut."""
        names, ranks = self.names, self.rank_names
        arcs = ((names[t], names[h]) for t, h in self.ends)
        cut = find_cut(names, arcs, ranks)
        if cut is not None:
            raise InfeasibleError(cut_in_words(cut[0], ranks, order=names))

    def explain_cut(self, cut: frozenset[int]) -> str:
        """Which ranks cannot reach which, where no link leaves `cut`."""
        inside = frozenset(self.names[v] for v in cut)
        return cut_in_words(inside, self.rank_names, order=self.names)


def _arcs(
    links: Sequence[Link], number: Mapping[str, int]
) -> tuple[list[int], list[int], list[Fraction]]:
    """(tails, heads, GB/s) of every direction of the links, parallel ones added up."""
    tail: list[int] = []
    head: list[int] = []
    rates: list[Fraction] = []
    products: dict[tuple[int, int], Fraction] = {}  # the same object for the same product
    for link in links:
        u, v, rate = number[link.src], number[link.dst], link.bandwidth
        if link.count > 1:
            rate = products.setdefault((id(rate), link.count), rate * link.count)
        tail.append(u)
        head.append(v)
        rates.append(rate)
        if not link.oneway:
            tail.append(v)
            head.append(u)
            rates.append(rate)
    n = len(number)
    if len({u * n + v for u, v in zip(tail, head, strict=True)}) < len(tail):
        merged: dict[tuple[int, int], Fraction] = {}
        for ends, rate in zip(zip(tail, head, strict=True), rates, strict=True):
            merged[ends] = add(merged[ends], rate, "links") if ends in merged else rate
        return [u for u, _ in merged], [v for _, v in merged], list(merged.values())
    return tail, head, rates


def select_ranks(topology: Topology, patterns: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that `patterns` name, in their order: ids, or globs such as "box0/*".

    A glob stands for the GPUs that it matches, in topology order. Raises `TopologyError` for an id
    that is unknown or a switch, a glob that matches no GPU, and a GPU that is named twice.
    """
    gpus = topology.gpus
    chosen: dict[str, str] = {}
    for pattern in patterns:
        if pattern in topology.nodes:
            if topology.nodes[pattern].kind == "switch":
                raise TopologyError(f"rank '{pattern}' is a switch; ranks are GPUs")
            matches = [pattern]
        elif is_glob(pattern):
            matches = [*filter(matcher(pattern), gpus)]
            if not matches:
                raise TopologyError(
                    f"no GPU of '{topology.name}' matches '{pattern}'; they are called "
                    f"'{gpus[0]}' to '{gpus[-1]}'"
                )
        else:
            raise TopologyError(f"unknown rank '{pattern}'{_guess_gpu(pattern, gpus)}")
        for gpu in matches:
            if gpu in chosen:
                again = f", by '{chosen[gpu]}' and '{pattern}'" if chosen[gpu] != pattern else ""
                raise TopologyError(f"rank '{gpu}' is given twice{again}")
            chosen[gpu] = pattern
    return tuple(chosen)


def _guess_gpu(pattern: str, gpus: Sequence[str]) -> str:
    """What an unknown rank probably stands for: GPUs by number ("3", "0-3"), or a slip."""
    numbers = re.fullmatch(r"(\d{1,6})(?:\s*(?:-|\.\.|:)\s*(\d{1,6}))?", pattern)
    if numbers is None:
        return did_you_mean(pattern, gpus)
    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
    if not first <= last < len(gpus):
        return f"; ranks are named by id: there are {len(gpus)} GPUs, '{gpus[0]}' to '{gpus[-1]}'"
    named = gpus[first : last + 1]
    listed = ",".join(named) if len(named) <= 8 else f"{named[0]},...,{named[-1]}"
    return f"; ranks are named by id or glob: did you mean '{listed}'?"


def is_symmetric(graph: CapacityGraph) -> bool:
    """Whether every link has the same capacity in both directions."""
    capacity = graph.links
    return all(capacity.get((v, u)) == c for (u, v), c in capacity.items())


def is_balanced(graph: CapacityGraph) -> bool:
    """Whether every node that is no rank receives as much as it sends."""
    if graph.n == len(graph.ranks):
        return True
    surplus = [0] * graph.n
    for tail, head, capacity in graph.arcs:
        surplus[tail] -= capacity
        surplus[head] += capacity
    for node in graph.ranks:
        surplus[node] = 0
    return not any(surplus)


def require_size(capacity: list[int] | tuple[int, ...], factor: int) -> None:
    """UnsupportedError where flows over `capacity`, `factor` times over, would leave int64."""
    if sum(capacity) * factor >= CAPACITY_LIMIT:
        raise UnsupportedError(
            f"the links add up to {sum(capacity)} units, times {factor}: too many for exact 64-bit "
            "flows (limit 2^62); give bandwidths with fewer digits, or fewer trees per root"
        )


def _common_unit(name: str, links: Sequence[tuple[Fraction, int]], ranks: int) -> Fraction:
    """The largest bandwidth of which every link is a whole multiple; `links`: (GB/s, how many)."""
    limit = CAPACITY_LIMIT // max(1, ranks)
    most = max((bandwidth * count for bandwidth, count in links), default=Fraction(0))
    # Dividing only ever makes the unit smaller, so the first excess settles it: the unit of many
    # unrelated fractions, and then their sum, never get to grow without bound.
    unit = Fraction(0)
    examples: list[Fraction] = []
    for bandwidth in dict.fromkeys(bandwidth for bandwidth, _ in links):
        (a, b), (c, d) = unit.as_integer_ratio(), bandwidth.as_integer_ratio()
        finer = Fraction(math.gcd(a * d, c * b), b * d)
        if finer != unit:
            examples.append(bandwidth)
        unit = finer
        if most >= limit * unit:
            raise _no_unit(name, examples, links)
    if unit and sum((bandwidth / unit).numerator * count for bandwidth, count in links) >= limit:
        raise _no_unit(name, examples, links)
    return unit if links else Fraction(1)


def _no_unit(
    name: str, examples: Sequence[Fraction], links: Sequence[tuple[Fraction, int]]
) -> TopologyError:
    """The error that says which bandwidths have no common unit."""
    largest = max(bandwidth for bandwidth, _ in links)
    culprits = list(dict.fromkeys((*examples[-2:], largest)))
    return TopologyError(
        f"topology '{name}': bandwidths {', '.join(map(_shorten, culprits))} GB/s have no "
        "common unit that keeps the sum of all capacities, times the number of ranks, "
        "under 2^62; round them to fewer digits"
    )


def _shorten(value: Fraction) -> str:
    """`value`, of a long number what it is about."""
    text = show(value)
    return text if len(text) <= 90 else f"about {decimal(value)}"
