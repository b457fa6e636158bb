"""Good files and proofs damaged, and what is said of them: the rows of damages/*.txt.

A row is a statement that changes the good one, `f` (the JSON of a file, or the value itself), and
below it, indented, a regular expression that the error holds.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parent / "damages"


def rows(name: str) -> list[tuple[str, str]]:
    """(statement, message) of every row of a file."""
    lines = (ROWS / f"{name}.txt").read_text().splitlines()
    return [(change, said.strip()) for change, said in zip(lines[::2], lines[1::2], strict=True)]


def damage(good: Any, change: str, **names: Any) -> Any:
    """The good one after a statement, which may use `replace`, `Fraction` and these names."""
    known = {"f": copy.deepcopy(good), "replace": replace, "Fraction": Fraction, **names}
    exec(change, known)
    return known["f"]
