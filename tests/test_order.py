"""The order in which plans add up: what is told of it, and the bits that engines give."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import programs as pg
import pytest
from artefacts import Artefacts
from notation import parse
from stored_schedules import SCHEDULES, forest_and_plans
from test_execute_gpu import library  # noqa: F401 (a fixture)
from test_torch_gpu import RANKS, _gpus, _open, four  # noqa: F401 (a fixture)
from torch_ranks import ft, needs_gloo, run_ranks, torch

from forestcoll.common.errors import ForestError, PlanError, UnsupportedError
from forestcoll.compile.verdict import verify_text
from forestcoll.execute import contents, cpu
from forestcoll.execute.cpu import RanksAs
from forestcoll.plans import dumps, loads
from forestcoll.program import Program
from forestcoll.schedule.forest import check
from forestcoll.solver.baselines import sums
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.order import Order, digest_of, reduction_order

Bits = np.ndarray[Any, np.dtype[Any]]

WIDTHS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32}


def decode(bits: Bits, dtype: str) -> Bits:
    """float32 values of float16 or bfloat16, or of themselves."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.dtype(dtype)).astype(np.float32)


def encode(values: Bits, dtype: str) -> Bits:
    """Rounded to the nearest, halves to even."""
    if dtype == "bfloat16":
        word = values.view(np.uint32)
        return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.dtype(dtype)).view(WIDTHS[dtype])


def replay(expression: str, parts: Sequence[Bits], dtype: str) -> Bits:
    """The bits of an expression such as "((0+1)+2)", by a stack."""
    stack: list[Bits] = []
    for word in re.findall(r"\d+|\)", expression):
        if word == ")":
            one, other = decode(stack.pop(), dtype), decode(stack.pop(), dtype)
            stack.append(encode(other + one, dtype))
        else:
            stack.append(parts[int(word)])
    (result,) = stack
    return result


def inputs(ranks: int, elements: int, dtype: str) -> list[Bits]:
    random = np.random.default_rng(elements)
    return [encode(random.uniform(-1, 1, elements).astype(np.float32), dtype) for _ in range(ranks)]


def wrong_bits(
    program: Program,
    order: Order,
    size: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    ranks_as: RanksAs = "threads",
) -> list[int]:
    """Elements of each launch whose bits are not those of the order's expressions."""
    found: list[int] = []

    def fill(self: contents.Contents, buffers: Sequence[contents.Buffers]) -> None:
        length = buffers[0].input.nbytes // WIDTHS[dtype]().itemsize
        for buffer, values in zip(buffers, inputs(len(buffers), length, dtype), strict=True):
            buffer.input.view(values.dtype)[:] = values

    def compare(self: contents.Contents, buffers: Sequence[contents.Buffers], mode: str) -> int:
        outputs = [buffer.output.view(WIDTHS[dtype]) for buffer in buffers]
        length = max(len(outputs[0]), buffers[0].input.nbytes // outputs[0].itemsize)
        data, wrong = inputs(len(buffers), length, dtype), 0
        for each in order.sums:
            low, high = int(each.start * length), int(each.end * length)
            want = replay(each.expression, [part[low:high] for part in data], dtype)
            for rank in each.ranks:
                first = low - rank * len(outputs[rank]) * (len(outputs[rank]) < length)
                wrong += int((outputs[rank][first : first + high - low] != want).sum())
        found.append(wrong)
        return wrong

    monkeypatch.setattr(contents.Contents, "fill", fill)
    monkeypatch.setattr(contents.Contents, "compare", compare)
    cpu.run(program, size, dtype=dtype, iterations=3, ranks_as=ranks_as)
    return found


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("target", ["msccl-xml", "mscclpp-json"])
@pytest.mark.parametrize("collective", ["allreduce", "reduce-scatter"])
def test_the_cpu_engine_gives_the_bits_of_the_expressions(
    collective: str,
    target: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = forest_and_plans("dgx1-v100-1", collective)[1][target]
    order = reduction_order(dataflow(program))
    found = wrong_bits(program, order, 48 * 1000 + 16, dtype, monkeypatch)
    assert found
    assert not any(found)
    other = chain(range(program.n))
    spoilt = Order(tuple(each._replace(expression=other) for each in order.sums), "")
    assert all(wrong_bits(program, spoilt, 1 << 14, dtype, monkeypatch))


PRESCRIBED = {
    "binary": ("dgx-a100", "allreduce", "binary"),
    "packets": ("dgx-a100", "allreduce", "binary", "--target", "mscclpp", "--protocol", "LL"),
    "five": (
        "dgx-a100",
        "allreduce",
        "binary",
        "--ranks",
        ",".join(f"box0/gpu{r}" for r in range(5)),
    ),
    "boxes": ("rail boxes=2 gpus=2 rails=2", "reduce-scatter", "binary"),
    "rooted": ("dgx-a100", "reduce", "uniform", "--root", "3"),
    "sparse": ("dgx1-v100", "allreduce", "uniform"),
}
BINARY = "(((0+1)+(2+3))+((4+5)+(6+7)))"


@pytest.mark.parametrize("case", PRESCRIBED)
def test_all_of_the_data_is_added_up_in_the_order_that_is_asked_for(
    compiled: Artefacts, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, collective, kind, *words = PRESCRIBED[case]
    made = compiled(machine, collective, "--reduction-order", kind, *words)
    for form, program in made.programs.items():
        text = dumps(program, form)
        order = reduction_order(dataflow(loads(text, source="plan")))
        (expression,) = {each.expression for each in order.sums}
        assert expression == made.forest.sums
        assert expression == BINARY or case not in ("binary", "packets")
        assert sorted(map(int, re.findall(r"\d+", expression))) == list(range(program.n))
        assert digest_of(made.forest) == order.digest
        assert f'"{order.digest}"' in text  # in both formats
        told = "\n".join(made.summary["notes"])
        assert f"order of sums {order.digest[:16]}, {kind}: " in told
        for dtype, size in zip(WIDTHS, (1 << 14, 48 * 1000 + 16, 1 << 14), strict=True):
            found = wrong_bits(program, order, size, dtype, monkeypatch)
            assert found
            assert not any(found), (form, dtype)
        if case == "binary":
            found = wrong_bits(program, order, 1 << 14, "bfloat16", monkeypatch, "processes")
            assert found
            assert not any(found), form
    forest = made.forest
    with pytest.raises(ForestError, match=r"tree 0 adds up .*, not "):
        check(replace(forest, sums=chain(range(forest.n))))


def test_groups_that_add_up_before_give_the_bits_of_all_ranks() -> None:
    parts = inputs(8, 1000, "bfloat16")
    whole = replay(BINARY, parts, "bfloat16")
    while len(parts) > 1:
        half = [replay("(0+1)", parts[k : k + 2], "bfloat16") for k in range(0, len(parts), 2)]
        tree = sums.binary(range(len(half)))
        assert (replay(repr(tree).replace(", ", "+"), half, "bfloat16") == whole).all()
        parts = half
    other = replay(chain(range(8)), inputs(8, 1000, "bfloat16"), "bfloat16")
    assert (other != whole).any()


def test_a_plan_that_adds_up_otherwise_than_it_says_is_refused(compiled: Artefacts) -> None:
    made = compiled("dgx-a100", "allreduce", "--reduction-order", "binary")
    text = made.file(".msccl.xml").read_text()
    stated = digest_of(made.forest)
    with pytest.raises(
        PlanError, match=r"^plan.xml: states the order of sums 0000.* but adds up in"
    ):
        verify_text(text.replace(stated, "0" * 64), "plan.xml")
    waiting = re.search(r'<step [^>]*type="re"[^>]*(depid="\d+" deps="\d+")[^>]*>', text)
    assert waiting
    race = text[: waiting.start(1)] + 'depid="-1" deps="-1"' + text[waiting.end(1) :]
    with pytest.raises(PlanError, match=r"race: rank 0, .* both use chunk 0 of rank 0's output"):
        verify_text(race, "plan.xml")
    switched = replace(pg.base("fabric_allreduce"), extra={"sums": stated})
    with pytest.raises(PlanError, match=r"states the order of sums .* but a switch adds up"):
        verify_text(dumps(switched, "mscclpp-json"), "plan.json")


def chain(ranks: Sequence[int]) -> str:
    """`(((2+1)+0)`: from the last to the first."""
    text = str(ranks[-1])
    for rank in reversed(ranks[:-1]):
        text = f"({text}+{rank})"
    return text


def by_torch(rank: int, built: str, plans: dict[str, Any], count: int) -> dict[str, Bits]:
    """The bits of an allreduce over gloo, and on a stand-in for GPUs: twice each."""
    _gpus()
    found = {}
    for dtype in WIDTHS:
        kind = getattr(torch, dtype)
        signed = inputs(4, count, dtype)[rank].view(f"i{WIDTHS[dtype]().itemsize}")
        for name, plan in plans.items():
            with _open(rank, plan, built, count, dtype=kind, op="sum") as on_gpus:
                for engine in ("gloo", "gpu"):
                    for launch in range(2):
                        tensor = torch.from_numpy(signed.copy()).view(kind)
                        if engine == "gloo":
                            ft.all_reduce(tensor, plan)
                        else:
                            on_gpus(tensor)
                        bits = tensor.view(torch.from_numpy(signed).dtype).numpy()
                        found[f"{engine} {dtype} {name} {launch}"] = bits.view(WIDTHS[dtype])
    return found


@pytest.mark.parametrize("dtype", WIDTHS)
def test_packets_are_added_before_what_is_there(
    four: dict[str, Program],  # noqa: F811
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = four["allreduce.packets"]
    order = reduction_order(dataflow(program))
    assert not any(wrong_bits(program, order, 1 << 14, dtype, monkeypatch))


@needs_gloo
@pytest.mark.slow
def test_all_engines_give_the_same_bits(
    compiled: Artefacts,
    library: Path,  # noqa: F811
    four: dict[str, Program],  # noqa: F811
) -> None:
    from forestcoll.execute.torch import Plan

    count = 1 << 12  # parts begin at multiples of 64 bytes, as PyTorch's engine cuts them
    programs = {name: p for name, p in four.items() if name.startswith("allreduce")}
    for kind in ("binary", "uniform"):
        made = compiled("dgx-a100", "allreduce", *RANKS, "--reduction-order", kind)
        programs |= {f"allreduce.{kind}.{form}": p for form, p in made.programs.items()}
    given = {name: Plan(program) for name, program in programs.items()}
    sums = {name: reduction_order(dataflow(program)).sums for name, program in programs.items()}
    told = run_ranks(4, by_torch, str(library), given, count)
    assert {len(found) for found in told} == {2 * 2 * len(WIDTHS) * len(programs)}
    for title in told[0]:
        _, dtype, name, _ = title.split()
        data = inputs(4, count, dtype)
        for each in sums[name]:
            part = slice(int(each.start * count), int(each.end * count))
            want = replay(each.expression, [own[part] for own in data], dtype)
            for rank in each.ranks:
                assert (told[rank][title][part] == want).all(), (title, each)


RING = [("0", "1/3", "((0+1)+2)"), ("1/3", "2/3", "(0+(1+2))"), ("2/3", "1", "((0+2)+1)")]


def test_an_order_is_told_of_the_data_however_it_is_cut() -> None:
    ring = reduction_order(dataflow(pg.ring_allreduce(3)))
    assert ring.is_alike
    assert [(str(s.start), str(s.end), s.expression) for s in ring.sums] == RING
    assert {s.ranks for s in ring.sums} == {(0, 1, 2)}
    text = "".join(f"{a} {b} {c} (0, 1, 2)\n" for a, b, c in RING)
    assert ring.digest == hashlib.sha256(text.encode()).hexdigest()


READING = "allreduce onesided places=out\n" + "".join(
    f"""rank 1 1
block channels=memory:{a}:0,memory:{b}:0
relaxed_signal -> over=0,1
relaxed_wait -> over=0,1
nop
read_reduce i0:1 i0:1@{a} i0:1@{b} -> o0:1 over=0,1
nop
signal -> over=0,1
wait -> over=0,1
"""
    for a, b in ((1, 2), (0, 2), (0, 1))
)
"""Every rank reads what the others have, and adds its own, theirs in the order of their ranks."""


def test_ranks_that_each_add_up_for_themselves_may_differ() -> None:
    order = reduction_order(dataflow(parse(READING)))
    assert [s[2:] for s in order.sums] == [("((0+1)+2)", (0, 1)), ("((0+2)+1)", (2,))]
    assert not order.is_alike


def test_what_a_switch_adds_up_has_no_order_of_ours() -> None:
    with pytest.raises(UnsupportedError, match="a switch adds up, in an order of its own"):
        reduction_order(dataflow(pg.base("fabric_allreduce")))


def test_verify_tells_the_order() -> None:
    text, gathered = (
        (SCHEDULES / f"dgx1-v100-1/{collective}.msccl.xml").read_text()
        for collective in ("allreduce", "allgather")
    )
    verdict = verify_text(text, "plan.xml")
    order = verdict.figures["reduction_order"]
    assert isinstance(order, dict)
    assert f"order of sums {order['sha256'][:16]}: at most " in "\n".join(verdict.lines)
    again = reduction_order(dataflow(loads(text, source="plan.xml")))
    assert order["sha256"] == again.digest
    assert "reduction_order" not in verify_text(gathered, "plan.xml").figures
    told = verify_text(dumps(pg.base("fabric_allreduce"), "mscclpp-json"), "plan.json").lines
    assert "order of the sums: not told (a switch adds up, in an order of its own)" in told
