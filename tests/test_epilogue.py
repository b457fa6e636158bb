"""Epilogues of the CPU engine: once to each sum, against plain numpy and a plain Philox."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs as pg
import pytest
from apart import run_apart
from notation import parse
from stored_schedules import SCHEDULES
from test_order import decode, encode
from test_owners import TWICE, one_step
from test_types import Floats, Trial

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import cpu, epilogue
from forestcoll.execute.epilogue import Epilogue
from forestcoll.plans import read_plan
from forestcoll.program import Program
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.owners import owners

F = np.float32
PLANS = ("dgx-a100-1/allreduce.msccl.xml", "dgx1-v100-1/allreduce.mscclpp.json")
WORDS = 2**32


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 as its paper has it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b // WORDS ^ c[1] ^ k[0], b % WORDS, a // WORDS ^ c[3] ^ k[1], a % WORDS]
        k = [(k[0] + 0x9E3779B9) % WORDS, (k[1] + 0xBB67AE85) % WORDS]
    return c


def test_philox_gives_the_known_answers() -> None:
    """Those that Random123 is tested with."""
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    for counter, key, answer in (
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([WORDS - 1] * 4, [WORDS - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, [0xA4093822, 0x299F31D0], "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        assert " ".join(f"{word:08x}" for word in philox(counter, key)) == answer


def dropped(length: int, share: float, turn: int) -> np.ndarray[Any, Any]:
    words = [w for k in range(-(-length // 4)) for w in philox([k, 0, turn, 0], [0, 0])]
    return np.array(words[:length]) < share * WORDS


def drawn(first: int, count: int) -> Floats:
    """What the state begins with: 1,000 columns of the bias, then Adam's."""
    return ((np.arange(first, first + count) * 37 % 61 - 30) / 32).astype(F)


def bias(length: int) -> Floats:
    return drawn(0, 1000)[np.arange(length) % 1000]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    found = Trial(monkeypatch)  # sums of small integers are exact in any order
    found.given = lambda rank, length: (np.arange(length) * (rank + 3) % 13 - 6).astype(F)
    return found


def total_of(trial: Trial) -> Floats:
    return np.sum(trial.inputs, axis=0, dtype=F)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_are_those_of_numpy(trial: Trial, name: str, dtype: str) -> None:
    program, length = read_plan(SCHEDULES / name), 5003
    size = length * (4 if dtype == "float32" else 2)
    steps = "avg,scale=0.7,bias,cast=bfloat16,dropout=0.3"
    trial.run(program, size, dtype, epilogue=steps)
    x = total_of(trial)[:length] / F(8) * F(0.7) + bias(length)
    x = decode(encode(x, "bfloat16"), "bfloat16")
    x = np.where(dropped(length, 0.3, 1), F(0), x * F(1 / 0.7))
    wanted = decode(encode(x, dtype), dtype)
    assert 0.25 < (wanted == 0).mean() < 0.35
    for outputs in trial.outputs:
        for out in outputs:
            assert out[:length].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("ranks_as", ["threads", "processes"])
def test_adam_steps_once_a_launch(
    trial: Trial, ranks_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch after launch, with one state over all ranks; the gradient is the mean."""
    reset, seen = Epilogue.reset, []

    def once(own: Epilogue) -> None:
        if not seen:
            reset(own)
        seen.append(own)

    monkeypatch.setattr(Epilogue, "reset", once)
    program, length = read_plan(SCHEDULES / PLANS[0]), 4099
    options = {"modes": "out-of-place", "iterations": 3, "ranks_as": ranks_as}
    trial.run(program, length * 4, "float32", epilogue="avg,adam=0.01", **options)
    g, b1, b2 = total_of(trial)[:length] / F(8), F(0.9), F(0.999)
    w, m, v = (drawn(1000 + k * length, length) for k in range(3))
    v = np.abs(v)
    for turn in (1, 2, 3):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        first, second = (F(1 - float(b) ** turn) for b in (b1, b2))
        w = w - F(0.01) * (m / first) / (np.sqrt(v / second) + F(1e-8))
        if turn == 1:
            assert all(out[:length].tobytes() == w.tobytes() for out in trial.outputs[0])
    assert all(out[:length].tobytes() == w.tobytes() for out in trial.outputs[1])
    state = seen[0].states[0][1001:].reshape(3, -1)
    assert [each.tobytes() for each in state] == [each.tobytes() for each in (w, m, v)]


@pytest.mark.parametrize(
    ("name", "steps"),
    [("dgx-a100-2/allreduce.msccl.xml", 1), ("dgx-a100-1/allreduce.msccl.xml", 9_000)],
)
def test_processes_have_the_tables_of_an_epilogue(name: str, steps: int) -> None:
    """Ranks are forked without most of the caller's memory; the tables are longer than a grain."""
    asked: Any = {"ranks_as": "processes", "epilogue": ",".join(["scale=1"] * steps)}
    result = cpu.run(SCHEDULES / name, 4096, **asked)
    assert [row.wrong for row in result.rows] == [0, 0]


def test_the_same_bits_on_any_number_of_ranks(trial: Trial) -> None:
    data = np.random.default_rng(5).uniform(-1, 1, 3001).astype(F)
    given = np.zeros(8192, F)
    given[:3001] = data
    trial.given = lambda rank, length: given[:length] * F(rank == 1)
    results = set()
    for program in (*(read_plan(SCHEDULES / name) for name in PLANS), pg.ring_allreduce(3)):
        trial.run(program, 3001 * 4, "float32", epilogue="bias,dropout=0.5")
        results |= {out[:3001].tobytes() for outputs in trial.outputs for out in outputs}
    assert len(results) == 1


def reducing() -> dict[str, Program]:
    found = {}
    for name, program in pg.samples().items():
        if program.collective.reduces and not program.in_switches:
            try:
                owners(dataflow(program))
            except UnsupportedError:
                continue
            found[name] = program
    return found


@pytest.mark.parametrize("name", reducing())
def test_every_element_is_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of programs with all instructions, at odd sizes; a part left out, or moved, is seen."""
    program = reducing()[name]
    size = max(program.min_bytes, program.n * 4 * 1013)
    for dtype, steps in (("float32", "bias,dropout=0.25,adam=0.5"), ("bfloat16", "scale=1.5,bias")):
        result = cpu.run(program, size, dtype=dtype, epilogue=steps)
        assert [row.wrong for row in result.rows] == [0] * len(result.rows), result.mismatches
        assert f"{steps}: once to each sum, before others get it" in result.notes
    completes = epilogue._completes

    def spoil(given: Program) -> list[int]:
        found = [*completes(given)]
        found[next(k for k, chunk in enumerate(found) if chunk >= 0)] = -1
        return found

    monkeypatch.setattr(epilogue, "_completes", spoil)
    assert all(row.wrong for row in cpu.run(program, size, epilogue="scale=3").rows)


def test_ranks_of_several_processes() -> None:
    program = pg.ring_allreduce(4)
    result = run_apart(program, 4096, 2, epilogue="avg,adam=0.25", modes="out-of-place")
    assert [row.wrong for row in result.rows] == [0]


def test_plans_that_make_sums_twice_are_refused() -> None:
    for program, text in (
        (one_step(), "epilogue: the same sums are made at several ranks"),
        (parse(TWICE), "epilogue: the same sums are made twice at rank 0"),
    ):
        with pytest.raises(UnsupportedError, match=f"^{text}$"):
            cpu.run(program, 4096, epilogue="avg")
