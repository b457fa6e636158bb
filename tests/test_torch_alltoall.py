"""forestcoll.torch's all-to-all over gloo: real processes, every element compared."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from torch_ranks import dist, ft, needs_gloo, run_ranks, torch

pytestmark = needs_gloo

Plans = dict[str, Path]
Splits = list[list[int]]


MACHINES = {
    "2": ("ring gpus=2", "msccl.xml"),
    "3": ("ring gpus=3", "mscclpp.json"),
    "4": ("torus-2d x=2 y=2", "msccl.xml"),
    "5": ("ring gpus=5", "mscclpp.json"),
    "8": ("dgx1-v100", "msccl.xml"),
}
"""By ranks: rings and a torus with relays, a mesh of eight."""


@pytest.fixture(scope="session")
def plans(compiled: Artefacts) -> Plans:
    return {n: compiled(name, "alltoall").file(end) for n, (name, end) in MACHINES.items()}


def sent(path: Path, **asked: int) -> Any:
    """The plan, read and proven here: ranks to which it is sent need not do it again, each."""
    return ft.load_plan(path, **asked)


def mark(source: int, target: int, count: int) -> Any:
    """What a rank sends another: numbers that say whose they are."""
    return source * 1_000_000 + target * 10_000 + torch.arange(count)


def ragged(n: int, seed: int, most: int = 9) -> Splits:
    """Rows that each rank sends to each, a third of them none."""
    dice = random.Random(seed)
    return [[dice.choice((0, dice.randint(1, most), most)) for _ in range(n)] for _ in range(n)]


def blocks(rank: int, table: Splits, columns: int = 1) -> tuple[list[int], list[int], Any, Any]:
    """Rows that the rank sends to each and gets from each; what it gives, and what it must get."""
    send, get = table[rank], [line[rank] for line in table]
    given = torch.cat([mark(rank, t, c * columns) for t, c in enumerate(send)])
    wanted = torch.cat([mark(s, rank, c * columns) for s, c in enumerate(get)])
    return send, get, given.view(-1, columns), wanted.view(-1, columns)


SIZES = ((7, "int64"), (64, "float32"), (1000, "float64"), (0, "int8"))


def _kinds(rank: int, n: int, plan: Any) -> int:
    """Equal blocks out of place, in place, asynchronous; memory that overlaps; lists of tensors."""
    wrong = 0
    for (part, dtype), async_op in product(SIZES, (False, True)):
        *_, given, wanted = blocks(rank, [[part] * n] * n)
        given, wanted = (each.flatten().to(getattr(torch, dtype)) for each in (given, wanted))
        output = torch.full_like(given, -1)
        work = ft.all_to_all_single(output, given, plan, async_op=async_op)
        if async_op:
            work.wait()
        same = given.clone()
        ft.all_to_all_single(same, same, plan)
        wrong += int((output != wanted).sum()) + int((same != wanted).sum())
    *_, given, wanted = blocks(rank, [[7] * n] * n)
    memory = torch.empty(8 * n, 1, dtype=torch.int64)  # some of it is of both, at other places
    memory[: 7 * n] = given
    ft.all_to_all_single(memory[n:], memory[: 7 * n], plan, [7] * n, [7] * n)
    wrong += int((memory[n:] != wanted).sum())
    send, get, given, wanted = blocks(rank, ragged(n, 77))
    each = [torch.full((rows, 1), -1) for rows in get]
    ft.all_to_all(each, list(given.split(send)), plan)
    return wrong + int((torch.cat(each) != wanted).sum())


@pytest.mark.parametrize("n", [5, 8])
def test_blocks_of_every_kind(plans: Plans, n: int) -> None:
    """Of five, each reads the plan; eight are sent it."""
    plan = plans[str(n)] if n < 8 else sent(plans[str(n)])
    assert run_ranks(n, _kinds, n, plan) == [0] * n


def _ragged(rank: int, n: int, plan: Any, tables: list[Splits], columns: int) -> int:
    works = []
    for number, table in enumerate(tables):
        send, get, given, wanted = blocks(rank, table, columns)
        output = torch.full_like(wanted, -1)
        work = ft.all_to_all_single(output, given, plan, get, send, async_op=number % 2 == 1)
        works.append((work, output, wanted, given))
    for work, *_ in works:
        if work is not None:
            work.wait()
    return sum(int((output != wanted).sum()) for _, output, wanted, _ in works)


@pytest.mark.parametrize("n", [2, 8])
def test_ragged_blocks(plans: Plans, n: int) -> None:
    """Odd sizes, empty blocks, ranks that send or get nothing; several calls under way."""
    tables = [ragged(n, seed) for seed in range(4)]
    tables.append([[0] * n for _ in range(n)])
    tables.append([[7 if s == 0 else 0 for _ in range(n)] for s in range(n)])
    tables.append([[11 if t == n - 1 else 0 for t in range(n)] for _ in range(n)])
    assert run_ranks(n, _ragged, n, sent(plans[str(n)]), tables, 3) == [0] * n


def _sliced(rank: int, n: int, each: list[Any], tables: list[Splits]) -> list[int]:
    return [_ragged(rank, n, plan, tables, 2) for plan in each]


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_rounds_overlap(plans: Plans, n: int) -> None:
    """More slices than rows, one step under way or three."""
    tables = [ragged(n, 21, most=40), ragged(n, 22, most=2)]
    each = [sent(plans[str(n)], slices=s, lead=a) for s, a in ((1, 1), (3, 2), (50, 3))]
    assert run_ranks(n, _sliced, n, each, tables) == [[0, 0, 0]] * n


def _under_way(rank: int, n: int, path: Path) -> tuple[int, int]:
    """(steps that a large call takes, most of them that were under way at once)."""
    from forestcoll.execute.torch.engine import Run

    most, under_way, steps = 0, 0, 0
    start, finish = Run.start, Run.finish

    def starting(self: Run, *arguments: Any) -> Any:
        nonlocal most, under_way, steps
        under_way, steps = under_way + 1, steps + 1
        most = max(most, under_way)
        return start(self, *arguments)

    def finishing(self: Run, flight: Any) -> None:
        nonlocal under_way
        under_way -= 1
        finish(self, flight)

    Run.start, Run.finish = starting, finishing  # type: ignore[method-assign]
    rows = 1 << 18
    send, get, given, wanted = blocks(rank, [[rows] * (n - 1) + [rows // 2]] * n)
    output = torch.empty_like(wanted)
    ft.all_to_all_single(output, given, path, get, send)
    assert torch.equal(output, wanted)
    return steps, most


def test_large_calls_overlap_without_being_asked(plans: Plans) -> None:
    rounds = 2  # a ring of five: at most two hops
    for steps, most in run_ranks(5, _under_way, 5, plans["5"]):
        assert steps > 2 * rounds
        assert most == 2


def _gradients(rank: int, n: int, path: Path) -> int:
    """The sum of weight times output: the weights come back to where the elements came from."""
    get, send, weights, wanted = blocks(rank, ragged(n, 5), 2)
    given = torch.ones(sum(send), 2, dtype=torch.float64, requires_grad=True)
    (ft.all_to_all_single_autograd(given, path, get, send) * weights).sum().backward()
    even = torch.arange(n * 3, dtype=torch.float64).requires_grad_()
    (ft.all_to_all_single_autograd(even, path) * (rank + 1)).sum().backward()
    wrong = int((even.grad != torch.arange(1, n + 1).repeat_interleave(3)).sum())
    return wrong + int((given.grad != wanted).sum())


def test_gradients_flow_back(plans: Plans) -> None:
    assert run_ranks(5, _gradients, 5, plans["5"]) == [0] * 5


def _installed(rank: int, n: int, path: Path) -> tuple[int, dict[str, int], dict[Any, int]]:
    wrong = 0
    send, get, given, wanted = blocks(rank, ragged(n, 9))
    *_, even, expected = blocks(rank, [[4] * n] * n)
    for rule in (ft.Rule(path), ft.Rule(path, max_bytes=1 << 20)):
        with ft.install([rule]) as installation:
            output, found = torch.empty_like(wanted), torch.empty_like(even)
            dist.all_to_all_single(output, given, get, send)
            dist.all_to_all_single(found, even)
            wrong += int((output != wanted).sum()) + int((found != expected).sum())
            if rule.max_bytes is None:
                used = dict(installation.used)
    return wrong, used, dict(installation.fallbacks)


def test_installed_behind_torchs_own(plans: Plans) -> None:
    why = "splits, and the rule asks for sizes, of which each rank has its own"
    for wrong, used, missed in run_ranks(8, _installed, 8, plans["8"]):
        assert wrong == 0
        assert used == {"dgx1-v100-1": 2}
        assert [(reason, count) for (_, reason), count in missed.items()] == [(why, 1)]
