"""Put and signal in place of sends and receives, over a stand-in for nccl4py in shared memory."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from artefacts import Artefacts
from torch_ranks import dist, ft, needs_gloo, plan_files, run_ranks, torch

from forestcoll.common.errors import UnsupportedError

pytestmark = needs_gloo


class UniqueId(bytes):
    """The folder in which all ranks' memory lies."""

    from_bytes = classmethod(lambda cls, data: cls(data))


class WaitSignalDesc(NamedTuple):
    peer: int
    op_count: int = 1


class Window:
    """One rank's memory, which the others open by its number."""

    def __init__(self, path: Path, number: int, size: int) -> None:
        self.path, self.number, self.size, self.closed = path, number, size, False

    def close(self) -> None:
        self.closed = True


class Communicator:
    """Puts are carried out late and, of a group, in any order; signals of a peer come in order."""

    def __init__(self, n: int, rank: int, unique: bytes) -> None:
        self.n, self.rank, self.folder = n, rank, Path(unique.decode())
        self.random = random.Random(rank)
        self.taken = [0] * n
        self.puts = self.numbers = 0
        self.group: list[tuple[Any, ...]] | None = None
        path = self.folder / "signals"
        if rank == 0:
            path.write_bytes(bytes(8 * n * n))
        dist.barrier()
        self.signals = torch.from_file(str(path), shared=True, size=n * n, dtype=torch.int64)

    def register_window(self, memory: Any, flag: int) -> Window:
        assert flag == 1  # without, put refuses to send from it
        self.numbers += 1
        dist.barrier()
        return Window(self.folder, self.numbers, memory.numel())

    def put_signal(
        self, data: Any, peer: int, window: Window, offset: int, *, stream: object
    ) -> None:
        assert self.group is not None
        assert stream is None  # there is none on a processor
        assert not window.closed
        assert 0 <= offset <= window.size - data.numel()
        self.group.append((data, peer, window, offset))

    def carry_out(self, data: Any, peer: int, window: Window, offset: int) -> None:
        time.sleep(self.random.choice((0, 0, 0.001)))
        path = str(window.path / f"{peer}.{window.number}")
        theirs = torch.from_file(path, shared=True, size=window.size, dtype=torch.uint8)
        theirs[offset : offset + data.numel()].copy_(data)
        self.puts += 1
        self.signal(peer, stream=None)

    def signal(self, peer: int, *, stream: object) -> None:
        assert peer != self.rank
        self.signals[peer * self.n + self.rank] += 1

    def wait_signal(self, descriptors: Sequence[WaitSignalDesc], *, stream: object) -> None:
        end = time.monotonic() + 30
        time.sleep(self.random.choice((0, 0, 0.001)))
        assert len({one.peer for one in descriptors}) == len(descriptors) > 0
        for one in descriptors:
            assert one.op_count > 0
            self.taken[one.peer] += one.op_count
            while self.signals[self.rank * self.n + one.peer] < self.taken[one.peer]:
                assert time.monotonic() < end, "a signal did not come"
                time.sleep(0.001)

    def destroy(self) -> None:
        assert self.taken == [int(count) for count in self.signals.view(self.n, self.n)[self.rank]]


def stand_in(rank: int, folder: str) -> Any:
    """What `nccl.core` and its `empty` are for the transport, and `made`: its communicators."""
    made: list[Communicator] = []

    def init(n: int, own: int, unique: bytes) -> Communicator:
        made.append(Communicator(n, own, unique))
        return made[-1]

    def empty(size: int, *, dtype: Any, device: Any) -> Any:
        number = made[-1].numbers + 1
        path = Path(folder) / f"{rank}.{number}"
        path.write_bytes(b"\xa5" * size)
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype)

    @contextmanager
    def group() -> Iterator[None]:
        one = made[-1]
        one.group = []
        yield
        one.random.shuffle(one.group)
        for put in one.group:
            one.carry_out(*put)
        one.group = None

    return SimpleNamespace(
        get_unique_id=lambda: UniqueId(folder.encode()),
        UniqueId=UniqueId,
        WaitSignalDesc=WaitSignalDesc,
        WindowFlag=SimpleNamespace(COLL_SYMMETRIC=1),
        Communicator=SimpleNamespace(init=init),
        empty=empty,
        group=group,
        made=made,
    )


def all_collectives(
    rank: int, folder: str, files: dict[str, Path], lead: int, slices: int | None
) -> tuple[int, int]:
    """Every collective at several sizes, compared; puts and windows of this rank."""
    from forestcoll.execute.torch.engine import Run
    from forestcoll.execute.torch.putting import run_of

    n = dist.get_world_size()
    plans = {
        name: ft.load_plan(path, lead=lead, slices=slices)
        for name, path in files.items()
        if name in ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce", "alltoall")
    }
    assert run_of(dist.group.WORLD) is Run  # off by default
    nccl = stand_in(rank, folder)
    sys.modules |= {"nccl.core": nccl, "nccl.core.interop.torch": nccl}
    over = ft.PutSignal()
    assert run_of(dist.group.WORLD) is not Run
    for count in (4, 4000, 52, 20_000, 4004):
        whole = torch.arange(count, dtype=torch.float32)
        mine, total = whole * (rank + 1), whole * (n * (n + 1) // 2)
        part = slice(rank * count // n, (rank + 1) * count // n)
        tensor = mine.clone()
        ft.all_reduce(tensor, plans["allreduce"])
        assert torch.equal(tensor, total)
        gathered = torch.empty(n * count)
        ft.all_gather_into_tensor(gathered, mine, plans["allgather"])
        assert torch.equal(gathered, torch.cat([whole * (r + 1) for r in range(n)]))
        shared = torch.empty(count // n)
        ft.reduce_scatter_tensor(shared, mine, plans["reduce_scatter"])
        assert torch.equal(shared, total[part])
        tensor = mine.clone()
        ft.broadcast(tensor, plans["broadcast"], src=2)
        assert torch.equal(tensor, whole * 3)
        ft.reduce(tensor, plans["reduce"], dst=2)
        assert rank != 2 or torch.equal(tensor, whole * 3 * n)
        dealt = torch.empty(count)
        ft.all_to_all_single(dealt, mine, plans["alltoall"])
        assert torch.equal(dealt, torch.cat([whole[part] * (r + 1) for r in range(n)]))
    puts = nccl.made[0].puts
    over.close()
    assert run_of(dist.group.WORLD) is Run
    tensor = torch.ones(64)
    ft.all_reduce(tensor, plans["allreduce"])
    assert torch.equal(tensor, torch.full((64,), float(n)))
    assert nccl.made[0].puts == puts  # by sends and receives again
    return puts, nccl.made[0].numbers


@pytest.mark.forks
@pytest.mark.parametrize(("lead", "slices"), [(1, 3), (2, None)])
def test_collectives_go_by_put_and_signal(
    compiled: Artefacts, lead: int, slices: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = run_ranks(4, all_collectives, folder, plan_files(compiled), lead, slices)
    assert all(puts > 100 for puts, _ in told)
    assert len({windows for _, windows in told}) == 1  # made anew by all or by none
    assert told[0][1] < 8


def without(rank: int) -> str:
    sys.modules["nccl"] = None  # type: ignore[assignment]
    with pytest.raises(UnsupportedError) as caught:
        ft.PutSignal()
    return str(caught.value)


@pytest.mark.forks
def test_without_nccl4py_it_says_what_to_install() -> None:
    told = run_ranks(2, without)
    assert set(told) == {"put and signal need nccl4py, which is not installed: pip install nccl4py"}
