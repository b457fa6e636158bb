"""Why no schedule beats an algbw: cuts, partitions, the dual of a linear program."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from forestcoll.program import Phase


@dataclass(frozen=True, slots=True)
class Symmetry:
    """A map of the nodes that keeps the graph: links go to links of the same capacity.

    `turned`: it turns links round, (u, v) to (image[v], image[u]); reduce trees become broadcast
    trees and the other way round, and so do switches that add and switches that copy.
    """

    image: tuple[int, ...]  # per node
    turned: bool = False

    def __repr__(self) -> str:
        return f"<Symmetry of {len(self.image)} nodes{', turned' * self.turned}>"


@dataclass(frozen=True, slots=True)
class Bound:
    """Why nothing beats `algbw` (GB/s).

    "cut": `parts` holds one node set S.
        allgather: algbw <= N * leaving(S) / ranks in S; reduce-scatter: the same with entering(S)
        (here and below, where ranks have parts of their own: the sum of parts for N, the parts of
        the ranks in S for their number);
        broadcast: S holds the root, not all ranks, algbw <= leaving(S); reduce: with entering(S);
        allreduce: S holds some, not all ranks, algbw <= leaving(S) and <= entering(S).
    "partition": allreduce.
        `parts` are m >= 2 disjoint node sets, a rank in each and every rank in one; every tree
        enters parts m - 1 times in each phase: algbw <= sum of entering(P) / (2 (m - 1)), or / m
        where a node outside of all parts aggregates; the same with leaving (outside: multicasts).
    "linear-program": the optimum over sub-capacities c <= b that are balanced (in = out) at every
        switch, proven by its dual: cuts `parts` with `weights` y >= 0 and a potential p per switch
        (`potentials`, others 0). With z(e) = max(0, sum of y over the cuts that link e = (u, v)
        leaves + p(u) - p(v)):
        allgather: sum of y * ranks in the cut = 1 and algbw <= N * sum of b(e) z(e);
        broadcast: every cut holds the root, sum of y = 1, algbw <= sum of b(e) z(e);
        reduce-scatter and reduce: the same on the reversed graph;
        allreduce: each cut is one of broadcast trees or of reduce trees (`phases`), and holds some,
        not all ranks. The pressure on a link is counted apart for each phase: on broadcast trees as
        above; on reduce trees, y of the cuts that the link enters, and p(v) - p(u). z(e) is the
        larger of the two, or 0; every rank is in cuts of total weight 1 or more, both phases
        together, and algbw <= sum of b(e) z(e). Potentials of broadcast trees are >= 0 where the
        switch multicasts, those of reduce trees (`reduce_potentials`) where it aggregates.
        `symmetries` say which links and ranks are alike: pressures and weights then only have to
        hold on the average over those that are (`schedule.dual` says why).
    """

    algbw: Fraction
    method: Literal["cut", "partition", "linear-program"]
    parts: tuple[frozenset[int], ...] = ()
    weights: tuple[Fraction, ...] = ()  # linear-program: one per part
    potentials: tuple[tuple[int, Fraction], ...] = ()  # linear-program: (switch, p)
    phases: tuple[Phase, ...] = ()  # linear-program of allreduce: one per part
    reduce_potentials: tuple[tuple[int, Fraction], ...] = ()  # linear-program of allreduce
    symmetries: tuple[Symmetry, ...] = ()  # linear-program of allreduce

    def __repr__(self) -> str:
        return f"<Bound {self.algbw} GB/s, by {self.method}>"
