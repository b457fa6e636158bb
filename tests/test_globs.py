"""Globs over ids: those of a shell, and ranges of numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forestcoll.topology.globs import matcher


@pytest.mark.parametrize(
    "row",
    """
gpu[8-15] matches gpu8 gpu9 gpu10 gpu15 but not gpu5 gpu1 gpu16 gpu150
box[0-11]/gpu[0-7] matches box0/gpu0 box11/gpu7 but not box12/gpu0 box1/gpu8
*[10-12]* matches a11b 10 x12 but not a9b 13
gpu[0-7] matches gpu0 gpu7 but not gpu10
gpu[!0-7] matches gpu8 but not gpu3
gpu[15-8] matches gpu5 but not gpu9 gpu15
a.b matches a.b but not axb
""".strip().splitlines(),
)
def test_patterns(row: str) -> None:
    """[15-8] is no range of numbers: a shell's letters."""
    pattern, _, texts = row.partition(" matches ")
    yes, no = (words.split() for words in texts.split(" but not "))
    assert [text for text in yes + no if matcher(pattern)(text)] == yes


LETTERS = "ab01/[]!*?-"


@given(st.text(LETTERS, max_size=8), st.text("ab01/-", max_size=6))
def test_without_ranges_they_are_a_shells(pattern: str, text: str) -> None:
    if not any(f"{a}-{b}]" in pattern for a in ("00", "01", "10", "11") for b in "01") and not any(
        f"-{b}]" in pattern for b in ("00", "01", "10", "11")
    ):
        assert matcher(pattern)(text) == fnmatchcase(text, pattern)
