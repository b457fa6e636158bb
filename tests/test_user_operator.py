"""Operators of users in the CPU engine: C functions that somebody else has compiled."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import programs as pg
import pytest
from apart import run_apart
from command_line import Run
from stored_schedules import SCHEDULES

from forestcoll.common.errors import ArgumentError, UnsupportedError
from forestcoll.execute import contents, cpu
from forestcoll.plans import read_plan

SOURCE = """
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* x -> a x + b modulo 2^32, one after the other: associative, not commutative. */
typedef struct { uint32_t a, b; } map;
void chain(void *acc, const void *in, size_t n) {
  map *x = acc;
  const map *y = in;
  for (size_t i = 0; i < n; ++i) {
    x[i].b = y[i].a * x[i].b + y[i].b;
    x[i].a = y[i].a * x[i].a;
  }
}
size_t calls;
void last(void *acc, const void *in, size_t n) {  /* associative; calls are counted */
  __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  for (size_t i = 0; i < n; ++i) ((uint8_t *)acc)[i] = ((const uint8_t *)in)[i];
}
void broken(void *acc, const void *in, size_t n) {  /* forgets the last element of its input */
  for (size_t i = 0; i + 1 < n; ++i) ((int32_t *)acc)[i] += ((const int32_t *)in)[i];
}
static int32_t *table;
__attribute__((constructor)) void begin(void) { (table = calloc(1 << 21, 4))[1 << 20] = 1; }
void looked_up(void *acc, const void *in, size_t n) {  /* a sum, by the library's own memory */
  for (size_t i = 0; i < n; ++i) ((int32_t *)acc)[i] += ((const int32_t *)in)[i] * table[1 << 20];
}
"""
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    assert compiler is not None
    folder = tmp_path_factory.mktemp("operators")
    (folder / "op.c").write_text(SOURCE)
    out = folder / "libop.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", out, folder / "op.c"], check=True)
    return str(out)


def chained(one: Any, other: Any) -> Any:
    a, b = one & 0xFFFFFFFF, one >> 32
    c, d = other & 0xFFFFFFFF, other >> 32
    return ((c * a) & 0xFFFFFFFF) | (((c * b + d) & 0xFFFFFFFF) << 32)


@pytest.mark.parametrize(
    "name", ["dgx1-v100-1/allreduce.msccl.xml", "dgx-a100-1/reduce-scatter.mscclpp.json"]
)
@pytest.mark.parametrize("ranks_as", ["threads", "processes"])
def test_what_is_not_commutative_is_done_as_the_plan_has_it(
    name: str, ranks_as: Any, library: str
) -> None:
    result = cpu.run(
        SCHEDULES / name, 8 * 8 * 501, dtype="int64", op=f"{library}:chain", ranks_as=ranks_as
    )
    assert [row.wrong for row in result.rows] == [0, 0], result.mismatches
    assert {row.op for row in result.rows} == {f"{library}:chain"}


def test_a_ring_goes_round_in_its_order(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain Python: what begins at rank k is what k, k + 1, ... do, one after the other."""
    n, outputs = 4, []

    def keep(own: contents.Contents, buffers: Any, mode: str) -> int:
        outputs.append([each.output.view(np.uint64).copy() for each in buffers])
        inputs.append([each.input.view(np.uint64).copy() for each in buffers])
        return 0

    inputs: list[list[Any]] = []
    monkeypatch.setattr("forestcoll.execute.user_operator.Replayed.compare", keep)
    program = pg.ring_allreduce(n)
    size, chunk = 8 * n * 100, 100
    cpu.run(program, size, dtype="int64", op=f"{library}:chain", modes="out-of-place")
    for k in range(n):
        part = slice(k * chunk, (k + 1) * chunk)
        order = [(k + r) % n for r in range(n)]
        wanted = reduce(chained, [inputs[0][r][part] for r in order])
        assert all((out[part] == wanted).all() for out in outputs[0])
        backwards = reduce(chained, [inputs[0][r][part] for r in reversed(order)])
        assert (backwards != wanted).any()


SAMPLES = {
    name: program
    for name, program in pg.samples().items()
    if program.collective.reduces and not program.in_switches
}


@pytest.mark.parametrize("name", SAMPLES)
def test_all_instructions_and_a_function_of_ctypes(name: str, library: str) -> None:
    function = FUNCTION(("last", ctypes.CDLL(library)))
    for dtype, size in (("uint8", 4099), ("int8", 70_001)):
        asked: Any = {"dtype": dtype, "op": function}
        result = cpu.run(SAMPLES[name], max(SAMPLES[name].min_bytes, size), **asked)
        assert not any(row.wrong for row in result.rows), result.mismatches
        assert {row.op for row in result.rows} == {"user"}
    assert ctypes.c_size_t.in_dll(ctypes.CDLL(library), "calls").value > 0


def test_ranks_of_several_processes(library: str) -> None:
    asked = {"dtype": "int64", "op": f"{library}:chain", "modes": "out-of-place"}
    result = run_apart(pg.ring_allreduce(4), 8192, 2, **asked)
    assert [row.wrong for row in result.rows] == [0]


def test_processes_have_what_the_function_reads(library: str) -> None:
    plan, asked = SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml", {"ranks_as": "processes"}
    asked |= {"dtype": "int32", "op": f"{library}:looked_up"}
    assert [row.wrong for row in cpu.run(plan, 4096, **asked).rows] == [0, 0]  # type: ignore[arg-type]


def test_what_is_no_operator_is_refused(library: str, call: Run, tmp_path: Path) -> None:
    plan = SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml"
    for op, more, text in (
        (f"{library}:none", {}, "undefined symbol: none"),
        (f"{tmp_path}/no.so:op", {}, "cannot open shared object file"),
        (f"{library}:chain", {"wire": "bfloat16"}, "not with a wire of another type, nor accum"),
        (f"{library}:chain", {"epilogue": "avg"}, "nor a user's operator"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            cpu.run(plan, 4096, op=op, **more)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="unknown operation ':chain'"):
        cpu.run(plan, 4096, op=":chain")  # of no library
    assert read_plan(plan).n == 8
    code, out, err = call(
        "run", str(plan), "--size", "64K", "-d", "int64", "-o", f"{library}:chain"
    )
    assert (code, err) == (0, "")
    assert f"{library}:chain" in out


def test_wrong_results_are_seen(library: str) -> None:
    """What depends on how its data are cut is no operator."""
    plan = SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml"
    asked: Any = {"dtype": "int32", "op": f"{library}:broken", "slice_bytes": 256}
    result = cpu.run(plan, 1 << 16, **asked)
    assert all(row.wrong for row in result.rows)
    assert "expected bytes" in result.mismatches[0]
