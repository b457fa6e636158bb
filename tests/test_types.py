"""The type in which data travel and are added: what it costs, against numpy's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import programs as pg
import pytest
from apart import run_apart
from artefacts import Artefacts
from stored_schedules import SCHEDULES
from test_order import decode, encode
from torch_ranks import ft, needs_gloo, run_ranks

from forestcoll.common.errors import ArgumentError, UnsupportedError
from forestcoll.execute import contents, cpu
from forestcoll.execute.wire import WIRES
from forestcoll.plans import read_plan
from forestcoll.program import Program
from forestcoll.verify.dataflow import Dataflow, dataflow
from forestcoll.verify.rounding import Bound, Roundings, error_bound, roundings

Floats = np.ndarray[Any, np.dtype[np.float32]]

BLOCK = 32
E4M3 = np.array(
    [(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)]
)
"""The magnitudes of all codes, the last of which means none."""


def by_table(values: Floats) -> Floats:
    """What is left of float32 values in e4m3 with one power of two for 32, by looking codes up."""
    blocks = values.reshape(-1, BLOCK).astype(np.float64)
    top = np.maximum(np.abs(blocks).max(axis=1), 2.0**-119)
    scale = 2.0 ** (np.floor(np.log2(top)) - 7)[:, None]
    scaled = np.abs(blocks / scale)
    code = np.searchsorted(E4M3[:-1], scaled)
    low, high = E4M3[np.maximum(code - 1, 0)], E4M3[code]
    even = np.where(code % 2 == 0, high, low)
    nearer = np.where(scaled - low < high - scaled, low, high)
    nearest = np.where(scaled - low == high - scaled, even, nearer)
    return (np.sign(blocks) * nearest * scale).reshape(-1).astype(np.float32)


class Trial:
    """Runs programs on given data, which are kept, and what comes out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[list[Floats]] = []
        self.inputs: list[Floats] = []
        self.dtype = "bfloat16"
        self.spread: tuple[float, float] = (0.0, 1.0)
        self.given: Callable[[int, int], Floats] = self.draw
        monkeypatch.setattr(contents.Contents, "fill", lambda own, each: self.fill(each))
        monkeypatch.setattr(contents.Contents, "compare", lambda own, each, mode: self.keep(each))

    def draw(self, rank: int, length: int) -> Floats:
        return np.random.default_rng(rank).uniform(*self.spread, length).astype(np.float32)

    def fill(self, buffers: Sequence[contents.Buffers]) -> None:
        self.inputs = []
        for rank, each in enumerate(buffers):
            each.output.fill(0xFF)
            each.scratch.fill(0xFF)
            length = each.input.nbytes // (4 if self.dtype == "float32" else 2)
            bits = encode(self.given(rank, length), self.dtype)
            each.input.view(bits.dtype)[:] = bits
            self.inputs.append(decode(bits, self.dtype))

    def keep(self, buffers: Sequence[contents.Buffers]) -> int:
        kind = np.uint32 if self.dtype == "float32" else np.uint16
        self.outputs.append([decode(each.output.view(kind), self.dtype) for each in buffers])
        return 0

    def run(self, program: Program, size: int, dtype: str = "bfloat16", **options: Any) -> None:
        self.dtype, self.outputs = dtype, []
        cpu.run(program, size, dtype=dtype, **options)

    def error(self) -> float:
        """The largest, as a share of the summands' magnitudes; all ranks have the same."""
        exact = sum(each.astype(np.float64) for each in self.inputs)
        size = sum(np.abs(each.astype(np.float64)) for each in self.inputs)
        first, *others = (out for outputs in self.outputs for out in outputs)
        assert all((out == first).all() for out in others)
        return float((np.abs(first - exact) / size).max())


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


PLANS = ("dgx1-v100", "msccl-xml"), ("dgx1-v100", "mscclpp-json"), ("dgx-a100", "msccl-xml")
SIZE = 4 * BLOCK * 768  # whole blocks in every chunk of these plans


def in_blocks(own: Floats) -> Floats:
    return by_table(own)


def in_bfloat16(own: Floats) -> Floats:
    return decode(encode(own, "bfloat16"), "bfloat16")


def replay(
    flow: Dataflow, given: Sequence[Floats], quantise: Callable[[Floats], Floats], exact: bool
) -> list[Floats]:
    """The outputs of a dataflow of sums; `exact`: what a rank adds up is rounded as it leaves."""
    length = len(given[0])
    before: list[Floats] = []
    after: list[Floats] = []
    for value in flow.values:
        at = slice(
            value.start * length // flow.units, (value.start + value.length) * length // flow.units
        )
        sources = value.made_from
        if not sources:
            before.append(quantise(given[value.rank][at]))
        elif len(sources) == 1:
            before.append(after[sources[0]])
        else:
            one, other = ((before if exact else after)[k] for k in sources)
            before.append(one + other)
        after.append(quantise(before[-1]) if len(sources) > 1 else before[-1])
    outputs = []
    for output in flow.outputs:
        parts = sorted(output, key=lambda k: flow.values[k].start)
        outputs.append(np.concatenate([after[k] for k in parts]))
    return outputs


def test_a_block_is_what_its_table_says(trial: Trial) -> None:
    """Zeros, one value alone, neighbours of 2^30 times each other, halves between codes."""
    random = np.random.default_rng(1)
    wide = random.choice([-1, 1], 4096) * 2.0 ** random.uniform(-60, 60, 4096)
    near = random.uniform(-500, 500, 4096)
    halves = (E4M3[:-2] + E4M3[1:-1]) / 2  # ties, with what keeps the scale at 1
    ties = np.concatenate([np.append(halves[k : k + 31], 255) for k in range(0, 90, 31)])
    tiny = np.full(32, 1e-44)
    alone = np.append(np.zeros(31), -3e38)
    values = np.concatenate([wide, near, ties, tiny, alone, np.zeros(32)]).astype(np.float32)
    values = np.resize(values, 2 * SIZE)
    trial.given = lambda rank, length: values[:length]
    trial.run(pg.ring_allgather(4), 4 * 4 * (len(values) // 4), "float32", wire="fp8")
    for output in (out for outputs in trial.outputs for out in outputs):
        part = len(output) // 4
        want = by_table(values[:part])
        assert all((output[k * part : (k + 1) * part] == want).all() for k in range(4))
    assert (by_table(ties.astype(np.float32)) != ties).all()


def test_what_is_not_finite_makes_its_block_none(trial: Trial) -> None:
    values = np.ones(4096, np.float32)
    values[[5, 70]] = np.inf, np.nan
    trial.given = lambda rank, length: np.resize(values, length)
    trial.run(pg.ring_allreduce(4), 4 * 4096, "float32", wire="fp8")
    for output in (out for outputs in trial.outputs for out in outputs):
        assert np.isnan(output[:32]).all()
        assert np.isnan(output[64:96]).all()
        assert (output[32:64] == 4).all()
        assert (output[96:] == 4).all()


@pytest.mark.parametrize("accumulate", [None, "float32"])
@pytest.mark.parametrize("wire", ["fp8", "bfloat16"])
@pytest.mark.parametrize(("machine", "form"), PLANS)
def test_the_engine_gives_the_bits_of_a_replay(
    compiled: Artefacts,
    machine: str,
    form: str,
    wire: str,
    accumulate: str | None,
    trial: Trial,
) -> None:
    """All sums of the plan in numpy; threads and processes, each launch."""
    program = compiled(machine, "allreduce").programs[form]
    flow = dataflow(program)
    trial.spread = -1.0, 1.0
    quantise = in_blocks if wire == "fp8" else in_bfloat16
    for ranks_as in ("threads", "processes"):
        options = {"ranks_as": ranks_as, "iterations": 3, "accumulate": accumulate}
        trial.run(program, SIZE, "float32", wire=wire, **options)
        want = replay(flow, trial.inputs, quantise, accumulate is not None)
        assert len(trial.outputs) == 4
        for outputs in trial.outputs:
            assert all((a == b).all() for a, b in zip(outputs, want, strict=True))
    other = replay(flow, trial.inputs, quantise, accumulate is None)
    assert any((a != b).any() for a, b in zip(trial.outputs[0], other, strict=True))


KINDS = [
    ("bfloat16", "fp8", None, "sum"),
    ("float32", "fp8", "float32", "avg"),
    ("float16", "float32", None, "sum"),
    ("bfloat16", None, "float32", "avg"),
    ("float32", "bfloat16", "float32", "prod"),
    ("float16", "bfloat16", None, "min"),
    ("bfloat16", "fp8", "float32", "max"),
    ("float16", "fp8", None, "prod"),
]


@pytest.mark.parametrize("ranks_as", ["threads", "processes"])
@pytest.mark.parametrize("name", ["ring_allreduce", "star_reduce", "ring_allgather", "packets"])
def test_every_element_is_right_at_any_size(name: str, ranks_as: cpu.RanksAs) -> None:
    program = pg.base("packet_allreduce") if name == "packets" else getattr(pg, name)(4)
    for number, (dtype, wire, accumulate, op) in enumerate(KINDS):
        if name == "packets" and wire == "fp8":
            continue
        sizes = (4, 1000, 70_002)
        for size in sizes if ranks_as == "threads" else sizes[number % 3 :][:1]:
            result = cpu.run(
                program,
                size,
                dtype=dtype,
                wire=wire,
                accumulate=accumulate,
                op=op,
                iterations=2,
                ranks_as=ranks_as,
            )
            assert result.wrong == 0, (dtype, wire, accumulate, op, size, result.mismatches)


@pytest.mark.parametrize("style", ["fifo", "onesided"])
def test_ranks_of_several_processes_agree(compiled: Artefacts, style: str) -> None:
    form = "msccl-xml" if style == "fifo" else "mscclpp-json"
    program = compiled("ring gpus=4", "allreduce").programs[form]
    for wire, accumulate in (("fp8", None), (None, "float32"), ("float32", None)):
        result = run_apart(
            program, 50_002, 2, dtype="bfloat16", wire_dtype=wire, accumulate=accumulate
        )
        assert result.wrong == 0, result.mismatches


def by_torch(rank: int, plan: Any, cases: Sequence[Any]) -> list[Any]:
    import torch

    found = []
    for op, dtype, wire, accumulate, given in cases:
        tensor = torch.from_numpy(given[rank].copy()).to(getattr(torch, dtype))
        types = {"wire": wire and getattr(torch, wire), "accumulate": accumulate and torch.float32}
        ft.all_reduce(tensor, plan, op=op, **types)
        found.append(tensor.float().numpy())
    return found


ROUNDED = {"float32": lambda own: own, "bfloat16": in_bfloat16}
ROUNDED["float16"] = lambda own: decode(encode(own, "float16"), "float16")


@needs_gloo
@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_torch_gives_the_bits_of_a_replay(compiled: Artefacts, form: str) -> None:
    """Sums and averages over gloo: of the wire's type, or float32 at ranks."""
    from forestcoll.execute.torch import Plan

    program = compiled("ring gpus=4", "allreduce").programs[form]
    flow, count = dataflow(program), 1 << 12
    cases = []
    for op, *types in product(("sum", "avg"), ROUNDED, (None, *ROUNDED), (None, "float32")):
        random = np.random.default_rng(len(cases))
        given = [random.uniform(-1, 1, count).astype(np.float32) for _ in range(4)]
        cases.append((op, *types, [ROUNDED[types[0]](own) for own in given]))
    every = run_ranks(4, by_torch, Plan(program), cases)
    for (op, dtype, wire, accumulate, given), *outputs in zip(cases, *every, strict=True):
        want = ROUNDED[dtype](replay(flow, given, ROUNDED[wire or dtype], bool(accumulate))[0])
        want = ROUNDED[dtype](want / 4) if op == "avg" else want
        assert all((got == want).all() for got in outputs), (op, dtype, wire, accumulate)


def test_sixteen_dies_of_mi250(trial: Trial) -> None:
    """Of 10^6 uniform values, bfloat16: float32 inside ranks halves a ring's largest error."""
    program = read_plan(SCHEDULES / "mi250-1" / "allreduce.msccl.xml")
    steps = roundings(dataflow(program))
    assert steps == (9, 5)
    size, count = 2 * 10**6, 10**6
    trial.run(program, size, accumulate="float32", modes="out-of-place")
    ours = trial.error()
    assert 1 / 2**8 < ours <= steps.at_ranks / 2**8
    ring = trial.inputs[0]
    for own in trial.inputs[1:]:
        ring = in_bfloat16(ring + own)
    exact = sum(own.astype(np.float64) for own in trial.inputs)
    assert ours <= np.max(np.abs(ring[:count] - exact[:count]) / exact[:count]) / 2
    for options in ({}, {"accumulate": "float32"}):
        for wire in ("bfloat16", "fp8", "float32", "float16"):
            trial.run(program, size // 32, wire=wire, modes="out-of-place", **options)
            bound = error_bound(steps, "bfloat16", wire, bool(options))
            assert trial.error() <= bound.share + bound.of_block / 8
            assert trial.error() > bound.share / 8


def test_fp8_has_half_the_bytes() -> None:
    program = read_plan(SCHEDULES / "dgx1-v100-1" / "allreduce.msccl.xml")
    size = 1 << 18
    rows = {
        wire: cpu.run(program, size, dtype="bfloat16", wire=wire, check=False).rows[0]
        for wire in (None, *WIRES)
    }
    assert {row.size for row in rows.values()} == {size}
    assert rows["fp8"].wire_bytes / rows["bfloat16"].wire_bytes == 33 / 64 <= 0.52
    assert [rows[w].wire_bytes // size for w in (None, "float32", "float16", "bfloat16")] == [
        *(1, 2, 1, 1)
    ]
    assert {wire: row.wire for wire, row in rows.items()} == {
        wire: wire or "bfloat16" for wire in rows
    }


def test_a_ring_rounds_once_less_than_it_has_ranks() -> None:
    for n in (3, 4, 7):
        ring = roundings(dataflow(pg.ring_allreduce(n)))
        assert ring == (n - 1, n - 1)
        assert error_bound(ring, "bfloat16", "bfloat16", False).share == (n - 1) / 2**8
    assert roundings(dataflow(pg.star_reduce(5))) == (4, 1)
    assert roundings(dataflow(pg.ring_allgather(3))) == (0, 0)
    with pytest.raises(UnsupportedError, match="a switch adds up, in an order of its own"):
        roundings(dataflow(pg.base("fabric_allreduce")))


def test_bounds_by_hand() -> None:
    steps = Roundings(3, 2)
    assert error_bound(steps, "float32", "float32", False) == Bound(3 / 2**24)
    assert error_bound(steps, "bfloat16", "float32", False).share == pytest.approx(2**-8, rel=1e-3)
    assert error_bound(steps, "float32", "float16", False).share == pytest.approx(
        4 / 2**11, rel=1e-3
    )
    assert error_bound(steps, "float16", "float16", True).share == pytest.approx(
        2 / 2**11, rel=1e-3
    )
    averaged = error_bound(steps, "bfloat16", "bfloat16", False, average=True).share
    assert averaged == (1 + 3 / 2**8) * (1 + 2**-8) - 1
    blocks = error_bound(Roundings(1, 1), "float32", "fp8", False)
    assert blocks.share == (17 / 16) ** 2 - 1
    assert blocks.of_block == pytest.approx(2**-17 * (1 + 17 / 16 + 1 / 16), rel=1e-4)


def test_what_does_not_go_is_refused() -> None:
    ring = pg.ring_allreduce(4)
    with pytest.raises(UnsupportedError, match="wire fp8: for data of float32, float16, bfloat16"):
        cpu.run(ring, 1024, dtype="int32", wire="fp8")
    with pytest.raises(UnsupportedError, match=r"accumulate float32: for data .*, not of float64"):
        cpu.run(ring, 1024, dtype="float64", accumulate="float32")
    with pytest.raises(UnsupportedError, match=r"packets .LL. are cut at 16 bytes, which splits"):
        cpu.run(pg.base("packet_allreduce"), 1024, wire="fp8")
    with pytest.raises(ArgumentError, match=r"unknown wire 'fp4'; .*known: float32, float16"):
        cpu.run(ring, 1024, wire="fp4")
    with pytest.raises(ArgumentError, match="unknown accumulate 'bfloat16'"):
        cpu.run(ring, 1024, accumulate="bfloat16")
    told = cpu.run(ring, 1024 + 4, wire="fp8").notes
    assert "fp8 goes in blocks of 32 values, so chunks are whole blocks" in told
