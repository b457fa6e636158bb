"""The native engine looks tables over before anything follows their numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import programs as pg
import pytest

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import _engine, cpu
from forestcoll.execute.tables import build
from forestcoll.program import Program

WIDTHS = {
    "instructions": (16, np.int32),
    "operands": (4, np.int64),
    "dependencies": (3, np.int32),
    "loops": (4, np.int64),
    "blocks": (8, np.int32),
    "connections": (2, np.int32),
}
LISTS = ("names", "semaphores")


def arguments(program: Program) -> dict[str, Any]:
    """What `Tables.engine` hands over."""
    tables = build(program)
    found: dict[str, Any] = {
        name: np.array(getattr(tables, name), kind).reshape(-1, width)
        for name, (width, kind) in WIDTHS.items()
    }
    found |= {name: list(getattr(tables, name)) for name in LISTS}
    return {**found, "barriers": tables.barriers}


def launch(given: dict[str, Any]) -> None:
    """Run it with buffers that hold every operand, whatever comes of it."""
    engine = _engine.Engine(**given)
    options = _engine.Options(
        chunk_bytes=64, slice_bytes=64, slot_bytes=256, slots=4, type=0, op=0, threads=2,
        patience=0.05,
    )  # fmt: skip
    ranks = 1 + max([0, *(int(row[0]) for row in given["operands"])])
    memory = [np.zeros(64 * 512, np.uint8) for _ in range(3 * ranks)]
    places = [m.ctypes.data for m in memory]
    engine.launch([a for r in range(ranks) for a in places[3 * r : 3 * r + 3] * 2], options)


def shortened() -> None:
    """Every table of every program cut after every row: an error, or a launch that ends."""
    tried = refused = 0
    for program in pg.all_good().values():
        given = arguments(program)
        for name in (*WIDTHS, *LISTS):
            for rows in range(len(given[name])):
                tried += 1
                try:
                    launch({**given, name: given[name][:rows]})
                except ValueError:
                    refused += 1
        for barriers in range(given["barriers"]):
            tried += 1
            with pytest.raises(ValueError, match="no such barrier"):
                launch({**given, "barriers": barriers})
            refused += 1
    print(tried, refused)


def changed() -> None:
    """Single numbers changed at random: the same. Where operands lie, the caller checks."""
    rng = np.random.default_rng(0)
    tried = refused = 0
    for program in pg.all_good().values():
        given = arguments(program)
        for name, (width, kind) in WIDTHS.items():
            for _ in range(min(25, 3 * len(given[name]))):
                table = given[name].copy()
                row, column = rng.integers(len(table)), rng.integers(width)
                if (name == "operands" and column >= 2) or (name, column) == ("instructions", 1):
                    continue
                limit = np.iinfo(kind)
                value = rng.choice(
                    np.array([-1, 0, 1, 2, 7, len(table), 1000, limit.min, limit.max], kind)
                )
                table[row, column] = value
                tried += 1
                try:
                    launch({**given, name: table})
                except ValueError:
                    refused += 1
    print(tried, refused)


@pytest.mark.parametrize("what", ["shortened", "changed"])
def test_tables_that_are_wrong_do_not_crash(what: str) -> None:
    """In a process of its own, which a crash would end."""
    words = [sys.executable, "-c", f"import test_execute_tables as t; t.{what}()"]
    here = Path(__file__).parent
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=here)
    assert done.returncode == 0, done.stderr[-2000:]
    tried, refused = map(int, done.stdout.split())
    assert tried > 300
    assert refused > tried // 3


@pytest.mark.parametrize(
    ("table", "row", "column", "value", "message"),
    [
        ("instructions", 0, 0, 99, r"instructions\[0\]: unknown operation"),
        ("instructions", 0, 2, 10**6, r"instructions\[0\]: operands that are not there"),
        ("instructions", 0, 3, 81, r"instructions\[0\]: operands that are not there"),
        ("instructions", 0, 6, 1, r"instructions\[0\]: dependencies that are not there"),
        ("instructions", 0, 13, 5, r"instructions\[0\]: no such loop"),
        ("operands", 0, 1, 6, r"operands\[0\]: no such buffer"),
        ("operands", 0, 2, -1, r"operands\[0\]: chunks that no buffer has"),
        ("operands", 0, 3, 5, r"instructions\[\d+\]: operands of different lengths"),
        ("blocks", 0, 2, 1000, r"blocks\[0\]: instructions that are not there"),
        ("blocks", 0, 5, 1000, r"blocks\[0\]: no such connection"),
        ("blocks", 1, 5, -1, r"blocks\[1\]: receives without a connection"),
        ("connections", 0, 0, -1, r"connections\[0\]: no such block"),
    ],
)
def test_the_errors_of_tables(table: str, row: int, column: int, value: int, message: str) -> None:
    given = arguments(pg.ring_allreduce())
    given[table][row, column] = value
    with pytest.raises(ValueError, match=message):
        _engine.Engine(**given)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"slot_bytes": 2**62}, r"slots of 4611686018427387904 bytes for each of \d+ connections"),
        ({"slots": 2**62}, r"4611686018427387904 slots of \d+ bytes"),
        ({"slots": 2**40, "slot_bytes": 2**40}, "choose fewer or smaller slots"),
    ],
)
def test_slots_that_no_memory_holds(how: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        cpu.run(pg.ring_allreduce(), 4096, **how)  # type: ignore[arg-type]


def test_large_wishes_are_brought_down() -> None:
    found = cpu.run(pg.ring_allreduce(), 4096, slice_bytes=2**70, threads=2**40)
    assert found.wrong == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot_bytes": 2**62}, "slots of more bytes than there can be"),
        ({"slots": 2**31 - 1, "slot_bytes": 2**40}, "slots of more bytes than there can be"),
        ({"chunk_bytes": 2**62}, "buffers of more bytes than there can be"),
        ({"threads": 2**31 - 1}, "more threads than a process can have"),
        ({"chunk_bytes": 6}, "must be positive multiples of the element"),
    ],
)
def test_the_engines_own_limits(change: dict[str, int], message: str) -> None:
    engine = _engine.Engine(**arguments(pg.ring_allreduce()))
    plain = {"chunk_bytes": 64, "slice_bytes": 64, "slot_bytes": 64, "slots": 1, "threads": 1}
    options = _engine.Options(**{**plain, **change}, type=0, op=0, patience=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        engine.launch([0] * 24, options)


def test_patience_is_a_number() -> None:
    with pytest.raises(ValueError, match="patience"):
        _engine.Options(
            chunk_bytes=4, slice_bytes=4, slot_bytes=4, slots=1, type=0, op=0, threads=1,
            patience=float("nan"),
        )  # fmt: skip
