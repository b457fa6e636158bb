"""The solver's answer: which trees carry which share of the data over which links."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective

Phase = Literal["broadcast", "reduce"]
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """`weight` equal spanning trees. Each edge is a path of nodes in the direction in which data flows.

    First and last node of a path are ranks (nodes, not rank numbers); between them are switches or
    relaying GPUs. Broadcast: data flows from `root` and the edges are in an order in which each
    path's first node has been reached; reduce: towards `root`, the edges in such an order that a
    node's incoming edges all come before its outgoing one.
    """

    root: int
    phase: Phase
    weight: int
    edges: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """Why nothing beats `algbw` (GB/s).

    method "cut":        `parts` holds one node set S. allgather: algbw <= N * leaving(S) / ranks in S;
                         reduce-scatter the same with what enters S; broadcast: S holds the root and
                         not all ranks, algbw <= leaving(S); reduce: the same with what enters S;
                         allreduce: S holds some but not all ranks, algbw <= leaving(S) and <= entering(S).
    method "partition":  allreduce. `parts` are m >= 2 disjoint node sets with a rank in each; every
                         tree enters m - 1 of them in each phase, so
                         algbw <= sum of entering(P) / (2 (m - 1)), and the same with leaving.
    method "linear-program": the optimum over sub-capacities c <= b that are balanced (in = out) at every
                         switch, proven by its dual: cuts `parts` with `weights` y >= 0 and a
                         potential p per switch (`potentials`, others 0). With
                         z(e) = max(0, sum of y over the cuts that link e = (u, v) leaves + p(u) - p(v)),
                         allgather: sum of y * ranks in the cut = 1 and algbw <= N * sum of b(e) z(e);
                         broadcast: every cut holds the root, sum of y = 1, algbw <= sum of b(e) z(e).
                         Reduce-scatter and reduce: the same on the reversed graph.
    """

    algbw: Fraction
    method: Literal["cut", "partition", "linear-program"]
    parts: tuple[frozenset[int], ...] = ()
    weights: tuple[Fraction, ...] = ()  # linear-program: one per part
    potentials: tuple[tuple[int, Fraction], ...] = ()  # linear-program: (switch, p)


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees for one collective on one graph. A tree carries the share weight / total of all data."""

    name: str  # of the topology
    graph: CapacityGraph
    collective: Collective
    total: int
    trees: tuple[Tree, ...]
    bound: Bound | None = None
    root: int = -1  # rank number, for broadcast and reduce

    def share(self, tree: Tree) -> Fraction:
        """The fraction of the collective's total data that `tree` carries."""
        return Fraction(tree.weight, self.total)
