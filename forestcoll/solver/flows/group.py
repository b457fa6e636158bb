"""Groups of ranks on one machine, and the certificate that bounds what all reach at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.forest import Phase, Symmetry
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective

Key = tuple[int, Phase]  # group, phase


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
