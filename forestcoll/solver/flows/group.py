"""The values that problems of several groups are made of."""

from __future__ import annotations

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


def phases(collective: Collective) -> tuple[Phase, ...]:
    """The phases whose trees a collective needs."""
    if collective is Collective.ALLREDUCE:
        return ("reduce", "broadcast")
    return ("reduce",) if collective.reduces else ("broadcast",)
