"""Running programs on this machine: right results for right plans, clear words for all others."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import programs as pg
import pytest
from command_line import Finished, finished
from edits import Row, check_rows
from notation import build as build_program
from notation import move_line, parse, tree_of

from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError
from forestcoll.execute import _engine, cpu, request, sizes
from forestcoll.execute.check import check
from forestcoll.execute.cpu import DTYPES, OPS, run
from forestcoll.execute.tables import build
from forestcoll.program import (
    BY_TREES,
    Collective,
    Op,
    Program,
)

GOOD = pg.samples()
ALLREDUCES = ("ring_allreduce", "reading_allreduce", "pushing_allreduce", "exchange_by_barrier")


def ops_of(program: Program) -> set[Op]:
    return {i.op for _, _, _, i in program.instructions()}


def test_the_samples_use_every_instruction_and_collective() -> None:
    assert set().union(*(ops_of(p) for p in GOOD.values())) == set(Op)
    for style in ("fifo", "onesided"):
        here = {p.collective for p in GOOD.values() if p.style == style}
        assert here >= set(BY_TREES) - {Collective.REDUCE_SCATTER}


def test_the_engine_numbers_instructions_as_the_program_module_does() -> None:
    assert _engine.op_names() == [op.value for op in Op] + ["loop"]


@pytest.mark.parametrize("name", GOOD)
def test_right_programs_are_right_at_any_size(name: str) -> None:
    for size in (1, 44, 4096, 99_999):
        result = run(GOOD[name], size)
        assert (result.wrong, result.mismatches) == (0, ()), size
        assert len(result.rows) == GOOD[name].in_place + GOOD[name].out_of_place


def fewest_slots(name: str) -> int:
    """What a sample needs to go on.

    Fused instructions need a message and a free slot at once, as on the GPU: a ring of them with a
    message in every connection can only turn if there are two slots. And who sends two chunks
    before it receives needs two slots where a slot holds one.
    """
    return 2 if name.startswith("ring_") or name == "direct_reduce_scatter" else 1


@pytest.mark.parametrize("name", GOOD)
def test_small_slots_slices_and_single_slots_change_nothing(name: str) -> None:
    values = itertools.product((fewest_slots(name), 3), (64, 4096), (8, None), (1, 3))
    for each in values:
        how = dict(zip(("slots", "slot_bytes", "slice_bytes", "threads"), each, strict=True))
        result = run(GOOD[name], 5000, **how)  # type: ignore[arg-type]
        assert result.wrong == 0, (how, result.mismatches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operation(dtype: str, op: str) -> None:
    for name in (
        *ALLREDUCES,
        "direct_reduce_scatter",
        "chain_reduce",
        "reduce_to_root kind=port chunks=3",
    ):
        assert run(GOOD[name], 3001, dtype=dtype, op=op).wrong == 0, name
    for name in ("ring_allgather", "pipelined_broadcast"):
        assert run(GOOD[name], 3001, dtype=dtype, op=op).wrong == 0, name


def test_sums_of_many_ranks_stay_exact() -> None:
    ring = pg.ring_allreduce(40)
    for dtype, op in itertools.product(DTYPES, OPS):
        assert run(ring, 40 * 64, dtype=dtype, op=op).wrong == 0, (dtype, op)


@pytest.mark.parametrize(("dtype", "ranks"), [("bfloat16", 300), ("float16", 300)])
def test_more_ranks_than_the_type_can_count(dtype: str, ranks: int) -> None:
    assert run(pg.star_reduce(ranks), 2000, dtype=dtype).wrong == 0


def test_rows_have_the_columns_of_nccl_tests() -> None:
    n = 4
    gather = run(pg.ring_allgather(n), 64_000).rows
    assert [row.mode for row in gather] == ["out-of-place", "in-place"]
    row = gather[0]
    assert (row.size, row.count, row.op, row.root) == (64_000, 4000, "none", -1)
    assert row.algbw == pytest.approx(row.size / row.time_us / 1e3)
    assert row.busbw == pytest.approx(row.algbw * (n - 1) / n)
    row = run(pg.ring_allreduce(n), 64_000, dtype="float16", op="max", iterations=3, warmup=1).rows[
        0
    ]
    assert (row.size, row.count, row.dtype, row.op) == (64_000, 32_000, "float16", "max")
    assert row.busbw == pytest.approx(row.algbw * 2 * (n - 1) / n)
    row = run(pg.star_reduce(n), 64_000, modes=["in-place"]).rows[0]
    assert (row.mode, row.count, row.root) == ("in-place", 16_000, 0)
    assert row.busbw == row.algbw
    row = run(pg.base("direct_reduce_scatter"), 66_000).rows[0]
    assert (row.size, row.count) == (66_000, 5500)


def test_notes_say_what_sizes_need_no_padding() -> None:
    plan = replace(pg.chain_broadcast(chunks=13), min_bytes=1, max_bytes=2000)
    assert run(plan, 832).notes == ()
    (note,) = run(plan, 840).notes
    assert "multiples of 52 bytes" in note
    notes = run(pg.ring_allgather(4), 3).notes
    assert notes[0] == "3 bytes are not a whole number of elements on each rank; ran 16 bytes"
    assert "serves 1 to 2000 bytes" in run(plan, 832 * 4).notes[0]


def test_modes_are_those_of_the_program() -> None:
    plan = replace(pg.ring_allgather(), in_place=False)
    assert [row.mode for row in run(plan, 64).rows] == ["out-of-place"]


def test_unchecked_runs_say_so() -> None:
    assert [row.wrong for row in run(pg.ring_allgather(), 64, check=False).rows] == [None, None]


# --- elements


PLAIN = 0, ([], []), [], 0
"""What else an engine is told: no other types, no epilogue, no operator of the user's."""


def add_arrays(dtype: str, op: str, a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> None:
    """b = a op b, by the engine, with arrays of raw bytes."""
    tables = build(parse("allreduce fifo\nrank 1 1\nblock\nreduce i0 -> o0"))
    shape = (a.nbytes, a.itemsize, a.nbytes, 1, 1)
    addresses = [a.ctypes.data, b.ctypes.data, a.ctypes.data] * 2
    kind = (DTYPES.index(dtype), OPS.index(op))
    engine = _engine.Engine(
        tables, 1, addresses, [], shape, (a.nbytes, 1), kind, False, 1, 10, *PLAIN
    )
    assert engine.launch(0)[0] == 0


def every_half() -> npt.NDArray[np.uint16]:
    return np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize(("op", "function"), [("sum", np.add), ("prod", np.multiply)])
def test_float16_arithmetic_rounds_as_numpy_does(op: str, function: np.ufunc) -> None:
    rng = np.random.default_rng(1)
    for other in (np.zeros(2**16, np.uint16), rng.permutation(every_half())):
        a, b = every_half().view(np.float16), other.view(np.float16)
        got = b.copy()
        add_arrays("float16", op, a.view(np.uint8), got.view(np.uint8))
        with np.errstate(all="ignore"):
            want = function(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
        number = ~np.isnan(want)
        assert np.array_equal(got[number].view(np.uint16), want[number].view(np.uint16))
        assert np.isnan(got[~number]).all()


def test_bfloat16_arithmetic_rounds_to_nearest_even() -> None:
    rng = np.random.default_rng(2)
    a, b = every_half(), rng.permutation(every_half())
    got = b.copy()
    add_arrays("bfloat16", "sum", a.view(np.uint8), got.view(np.uint8))
    wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
    with np.errstate(all="ignore"):
        total = wide[0] + wide[1]
    bits = total.view(np.uint32).astype(np.uint64)
    half, even = np.uint64(0x7FFF), bits >> np.uint64(16) & np.uint64(1)
    want = ((bits + half + even) >> np.uint64(16)).astype(np.uint16)
    number = ~np.isnan(total)
    assert np.array_equal(got[number], want[number])
    assert np.isnan((got[~number].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize(
    ("op", "function"),
    [("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)],
)
def test_plain_arithmetic_is_numpys(dtype: str, op: str, function: np.ufunc) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-(2**62), 2**62, 999).astype(dtype) for _ in range(2))
    got = b.copy()
    add_arrays(dtype, op, a.view(np.uint8), got.view(np.uint8))
    assert np.array_equal(got, function(a, b))


def test_test_data_differs_by_rank_and_position() -> None:
    pattern = (0, 0, True, 8, 0)
    arrays = [np.zeros(4096, np.float32) for _ in range(2)]
    for r, a in enumerate(arrays):
        _engine.fill(pattern, r, 0, a.size, a.ctypes.data, 1)
    assert np.mean(arrays[0] == arrays[1]) < 0.01
    for shift in (1, 2, 64, 1000, 1024, 2048):
        assert np.mean(arrays[0][shift:] == arrays[0][:-shift]) < 0.01


# --- wrong plans


def say_of_run(row: Row) -> Iterator[str]:
    """What comes of a run: the error with its notes, or how many elements are wrong, and one."""
    program = pg.edit(pg.base(row.base, *row.options), *row.edits)
    begin = time.monotonic()
    try:
        result = run(program, 4096)
    except ForestCollError as error:
        yield from f"{type(error).__name__}: {words(error)}".split("\n")
    else:
        yield ", ".join(f"{each.wrong} wrong {each.mode}" for each in result.rows)
        yield from result.mismatches[:1]
    assert time.monotonic() - begin < 10


def words(error: BaseException) -> str:
    """What the command line says of an error: its message, and the notes below it."""
    assert "\n" not in str(error)
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def test_what_is_said_of_spoilt_programs(request: pytest.FixtureRequest) -> None:
    check_rows("runs.txt", say_of_run, request)


def test_a_missing_contribution_is_wrong_whatever_the_operation() -> None:
    plan = pg.edit(pg.ring_allreduce(), "1.0.2 = recv_copy_send -> o0")
    for op in OPS:
        assert run(plan, 40_000, op=op).wrong > 1000


def test_a_plan_that_is_right_out_of_place_only() -> None:
    both = replace(pg.base("reading_pair"), in_place=True)
    # Both read what the other is overwriting: whoever comes second adds a sum.
    rows = run(both, 3 * 4 * 100_000, threads=1).rows
    assert rows[0].wrong == 0
    assert rows[1].wrong


def test_a_queue_that_is_too_short_is_a_circle() -> None:
    # Both send three messages before they receive any: two slots are not enough.
    plan = pg.eager_exchange(3)
    with pytest.raises(ExecutionError) as caught:
        run(plan, 4096)
    assert "these wait for each other:\n  rank 0, thread block 0, step 3 (send)" in words(
        caught.value
    )
    assert run(plan, 4096, slots=3).wrong == 0


def test_messages_of_unequal_size_are_refused_while_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = pg.edit(pg.chain_broadcast(2, 2), "1.0.0 = recv -> o0:2")
    monkeypatch.setattr(request, "check_structure", lambda program: None)
    with pytest.raises(
        ExecutionError,
        match=r"rank 1, thread block 0, step 0 \(recv\) expects a message of 4096 bytes, "
        "but rank 0, thread block 1 sent 2048",
    ):
        run(plan, 4096)


def in_single_elements() -> Program:
    """A pipeline with a round for every element: long runs of many small steps."""
    return pg.edit(pg.pipelined_broadcast(3), "*.0.3.unit = 4")


INTERRUPTED = """
import os, signal, threading, time
from test_execute_cpu import in_single_elements
from forestcoll.execute.cpu import run
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    run(in_single_elements(), 2**24, check=False, iterations=50)
except KeyboardInterrupt:
    print("interrupted" if time.monotonic() - begin < 5 else "interrupted late")
"""


def elsewhere(script: str) -> Finished:
    """What becomes of a script in a process of its own, which finds the tests' modules."""
    places = (Path(__file__).parent, Path(cpu.__file__).parents[2])
    return finished(
        sys.executable,
        "-c",
        script,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))},
    )


def test_ctrl_c_ends_a_run() -> None:
    """In a process of its own: a signal that comes late would end the tests."""
    done = elsewhere(INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_run_without_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _engine.Engine
    monkeypatch.setattr(cpu._engine, "Engine", lambda *given: real(*given[:9], -1.0, *given[10:]))
    with pytest.raises(ExecutionError, match="no thread block made progress for 60 s") as caught:
        run(in_single_elements(), 2**24, check=False, iterations=50)
    assert "rank 1, thread block 0, step " in words(caught.value)


# --- what is refused


def test_all_good_samples_pass_the_check() -> None:
    for plan in GOOD.values():
        check(plan)


def test_a_root_can_be_given_where_the_plan_has_none() -> None:
    plan = replace(pg.star_reduce(), root=-1)
    result = run(plan, 64, root=0)
    assert (result.wrong, result.rows[0].root) == (0, 0)


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "memory_available", lambda: 2**20)
    run(pg.ring_allgather(), 2**16)
    with pytest.raises(UnsupportedError, match=r"the ranks' buffers need 5\.0 GiB"):
        run(pg.ring_allgather(), 2**30)


def test_memory_that_the_system_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, size: int) -> npt.NDArray[np.uint8]:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cpu, "common_memory", refuse)
    with pytest.raises(
        UnsupportedError, match=r"size 65536: .* \(Cannot allocate memory\); a limit"
    ):
        run(pg.ring_allgather(), 2**16, ranks_as="processes")


def test_scratch_counts_as_memory_where_it_is_used() -> None:
    plan = pg.edit(pg.ring_allgather(), f"0.scratch = {2**31 - 1}")
    assert run(plan, 4096).wrong == 0
    plan = pg.edit(plan, f"0.0.0 + copy i0 -> s{2**31 - 2}")
    with pytest.raises(UnsupportedError, match=r"buffers need [0-9.]+ GiB"):
        run(plan, 2**26)


def test_available_memory_respects_control_groups(tmp_path: Path) -> None:
    assert sizes._group_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert sizes._group_memory(tmp_path) == 400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert sizes._group_memory(tmp_path) is None


# --- many thread blocks


def many_rings(n: int, rings: int) -> Program:
    """`rings` allreduce rings side by side, each with its own channel and chunks."""
    whole = tree_of(pg.ring_allreduce(n))
    for rank in whole["ranks"]:
        (block,) = rank["blocks"]
        rank["blocks"] = [
            block | {"channel": k, "steps": [move_line(line, k * n) for line in block["steps"]]}
            for k in range(rings)
        ]
        rank["input"] = rank["output"] = n * rings
    return build_program(whole)


@pytest.mark.parametrize(("n", "rings"), [(8, 256), (100, 1)])
def test_thousands_of_thread_blocks(n: int, rings: int) -> None:
    result = run(many_rings(n, rings), n * rings * 64, modes=["out-of-place"])
    assert result.wrong == 0


def test_many_workers_on_few_cores() -> None:
    for _ in range(20):
        assert run(many_rings(6, 3), 20_000, threads=8, slots=2, slot_bytes=512).wrong == 0


def test_memory_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    plan = pg.ring_allreduce()
    run(plan, 2**21)
    before = resident()
    for _ in range(10):
        run(plan, 2**21)
    assert resident() - before < 2**25


# --- other compilers
