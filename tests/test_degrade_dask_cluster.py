"""Bundles on Dask clusters of real processes: what they make, and how each way to fail is told."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from dask_parts import be

import forestcoll
from forestcoll.common import garbage_collection
from forestcoll.execute.lab.fork_server import ForkServer
from forestcoll.study.degrade import dask_cluster
from forestcoll.study.degrade.bundle import INDEX, NOTE
from forestcoll.ui.cli import main

distributed = pytest.importorskip("distributed")

ABSENT = """\
import sys
class Without:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "forestcoll":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
for name in [name for name in sys.modules if name.partition(".")[0] == "forestcoll"]:
    del sys.modules[name]
"""
BROKEN = "import sys; sys.modules['forestcoll'] = None\n"
OLDER = "import forestcoll; forestcoll.__version__ = '0.0.9'\n"
WORDS = ["degrade", "-t", "dgx1-v100", "-c", "allgather", "--kinds", "gpu", "--format", "forest"]

Kill = Callable[[], None]
Start = Callable[..., Kill]
Refused = Callable[[Path, str], str]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Parts of clusters come from it: each would take longer to import Dask than for the test."""
    server = ForkServer("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield server
    server.close()


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a part of a cluster, after some code; returns what kills it. All end with the test."""
    pipes: list[Connection] = []

    def run(part: str, *words: str, before: str = "") -> Kill:
        place = tmp_path / f"{part}{len(pipes)}"
        place.mkdir()
        pipes.append(server.fork(be, part, list(words), before, place))
        return partial(os.kill, pipes[-1].recv(), signal.SIGKILL)

    yield run
    server.end()


def make(bundle: Path, dask: str) -> int:
    """The exit code of what makes a bundle on that cluster."""
    return main([*WORDS, "--bundle", str(bundle), "--dask", dask])


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """The line that is said of a bundle that is not made whole."""

    def say(bundle: Path, dask: str) -> str:
        assert make(bundle, dask) == 1
        (line,) = capfd.readouterr().err.splitlines()
        return line

    return say


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


def scheduler(start: Start, before: str = "") -> tuple[str, Kill]:
    address = free_address()
    words = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
    kill = start("scheduler", *words, before=before)
    await_scheduler(address)
    return address, kill


def await_scheduler(address: str) -> None:
    host, port = address.removeprefix("tcp://").split(":")
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)


def await_workers(address: str, count: int) -> None:
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=60)


def worker(start: Start, address: str, before: str = "") -> Kill:
    words = [address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1"]
    return start("worker", *words, before=before)


def folders(bundle: Path) -> set[str]:
    return {path.parent.name for path in bundle.glob(f"*/{NOTE}")}


def test_a_cluster_makes_what_this_process_makes(tmp_path: Path, start: Start) -> None:
    """Only workers need this package."""
    address, _ = scheduler(start, ABSENT)
    worker(start, address)
    here, there = tmp_path / "here", tmp_path / "there"
    assert make(here, "none") == 0
    assert make(there, address) == 0
    files = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert len(files) == 17
    for path in files:
        assert (there / path).read_bytes() == (here / path).read_bytes()


@pytest.mark.parametrize(
    ("before", "told"),
    [(ABSENT, "has none;"), (OLDER, "has 0.0.9;"), (BROKEN, "cannot import it (")],
    ids=["none", "older", "broken"],
)
def test_workers_that_lack_the_package_are_named(
    before: str, told: str, tmp_path: Path, start: Start, refused: Refused
) -> None:
    address, _ = scheduler(start, before)
    worker(start, address)
    worker(start, address, before)
    await_workers(address, 2)
    line = refused(tmp_path / "bundle", address)
    assert "the Dask workers need this package, forestcoll " + forestcoll.__version__ in line
    assert line.count("worker tcp://127.0.0.1:") == 1
    assert told in line
    assert "pip install '.[dask]' from the clone" in line


def at_first_folder(bundle: Path, strike: Callable[[], None]) -> threading.Thread:
    """Strikes once the first failure's folder is there."""

    def wait() -> None:
        until = time.monotonic() + 120
        while not folders(bundle) and time.monotonic() < until:
            time.sleep(0.01)
        strike()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def slow(before: str = "", seconds: float = 0.3) -> str:
    """A worker that takes that long for each failure."""
    return (
        "import os, time\nfrom forestcoll.study.degrade import dask_cluster\n"
        "make = dask_cluster.make\n"
        f"def slowly(request, failure):\n    time.sleep({seconds})\n{before}"
        "    return make(request, failure)\ndask_cluster.make = slowly\n"
    )


def test_a_worker_that_joins_without_the_package_is_told_of(
    tmp_path: Path, start: Start, refused: Refused
) -> None:
    address, _ = scheduler(start)
    kill_first = worker(start, address, slow())
    bundle = tmp_path / "bundle"

    def replace_worker() -> None:
        worker(start, address, ABSENT)
        kill_first()

    thread = at_first_folder(bundle, replace_worker)
    line = refused(bundle, address)
    thread.join()
    assert "need this package" in line
    assert "a worker has none;" in line


def test_a_scheduler_that_goes_away_is_named_and_the_bundle_goes_on(
    tmp_path: Path, start: Start, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    address, kill = scheduler(start)
    worker(start, address, slow())
    bundle = tmp_path / "bundle"
    thread = at_first_folder(bundle, kill)
    line = refused(bundle, address)
    thread.join()
    assert f"lost the Dask scheduler at '{address}'" in line
    assert "what is made stays, and the same command goes on from there" in line
    made = folders(bundle)
    assert 0 < len(made) < 8
    assert not (bundle / INDEX).exists()
    assert make(bundle, "none") == 0
    assert f"there before  {len(made)}" in capfd.readouterr().out
    assert len(folders(bundle)) == 8


@pytest.mark.slow
def test_failures_that_end_their_workers_are_told_of_once_the_others_are_made(
    tmp_path: Path,
    start: Start,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dask gives a task up once so many workers died of it; four, if nobody says otherwise."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "1")
    address, _ = scheduler(start)
    die = "    if failure.name == 'box0/gpu2': os._exit(1)\n"
    bundle = tmp_path / "bundle"
    for _ in range(3):
        worker(start, address, slow(die, 0.1))
    line = refused(bundle, address)
    assert "1 of 8 failures were not made, as each of them ended several workers" in line
    assert "box0/gpu2; what is made stays" in line
    assert len(folders(bundle)) == 7
    assert make(bundle, "none") == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path: Path, start: Start) -> None:
    address, _ = scheduler(start)
    kill, _ = (worker(start, address, slow()) for _ in range(2))
    await_workers(address, 2)
    bundle = tmp_path / "bundle"
    thread = at_first_folder(bundle, kill)
    assert make(bundle, address) == 0
    thread.join()
    assert len(folders(bundle)) == 8


@pytest.mark.slow
def test_a_cluster_without_workers_is_told_of(
    tmp_path: Path,
    start: Start,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dask_cluster, "WORKER_SECONDS", 1)
    address, _ = scheduler(start)
    bundle = tmp_path / "bundle"
    told = f"the Dask scheduler at '{address}' has had no worker for 1 s: start some with "
    line = refused(bundle, address)
    assert told in line
    kill = worker(start, address, slow())
    await_workers(address, 1)
    monkeypatch.setattr(dask_cluster, "WORKER_SECONDS", 2)
    thread = at_first_folder(bundle, kill)
    line = refused(bundle, address)
    thread.join()
    assert told.replace("1 s", "2 s") in line
    assert f"'dask worker {address}'" in line
    assert "what is made stays" in line


def test_two_clusters_of_this_machine_do_not_meet_and_spend_no_time_on_a_profile() -> None:
    asked = "__import__('dask').config.get('distributed.worker.profile.enabled')"
    with (
        dask_cluster._local_cluster() as one,
        dask_cluster._local_cluster() as other,
        distributed.Client(one, set_as_default=False) as client,
    ):
        assert one.scheduler_address != other.scheduler_address
        told = client.run(eval, asked)
    assert len(told) == len(os.sched_getaffinity(0))
    assert set(told.values()) == {False}


def test_a_worker_looks_for_cycles_rarely_while_it_makes_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(dask_cluster, "make", lambda *_: seen.append(gc.get_threshold()))
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        packed = dask_cluster._pack(None, None)  # type: ignore[arg-type]
        dask_cluster.unpack_and_make(packed, forestcoll.__version__)
        assert seen == [garbage_collection.THRESHOLD]
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_the_last_of_several_threads_brings_the_old_pace_back() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(701, 11, 12)
        first, second = garbage_collection.collect_rarely(), garbage_collection.collect_rarely()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert gc.get_threshold() == garbage_collection.THRESHOLD
        second.__exit__(None, None, None)
        assert gc.get_threshold() == (701, 11, 12)
    finally:
        gc.set_threshold(*before)
