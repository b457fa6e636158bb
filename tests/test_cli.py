"""The command line as a process, on a terminal, and where something else fails.

What commands do and refuse stands in commands/*.txt and refusals/*.txt.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from artefacts import Artefacts
from command_line import Run, as_json, fine
from graphs import machine
from test_comparison import published_ring

import forestcoll
from forestcoll import plans
from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.compile import plan_set, together
from forestcoll.execute import cpu
from forestcoll.program import REDUCTIONS
from forestcoll.program.sizes import parse_size
from forestcoll.study.comparison import play
from forestcoll.ui.cli import cli
from forestcoll.ui.cli.run import DTYPES
from forestcoll.ui.report.progress import StageProgress

ROOT = Path(forestcoll.__file__).parents[1]
PROGRAM = [sys.executable, "-m", "forestcoll"]
DEEP = "[" * 100_000 + "]" * 100_000


def environment(**more: str) -> dict[str, str]:
    """The process's own, with this package in it from any directory."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def start(line: str, cwd: Path) -> subprocess.Popen[str]:
    """The program in a process of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*PROGRAM, *line.split()], stdout=pipe, stderr=pipe, text=True, env=environment(), cwd=cwd
    )


def test_sizes() -> None:
    said = ("832", "64M", "1k", "8G", "1.5M", "4KiB", "2MB", "1T", "7B")
    assert [parse_size(text) for text in said] == [
        *(832, 64 << 20, 1024, 8 << 30, 3 << 19, 4096, 2 << 20, 1 << 40, 7)
    ]


def test_options_offer_what_the_engine_can_do() -> None:
    assert set(DTYPES) <= set(cpu.DTYPES)
    assert set(REDUCTIONS) <= set(cpu.OPS)


def test_case_and_underscores_make_no_difference() -> None:
    assert did_you_mean("GPU_7", ["gpu6", "gpu7"]) == "; did you mean 'gpu7'?"
    assert did_you_mean("xyz", ["gpu0"]) == ""


def commands(
    command: click.Command = cli, name: str = "forestcoll"
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from commands(inner, f"{name} {inner.name}")


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_help_has_examples_that_parse(
    name: str, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is a command line whose options exist (files that it names may not)."""
    _, _, text = fine(call(*name.split()[1:], "--help")).partition("Examples:\n")
    lines = text.replace("\\\n", " ").splitlines()
    shown = [
        line.strip() for line in lines if " forestcoll " in f" {line}" and "_COMPLETE" not in line
    ]
    assert shown
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: 0)
    for line in shown:
        words = shlex.split(line, comments=True)
        words = words[words.index("forestcoll") + 1 :]
        for end in (">", "&&", "|"):
            words = words[: words.index(end)] if end in words else words
        assert call(*words) == (0, "", ""), line


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bom", b"\xff\xfe\x00"),
        ("bytes", bytes(range(256)) * 4),
        ("deep.json", DEEP.encode()),
        ("deep.yaml", f"format: forestcoll.topology/1\nnodes: {DEEP[95_000:105_000]}\n".encode()),
        ("tabs.yaml", b"format:\tx\n\tname: y\n"),
    ],
)
def test_odd_bytes_are_no_topology_forest_or_plan(
    name: str, text: bytes, call: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text)
    for command in ("optimum -c allgather -t", "synthesize -c allgather -o out/ -t",
                    "topology check", "verify", "run"):  # fmt: skip
        code, out, err = call(*command.split(), name)
        assert (code, out, err.count("\n")) == (1, "", 1), command
        assert err.startswith("forestcoll: error: ")
        assert name in err
        assert len(err) < 1000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("synthesize -t nosuch -c allreduce -o out", 1, "nosuch"),
        ("synthesize -t ring -c allredcue -o out", 2, "allredcue"),
    ],
)
def test_as_a_process(line: str, code: int, word: str, tmp_path: Path) -> None:
    process = start(line, tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert re.fullmatch(rf"forestcoll: error: .*{word}.*\n", err)
    assert list(tmp_path.iterdir()) == []


def test_verify_reads_standard_input(compiled: Artefacts) -> None:
    with compiled("ring gpus=4", "allgather").file(".forest.json").open() as stream:
        done = subprocess.run(
            [*PROGRAM, "verify", "-"], stdin=stream, capture_output=True, env=environment()
        )
    assert done.stdout.startswith(b"-: ok\n")


def test_doctor(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {each["state"] for each in as_json("doctor")} <= {"ok", "-"}
    monkeypatch.setitem(sys.modules, "forestcoll.graph.kernel._kernel", None)
    code, out, err = call("doctor")
    assert code == 1
    assert "MISSING" in out
    assert "pip install ." in out
    assert err == "forestcoll: error: needed and missing: native kernel\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PlanError("what, where, what to do"), 1, "error: what, where, what to do\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (MemoryError(), 1, "error: out of memory; "),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
    ],
)
def test_what_may_happen_anywhere(
    error: BaseException, code: int, message: str, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> object:
        raise error

    monkeypatch.setattr(plans, "read_plan", fail)
    got, out, err = call("run", "x")
    assert (got, out) == (code, "")
    assert err.startswith(f"forestcoll: {message}")
    assert err.count("\n") == 1


def test_a_folder_that_is_only_read(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named is the folder that was asked for, not what is made in it on the way."""
    make = os.mkdir

    def refuse(path: str | Path, mode: int = 0o777) -> None:
        if Path(path).parent == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse)
    said = f"forestcoll: error: cannot write {tmp_path}: Permission denied\n"
    assert call("view", "ring", "-o", str(tmp_path / "page.html")) == (1, "", said)


def test_errors_of_verify_stand_once(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal in the list; where that goes into a file, on standard error as well."""
    monkeypatch.setenv("COLUMNS", "1000")  # a terminal wraps longer lines
    text = '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2"/>'
    (tmp_path / "plan.xml").write_text(text)
    code, out, err = call("verify", "plan.xml")
    assert code == 1
    assert "error XML-" in out
    assert "error: " in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert call("verify", "plan.xml") == (1, out, "")


# --- processes and terminals ----------------------------------------------------------------------


def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    process = start("topology expand torus-3d --set x=12 --set y=12", tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_interrupt_from_outside(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a long solve: one line, 130, no files."""
    line = "synthesize -t torus-3d --set x=8 --set y=8 --set z=8 -c allgather -o out/"
    process = start(line, tmp_path)
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
    command = [*PROGRAM, "topology", "show", "ring"]
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
    # the first: a busy machine is late
    slow, quick, alone = ([sys.executable, "-c", code.format(s)] for s in (4, 0.1, 1.3))
    with ThreadPoolExecutor() as pool:
        shown = pool.submit(on_a_terminal, slow, tmp_path)
        assert on_a_terminal(quick, tmp_path) == b""
        done = subprocess.run(alone, capture_output=True, env=environment(), check=True)
    assert done.stdout == done.stderr == b""
    assert b"packing 25%" in shown.result()


def test_stages_say_what_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    topology = machine("ring gpus=4")
    plan_set.make(topology, "allgather", 1 << 16, 1 << 20, progress=lambda s, _: told.append(s))
    assert any(text.startswith("lower, msccl-xml, candidate 1 of ") for text in told)
    assert any(text.startswith("write, mscclpp-json") for text in told)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = StageProgress()
    progress("lower, msccl-xml, candidate 1 of 2", 0.0)
    assert progress._words() == "spreading plans over thread blocks, msccl-xml, candidate 1 of 2"
    progress("ring, size 1 of 4", 0.0)
    now[0] = 110.0
    progress("ring, size 2 of 4", 0.25)
    assert progress._words() == "ring, size 2 of 4 25%, about 30 s left"
    progress("verifying", 0.0)
    assert progress._words() == "verifying"


# --- groups, times, comparisons -------------------------------------------------------------------

BOX = ("synthesize", "-t", "dgx-h100", "-c", "allreduce", "--target", "msccl")


def blocks(path: Path) -> int:
    """Thread blocks of the fullest rank of a plan."""
    return max(len(rank.thread_blocks) for rank in plans.read_plan(path).ranks)


def test_plans_of_groups_keep_their_links_busy(call: Run) -> None:
    halves = ("--groups", "box0/gpu[0-1];box0/gpu[2-3]", "--format", "msccl-xml")
    fine(call(*BOX, *halves, "-o", "auto/"))
    fine(call(*BOX, *halves, "--instances", "1", "-o", "one/"))
    for g in range(2):
        name = f"dgx-h100-1-group{g}.allreduce.msccl.xml"
        assert blocks(Path("auto", name)) > blocks(Path("one", name))
        assert fine(call("verify", "--no-simulate", f"auto/{name}")).count(": ok\n") == 1
    code, _, err = call(*BOX, *halves, "--instances", "1024", "-o", "many/")
    assert code == 1
    assert "steps" in err


def test_groups_of_a_gpu_share_its_multiprocessors(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both plans of a GPU run at the same time, and all thread blocks of both must be resident."""
    monkeypatch.setattr(together, "sms_of", lambda name: 24)
    most = []
    for others in ("4-7", "0-3"):
        fine(call(*BOX, "--groups", f"box0/gpu[0-3];box0/gpu[{others}]", "-o", f"{others}/"))
        most.append(max(map(blocks, Path(others).glob("*.xml"))))
    assert 12 < most[0] <= 24
    assert most[1] <= 12


def timed(plan: str, *words: object) -> float:
    """Microseconds of a stored plan."""
    return float(as_json("time", ROOT / "schedules" / plan, *words)["timings"][0]["time_us"])


def test_latencies_come_from_the_topology() -> None:
    def fair(*words: object) -> float:
        return timed("mi300x-1/allgather.msccl.xml", "--rule", "fair", "--size", "64K", *words)

    bare = fair("--latency", 0)
    assert fair("-t", "mi300x", "--latency", 0) == pytest.approx(bare)
    assert fair("-t", "mi300x") == fair() > bare  # the file's links are the catalogue's
    assert fair("--latency", 5) == pytest.approx(bare + 5)
    still = fair("--signal", 0)
    assert fair("--signal", 2) == pytest.approx(still + 2)
    assert fair() == pytest.approx(still + 3.4)  # a hop of Simple
    assert fair("--block-rate", 1) > 10 * (bare - 3.4)


def test_messages_are_those_of_the_machine_or_as_asked() -> None:
    """LL128 takes other messages on RCCL, which no A100 runs; Simple the same."""
    flagged, plain = (
        [timed(f"dgx-a100-2/{name}.msccl.xml", "--rule", "fifo", "--size", "16M", *target)
         for target in ((), ("--target", "msccl"), ("--target", "rccl"))]
        for name in ("broadcast", "allgather")
    )  # fmt: skip
    assert flagged[0] == flagged[1] != flagged[2]
    assert plain[0] == plain[2]


COMPARE = shlex.split("compare -t ring --set gpus=4 -c allgather --sizes 64K,1M --against")


def test_rows_of_a_comparison_come_as_they_are_known(
    capsys: pytest.CaptureFixture[str], call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours first, before any baseline is made."""
    said = []
    add = play._Game.add_baselines

    def watch(self: play._Game, names: Sequence[str] | None) -> None:
        said.append(capsys.readouterr().out)
        add(self, names)

    monkeypatch.setattr(play._Game, "add_baselines", watch)
    rest = fine(call(*COMPARE, "rings"))
    lines = said[0].splitlines()
    assert lines[0] == "compare     allgather on ring-4, 4 ranks"
    head = lines.index("") + 1
    assert " ".join(lines[head].split()) == "schedule size fair, us GB/s in order, us GB/s plan"
    assert [line.split()[:3] for line in lines[head + 1 :]] == [
        ["forestcoll", "64", "KiB"],
        ["forestcoll", "1", "MiB"],
    ]
    assert rest.startswith("rings ")


@pytest.mark.parametrize("more", [[], ["--json"], ["--csv"]])
def test_an_interrupted_comparison_keeps_what_is_known(
    more: list[str], call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: play._Game, names: Sequence[str] | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(play._Game, "add_baselines", stop)
    code, out, err = call(*COMPARE, "rings", *more)
    assert code == 130
    assert err.splitlines()[-1] == "forestcoll: interrupted"
    if more == ["--json"]:
        told: dict[str, Any] = json.loads(out)
        assert told["partial"] is True
        rows = {(row["schedule"], row["size"]) for row in told["rows"]}
        assert rows == {("forestcoll", 1 << 16), ("forestcoll", 1 << 20)}
    elif more:
        assert "note: partial: what was not played yet is missing" in err
        assert out.count("\nforestcoll,ours,") == 4
    else:
        assert "partial  cut off before all was played: what is missing is left out" in out
        assert re.search(r"^64 KiB +3\.69 us ", out, re.MULTILINE)


def test_a_file_stands_in_every_table_with_factor_and_reason(call: Run) -> None:
    Path("mine.xml").write_text(published_ring())
    out = fine(call(*COMPARE, "none", "--with", "mine.xml", "--rule", "fair"))
    _, others = re.split(
        r"^schedule +size +time +algbw +of bound +ours +it takes\n", out, flags=re.M
    )
    first = others.splitlines()[0]
    assert re.search(r"^mine\.xml +64 KiB .* \d\.\d\d x  1 channel: \S+ of 100 GB/s a GPU$", first)
    busiest = out[out.index("busiest link") :]
    assert re.search(r"^mine\.xml +gpu\d -> gpu\d", busiest, re.MULTILINE)
