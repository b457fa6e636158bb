"""Linear programs solved exactly: found in floating point, proven in fractions.

    maximise  sum of cost[j] z[j]   with  0 <= z[j] <= upper[j] (None: no limit)
    and each row's  sum of a[j] z[j]  >= 0, or = 0 where the row is an equality.

z = 0 satisfies every row, so a program here is never infeasible. An ordinary solver proposes which
variables rest at a bound and which rows are tight; that choice turns the program into two square
systems of linear equations, one for z and one for the dual, which are solved in integers. Where the
two values agree and both are feasible the optimum is proven, whatever precision the proposal had.

Cutting planes: linear programs with too many rows to write down get those that are missed.

Rounds in floating point come first, each warm from the one before; what they end with is proven in
fractions (`exact_lp`), and the exact answer is searched for missed rows once more, exactly.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from forestcoll.common.errors import UnsupportedError

PROPOSALS = ("", "use_dual_simplex: true", "use_scaling: false")
"""Ways to ask the ordinary solver, in turn, until a proposal can be proven."""
PIVOT_LIMIT = 20_000
"""Pivots of the exact simplex before it gives up (it runs only where no proposal can be proven)."""


@dataclass(frozen=True, slots=True)
class Row:
    """sum of coefficients[j] * z[j] >= 0, or = 0."""

    coefficients: dict[int, int]
    equality: bool = False


@dataclass(slots=True)
class Program:
    """The data of one program. Rows may be appended between solves."""

    upper: list[int | None]
    cost: list[int]
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimal vertex: `value` and `dual` (one multiplier a row) prove each other.

    Sign: multipliers of inequalities are >= 0, and cost[j] + sum over rows of dual * a[j] is
    <= 0 where z[j] = 0, >= 0 where z[j] = upper[j], 0 between.
    """

    value: Fraction
    primal: list[Fraction]
    dual: list[Fraction]


Basis = tuple[list[int], list[int], list[int]]  # variables within bounds, at the upper; tight rows


def glop(parameters: str) -> Any:
    """An ordinary solver of linear programs."""
    with warnings.catch_warnings():  # the bindings' own import warnings concern no caller
        warnings.simplefilter("ignore")
        from ortools.linear_solver import pywraplp
    solver = pywraplp.Solver.CreateSolver("GLOP")
    solver.SetSolverSpecificParametersAsString(parameters)
    return solver


def propose(
    program: Program, scale: float, options: str, cost: Sequence[float] | None = None
) -> Basis:
    """The basis at which an ordinary solver stops; `scale` is a typical size of z.

    `cost`: another objective than the program's.
    """
    loose = Loose(program, scale, options, cost)
    loose.solver.Solve()
    return loose.basis()


class Loose:
    """The program in floating point; rows may be added between solves."""

    def __init__(
        self,
        program: Program,
        scale: float,
        options: str = "",
        cost: Sequence[float] | None = None,
    ) -> None:
        self.scale = scale
        self.solver: Any = glop(
            "primal_feasibility_tolerance: 1e-10 dual_feasibility_tolerance: 1e-10 "
            f"use_preprocessing: false {options}"
        )
        self.inf = self.solver.infinity()
        self.variables = [
            self.solver.NumVar(0, self.inf if u is None else u / scale, "") for u in program.upper
        ]
        for variable, gain in zip(self.variables, cost or program.cost, strict=True):
            self.solver.Objective().SetCoefficient(variable, gain)
        self.solver.Objective().SetMaximization()
        self.rows: list[Any] = []
        self.add(program.rows)

    def add(self, rows: Iterable[Row]) -> None:
        """More rows."""
        for row in rows:
            constraint = self.solver.Constraint(0, 0 if row.equality else self.inf)
            for j, a in row.coefficients.items():
                constraint.SetCoefficient(self.variables[j], a)
            self.rows.append(constraint)

    def solve(self) -> Values:
        """The variables, rounded to fractions of the scale."""
        self.solver.Solve()
        step = Fraction(self.scale) / GRID
        values = (variable.solution_value() for variable in self.variables)
        return [max(0, math.floor(v * GRID + 0.5)) * step for v in values]

    def basis(self) -> Basis:
        """Where the last solve stopped."""
        solver = self.solver
        inside, above = solver.BASIC, solver.AT_UPPER_BOUND
        states = [variable.basis_status() for variable in self.variables]
        return (
            [j for j, state in enumerate(states) if state == inside],
            [j for j, state in enumerate(states) if state == above],
            [i for i, row in enumerate(self.rows) if row.basis_status() != inside],
        )


def vertex(program: Program, basis: Basis) -> list[Fraction] | None:
    """z at `basis`, exactly, feasible or not; None where the basis is no vertex."""
    inside, above, tight = basis
    if len(inside) != len(tight):
        return None
    primal = [Fraction(0)] * len(program.upper)
    for j in above:
        primal[j] = Fraction(program.upper[j] or 0)
    rows = [program.rows[i].coefficients for i in tight]
    rhs = [-sum(int(primal[j]) * a for j, a in row.items()) for row in rows]
    members = set(inside)
    z = solve_square([{j: a for j, a in row.items() if j in members} for row in rows], rhs)
    if z is None:
        return None
    for j, amount in z.items():
        primal[j] = amount
    return primal


def prove(program: Program, basis: Basis) -> Solution | None:
    """The exact vertex of `basis`, or None where it is no vertex or not optimal."""
    primal = vertex(program, basis)
    if primal is None:
        return None
    inside, _, tight = basis
    columns: dict[int, dict[int, int]] = {j: {} for j in inside}
    for i in tight:
        for j, a in program.rows[i].coefficients.items():
            if j in columns:
                columns[j][i] = a
    y = solve_square([columns[j] for j in inside], [-program.cost[j] for j in inside])
    if y is None:
        return None
    dual = [y.get(i, Fraction(0)) for i in range(len(program.rows))]
    value = sum((c * z for c, z in zip(program.cost, primal, strict=True)), Fraction(0))
    solution = Solution(value, primal, dual)
    return solution if is_optimal(program, solution) else None


def is_feasible(program: Program, z: Sequence[Fraction]) -> bool:
    """Whether every row and every limit holds at z, exactly."""
    over, primal = whole(z)
    for row in program.rows:
        slack = sum(a * primal[j] for j, a in row.coefficients.items())
        if slack < 0 or (row.equality and slack):
            return False
    limits = zip(program.upper, primal, strict=True)
    return all(z >= 0 and (upper is None or z <= upper * over) for upper, z in limits)


def is_optimal(program: Program, solution: Solution) -> bool:
    """Whether primal and dual are feasible, exactly, and have the same value."""
    if not is_feasible(program, solution.primal):
        return False
    under, dual = whole(solution.dual)
    gain = [c * under for c in program.cost]
    for row, y in zip(program.rows, dual, strict=True):
        if y < 0 and not row.equality:
            return False
        if y:
            for j, a in row.coefficients.items():
                gain[j] += y * a
    bound = 0
    for upper, g in zip(program.upper, gain, strict=True):
        if upper is None and g > 0:
            return False
        if upper is not None:
            bound += max(g, 0) * upper
    return bound == solution.value * under


def whole(values: Sequence[Fraction]) -> tuple[int, list[int]]:
    """A common denominator, and the numerators over it: quicker to add up than fractions."""
    common = math.lcm(*(value.denominator for value in values))
    return common, [value.numerator * (common // value.denominator) for value in values]


def solve_square(rows: list[dict[int, int]], rhs: list[int]) -> dict[int, Fraction] | None:
    """The one solution of sum of row[j] * z[j] = rhs, as {j: z}, or None if there is not one.

    Sparse elimination over the integers: the row with the fewest entries is used up first, and
    every row is divided by its common factor, which keeps the numbers short.
    """
    work = [(dict(row), b) for row, b in zip(rows, rhs, strict=True)]
    holders: dict[int, set[int]] = {}
    for i, (row, _) in enumerate(work):
        for j in row:
            holders.setdefault(j, set()).add(i)
    if len(holders) != len(rows):
        return None
    waiting = set(range(len(rows)))
    order: list[tuple[int, int]] = []
    shortest = [(len(row), i) for i, (row, _) in enumerate(work)]  # some of them out of date
    heapq.heapify(shortest)
    while waiting:
        size, i = heapq.heappop(shortest)
        row, b = work[i]
        if i not in waiting or size != len(row):
            continue
        if not row:
            return None
        j = min(row, key=lambda j: (len(holders[j]), j))
        waiting.discard(i)
        order.append((i, j))
        for other in holders[j] & waiting:
            work[other] = _eliminate(work[other], (row, b), j, other, holders)
            heapq.heappush(shortest, (len(work[other][0]), other))
        for column in row:
            holders[column].discard(i)
    z: dict[int, Fraction] = {}
    for i, j in reversed(order):
        row, b = work[i]
        rest = sum((a * z[column] for column, a in row.items() if column != j), Fraction(0))
        z[j] = (b - rest) / row[j]
    return z


def _eliminate(
    target: tuple[dict[int, int], int],
    pivot: tuple[dict[int, int], int],
    j: int,
    name: int,
    holders: dict[int, set[int]],
) -> tuple[dict[int, int], int]:
    """`target` (row number `name`) without variable j, by subtracting a multiple of `pivot`."""
    (row, b), (source, c) = target, pivot
    common = math.gcd(row[j], source[j])
    up, down = source[j] // common, row[j] // common
    out = {column: a * up for column, a in row.items()}
    for column, a in source.items():
        entry = out.get(column, 0) - a * down
        if entry:
            out[column] = entry
            holders[column].add(name)
        else:
            del out[column]
            holders[column].discard(name)
    value = b * up - c * down
    common = math.gcd(value, *out.values())
    if common > 1:
        out, value = {column: a // common for column, a in out.items()}, value // common
    return out, value


def simplex(program: Program) -> Solution:
    """The optimum by Bland's rule on a dense tableau of fractions: slow, and always right.

    Rows: upper bounds, then inequalities turned to <= 0, equalities twice. Starts at z = 0, which
    is feasible, so there is no first phase. Raises UnsupportedError past PIVOT_LIMIT pivots.
    """
    n = len(program.upper)
    lines: list[tuple[dict[int, int], int]] = []
    origin: list[tuple[int, int]] = []  # (row of the program or -1, sign)
    for j, upper in enumerate(program.upper):
        if upper is not None:
            lines.append(({j: 1}, upper))
            origin.append((-1, 0))
    for i, row in enumerate(program.rows):
        for sign in (-1, 1) if row.equality else (-1,):
            lines.append(({j: sign * a for j, a in row.coefficients.items()}, 0))
            origin.append((i, -sign))
    m = len(lines)
    zero = Fraction(0)
    table = [[zero] * (n + m + 1) for _ in range(m + 1)]
    for i, (coefficients, b) in enumerate(lines):
        for j, a in coefficients.items():
            table[i][j] = Fraction(a)
        table[i][n + i], table[i][-1] = Fraction(1), Fraction(b)
    table[m][:n] = [Fraction(-c) for c in program.cost]
    basis = list(range(n, n + m))
    for _ in range(PIVOT_LIMIT):
        enter = next((j for j in range(n + m) if table[m][j] < 0), None)
        if enter is None:
            break
        _pivot(table, basis, enter)
    else:
        raise UnsupportedError("the exact optimum of the linear program is out of reach here")
    primal, dual = [zero] * n, [zero] * len(program.rows)
    for i, j in enumerate(basis):
        if j < n:
            primal[j] = table[i][-1]
    for line, (i, sign) in enumerate(origin):
        if i >= 0:
            dual[i] += sign * table[m][n + line]
    return Solution(table[m][-1], primal, dual)


def _pivot(table: list[list[Fraction]], basis: list[int], enter: int) -> None:
    """One step of the simplex: `enter` comes in, the first row to run dry goes out (Bland)."""
    m = len(basis)
    tight = [(table[i][-1] / table[i][enter], basis[i], i) for i in range(m) if table[i][enter] > 0]
    if not tight:
        raise UnsupportedError("the linear program has no finite optimum")
    leave = min(tight)[2]
    pivot = table[leave][enter]
    table[leave] = row = [a / pivot for a in table[leave]]
    for i in range(m + 1):
        factor = table[i][enter]
        if i != leave and factor:
            table[i] = [a - factor * b if b else a for a, b in zip(table[i], row, strict=True)]
    basis[leave] = enter


def solve(program: Program, scale: float, largest: int | None = None) -> Solution:
    """The exact optimum: proposed in floating point and proven, or else found by `simplex`.

    Raises UnsupportedError where no proposal can be proven and rows and variables together are more
    than `largest`.
    """
    for options in PROPOSALS:
        solution = prove(program, propose(program, scale, options))
        if solution is not None:
            return solution
    if largest is not None and len(program.rows) + len(program.upper) > largest:
        raise UnsupportedError("no optimum of the linear program can be proven in fractions here")
    return simplex(program)


Values = Sequence[Fraction]
Separate = Callable[[Values, bool], list[dict[int, int]]]
"""Rows (coefficients, sum >= 0) that the values violate; with True only those missed by much.

None that it gave before, though a solver's tolerance may let it be violated again."""

ROUNDS = 400
"""Rounds in floating point before what there is goes to the exact stage."""
EXACT_ROUNDS = 40
GRID = 2**26
"""Values in floating point are rounded to this part of the scale before rows are searched."""
SIMPLEX_ROWS = 60
"""The exact simplex, where no proposal can be proven, runs on programs up to this size."""


def solve_by_cuts(
    program: Program, pool: list[dict[int, int]], separate: Separate, scale: int
) -> Solution:
    """The exact optimum of `program` with every row that `separate` can find.

    `pool` holds rows to start from and grows by those that were found; duals come for `program`'s
    own rows, then for those of the pool. `scale` is a typical size of the variables. Raises
    UnsupportedError where no proposal can be proven and the program is too large for the simplex.
    """
    loose = Loose(program, scale)
    loose.add(map(Row, pool))
    for _ in range(EXACT_ROUNDS):
        for _ in range(ROUNDS):
            fresh = separate(loose.solve(), True)
            if not fresh:
                break
            pool += fresh
            loose.add(map(Row, fresh))
        rows = program.rows + [Row(row) for row in pool]
        whole = Program(program.upper, program.cost, rows)
        solution = prove(whole, loose.basis()) or solve(whole, float(scale), SIMPLEX_ROWS)
        fresh = separate(solution.primal, False)
        if not fresh:
            return solution
        pool += fresh
        loose.add(map(Row, fresh))
    raise UnsupportedError("the linear program keeps missing rows: no exact optimum found here")
