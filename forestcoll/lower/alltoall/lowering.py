"""Routes -> Program: blocks, what lies where at relays, and the thread blocks of every rank.

Rank s's block for t is chunks t k ... t k + k - 1 of its input and s k ... s k + k - 1 of t's
output. What a relay hands on lies in its scratch until then: sorted by where it goes and where it
came from, so that what goes on together lies together and is one message.

A transfer's level is the number of hops before it, and of stages before its own. All are done in
the order of levels, so a step waits only for what stands before it (`lower.fifo` has the argument).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from forestcoll.common.errors import PlanError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.lower import program_of
from forestcoll.lower.alltoall.onesided import TURNS, write_onesided
from forestcoll.lower.fifo import write_fifo
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Limits
from forestcoll.lower.packets import write_packets
from forestcoll.lower.schedule import INPUT, OUTPUT, SCRATCH, Transfer, read
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import Target
from forestcoll.solver.alltoall.routes import MOST_PATHS, Flow, Path, Routes

WAY_OUT = (
    "fewer units (--units 1) or part of the GPUs (--ranks) may fit, another runtime (--target) has "
    "other limits; --format routes writes the paths without any"
)
LOCAL_TURNS = 2
"""Levels after which a relay of a fifo program uses its scratch again: what came in a level has
been sent on in the next one."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many thread blocks share what goes from one rank to another.

    Every unit is cut in `parts`: `width` of them for each of the `stages`, which follow one another
    through the hops, so that the links of all hops are busy at once. A connection deals out those
    of a stage to as many lanes as it has: 1, or what `of` says, at most `width`. `local`: thread
    blocks that copy what a rank sends itself. Where all is one hop, stages wait for nothing: they
    are puts of their own, so that others get on a link that serves one after the other.
    """

    width: int = 1
    local: int = 1
    of: Mapping[tuple[int, int], int] = field(default_factory=dict)
    stages: int = 1

    @property
    def parts(self) -> int:
        """Of a unit."""
        return self.width * self.stages

    def stage(self, part: int) -> int:
        """When a part sets out."""
        return part // self.width

    def lane(self, src: int, dst: int, part: int) -> int:
        """The lane of a part; neighbours share one."""
        return part % self.width * min(self.width, self.of.get((src, dst), 1)) // self.width


ONE = Lanes()


def lower(
    routes: Routes,
    target: Target,
    name: str,
    protocol: Protocol | None = None,
    lanes: Lanes = ONE,
) -> Program:
    """The program that carries the routes out, out of place, within the limits of `target`.

    Raises PlanError where the target cannot hold it, naming rank, figure, limit and a way out, or
    where a path leads through a GPU that is no rank.
    """
    return lower_flows(routes.graph, write_out(routes), routes.units, target, name, protocol, lanes)


def lower_flows(
    graph: CapacityGraph,
    flows: Iterable[Flow],
    units: int,
    target: Target,
    name: str,
    protocol: Protocol | None = None,
    lanes: Lanes = ONE,
) -> Program:
    """The same for flows from rank to rank that give every pair `units`, whatever their links."""
    limits = Limits(target, f"alltoall on {name}", graph.rank_names, 1, WAY_OUT)
    n, k = len(graph.ranks), units * lanes.parts
    if n * k > target.chunks:
        raise limits.refuse("every rank", "chunks in a buffer", n * k, target.chunks)
    chunks = Layout(Collective.ALLTOALL, n, n * k, tuple(range(0, n * k + 1, k)), (), lanes.local)
    fifo, packets = target.style == "fifo", target.style != "fifo" and protocol == "LL"
    turns = 0 if packets else LOCAL_TURNS if fifo else TURNS
    transfers, scratch = transfers_of(flows, n, units, target.count, lanes, turns)
    columns = None
    if fifo:
        ranks, columns = write_fifo(chunks, transfers, scratch, limits, recycles=True)
    elif packets:
        ranks = write_packets(chunks, read(transfers), scratch, limits)
    else:
        if protocol not in (None, "Simple"):
            raise PlanError(f"protocol {protocol}: {target.name} has Simple and LL (packets)")
        ranks = write_onesided(chunks, read(transfers), scratch, limits)
    return program_of(
        ranks, limits, name, chunks, False, protocol=protocol or "Simple", columns=columns
    )


def write_out(routes: Routes) -> Iterator[Flow]:
    """Every pair's paths over ranks, units numbered in the order of the listed paths."""
    graph = routes.graph
    if routes.total > MOST_PATHS:
        raise PlanError(
            f"{routes.total:,} paths are too many for a plan ({MOST_PATHS:,}); "
            "--format routes writes the routes alone"
        )
    number = graph.rank_of
    used: dict[tuple[int, int], int] = defaultdict(int)
    for route in routes.expand():
        stranger = next((v for v in route.path if graph.gpu[v] and v not in number), None)
        if stranger is not None:
            raise PlanError(
                f"a path leads through {graph.names[stranger]}, which is no rank and runs no "
                "plan; leave --relays away"
            )
        ranks = tuple(number[v] for v in route.path if v in number)
        pair = ranks[0], ranks[-1]
        yield Flow(ranks, used[pair], route.units)
        used[pair] += route.units


def edges_of(routes: Routes) -> Iterator[tuple[Path, int]]:
    """The ways from rank to rank that the paths take, over switches, with their units.

    Of several between the same two, ranks in turn begin with another: symmetry maps the first ones
    onto each other, and all at once they would fill the same links.
    """
    number = routes.graph.rank_of
    ways: dict[tuple[int, int], Counter[Path]] = defaultdict(Counter)
    for route in routes.expand():
        stops = [i for i, v in enumerate(route.path) if v in number]
        for a, b in pairwise(stops):
            ways[route.path[a], route.path[b]][route.path[a : b + 1]] += route.units
    for (source, _), counted in ways.items():
        first = number[source] % len(counted)
        yield from (*counted.items(),)[first:]
        yield from (*counted.items(),)[:first]


def transfers_of(
    flows: Iterable[Flow], n: int, units: int, most: int, lanes: Lanes = ONE, turns: int = 0
) -> tuple[_kernel.Transfers, list[int]]:
    """All transfers in their order, and the chunks of scratch that every rank needs.

    `units`: of a block, each of `lanes.parts` chunks; no transfer has more than `most` chunks.
    `turns`: after so many levels scratch is used again; 0: never.
    """
    # part i of a block's units are its chunks i units ... (i + 1) units - 1
    pieces = [
        (replace(flow, first=part * units + low, count=min(most, high - low)), part)
        for flow in flows
        for high in (flow.first + flow.count,)
        for part in range(lanes.parts)
        for low in range(flow.first, high, most)
    ]
    slots, scratch = _slots(pieces, n, lanes, turns)
    relays = any(scratch)
    if lanes.stages > 1 and not relays:
        most = min(most, units * lanes.width)
    units *= lanes.parts
    transfers: list[Transfer] = []
    for number, (flow, part) in enumerate(pieces):
        source, target = flow.ranks[0], flow.ranks[-1]
        places = [(INPUT, target * units + flow.first)]
        places += [(SCRATCH, slots[number, v]) for v in flow.ranks[1:-1]]
        places.append((OUTPUT, source * units + flow.first))
        for hop, (src, dst) in enumerate(pairwise(flow.ranks)):
            transfers.append(
                Transfer(
                    src,
                    dst,
                    *places[hop],
                    *places[hop + 1],
                    flow.count,
                    chunk=source * n * units + target * units + flow.first,
                    tree=(target - source) % n,  # not everybody sends to the same rank at once
                    level=hop + relays * lanes.stage(part),
                    group=lanes.lane(src, dst, part),
                )
            )
    joined = _kernel.Transfers(transfers)
    joined.join(most)
    return joined, scratch


def _slots(
    pieces: Sequence[tuple[Flow, int]], n: int, lanes: Lanes, turns: int
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Where each piece lies in the scratch of the ranks that hand it on, and what each needs.

    What comes in a level lies together. `turns` levels later its place is used again.
    """
    held: list[list[tuple[int, int, tuple[int, ...], int]]] = [[] for _ in range(n)]
    for number, (flow, part) in enumerate(pieces):
        stage = lanes.stage(part)
        for hop in range(1, len(flow.ranks) - 1):
            before, here, after = flow.ranks[hop - 1 : hop + 2]
            out, into = lanes.lane(here, after, part), lanes.lane(before, here, part)
            ends = flow.ranks[-1], flow.ranks[0], flow.first
            order = (after, stage, out, before, into, hop, *ends)
            level = hop - 1 + stage if turns else 0
            held[here].append((level % turns if turns else 0, level, order, number))
    offsets: dict[tuple[int, int], int] = {}
    sizes = []
    for here, found in enumerate(held):
        end = 0
        for _, turn in groupby(sorted(found), key=lambda entry: entry[0]):
            first = end
            for _, together in groupby(turn, key=lambda entry: entry[1]):
                used = first
                for *_, number in together:
                    offsets[number, here] = used
                    used += pieces[number][0].count
                end = max(end, used)
        sizes.append(end)
    return offsets, sizes
