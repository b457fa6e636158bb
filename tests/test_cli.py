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
from forestcoll.ui.cli.options import COLLECTIVES
from forestcoll.ui.cli.types import parse_size

SOURCE = Path(forestcoll.__file__).parents[1]
RING = ("-t", "ring", "--set", "gpus=4")


def environment(**more: str) -> dict[str, str]:
    """The process's own, with this package in it from any directory."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), **more}


def test_version_and_help(call: Run) -> None:
    assert fine(call("--version")) == f"forestcoll {forestcoll.__version__}\n"
    assert fine(call("synthesize", "-h")).startswith("Usage: forestcoll synthesize ")


def test_no_command_shows_help_as_usage_error(call: Run) -> None:
    code, out, err = call()
    assert (code, out) == (2, "")
    assert "Usage: forestcoll" in err


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


def test_synthesize_verify_run(call: Run, tmp_path: Path) -> None:
    """The way of the README: three files that verify, two plans that run."""
    out = fine(call("synthesize", *RING, "-c", "allreduce", "-o", "out/"))
    names = [f"ring-4.allreduce{s}" for s in (".forest.json", ".msccl.xml", ".mscclpp.json")]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(names)
    for word in ("algbw", "bound", "of optimal", "100 %", "trees", "height", "bottleneck", "time"):
        assert word in out
    for name in names:
        assert f"out/{name}" in out
    out = fine(call("verify", *(f"out/{name}" for name in names)))
    assert all(f"out/{name}: ok\n" in out for name in names)
    for name in names[1:]:
        out = fine(call("run", f"out/{name}", "--size", "64K", "--size", "1M"))
        lines = [line.split() for line in out.splitlines() if not line.startswith("#")]
        assert [line[0] for line in lines] == ["65536", "1048576"]
        assert all(line[2:5] == ["float32", "sum", "-1"] for line in lines)
        assert all(line[8] == line[12] == "0" for line in lines)
        assert "# Out of bounds values : 0 OK" in out
    code, out, err = call("run", f"out/{names[1]}", "--size", "64K", "--size", "900T")
    assert (code, [line.split()[0] for line in out.splitlines()][4]) == (1, "65536")  # is not lost
    assert "size 989560464998400: the ranks' buffers need" in err


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_runs(collective: str, call: Run) -> None:
    rooted = ["--root", "gpu2"] if collective in ("broadcast", "reduce") else []
    fine(call("synthesize", *RING, "-c", collective, *rooted, "-o", "out/"))
    for suffix in (".msccl.xml", ".mscclpp.json"):
        plan = f"out/ring-4.{collective}{suffix}"
        code, out, _ = call("run", plan, "--size", "100000", "--dtype", "int32", "--json")
        assert code == 0
        rows = json.loads(out)["rows"]
        assert {row["mode"] for row in rows} == {"out-of-place", "in-place"}
        assert all(row["wrong"] == 0 and row["dtype"] == "int32" for row in rows)
        if rooted:
            assert all(row["root"] == 2 for row in rows)


def test_roots_by_rank_and_by_id_are_the_same(call: Run) -> None:
    arguments = ("synthesize", *RING, "-c", "broadcast", "--format", "forest", "-o", "-")
    by_id = call(*arguments, "--root", "gpu3")[1]
    assert by_id == call(*arguments, "--root", "3")[1]
    assert {tree["root"] for tree in json.loads(by_id)["trees"]} == {"gpu3"}


def test_standard_output_holds_the_file_only(call: Run, tmp_path: Path) -> None:
    arguments = ("synthesize", *RING, "-c", "allgather", "--format")
    code, out, err = call(*arguments, "msccl-xml", "-o", "-")
    assert code == 0
    assert out.startswith("<algo ")
    assert "algbw" in err
    fine(call(*arguments, "msccl-xml", "-o", "plan.xml"))
    assert (tmp_path / "plan.xml").read_text() == out


def test_force_overwrites(call: Run, tmp_path: Path) -> None:
    arguments = ("synthesize", *RING, "-c", "allgather", "-o", "x.forest.json")
    fine(call(*arguments))
    (tmp_path / "x.forest.json").write_text("old")
    assert call(*arguments)[0] == 1
    assert (tmp_path / "x.forest.json").read_text() == "old"
    fine(call(*arguments, "--force"))
    assert '"forestcoll.forest/1"' in (tmp_path / "x.forest.json").read_text()


def test_target_chooses_the_formats(call: Run, tmp_path: Path) -> None:
    fine(call("synthesize", *RING, "-c", "allgather", "--target", "mscclpp", "-o", "a/"))
    assert {p.suffix for p in (tmp_path / "a").iterdir()} == {".json"}
    fine(call("synthesize", *RING, "-c", "allgather", "--target", "rccl", "-o", "b/"))
    assert sorted(p.suffix for p in (tmp_path / "b").iterdir()) == [".json", ".xml"]


def test_json_summary_of_synthesize(call: Run) -> None:
    out = fine(call("synthesize", *RING, "-c", "allgather", "-o", "out/", "--json"))
    summary = json.loads(out)
    assert summary["topology"] == "ring-4"
    assert summary["algbw"] == summary["bound"] == "400/3"
    assert summary["optimal"] is True
    assert set(summary["files"]) == {"forest", "msccl-xml", "mscclpp-json"}
    assert summary["seconds"]["solve"] >= 0


def test_optimum(call: Run) -> None:
    two = ("optimum", "-t", "dgx-a100", "--set", "boxes=2", "-c", "allgather")
    out = fine(call(*two))
    assert "1040/3 (346.667) GB/s" in out
    assert "every GPU's ingress: 325 GB/s" in out
    assert "13 per root" in out
    summary = json.loads(fine(call(*two, "--json")))
    assert summary["algbw"] == "1040/3"
    assert summary["trees_per_root"] == 13
    assert len(summary["cut"][0]) >= 1
    out = fine(call("optimum", "-t", "dgx-a100.yaml", "--set", "boxes=4", "-c", "allgather"))
    assert "800/3" in out
    assert "every box (8 GPUs): 200 GB/s" in out
    out = fine(call("optimum", *RING, "-c", "broadcast", "--root", "1"))
    assert "from gpu1" in out


def test_ranks_are_split_and_globbed(call: Run) -> None:
    two = ("optimum", "-t", "dgx-a100", "--set", "boxes=2", "-c", "allgather", "--json")
    summary = json.loads(fine(call(*two, "--ranks", "box0/*,box1/gpu0", "--ranks", "box1/gpu1")))
    assert summary["ranks"] == 10


def test_topology_list_show_check_expand(call: Run, tmp_path: Path) -> None:
    out = fine(call("topology", "list"))
    for name in ("dgx-a100", "mi250", "torus-3d", "fat-tree"):
        assert name in out
    listed = {entry["name"] for entry in json.loads(fine(call("topology", "list", "--json")))}
    assert {"dgx1-v100", "dgx-h100", "gb200-nvl72", "mi300x", "dragonfly"} <= listed
    out = fine(call("topology", "show", "dgx-a100", "--set", "boxes=2"))
    assert "16 GPUs, 3 switches, 32 links" in out
    assert "325 GB/s each" in out
    assert "format: forestcoll.topology/1" in fine(call("topology", "show", "mi250", "--source"))
    shown = json.loads(fine(call("topology", "show", "dgx-a100", "--json")))
    assert len(shown["gpus"]) == 8
    explicit = fine(call("topology", "expand", "dgx-a100", "--set", "boxes=2"))
    fine(call("topology", "expand", "dgx-a100", "--set", "boxes=2", "-o", "two.yaml"))
    assert (tmp_path / "two.yaml").read_text() == explicit
    assert call("topology", "expand", "dgx-a100", "-o", "two.yaml")[0] == 1
    out = fine(call("topology", "check", "two.yaml"))
    assert out == ("two.yaml: ok: 16 GPUs, 3 switches, 32 links; every GPU reaches every other\n")
    summary = fine(call("optimum", "-t", "two.yaml", "-c", "allgather", "--json"))
    assert json.loads(summary)["algbw"] == "1040/3"


def test_verify_json(call: Run) -> None:
    fine(call("synthesize", *RING, "-c", "allgather", "-o", "out/"))
    files = ["out/ring-4.allgather.forest.json", "out/ring-4.allgather.msccl.xml", "none"]
    code, out, err = call("verify", *files, "--json")
    results = json.loads(out)
    assert code == 1
    assert [r["ok"] for r in results] == [True, True, False]
    assert [r.get("kind") for r in results] == ["forest", "msccl-xml", None]
    assert results[0]["figures"]["algbw"] == "400/3"
    assert "none" in results[2]["error"]
    assert err.count("\n") == 1


def test_verify_reads_standard_input(call: Run) -> None:
    fine(call("synthesize", *RING, "-c", "allgather", "-o", "x.forest.json"))
    with open("x.forest.json", encoding="utf-8") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "forestcoll", "verify", "-"],
            stdin=stream, capture_output=True, text=True, env=environment(), check=True,
        )  # fmt: skip
    assert done.stdout.startswith("-: ok\n")


def test_mscclpp_always_sums(call: Run) -> None:
    fine(call("synthesize", *RING, "-c", "allreduce", "-o", "x.mscclpp.json"))
    code, out, err = call("run", "x.mscclpp.json", "--size", "64K", "--op", "max")
    assert code == 0
    assert "max" in out
    assert err.startswith("forestcoll: note: MSCCL++'s own executor always sums")


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
