"""What is wrong at one rank of forestcoll.torch is an error at every one, at once, over gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from torch_ranks import run_ranks

from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra 'torch')")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo"
)

N = 4
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall")
Plans = dict[str, Path]


@pytest.fixture(scope="session")
def plans(compiled: Artefacts) -> Plans:
    """A ring of four, by collective; "other": an all-to-all straight; "two": of two ranks."""
    asked = {collective: ("ring gpus=4", collective) for collective in COLLECTIVES}
    asked |= {"other": ("star gpus=4", "alltoall"), "two": ("ring gpus=2", "alltoall")}
    return {name: compiled(*words).file(".msccl.xml") for name, words in asked.items()}


def attempt(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ForestCollError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def exchange_well(rank: int, plan: Any) -> bool:
    """Whether the group still serves: an all-to-all of equal blocks, and torch's own."""
    import forestcoll.torch as ft
    import torch.distributed as dist

    given = torch.arange(8.0) + 100 * rank
    output, wanted = torch.full((8,), -1.0), torch.full((8,), -1.0)
    ft.all_to_all_single(output, given, plan, [2] * N, [2] * N)
    dist.all_to_all_single(wanted, given)
    return bool(torch.equal(output, wanted))


# --- blocks that are not even ---------------------------------------------------------------------


def uneven(rank: int, plans: Plans) -> tuple[list[str], bool, bool]:
    import forestcoll.torch as ft
    import torch.distributed as dist

    plan = ft.load_plan(plans["alltoall"])
    x, y = torch.arange(17.0) + 100 * rank, torch.full((17,), -7.0)
    said = [
        attempt(lambda: ft.all_to_all_single(y, x, plan)),
        attempt(lambda: ft.all_to_all_single(y, x, plan, async_op=True)),
        attempt(lambda: ft.all_to_all_single(y, x, plan, [], [])),
        attempt(lambda: ft.all_to_all_single_autograd(x, plan)),
    ]
    with ft.install([plan]):
        said.append(attempt(lambda: dist.all_to_all_single(y, x)))
        said.append(attempt(lambda: dist.all_to_all_single(y, x, [], [])))
    said.append(attempt(lambda: ft.all_to_all_single(y, x, plan, None, [5, 4, 4, 4])))
    untouched = bool((y == -7).all())
    return said, untouched, exchange_well(rank, plan)


def test_blocks_that_are_not_even_are_refused(plans: Plans) -> None:
    """17 elements over 4 ranks: the last one would stay where it is. Nothing is sent."""
    text = (
        "UnsupportedError: input and output of 17 elements are not dealt out to 4 ranks evenly; "
        "give splits, or pad them"
    )
    half = "UnsupportedError: output_split_sizes: 17 rows are not dealt out to 4 ranks evenly"
    for said, untouched, well in run_ranks(N, uneven, plans):
        assert said == [text] * 6 + [half]
        assert untouched
        assert well


# --- alike with torch's own -----------------------------------------------------------------------


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return torch.zeros(*shape, dtype=getattr(torch, dtype))


SHAPES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    # collective, words of the error (none: it is served, as by torch), arguments: output first
    ("alltoall", "", ((2, 8), (2, 8))),
    ("alltoall", "", ((4, 4), (8, 2))),
    ("alltoall", "input has 16 elements and output 15", ((15,), (16,))),
    ("alltoall", "", ((8, 2), (4, 4), [2] * 4, [1] * 4)),
    ("alltoall", "", ((16,), (16,), None, [4] * 4)),
    ("alltoall", "sends rank 0 4 elements, which expects 6", ((8, 3), (8, 2), [2] * 4, [2] * 4)),
    ("alltoall", "input_split_sizes: 4 sizes that add up to 12", ((16,), (16,), [4] * 4, [3] * 4)),
    ("alltoall", "input_split_sizes: 2 sizes", ((16,), (16,), [4] * 4, [8] * 2)),
    ("alltoall", "none below 0", ((16,), (16,), [4] * 4, [-4, 8, 8, 4])),
    ("allgather", "", ((68,), (17,))),
    ("allgather", "", ((8, 3), (2, 3))),
    ("allgather", "output 67; the output needs 4 times the input", ((67,), (17,))),
    ("reduce-scatter", "", ((17,), (68,))),
    ("reduce-scatter", "input has 67 elements and output 17", ((17,), (67,))),
    ("reduce-scatter", "input has 68 elements and output 16", ((16,), (68,))),
)


def shapes(rank: int, plans: Plans) -> tuple[list[str], list[str], list[bool]]:
    """(what ours says, what torch's own says, whether both leave the same) of the served."""
    import forestcoll.torch as ft
    import torch.distributed as dist

    ours: dict[str, Callable[..., Any]] = {
        "alltoall": ft.all_to_all_single,
        "allgather": ft.all_gather_into_tensor,
        "reduce-scatter": ft.reduce_scatter_tensor,
    }
    said, stock, same = [], [], []
    for collective, words, (out, in_, *splits) in SHAPES:
        torchs = getattr(dist, ours[collective].__name__)
        given = torch.arange(float(torch.Size(in_).numel())).view(in_) + 1000 * rank
        mine, theirs = torch.full(out, -1.0), torch.full(out, -1.0)
        plan = plans[collective]
        said.append(attempt(lambda: ours[collective](mine, given, plan, *splits)))  # noqa: B023
        if not words:
            stock.append(attempt(lambda: torchs(theirs, given, *splits)))  # noqa: B023
            same.append(torch.equal(mine, theirs))
    return said, stock, same


def test_shapes_are_served_and_refused_as_by_torch(plans: Plans) -> None:
    for said, stock, same in run_ranks(N, shapes, plans):
        for (_, words, given), text in zip(SHAPES, said, strict=True):
            assert words in text if words else text == "no error", (given, text)
        assert set(stock) == {"no error"}
        assert all(same)


def types(rank: int, plans: Plans) -> list[str]:
    import forestcoll.torch as ft

    plan = ft.load_plan(plans["alltoall"])
    x, ones = zeros(4), [1] * N

    def lists(outputs: list[str], inputs: list[str]) -> str:
        made = [[zeros(2, dtype=t) for t in kinds] for kinds in (outputs, inputs)]
        return attempt(lambda: ft.all_to_all(*made, plan))

    four = ["float32"] * 4
    return [
        attempt(lambda: ft.all_to_all_single(zeros(4, dtype="float64"), x, plan, ones, ones)),
        attempt(lambda: ft.all_to_all_single(zeros(4, dtype="int32"), x, plan, ones, ones)),
        lists(["int64"] * 4, four),
        lists(["float32"] * 3 + ["float64"], ["float32"] * 3 + ["float64"]),
        lists(["float32"] * 3, four),
        attempt(lambda: ft.all_to_all([zeros(1).expand(4)] * 4, [zeros(4)] * 4, plan)),
    ]


def test_types_that_differ_are_refused_not_cast(plans: Plans) -> None:
    for said in run_ranks(N, types, plans):
        for text, words in zip(
            said,
            (
                "input is torch.float32 on cpu, output torch.float64 on cpu; they must be alike",
                "input is torch.float32 on cpu, output torch.int32 on cpu; they must be alike",
                "input is torch.float32 on cpu, output torch.int64 on cpu; they must be alike",
                "tensors of torch.float32 on cpu and torch.float64 on cpu; they must be alike",
                "3 output tensors; the plan has 4 ranks",
                "elements of the output share memory (expand); clone it",
            ),
            strict=True,
        ):
            assert text == f"UnsupportedError: {words}"


# --- others' collectives on the group, in between -------------------------------------------------


def between(rank: int, plans: Plans) -> int:
    """Ranks wait in different orders, and one is late with the call under way."""
    import forestcoll.torch as ft
    import torch.distributed as dist

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
    import forestcoll.torch as ft
    import torch.distributed as dist

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


# --- what one rank has wrong ----------------------------------------------------------------------


def odd_one(rank: int, plans: Plans) -> tuple[list[str], float, bool]:
    """What each rank is told when rank 1 differs, how long it took, whether the group lives."""
    import forestcoll.torch as ft

    odd = rank == 1
    plan, total = ft.load_plan(plans["alltoall"]), ft.load_plan(plans["allreduce"])
    x, ones, twos = zeros(8), [1] * N, [2] * N

    def single(output: Any, input: Any, by: Any = plan, *splits: Any, **more: Any) -> str:
        def call() -> None:
            work = ft.all_to_all_single(output, input, by, *splits, **more)
            if work is not None:
                work.wait()

        return attempt(call)

    began = time.monotonic()
    said = [
        single(x.clone(), x, plan, twos, ones if odd else twos),
        single(x.clone(), x, plan, twos, ones if odd else twos, async_op=True),
        single(x.clone(), x, plan, twos[1:] if odd else twos, twos),
        single(x.double() if odd else x.clone(), x, plan, twos, twos),
        single(x.double(), x.double(), plan, twos, twos) if odd else single(x, x, plan, twos, twos),
        single(x.clone(), x, plans["other"] if odd else plan, twos, twos),
        single(x.clone(), x, plans["two"] if odd else plan, twos, twos),
        single(x.clone(), x, "missing.xml" if odd else plan, twos, twos),
        single(x.clone(), x, plan, *((twos, twos) if odd else ())),
        single(*[zeros(9 if odd else 8)] * 2),
        attempt(lambda: ft.all_reduce(zeros(7, dtype="bool") if odd else zeros(7), total)),
        attempt(lambda: ft.broadcast(zeros(7), "missing.xml" if odd else plans["broadcast"])),
        attempt(lambda: ft.all_to_all([zeros(1)] * (3 if odd else 4), [zeros(1)] * 4, plan)),
        single(zeros(20 if odd else 16), zeros(20 if odd else 16)),
        attempt(lambda: ft.all_reduce(zeros(20 if odd else 16), total)),
        attempt(lambda: ft.all_reduce(zeros(16, dtype="int32" if odd else "float32"), total)),
        attempt(lambda: ft.all_reduce(zeros(16), total, "max" if odd else "sum")),
        attempt(lambda: ft.broadcast(zeros(2_000_000 if odd else 16), plans["broadcast"])),
        attempt(
            lambda: ft.all_reduce(zeros(7), ft.load_plan(plans["allreduce"], slices=2 + odd)),
        ),
    ]
    return said, time.monotonic() - began, exchange_well(rank, plan)


def test_what_is_wrong_at_one_rank_is_said_at_all(plans: Plans) -> None:
    """At once: nothing waits for the group's timeout, which is a minute, and no process aborts."""
    results = run_ranks(N, odd_one, plans)
    splits = "input_split_sizes: 4 sizes that add up to 4; it takes 4, none below 0, that add up"
    own = (
        (0, f"UnsupportedError: {splits} to 8 rows"),
        (1, f"UnsupportedError: {splits} to 8 rows"),
        (2, "UnsupportedError: output_split_sizes: 3 sizes that add up to 6; it takes 4, none be"),
        (3, "UnsupportedError: input is torch.float32 on cpu, output torch.float64 on cpu; they "),
        (6, "PlanError: ring-2 is for 2 ranks, but the process group has 4; synthesize one for "),
        (7, "PlanError: missing.xml: cannot be read"),
        (9, "UnsupportedError: input and output of 9 elements are not dealt out to 4 ranks evenly"),
        (10, "UnsupportedError: torch.bool cannot be added up; view it as another type"),
        (11, "PlanError: missing.xml: cannot be read"),
        (12, "UnsupportedError: 3 output tensors; the plan has 4 ranks"),
    )
    split, sum_ = "alltoall of blocks with splits, torch.float32", "elements, sum, torch.float32"
    differ = (
        (4, "alltoall of blocks with splits, torch.float64", split),
        (5, split, split),
        (8, split, "alltoall of 8 elements, torch.float32"),
        (13, "alltoall of 20 elements, torch.float32", "alltoall of 16 elements, torch.float32"),
        (14, f"allreduce of 20 {sum_}", f"allreduce of 16 {sum_}"),
        (15, "allreduce of 16 elements, sum, torch.int32", f"allreduce of 16 {sum_}"),
        (16, "allreduce of 16 elements, max, torch.float32", f"allreduce of 16 {sum_}"),
        (17, "broadcast of 2000000 elements, torch.float32", "broadcast of 16 elements"),
        (18, f"allreduce of 7 {sum_}", f"allreduce of 7 {sum_}"),
    )
    assert len(own) + len(differ) == len(results[0][0])
    for rank, (said, seconds, well) in enumerate(results):
        for k, text in own:
            if rank == 1:
                assert said[k].startswith(text)
            else:
                words = text.split(": ", 1)[1]
                assert said[k].startswith(f"UnsupportedError: rank 1 refuses the call: {words}")
        for k, mine, others in differ:
            assert said[k] == results[0][0][k]
            assert said[k].startswith(f"UnsupportedError: rank 1 calls {mine}, by the plan ")
            assert f", but rank 0 {others}" in said[k]
        assert seconds < 30
        assert well


def known_before(rank: int, plans: Plans, checked: bool) -> tuple[str, str]:
    """Both sizes are known to all; then one rank takes the other one."""
    import forestcoll.torch as ft
    import torch.distributed as dist

    plan = ft.load_plan(plans["allreduce"])
    for size in (16, 2_000_000):
        ft.all_reduce(zeros(size), plan)
    if checked:
        dist.set_debug_level(dist.DebugLevel.INFO)
        odd = attempt(lambda: ft.all_reduce(zeros(16, dtype="bool" if rank == 1 else "int8"), plan))
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
    import forestcoll.torch as ft
    import torch.distributed as dist

    made, gather = 0, dist.all_gather

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        return gather(*args, **kwargs)

    dist.all_gather = count
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
