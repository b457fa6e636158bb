"""Spoiled programs: an answer in bounded time, never a crash, never a false success."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import programs as pg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from notation import build, line_of, parse, slip, tree_of, wild

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.execute.cpu import run
from forestcoll.program import Pipeline, Program
from forestcoll.verify import verify

GOOD = pg.all_good()


def spoil(rng: random.Random, program: Program) -> Program:
    """The program with a mistake as a programmer makes it, or with nonsense."""
    whole = tree_of(program)
    (slip if rng.random() < 0.7 else wild)(whole, rng)
    with suppress(ForestCollError):
        return build(whole)
    return program


def outcome(program: Program, size: int, **options: object) -> str:
    """What came of a run: right, wrong or the error's class."""
    begin = time.monotonic()
    try:
        result = run(program, size, timeout=20, **options)  # type: ignore[arg-type]
    except ForestCollError as error:
        found = type(error).__name__
    else:
        found = "wrong" if result.wrong else "right"
        assert bool(result.mismatches) == bool(result.wrong)
    assert time.monotonic() - begin < 15
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(sorted(GOOD)), st.integers(1, 3))
def test_spoiled_programs_get_an_answer(seed: int, name: str, changes: int) -> None:
    rng = random.Random(seed)
    program = GOOD[name]
    for _ in range(changes):
        program = spoil(rng, program)
    outcome(
        program, rng.choice([1, 100, 3000]), slots=rng.choice([1, 2]), threads=rng.choice([1, 2])
    )


def test_the_spoiling_meets_every_kind_of_answer() -> None:
    rng = random.Random(7)
    names = sorted(GOOD)
    found = {outcome(spoil(rng, GOOD[rng.choice(names)]), 2000) for _ in range(300)}
    assert found >= {"right", "wrong", "PlanError", "ExecutionError"}


# What the proof calls so can never end well. Of what else it refuses, some ends well by luck
# (races) and some is only forbidden (operands that an instruction does not have).
FATAL = {
    "RUN-DEADLOCK",
    "RUN-WRONG-RESULT",
    "RUN-WRONG-SUM",
    "XML-MESSAGE-LOST",
    "MPP-BARRIER-UNMATCHED",
}


@pytest.mark.parametrize("seed", range(2))
def test_500_random_plans_are_judged_as_the_proof_judges_them(seed: int) -> None:
    """250 each, right, wrong and stuck ones: two independent judges, who never contradict."""
    rng = random.Random(seed)
    names = sorted(GOOD)
    met: Counter[str] = Counter()
    for _ in range(250):
        program = GOOD[rng.choice(names)]
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            program = spoil(rng, program)
        try:
            proven = verify(program)
        except ForestCollError as error:
            rule = error.rule
        else:
            rule = "proven"
            if program.collective.has_root:  # the proof finds the root where the plan says none
                program = replace(program, root=proven.root)
        ways = "processes" if rng.random() < 0.2 else "threads"
        found = outcome(program, 3000, ranks_as=ways, threads=rng.choice([1, 2]))
        if rule == "proven":
            assert found == "right", program
        if rule in FATAL:
            assert found in ("wrong", "ExecutionError", "PlanError"), (rule, program)
        met[rule] += 1
        met[found] += 1
    assert met["proven"] > 20
    assert met["right"] > 20
    assert met["wrong"] > 5
    assert met["ExecutionError"] > 20
    assert sum(met[rule] for rule in FATAL) > 10


@pytest.mark.parametrize("field", ["src", "dst", "after", "channels"])
def test_programs_of_empty_parts(field: str) -> None:
    for program in GOOD.values():
        edits = [
            f"{r}.{b}.{s} = {line_of(replace(step, **{field: ()}))}"  # type: ignore[arg-type]
            for r, rank in enumerate(program.ranks)
            for b, block in enumerate(rank.thread_blocks)
            for s, step in enumerate(block.steps)
            if not isinstance(step, Pipeline)
        ]
        found = outcome(pg.edit(program, *edits), 500)
        assert found in ("right", "wrong", "PlanError", "ExecutionError")


def test_no_thread_blocks_at_all() -> None:
    assert outcome(parse("allgather fifo\nrank 1 2\nrank 1 2"), 64) == "wrong"
    assert outcome(parse("allreduce fifo\nrank 1 1"), 64) == "wrong"
    with pytest.raises(PlanError):
        run(parse("allreduce fifo"), 64)
