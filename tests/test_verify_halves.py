"""Packets in two halves of scratch: where ranks have unequal scratch, they miss their readers."""

from __future__ import annotations

from pathlib import Path

import interleaving
import programs as pg
import pytest
from notation import parse

from forestcoll.common.errors import ExecutionError, PlanError
from forestcoll.execute import cpu
from forestcoll.plans import dumps, read_plan
from forestcoll.plans.lint import lint
from forestcoll.program import Program
from forestcoll.verify import verify

DEFECTS = Path(__file__).parents[2] / "shared" / "defects"


def with_scratch(program: Program, *chunks: int) -> Program:
    """The program with other sizes of scratch."""
    edits = [f"{r}.scratch = {own}" for r, own in enumerate(chunks)]
    return pg.edit(program, *edits)


def local_packets() -> Program:
    """An allgather by plain puts; each rank's own copy goes through packets in its own scratch."""
    n, text = 3, ["allgather onesided places=out protocol=LL double_scratch=1"]
    for r in range(n):
        text += [f"rank 1 {n} {8 * (r + 1)}\nblock\ncopy_packets i0 -> s0\nunpack s0 -> o{r}"]
        for p in (p for p in range(n) if p != r):
            text += [f"block channels=memory:{p}:0", pg.begin(0), f"put i0 -> o{r}@{p} over=0"]
            text += [pg.end(0)]
    return parse(pg.lines(text))


# --- what is refused


def test_unequal_scratch_that_no_peer_writes_is_right() -> None:
    plan = local_packets()
    assert [r.scratch_chunks for r in plan.ranks] == [8, 16, 24]
    verify(plan)
    assert cpu.run(plan, 4096, iterations=4).wrong == 0
    assert lint(dumps(plan, "mscclpp-json"), "plan").ok


def test_unequal_scratch_of_one_half_is_right() -> None:
    """Without halves nobody's size matters to his peers."""
    assert cpu.run(with_scratch(pg.base("packet_reduce"), 2, 0, 0), 4096, iterations=4).wrong == 0


@pytest.mark.parametrize(("base", "reader"), [("packet_pair", 1), ("packet_pair back=1", 0)])
@pytest.mark.parametrize("writes", [0, 16])
def test_all_who_run_it_agree(base: str, reader: int, writes: int) -> None:
    """What the check refuses gets stuck, or is refused, when it is run for a second launch."""
    plan = with_scratch(pg.base(*base.split()), *([writes, 8] if reader else [8, writes]))
    with pytest.raises(PlanError, match="give all ranks the largest scratch_chunks"):
        verify(plan)
    with pytest.raises(interleaving.Failed, match=r"stuck|race"):
        interleaving.run(plan, 1, launches=2)
    if writes:
        with pytest.raises(PlanError, match="packets beyond rank"):
            cpu.run(plan, 64)
        return
    assert cpu.run(plan, 64, warmup=0, iterations=1, modes=["in-place"]).wrong == 0
    with pytest.raises(ExecutionError, match="the plan is stuck"):
        cpu.run(plan, 64, warmup=0, iterations=2, modes=["in-place"])


def test_lint_names_the_rule_and_the_cure() -> None:
    report = lint(dumps(with_scratch(pg.base("packet_pair"), 0, 8), "mscclpp-json"), "plan")
    found = [f for f in report.findings if f.severity == "error"]
    assert [f.rule for f in found] == ["MPP-SCRATCH-UNEQUAL"]
    assert "give all ranks the largest scratch_chunks" in str(found[0])


HUNG = ("hang-broadcast", "hang-reduce", "oob-allreduce", "star-2.broadcast", "star-2.reduce")


@pytest.mark.parametrize("name", [*HUNG, "fixed-allreduce", "fixed-broadcast"])
def test_plans_that_hung_are_refused_and_right_with_equal_scratch(name: str) -> None:
    path = DEFECTS / f"{name}.mscclpp.json"
    if not path.is_file():
        pytest.skip("the defects' files are not here")
    program = read_plan(path)
    if name in HUNG:
        with pytest.raises(PlanError, match="give all ranks the largest scratch_chunks"):
            verify(program)
    else:
        verify(program)
        assert cpu.run(program, 4096, iterations=4).wrong == 0
