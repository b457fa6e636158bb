"""Optimum, switch removal, tree packing: a CapacityGraph in, a proven Forest out."""

from forestcoll.solver.fixed import fixed_algbw
from forestcoll.solver.optimum import Optimum, optimum
from forestcoll.solver.symmetry import COMPACT_FROM, solve_compact
from forestcoll.solver.synthesis import Progress, solve

__all__ = [
    "COMPACT_FROM",
    "Optimum",
    "Progress",
    "fixed_algbw",
    "optimum",
    "solve",
    "solve_compact",
]
