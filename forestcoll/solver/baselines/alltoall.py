"""All-to-alls that others do: as blocks' ways over ranks, and as loads of links.

direct              every block straight to its rank
direct-ecmp         the same, every block over all of its shortest ways at once
two-level           to the GPU of the own box that stands where the target does, then to its box
two-level-sequence  the same in two phases, the second after the first (Tutel's 2DH)
bruck               to the ranks 1, 2, 4, ... further on: few messages, much of it sent on

Those with flows are lowered to plans. What a plan cannot say (a block over several ways, a barrier
between two phases) is counted on the links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.routes import routes
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import fold
from forestcoll.solver.alltoall.reference_routes import orbit_loads
from forestcoll.solver.alltoall.routes import Flow
from forestcoll.solver.walks import by_box, hops, neighbours

Hop = tuple[int, int]
Phase = Sequence[Hop]
"""Blocks that are under way at once, from rank to rank."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A way that others take. `words`: what it is.

    `flows`: the ranks that each block visits; UnsupportedError where it does not serve. `lowered`:
    whether plans say all of it. `in_turn`: what goes between boxes waits for all that goes inside.
    """

    name: str
    words: str
    flows: Callable[[CapacityGraph], list[Flow]]
    lowered: bool = True
    in_turn: bool = False

    def rate(self, graph: CapacityGraph) -> Fraction:
        """GB/s of algbw by the loads of links.

        Blocks inside a box stay in it where they can; others take all of their shortest ways, and
        where switches do not lead, the NIC of one GPU of the box that they do lead to. Raises
        UnsupportedError as `flows`.
        """
        hops = [hop for flow in self.flows(graph) for hop in pairwise(flow.ranks)]
        boxes = graph.boxes
        local = [(a, b) for a, b in hops if boxes[a] == boxes[b] != ""]
        others = [(a, b) for a, b in hops if not boxes[a] == boxes[b] != ""]
        if self.name.startswith("direct"):  # no way is preferred
            local, others = [], hops
        inner = _loads(_inside(graph), local) if local else None
        if local and inner is None:
            inner = _loads(graph, local)
        network, more = _send_by_proxies(graph, others)
        outer = _loads(graph, network) if network else None
        aside = _loads(_inside(graph), more) if more else None
        first = [] if inner is None else [inner]
        then = [loads for loads in (outer, aside) if loads is not None]
        if self.in_turn:
            return len(graph.ranks) / (_time(graph, first) + _time(graph, then))
        return len(graph.ranks) / _time(graph, [*first, *then])

    def hops(self, graph: CapacityGraph) -> int:
        """Sends of a block that wait for one another, at most; GPUs on its way send it on."""
        ways = routes(graph).ways
        passed = {hop: sum(graph.gpu[node] for node in way[1:]) for hop, way in ways.items()}
        return max(sum(passed[hop] for hop in pairwise(flow.ranks)) for flow in self.flows(graph))


def _time(graph: CapacityGraph, shares: Sequence[Mapping[Hop, Fraction]]) -> Fraction:
    """Nanoseconds until all links are done, for blocks of a byte; loads by the links' ends."""
    total: dict[Hop, Fraction] = defaultdict(Fraction)
    for loads in shares:
        for pair, amount in loads.items():
            total[pair] += amount
    ends = graph.ends
    return max(total.get(pair, Fraction(0)) / graph.bandwidth(e) for e, pair in enumerate(ends))


def _loads(graph: CapacityGraph, hops: Phase) -> dict[Hop, Fraction] | None:
    """Blocks that each link carries, by its ends; None where something cannot get there."""
    n = len(graph.ranks)
    table = [[0] * n for _ in range(n)]
    for a, b in hops:
        table[a][b] += 1
    demand = Demand(graph, tuple(map(tuple, table)))
    folding = fold(demand)
    loads = orbit_loads(demand, folding, "direct") or orbit_loads(demand, folding, "shortest")
    if loads is None:
        return None
    ends = graph.along(folding.link.tolist())
    return {(u, v): loads.get(orbit, Fraction(0)) for u, v, orbit in ends}


def _inside(graph: CapacityGraph) -> CapacityGraph:
    """The graph without links that leave a box."""
    kept = [e for e, (u, v) in enumerate(graph.ends) if graph.box(u) == graph.box(v) != ""]
    return graph.keep(kept)


def _send_by_proxies(graph: CapacityGraph, sends: Phase) -> tuple[list[Hop], list[Hop]]:
    """(hops between ranks that switches join, hops inside boxes to and from the GPU whose NIC does
    it for one that has none). Hops that nobody of the box can do stay as they are."""
    near, number = neighbours(graph.n, graph.ends), graph.rank_of
    joined = [hops(near, [node], lambda v: not graph.gpu[v]) for node in graph.ranks]
    boxes = by_box(graph, graph.ranks)
    mates = {box: [number[v] for v in held] if box else [] for box, held in boxes.items()}
    network: list[Hop] = []
    aside: list[Hop] = []
    for a, b in sends:
        if graph.ranks[b] in joined[a]:
            network.append((a, b))
            continue
        own, far = mates[graph.box(graph.ranks[a])], mates[graph.box(graph.ranks[b])]
        ways = (
            (c, d)
            for c in (a, *own)
            for d in (b, *far)
            if graph.ranks[d] in joined[c] and c not in far
        )
        c, d = next(ways, (a, b))
        network.append((c, d))
        aside += [hop for hop in ((a, c), (d, b)) if hop[0] != hop[1]]
    return network, aside


def direct(graph: CapacityGraph) -> list[Flow]:
    """Every block in one hop."""
    n = len(graph.ranks)
    return [Flow((i, j), 0, 1) for i in range(n) for j in range(n) if i != j]


def two_level(graph: CapacityGraph) -> list[Flow]:
    """Over the GPU of the own box that stands where the target stands in its own.

    Raises UnsupportedError unless there are two or more boxes of as many GPUs.
    """
    number = graph.rank_of
    homes = {box: [number[v] for v in held] for box, held in by_box(graph, graph.ranks).items()}
    if len(homes) < 2 or len({len(members) for members in homes.values()}) > 1 or "" in homes:
        raise UnsupportedError("it is for two or more boxes of as many GPUs")
    box = {rank: members for members in homes.values() for rank in members}
    place = {rank: members.index(rank) for members in homes.values() for rank in members}
    flows = []
    for i in box:
        for j in box:
            if i != j:
                mate = j if box[i] is box[j] else box[i][place[j]]
                flows.append(Flow(tuple(dict.fromkeys((i, mate, j))), 0, 1))
    return flows


def bruck(graph: CapacityGraph) -> list[Flow]:
    """The distance to the target in powers of two, the least first (Bruck et al., 1997)."""
    n = len(graph.ranks)
    flows = []
    for i in range(n):
        for distance in range(1, n):
            steps = [1 << k for k in range(distance.bit_length()) if distance >> k & 1]
            ranks = [i]
            for step in steps:
                ranks.append((ranks[-1] + step) % n)
            flows.append(Flow(tuple(ranks), 0, 1))
    return flows


_RECORDS = (
    Exchange("direct", "every block straight to its rank", direct),
    Exchange("direct-ecmp", "straight, each block over all of its shortest ways", direct, False),
    Exchange("two-level", "inside the box and between boxes, both at once", two_level),
    Exchange(
        "two-level-sequence", "inside the box, and after that between boxes", two_level, False, True
    ),
    Exchange("bruck", "to ranks 1, 2, 4, ... further on", bruck),
)
EXCHANGES: Final = {record.name: record for record in _RECORDS}
"""By name."""


def by_name(name: str) -> Exchange:
    """The record of a name; UnsupportedError that lists them where there is none."""
    if name not in EXCHANGES:
        raise UnsupportedError(
            f"no baseline of an all-to-all is called '{name}', but {', '.join(EXCHANGES)}"
        )
    return EXCHANGES[name]
