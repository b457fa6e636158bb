"""Names in files that would paint over the terminal: they are seen, spelled out, wherever shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from artefacts import Artefacts
from command_line import Run

from forestcoll.common.escape import LONGEST, escape
from forestcoll.study.predict import NO_LATENCIES
from forestcoll.ui.report.progress import StageProgress

PAINT = "\r\x1b[2K\x1b[1A\r\x1b[2Kx: ok\n  optimal: the bound (cut) equals it\x1b[8m"
NAMES = {
    "escape": PAINT,
    "newline": "x\ny: ok",
    "nul": "a\0b",
    "bidi": "\u202e.abc",
    "zero-width": "gpu\u200b\u2060\ufeff",
    "surrogate": "\ud800",
    "c1": "\x9b2K\x85",
    "separators": "\u2028\u2029",
    "invisible": "\u3164\U000e0041",
}


@pytest.fixture
def forest(compiled: Artefacts) -> str:
    return compiled("ring gpus=4", "allgather").file(".forest.json").read_text()


def check_seen(text: str) -> None:
    """Every character of a terminal's text can be seen, but for the ends of lines."""
    wrong = {c for c in text if not c.isprintable() and c != "\n"}
    assert not wrong, f"{wrong} in {text!r}"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_escape_spells_out(name: str) -> None:
    shown = escape(f"a {name} b")
    assert shown.startswith("a ")
    assert shown.endswith(" b")
    assert "\\" in shown
    assert name not in shown
    check_seen(shown)
    assert "\n" not in shown
    shown.encode("utf-8")
    if name.isascii() or name in ("\ud800", "\u202e.abc"):  # nothing is lost
        assert shown == "a " + name.encode("unicode_escape").decode() + " b"


def test_escape_leaves_what_can_be_seen() -> None:
    for text in ("", "box0/gpu1 [b]", "häuser 图 é", "a\\b"):
        assert escape(text) == text


def test_escape_cuts_what_fills_the_screen() -> None:
    shown = escape("x" * 100_000)
    assert shown == "x" * LONGEST + "... (100,000 characters)"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("what", ["topology", "node", "wrong", "key"])
def test_verify_shows_no_character_that_hides(
    forest: str, call: Run, tmp_path: Path, name: str, what: str
) -> None:
    data = json.loads(forest)
    if what == "topology":
        data["topology"]["name"] = name
    elif what == "key":
        data[name] = 1
    else:
        data = json.loads(json.dumps(data).replace('"gpu0"', json.dumps(name)))
        if what == "wrong":
            data["trees"][0]["edges"] = data["trees"][0]["edges"][:1]
    path = tmp_path / "x.forest.json"
    path.write_text(json.dumps(data))
    code, out, err = call("verify", str(path))
    assert code == (1 if what in ("wrong", "key") else 0)
    check_seen(out + err)
    said = err.replace(f"forestcoll: note: {NO_LATENCIES}\n", "")
    assert len(said.splitlines()) == code
    first, *rest = out.splitlines() or [""]
    assert first == ("" if code else f"{path}: ok")
    assert all(line.startswith("  ") for line in rest)  # none that a name has begun
    code, out, err = call("verify", str(path), "--json")
    check_seen(out + err)
    assert out.isascii()
    if what == "topology":
        assert json.loads(out)[0]["figures"]["topology"] == name


@pytest.mark.parametrize("name", ["escape", "bidi", "newline"])
def test_plans_and_tables_show_no_character_that_hides(
    compiled: Artefacts, call: Run, tmp_path: Path, name: str
) -> None:
    plan = tmp_path / "x.mscclpp.json"
    text = compiled("ring gpus=4", "allgather").file(".mscclpp.json").read_text()
    assert "ring-4" in text
    plan.write_text(text.replace("ring-4", json.dumps(NAMES[name])[1:-1]))
    for arguments in (("verify", str(plan)), ("run", str(plan), "--size", "768", "-n", "1")):
        code, out, err = call(*arguments)
        assert (code, err) == (0, "")
        check_seen(out)
    assert escape(NAMES[name]) in out


def test_progress_shows_no_character_that_hides() -> None:
    progress = StageProgress(f"verifying {PAINT}")
    check_seen(progress._words())
    progress(PAINT, 0.5)
    assert progress._words() == escape(PAINT) + " 50%"


def test_a_wrong_forest_says_so_on_a_terminal(forest: str, tmp_path: Path) -> None:
    """What is shown is what a person sees: no line is wiped out or moved."""
    data = json.loads(json.dumps(json.loads(forest)).replace('"gpu0"', json.dumps(PAINT)))
    data["trees"][0]["edges"] = data["trees"][0]["edges"][:1]
    path = tmp_path / "paint.forest.json"
    path.write_text(json.dumps(data))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "forestcoll", "verify", str(path)]
    done = subprocess.run(command, stdout=theirs, stderr=theirs, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 1
    assert shown.startswith("forestcoll: error:")
    check_seen(shown.replace("\r\n", "\n"))
    assert all(line.startswith("  ") for line in shown.splitlines()[1:])  # wrapped, and no more
