"""Calls whose result is taken, and whose input is made, part by part."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from artefacts import ROOT, Artefacts
from torch_ranks import ft, needs_gloo, plan_files, run_ranks, torch

pytestmark = needs_gloo
COUNT = 100_003


@pytest.fixture
def path(compiled: Artefacts) -> Path:
    return plan_files(compiled)["allreduce"]


def values(rank: int) -> Any:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))


def in_parts(rank: int, path: Path, apart: bool) -> tuple[list[tuple[int, int]], bool, bool, int]:
    """(offset, elements) of the parts as they came; whether bits and memory are right; threads."""
    plan, given, parts = ft.load_plan(path, slices=8), values(rank), []
    out = torch.zeros(COUNT) if apart else given
    whole = values(rank)
    ft.all_reduce(whole, plan)
    copied, names = torch.zeros(COUNT), set()

    def take(view: Any, offset: int) -> None:
        names.add(threading.current_thread().name)
        parts.append((offset, view.numel()))
        copied[offset : offset + view.numel()] = view
        view.mul_(2)  # nobody needs it any more

    work = ft.all_reduce(given, plan, async_op=True, out=out, on_chunk=take)
    assert work.wait()
    return parts, torch.equal(copied, whole), torch.equal(out, 2 * whole), len(names)


@pytest.mark.parametrize("apart", [False, True])
def test_parts_of_the_result_come_once_and_with_the_same_bits(path: Path, apart: bool) -> None:
    for parts, same, kept, threads in run_ranks(4, in_parts, path, apart):
        assert (same, kept, threads) == (True, True, 1)
        assert len(parts) > 8
        end = 0
        for offset, count in sorted(parts):
            assert offset == end
            assert count > 0
            end += count
        assert end == COUNT
        assert parts != sorted(parts)  # as they become final, not as they lie


def failing(rank: int, path: Path, side: str) -> tuple[str, bool]:
    calls = []

    def take(view: Any, offset: int) -> None:
        calls.append(offset)
        if rank == 1:
            raise ValueError(f"rank {rank} at part {len(calls)}")

    def make() -> Iterator[tuple[int, int]]:
        yield 0, COUNT // 2
        if rank == 1:
            raise ValueError(f"rank {rank} makes no more")
        yield COUNT // 2, COUNT

    more: dict[str, Any] = {"on_chunk": take} if side == "on_chunk" else {"ready": make()}
    work = ft.all_reduce(values(rank), path, async_op=True, **more)
    try:
        work.wait()
        said = ""
    except ValueError as error:
        said = str(error)
    after = torch.ones(5)
    ft.all_reduce(after, path)  # the group is as good as before
    return said, bool((after == 4).all()) and work.is_success() is (not said)


@pytest.mark.parametrize(
    ("side", "said"),
    [("on_chunk", "rank 1 at part 1"), ("ready", "rank 1 makes no more")],
)
def test_what_either_side_raises_comes_out_of_wait(path: Path, side: str, said: str) -> None:
    assert run_ranks(4, failing, path, side) == [
        (said if rank == 1 else "", True) for rank in range(4)
    ]


def produced(rank: int, path: Path, events: bool) -> tuple[bool, int]:
    """Whether the sum is right of an input that is made while the call is under way."""
    whole, given = values(rank), torch.full((COUNT,), float("nan"))
    tile, made = -(-COUNT // 7), []
    starts = [start % COUNT for start in range(0, COUNT, tile)][::-1]

    def fill(start: int) -> None:
        time.sleep(0.002)
        given[start : start + tile] = whole[start : start + tile]
        made.append(start)

    flags = {start: threading.Event() for start in starts}

    def fill_all() -> None:
        for start in starts:
            fill(start)
            flags[start].set()

    def tiles() -> Iterator[tuple[Any, ...]]:
        for start in starts:
            if events:
                yield start, tile, flags[start]
            else:
                fill(start)
                yield start, tile

    if events:
        threading.Thread(target=fill_all).start()
    ft.all_reduce(given, path, ready=tiles())
    ft.all_reduce(whole, path)
    return torch.equal(given, whole), len(made)


@pytest.mark.parametrize("events", [False, True])
def test_nothing_is_read_before_it_is_made(path: Path, events: bool) -> None:
    assert run_ranks(4, produced, path, events) == [(True, 7)] * 4


def measured(rank: int, path: Path) -> dict[str, Any]:
    """The benchmark's own figures, of a size that takes no time."""
    overlap: Any = __import__("overlap")
    with torch.no_grad():
        found: dict[str, Any] = overlap.measure(rank, ft.load_plan(path), COUNT, 1, 0.5)
    return found


def test_the_benchmark_compares_bits_and_times(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/bench --overlap` has the links shaped; what it measures is the same here."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benchmarks"))
    told = run_ranks(4, measured, path)
    assert told == [told[0]] * 4
    assert told[0]["alike"]
    assert told[0]["passes"] >= 1
    alone = told[0]["allreduce"], told[0]["adam"]
    saved = min(told[0]["in turn"], sum(alone)) - told[0]["overlapped"]
    assert told[0]["hidden"] == pytest.approx(saved / min(alone))


def refused(rank: int, path: Path) -> tuple[str, bool]:
    from forestcoll.common.errors import UnsupportedError

    given = torch.arange(24.0).view(4, 6).t()
    wanted, said = 4 * given + torch.arange(24.0).view(6, 4), ""
    try:
        ft.all_reduce(given, path, on_chunk=lambda view, offset: None)
    except UnsupportedError as error:
        said = str(error)

    def count(view: Any, offset: int) -> None:
        view.add_(torch.arange(offset, offset + view.numel()))

    ft.all_reduce(given, path, epilogue=count)
    return said, torch.equal(given, wanted)


def test_parts_are_of_contiguous_tensors(path: Path) -> None:
    """An epilogue's are of the flat result, whatever the tensor is like."""
    said = "on_chunk and ready take contiguous tensors"
    assert run_ranks(4, refused, path) == [(said, True)] * 4
