"""The symbolic check of programs spoilt at random against what they do (interleaving.py)."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace

import interleaving
import programs as pg
import pytest
from edits import rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import build, slip, tree_of, wild
from test_spoilt import program_of

from forestcoll.common.errors import ForestCollError
from forestcoll.program import Program
from forestcoll.verify import verify

GOOD = pg.all_good()
SEEDS = st.integers(0, 2**40)
KINDS = ("RUN-RACE", "RUN-DEADLOCK", "RUN-WRONG-RESULT")
FINER = {
    "packets, the result unpacked before the own are sent",  # it may wait for all of an operation's
    "packets, which order no other data",  # whose flag goes with them alone
    "packets, sums of just the same chunks",  # which the same threads add up
}
"""Rows on packets whose threads random order does not tell apart."""


def judged(p: Program, seed: int) -> str:
    """What becomes of a run: a race, stuck, wrong data at a rank, or nothing."""
    try:
        interleaving.run(p, seed)
    except interleaving.Failed as failed:
        return str(failed)
    return ""


def assert_agreed(p: Program, seed: int) -> str:
    """What passes runs in any order and what is refused fails; returns the rule, or ""."""
    rule, root = "", p.root
    try:
        found = verify(p)
        root = found.root
        assert len(found.modes) == p.out_of_place + p.in_place
    except ForestCollError as error:
        rule = error.rule or "fields"
    # Whoever waits for packets is taken to wait for all of an operation's.
    certain = rule.startswith(KINDS) and not (rule == "RUN-DEADLOCK" and p.protocol == "LL")
    if not rule or (certain and (root >= 0 or not p.collective.has_root)):
        said = judged(replace(p, root=root), seed)
        assert bool(said) == bool(rule), (rule, said)
    return rule


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_run_in_any_order(name: str) -> None:
    for seed in range(3):
        assert not judged(GOOD[name], seed)


def test_what_is_refused_goes_wrong_and_what_passes_does_not() -> None:
    kinds: Counter[str] = Counter()
    for row in rows_of("programs.txt"):
        rule = row.said[0].partition(":")[0]
        if rule.startswith(("RUN-", "right")) and row.name not in FINER:
            said = judged(program_of(row), 1)
            assert bool(said) == (rule != "right"), (row.name, said)
            kinds[rule, said.partition(" ")[0].strip(":")] += 1
    assert kinds["RUN-RACE", "race"] > 20
    assert not kinds["RUN-RACE", "rank"]
    assert kinds["RUN-DEADLOCK", "stuck"] == sum(kinds[pair] for pair in kinds if "stuck" in pair)
    assert kinds["RUN-WRONG-RESULT", "rank"] > 20


def test_slips_are_judged_alike() -> None:
    """They are of all kinds: some do no harm and most do."""
    dice, rules = random.Random(1), Counter[str]()
    for _ in range(300):
        whole = tree_of(dice.choice(list(GOOD.values())))
        slip(whole, dice)
        rules[assert_agreed(build(whole), 1)] += 1
    assert 20 < rules[""] < 200
    assert min(rules["RUN-RACE"], rules["RUN-WRONG-RESULT"]) > 5


@settings(max_examples=120, deadline=None)
@given(seed=SEEDS)
def test_nonsense_never_crashes(seed: int) -> None:
    dice = random.Random(seed)
    whole = tree_of(dice.choice(list(GOOD.values())))
    for _ in range(dice.choice((1, 1, 2, 5))):
        wild(whole, dice)
    with contextlib.suppress(ForestCollError):  # anything else fails the test
        p = build(whole)
        assert verify(p).ranks == p.n
