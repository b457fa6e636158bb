"""Words for numbers and cuts, and the tables."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line import draw
from graphs import build, machine
from hypothesis import given
from hypothesis import strategies as st

from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import bound_line
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Bound
from forestcoll.ui.report import runs, synthesis, words
from forestcoll.ui.report.facts import as_json, grid, line

AG, AR = Collective.ALLGATHER, Collective.ALLREDUCE


def boxes(count: int, weak: int = 25) -> CapacityGraph:
    """`count` boxes of two GPUs on a switch, every GPU with an uplink; box 0 with weak ones."""
    gpus = [(b, f"box{b}/gpu{i}") for b in range(count) for i in range(2)]
    links = [(gpu, f"box{b}/switch", 300) for b, gpu in gpus]
    return build(links + [(gpu, "fabric", 25 if b else weak) for b, gpu in gpus])


def nodes(graph: CapacityGraph, *names: str) -> frozenset[int]:
    return frozenset(
        v for v, name in enumerate(graph.names) if any(name.startswith(n) for n in names)
    )


WORDS = """
decimal(F(1040, 3)) -> 346.667
decimal(F(320)) -> 320
decimal(F(1, 3)) -> 0.333
decimal(F(-5, 4)) -> -1.25
decimal(F(10**20 + 1, 2)) -> 50000000000000000000.5
exact(F(1040, 3)) -> 1040/3 (346.667)
exact(F(208)) -> 208
percent(F(7), F(7)) -> 100 %
percent(F(320), F(1040, 3)) -> 92.30 %
percent(F(4), F(5)) -> 80 %
percent(F(999_999), F(1_000_000)) -> 99.9999 %
percent(F(10**12 - 1), F(10**12)) -> 99.999999999 %
percent(F(10**15 - 1), F(10**15)) -> 99.999999999 %
percent(F(200_001), F(200_000)) -> 100.0005 %
size(64 << 20) -> 64 MiB
size(832) -> 832 bytes
seconds(1.236) -> 1.24 s
seconds(0.00312) -> 3.1 ms
plural(1, "box") -> 1 box
plural(2, "box") -> 2 boxes
plural(3, "switch") -> 3 switches
plural(8, "GPU") -> 8 GPUs
join_names(["gpu0", "gpu1", "gpu2", "gpu5"]) -> gpu0-2, gpu5
join_names(["a", "b/7", "c"]) -> a, b/7, c
join_names([f"x{2 * i}" for i in range(9)]) -> x0, x2, x4, x6, x8, x10, ...
"""


@pytest.mark.parametrize("row", WORDS.strip().splitlines())
def test_words(row: str) -> None:
    call, _, text = row.partition(" -> ")
    assert eval(call, {"F": Fraction, **vars(words)}) == text


@given(
    st.fractions(Fraction(1, 100), 2, max_denominator=10**4),
    st.fractions(1, 2, max_denominator=10**4),
)
def test_no_share_is_said_to_be_more(part: Fraction, whole: Fraction) -> None:
    """Rounded down below the whole, by less than a hundredth; the same words as of a bound."""
    text = words.percent(part, whole)
    share, said = 100 * part / whole, Fraction(text.removesuffix(" %"))
    assert abs(said - share) < Fraction(1, 100)
    assert (said == 100) == (share == 100)
    if share < 100:
        assert said <= share
        assert bound_line(part, whole).endswith(f"at least {text}")


BOTTLENECKS = """
even allgather -box0/gpu0: every GPU's ingress: 325 GB/s
even reduce-scatter -box0/gpu0: every GPU's egress: 325 GB/s
even allgather box0/gpu0: every GPU's egress: 325 GB/s
even reduce-scatter box0/gpu0: every GPU's ingress: 325 GB/s
two-weak allgather -box0/gpu1: box0/gpu1's ingress: 305 GB/s
three allgather box1: every box (2 GPUs): 50 GB/s out
weak allgather box0: box0 (2 GPUs): 10 GB/s out
weak allgather -box0: box0 (2 GPUs): 10 GB/s in
weak reduce-scatter -box0: box0 (2 GPUs): 10 GB/s out
weak allgather box0/gpu0,box1/gpu0: box0/gpu0, box1/gpu0 (2 GPUs): 630 GB/s out
even allreduce box0: every box (2 GPUs): 50 GB/s in, and as much out
even broadcast box0: box0 (2 GPUs): 50 GB/s out
even reduce box0: box0 (2 GPUs): 50 GB/s in
"""
"""A graph, a collective, and one side of the cut; with "-" the other one. Then the words."""
GRAPHS = {
    "even": boxes(2),
    "three": boxes(3),
    "weak": boxes(3, weak=5),
    "two-weak": boxes(2, weak=5),
}


@pytest.mark.parametrize("row", BOTTLENECKS.strip().splitlines())
def test_bottlenecks(row: str) -> None:
    """Every GPU where all are as tight."""
    stated, _, text = row.partition(": ")
    name, collective, inside = stated.split()
    graph = GRAPHS[name]
    part = nodes(graph, *inside.removeprefix("-").split(","))
    if inside.startswith("-"):
        part = frozenset(range(graph.n)) - part
    bound = Bound(Fraction(1), "cut", (part,))
    assert words.bottleneck(graph, Collective(collective), bound) == text


PARTITIONS = """
3 each GPU: all 6 GPUs together: 1950 GB/s in, for 10 times the data
3 box0; box1; box2: the 3 boxes together: 150 GB/s in, for 4 times the data
2 box0/gpu0 box1/gpu0; box0/gpu1 box1/gpu1: 2 groups of GPUs (box0/gpu0, box1/gpu0; box0/gpu1, \
box1/gpu1) together: 1300 GB/s in, for 2 times the data
"""


@pytest.mark.parametrize("row", PARTITIONS.strip().splitlines())
def test_partition(row: str) -> None:
    stated, _, text = row.partition(": ")
    count, _, parts = stated.partition(" ")
    graph = boxes(int(count))
    every = "; ".join(graph.names[v] for v in graph.ranks)
    sets = tuple(
        nodes(graph, *part.split()) for part in parts.replace("each GPU", every).split("; ")
    )
    assert words.bottleneck(graph, AR, Bound(Fraction(1), "partition", sets)) == text


def test_linear_program() -> None:
    graph = boxes(2)
    bound = Bound(
        Fraction(1),
        "linear-program",
        (nodes(graph, "box0/gpu0"), nodes(graph, "box1/gpu0")),
        (Fraction(1, 3), Fraction(2, 3)),
        ((graph.n - 1, Fraction(1)),),
    )
    text = words.bottleneck(graph, AG, bound)
    assert text == (
        "2 cuts together (switches whose directions differ), the heaviest around box1/gpu0"
    )


def test_tables_do_not_read_ids_as_markup() -> None:
    assert draw([line("name", "[red]gpu[/red] [0]")]) == "name  [red]gpu[/red] [0]"
    assert draw(grid(("a", "bc"), [("123", "2")])) == "a    bc\n123   2"


def row(mode: str, **given: object) -> SimpleNamespace:
    usual: dict[str, object] = {
        "mode": mode, "size": 1 << 20, "count": 1 << 18, "dtype": "float32", "op": "sum",
        "root": -1, "time_us": 100.0, "algbw": 10.48576, "busbw": 19.6608, "wrong": 0,
        "of_predicted": None, "predicted_us": None, "wire": "float32",
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **given})


def test_nccl_tests_columns() -> None:
    program = cast(Any, SimpleNamespace(collective=AR, n=16, name="ring"))
    both = SimpleNamespace(rows=[row("out-of-place"), row("in-place", busbw=9.6608)], mismatches=[])
    both.wrong = 0
    lines = runs.run_table(program, cast(Any, [both])).splitlines()
    assert lines[0] == "# allreduce, 16 ranks, ring"
    assert lines[1].split() == ["#", "out-of-place", "in-place"]
    assert lines[2].removeprefix("#").split() == [
        *("size", "count", "type", "redop", "root"),
        *("time", "algbw", "busbw", "#wrong") * 2,
    ]
    assert lines[4].split() == [
        *("1048576", "262144", "float32", "sum", "-1"),
        *("100.00", "10.486", "19.661", "0", "100.00", "10.486", "9.661", "0"),
    ]
    assert lines[5] == "# Out of bounds values : 0 OK"
    assert lines[6] == "# Avg bus bandwidth    : 14.66"


def test_nccl_tests_marks_what_is_wrong_or_not_run() -> None:
    program = cast(Any, SimpleNamespace(collective=AG, n=2, name=""))
    one = SimpleNamespace(
        rows=[row("out-of-place", op="none", wrong=7)], mismatches=[f"d{i}" for i in range(7)]
    )
    one.wrong = 7
    lines = runs.run_table(program, cast(Any, [one])).splitlines()
    assert lines[4].split()[3:5] == ["none", "-1"]
    assert lines[4].split()[-4:] == ["-", "-", "-", "N/A"]
    assert "# Out of bounds values : 7 FAILED" in lines
    assert lines[-2:] == ["# wrong: d4", "# wrong: ... and 2 more"]


def test_plans_say_what_they_take() -> None:
    """Thread blocks, those that move data, scratch, and how the halves of an allreduce meet."""
    made = synthesize(machine("dgx-a100 boxes=2"), "allreduce")
    text = draw(synthesis.schedule(made, {}, {}))
    assert "reduce and broadcast overlap, slice by slice" in text
    needs = made.needs["mscclpp-json"]
    assert 0 < needs.busy < needs.thread_blocks
    words_ = f"{needs.thread_blocks} thread blocks per rank at most, {needs.busy} of them move data"
    words_ += f", {needs.instances} instances" if needs.instances > 1 else ""
    words_ += f", scratch {float(needs.scratch):.2f} of the input"
    assert f"{words_}; in place" in text
    one_box = synthesize(machine("dgx-a100"), "allgather", formats=("mscclpp-json",))
    several = one_box.needs["mscclpp-json"].instances
    assert several > 1
    assert f", {several} instances" in draw(synthesis.schedule(one_box, {}, {}))
    plans = as_json(synthesis.schedule(made, {}, {}))["plans"]
    assert plans["mscclpp-json"]["scratch"] == str(needs.scratch)
    assert plans["mscclpp-json"]["steps"] == needs.steps
