"""Ranks are forked from one process, and nothing of them stays or has a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from forestcoll.execute.lab.fork_server import ForkServer

HERE = Path(__file__).parent
LAB = """
import sys, time
sys.path.insert(0, {here!r})
import test_lab_fork_server as t
from forestcoll.execute.lab.fork_server import ForkServer
fork_server = ForkServer("test_lab_fork_server")
pipes = [fork_server.fork(t.sleep) for _ in range(3)]
print(*[pipe.recv() for pipe in pipes], fork_server._process.pid, flush=True)
time.sleep(60)
"""


def answer(number: int, pipe: Connection) -> None:
    pipe.send((number, os.getpid()))


def sleep(pipe: Connection) -> None:
    pipe.send(os.getpid())
    with pipe:
        pipe.poll(60)  # until the lab is gone


def fail(pipe: Connection) -> None:
    raise SystemExit(3)


@pytest.fixture(autouse=True)
def _found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer("test_lab_fork_server")
    yield made
    made.end()
    made.close()


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(processes: list[int], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, processes))


def test_every_fork_does_its_own_work(fork_server: ForkServer) -> None:
    said = [pipe.recv() for pipe in [fork_server.fork(answer, k) for k in range(5)]]
    assert [number for number, _ in said] == list(range(5))
    assert len({process for _, process in said}) == 5


def test_a_pipe_ends_with_its_process(fork_server: ForkServer) -> None:
    pipe = fork_server.fork(fail)
    with pytest.raises(EOFError):
        pipe.recv()
    assert fork_server.fork(answer, 7).recv()[0] == 7


def test_the_end_takes_all_along(fork_server: ForkServer) -> None:
    pipes = [fork_server.fork(sleep) for _ in range(3)]
    processes = [pipe.recv() for pipe in pipes]
    fork_server.end()
    assert not any(map(alive, processes))
    assert fork_server.fork(answer, 1).recv()[0] == 1  # and another lab may begin


def test_a_fork_server_that_was_killed(fork_server: ForkServer) -> None:
    fork_server.fork(answer, 1).recv()
    assert fork_server._process is not None
    fork_server._process.kill()
    fork_server._process.wait()
    fork_server.end()
    assert fork_server.fork(answer, 2).recv()[0] == 2


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_nothing_is_left_of_a_lab_that_was_ended(
    number: signal.Signals, group: bool, tmp_path: Path
) -> None:
    """No process, no file where temporary ones are, and no word of the children."""
    lab = subprocess.Popen(
        [sys.executable, "-c", LAB.format(here=str(HERE))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert lab.stdout is not None
    children = [int(word) for word in lab.stdout.readline().split()]
    assert len(children) == 4
    (os.killpg if group else os.kill)(lab.pid, number)
    _, error = lab.communicate(timeout=60)
    assert gone(children)
    assert error == ""
    assert list(tmp_path.iterdir()) == []
