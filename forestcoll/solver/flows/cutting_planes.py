"""Cutting planes: linear programs with too many rows to write down get those that are missed.

Rounds in floating point come first, each warm from the one before; what they end with is proven in
fractions (`exact_lp`), and the exact answer is searched for missed rows once more, exactly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from forestcoll.common.errors import UnsupportedError
from forestcoll.solver.flows import exact_lp

Values = Sequence[Fraction]
Separate = Callable[[Values, bool], list[dict[int, int]]]
"""Rows (coefficients, sum >= 0) that the values violate; with True only those missed by much."""

ROUNDS = 400
"""Rounds in floating point before what there is goes to the exact stage."""
EXACT_ROUNDS = 40
GRID = 2**26
"""Values in floating point are rounded to this part of the scale before rows are searched."""
SIMPLEX_ROWS = 60
"""The exact simplex, where no proposal can be proven, runs on programs up to this size."""


def solve(
    program: exact_lp.Program, pool: list[dict[int, int]], separate: Separate, scale: int
) -> exact_lp.Solution:
    """The exact optimum of `program` with every row that `separate` can find.

    `pool` holds rows to start from and grows by those that were found; duals come for `program`'s
    own rows, then for those of the pool. `scale` is a typical size of the variables. Raises
    UnsupportedError where no proposal can be proven and the program is too large for the simplex.
    """
    loose = _Loose(program, scale)
    loose.add(pool)
    for _ in range(EXACT_ROUNDS):
        for _ in range(ROUNDS):
            fresh = _unknown(separate(loose.solve(), True), pool)
            if not fresh:
                break
            pool += fresh
            loose.add(fresh)
        rows = program.rows + [exact_lp.Row(row) for row in pool]
        whole = exact_lp.Program(program.upper, program.cost, rows)
        solution = exact_lp.prove(whole, loose.basis()) or _exact(whole, float(scale))
        fresh = separate(solution.primal, False)
        if not fresh:
            return solution
        pool += fresh
        loose.add(fresh)
    raise UnsupportedError("the linear program keeps missing rows: no exact optimum found here")


def _exact(program: exact_lp.Program, scale: float) -> exact_lp.Solution:
    """The exact optimum from proposals made afresh."""
    for options in exact_lp.PROPOSALS:
        solution = exact_lp.prove(program, exact_lp.propose(program, scale, options))
        if solution is not None:
            return solution
    if len(program.rows) + len(program.upper) > SIMPLEX_ROWS:
        raise UnsupportedError("no optimum of the linear program can be proven in fractions here")
    return exact_lp.simplex(program)


def _unknown(rows: list[dict[int, int]], pool: list[dict[int, int]]) -> list[dict[int, int]]:
    """Those of `rows` that the pool does not hold (it may, where a solver's tolerance shows)."""
    known = {frozenset(row.items()) for row in pool}
    return [row for row in rows if frozenset(row.items()) not in known]


class _Loose:
    """The program in floating point; rows may be added between solves."""

    def __init__(self, program: exact_lp.Program, scale: int) -> None:
        with warnings.catch_warnings():  # the bindings' own import warnings concern no caller
            warnings.simplefilter("ignore")
            from ortools.linear_solver import pywraplp
        self.scale = scale
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(
            "primal_feasibility_tolerance: 1e-10 dual_feasibility_tolerance: 1e-10 "
            "use_preprocessing: false"
        )
        self.inf = self.solver.infinity()
        self.variables = [
            self.solver.NumVar(0, self.inf if u is None else u / scale, "") for u in program.upper
        ]
        for variable, cost in zip(self.variables, program.cost, strict=True):
            self.solver.Objective().SetCoefficient(variable, cost)
        self.solver.Objective().SetMaximization()
        self.rows: list[Any] = []
        for row in program.rows:
            self._row(row.coefficients, row.equality)

    def add(self, rows: Sequence[dict[int, int]]) -> None:
        """More rows, sum >= 0."""
        for row in rows:
            self._row(row, equality=False)

    def solve(self) -> Values:
        """The variables, rounded to fractions of the scale."""
        self.solver.Solve()
        step = Fraction(self.scale, GRID)
        values = (variable.solution_value() for variable in self.variables)
        return [max(0, math.floor(v * GRID + 0.5)) * step for v in values]

    def basis(self) -> exact_lp.Basis:
        """Where the last solve stopped."""
        solver = self.solver
        inside, above = solver.BASIC, solver.AT_UPPER_BOUND
        states = [variable.basis_status() for variable in self.variables]
        return (
            [j for j, state in enumerate(states) if state == inside],
            [j for j, state in enumerate(states) if state == above],
            [i for i, row in enumerate(self.rows) if row.basis_status() != inside],
        )

    def _row(self, coefficients: dict[int, int], equality: bool) -> None:
        constraint = self.solver.Constraint(0, 0 if equality else self.inf)
        for j, a in coefficients.items():
            constraint.SetCoefficient(self.variables[j], a)
        self.rows.append(constraint)
