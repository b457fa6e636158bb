"""The links that a program's ranks use: capacity, rule, latency, and the ways between ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from fractions import Fraction
from itertools import pairwise
from operator import is_
from typing import NamedTuple

from forestcoll.common.errors import PlanError, TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Program
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import Pair, Path, Routes, kept_routes
from forestcoll.topology import Topology
from forestcoll.verify.simulate.options import RULES, Options, Rule

Where = Topology | Forest | CapacityGraph | Routes
"""What a program runs on: a topology; a forest's graph, over the ways of its trees; a graph; or
one with the ways of an all-to-all's paths."""
Latencies = Mapping[tuple[str, str], Fraction]
"""(from, to) -> microseconds over a link, as `Topology.latencies` gives them."""
Stages = tuple[tuple[int, ...], ...]
"""Links that are crossed one stage after the other; those of a stage at once."""


class Way(NamedTuple):
    """Links of the stages, and microseconds that the last byte takes beyond their rates.

    `lead`: microseconds before the first byte sets off.
    """

    stages: Stages
    latency: float
    lead: float = 0.0


class Fabric:
    """The links of a graph with their rules and latencies; `ways` are those between ranks."""

    def __init__(
        self,
        graph: CapacityGraph,
        topology: Topology | None,
        forest: Forest | Routes | None,
        options: Options,
        latencies: Latencies | None = None,
        signal: float = 0.0,
    ) -> None:
        self.graph = graph
        named = topology or forest
        self.machine = getattr(named, "name", "")
        self.number = graph.numbers
        self.bandwidth = [float(graph.bandwidth(e)) for e in range(len(graph.tail))]  # GB/s
        self._topology = topology
        self.latencies = _latencies(graph, latencies, topology, options)
        self._signal = signal
        self._routes = forest if isinstance(forest, Routes) else kept_routes(graph, forest)
        self._ways: dict[Pair, list[tuple[Way, int]]] = {}

    def set_rule(self, rule: Rule | None) -> None:
        """That of all links, which there is none of before; None: of each its own."""
        self.rules = _rules(self.graph, self._topology, rule)

    def ways(self, source: int, target: int) -> list[tuple[Way, int]]:
        """The ways from rank `source` to rank `target`, each with its weight."""
        pair: Pair = (source, target)
        if pair not in self._ways:
            paths = self._routes.split.get(pair) or ((self._routes.ways[pair], 1),)
            self._ways[pair] = [(self.way(path), weight) for path, weight in paths]
        return self._ways[pair]

    def way(self, path: Path) -> Way:
        """The way over these nodes."""
        return self.over(tuple((self.number[ends],) for ends in pairwise(path)))

    def over(self, stages: Stages) -> Way:
        """The way over these links; its latency is also that of what tells of the end."""
        return Way(stages, self._delay(stages) + self._signal)

    def answer(self, stages: Stages) -> Way:
        """The way of what is read over these links: a request has to come to the source first.

        It takes the links the other way (as long as over these where there are none), and nothing
        tells of the end of a read.
        """
        graph, number = self.graph, self.number
        back = [[number.get((graph.head[e], graph.tail[e]), e) for e in some] for some in stages]
        return Way(stages, self._delay(stages), self._delay(back))

    def _delay(self, stages: Sequence[Sequence[int]]) -> float:
        return sum(max(self.latencies[link] for link in some) for some in stages)

    def switch(self, ranks: tuple[int, ...]) -> int:
        """The switch that copies and adds for all these ranks: a neighbour of each, both ways."""
        graph, nodes = self.graph, [self.graph.ranks[r] for r in ranks]
        for able in (True, False):
            for v in range(graph.n):
                joined = all((n, v) in self.number and (v, n) in self.number for n in nodes)
                if joined and not graph.gpu[v] and able in (graph.multicast[v], False):
                    return v
        names = ", ".join(graph.names[v] for v in nodes[:4])
        raise PlanError(f"no switch is linked to all of {names}{', ...' * (len(nodes) > 4)}")


Told = tuple[object, ...]
_fabrics: deque[tuple[Told, Told, Fabric]] = deque(maxlen=16)
"""Those that plans are played on in turn, without a rule: what they are of, for whom, and they."""


def fabric(
    program: Program,
    topology: Where,
    rule: Rule | None,
    options: Options,
    links: Topology | Latencies | None = None,
) -> Fabric:
    """The fabric of a topology, of a graph, or of that of a forest or of routes, over their ways.

    `links`: says rules and latencies of a forest's or graph's links, which state none; or the
    latencies.

    Raises PlanError where its ranks are not the program's.
    """
    signal = options.hop((program.style, program.protocol))
    stated, latencies = (links, None) if isinstance(links, Topology) else (None, links)
    told = topology, options, stated
    latencies = latencies and dict(latencies)  # the caller's may change
    ranks = program.n, program.names, signal, latencies
    fabrics = tuple(_fabrics)  # other threads may append
    kept = (f for key, whose, f in fabrics if all(map(is_, key, told)) and whose == ranks)
    if (own := next(kept, None)) is None:
        if isinstance(topology, Topology):
            own = Fabric(graph_of(program, topology), topology, None, options, None, signal)
        else:
            ways = kept_routes(topology) if isinstance(topology, CapacityGraph) else topology
            whose = "its links join"
            if isinstance(ways, Forest):
                ways, whose = ways.expand(), f"the forest of {ways.name} for"
            if len(ways.graph.ranks) != program.n:
                count = len(ways.graph.ranks)
                raise PlanError(f"the plan is for {program.n} ranks, {whose} {count}")
            own = Fabric(ways.graph, stated, ways, options, latencies, signal)
        _fabrics.append((told, ranks, own))
    own = copy(own)
    own.set_rule(rule)
    return own


def graph_of(program: Program, topology: Topology) -> CapacityGraph:
    """The graph whose ranks are the program's: its names, else all GPUs in their order."""
    named = len(program.names) == program.n and all(n in topology.nodes for n in program.names)
    if named:
        return CapacityGraph.from_topology(topology, program.names, relays="all")
    if len(topology.gpus) != program.n:
        raise PlanError(
            f"the plan is for {program.n} ranks; {topology.name} has {len(topology.gpus)} GPUs, "
            "and the plan does not say which of them are its ranks"
        )
    return CapacityGraph.from_topology(topology)


def rule_of(graph: CapacityGraph, tail: int, head: int) -> Rule:
    """What a link does where nothing is said: messages queue at what leaves a box, else share."""
    one, other = graph.box(tail), graph.box(head)
    if one == other:
        return "fair"
    inside = {*graph.boxes} - {""}
    return "fifo" if {one, other} & inside else "fair"


def _rules(graph: CapacityGraph, topology: Topology | None, rule: Rule | None) -> list[int]:
    if rule is not None:
        if rule not in RULES:
            raise TopologyError(f"rule is {', '.join(RULES[:-1])} or {RULES[-1]}, not {rule!r}")
        return [RULES.index(rule)] * len(graph.tail)
    stated = {} if topology is None else topology.rules()
    names = graph.names
    return [
        RULES.index(stated.get((names[t], names[h])) or rule_of(graph, t, h)) for t, h in graph.ends
    ]


def _latencies(
    graph: CapacityGraph, given: Latencies | None, topology: Topology | None, options: Options
) -> list[float]:
    stated = given or (topology.latencies() if topology is not None else None)
    if options.latency is not None or stated is None:
        return [options.latency or 0.0] * len(graph.tail)
    names = graph.names
    ends = [(names[t], names[h]) for t, h in graph.ends]
    if lost := next((pair for pair in ends if pair not in stated), None):
        whose = "" if topology is None else f"{topology.name}: "
        raise TopologyError(
            f"{whose}there is no link from '{lost[0]}' to '{lost[1]}', which the forest has"
        )
    return [float(stated[pair]) for pair in ends]
