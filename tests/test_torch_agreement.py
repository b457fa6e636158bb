"""forestcoll.torch beside torch's own; what is wrong at one rank is an error at all, over gloo."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from artefacts import Artefacts
from edits import Row, check_rows, rows_of
from torch_ranks import dist, ft, needs_gloo, plan_files, run_ranks, torch

from forestcoll import plans as plan_formats
from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError

pytestmark = needs_gloo

N = 4
Plans = dict[str, Path]


@pytest.fixture(scope="session")
def plans(compiled: Artefacts) -> Plans:
    return plan_files(compiled)


def attempt(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ForestCollError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def exchange_well(rank: int, plan: Any) -> bool:
    """Whether the group still serves: an all-to-all of equal blocks, and torch's own."""
    given = torch.arange(8.0) + 100 * rank
    output, wanted = torch.full((8,), -1.0), torch.full((8,), -1.0)
    ft.all_to_all_single(output, given, plan, [2] * N, [2] * N)
    dist.all_to_all_single(wanted, given)
    return bool(torch.equal(output, wanted))


# --- what is refused


def zeros(count: int, *more: Any) -> Any:
    """So many zeros (or rows of them); a word is their type."""
    kind = more[-1] if more and isinstance(more[-1], str) else "float32"
    shape = [count, *(each for each in more if isinstance(each, int))]
    return torch.zeros(shape, dtype=getattr(torch, kind))


def refusals(rank: int, rows: list[str], paths: Plans) -> tuple[list[list[str]], float, bool]:
    """What each expression of rows/torch.txt says, how long all took, whether the group lives."""
    program = plan_formats.read_plan(paths["allreduce"])
    x = zeros(8)

    def every(plan: Any) -> list[str]:
        """All functions that take a plan."""
        acts: list[Callable[[], Any]] = [
            lambda: ft.all_reduce(x, plan),
            lambda: ft.all_gather_into_tensor(x, x, plan),
            lambda: ft.reduce_scatter_tensor(x, x, plan),
            lambda: ft.broadcast(x, plan),
            lambda: ft.reduce(x, plan),
            lambda: ft.comm_hook(plan),
            lambda: ft.install([plan]),
        ]
        return sorted(set(map(attempt, acts)))

    def installed(path: Path, act: Callable[[], Any]) -> Any:
        with ft.install([path]):
            return act()

    def stepped(weights: Any, gradient: Any, *others: Any) -> Any:
        """A hook with an optimizer of `weights`, given a bucket of them or of `others`."""
        bucket = SimpleNamespace(buffer=lambda: gradient, parameters=lambda: others or (weights,))
        return ft.comm_hook(ft.Plan(program), torch.optim.SGD([weights]))(None, bucket)

    names = {"ft": ft, "dist": dist, "torch": torch, "Path": Path, "zeros": zeros, "x": x}
    names |= {"odd": rank == 1, "p": SimpleNamespace(**paths), "program": program, "every": every}
    names |= {"installed": installed, "ones": [1] * N, "twos": [2] * N}
    names |= {"stepped": stepped, "untouched": torch.full((17,), -7.0)}
    names["mixed"] = lambda: [zeros(2), zeros(2), zeros(2), zeros(2, "float64")]
    said: list[list[str]] = []

    def act(row: str) -> None:
        value = eval(row, names)
        if isinstance(value, list):
            said[-1] = list(map(str, value))
        elif value is not None:
            value.wait()

    began = time.monotonic()
    for row in rows:
        said.append([])
        text = attempt(lambda: act(row))  # noqa: B023
        said[-1] = said[-1] or [text]
    took = time.monotonic() - began
    return said, took, dist.get_world_size() == 1 or exchange_well(rank, paths["alltoall"])


@pytest.fixture(scope="module")
def told(plans: Plans) -> dict[str, list[str]]:
    """By row what rank 1 is told, and the others where that is something else."""
    found = {}
    for n in (1, N):
        rows = [row for row in rows_of("torch.txt") if row.base == str(n)]
        results = run_ranks(n, refusals, [row.edits[0] for row in rows], plans)
        for said, seconds, well in results:
            assert len(said) == len(rows)
            assert seconds < 30  # nothing waits for the group's timeout, which is a minute
            assert well
        for row, *each in zip(rows, *(said for said, *_ in results), strict=True):
            mine = each.pop(min(1, n - 1))
            assert all(other == each[0] for other in each), (row.name, each)
            found[row.name] = mine + [line for line in (*each, [])[0] if line not in mine]
            for k, name in enumerate(dict.fromkeys(re.findall("plan ([0-9a-f]{12})", mine[0]))):
                found[row.name] = [line.replace(name, f"#{k}") for line in found[row.name]]
    return found


def test_what_is_refused_is_said_at_all_ranks(
    told: dict[str, list[str]], request: pytest.FixtureRequest
) -> None:
    def say(row: Row) -> Iterator[str]:
        yield from told[row.name]

    check_rows("torch.txt", say, request)


def test_every_reduction_operator_has_a_row() -> None:
    from forestcoll.execute.torch.operators import OPERATORS
    from forestcoll.program import REDUCTIONS

    assert tuple(OPERATORS) == REDUCTIONS


SERVED: tuple[tuple[str, tuple[Any, ...]], ...] = (  # output, input, splits
    ("all_to_all_single", ((2, 8), (2, 8))),
    ("all_to_all_single", ((4, 4), (8, 2))),
    ("all_to_all_single", ((8, 2), (4, 4), [2] * 4, [1] * 4)),
    ("all_to_all_single", ((16,), (16,), None, [4] * 4)),
    ("all_gather_into_tensor", ((68,), (17,))),
    ("all_gather_into_tensor", ((8, 3), (2, 3))),
    ("reduce_scatter_tensor", ((17,), (68,))),
)


def shapes(rank: int, plans: Plans) -> list[bool]:
    """Whether ours and torch's own leave the same."""
    by = {"all_to": "alltoall", "all_ga": "allgather", "reduce": "reduce_scatter"}
    same = []
    for name, (out, in_, *splits) in SERVED:
        given = torch.arange(float(torch.Size(in_).numel())).view(in_) + 1000 * rank
        mine, theirs = torch.full(out, -1.0), torch.full(out, -1.0)
        getattr(ft, name)(mine, given, plans[by[name[:6]]], *splits)
        getattr(dist, name)(theirs, given, *splits)
        same.append(torch.equal(mine, theirs))
    return same


def test_shapes_are_served_as_by_torch(plans: Plans) -> None:
    assert run_ranks(N, shapes, plans) == [[True] * len(SERVED)] * N


# --- others' collectives on the group, in between -------------------------------------------------


def between(rank: int, plans: Plans) -> int:
    """Ranks wait in different orders, and one is late with the call under way."""
    plan, wrong = ft.load_plan(plans["alltoall"]), 0
    ft_sum = ft.load_plan(plans["allreduce"])
    for turn in range(6):
        x = torch.arange(16.0) + 100 * rank + turn
        y, z, total, ours = torch.full((16,), -7.0), torch.empty(16), torch.ones(9), torch.ones(33)
        if rank == turn % N:
            time.sleep(0.05)
        first = ft.all_to_all_single(y, x, plan, [4] * N, [4] * N, async_op=True)
        second = dist.all_reduce(total, async_op=True)
        third = ft.all_reduce(ours, ft_sum, async_op=True)
        dist.all_to_all_single(z, x)
        works = [first, second, third]
        for work in works if (rank + turn) % 2 else reversed(works):
            assert work is not None
            work.wait()
        wrong += int((y != z).sum()) + int((total != N).sum()) + int((ours != N).sum())
    return wrong


def test_asynchronous_calls_beside_torchs_own(plans: Plans) -> None:
    assert run_ranks(N, between, plans, answer_within=30.0) == [0] * N


def waits_first(rank: int, plans: Plans) -> tuple[bool, list[float]]:
    """Rank 1 makes an asynchronous call only after a message that rank 0 sends after its own."""
    tensor, word = torch.ones(5), torch.zeros(1)
    if rank == 1:
        dist.recv(word, 0)
    work = ft.all_reduce(tensor, plans["allreduce"], async_op=True)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    assert work is not None
    return work.wait(), tensor.tolist()


def test_asynchronous_calls_do_not_wait_for_others(plans: Plans) -> None:
    assert run_ranks(N, waits_first, plans, answer_within=20.0) == [(True, [4.0] * 5)] * N


# --- what was agreed on before --------------------------------------------------------------------


def known_before(rank: int, plans: Plans, checked: bool) -> tuple[str, str]:
    """Both sizes are known to all; then one rank takes the other one."""
    plan = ft.load_plan(plans["allreduce"])
    for size in (16, 2_000_000):
        ft.all_reduce(zeros(size), plan)
    if checked:
        dist.set_debug_level(dist.DebugLevel.INFO)
        odd = attempt(lambda: ft.all_reduce(zeros(16, "bool" if rank == 1 else "int8"), plan))
        assert "torch.bool cannot be added up" in odd
    tensor = zeros(2_000_000 if rank == 1 else 16)
    try:
        ft.all_reduce(tensor, plan)
    except (UnsupportedError, ExecutionError) as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize("checked", [False, True])
def test_sizes_that_were_agreed_on_before(plans: Plans, checked: bool) -> None:
    """No data of another size is taken for one's own: an error in time; with INFO, at once."""
    for kind, text in run_ranks(
        N, known_before, plans, checked, answer_within=60.0 if checked else 3.0
    ):
        assert kind == ("UnsupportedError" if checked else "ExecutionError")
        assert ("rank 1 calls allreduce of 2000000" if checked else "a peer died or did") in text


def counted(rank: int, plans: Plans) -> list[int]:
    made, gather = 0, dist.all_gather

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        return gather(*args, **kwargs)

    torch.distributed.all_gather = count
    seen = []
    for size, op in ((5, "sum"), (5, "sum"), (6, "sum"), (5, "max"), (5, "sum"), (6, "sum")):
        ft.all_reduce(zeros(size), plans["allreduce"], op)
        seen.append(made)
    for _ in range(2):
        exchange_well(rank, plans["alltoall"])
        seen.append(made)
    return seen


def test_calls_without_splits_are_agreed_on_once(plans: Plans) -> None:
    assert run_ranks(N, counted, plans) == [[1, 1, 2, 3, 3, 3, 4, 5]] * N
