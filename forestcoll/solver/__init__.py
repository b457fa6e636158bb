"""Optimum, switch removal, tree packing: a CapacityGraph in, a proven Forest out."""

from forestcoll.solver.compact.forests import solve_compact
from forestcoll.solver.optimum import algbw_of_trees, optimum
from forestcoll.solver.solve import Progress, solve
from forestcoll.solver.task import COMPACT_FROM, Optimum

__all__ = [
    "COMPACT_FROM",
    "Optimum",
    "Progress",
    "algbw_of_trees",
    "optimum",
    "solve",
    "solve_compact",
]
