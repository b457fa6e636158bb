"""The command line: commands, their output, where it goes, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import Run, fine

import forestcoll
from forestcoll.common.errors import PlanError
from forestcoll.ui.cli.types import parse_size

SOURCE = Path(forestcoll.__file__).parents[1]
RING = ("-t", "ring", "--set", "gpus=4")


def environment(**more: str) -> dict[str, str]:
    """The process's own, with this package in it from any directory."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), **more}


def test_version_and_help(call: Run) -> None:
    assert fine(call("--version")) == f"forestcoll {forestcoll.__version__}\n"
    assert fine(call("synthesize", "-h")).startswith("Usage: forestcoll synthesize ")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("832", 832),
        ("64M", 64 << 20),
        ("1k", 1024),
        ("8G", 8 << 30),
        ("1.5M", 3 << 19),
        ("4KiB", 4096),
        ("2MB", 2 << 20),
        ("1T", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


def test_options_offer_what_the_engine_can_do() -> None:
    from forestcoll.execute import cpu
    from forestcoll.ui.cli.run import DTYPES, OPS

    assert set(DTYPES) <= set(cpu.DTYPES)
    assert set(OPS) <= set(cpu.OPS)


def test_verify_reads_standard_input(call: Run) -> None:
    fine(call("synthesize", *RING, "-c", "allgather", "-o", "x.forest.json"))
    with open("x.forest.json", encoding="utf-8") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "forestcoll", "verify", "-"],
            stdin=stream, capture_output=True, text=True, env=environment(), check=True,
        )  # fmt: skip
    assert done.stdout.startswith("-: ok\n")


def test_wrong_elements_mean_exit_1(call: Run) -> None:
    """A plan whose received chunks land in each other's place runs to its end: the data tell."""
    fine(call("synthesize", *RING, "-c", "allgather", "-o", "x.msccl.xml"))
    plan = Path("x.msccl.xml").read_text()
    rank_0, rest = plan.split("</gpu>", 1)
    places = re.findall(
        r'dstbuf="o" dstoff="(\d+)"[^\n]* type="r"|type="r"[^\n]*dstoff="(\d+)"', rank_0
    )
    first, second, *_ = dict.fromkeys(a or b for a, b in places)
    swapped = {first: second, second: first}
    wrong = re.sub(
        r'(type="r"[^\n]*dstoff=)"(\d+)"',
        lambda m: f'{m[1]}"{swapped.get(m[2], m[2])}"',
        rank_0,
    )
    Path("wrong.msccl.xml").write_text(f"{wrong}</gpu>{rest}")
    assert call("verify", "wrong.msccl.xml")[0] == 1
    code, out, _ = call("run", "wrong.msccl.xml", "--size", "64K")
    assert code == 1
    assert re.search(r"# Out of bounds values : [1-9]\d* FAILED", out)
    assert "# wrong: " in out


def test_doctor(call: Run) -> None:
    out = fine(call("doctor"))
    for word in ("Python", "native kernel", "native engine", "C++ compiler", "torch", "nvcc"):
        assert word in out
    assert "fabric lab" in out
    findings = json.loads(fine(call("doctor", "--json")))
    assert all(f["state"] in ("ok", "-") for f in findings)


def test_doctor_fails_when_native_code_is_missing(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "forestcoll.graph.kernel._kernel", None)
    code, out, err = call("doctor")
    assert code == 1
    assert "MISSING" in out
    assert "pip install ." in out
    assert err == "forestcoll: error: needed and missing: native kernel\n"


def test_library_errors_become_one_line(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from forestcoll import plans

    def fail(path: Path) -> object:
        raise PlanError("what, where, what to do")

    monkeypatch.setattr(plans, "read_plan", fail)
    assert call("run", "x") == (1, "", "forestcoll: error: what, where, what to do\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "forestcoll: interrupted\n"),
        (MemoryError(), 1, "forestcoll: error: out of memory; "),
        (OSError(28, "No space left on device"), 1, "forestcoll: error: No space left on device\n"),
    ],
)
def test_what_may_happen_anywhere(
    error: BaseException, code: int, message: str, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forestcoll import plans

    def fail(path: Path) -> object:
        raise error

    monkeypatch.setattr(plans, "read_plan", fail)
    got, out, err = call("run", "x")
    assert (got, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    line = "topology expand torus-3d --set x=12 --set y=12"
    command = [sys.executable, "-m", "forestcoll", *line.split()]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_interrupt_from_outside(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a long solve: one line, 130, no files."""
    line = "synthesize -t torus-3d --set x=8 --set y=8 --set z=8 -c allgather -o out/"
    process = subprocess.Popen(
        [sys.executable, "-m", "forestcoll", *line.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    stat = Path("/proc", str(process.pid), "stat")
    while process.poll() is None:  # by its own clock: a busy machine may import for seconds
        ticks = stat.read_text().rsplit(")", 1)[1].split()[11]
        if int(ticks) > 1.5 * os.sysconf("SC_CLK_TCK"):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "forestcoll: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def on_a_terminal(command: list[str], cwd: Path, **more: str) -> bytes:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="80", **more)
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env, cwd=cwd)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return written


def test_colours_follow_the_terminal_and_no_color(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forestcoll", "topology", "show", "ring"]
    assert b"\x1b[1m" in on_a_terminal(command, tmp_path)
    plain = on_a_terminal(command, tmp_path, NO_COLOR="1")
    assert re.search(rb"\x1b\[[0-9;]*3[0-9]m", plain) is None
    done = subprocess.run(command, capture_output=True, env=environment(), cwd=tmp_path, check=True)
    assert b"\x1b" not in done.stdout


def test_progress_is_shown_on_a_terminal_after_a_second(tmp_path: Path) -> None:
    code = (
        "import time; from forestcoll.ui.report.progress import StageProgress\n"
        "with StageProgress() as p:\n"
        "    p('packing', 0.25); time.sleep({})"
    )
    slow = on_a_terminal([sys.executable, "-c", code.format(1.6)], tmp_path)
    assert b"packing 25%" in slow
    quick = on_a_terminal([sys.executable, "-c", code.format(0.1)], tmp_path)
    assert quick == b""
    command = [sys.executable, "-c", code.format(1.3)]
    done = subprocess.run(command, capture_output=True, env=environment(), check=True)
    assert done.stdout == done.stderr == b""
