"""Hundreds of random mutants, others each time; tests/mutations.py says what must hold of each.

FORESTCOLL_SEED=N does the same again.
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import edits
import mutations
import pytest

COUNT = 40


@pytest.mark.parametrize("name", mutations.FORMATS)
def test_mutants(name: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("FORESTCOLL_SEED") or secrets.randbits(32))
    print(f"seed {seed}")
    tally = mutations.try_many(name, range(seed, seed + COUNT), tmp_path)
    assert not tally.faults, f"FORESTCOLL_SEED={seed}:\n" + "\n".join(tally.faults)
    assert tally.outcomes["refused"] > COUNT // 10  # so they really are spoilt


@pytest.mark.parametrize("name", mutations.FORMATS)
def test_whole_files_are_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mutants are made of, so that a refusal is due to the mutation."""
    for base, files in mutations.bases(name).items():
        monkeypatch.setattr(
            mutations, "mutant", lambda *_, b=base, f=files: (b, next(iter(f.values())))
        )
        tally = mutations.Tally()
        mutations.try_one(name, 0, tmp_path, tally)
        assert (tally.outcomes, tally.faults) == ({"right": 1}, []), base


def test_the_same_seed_makes_the_same_mutant() -> None:
    for name in mutations.FORMATS:
        assert mutations.mutant(name, 7) == mutations.mutant(name, 7)
        assert len({mutations.mutant(name, seed) for seed in range(20)}) > 10


def test_no_mutant_changes_what_others_are_made_of() -> None:
    """A list of `VALUES` that lay in a tree itself could even come to lie in itself."""
    before = repr(edits.VALUES)
    for seed in range(300):
        edits.spoil({"a": [1, {"b": [2, 3]}]}, random.Random(seed))
    assert repr(edits.VALUES) == before


def test_a_fault_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that finds nothing would pass as well."""

    def crash(arguments: list[str]) -> int:
        raise RecursionError("deep")

    def lie(arguments: list[str]) -> int:
        return 0

    for broken, words in ((crash, "RecursionError: deep"), (lie, "Error: ")):
        monkeypatch.setattr(mutations.cli, "main", broken)
        tally = mutations.try_many("mscclpp-json", range(40), tmp_path)
        assert any(words in fault for fault in tally.faults)
