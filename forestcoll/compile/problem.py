"""Problem: the collective that is asked for, on the graph that the solver is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from forestcoll.common import arguments
from forestcoll.common.errors import UnsupportedError, did_you_mean
from forestcoll.program import BY_TREES, Collective

if TYPE_CHECKING:
    from os import PathLike

    from forestcoll.graph.capacity_graph import CapacityGraph, Relays
    from forestcoll.schedule.forest import Forest
    from forestcoll.schedule.latency import Latencies
    from forestcoll.solver import Optimum
    from forestcoll.solver.front import Point
    from forestcoll.topology import Topology

Shares = Sequence[int | str] | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Start:
    """A forest that a search begins with, before its weights are rounded.

    `name`: what notes call it. `point`: the front's of as many trees per root, if it is of those.
    """

    forest: Forest
    name: str
    point: Point | None = None


@dataclass(frozen=True)  # no slots: a cached property needs a place
class Problem:
    """A collective over the ranks of a graph.

    `root`: a rank number, None where the collective has none. `name`: of the expanded topology.
    """

    graph: CapacityGraph
    collective: Collective
    root: int | None = None
    name: str = ""
    topology: Topology | None = field(default=None, repr=False)

    @staticmethod
    def of(
        topology: Topology,
        collective: Collective | str,
        root: str | int | None = None,
        ranks: str | Sequence[str] | None = None,
        relays: Relays = "none",
        shares: Shares | None = None,
    ) -> Problem:
        """The problem of a topology; UnsupportedError, TopologyError where there is none."""
        collective = parse_collective(collective)
        graph = capacity_graph(topology, ranks, relays, shares, collective.two_phases)
        root_rank = parse_root(graph, collective, root)
        return Problem(graph, collective, root_rank, topology.name, topology)

    @cached_property
    def links(self) -> Latencies:
        """Microseconds over each link of the topology; its optimum alone never asks for them."""
        return {} if self.topology is None else self.topology.latencies()

    @property
    def plain(self) -> Problem:
        """The same where GPUs alone copy and add (`CapacityGraph.plain`)."""
        return replace(self, graph=self.graph.plain) if self.graph.copies else self

    def optimum(self) -> Optimum:
        """The best algbw of forests whose GPUs copy and add, and the bound of all schedules."""
        from forestcoll import solver

        return solver.optimum(self.graph, self.collective, self.root)


def topology_of(given: Topology | str | PathLike[str]) -> Topology:
    """A Topology as it is, a name of the catalogue, or a file."""
    from forestcoll.topology.catalog import topology_of as load

    return load(given)


def parse_collective(name: Collective | str) -> Collective:
    """The collective of that name, or UnsupportedError with the nearest one."""
    names = [c.value for c in BY_TREES]
    if name == Collective.ALLTOALL:
        raise UnsupportedError(
            "no trees carry an alltoall; 'forestcoll optimum' and 'forestcoll synthesize' take it "
            "(docs/alltoall.md)"
        )
    try:
        collective = Collective(name)
    except ValueError:
        raise UnsupportedError(
            f"unknown collective {str(name)!r}{did_you_mean(str(name), names)} "
            f"(known: {', '.join(names)})"
        ) from None
    if not collective.phases:
        raise UnsupportedError(f"{collective}: no trees carry it, so no forest is made for it")
    return collective


def parse_any(name: Collective | str) -> Collective:
    """The collective of that name, of trees or of routes; errors as `parse_collective`."""
    return next((c for c in Collective if c == name), None) or parse_collective(name)


def parse_root(graph: CapacityGraph, collective: Collective, root: str | int | None) -> int | None:
    """The rank number of `root` (a node id or rank number; default 0), None if not rooted."""
    if not collective.has_root:
        if root is not None:
            raise UnsupportedError(f"{collective} has no root: leave --root away")
        return None
    names = list(graph.rank_names)
    if root is None:
        return 0
    if str(root) in names:
        return names.index(str(root))
    if not isinstance(root, str) or root.isdecimal():
        number = int(root) if isinstance(root, str) else arguments.whole("root", root, 0)
        if number < len(names):
            return number
        raise UnsupportedError(f"root {root}: the ranks are 0 to {len(names) - 1}")
    raise UnsupportedError(f"root {root!r} is none of the ranks{did_you_mean(root, names)}")


def capacity_graph(
    topology: Topology,
    ranks: str | Sequence[str] | None = None,
    relays: Relays = "none",
    shares: Shares | None = None,
    even: bool = False,
) -> CapacityGraph:
    """What the solver is given. `shares`: the ranks' parts of the data where they differ.

    One amount a rank, in rank order, or "id=amount" for all of them; globs work. `even`: also where
    they do not.
    Raises `TopologyError`.
    """
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.solver.shares import with_shares

    ranks, shares = arguments.ids("ranks", ranks), arguments.amounts("shares", shares)
    return with_shares(
        CapacityGraph.from_topology(topology, ranks=ranks, relays=relays), shares, even
    )
