"""The symbolic check against programs spoilt at random and run in random order."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import interleaving
import programs as pg
import pytest
import test_verify as mutants
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.program import Buffer, Instruction, Op, Pipeline, Program, Ref, Step, ThreadBlock
from forestcoll.verify import verify

GOOD = pg.all_good()
SEEDS = st.integers(0, 2**40)


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_run_in_any_order(name: str) -> None:
    for seed in range(6):
        interleaving.run(GOOD[name], seed)


@pytest.mark.parametrize(
    "name",
    [
        "fifo: a dependency forgotten",
        "fifo: a scratch slot shared by two children",
        "fifo: more messages than a connection holds",
        "onesided: no handshake",
        "onesided: no nop after the handshake",
        "onesided: no nop after the wait",
        "onesided: a semaphore that starts too high",
        "onesided: no barrier before adding up",
        "onesided: a peer's input read when its launch is over",
        "onesided: dependent instructions without a nop",
        "onesided: scratch written while the launch before still reads it",
    ],
)
def test_what_is_refused_does_go_wrong(name: str) -> None:
    spoil = next(m[1] for m in mutants.MUTANTS if m[0] == name)
    p, failures = spoil(), 0
    for seed in range(20):
        try:
            interleaving.run(p, seed)
        except interleaving.Failed:
            failures += 1
    assert failures


# --- small changes, as a programmer's slips


def _steps_of(block: ThreadBlock) -> list[Step]:
    return list(block.steps)


def _change_list(rng: random.Random, steps: list[Any]) -> None:
    """Drop, double, swap or alter one entry of a list of steps."""
    k = rng.randrange(len(steps))
    what = rng.randrange(6)
    if what == 0:
        del steps[k]
    elif what == 1:
        steps.insert(rng.randrange(len(steps) + 1), steps[k])
    elif what == 2:
        j = rng.randrange(len(steps))
        steps[j], steps[k] = steps[k], steps[j]
    elif isinstance(steps[k], Pipeline):
        body = list(steps[k].body)
        _change_list(rng, body)
        steps[k] = replace(steps[k], body=tuple(body))
    else:
        steps[k] = _change_instruction(rng, steps[k])


_LIKE = {
    Op.SIGNAL: Op.RELAXED_SIGNAL,
    Op.WAIT: Op.RELAXED_WAIT,
    Op.RELAXED_SIGNAL: Op.SIGNAL,
    Op.RELAXED_WAIT: Op.WAIT,
    Op.RECV_COPY_SEND: Op.RECV,
    Op.RECV: Op.RECV_COPY_SEND,
    Op.PUT: Op.PUT_SIGNAL,
    Op.PUT_SIGNAL: Op.PUT_SIGNAL_FLUSH,
    Op.COPY: Op.REDUCE,
    Op.REDUCE: Op.COPY,
    Op.RECV_REDUCE_COPY_SEND: Op.RECV_REDUCE_COPY,
    Op.REDUCE_TO: Op.REDUCE,
    Op.FLUSH: Op.NOP,
    Op.BARRIER: Op.NOP,
}


def _change_instruction(rng: random.Random, i: Instruction) -> Instruction:
    what = rng.randrange(6)
    if what == 0 and i.after:
        return replace(i, after=i.after[1:])
    if what == 1:
        return replace(i, op=_LIKE.get(i.op, i.op))
    if what == 2 and i.src:
        return replace(i, src=(*i.src[:-1], _change_ref(rng, i.src[-1])))
    if what == 3 and i.dst:
        return replace(i, dst=(*i.dst[:-1], _change_ref(rng, i.dst[-1])))
    if what == 4 and i.src:
        return replace(i, src=(_change_ref(rng, i.src[0]), *i.src[1:]))
    return replace(i, channels=i.channels[1:])


def _change_ref(rng: random.Random, ref: Ref) -> Ref:
    what = rng.randrange(3)
    if what == 0:
        return replace(ref, buffer=rng.choice(list(Buffer)))
    if what == 1:
        return replace(ref, count=max(1, ref.count + rng.choice((-1, 1))))
    return replace(ref, offset=max(0, ref.offset + rng.choice((-1, 1))))


def slip(rng: random.Random, p: Program) -> Program:
    """The program with one or two small changes; often at all ranks alike, to stay balanced."""
    for _ in range(rng.choice((1, 1, 2))):
        r = rng.randrange(p.n)
        if not p.ranks[r].thread_blocks:
            continue
        b = rng.randrange(len(p.ranks[r].thread_blocks))
        if not p.ranks[r].thread_blocks[b].steps:
            continue
        everywhere, state = rng.random() < 0.4, rng.getstate()
        for at in range(p.n) if everywhere else (r,):
            rng.setstate(state)  # the same change again
            blocks = p.ranks[at].thread_blocks
            if b < len(blocks) and blocks[b].steps:
                steps = _steps_of(blocks[b])
                _change_list(rng, steps)
                p = pg.with_block(p, at, b, replace(blocks[b], steps=tuple(steps)))
    return p


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_slips_that_pass_run_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    p = slip(rng, rng.choice(list(GOOD.values())))
    try:
        found = verify(p)
    except ForestCollError:
        return
    assert len(found.modes) == p.out_of_place + p.in_place
    if p.collective.rooted:
        p = replace(p, root=found.root)
    for k in range(3):
        interleaving.run(p, seed + k)


def test_slips_are_of_both_kinds() -> None:
    """Some slips do no harm and most do: the test above sees either."""
    rng, passed = random.Random(1), 0
    for _ in range(300):
        try:
            verify(slip(rng, rng.choice(list(GOOD.values()))))
            passed += 1
        except PlanError:
            pass
    assert 20 < passed < 200


# --- nonsense

WILD = (-(10**20), -2, -1, 0, 1, 2, 3, 7, 64, 10**9, 10**20)


def _holders(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all integers in a tree of dataclasses and tuples."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [path]
    if isinstance(value, tuple):
        return [p for k, x in enumerate(value) for p in _holders(x, (*path, k))]
    if is_dataclass(value):
        return [p for f in fields(value) for p in _holders(getattr(value, f.name), (*path, f.name))]
    return []


def _put(value: Any, path: tuple[Any, ...], new: int) -> Any:
    if not path:
        return new
    head, *rest = path
    if isinstance(value, tuple):
        return (*value[:head], _put(value[head], tuple(rest), new), *value[head + 1 :])
    return replace(value, **{head: _put(getattr(value, head), tuple(rest), new)})


HOLDERS: dict[str, list[tuple[Any, ...]]] = {name: _holders(p) for name, p in GOOD.items()}


@settings(max_examples=250, deadline=None)
@given(seed=SEEDS)
def test_nonsense_never_crashes(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(list(GOOD))
    p = GOOD[name]
    for _ in range(rng.choice((1, 1, 2, 5))):
        p = _put(p, rng.choice(HOLDERS[name]), rng.choice(WILD))
    with contextlib.suppress(ForestCollError):  # anything else fails the test
        assert verify(p).ranks == p.n


def _other_op(rng: random.Random, i: Instruction) -> Instruction:
    return replace(i, op=rng.choice(list(Op)))


def _other_fields(rng: random.Random, i: Instruction) -> Instruction:
    refs = [*i.src, *i.dst]
    rng.shuffle(refs)
    cut = rng.randint(0, len(refs))
    return replace(i, src=tuple(refs[:cut]), dst=tuple(refs[cut:]))


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, change=st.sampled_from([_other_op, _other_fields]))
def test_shuffled_instructions_never_crash(
    seed: int, change: Callable[[random.Random, Instruction], Instruction]
) -> None:
    rng = random.Random(seed)
    p = rng.choice(list(GOOD.values()))
    r = rng.randrange(p.n)
    b = rng.randrange(len(p.ranks[r].thread_blocks))
    steps = _steps_of(p.ranks[r].thread_blocks[b])
    k = rng.randrange(len(steps))
    step = steps[k]
    if isinstance(step, Pipeline):
        steps[k] = replace(step, body=tuple(change(rng, i) for i in step.body))
    else:
        steps[k] = change(rng, step)
    spoilt = pg.with_block(p, r, b, replace(p.ranks[r].thread_blocks[b], steps=tuple(steps)))
    with contextlib.suppress(ForestCollError):
        assert verify(spoilt).ranks == p.n
