"""Operators of PyTorch's engine: functions of the user's, inputs scaled first, and epilogues."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from torch_ranks import ft, needs_gloo, plan_files, run_ranks, torch

from forestcoll import plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower.rounds import lower_rounds, rounds_of
from forestcoll.program.targets import MSCCLPP
from forestcoll.topology import catalog

pytestmark = needs_gloo
COUNT, RANKS = 10_007, 4
FORM = "mscclpp-json"


@pytest.fixture
def path(compiled: Artefacts) -> Path:
    return plan_files(compiled)["allreduce"]


def values(rank: int, dtype: Any) -> Any:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(rank), dtype=dtype)


def larger_by_far(a: Any, b: Any) -> Any:
    """Associative and commutative, and none of torch's."""
    return torch.where(a.abs() >= b.abs(), a, b)


def combined(rank: int, path: Path) -> list[bool]:
    every = [values(r, torch.float64) for r in range(RANKS)]
    right = []
    for function in (larger_by_far, torch.logaddexp):
        mine = every[rank].clone()
        ft.all_reduce(mine, path, op=function)
        right.append(bool((mine - reduce(function, every)).abs().max() < 1e-12))
    return right


def test_a_function_of_two_tensors_is_an_operator(path: Path) -> None:
    assert run_ranks(RANKS, combined, path) == [[True, True]] * RANKS


def scaled(rank: int, path: Path) -> tuple[bool, bool, bool]:
    given = values(rank, torch.float32)
    before, expected, out = given.clone(), given / 3, torch.empty(COUNT)
    ft.all_reduce(expected, path)
    ft.all_reduce(given, path, op=torch.distributed.ReduceOp.PREMUL_SUM(1 / 3), out=out)
    untouched = torch.equal(given, before)
    ft.all_reduce(given, path, op=torch.distributed.ReduceOp.PREMUL_SUM(1 / 3))
    # x / 3 and x * (1 / 3) may differ in their last bit
    return untouched, torch.equal(given, out), torch.allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_inputs_are_scaled_first(path: Path) -> None:
    assert run_ranks(RANKS, scaled, path) == [(True, True, True)] * RANKS


def finished(rank: int, path: Path, op: str) -> tuple[list[tuple[int, int]], bool]:
    plan, parts = ft.load_plan(path, slices=3), []
    given = values(rank, torch.float32)
    expected = given.clone()
    ft.all_reduce(expected, plan, op=op)
    weights = torch.arange(COUNT) % 7 + 1

    def weigh(view: Any, offset: int) -> None:
        parts.append((offset, view.numel()))
        view.mul_(weights[offset : offset + view.numel()])

    ft.all_reduce(given, plan, op=op, epilogue=weigh)
    return parts, torch.equal(given, expected * weights)


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_an_epilogue_comes_once_to_each_element_at_one_rank(path: Path, op: str) -> None:
    """Behind the division of avg, and before the sum goes to others: all have what it leaves."""
    ends = run_ranks(RANKS, finished, path, op)
    assert [same for _, same in ends] == [True] * RANKS
    assert all(parts for parts, _ in ends)  # every rank has its share
    at = 0
    for offset, count in sorted(part for parts, _ in ends for part in parts):
        assert offset == at
        at += count
    assert at == COUNT


def raising(rank: int, path: Path) -> tuple[str, bool]:
    def fail(view: Any, offset: int) -> None:
        raise ValueError("no such layer")

    work = ft.all_reduce(values(rank, torch.float32), path, epilogue=fail, async_op=True)
    said = ""
    try:
        work.wait()
    except Exception as error:
        said = str(error)
    again = torch.ones(COUNT)
    ft.all_reduce(again, path)  # the group is as good as before
    return said, bool((again == RANKS).all())


def test_what_an_epilogue_raises_comes_out_of_wait(path: Path) -> None:
    for said, works in run_ranks(RANKS, raising, path):
        assert "no such layer" in said
        assert works


def refused(rank: int, path: Path, once: Path) -> list[str]:
    def keep(view: Any, offset: int) -> None:
        del view, offset

    said = []
    data = torch.ones(4096)
    whole = torch.ones(4096, dtype=torch.int32)
    for tensor, plan, given in (
        (whole, path, {"op": torch.distributed.ReduceOp.PREMUL_SUM(0.5)}),
        (data, path, {"op": lambda a: a}),
        (data, path, {"op": torch.distributed.ReduceOp.PREMUL_SUM}),
        (data, once, {"epilogue": keep}),
    ):
        try:
            ft.all_reduce(tensor, plan, **given)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_what_is_no_operator_is_refused_before_anything_is_sent(path: Path, tmp_path: Path) -> None:
    graph = CapacityGraph.from_topology(catalog.load("star", {"gpus": str(RANKS)}))
    once = tmp_path / "one-step.mscclpp.json"
    once.write_text(plans.dumps(lower_rounds(next(rounds_of("one step", graph)), MSCCLPP), FORM))
    for said in run_ranks(RANKS, refused, path, once):
        scaled, function, word, epilogue = said
        assert (
            scaled == "UnsupportedError: PREMUL_SUM is for floating-point numbers, not torch.int32"
        )
        assert function.startswith("TypeError: ")
        assert word.startswith("UnsupportedError: unknown operation 'premul_sum'")
        assert "the same sums are made at several ranks; an epilogue takes" in epilogue
