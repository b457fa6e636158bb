"""How long a plan takes for how many bytes, by its links alone: a line.

    time = hops' latency + bytes / algbw

What a hop costs beyond the link is the protocol's (`simulate.Options.hop`). Lines say which
candidates are worth a plan. Messages and thread blocks are not in them, so they are far off at
sizes that a protocol is not for (figures: docs/plans.md): up to RANKS ranks simulated times
decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from forestcoll.compile.plan_set.others import Other
from forestcoll.lower.rounds import Rounds
from forestcoll.program.targets import library_on
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.latency import Latencies, latency
from forestcoll.schedule.routes import routes
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify.dataflow import dataflow, levels
from forestcoll.verify.simulate import DEFAULTS, KINDS, Options
from forestcoll.verify.simulate.options import Kind


@dataclass(frozen=True, slots=True)
class Line:
    """Microseconds: `latency`, and a byte more every 1 / (1000 `algbw`)."""

    latency: Fraction  # us
    algbw: Fraction  # GB/s that the protocol leaves of the forest's plain_algbw

    def time(self, size: int) -> Fraction:
        """Microseconds for `size` bytes, as nccl-tests counts them."""
        return self.latency + size / (1000 * self.algbw)

    def least(self, size: int) -> Fraction:
        """Microseconds that no plan takes less: of the first byte's way, or of all bytes."""
        return max(self.latency, size / (1000 * self.algbw))


def line_of(
    origin: Forest | Routes | Rounds | Other,
    kind: Kind,
    links: Latencies,
    machine: str,
    options: Options = DEFAULTS,
) -> Line:
    """The estimate for programs of that style and protocol; for an allreduce both ways count.

    For routes of an all-to-all that of the longest of them. `machine`: name of the topology, which
    says whose library runs there, and so what of the bandwidth is data: the rest is flags.
    """
    wire = library_on(machine).messages.wire(kind[1])
    hop = Fraction(int(100 * options.hop(kind)), 100)
    first = hop if kind == KINDS[-1] else 0  # what MSCCL++ reads first is not announced
    if isinstance(origin, Routes):
        return Line(_longest_route(origin, hop, links) - first, origin.algbw / wire)
    if isinstance(origin, Rounds):
        return _line_of_rounds(origin, hop, wire, links)
    if isinstance(origin, Other):
        hops = 1 + max(levels(dataflow(origin.program)))  # as many as wait for one another
        algbw = routes(origin.graph).algbw(origin.verified.loads)
        return Line(hops * (hop + min(links.values())) - first, algbw / wire)
    return Line(latency(origin, links, hop) - first, origin.plain_algbw / wire)


def _line_of_rounds(rounds: Rounds, hop: Fraction, wire: Fraction, links: Latencies) -> Line:
    """Each round takes as long as its slowest message; all share the links of their ways."""
    names, ways = rounds.graph.names, routes(rounds.graph)
    slowest = [
        max(
            sum((links[names[u], names[v]] for u, v in pairwise(ways.ways[rank, peer])), Fraction())
            for rank, group in enumerate(groups)
            for peer in group
            if peer != rank
        )
        for groups in rounds.groups
    ]
    latency = sum(slowest, start=hop * len(slowest))
    return Line(latency, ways.algbw(dict.fromkeys(rounds.pairs, Fraction(1))) / wire)


def _longest_route(routes: Routes, own: Fraction, links: Latencies) -> Fraction:
    """Microseconds of the slowest way; `own`: a hop's besides its links'."""
    graph, orbit = routes.graph, routes.group.link
    slowest: dict[int, Fraction] = {}  # of each orbit: images of a path may take any of its links
    number = {}
    for e, (u, v) in enumerate(graph.ends):
        number[u, v] = orbit[e]
        time = links[graph.names[u], graph.names[v]]
        slowest[orbit[e]] = max(time, slowest.get(orbit[e], time))
    return max(
        sum((slowest[number[hop]] for hop in pairwise(route.path)), start=Fraction(0))
        + own * sum(graph.gpu[v] for v in route.path[1:])
        for route in routes.routes
    )
