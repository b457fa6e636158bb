"""`forestcoll.torch` checks what it is given, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts

from forestcoll.common.errors import ArgumentError, ForestCollError
from forestcoll.program import Program

torch = pytest.importorskip("torch")
ft = pytest.importorskip("forestcoll.torch")


@pytest.fixture(scope="module")
def plan(compiled: Artefacts) -> Program:
    return compiled("ring gpus=4", "allreduce").programs["mscclpp-json"]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process only."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_plans_of_the_wrong_kind(plan: Program) -> None:
    tensor = torch.zeros(4)
    for given, text in (
        (5, "plan must be a Plan or the path of a plan file, not 5"),
        (None, "plan must be a Plan or the path of a plan file, not None"),
        (plan, "not a Program; prove it once: Plan(program)"),
        ("none.xml", "none.xml: cannot be read"),
        (Path("none.xml"), "none.xml: cannot be read"),
    ):
        for act in (
            lambda given=given: ft.all_reduce(tensor, given),
            lambda given=given: ft.all_gather_into_tensor(tensor, tensor, given),
            lambda given=given: ft.reduce_scatter_tensor(tensor, tensor, given),
            lambda given=given: ft.broadcast(tensor, given),
            lambda given=given: ft.reduce(tensor, given),
            lambda given=given: ft.comm_hook(given),
            lambda given=given: ft.install([given]),
        ):
            with pytest.raises(ForestCollError) as caught:
                act()
            assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"program": "x.xml"},
            "program must be a Program, not 'x.xml'; a file's path is for load_plan",
        ),
        ({"slices": 0}, "slices must be at least 1, not 0"),
        ({"slices": "4"}, "slices must be a whole number, not '4'"),
        ({"lead": 1.5}, "lead must be a whole number, not 1.5"),
    ],
)
def test_plan(given: dict[str, Any], text: str, plan: Program) -> None:
    with pytest.raises(ArgumentError) as caught:
        ft.Plan(**({"program": plan} | given))
    assert str(caught.value) == text


def test_load_plan() -> None:
    with pytest.raises(ArgumentError, match="path must be the path of a file, not 5"):
        ft.load_plan(5)
    with pytest.raises(ForestCollError, match="slices must be a whole number, not 'x'"):
        ft.load_plan("none.xml", slices="x")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"min_bytes": "1K"}, "min_bytes must be a whole number, not '1K'"),
        ({"max_bytes": -1}, "max_bytes must be at least 0, not -1"),
        ({"dtypes": "float23"}, "dtypes has 'float23', which is no type of torch's"),
        ({"dtypes": ["zeros"]}, "dtypes has 'zeros', which is no type of torch's"),
        ({"ops": "summ"}, "unknown operation 'summ'; did you mean 'sum'?"),
    ],
)
def test_rules(rule: dict[str, Any], text: str, plan: Program) -> None:
    with pytest.raises(ForestCollError) as caught:
        ft.install(ft.Rule(ft.Plan(plan), **rule))
    assert str(caught.value) == text


def test_one_word_is_a_list_of_one(plan: Program) -> None:
    """The plan is for 4 ranks, and the group has 1: what comes after the rules were read."""
    rule = ft.Rule(ft.Plan(plan), dtypes="float32", ops="sum")
    with pytest.raises(ForestCollError, match="is for 4 ranks, but the process group has 1"):
        ft.install(rule)
    with pytest.raises(ArgumentError, match="plans must be plans, rules or paths, not 5"):
        ft.install(5)


def test_communicator(plan: Program) -> None:
    for given, text in (
        (("x.xml", 4), "x.xml: cannot be read"),
        ((5, 4), "plan must be a Program or the path of a plan file, not 5"),
        ((plan, "4"), "numel must be a whole number, not '4'"),
        ((plan, 4, "float32"), "dtype must be a dtype, not 'float32', such as torch.float32"),
        ((plan, 4), "the plan is for 4 ranks, the group has 1"),
    ):
        with pytest.raises(ForestCollError) as caught:
            ft.gpu.Communicator(*given)
        assert text in str(caught.value)


def test_every_reduction_operator_has_a_row() -> None:
    from forestcoll.execute.torch.operators import OPERATORS
    from forestcoll.program import REDUCTIONS

    assert tuple(OPERATORS) == REDUCTIONS
