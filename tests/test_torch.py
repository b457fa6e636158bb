"""forestcoll.torch over gloo: real processes, every element compared."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from stored_schedules import SCHEDULES
from torch_ranks import dist, ft, launch, needs_gloo, plan_files, run_ranks, torch

from forestcoll.common import errors
from forestcoll.execute.cpu import DTYPES, OPS

pytestmark = needs_gloo

TORCHS = {"prod": "PRODUCT"}
COLLECTIVES = ("allreduce", "reduce-scatter", "allgather", "broadcast", "reduce")
FORMATS = {"msccl-xml": ".msccl.xml", "mscclpp-json": ".mscclpp.json"}
Plans = dict[str, Path]


MACHINES = {2: "ring gpus=2", 4: "ring gpus=4", 8: "dgx1-v100"}


@pytest.fixture(scope="session")
def plans(compiled: Artefacts) -> Plans:
    """Files by `<ranks>.<collective>.<format>`: rings of links, a mesh of eight."""
    found = {}
    for n, machine in MACHINES.items():
        for collective in COLLECTIVES:
            rooted = collective in ("broadcast", "reduce")
            root = ("--root", str(n // 2)) if rooted else ()
            cut = ("--instances", "1") if n >= 8 else ()  # as many processes: few thread blocks
            made = compiled(machine, collective, "--min-percent", "90", *cut, *root)
            for form, suffix in FORMATS.items():
                found[f"{n}.{collective}.{form}"] = made.file(suffix)
    return found


# --- what every rank knows of the data ------------------------------------------------------------


@cache
def common_data(count: int) -> Any:
    """What all ranks' data begins from."""
    k = torch.arange(count, dtype=torch.int64)
    return k * 7 + k // 3


def given_data(rank: int, count: int, dtype: str, op: str = "sum") -> Any:
    """Small whole numbers: exact in every type, whatever the order, with up to 8 ranks."""
    numbers = (common_data(count) + rank * 5) % 11
    match op:
        case "prod":
            numbers = 1 + (numbers == 0).long()
        case "avg":
            numbers = numbers % 2 * 7
    return numbers.to(getattr(torch, dtype))


def combined(n: int, count: int, dtype: str, op: str) -> Any:
    """What `op` over all ranks' data is, by the definition."""
    each = torch.stack([given_data(r, count, "float64", op) for r in range(n)])
    match op:
        case "prod":
            result = each.prod(0)
        case "min":
            result = each.amin(0)
        case "max":
            result = each.amax(0)
        case _:
            result = each.sum(0)
    if op == "avg":
        result = result / n if getattr(torch, dtype).is_floating_point else (result / n).trunc()
    return result.to(getattr(torch, dtype))


class Compared:
    """Counts comparisons, and collects what was wrong."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []

    def __call__(self, what: str, got: Any, wanted: Any) -> None:
        self.count += 1
        if got.dtype != wanted.dtype or not torch.equal(got, wanted):
            self.wrong.append(f"{what}: {got.tolist()[:8]} for {wanted.tolist()[:8]}")


def once(rank: int, n: int, plan: Any, count: int, dtype: str, op: str, compare: Compared) -> None:
    """One collective, out of place (where there is such a thing) and in place."""
    what = f"rank {rank}, {plan.collective} {count} x {dtype} {op}"
    mine = given_data(rank, count, dtype, op)
    match plan.collective:
        case "allreduce":
            wanted, out = combined(n, count, dtype, op), torch.zeros_like(mine)
            ft.all_reduce(mine, plan, op, out=out)
            compare(what, out, wanted)
            compare(what + ", input", mine, given_data(rank, count, dtype, op))
            ft.all_reduce(
                mine, plan, getattr(torch.distributed.ReduceOp, TORCHS.get(op, op.upper()))
            )
            compare(what + " in place", mine, wanted)
        case "allgather":
            wanted = torch.cat([given_data(r, count, dtype) for r in range(n)])
            out = torch.zeros_like(wanted)
            ft.all_gather_into_tensor(out, mine, plan)
            compare(what, out, wanted)
            out = torch.zeros_like(wanted)
            own = out[rank * count : (rank + 1) * count]
            own.copy_(mine)
            ft.all_gather_into_tensor(out, own, plan)
            compare(what + " in place", out, wanted)
        case "reduce-scatter":
            everything = given_data(rank, count * n, dtype, op)
            wanted = combined(n, count * n, dtype, op)[rank * count : (rank + 1) * count]
            out = torch.zeros_like(wanted)
            ft.reduce_scatter_tensor(out, everything, plan, op)
            compare(what, out, wanted)
            compare(what + ", input", everything, given_data(rank, count * n, dtype, op))
            own = everything[rank * count : (rank + 1) * count]
            ft.reduce_scatter_tensor(own, everything, plan, op)
            compare(what + " in place", own, wanted)
        case "broadcast":
            ft.broadcast(mine, plan, plan.root)
            compare(what, mine, given_data(plan.root, count, dtype, op))
        case "reduce":
            wanted = combined(n, count, dtype, op) if rank == plan.root else mine.clone()
            ft.reduce(mine, plan, plan.root, op)
            compare(what, mine, wanted)


def cases(n: int, plan: Any, full: bool) -> list[tuple[int, str, str]]:
    """(elements, type, operation): every type with every operation if `full`, else every type and
    every operation (half of the types with many ranks, but for allreduce); sizes that do not
    divide, from none at all."""
    ops = OPS if plan.program.collective.reduces else ("sum",)
    sizes: tuple[int, ...] = (0, 1, 2, 3, n * 16 + 1, 4099, 100_003)
    dtypes = DTYPES
    if n == 8:
        sizes = (1, 30_011)
        dtypes = DTYPES if plan.collective == "allreduce" else DTYPES[1::2]
    if full:
        found = [(203, dtype, op) for dtype in dtypes for op in ops]
    else:
        found = [(203, dtype, ops[k % len(ops)]) for k, dtype in enumerate(dtypes)]
    return found + [(count, "float32", "sum") for count in sizes]


def matrix(rank: int, n: int, given: list[Any], full: list[Path]) -> tuple[int, list[str]]:
    """`given`: files to load here, or plans that were loaded before."""
    compare = Compared()
    for path in given:
        plan = ft.load_plan(path) if isinstance(path, Path) else path
        for case in cases(n, plan, path in full):
            once(rank, n, plan, *case, compare)
    return compare.count, compare.wrong


def check(results: list[tuple[int, list[str]]], least: int) -> None:
    assert [wrong for _, wrong in results] == [[]] * len(results)
    assert min(count for count, _ in results) >= least


@pytest.mark.slow
@pytest.mark.parametrize(("n", "least"), [(2, 200), (4, 290), (8, 60)])
def test_all_collectives_types_and_operations(plans: Plans, n: int, least: int) -> None:
    """In both formats (with 8 ranks one for each collective); with 4 ranks an allreduce of every
    type with every operation. Few ranks read files for themselves, many are sent proven plans."""
    xml, json_ = ([plans[f"{n}.{c}.{form}"] for c in COLLECTIVES] for form in FORMATS)
    given: list[Any] = [*xml, *json_]
    if n >= 8:
        given = [ft.load_plan(path) for path in (*xml[::2], *json_[1::2])]
    check(run_ranks(n, matrix, n, given, xml[:1] if n == 4 else []), least)


# --- tensors of every shape, calls in every order -------------------------------------------------


def shapes(rank: int, paths: dict[str, Path]) -> tuple[int, list[str]]:
    n, compare = 4, Compared()
    everyone = [given_data(r, 2000, "float32") for r in range(n)]
    total = torch.stack(everyone).sum(0)

    def views(flat: Any) -> dict[str, Any]:
        grids = [flat.clone()[:1980].view(44, 45) for _ in range(3)]
        return {
            "transposed": grids[0].t(),
            "strided": grids[1][:, ::3],
            "misaligned": flat.clone()[1:1778],
            "three-dimensional": flat.clone()[3:1803].view(10, 12, 15),
            "channels last": grids[2]
            .reshape(4, 9, 5, 11)
            .contiguous(memory_format=torch.channels_last),
        }

    for name, tensor in views(everyone[rank]).items():
        ft.all_reduce(tensor, paths["allreduce"])
        compare(name, tensor, views(total)[name])
    parameter = torch.nn.Parameter(everyone[rank].clone())
    ft.all_reduce(parameter, paths["allreduce"])
    compare("a parameter", parameter.detach(), total)

    both = everyone[rank].clone()  # input and output overlap, but not as NCCL's in place
    ft.all_reduce(both[:1000], paths["allreduce"], out=both[500:1500])
    compare("overlapping", both[500:1500], total[:1000])
    flat = torch.arange(rank * 10.0, rank * 10 + 10).repeat(4)
    ft.reduce_scatter_tensor(flat[1:11], flat, paths["reduce-scatter"])
    compare("overlapping parts", flat[1:11], torch.arange(10.0) * 4 + 60)
    out = torch.zeros(3, 4 * 5).t()
    ft.all_gather_into_tensor(out, torch.full((5, 3), float(rank)), paths["allgather"])
    compare("gathered into columns", out, torch.arange(4.0).repeat_interleave(5)[:, None] + out * 0)
    return compare.count, compare.wrong


def test_tensors_of_every_shape(plans: Plans) -> None:
    paths = {c: plans[f"4.{c}.msccl-xml"] for c in COLLECTIVES}
    check(run_ranks(4, shapes, paths), 9)


def overlap(rank: int, four: Path, two: Path) -> tuple[int, list[str]]:
    compare, n = Compared(), 4
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    big = [given_data(rank, 200_000 + k, "float32") for k in range(3)]
    halves = given_data(rank, 50_001, "int32")
    works = [ft.all_reduce(t, four, async_op=True) for t in big[:2]]
    works.append(ft.all_reduce(halves, two, "max", mine, async_op=True))
    ours = torch.full((1000,), float(rank))
    dist.all_reduce(ours)  # others' traffic on the same group, while ours is under way
    peer = (rank + 1) % n
    got = torch.zeros(500)
    asked = dist.irecv(got, (rank - 1) % n)
    dist.isend(torch.full((500,), float(rank)), peer).wait()
    asked.wait()
    ft.all_reduce(big[2], four)  # comes after the first two, and waits for them
    for k, work in enumerate(works[:2]):
        assert work is not None
        assert work.is_completed()
        assert work.wait()
        compare("the future's value", work.get_future().wait()[0], big[k])
    assert works[2] is not None
    assert works[2].wait()
    assert works[2].is_success()
    assert works[2].exception() is None
    for k in range(3):
        compare(f"tensor {k}", big[k], combined(n, 200_000 + k, "float32", "sum"))
    both = torch.stack([given_data(r, 50_001, "int32") for r in (rank % 2, rank % 2 + 2)])
    compare("two of four", halves, both.amax(0))
    compare("torch's own", ours, torch.full((1000,), 6.0))
    compare("the neighbour's", got, torch.full((500,), float((rank - 1) % n)))
    return compare.count, compare.wrong


def test_several_calls_groups_and_others_traffic_at_once(plans: Plans) -> None:
    four, two = plans["4.allreduce.mscclpp-json"], plans["2.allreduce.msccl-xml"]
    check(run_ranks(4, overlap, four, two), 8)


# --- instead of torch.distributed's ---------------------------------------------------------------


def installed(rank: int, paths: list[Path]) -> tuple[int, list[str]]:
    compare, n, before = Compared(), 4, dist.all_reduce
    rules = [ft.Rule(p, min_bytes=1024, max_bytes=65536, dtypes=["float32"]) for p in paths]
    own = dist.new_group([0, 1, 2, 3])
    with ft.install(rules) as used:
        assert dist.all_reduce is not before
        for count, group, op in ((300, None, "SUM"), (10, None, "SUM"), (300, own, "MAX")):
            tensor = given_data(rank, count, "float32")
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group=group)
            compare(f"{count} {op}", tensor, combined(n, count, "float32", op.lower()))
        tensor = given_data(rank, 1000, "int32")
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        compare("not among its types", tensor, combined(n, 1000, "int32", "sum"))
        flags = torch.tensor([1, 2, 4, 8], dtype=torch.int32)
        dist.all_reduce(flags, dist.ReduceOp.BOR)
        compare("bits", flags, torch.tensor([1, 2, 4, 8], dtype=torch.int32))
        whole = torch.compiler.is_compiling
        torch.compiler.is_compiling = lambda: True  # a graph has the original in it
        tensor = given_data(rank, 300, "float32")
        dist.all_reduce(tensor)
        compare("compiled", tensor, combined(n, 300, "float32", "sum"))
        torch.compiler.is_compiling = whole
        for root in (2, 1):
            tensor = given_data(rank, 512, "float32")
            dist.broadcast(tensor, src=root)
            compare(f"broadcast from {root}", tensor, given_data(root, 512, "float32"))
        reduced = given_data(rank, 512, "float32")
        dist.reduce(reduced, dst=2)
        if rank == 2:
            compare("reduce", reduced, combined(n, 512, "float32", "sum"))
    assert dist.all_reduce is before
    names = {plan.name for plan in map(ft.load_plan, paths)}
    assert set(used.used) == names
    assert sum(used.used.values()) == 3
    reasons = {reason for _, reason in used.fallbacks}
    assert reasons == {
        "40 bytes are not among 1024 to 65536",
        "another process group",
        "torch.int32 is not among its types",
        "16 bytes are not among 1024 to 65536",
        "its root is 2, not 1",
    }
    return compare.count, compare.wrong


def test_install(plans: Plans) -> None:
    paths = [plans[f"4.{c}.msccl-xml"] for c in ("allreduce", "broadcast", "reduce")]
    check(run_ranks(4, installed, paths), 8)


class Bucket:
    """Gradients, as data parallel training hands them to a hook."""

    def __init__(self, gradients: Any) -> None:
        self.gradients = gradients

    def buffer(self) -> Any:
        return self.gradients


def hooked(rank: int, path: Path) -> list[float]:
    futures = [ft.comm_hook(path)(None, Bucket(torch.full((k,), rank + 0.5))) for k in (3, 2)]
    return [x for future in futures for x in future.wait().tolist()]


def test_hook_of_data_parallel_training(plans: Plans) -> None:
    """Gradients are averaged."""
    assert run_ranks(4, hooked, plans["4.allreduce.msccl-xml"]) == [[2.0] * 5] * 4


def test_hook_is_one_that_data_parallel_training_takes(plans: Plans) -> None:
    import inspect

    signature = inspect.signature(ft.comm_hook(plans["4.allreduce.msccl-xml"]))
    assert [p.annotation for p in signature.parameters.values()] == [inspect.Parameter.empty] * 2
    assert signature.return_annotation is inspect.Signature.empty


# --- what goes wrong ------------------------------------------------------------------------------


def dying(rank: int, path: Path, how: int) -> tuple[str, float]:
    plan = ft.load_plan(path, slices=64)
    tensor, splits = torch.ones(1_000_000), [250_000] * 4

    def act() -> None:
        if plan.collective == "allreduce":
            ft.all_reduce(tensor, plan)
        else:
            ft.all_to_all_single(torch.empty_like(tensor), tensor, plan, splits, splits)

    act()
    if rank == 2:
        os.kill(os.getpid(), how)
    began = time.monotonic()
    try:
        for _ in range(1000):
            act()
    except errors.ExecutionError as error:
        return str(error), time.monotonic() - began
    return "no error", 0.0


@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
@pytest.mark.parametrize(("how", "limit"), [(signal.SIGKILL, 30.0), (signal.SIGSTOP, 20.0)])
def test_a_peer_that_dies_or_stops_is_an_error_in_time(
    compiled: Artefacts, collective: str, how: int, limit: float
) -> None:
    path = plan_files(compiled)[collective]
    results = run_ranks(4, dying, path, how, answer_within=3.0, may_die=(2,))
    for rank in (0, 1, 3):
        text, seconds = results[rank]
        assert re.match(rf"rank {rank}: {collective} (with|of blocks.*) \(?ring-4\)?: ", text)
        assert re.search(r"\(a peer died or did not answer in time.*; this process group is", text)
        assert seconds < limit
    told = [text for text, _ in results[:2] + results[3:]]
    if collective == "allreduce":  # an exchange may end where the ranks agree on it
        assert any(f"{verb} rank 2 failed" in text for text in told for verb in ("to", "from"))


def test_without_a_process_group() -> None:
    path = SCHEDULES / "dgx-h100-1" / "allreduce.msccl.xml"
    with pytest.raises(errors.ExecutionError, match="init_process_group first"):
        ft.all_reduce(torch.zeros(1), path)


def run_by_torch(plans: Plans) -> tuple[str, ...]:
    return "run", str(plans["2.allreduce.msccl-xml"]), "--engine", "torch"


def test_command_line(plans: Plans) -> None:
    arguments = ("-b", "1K", "-e", "1M", "-f", "32", "--op", "max", "--json")
    (out, err, code), (silent, _, other) = launch(2, *run_by_torch(plans), *arguments)
    assert (code, other, err, silent) == (0, 0, "", "")
    rows = json.loads(out)["rows"]
    assert [(row["size"], row["mode"]) for row in rows] == [
        (size, mode) for size in (1024, 32768, 1048576) for mode in ("out-of-place", "in-place")
    ]
    assert all(row["wrong"] == 0 and row["op"] == "max" and row["algbw"] > 0 for row in rows)


def test_command_line_with_processes_missing(plans: Plans) -> None:
    ((out, err, code),) = launch(1, *run_by_torch(plans))
    assert (out, code) == ("", 1)
    assert err.strip().splitlines()[-1] == (
        "forestcoll: error: the plan is for 2 ranks, but torchrun started 1 processes: "
        "--nproc-per-node times --nnodes must be 2"
    )


def test_command_line_without_torchrun(
    plans: Plans, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from forestcoll.ui.cli import main

    monkeypatch.delenv("RANK", raising=False)
    plan = str(plans["2.allreduce.msccl-xml"])
    assert main(["run", plan, "--engine", "torch"]) == 1
    assert "start it with torchrun --nproc-per-node RANKS" in capsys.readouterr().err
    assert main(["run", plan, "--engine", "torch", "--depth", "3"]) == 2
    assert "--depth is for --engine cpu" in capsys.readouterr().err


def test_wrong_elements_are_counted_and_described() -> None:
    """The check can fail: a collective that leaves one element as it was."""
    (wrong, texts), (same, _) = run_ranks(2, spoiled)
    assert wrong == same == 2  # one element of each rank
    assert texts == [
        "rank 0, output element 2: expected 3, got 2",
        "rank 1, output element 2: expected 3, got 1",
    ]


def spoiled(rank: int) -> tuple[int, list[str]]:
    from forestcoll.execute.torch.measure import Measured, time_it
    from forestcoll.program import Collective

    def act(input_: Any, output: Any) -> None:
        before = input_[2].item()
        output.copy_(input_)
        dist.all_reduce(output)
        output[2] = before

    what = Measured(Collective.ALLREDUCE, act, "int32", "sum")
    _, wrong, texts = time_it(what, 10, "in-place", 2, 0, True)
    return wrong, texts


def test_plans_are_read_once(plans: Plans, tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    path.write_bytes(plans["4.allreduce.msccl-xml"].read_bytes())
    plan = ft.load_plan(path)
    assert ft.load_plan(str(path)) is plan
    assert repr(plan) == "<Plan ring-4: allreduce, 4 ranks, 6 rounds>" or plan.rounds > 1
    path.write_bytes(plans["4.allgather.msccl-xml"].read_bytes())
    assert ft.load_plan(path).collective == "allgather"
