"""Atoms and plain orders: the same verdicts, word for word, as chunk by chunk and by search."""

from __future__ import annotations

import random
import re
import time
from copy import deepcopy
from typing import Any

import programs as pg
from edits import rows_of
from hand_forests import forests
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import REF, Tree, build, parse, slip, tree_of
from test_spoilt import program_of

from forestcoll.common.errors import ForestCollError
from forestcoll.lower import lower
from forestcoll.program import Program
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


def widened(p: Program, factor: int, dice: random.Random | None = None) -> Program:
    """The program with every chunk cut into `factor` ones; some of its copies are cut as well.

    Cut copies stand where the copy stood, so that what was right or wrong remains so, but their
    edges lie anywhere.
    """

    def wide(match: re.Match[str]) -> str:
        buffer, offset, count, rank = match.groups()
        owner = f"@{rank}" if rank else ""
        return f"{buffer}{int(offset) * factor}:{int(count or 1) * factor}{owner}"

    def steps_of(steps: list[Any]) -> list[Any]:
        lines: list[Any] = []
        for each in steps:
            if isinstance(each, dict):
                body = [REF.sub(wide, line) for line in each["steps"]]
                lines.append({**each, "chunks": each["chunks"] * factor, "steps": body})
                continue
            line = REF.sub(wide, each)
            found = re.fullmatch(r"copy (\w)(-?\d+):(\d+) -> (\w)(-?\d+):\3", line)
            if dice is None or numbered or not found or dice.random() < 0.3 or int(found[3]) < 2:
                lines.append(line)
                continue
            count = int(found[3])
            at = dice.randrange(1, count)
            for low, high in ((0, at), (at, count)):
                (a, i), (b, o) = (found[1], int(found[2])), (found[4], int(found[5]))
                lines.append(f"copy {a}{i + low}:{high - low} -> {b}{o + low}:{high - low}")
        return lines

    whole = deepcopy(tree_of(p))
    numbered = any(i.after for *_, i in p.instructions())  # steps must keep their numbers
    for rank in whole["ranks"]:
        for name in ("input", "output", "scratch"):
            rank[name] *= factor
        for block in rank["blocks"]:
            block["steps"] = steps_of(block["steps"])
    return build(whole)


def slipped(p: Program, dice: random.Random) -> Program:
    """The program with a slip or two."""
    whole: Tree = tree_of(p)
    slip(whole, dice)
    return build(whole)


def assert_same(p: Program, **options: int) -> None:
    """The same verdict; and where one word for word is not, both name a race or neither."""
    quick, slow = verdict(p, **options), chunk_by_chunk(p, **options)
    if "race:" in quick:
        assert "race:" in slow, (quick, slow)
    else:
        assert quick == slow


@settings(max_examples=70, deadline=None)
@given(seed=SEEDS)
def test_atoms_give_the_verdict_of_chunks(seed: int) -> None:
    dice = random.Random(seed)
    p = dice.choice(list(GOOD.values()))
    if dice.random() < 0.6:
        p = widened(p, dice.choice((2, 3, 5)), dice)
    if dice.random() < 0.8:
        p = slipped(p, dice)
    if dice.random() < 0.3:
        p = pg.edit(p, f"max_bytes = {dice.choice((1, 2, 5)) << 20}")
    launches, rounds = dice.choice((1, 2, 3)), dice.choice((1, 2, 3))
    assert_same(p, launches=launches, rounds=rounds, queue=dice.choice((1, 2, 4, 64)))


@settings(max_examples=60, deadline=None)
@given(made=forests(), target=st.sampled_from([RCCL, MSCCLPP]), seed=SEEDS)
def test_lowered_forests_and_mistakes_in_them(made: Forest, target: Target, seed: int) -> None:
    dice = random.Random(seed)
    p = lower(made, target, instances=dice.choice((1, 2)))
    for _ in range(dice.choice((0, 1, 1, 2))):
        p = slipped(p, dice)
    assert_same(widened(p, dice.choice((1, 1, 3))), queue=dice.choice((1, 2, 8)))


def test_rows_get_the_words_of_chunks() -> None:
    for row in rows_of("programs.txt"):
        p = program_of(row)
        assert verdict(p) == chunk_by_chunk(p), row.name
        if row.name.startswith(("fifo", "onesided")):  # the sizes of others do not fit each other
            assert_same(widened(p, 4))


# --- what the atoms are


def test_whole_buffers_are_atoms_where_nothing_parts_them() -> None:
    wide = widened(pg.chain_broadcast(n=3, chunks=1), 100)
    assert verify(wide).events == verify(pg.chain_broadcast(n=3, chunks=1)).events
    assert verify(wide).chunks == 100


def test_a_cut_follows_the_data_to_all_ranks_and_back() -> None:
    """The last rank of a chain writes one chunk of what it got once more."""
    wide = widened(pg.chain_broadcast(n=3, chunks=1), 10)
    p = pg.edit(wide, "2.0.99 + copy o4 -> o4")
    assert verify(p).events == verify(wide).events + 4 * 2 + 1  # four messages of three atoms each
    assert chunk_by_chunk(p) == verdict(p)


def test_cuts_that_chase_each_other_end() -> None:
    """Ranges that overlap, as of a copy that is refused later, part each other chunk by chunk."""
    p = parse("allreduce fifo\nrank 100 100\nblock\ncopy o0:99 -> o1:99\ncopy i50 -> o50")
    assert "two of its operands meet in chunk 1 of rank 0's output" in verdict(p)


def test_pieces_of_messages_end_atoms() -> None:
    p = widened(pg.chain_broadcast(n=2, chunks=1), 10)
    sized = pg.edit(p, f"max_bytes = {(2 << 20) // 3 * 10}")
    assert verify(p).events == 3
    assert verify(sized).events == 1 + 2 * 4  # pieces of 3 chunks: 0, 3, 6, 9
    assert_same(sized)


# --- time


def test_many_instructions_that_nothing_orders() -> None:
    """One thread block without a single barrier, and a launch that ends after all it has done."""
    n = 40_000
    copies = [f"copy i{c} -> o{c}" for c in range(n)]
    p = parse(pg.lines(f"allreduce onesided places=out\nrank {n} {n}\nblock", copies))
    start = time.process_time()
    assert verify(p).modes == ("out-of-place",)
    assert time.process_time() - start < 15


def test_cuts_that_are_chased_by_very_many_ties() -> None:
    """Copies to the next chunk, over and over: every sweep finds one more cut."""
    n, half = 3000, 300
    text = ["allreduce onesided places=out\nrank 1000 1000 2000\nblock"]
    for k in range(n):
        text += [f"copy s{k % 1000}:{half} -> s{k % 1000 + half}:{half}", "nop"]
    p = parse(pg.lines(text, "copy i0:1000 -> o0:1000"))
    start = time.process_time()
    assert verdict(p) == "('out-of-place',), root -1, 0 chunks moved"
    assert time.process_time() - start < 15
