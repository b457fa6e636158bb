"""Globs over ids: those of a shell, and ranges of numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forestcoll.topology.globs import matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("gpu[8-15]", ["gpu8", "gpu9", "gpu10", "gpu15"], ["gpu5", "gpu1", "gpu16", "gpu150"]),
        ("box[0-11]/gpu[0-7]", ["box0/gpu0", "box11/gpu7"], ["box12/gpu0", "box1/gpu8"]),
        ("*[10-12]*", ["a11b", "10", "x12"], ["a9b", "13"]),
        ("gpu[0-7]", ["gpu0", "gpu7"], ["gpu10"]),
        ("gpu[!0-7]", ["gpu8"], ["gpu3"]),
        ("gpu[15-8]", ["gpu5"], ["gpu9", "gpu15"]),  # no range of numbers: a shell's letters
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    found = matcher(pattern)
    assert [text for text in yes + no if found(text)] == yes


LETTERS = "ab01/[]!*?-"


@given(st.text(LETTERS, max_size=8), st.text("ab01/-", max_size=6))
def test_without_ranges_they_are_a_shells(pattern: str, text: str) -> None:
    if not any(f"{a}-{b}]" in pattern for a in ("00", "01", "10", "11") for b in "01") and not any(
        f"-{b}]" in pattern for b in ("00", "01", "10", "11")
    ):
        assert matcher(pattern)(text) == fnmatchcase(text, pattern)
