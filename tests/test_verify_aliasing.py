"""In place, ports and peers find the shorter buffer elsewhere than a plan says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import interleaving
import programs as pg
import pytest

from forestcoll.common.errors import PlanError
from forestcoll.execute import cpu
from forestcoll.plans import dumps, read_plan
from forestcoll.plans.lint import Told, lint
from forestcoll.program import Program
from forestcoll.verify import verify
from forestcoll.verify.check import examine

DEFECTS = Path(__file__).parents[2] / "shared" / "defects"
WRONG = {
    "a port reads the input": pg.direct_allgather(kind="port"),
    "a peer's output is written": pg.base("crossed_reduce_scatter"),
}


def in_place(program: Program) -> Program:
    return replace(program, in_place=True, out_of_place=False)


@pytest.mark.parametrize("name", WRONG)
def test_out_of_place_they_are_right(name: str) -> None:
    program = WRONG[name]
    verify(program)
    assert cpu.run(program, 4096, iterations=2).wrong == 0
    for seed in range(3):
        interleaving.run(program, seed)


@pytest.mark.parametrize("name", WRONG)
def test_in_place_all_agree_that_they_are_wrong(name: str) -> None:
    """The check, the engine with real buffers, and an interpreter that knows nothing of either."""
    program = in_place(WRONG[name])
    with pytest.raises(PlanError) as caught:
        verify(program)
    assert caught.value.rule == "MPP-PLACE"
    assert cpu.run(program, 4096).wrong > 0
    with pytest.raises(interleaving.Failed):
        interleaving.run(program, 1)


def test_every_operand_is_named_once() -> None:
    done, faults = examine(in_place(WRONG["a port reads the input"]))
    assert done is None
    found = list(faults)
    assert {fault.rule for fault in found} == {"MPP-PLACE"}
    # rank 0's part begins the allocation: what its ports read is right
    assert [fault.at for fault in found] == [(r, b, 3) for r in (1, 2) for b in (1, 2)]


def test_ports_may_read_whole_buffers_in_place() -> None:
    """Where input and output are alike, or scratch is read, nothing lies elsewhere."""
    for program in (
        pg.pipelined_broadcast(kind="port"),
        pg.base("reduce_to_root", "kind=port", "chunks=3"),
    ):
        assert program.in_place
        verify(program)
        assert cpu.run(program, 4096, modes=["in-place"]).wrong == 0


def test_lint_says_it_of_a_file_for_calls_in_place() -> None:
    text = dumps(WRONG["a port reads the input"], "mscclpp-json")
    assert lint(text, "plan").ok
    report = lint(text, "plan", told=Told(place="in"))
    assert {f.rule for f in report.findings if f.severity == "error"} == {"MPP-PLACE"}


def test_the_allgather_that_claimed_both_is_refused() -> None:
    path = DEFECTS / "dgx-a100-2.allgather.mscclpp.json"
    if not path.is_file():
        pytest.skip("the defects' files are not here")
    program = read_plan(path)
    with pytest.raises(PlanError, match="a port reads rank 1's input"):
        verify(program)
    verify(replace(program, in_place=False))
    assert cpu.run(program, 4096, modes=["out-of-place"]).wrong == 0
    assert cpu.run(program, 4096, modes=["in-place"]).wrong > 0
    other = read_plan(DEFECTS / "allgather.put-from-output.json")
    verify(in_place(other))
    assert cpu.run(other, 4096, modes=["in-place"]).wrong == 0
    with pytest.raises(PlanError):
        verify(replace(other, in_place=False))
