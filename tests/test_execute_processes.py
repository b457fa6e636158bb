"""Ranks as processes: the same results, and nothing left behind, whatever happens to them."""

from __future__ import annotations

import gc
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import programs as pg
import pytest
from test_execute_cpu import GOOD, elsewhere, fewest_slots, in_single_elements, words

from forestcoll.common.errors import ExecutionError
from forestcoll.execute import cpu
from forestcoll.execute.cpu import DTYPES, OPS, run
from forestcoll.program import Program

pytestmark = pytest.mark.forks
LONG = 2**24  # bytes of `in_single_elements`: minutes


def children(parent: int | str = "self") -> dict[int, str]:
    """Process -> name, of all processes that have this one for a parent."""
    found = {}
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            for child in listed.read_text().split():
                found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue  # gone in the meantime
    return found


def ranks(parent: int | str = "self") -> dict[str, int]:
    """Name -> process, of the ranks."""
    return {n: pid for pid, n in children(parent).items() if re.fullmatch(r"rank \d+", n)}


def files_in_memory(pid: int | str = "self") -> list[str]:
    """Lines of a process's map that name a file in /dev/shm, which would outlast it."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "/dev/shm" in line]


def anonymous_regions() -> int:
    """Shared memory without a name that this process has."""
    return Path("/proc/self/maps").read_text().count("/dev/zero (deleted)")


def kept_regions(most: int = 0) -> int:
    """The same; if more than `most`, without those of garbage, which takes long to look for."""
    if anonymous_regions() > most:
        gc.collect()  # errors that a test has caught hold the buffers of their run
    return anonymous_regions()


def soon(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    end = time.monotonic() + 10
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    regions = kept_regions()
    yield
    assert ranks() == {}
    assert files_in_memory() == []
    assert kept_regions(regions) <= regions


@pytest.mark.parametrize("name", GOOD)
def test_right_programs_are_right_at_any_size_and_with_small_slots(name: str) -> None:
    fewest, ways = fewest_slots(name), ("slots", "slot_bytes", "slice_bytes")
    cases: list[tuple[int, dict[str, Any]]] = [(size, {}) for size in (1, 44, 99_999)]
    for values in ((fewest, 64, 8), (3, 64, None), (fewest, 4096, 8)):
        cases.append((5000, dict(zip(ways, values, strict=True))))
    for size, how in cases[[*GOOD].index(name) % 2 :: 2]:  # by turns; threads run all
        result = run(GOOD[name], size, ranks_as="processes", timeout=20, **how)
        assert (result.wrong, result.mismatches) == (0, ()), (size, how)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operation(dtype: str, op: str) -> None:
    plans = ("ring_allreduce", "pushing_allreduce", "direct_reduce_scatter", "chain_reduce")
    name = plans[(DTYPES.index(dtype) + OPS.index(op)) % len(plans)]
    assert run(GOOD[name], 3001, dtype=dtype, op=op, ranks_as="processes").wrong == 0


def test_ranks_live_from_launch_to_launch() -> None:
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(ranks().values())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run(
        pg.ring_allreduce(), 100_000, ranks_as="processes", warmup=3, iterations=200,
        modes=["in-place"],
    )  # fmt: skip
    done.set()
    watcher.join()
    assert result.wrong == 0
    assert 1 <= len(seen) <= 4


def private_bytes(pid: int | str) -> int:
    """Of a process's memory, what it shares with nobody or has from its parent."""
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(int(kib) for kib in re.findall(r"^(?:VmData|VmStk):\s+(\d+) kB$", text, re.M)) << 10


def test_ranks_of_a_large_process_are_small() -> None:
    """They leave its memory behind, large buffers and small objects, and work without it."""
    large = [b"x" * (1 << 20) for _ in range(64)]
    small = [[] for _ in range(500_000)]
    seen: list[dict[str, int]] = []

    def look() -> None:
        if soon(lambda: len(ranks()) == 3):
            seen.append({name: private_bytes(pid) for name, pid in ranks().items()})

    thread = threading.Thread(target=look)
    thread.start()
    result = run(pg.ring_allreduce(3), 6000, ranks_as="processes", iterations=5000, timeout=20)
    thread.join()
    mine = private_bytes("self")
    assert (result.wrong, len(large), len(small)) == (0, 64, 500_000)
    assert set(seen[0]) == {"rank 0", "rank 1", "rank 2"}
    assert max(seen[0].values()) < min(mine // 4, mine - (90 << 20))


def hidden_from_forks() -> int:
    """Mappings of this process that a fork leaves out."""
    text = Path("/proc/self/smaps").read_text()
    return sum("dc" in flags.split() for flags in re.findall(r"^VmFlags: (.*)$", text, re.M))


def test_what_is_hidden_from_ranks_is_there_for_other_children() -> None:
    """For those of a thread that forks all the while, too."""
    before, done = hidden_from_forks(), threading.Event()
    large = [b"%d" % i * (1 << 20) for i in range(8)]
    small = [[i] for i in range(100_000)]
    states: list[int] = []

    def fork() -> None:
        while not done.is_set():
            if not (child := os.fork()):
                os._exit(0 if sum(len(x) for x in large) + sum(map(len, small)) else 1)
            states.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    for _ in range(20):
        assert run(pg.ring_allreduce(3), 24, ranks_as="processes", timeout=20).wrong == 0
    done.set()
    thread.join()
    assert len(states) > 5
    assert set(states) == {0}
    assert hidden_from_forks() == before


def test_auto_makes_processes_for_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.MOST_PROCESSES == 64
    plan = pg.ring_allreduce(40)
    assert run(plan, 40 * 64, ranks_as="auto").wrong == 0
    monkeypatch.setattr(cpu, "MOST_PROCESSES", 3)
    assert not uses_processes(plan, "auto")
    assert uses_processes(pg.ring_allreduce(3), "auto")
    assert not uses_processes(pg.ring_allreduce(3), "threads")


def uses_processes(plan: Program, ranks_as: str) -> bool:
    from forestcoll.execute import contents

    result: list[bool] = []
    real = cpu.allocate

    def allocate(*arguments: object) -> object:
        result.append(arguments[-1] is contents.common_memory)
        return real(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "allocate", allocate)
        run(plan, 4096, ranks_as=ranks_as)  # type: ignore[arg-type]
    return result[0]


def error_of(plan: Program, size: int = 4096, **options: object) -> str:
    with pytest.raises(ExecutionError) as caught:
        run(plan, size, ranks_as="processes", **options)  # type: ignore[arg-type]
    return words(caught.value)


def test_who_waits_for_whom_is_known_as_with_threads() -> None:
    circle = pg.edit(pg.ring_allgather(3), *(f"{r}.0.1 <> {r}.0.2" for r in range(3)))
    for plan in (
        circle,
        pg.edit(pg.chain_broadcast(), "1.1.1 -"),
        pg.edit(pg.chain_broadcast(2, 3), "1.0.2 -"),
        pg.edit(pg.direct_allgather(2), "0.1.3 + signal over=0"),
        pg.edit(pg.base("relay_by_semaphore"), "1.0.3.-1 -"),
    ):
        begin = time.monotonic()
        text = error_of(plan)
        assert time.monotonic() - begin < 5
        with pytest.raises(ExecutionError) as caught:
            run(plan, 4096)
        assert text == words(caught.value)


def test_wrong_data_is_found() -> None:
    plan = pg.edit(pg.ring_allreduce(), "1.0.2 = recv_copy_send -> o0")
    assert run(plan, 40_000, ranks_as="processes").wrong > 1000


def in_the_middle(do_it: Callable[[dict[str, int]], None]) -> threading.Thread:
    """A thread that does something to the ranks of a run that this process has just begun."""

    def wait() -> None:
        if soon(lambda: len(ranks()) == 3):
            time.sleep(0.2)
            do_it(ranks())

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_rank_is_named(number: signal.Signals) -> None:
    thread = in_the_middle(lambda found: os.kill(found["rank 1"], number))
    begin = time.monotonic()
    text = error_of(in_single_elements(), LONG, check=False, iterations=50)
    thread.join()
    assert time.monotonic() - begin < 20
    assert re.match(
        rf"rank 1 \(process \d+\) was killed by signal {number} \({number.name}\)", text
    )
    assert "all other ranks were ended" in text
    assert ("out of memory" in text) == (number is signal.SIGKILL)
    assert "it left the others at\n  rank 1, thread block 0, step " in text


def test_a_killed_rank_between_launches_is_named() -> None:
    """It dies while it has nothing to do; the next launch must not wait for it."""
    plan = pg.ring_allreduce(3)
    thread = in_the_middle(lambda found: os.kill(found["rank 2"], signal.SIGKILL))
    text = error_of(plan, 4096, check=False, iterations=10**6)
    thread.join()
    assert text.startswith("rank 2 (process ")


def test_a_stopped_rank_is_named() -> None:
    thread = in_the_middle(lambda found: os.kill(found["rank 2"], signal.SIGSTOP))
    text = error_of(in_single_elements(), LONG, check=False, iterations=50, timeout=1)
    thread.join()
    assert re.match(r"rank 2 \(process \d+\) is stopped, by SIGSTOP or a debugger\n", text)
    assert "no thread block made progress for 1 s; given up at\n" in text
    assert "rank 2, thread block 0, step " in text


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_execute_cpu import in_single_elements
from forestcoll.execute.cpu import run
print("begin", flush=True)
try:
    run(in_single_elements(), 2**24, check=False, iterations=50, ranks_as="processes")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def begin_elsewhere() -> subprocess.Popen[str]:
    """A process of its own group that runs something long, once its ranks are there."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(tests=str(Path(__file__).parent))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(cpu.__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    assert soon(lambda: len(ranks(process.pid)) == 3)
    return process


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "terminal"])
def test_ctrl_c_ends_the_ranks(send: Callable[[int, int], None]) -> None:
    """Of the process alone, and of a terminal, whose Ctrl-C reaches all."""
    with begin_elsewhere() as process:
        mine = ranks(process.pid)
        send(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "interrupted\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in mine.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_no_rank_outlives_its_parent(number: signal.Signals) -> None:
    with begin_elsewhere() as process:
        mine = ranks(process.pid)
        assert len(mine) == 3
        assert not any(files_in_memory(pid) for pid in mine.values())
        os.kill(process.pid, number)
        assert process.wait(20) == -number
        assert soon(lambda: not any(_alive(pid) for pid in mine.values()))
        process.communicate()


def _alive(pid: int) -> bool:
    """Whether it runs; who has lost its parent may wait for a lazy init as a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


FORKLESS = """
import os, resource, sys
import programs as pg
from forestcoll.common.errors import ExecutionError
from forestcoll.execute.cpu import run
resource.setrlimit(resource.RLIMIT_NPROC, (3, 3))
os.setuid({user})
try:
    run(pg.ring_allreduce(8), 4096, ranks_as="processes", threads=1)
except ExecutionError as error:
    print(error)
print(run(pg.ring_allreduce(8), 4096, threads=1).wrong)
"""


SANDBOX = """
import ctypes, struct, sys
import programs as pg
from forestcoll.execute.cpu import run

def words(*each):  # code, jumps if true and false, value
    return b"".join(struct.pack("HBBI", *one) for one in each)

filter = words(
    (0x20, 0, 0, 0),  # the call's number
    (0x15, 0, 3, 28),  # madvise
    (0x20, 0, 0, 32),  # its advice
    (0x15, 0, 1, 10),  # MADV_DONTFORK
    (0x06, 0, 0, 0x50000 + 1),  # EPERM
    (0x06, 0, 0, 0x7FFF0000),  # allowed
)
held = ctypes.create_string_buffer(filter, len(filter))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 6, ctypes.addressof(held)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
large = [[] for _ in range(10**6)]
print(run(pg.ring_allreduce(4), 4096, ranks_as="processes").wrong)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
def test_where_a_sandbox_lets_nothing_be_hidden_from_forks() -> None:
    done = elsewhere(SANDBOX)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user with few processes")
def test_too_few_processes_are_an_error_in_words() -> None:
    done = elsewhere(FORKLESS.replace("{user}", "54321"))
    assert done.stderr == ""
    first, last = done.stdout.splitlines()
    assert re.fullmatch(
        r"cannot make a process for rank \d: Resource temporarily unavailable; "
        "run the ranks as threads, or fewer of them",
        first,
    )
    assert last == "0"


def test_averages_are_divided_as_nccl_does() -> None:
    """Integers wrap and are cut towards zero; floats are divided once (numpy says how much)."""
    import numpy as np

    from forestcoll.execute import _engine

    for k, dtype in enumerate(DTYPES):
        if dtype == "bfloat16":
            continue
        sums, means = (np.zeros(4096, dtype) for _ in range(2))
        for op, array in (("sum", sums), ("avg", means)):
            pattern = (k, OPS.index(op), True, 7, k)
            _engine.fill(pattern, _engine.REDUCED, 0, array.size, array.ctypes.data, 1)
        if sums.dtype.kind == "f":
            assert np.array_equal(means, (sums / sums.dtype.type(7)).astype(dtype))
        else:
            wide = sums.astype(np.int64)
            assert np.array_equal(means, (np.sign(wide) * (np.abs(wide) // 7)).astype(dtype))
        assert (means != sums).any()


def test_one_wrong_average_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from forestcoll.execute.contents import Contents

    plan = replace(pg.ring_allreduce(3), in_place=False)
    monkeypatch.setattr(Contents, "sums", lambda self, buffers: [])
    assert run(plan, 6000, op="avg").wrong > 1000
