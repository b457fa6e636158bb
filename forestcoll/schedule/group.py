"""Groups of ranks on one machine, and the certificate that bounds what all reach at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Phase, Symmetry, check

Key = tuple[int, Phase]  # group, phase
Links = dict[tuple[str, str], Fraction]


@dataclass(frozen=True, slots=True)
class Group:
    """What a group has of the machine: the nodes are the machine's, the links a part of its links.

    `links[e]` is the number that link e of `graph` has in the machine. `root` is a rank number.
    """

    graph: CapacityGraph
    links: tuple[int, ...]
    root: int


@dataclass(frozen=True, slots=True)
class WeighedCut:
    """A node set that holds roots of a flow's trees, and its weight."""

    group: int
    phase: Phase
    side: frozenset[int]
    weight: Fraction


@dataclass(frozen=True, slots=True)
class GroupsBound:
    """Why no common algbw is above `algbw` (GB/s); potentials are (group, phase, node, p).

    `solver.flows.dual` says what cuts, potentials and symmetries prove. The image of a symmetry
    counts the groups as nodes behind those of the machine.
    """

    algbw: Fraction
    cuts: tuple[WeighedCut, ...]
    potentials: tuple[tuple[int, Phase, int, Fraction], ...] = ()
    symmetries: tuple[Symmetry, ...] = ()


def flow_keys(groups: Sequence[Group], collective: Collective) -> list[Key]:
    """Every flow of the groups: one for each phase, broadcast trees before reduce trees."""
    return [(g, phase) for g in range(len(groups)) for phase in sorted(collective.phases)]


def whole_group(graph: CapacityGraph, root: int | None = None) -> Group:
    """All ranks of a graph as one group."""
    return Group(graph, tuple(range(len(graph.tail))), root or 0)


@dataclass(frozen=True, slots=True)
class Together:
    """What several groups do at once. `forests[g]` is group g's, on what it has of the links.

    A forest's topology holds the links that its trees use, with the bandwidth that is reserved for
    them; on these it reaches `algbw` and is optimal. `bound` says what no common algbw exceeds.
    """

    machine: CapacityGraph
    groups: tuple[Group, ...]
    collective: Collective
    relays: Relays
    algbw: Fraction
    forests: tuple[Forest, ...]
    bound: GroupsBound
    note: str = ""


def check_together(done: Together) -> None:
    """ForestError unless every forest reaches the common algbw, and all at once fit the links."""
    fits(done.machine, done.forests, done.algbw)
    for forest, group in zip(done.forests, done.groups, strict=True):
        expected = tuple(group.graph.names[v] for v in group.graph.ranks)
        given = tuple(forest.graph.names[v] for v in forest.graph.ranks)
        if given != expected:
            raise ForestError(f"{forest.name} is of other ranks than its group")
        if {tree.phase for tree in forest.trees} != set(done.collective.phases):
            raise ForestError(f"{forest.name} is no {done.collective}")


def fits(machine: CapacityGraph, forests: Sequence[Forest], algbw: Fraction) -> None:
    """ForestError unless each forest reaches `algbw` (GB/s) and all of them together fit.

    Everything is recounted from the trees and the machine's own links, by name.
    """
    taken: Links = defaultdict(Fraction)
    for forest in forests:
        reached = check(forest)
        if reached < algbw:
            raise ForestError(f"{forest.name} reaches {reached} GB/s, not the common {algbw}")
        graph = forest.graph
        for u, v, trees in zip(graph.tail, graph.head, forest.loads(), strict=True):
            if trees:
                pair = (graph.names[u], graph.names[v])
                taken[pair] += Fraction(trees, forest.total) * algbw
    bandwidth = {
        (machine.names[u], machine.names[v]): c * machine.unit
        for u, v, c in zip(machine.tail, machine.head, machine.capacity, strict=True)
    }
    for (src, dst), load in taken.items():
        if (src, dst) not in bandwidth:
            raise ForestError(f"a forest uses {src} -> {dst}, which is no link of the machine")
        if load > bandwidth[src, dst]:
            raise ForestError(
                f"{src} -> {dst} would have to carry {load} GB/s for all groups together, "
                f"it has {bandwidth[src, dst]}"
            )
