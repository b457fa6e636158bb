"""The GPU engine over several nodes: rings and relay, driven by the stand-in for the CUDA runtime.

Ranks are threads of one process here, each with a device of its own, and nodes are names.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apart import Exchange
from artefacts import Artefacts
from command_line import script
from notation import parse
from programs import base, edit, ring_allgather
from test_cluster import REUSE, over_ucx
from test_execute_gpu import emulation, library  # noqa: F401 (fixtures)

from forestcoll.common.errors import ExecutionError, ForestCollError
from forestcoll.execute import _engine
from forestcoll.execute.cluster.group import Group
from forestcoll.execute.gpu import communicator as communicators
from forestcoll.execute.gpu import compiler as builds
from forestcoll.execute.gpu.communicator import Communicator
from forestcoll.execute.request import Request
from forestcoll.program import EVERYONE, SIGNALS, Program

Gather = Callable[[bytes], Sequence[bytes]]


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch, emulation: None) -> None:  # noqa: F811
    monkeypatch.setenv("EMULATED_GPUS", "8")
    monkeypatch.setenv("EMULATED_THREADS", "1")


class Meeting:
    """What the ranks of a communicator tell each other by."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=30)
        self.told: list[bytes] = [b""] * ranks

    def gather(self, rank: int, text: bytes) -> list[bytes]:
        self.told[rank] = text
        self.barrier.wait()
        told = list(self.told)
        self.barrier.wait()
        return told


def at_all(ranks: int, live: Callable[[int, Gather], Any]) -> list[Any]:
    """What each rank returns, or raises."""
    meeting, answers = Meeting(ranks), [None] * ranks

    def one(rank: int) -> None:
        try:
            answers[rank] = live(rank, lambda text: meeting.gather(rank, text))
        except BaseException as error:
            answers[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def run(
    program: Program,
    size: int,
    built: Path,
    *,
    nodes: int = 2,
    launches: int = 2,
    wire: str = "sockets",
    dtype: str = "float32",
    op: str = "sum",
    staged: bool = True,
    **more: Any,
) -> list[Any]:
    """Wrong elements of every rank, over all launches; out of place and in place by turns."""
    n, collective = program.n, program.collective
    request = Request.of(program, size, dtype=dtype, op=op)
    data, pattern = request.data, request.pattern
    part = data.part * data.element
    sizes = [part * parts(n) for parts in (collective.input_parts, collective.output_parts)]

    def live(rank: int, gather: Gather) -> int:
        ways = {"node": f"node{rank * nodes // n}", "built": built, "timeout": 20.0} | more
        with Communicator(
            program, data.size, rank, rank, gather, dtype=dtype, op=op, wire=wire, **ways
        ) as one:
            assert bool(one.notes) == staged
            wrong = 0
            for launch in range(2 * launches):
                memory = np.zeros(max(sizes) if launch % 2 else sum(sizes), np.uint8)
                source = memory.ctypes.data
                target = source if launch % 2 else source + sizes[0]
                if launch % 2 and sizes[0] != sizes[1]:
                    if sizes[0] < sizes[1]:
                        source += rank * sizes[0]
                    else:
                        target += rank * sizes[1]
                _engine.fill(pattern, rank, 0, sizes[0] // data.element, source, 1)
                one.run(source, target)
                for p in range(collective.output_parts(n)):
                    origin = collective.origin(rank, request.root, p)
                    if origin is None:
                        continue
                    wanted = _engine.REDUCED if origin[0] == EVERYONE else origin[0]
                    at, first = target + p * part, origin[1] * data.part
                    wrong += sum(_engine.compare(pattern, wanted, first, data.part, [at], 4, 1)[0])
            return wrong

    return at_all(n, live)


COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall")
FORMATS = ("msccl-xml", "mscclpp-json")
LL = ("mscclpp-json", "--target", "mscclpp", "--protocol", "LL")


def plan(compiled: Artefacts, each: int, collective: str, form: str, *more: str) -> Program:
    """For so many GPUs in each of two boxes."""
    return compiled(f"rail boxes=2 gpus={each} rails={each}", collective, *more).programs[form]


@pytest.mark.parametrize(
    ("collective", "each", "form"),
    [
        *product(COLLECTIVES, [2], FORMATS),
        ("allreduce", 4, "mscclpp-json"),
        ("alltoall", 4, "msccl-xml"),
    ],
)
def test_every_collective_is_right_over_two_nodes(
    compiled: Artefacts,
    library: Path,  # noqa: F811
    collective: str,
    form: str,
    each: int,
) -> None:
    program = plan(compiled, each, collective, form)
    assert run(program, 30_000, library) == [0] * 2 * each
    reduces = program.collective.reduces
    ways = {"dtype": "bfloat16", "op": "max" if reduces else "sum"}
    assert run(program, 3_333, library, launches=1, **ways) == [0] * 2 * each


def test_packets_are_right_over_two_nodes(
    compiled: Artefacts,
    library: Path,  # noqa: F811
) -> None:
    """Of few bytes, and of more than a thread block makes at once."""
    program = plan(compiled, 2, "allreduce", *LL)
    assert program.protocol == "LL"
    for size in (64, 5_000, 3_000_000):
        assert run(program, size, library) == [0] * 4, size


class Unkind(Group):
    """Meets as usual, and then goes by the wire for tests."""

    exchange: Any = None
    staged = False

    def join(self, enter: Callable[[Any, bool], None], *_: object) -> bool:
        enter(self.exchange.way(self.process), not self.staged)
        self.gather(None)
        return not self.staged


def use_unkind(
    patch: pytest.MonkeyPatch, ranks: int, seed: int, *, lazy: bool, staged: bool
) -> None:
    more = {"exchange": Exchange(ranks, seed, lazy), "staged": staged}
    patch.setattr(communicators, "Group", type("Own", (Unkind,), more))


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("collective", "machine"),
    [
        ("allreduce", ("dgx-a100 boxes=2", "--ranks", "box*/gpu[0-1]")),
        ("alltoall", ("rail boxes=2 gpus=2 rails=2",)),
    ],
)
def test_it_is_right_however_late_and_disorderly(
    compiled: Artefacts,
    library: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    collective: str,
    machine: tuple[str, ...],
    form: str,
    staged: bool,
) -> None:
    program = compiled(machine[0], collective, *machine[1:]).programs[form]
    for seed, lazy in ((1, False), (2, True), (8, True)):
        use_unkind(monkeypatch, 4, seed, lazy=lazy, staged=staged)
        assert run(program, 40_000, library, staged=staged) == [0] * 4


@over_ucx
@pytest.mark.parametrize("form", FORMATS)
def test_it_is_right_over_ucx(
    compiled: Artefacts,
    library: Path,  # noqa: F811
    form: str,
) -> None:
    """Which reaches the stand-in's memory, and reads it back."""
    program = plan(compiled, 2, "allreduce", form)
    assert run(program, 300_000, library, wire="ucx", staged=False) == [0] * 4
    program = plan(compiled, 2, "allreduce", *LL)
    assert run(program, 5_000, library, wire="ucx", staged=False) == [0] * 4


@pytest.mark.parametrize("marked", [True, False])
def test_a_source_waits_until_it_has_left(
    library: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    marked: bool,
) -> None:
    """By the plan's flush. Where nobody waits the unkind wire sees to it that data are wrong."""
    if not marked:
        monkeypatch.setattr(communicators, "mark_drains", lambda tables, *_: tables)
    wrong: list[int] = []
    for seed in range(3):
        use_unkind(monkeypatch, 2, seed, lazy=True, staged=False)
        wrong += run(parse(REUSE), 40_000, library, staged=False)
    assert (sum(wrong) == 0) == marked


def test_a_ring_is_used_again_and_again(library: Path) -> None:  # noqa: F811
    """A thread block that has more to say than its ring has room for."""
    program = ring_allgather(2)
    assert [len(rank.thread_blocks) for rank in program.ranks] == [1, 1]
    assert run(program, 48 << 20, library, launches=1) == [0, 0]  # 96 messages each way


# --- what goes wrong


def errors(answers: Sequence[Any]) -> list[str]:
    """Of all ranks, with their notes."""
    assert all(isinstance(answer, ForestCollError) for answer in answers), answers
    return ["\n".join([str(error), *getattr(error, "__notes__", ())]) for error in answers]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "reading_allreduce",
            r"^rank \d+, thread block \d+, step \d+ \(read_reduce.*: reads memory of",
        ),
        (
            "fabric_allreduce",
            r"\(fabric_reduce_store\): goes over a switch of rank \d+, which is in an",
        ),
    ],
)
def test_what_cannot_go_between_nodes_is_refused(
    name: str,
    words: str,
    library: Path,  # noqa: F811
) -> None:
    program = base(name)
    for error in errors(run(program, 4096, library, nodes=program.n)):
        assert re.search(words, error)
        assert "another node" in error


def test_a_stuck_plan_is_explained_at_all(
    compiled: Artefacts,
    library: Path,  # noqa: F811
) -> None:
    program = plan(compiled, 2, "broadcast", "mscclpp-json")
    r, b, s = next(
        (r, b, s)
        for r, b, s, i in program.instructions()
        if i.op in SIGNALS
        and program.ranks[r].thread_blocks[b].channels[i.channels[0]].peer // 2 != r // 2
    )
    for error in errors(run(edit(program, f"{r}.{b}.{s} -"), 4096, library, timeout=1.0)):
        assert error.startswith("nothing moved for 1 s; the plan is stuck: ")
        assert f"waits for a signal from rank {r} " in error


@pytest.mark.parametrize("what", ["size", "plan"])
def test_ranks_must_agree(library: Path, what: str) -> None:  # noqa: F811
    program = ring_allgather(2)
    other = edit(program, "0.0.0 + nop")  # alike in a few words
    assert repr(other) == repr(program)

    def live(rank: int, gather: Gather) -> None:
        size = 4096 << rank if what == "size" else 4096
        plan = other if what == "plan" and rank else program
        with Communicator(plan, size, rank, rank, gather, built=library):
            raise AssertionError

    assert errors(at_all(2, live)) == ["the ranks have different plans, sizes or options"] * 2


def test_a_rank_that_fails_ends_all(
    compiled: Artefacts,
    library: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel cannot be watched any more; the others learn who and why, and where they were."""
    program = plan(compiled, 2, "allreduce", "mscclpp-json")
    poll = communicators.Far._poll

    def fail(far: communicators.Far) -> Any:
        if far.worker.gpu == 2:
            raise ExecutionError("GPU: an illegal address")
        return poll(far)

    monkeypatch.setattr(communicators.Far, "_poll", fail)
    begin = time.monotonic()
    told = errors(run(program, 4 << 20, library))
    assert time.monotonic() - begin < 20
    name = f"rank 2 on {socket.gethostname()}: GPU: an illegal address"
    assert told[2].startswith("GPU: an illegal address")
    assert all(error.startswith(name) for rank, error in enumerate(told) if rank != 2)
    lines = [re.findall(r"^  rank (\d), thread block \d+, step \d+ \(", x, re.M) for x in told]
    assert all(set(own) == {str(rank)} for rank, own in enumerate(lines))


# --- the proof that flags may be written by an adapter


def proof(compiled: Artefacts, platform: str) -> Path:
    """Its program, compiled once; "": by a compiler for processors."""
    order = script("wire_order")

    def make(program: Path) -> None:
        assert order.build(program, not platform) == {"": 0, "cuda": 1, "hip": 3}[platform]

    own = (order.SOURCE, Path(order.__file__), *order.STAND_IN.iterdir())
    made_of = (*own, *builds.HEADERS, Path(builds.__file__))
    return compiled.once(f"wire-order-{platform}", make, *made_of)


@over_ucx
@pytest.mark.parametrize("way", ["right", "broken"])
def test_the_order_of_flags_is_proven_or_found_wrong(
    way: str,
    compiled: Artefacts,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order, program = script("wire_order"), proof(compiled, "")

    def build(target: Path, stand_in: bool) -> int:
        shutil.copy(program, target)
        return 0

    monkeypatch.setattr(order, "build", build)
    words = ["--stand-in", "--rounds", "2000", *["--broken"] * (way == "broken")]
    assert order.main(words) == (way == "broken")
    said = capfd.readouterr()
    told = re.search(r"^rounds 2000 wrong (\d+)$", said.out, re.MULTILINE)
    assert told is not None, said
    assert (int(told[1]) > 0) == (way == "broken")


@over_ucx
@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "hip"])
def test_the_proof_compiles(
    platform: builds.Platform, compiled: Artefacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    if builds.find_compiler(platform) is None:
        pytest.skip(f"no compiler for {platform} is installed")
    names = {"cuda": ["sm_90"], "hip": ["gfx90a"]}[platform]
    monkeypatch.setattr(builds, "find_platform", lambda: (platform, names))
    assert names[0].encode() in proof(compiled, platform).read_bytes()
