"""Proof that a forest is what it claims: its trees on one side, its bound on the other."""

from __future__ import annotations

from fractions import Fraction

from forestcoll.errors import ForestError
from forestcoll.forest import Bound, Forest
from forestcoll.forest import check as check_trees
from forestcoll.solver.flows.dual import check_dual
from forestcoll.solver.partitions import check_parts


def check(forest: Forest) -> tuple[Fraction, Fraction | None]:
    """(algbw, bound) in GB/s, both recomputed from the links; the bound None where none is stated.

    Raises ForestError when a tree does not span, shares do not add up, the bound does not follow
    from its certificate, or the trees claim to beat it.
    """
    algbw = check_trees(forest)
    if forest.bound is None:
        return algbw, None
    bound = check_bound(forest, forest.bound)
    if algbw > bound:
        raise ForestError(f"algbw {algbw} is above the bound {bound}: one of the two is wrong")
    return algbw, bound


def check_bound(forest: Forest, bound: Bound) -> Fraction:
    """The bound in GB/s, once its certificate has been recomputed and gives the stated number."""
    prove = check_dual if bound.method == "linear-program" else check_parts
    root = forest.root if forest.collective.rooted else None
    proven = prove(forest.graph, bound, forest.collective, root)
    if proven != bound.algbw:
        raise ForestError(f"states bound {bound.algbw}, its {bound.method} gives {proven}")
    return proven
