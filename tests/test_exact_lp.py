"""Exact linear programs: every optimum is proven by its dual, and the two ways to it agree."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forestcoll.common.errors import UnsupportedError
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.exact_lp import Program, Row, Solution

COLUMNS = 4


def rows(equality: bool) -> st.SearchStrategy[Row]:
    entries = st.dictionaries(st.integers(0, COLUMNS - 1), st.integers(-3, 3).filter(bool))
    return entries.map(lambda coefficients: Row(coefficients, equality))


programs = st.builds(
    Program,
    upper=st.lists(st.integers(0, 50), min_size=COLUMNS, max_size=COLUMNS),
    cost=st.lists(st.integers(-5, 5), min_size=COLUMNS, max_size=COLUMNS),
    rows=st.builds(list.__add__, st.lists(rows(True), max_size=2), st.lists(rows(False))),
)


@given(program=programs)
def test_both_ways_find_the_same_proven_optimum(program: Program) -> None:
    slow = exact_lp.simplex(program)
    fast = exact_lp.solve(program, scale=50.0)
    assert exact_lp.is_optimal(program, slow)
    assert exact_lp.is_optimal(program, fast)
    assert slow.value == fast.value


def test_a_wrong_basis_is_not_proven() -> None:
    program = Program([3, 5], [1, 1], [Row({0: 1, 1: -1})])  # z0 >= z1
    assert exact_lp.prove(program, ([1], [0], [0])) == Solution(6, [3, 3], [1])
    assert exact_lp.prove(program, ([0], [1], [0])) is None  # z0 = 5 is too much
    assert exact_lp.prove(program, ([], [], [])) is None  # z = 0 is no optimum
    assert exact_lp.prove(program, ([0, 1], [], [0])) is None  # not square


@pytest.mark.parametrize(
    "claim",
    [
        Solution(6, [3, 3], [-1]),
        Solution(7, [3, 4], [1]),
        Solution(6, [4, 2], [1]),
        Solution(4, [2, 2], [1]),
        Solution(2, [3, -1], [1]),
        Solution(6, [1, 5], [1]),
    ],
    ids=["dual sign", "too much", "above its bound", "not optimal", "negative", "row broken"],
)
def test_wrong_claims_are_seen_through(claim: Solution) -> None:
    assert not exact_lp.is_optimal(Program([3, 5], [1, 1], [Row({0: 1, 1: -1})]), claim)


@given(st.data())
def test_square_systems_are_solved_or_singular(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    numbers = st.integers(-4, 4)
    matrix = data.draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=n, max_size=n))
    rhs = data.draw(st.lists(numbers, min_size=n, max_size=n))
    sparse = [{j: a for j, a in enumerate(row) if a} for row in matrix]
    z = exact_lp.solve_square(sparse, rhs)
    if z is None:
        assert determinant(matrix) == 0
        return
    assert determinant(matrix) != 0
    for row, b in zip(matrix, rhs, strict=True):
        assert sum(a * z[j] for j, a in enumerate(row)) == b


def determinant(matrix: list[list[int]]) -> int:
    if not matrix:
        return 1
    minors = ([row[:j] + row[j + 1 :] for row in matrix[1:]] for j in range(len(matrix)))
    return sum((-1) ** j * matrix[0][j] * determinant(minor) for j, minor in enumerate(minors))


def test_a_variable_without_a_limit_must_not_pay() -> None:
    assert not exact_lp.is_optimal(Program([None], [1]), Solution(Fraction(0), [Fraction(0)], []))
    assert exact_lp.is_optimal(Program([None], [-1]), Solution(Fraction(0), [Fraction(0)], []))


def test_a_program_without_a_limit_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no finite optimum"):
        exact_lp.simplex(Program([None], [1]))


def test_simplex_gives_up_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_lp, "PIVOT_LIMIT", 1)
    with pytest.raises(UnsupportedError, match="out of reach"):
        exact_lp.simplex(Program([3, 5], [1, 1]))
