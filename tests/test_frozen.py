"""What is kept as data: what users can ask for, and the catalogue's plans of before."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from artefacts import ROOT

SCRIPTS = ROOT / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "benchmarks")]

import frozen  # type: ignore[import-not-found]  # noqa: E402
import surface  # type: ignore[import-not-found]  # noqa: E402


def test_no_option_and_no_name_is_gone() -> None:
    """`scripts/surface.py compare` also looks at the fields of --json."""
    from forestcoll.ui import cli

    here = dict([*surface.options(cli.cli), *surface.python_names()])
    kinds = ("command ", "option ", "argument ", "python ")
    before = json.loads(surface.FROZEN.read_text())
    asked = {key: value for key, value in before.items() if key.startswith(kinds)}
    assert len(asked) > 300
    assert surface.faults(asked, here) == []
    assert surface.hints(sys.executable) == []


def test_what_is_gone_or_differs_is_said() -> None:
    before = {"option run --engine": "cpu|gpu", "json run algbw": "text", "command run": ""}
    after = {"option run --engine": "cpu", "json run algbw": "text", "command walk": ""}
    assert surface.faults(before, after) == [
        "differs: option run --engine: 'cpu|gpu' -> 'cpu'",
        "gone: command run",
    ]
    assert surface.widened("cpu|gpu, multiple", "cpu|gpu|torch, multiple")
    assert not surface.widened("cpu|gpu, multiple", "cpu|gpu|torch")
    value = {"rows": [{"us": 1.5}, {"us": None}], "seconds": {"solve": 1}}
    assert set(surface.leaves(value)) == {
        ("", "object"),
        ("rows", "list"),
        ("rows[]", "object"),
        ("rows[].us", "number"),
        ("rows[].us", "null"),
        ("seconds", "object"),
        ("seconds.*", "number"),
    }


ROW = frozen.Row(
    "a row", "100", "100", (650.0, 10200.0), (660.0, 10300.0), (8, 64), (98.5, 98.0), plan="1"
)


@pytest.mark.parametrize(
    ("after", "rules"),
    [
        (replace(ROW, us=(656.0, 10300.0), blocks=(7, 56), plan="2"), []),
        (replace(ROW, us=(657.0, 10200.0), plan="2"), ["times"]),
        (replace(ROW, shown=(660.0, 10410.0), blocks=(8, 65)), ["shown", "blocks"]),
        (replace(ROW, forest="3", low=True), ["forests", "bars"]),
        (frozen.Row("a row", refused="forestcoll: error: no"), ["refusals"]),
    ],
)
def test_a_worse_row_breaks_a_rule(after: frozen.Row, rules: list[str]) -> None:
    assert [rule for rule, _ in frozen.broken(ROW, after)] == rules
    assert set(rules) <= set(frozen.RULES)


def test_the_bar_of_a_short_call_knows_hops() -> None:
    """64 MB at 400 GB/s are 160 us; at 1 GB the way of the first byte does not count."""
    assert frozen.reached(frozen.SHORT, 200.0, 400) == 80.0
    assert frozen.reached(frozen.SHORT, 200.0, 400, lead=20.0) == 90.0
    assert frozen.bars_of("allgather") == (85, 95)


def test_a_plan_where_there_was_none_breaks_no_rule() -> None:
    refused = frozen.Row("a row", refused="forestcoll: error: no")
    assert list(frozen.broken(refused, ROW)) == []
    assert [rule for rule, _ in frozen.broken(refused, replace(refused, refused="x"))]


def test_rows_are_kept_a_line_each_in_the_catalogues_order(tmp_path: Path) -> None:
    keys = [frozen.key_of(words) for words in frozen.rows()]
    assert len(set(keys)) == len(keys) > 300
    assert [frozen.key_of(words) for words in frozen.rows(quick=True)] == keys[:49]
    kept = frozen.read(frozen.FROZEN)
    assert set(keys[:49]) <= set(kept) <= set(keys)
    store, file = tmp_path / "rows.jsonl", tmp_path / "frozen.json"
    rows = [replace(ROW, key=key) for key in (keys[5], keys[0])]
    store.write_text("".join(f"{frozen.line_of(row)}\n" for row in rows))
    frozen.write(store, file)
    assert list(frozen.read(file).values()) == rows[::-1]
    assert len(json.loads(file.read_text())) == 2
