"""Plans on tensors by the GPU engine: a process per rank, device pointers, a stand-in for GPUs."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from programs import edit
from test_execute_gpu import library  # noqa: F401 (a fixture)
from torch_ranks import dist, needs_gloo, run_ranks, torch

from forestcoll.program import BY_TREES, Collective, Op, Program

pytestmark = needs_gloo

FORMATS = ("msccl-xml", "mscclpp-json")
RANKS = ("--ranks", "box0/gpu[0-3]")


def _gpus() -> None:
    os.environ |= {"EMULATED_GPUS": "4", "EMULATED_THREADS": "1"}
    os.environ["EMULATED_PROCESSORS"] = "1000"


def _open(rank: int, plan: Any, built: str, numel: int, **more: Any) -> Any:
    from forestcoll.execute.torch import gpu

    device = more.pop("device", torch.device("cpu", rank))
    return gpu.Communicator(plan, numel, built=Path(built), device=device, **more)


def matrix(rank: int, built: str, given: dict[str, Any]) -> list[str]:
    """What went wrong in any plan: sizes with padding and without, in place and out of place."""
    _gpus()
    from forestcoll.execute.torch.measure import Measured, time_it

    found = []
    kinds = [(1037, "float32", "sum"), (64, "int32", "avg"), (1, "uint8", "max")]
    for turn, (name, plan) in enumerate(given.items()):
        program = plan if isinstance(plan, Program) else plan.program
        collective = program.collective
        for part, dtype, op in (kinds[0], kinds[1 + turn // 2 % 2]):
            numel = part * (4 if collective is Collective.REDUCE_SCATTER else 1)
            kind = getattr(torch, dtype)
            with _open(rank, plan, built, numel, dtype=kind, op=op) as run:
                what = Measured(collective, run, dtype, op, program.root)
                for mode in ("out-of-place", "in-place"):
                    _, wrong, words = time_it(what, part, mode, 1, 1, True)
                    if wrong:
                        found.append(f"{name} {part} {dtype} {op} {mode}: {wrong} {words[:2]}")
    return found


@pytest.fixture(scope="session")
def four(compiled: Artefacts) -> dict[str, Program]:
    """Plans of every collective in both formats, four GPUs on one switch."""
    found = {}
    for collective in BY_TREES:
        root = ("--root", "2") if collective.has_root else ()
        made = compiled("dgx-a100", collective, *RANKS, *root)
        found |= {f"{collective}.{form}": made.programs[form] for form in FORMATS}
    few = compiled("dgx-a100", "allreduce", *RANKS, "--target", "mscclpp", "--protocol", "LL")
    found["allreduce.packets"] = few.programs["mscclpp-json"]
    assert found["allreduce.packets"].protocol == "LL"
    return found


@pytest.mark.slow
def test_every_collective_is_right_on_pointers(
    library: Path,  # noqa: F811
    four: dict[str, Program],
) -> None:
    """Every rank proves the packets' program for itself, and is sent the others' proven plans."""
    from forestcoll.execute.torch import Plan

    packets = {"allreduce.packets": four["allreduce.packets"]}
    given = {name: Plan(program) for name, program in four.items() if name not in packets}
    for found in run_ranks(4, matrix, str(library), given | packets):
        assert found == []


def mistakes(rank: int, built: str, plan: Program, broken: Program) -> list[str]:
    """The words of each error, at this rank."""
    _gpus()
    from forestcoll.common.errors import ForestCollError

    tensor = torch.ones(64)
    words: list[str] = []

    def note(act: Any) -> None:
        try:
            act()
        except ForestCollError as error:
            words.append(" ".join([str(error), *getattr(error, "__notes__", ())]))
        else:
            words.append("no error")

    note(lambda: _open(rank, plan, built, 64, device=torch.device("cpu", 1)))
    note(lambda: _open(rank, plan, built, 64, device=torch.device("cpu", 9 if rank == 2 else rank)))
    note(lambda: _open(rank, plan, built, 64, op="median"))
    with _open(rank, plan, built, 64) as run:
        note(lambda: run(tensor[:60]))
        note(lambda: run(tensor.to(torch.int32)))
        run(tensor)
        words.append(str(tensor.sum().item()))
    note(lambda: run(tensor))
    note(lambda: _unproven(rank, built, broken))
    return words


def bereaved(rank: int, built: str, plan: Program, victim: int) -> tuple[str, float]:
    """What a rank is told once another one is killed, and after how many seconds."""
    _gpus()
    os.environ["FORESTCOLL_NODE"] = f"node{rank // 2}"
    from forestcoll.common.errors import ExecutionError

    tensor = torch.ones(1 << 16)
    begin = time.monotonic()
    try:
        with _open(rank, plan, built, tensor.numel()) as run:
            assert "through the host's memory" in run.notes[0]
            run(tensor)
            assert tensor.sum().item() == 4 * tensor.numel()
            begin = time.monotonic()
            if rank == victim:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                run(tensor)
    except ExecutionError as error:
        return str(error), time.monotonic() - begin


@pytest.mark.parametrize("victim", [0, 3])
def test_all_nodes_end_when_a_rank_is_killed(
    library: Path,  # noqa: F811
    compiled: Artefacts,
    victim: int,
) -> None:
    program = compiled("rail boxes=2 gpus=2 rails=2", "allreduce").programs["mscclpp-json"]
    told = run_ranks(4, bereaved, str(library), program, victim, may_die=(victim,))
    for rank, answer in enumerate(told):
        if rank == victim:
            continue
        words, seconds = answer
        lost = rf"(rank|process) {victim}( on \S+)?( is gone|: it closed the connection)"
        assert re.search(lost, words), words
        assert seconds < 20  # 2 where nothing else runs


def _unproven(rank: int, built: str, program: Program) -> None:
    """Runs what forestcoll.torch would refuse."""
    from forestcoll.execute.gpu.communicator import Communicator

    def gather(text: bytes) -> list[bytes]:
        told: list[Any] = [None] * 4
        dist.all_gather_object(told, text)
        return told

    memory = torch.ones(64)
    address = memory.data_ptr()
    way = {"timeout": 0.5, "built": Path(built)}
    with Communicator(program, 256, rank, rank, gather, **way) as run:  # type: ignore[arg-type]
        run.run(address, address)


def test_what_goes_wrong_at_one_rank_is_said_at_all(
    library: Path,  # noqa: F811
    four: dict[str, Program],
) -> None:
    good = four["allreduce.msccl-xml"]
    lost = next((r, b, s) for r, b, s, i in good.instructions() if r == 1 and i.op is Op.SEND)
    told = run_ranks(4, mistakes, str(library), good, edit(good, "{}.{}.{} -".format(*lost)))
    for rank, words in enumerate(told):
        shared, missing, unknown, short, kind, total, closed, stuck = words
        assert "ranks 0 and 1 are both on GPU 1" in shared
        assert "there is no GPU 9: 4 are seen" in missing
        assert missing.startswith("rank 2: ") == (rank != 2)
        assert "unknown operation 'median'" in unknown
        assert "the input has 60 elements of torch.float32; this communicator is for 64" in short
        assert "elements of torch.int32" in kind
        assert total == "256.0"
        assert closed == "the communicator is closed"
        # its thread block may have sent nothing else: then no connection is left to wait at
        assert "nothing moved for 0.5 s; " in stuck or "receives from rank 1" in stuck
        assert "rank 1" in stuck
