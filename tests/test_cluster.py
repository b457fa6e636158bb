"""Ranks in several processes: right data over every wire, and one end for all that can happen."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import programs as pg
import pytest
from apart import run_apart
from artefacts import Artefacts
from command_line import finished
from edits import rows_of
from notation import parse

from forestcoll.common.errors import (
    ArgumentError,
    ExecutionError,
    ForestCollError,
    UnsupportedError,
)
from forestcoll.execute import cpu
from forestcoll.execute.cluster import division, hosts, launchers, ucx
from forestcoll.execute.cluster.division import deal
from forestcoll.execute.cluster.messages import Stream, accept, greet
from forestcoll.plans import dumps
from forestcoll.program import Program

SAMPLES = pg.samples()
LACKING = "" if ucx.find_library() and ucx.find_headers() else "no UCX (Debian: libucx-dev)"
REQUIRED = os.environ.get("FORESTCOLL_UCX_TESTS") == "required"
over_ucx = pytest.mark.skipif(bool(LACKING) and not REQUIRED, reason=LACKING or "it runs")
APART = {name: program for name, program in SAMPLES.items() if "fabric" not in name}
"""Those that need no switch between their ranks."""

Done = tuple[int, str, str]


@pytest.fixture(autouse=True, scope="module")
def _builds(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is compiled on first use stays with the tests."""
    cache = request.config.cache
    assert cache is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORESTCOLL_CACHE", str(cache.mkdir("builds")))
        yield


class Job:
    """Processes of `forestcoll run` on this machine, as a launcher would start them."""

    def __init__(self, processes: int, words: Sequence[str], **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.started = time.monotonic()
        given = {"MASTER_ADDR": "127.0.0.1", "FORESTCOLL_PORT": port, "WORLD_SIZE": str(processes)}
        self.environment = os.environ | given | environment
        count = min(processes, 1) if "WORLD_SIZE" in environment else processes
        self.children = [
            subprocess.Popen(
                [sys.executable, "-m", "forestcoll", "run", *words],
                env=self.environment | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]

    def wait(self, limit: float = 120) -> list[Done]:
        """Exit codes and outputs of all."""
        done = []
        for child in self.children:
            try:
                out, err = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            done.append((child.returncode, out, err))
        return done

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def await_launches(self) -> None:
        """Returns once all processes have threads of a launch."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            threads = [len(os.listdir(f"/proc/{child.pid}/task")) for child in self.children]
            if min(threads) >= 4:  # its own, the group's, the wire's, a worker
                return
            time.sleep(0.02)
        raise AssertionError("no launch began")


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Jobs whose processes are gone when the test is."""
    started: list[Job] = []
    yield started
    for job in started:
        job.kill()
        for child in job.children:
            child.communicate()


def write(program: Program, folder: Path) -> str:
    path = folder / ("plan.xml" if program.style == "fifo" else "plan.json")
    path.write_text(dumps(program, pg.format_of(program)))
    return str(path)


# --- the unkind wire


@pytest.mark.parametrize("name", APART)
def test_samples_are_right_however_late_and_disorderly(name: str) -> None:
    program = APART[name]
    for seed, (processes, lazy) in enumerate(((2, True), (program.n, False), (program.n, True))):
        result = run_apart(program, 5000, processes, seed=seed, lazy=lazy, iterations=2)
        assert result.wrong == 0, result.mismatches


@pytest.mark.parametrize("target", ["rccl", "mscclpp"])
@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_plans_are_right_over_the_unkind_wire(
    compiled: Artefacts, collective: str, target: str
) -> None:
    made = compiled("rail boxes=4 gpus=2 rails=2", collective, "--target", target)
    result = run_apart(*made.programs.values(), 1 << 14, 4, seed=3)
    assert result.wrong == 0, result.mismatches


REUSE = """
broadcast onesided root=0 places=out
rank 2 2 1
block channels=port:1:0
copy i0:2 -> o0:2
relaxed_wait -> over=0
copy i0:1 -> s0:1
put s0:1 -> o0:1@1 over=0
flush -> over=0
copy i1:1 -> s0:1
put_signal s0:1 -> o1:1@1 over=0
flush -> over=0
rank 2 2
block channels=port:0:0
relaxed_signal -> over=0
wait -> over=0
"""
"""Rank 0 puts both chunks from the same place, one after the other."""


def wrong_of(program: Program, **how: Any) -> int:
    """The most wrong elements of several orders of delivery; an error counts as one."""
    most = 0
    for seed, lazy in itertools.product(range(3), (False, True)):
        try:
            result = run_apart(program, 40_000, 2, seed=seed, lazy=lazy, iterations=2, **how)
            most = max(most, result.wrong)
        except ExecutionError:
            most = max(most, 1)
    return most


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_source_waits_until_it_has_left(flushes: bool, strict: bool) -> None:
    """By the plan's flush, or where that lacks by the engine's own waits."""
    program = parse(REUSE) if flushes else pg.edit(parse(REUSE), "0.0.4 -")
    assert bool(wrong_of(program, strict=strict)) == (strict and not flushes)


@pytest.mark.parametrize(
    ("edit", "base"),
    [
        ("0.0.4 -", REUSE),  # no flush
        ("0.0.6 = put s0:1 -> o1:1@1 over=0", REUSE),  # no signal
        ("1.0.1 -", REUSE),  # no wait
        ("0.0.6 = put_signal s0:1 -> o0:1@1 over=0", REUSE),  # another place
        ("0.0.6 + signal -> over=0", REUSE),  # a signal too many
    ],
)
def test_the_unkind_wire_finds_what_is_wrong_with_a_plan(edit: str, base: str) -> None:
    assert wrong_of(pg.edit(parse(base), edit), strict=True)


def test_the_unkind_wire_finds_what_is_wrong_with_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Marks that lack, and slots of two connections in one place."""
    reading, ring = SAMPLES["reading_allreduce"], pg.ring_allreduce(2)
    assert not wrong_of(reading)
    assert not wrong_of(ring)
    with monkeypatch.context() as patch:  # nothing is fetched
        patch.setattr(cpu, "mark_drains", lambda tables, *_, **__: tables)
        assert wrong_of(reading)
        assert wrong_of(pg.edit(parse(REUSE), "0.0.4 -"))
    lay_out = division.lay_out

    def overlap(*arguments: Any) -> division.Arenas:
        arenas = lay_out(*arguments)
        arenas.slots = [max(arenas.slots) if slot else 0 for slot in arenas.slots]
        return arenas

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "lay_out", overlap)
        assert wrong_of(pg.base("direct_reduce_scatter"))


def test_what_is_said_of_spoilt_programs_is_the_same_over_processes() -> None:
    """Rows of one machine: what is stuck, left behind or wrong is found and named alike."""
    for row in rows_of("runs.txt"):
        program = pg.edit(pg.base(row.base, *row.options), *row.edits)
        if program.n < 2 or "fabric" in row.base:
            continue
        try:
            result = run_apart(program, 4096, 2, seed=1)
        except ForestCollError as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            said = f"{type(error).__name__}: {text}".split("\n")
        else:
            said = [", ".join(f"{each.wrong} wrong {each.mode}" for each in result.rows)]
            said += result.mismatches[:1]
        assert [line.replace("\n", "\\n") for line in said] == row.said, row.name


def test_ranks_are_dealt_out_evenly() -> None:
    assert deal(8, 3) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert deal(4, 4) == [0, 1, 2, 3]
    with pytest.raises(UnsupportedError, match="5 processes for a plan of 4 ranks"):
        deal(4, 5)


def test_a_switch_needs_its_ranks_in_one_process() -> None:
    with pytest.raises(
        UnsupportedError, match=r"\(fabric_reduce_store\): goes over a switch of rank"
    ):
        run_apart(pg.base("fabric_allreduce"), 4096, 3)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        *((name, "sockets") for name in APART),
        *(pytest.param(name, "ucx", marks=over_ucx) for name in [*APART][::3]),
    ],
)
def test_samples_are_right_over_every_wire(name: str, wire: str) -> None:
    program = APART[name]
    for size in (7, 300_000)[wire == "ucx" :]:
        result = run_apart(program, size, program.n, wire=wire, iterations=3)
        assert result.wrong == 0, result.mismatches


def test_without_ucx_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORESTCOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(ucx.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(ucx, "wheel", lambda: None)
    monkeypatch.delenv(ucx.LIBRARY, raising=False)
    with pytest.raises(UnsupportedError, match=r"^UCX is not here: install it .*--wire sockets"):
        ucx.libraries()
    monkeypatch.setenv(ucx.LIBRARY, str(tmp_path / "lib" / "libucp.so"))
    with pytest.raises(UnsupportedError, match=r"^UCX cannot be loaded: .*libucp\.so"):
        ucx.libraries()


@over_ucx
def test_headers_of_ucx_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx, "HEADER", Path("ucp/api/none.h"))
    with pytest.raises(UnsupportedError, match=r"compiled on first use, and the header ucp/api/n"):
        ucx.libraries()


# --- real processes


@pytest.mark.parametrize(
    ("name", "processes", "wire"),
    [
        ("ring_allreduce", 3, "sockets"),
        pytest.param("reading_allreduce", 2, "ucx", marks=over_ucx),
        pytest.param("packet_allreduce", 3, "ucx", marks=over_ucx),
    ],
)
def test_processes_run_a_plan_together(
    name: str, processes: int, wire: str, jobs: list[Job], tmp_path: Path
) -> None:
    plan = write(SAMPLES[name], tmp_path)
    words = [plan, "--size", "100K", "--size", "7", "-d", "int32", "-o", "max", "-n", "3", "--json"]
    jobs.append(Job(processes, [*words, "--wire", wire]))
    first, *others = jobs[0].wait()
    assert first[0] == 0, first[2]
    rows = json.loads(first[1])["rows"]
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    assert len(rows) >= 2
    assert all((code, out) == (0, "") for code, out, _ in others)


def test_a_plan_that_is_stuck_over_processes_is_seen_at_once(
    jobs: list[Job], tmp_path: Path
) -> None:
    plan = write(pg.eager_exchange(3), tmp_path)
    jobs.append(Job(2, [plan, "--size", "4096"]))
    for code, _, err in jobs[0].wait():
        assert code == 1
        assert "these wait for each other:" in err
        assert "  rank 0, thread block 0, step 3 (send) waits until an earlier message" in err
    assert time.monotonic() - jobs[0].started < 40  # without a timeout: 60


LONG = ["--size", "16M", "-n", "100000"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_all_end_with_a_reason_when_one_is_gone_or_silent(
    number: signal.Signals, jobs: list[Job], tmp_path: Path
) -> None:
    """The first of a job, or the second of another."""
    plan = write(pg.ring_allreduce(3), tmp_path)
    jobs += (Job(3, [plan, *LONG]) for _ in range(2))
    for job in jobs:
        job.await_launches()
    begin = time.monotonic()
    for victim, job in enumerate(jobs):
        job.children[victim].send_signal(number)
    why = "is gone" if number == signal.SIGKILL else "has not been heard of for 5 s"
    for victim, job in enumerate(jobs):
        others = [child for k, child in enumerate(job.children) if k != victim]
        said = [child.communicate(timeout=90)[1] for child in others]
        assert all(f"error: process {victim}" in text and why in text for text in said), said
        assert all(child.returncode == 1 for child in others)
    assert time.monotonic() - begin < 20  # 6 where nothing else runs


def test_all_end_when_somebody_types_ctrl_c_at_one(jobs: list[Job], tmp_path: Path) -> None:
    jobs.append(Job(2, [write(pg.ring_allreduce(2), tmp_path), *LONG]))
    jobs[0].await_launches()
    jobs[0].children[1].send_signal(signal.SIGINT)
    (code, _, err), other = jobs[0].wait()
    assert code == 1
    assert "process 1 on" in err
    assert "was interrupted" in err
    assert other[0] == 130


def test_different_plans_and_options_are_refused_at_all(jobs: list[Job], tmp_path: Path) -> None:
    plan = write(pg.ring_allreduce(2), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    write(pg.ring_allgather(2), other)
    for words, what in (
        ([str(other / "plan.xml"), "--size", "4096"], "plan"),
        ([plan, "--size", "8192"], "size"),
        ([plan, "--size", "4096", "-d", "int8"], "--dtype"),
    ):
        job = Job(1, [plan, "--size", "4096"], WORLD_SIZE="2")
        jobs.append(job)
        environment = job.environment | {"RANK": "1"}
        second = subprocess.Popen(
            [sys.executable, "-m", "forestcoll", "run", *words],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        err = second.communicate(timeout=90)[1]
        assert second.returncode == 1
        assert f"has another {what} than" in err
        first = job.wait()[0][2]
        assert f"has another {what} than" in first
        assert "[" not in err + first
        assert "note" not in err  # the first process speaks for all


def test_a_file_that_is_there_is_refused_before_anybody_waits(
    jobs: list[Job], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("mine")
    plan = write(pg.ring_allreduce(2), tmp_path)
    jobs.append(Job(2, [plan, "--size", "4096", "--csv", str(tmp_path / "rows.csv")]))
    for code, _, err in jobs[0].wait():
        assert code == 1
        assert "rows.csv" in err
        assert "process" not in err  # nobody has met the other
    assert (tmp_path / "rows.csv").read_text() == "mine"


FULL = """mkdir -p "$0" && mount -t tmpfs -o size=4k none "$0" && head -c 4096 /dev/zero >"$0/all"
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk of its own")
@pytest.mark.parametrize(
    ("victim", "words"),
    [(0, "--csv {full}/rows.csv"), (1, "--wire ucx")],
    ids=lambda value: str(value).split()[0],
)
def test_all_end_with_a_reason_when_the_disk_of_one_is_full(
    victim: int, words: str, jobs: list[Job], tmp_path: Path
) -> None:
    """What it prints goes there, or what it compiles."""
    if "ucx" in words and LACKING:
        pytest.skip(LACKING)
    full = tmp_path / "full"
    plan = write(pg.ring_allreduce(2), tmp_path)
    command = [sys.executable, "-m", "forestcoll", "run", plan, "--size", "4096"]
    command += words.format(full=full).split()
    job = Job(0, [], WORLD_SIZE="2")
    jobs.append(job)
    for rank in range(2):
        lead = ["unshare", "-m", "sh", "-c", FULL, str(full)] if rank == victim else []
        cache = {"FORESTCOLL_CACHE": str(full)} if rank == victim else {}
        job.children.append(
            subprocess.Popen(
                [*lead, *command],
                env=job.environment | {"RANK": str(rank)} | cache,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for code, _, err in job.wait():
        assert code == 1
        assert "No space left on device" in err, err
    assert time.monotonic() - job.started < 30  # 3 where nothing else runs
    assert not [*full.iterdir()]


def test_a_port_that_is_taken_is_named(jobs: list[Job], tmp_path: Path) -> None:
    plan = write(pg.ring_allreduce(2), tmp_path)
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        jobs.append(Job(2, [plan, "--size", "4096", "--timeout", "1"], FORESTCOLL_PORT=port))
        first, second = jobs[0].wait()
    assert first[0] == second[0] == 1
    assert f"process 0 cannot listen at port {port} (Address already in use)" in first[2]
    assert "does not reach process 0 at 127.0.0.1" in second[2]


def test_hosts_run_it_by_ssh(tmp_path: Path) -> None:
    plan = write(pg.ring_allreduce(3), tmp_path)
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "on $1" >&2\nexec sh -c "$2"\n')
    shell.chmod(0o755)
    words = [sys.executable, "-m", "forestcoll", "run", plan, "--size", "4096"]
    words += ["--hosts", "127.0.0.1,localhost:2"]
    done = finished(*words, env=os.environ | {hosts.SSH: str(shell)})
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    told = sorted(line for line in done.stderr.splitlines() if ": on " in line)
    assert told == ["127.0.0.1: on 127.0.0.1", *["localhost: on localhost"] * 2]


# --- who is who


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ("RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500", "1 4 a 29501"),
        ("RANK=1 WORLD_SIZE=4 MASTER_ADDR=a FORESTCOLL_PORT=777", "1 4 a 777"),
        ("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=29500", "alone"),
        ("RANK=0", "alone"),
        ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_NODELIST=n1,n2", "alone"),  # a batch script
        ("", "alone"),
        (
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4"
            " FORESTCOLL_PORT=9",
            "2 4 127.0.0.1 9",
        ),
        ("PMI_RANK=0 PMI_SIZE=2 MASTER_ADDR=b FORESTCOLL_PORT=9", "0 2 b 9"),
        (
            "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NODELIST=gpu[008-015,20]"
            " FORESTCOLL_PORT=9",
            "3 8 gpu008 9",
        ),
        (
            "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_JOB_NODELIST=n1,n2 FORESTCOLL_PORT=9",
            "3 8 n1 9",
        ),
    ],
)
def test_launchers_say_who_a_process_is(variables: str, place: str) -> None:
    environment = dict(word.split("=", 1) for word in variables.split())
    found = launchers.find(environment)
    told = "alone"
    if found is not None:
        told = f"{found.process} {found.processes} {found.address} {found.port}"
    assert told == place


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        (
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "MASTER_ADDR",
        ),
        ("RANK=4 WORLD_SIZE=4 MASTER_ADDR=a", "RANK=4 of WORLD_SIZE=4"),
        ("RANK=x WORLD_SIZE=4 MASTER_ADDR=a", "RANK='x': must be a whole number from 0 on"),
        ("RANK=1 WORLD_SIZE=4", "does not say where process 0 is"),
        ("RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=65535", "port 65536 is none"),
    ],
)
def test_launchers_that_contradict_themselves(variables: str, error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        launchers.find(dict(word.split("=", 1) for word in variables.split()))


@pytest.mark.parametrize("text", ["", "a,,b", "-oProxyCommand=x", "a:0", "a:b"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError, match="is no host"):
        hosts.parse(text)


@pytest.mark.parametrize(
    "guest", ["greets", "another secret", "noise", "a huge message", "silence"]
)
def test_a_stranger_learns_nothing_and_stops_nobody(guest: str) -> None:
    ours, theirs = socket.socketpair()
    caught: list[object] = []

    def listen() -> None:
        try:
            caught.append(accept(Stream(ours), "right", "group", time.monotonic() + 1))
        except (OSError, ValueError) as error:
            caught.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    with theirs:
        stream = Stream(theirs)
        if guest == "greets":
            greet(stream, "right", 5, "group", time.monotonic() + 2)
        elif guest == "another secret":
            with pytest.raises(PermissionError, match="does not know this job's secret"):
                greet(stream, "wrong", 5, "group", time.monotonic() + 2)
        elif guest == "noise":
            theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        elif guest == "a huge message":
            theirs.sendall(b"\xff\xff\xff\x7f")
        thread.join()
    ours.close()
    assert caught == [5] if guest == "greets" else isinstance(caught[0], OSError | ValueError)
