"""Atoms and plain orders: the same verdicts, word for word, as chunk by chunk and by search."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import programs as pg
import pytest
import test_verify as mutants
from hand_forests import forests
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verify_random import slip

from forestcoll.common.errors import ForestCollError
from forestcoll.lower import lower
from forestcoll.program import (
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    Step,
    ThreadBlock,
)
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.schedule.forest import Forest
from forestcoll.verify import verify
from forestcoll.verify.check import examine

GOOD = pg.all_good()
SEEDS = st.integers(0, 2**40)


def verdict(p: Program, **options: Any) -> str:
    """What is said of a program, in words."""
    try:
        done, faults = examine(p, **options)
        for fault in faults:
            raise fault
    except ForestCollError as error:
        return f"{type(error).__name__}: {error}"
    assert done is not None
    return f"{done.modes}, root {done.root}, {done.moved} chunks moved"


def chunk_by_chunk(p: Program, **options: int) -> str:
    """The verdict where every location is an atom, and every order is searched for."""
    return verdict(p, finest=True, **options)


# --- programs of larger chunks


def widened(p: Program, factor: int, rng: random.Random | None = None) -> Program:
    """The program with every chunk cut into `factor` ones; some of its data steps are cut as well.

    Cut steps stand where the step stood, so that what was right or wrong remains so, but their
    edges lie anywhere.
    """

    def ref(r: Ref) -> Ref:
        return replace(r, offset=r.offset * factor, count=r.count * factor)

    def instruction(i: Instruction) -> Instruction:
        return replace(i, src=tuple(map(ref, i.src)), dst=tuple(map(ref, i.dst)))

    def step(s: Step) -> Step:
        if isinstance(s, Pipeline):
            return replace(s, body=tuple(map(instruction, s.body)), chunks=s.chunks * factor)
        return instruction(s)

    def block(b: ThreadBlock) -> ThreadBlock:
        return replace(b, steps=tuple(map(step, b.steps)))

    def rank(r: RankProgram) -> RankProgram:
        return replace(
            r,
            thread_blocks=tuple(map(block, r.thread_blocks)),
            input_chunks=r.input_chunks * factor,
            output_chunks=r.output_chunks * factor,
            scratch_chunks=r.scratch_chunks * factor,
        )

    p = replace(p, ranks=tuple(map(rank, p.ranks)))
    return p if rng is None else _cut_copies(rng, p)


def _cut_copies(rng: random.Random, p: Program) -> Program:
    """The program with some of its copies done in two parts, one right after the other."""

    def cut(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        found: list[Step] = []
        for s in steps:
            alone = isinstance(s, Instruction) and s.op is Op.COPY and len(s.src) == 1
            if not alone or isinstance(s, Pipeline) or s.src[0].count == 1 or rng.random() < 0.3:
                found.append(s)
                continue
            at = rng.randrange(1, s.src[0].count)
            for low, high in ((0, at), (at, s.src[0].count)):
                src, dst = (
                    tuple(replace(x, offset=x.offset + low, count=high - low) for x in refs)
                    for refs in (s.src, s.dst)
                )
                found.append(replace(s, src=src, dst=dst))
        return tuple(found)

    for r, rank in enumerate(p.ranks):
        for b, block in enumerate(rank.thread_blocks):
            others = any(i.after for *_, i in p.instructions())  # steps must keep their numbers
            if not others:
                p = pg.with_block(p, r, b, replace(block, steps=cut(block.steps)))
    return p


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_atoms_give_the_verdict_of_chunks(seed: int) -> None:
    rng = random.Random(seed)
    p = rng.choice(list(GOOD.values()))
    if rng.random() < 0.6:
        p = widened(p, rng.choice((2, 3, 5)), rng)
    if rng.random() < 0.8:
        p = slip(rng, p)
    launches, queue = rng.choice((1, 2, 3)), rng.choice((1, 2, 4, 64))
    if rng.random() < 0.3:
        p = replace(p, max_bytes=rng.choice((1, 2, 5)) << 20)
    options = {"launches": launches, "rounds": rng.choice((1, 2, 3)), "queue": queue}
    assert_same(p, **options)


def assert_same(p: Program, **options: int) -> None:
    """The same verdict; and where one word for word is not, both name a race or neither."""
    quick, slow = verdict(p, **options), chunk_by_chunk(p, **options)
    if "race:" in quick:
        assert "race:" in slow, (quick, slow)
    else:
        assert quick == slow


# --- lowered forests


def mistake(rng: random.Random, p: Program) -> Program:
    """The program with one mistake that its structure does not betray."""
    for _ in range(20):
        r = rng.randrange(p.n)
        b = rng.randrange(len(p.ranks[r].thread_blocks))
        block = p.ranks[r].thread_blocks[b]
        k = rng.randrange(len(block.steps))
        step = block.steps[k]
        if isinstance(step, Pipeline):
            j = rng.randrange(len(step.body))
            body = list(step.body)
            body[j] = _mistaken(rng, p, step.body[j])
            changed: Step = replace(step, body=tuple(body))
        else:
            changed = _mistaken(rng, p, step)
        if changed != step:
            steps = (*block.steps[:k], changed, *block.steps[k + 1 :])
            return pg.with_block(p, r, b, replace(block, steps=steps))
    return p


def _mistaken(rng: random.Random, p: Program, i: Instruction) -> Instruction:
    if i.after and rng.random() < 0.5:
        gone = rng.randrange(len(i.after))
        return replace(i, after=i.after[:gone] + i.after[gone + 1 :])
    if i.op in (Op.WAIT, Op.SIGNAL) and rng.random() < 0.5:
        return replace(i, op=Op.RELAXED_WAIT if i.op is Op.WAIT else Op.RELAXED_SIGNAL)
    field = rng.choice(("src", "dst"))
    refs = list(getattr(i, field))
    if refs:
        at = rng.randrange(len(refs))
        size = p.ranks[0].output_chunks
        offset = (refs[at].offset + rng.choice((1, -1, 2, -2))) % size
        refs[at] = replace(refs[at], offset=min(offset, max(0, size - refs[at].count)))
    moved = tuple(refs)
    return replace(i, src=moved) if field == "src" else replace(i, dst=moved)


@settings(max_examples=60, deadline=None)
@given(made=forests(), target=st.sampled_from([RCCL, MSCCLPP]), seed=SEEDS)
def test_lowered_forests_and_mistakes_in_them(made: Forest, target: Target, seed: int) -> None:
    rng = random.Random(seed)
    p = lower(made, target, instances=rng.choice((1, 2)))
    for _ in range(rng.choice((0, 1, 1, 2))):
        p = mistake(rng, p)
    assert_same(widened(p, rng.choice((1, 1, 3))), queue=rng.choice((1, 2, 8)))


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=[m[0] for m in mutants.MUTANTS])
def test_mutants_get_the_words_of_chunks(mutant: tuple[str, Callable[[], Program], object]) -> None:
    p = mutant[1]()
    assert verdict(p) == chunk_by_chunk(p)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=[m[0] for m in mutants.MUTANTS])
def test_wide_mutants(mutant: tuple[str, Callable[[], Program], object]) -> None:
    p = mutant[1]()
    if mutant[0].startswith("whole:"):
        return  # sizes that do not fit each other anyway
    assert_same(widened(p, 4))


# --- what the atoms are


def test_whole_buffers_are_atoms_where_nothing_parts_them() -> None:
    wide = widened(pg.chain_broadcast(n=3, chunks=1), 100)
    assert verify(wide).events == verify(pg.chain_broadcast(n=3, chunks=1)).events
    assert verify(wide).chunks == 100


def test_a_cut_follows_the_data_to_all_ranks_and_back() -> None:
    """The last rank of a chain writes one chunk of what it got once more."""
    wide = widened(pg.chain_broadcast(n=3, chunks=1), 10)
    block = wide.ranks[2].thread_blocks[0]
    again = pg.do(Op.COPY, pg.out(4), pg.out(4))
    p = pg.with_block(wide, 2, 0, replace(block, steps=(*block.steps, again)))
    assert verify(p).events == verify(wide).events + 4 * 2 + 1  # four messages of three atoms each
    assert chunk_by_chunk(p) == verdict(p)


def test_cuts_that_chase_each_other_end() -> None:
    """Ranges that overlap, as of a copy that is refused later, part each other chunk by chunk."""
    copies = [pg.do(Op.COPY, pg.out(0, 99), pg.out(1, 99)), pg.do(Op.COPY, pg.inp(50), pg.out(50))]
    p = pg.program(Collective.ALLREDUCE, "fifo", [pg.rank(pg.tb(*copies), i=100, o=100)])
    assert "two of its operands meet in chunk 1 of rank 0's output" in verdict(p)


def test_pieces_of_messages_end_atoms() -> None:
    p = widened(pg.chain_broadcast(n=2, chunks=1), 10)
    sized = replace(p, max_bytes=(2 << 20) // 3 * 10)
    assert verify(p).events == 3
    assert verify(sized).events == 1 + 2 * 4  # pieces of 3 chunks: 0, 3, 6, 9
    assert_same(sized)


# --- time


def test_many_instructions_that_nothing_orders() -> None:
    """One thread block without a single barrier, and a launch that ends after all it has done."""
    n = 40_000
    copies = [pg.do(Op.COPY, pg.inp(c), pg.out(c)) for c in range(n)]
    ranks = [pg.rank(pg.otb([], *copies), i=n, o=n)]
    p = pg.program(Collective.ALLREDUCE, "onesided", ranks, modes="out")
    start = time.process_time()
    assert verify(p).modes == ("out-of-place",)
    assert time.process_time() - start < 15


def test_cuts_that_are_chased_by_very_many_ties() -> None:
    """Copies to the next chunk, over and over: every sweep finds one more cut."""
    n, half = 3000, 300
    steps: list[Step] = []
    for k in range(n):
        at = k % 1000
        steps += [pg.do(Op.COPY, pg.scr(at, half), pg.scr(at + half, half)), pg.do(Op.NOP)]
    steps += [pg.do(Op.COPY, pg.inp(0, 1000), pg.out(0, 1000))]
    ranks = [pg.rank(pg.otb([], *steps), i=1000, o=1000, s=2000)]
    p = pg.program(Collective.ALLREDUCE, "onesided", ranks, modes="out")
    start = time.process_time()
    assert verdict(p) == "('out-of-place',), root -1, 0 chunks moved"
    assert time.process_time() - start < 15
