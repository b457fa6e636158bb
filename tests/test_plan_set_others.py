"""Plans of anybody's in plan sets: taken where fastest, refused where not right."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from graphs import machine
from test_plan_set import K, written

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile import plan_set
from forestcoll.compile.plan_set.others import Other
from forestcoll.compile.problem import capacity_graph
from forestcoll.execute import cpu
from forestcoll.lower import lower, rounds
from forestcoll.lower.nvls import lower_nvls
from forestcoll.program import Collective, Program
from forestcoll.program.targets import MSCCLPP, RCCL, PlanFormat
from forestcoll.solver import multicast, solve
from forestcoll.verify import simulate

STAR = machine("star gpus=4")
GRAPH = capacity_graph(STAR)


def one_step(form: PlanFormat) -> Program:
    first = next(rounds.rounds_of("theirs", GRAPH))
    return rounds.lower_rounds(first, RCCL if form == "msccl-xml" else MSCCLPP)


def file_of(folder: Path, form: PlanFormat, program: Program, **how: Any) -> Path:
    path = folder / f"theirs{plans.FORMATS[form].suffix}"
    path.write_text(plans.dumps(program, form, **how))
    return path


@pytest.fixture
def without_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own sets have only trees, which take two steps."""
    making = import_module("forestcoll.compile.plan_set.make")  # its name is the function's too
    monkeypatch.setattr(making, "rounds_of", lambda name, graph: ())


def one_set(form: PlanFormat, path: Path | None, **how: Any) -> tuple[Any, plan_set.PlanSet]:
    asked = {"formats": (form,), "others": [path] if path else (), **how}
    result = plan_set.make(STAR, "allreduce", K, 64 * K, **asked)
    return result.plans[0], result


@pytest.mark.usefixtures("without_rounds")
@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_it_is_taken_where_it_is_fastest(form: PlanFormat, tmp_path: Path) -> None:
    ours, _ = one_set(form, None)
    path = file_of(tmp_path, form, replace(one_step(form), min_bytes=0, max_bytes=0))
    theirs, result = one_set(form, path)
    first, *rest = theirs.entries
    assert (first.origin, first.candidate.origin.file) == (None, path)
    assert all(entry.origin for entry in rest)
    assert result.notes == [f"{path}: the fastest for {first.low} to {first.high} bytes"]
    for size in (K, 4 * K):
        times = [
            max(t.time for t in simulate.run_each(e.program, STAR, size, simulate.BOTH, links=STAR))
            for e in (first, ours.entries[0])
        ]
        assert 1.2 * times[0] < times[1]
    # with the sizes of its range, written as ours are
    back = plans.loads(first.text, "set")
    assert (back.min_bytes, back.max_bytes) == (first.low, first.high)
    assert cpu.run(back, 4 * K, iterations=3).wrong == 0
    folder = written(result, tmp_path / "set")
    proven = plan_set.check(folder).plans
    assert [plan.made_from is None for plan in proven] == [e.origin is None for e in theirs.entries]
    chosen, *_ = plan_set.choose_plans(folder, (K,), 4)
    assert chosen.forest is None


@pytest.mark.usefixtures("without_rounds")
@pytest.mark.parametrize("place", ["in-place", "out-of-place"])
@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_its_text_stays_as_it_is_where_its_sizes_are_the_range(
    form: PlanFormat, place: Any, tmp_path: Path
) -> None:
    sized = replace(one_step(form), min_bytes=K, max_bytes=4 * K)
    text = plans.dumps(sized, form, in_place=True).replace("theirs", "Theirs")
    path = tmp_path / "plan"
    path.write_text(text)
    made, result = one_set(form, path, place=place)
    assert (made.entries[0].low, made.entries[0].high) == (K, 4 * K)
    assert (made.entries[0].text == text) == (place == "in-place" or form == "msccl-xml")
    plan_set.check(written(result, tmp_path / "set"))


def test_equals_are_ours(tmp_path: Path) -> None:
    path = file_of(tmp_path, "msccl-xml", one_step("msccl-xml"))
    made, result = one_set("msccl-xml", path)
    assert not any(isinstance(entry.candidate.origin, Other) for entry in made.entries)
    assert result.notes == [f"{path}: nowhere the fastest"]


def test_what_is_refused(tmp_path: Path) -> None:
    """Each with the file, and what is wrong."""

    def refuse(
        words: str, form: PlanFormat, program: Program, collective: str = "allreduce", **how: Any
    ) -> None:
        path = file_of(tmp_path, form, program)
        asked = {"formats": ("msccl-xml",), "others": [path], **how}
        with pytest.raises(PlanError, match=rf"^{path}: {words}"):
            plan_set.make(STAR, collective, K, 4 * K, **asked)

    program = one_step("msccl-xml")
    refuse("is for allreduce on 4 ranks; the set is for allgather on 4$", "msccl-xml", program,
           "allgather")  # fmt: skip
    refuse("is for allreduce on 4 ranks; the set is for allreduce on 3$", "msccl-xml", program,
           ranks="gpu[0-2]")  # fmt: skip
    refuse("is MSCCL.. JSON; the set has plans in MSCCL XML alone", "mscclpp-json",
           one_step("mscclpp-json"))  # fmt: skip
    other = replace(program, out_of_place=False)
    refuse("does not serve calls in place and out of place", "msccl-xml", other)
    refuse(
        ".* needs 10 thread blocks, rccl within the budget holds 3; ",
        "msccl-xml",
        program,
        budget={"blocks": 3},
    )
    broadcast = lower(solve(GRAPH, Collective.BROADCAST, 1), RCCL)
    refuse(
        "not right for rccl: .* holds chunk 0 of rank 1's input",
        "msccl-xml",
        broadcast,
        "broadcast",
    )
    wrong = program.edit(lambda r, i: None if i.op == "reduce" and r == 2 else i)
    refuse("not right for rccl: .*RUN-", "msccl-xml", wrong)
    trees = multicast.forest(
        capacity_graph(machine("dgx-h100")), Collective.ALLREDUCE, None, "dgx-h100"
    )
    assert trees is not None
    path = file_of(tmp_path, "mscclpp-json", lower_nvls(trees, MSCCLPP), in_place=True)
    with pytest.raises(PlanError, match="switches copy or add; in a set's plans they do not"):
        plan_set.make("dgx-h100", "allreduce", K, 4 * K, others=[path])
    with pytest.raises(UnsupportedError, match="--with: over 128 ranks plans are not simulated"):
        plan_set.make(machine("star gpus=129"), "allreduce", K, 4 * K, others=[path])


def test_an_all_to_all_takes_one_too(tmp_path: Path) -> None:
    ours = plan_set.make(STAR, "alltoall", K, 4 * K, formats=("msccl-xml",))
    path = tmp_path / "plan.xml"
    path.write_text(ours.plans[0].entries[0].text)
    again = plan_set.make(STAR, "alltoall", K, 4 * K, formats=("msccl-xml",), others=[path])
    assert again.notes == [*ours.notes, f"{path}: nowhere the fastest"]
