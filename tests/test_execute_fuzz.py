"""Spoiled programs: an answer in bounded time, never a crash, never a false success."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import programs as pg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.execute.cpu import run
from forestcoll.program import (
    BY_TREES,
    Buffer,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Ref,
    Step,
)
from forestcoll.verify import verify

GOOD = pg.all_good()
NUMBERS = (-1, 0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**40, 2**63, -(2**63))


def spoil_ref(rng: random.Random, ref: Ref) -> Ref:
    field = rng.choice(["buffer", "offset", "count", "rank"])
    value = {
        "buffer": rng.choice(list(Buffer)),
        "offset": rng.choice([ref.offset + 1, ref.offset - 1, rng.choice(NUMBERS)]),
        "count": rng.choice([ref.count + 1, rng.choice(NUMBERS)]),
        "rank": rng.choice([None, 0, 1, 2, rng.choice(NUMBERS)]),
    }[field]
    return replace(ref, **{field: value})


def spoil_instruction(rng: random.Random, i: Instruction) -> Instruction:
    def refs(those: tuple[Ref, ...]) -> tuple[Ref, ...]:
        if not those or rng.random() < 0.2:
            return (*those, Ref(rng.choice(list(Buffer)), 0, 1))
        k = rng.randrange(len(those))
        if rng.random() < 0.2:
            return those[:k] + those[k + 1 :]
        return (*those[:k], spoil_ref(rng, those[k]), *those[k + 1 :])

    def number() -> int:
        return rng.choice(NUMBERS)

    changes: list[Callable[[], dict[str, object]]] = [
        lambda: {"op": rng.choice(list(Op))},
        lambda: {"src": refs(i.src)},
        lambda: {"dst": refs(i.dst)},
        lambda: {"after": ((rng.choice([0, 1, number()]), rng.choice([0, 1, number()])),)},
        lambda: {"channels": (*i.channels, rng.choice([0, 1, number()]))},
        lambda: {"channels": ()},
        lambda: {"semaphores": (rng.choice([0, number()]),)},
        lambda: {"group": number(), "ident": number()},
        lambda: {"part": (number(), number())},
    ]
    return replace(i, **rng.choice(changes)())  # type: ignore[arg-type]


def spoil_step(rng: random.Random, step: Step) -> Step:
    if isinstance(step, Instruction):
        return spoil_instruction(rng, step)
    if rng.random() < 0.3:
        field = rng.choice(["chunks", "unit_bytes"])
        return replace(step, **{field: rng.choice([8, 12, *NUMBERS])})  # type: ignore[arg-type]
    body = list(step.body)
    spoil_list(rng, body)  # type: ignore[arg-type]
    return replace(step, body=tuple(body))


def spoil_list(rng: random.Random, steps: list[Step]) -> None:
    """Drops, repeats, swaps or changes steps."""
    if not steps:
        return
    a, b = rng.randrange(len(steps)), rng.randrange(len(steps))
    match rng.randrange(5):
        case 0:
            steps.pop(a)
        case 1:
            steps.insert(b, steps[a])
        case 2:
            steps[a], steps[b] = steps[b], steps[a]
        case _:
            steps[a] = spoil_step(rng, steps[a])


def spoil(rng: random.Random, program: Program) -> Program:
    r = rng.randrange(program.n)
    rank = program.ranks[r]
    kind = rng.random()
    if kind < 0.04:
        field = rng.choice(["input_chunks", "output_chunks", "scratch_chunks"])
        return pg.with_rank(program, r, replace(rank, **{field: rng.choice(NUMBERS)}))  # type: ignore[arg-type]
    if kind < 0.06:
        return replace(program, root=rng.choice(NUMBERS))
    if kind < 0.08:
        return replace(program, collective=rng.choice(list(BY_TREES)))
    if not rank.thread_blocks:
        return program
    b = rng.randrange(len(rank.thread_blocks))
    block = rank.thread_blocks[b]
    if kind < 0.16:
        field = rng.choice(["recv", "send", "channel"])
        value = rng.choice([0, 1, rng.choice(NUMBERS)])
        return pg.with_block(program, r, b, replace(block, **{field: value}))  # type: ignore[arg-type]
    return pg.with_steps(program, r, b, lambda steps: spoil_list(rng, steps))


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
    assert sum(met[rule] for rule in FATAL) > 15


@pytest.mark.parametrize("field", ["src", "dst", "after", "channels"])
def test_programs_of_empty_parts(field: str) -> None:
    for program in GOOD.values():
        emptied = program
        for r, rank in enumerate(program.ranks):
            for b, block in enumerate(rank.thread_blocks):
                for s, step in enumerate(block.steps):
                    if not isinstance(step, Pipeline):
                        emptied = pg.edit(emptied, r, b, s, **{field: ()})
        assert outcome(emptied, 500) in ("right", "wrong", "PlanError", "ExecutionError")


def test_no_thread_blocks_at_all() -> None:
    idle = pg.program(Collective.ALLGATHER, "fifo", [pg.rank(i=1, o=2)] * 2)
    assert outcome(idle, 64) == "wrong"
    assert outcome(pg.program(Collective.ALLREDUCE, "fifo", [pg.rank(i=1, o=1)]), 64) == "wrong"
    with pytest.raises(PlanError):
        run(pg.program(Collective.ALLREDUCE, "fifo", []), 64)
