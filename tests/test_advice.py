"""Advice: figures are those of `compare`, failures those of `degrade`, ways serve the machine."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import as_json as answer
from command_line import draw
from graphs import machine
from real_files import real

import forestcoll
from forestcoll.common.errors import UnsupportedError
from forestcoll.program import Collective
from forestcoll.study import advice
from forestcoll.study.comparison.play import compare
from forestcoll.study.degrade import losses
from forestcoll.topology.calibrate.calls import Run
from forestcoll.ui.report import comparison as report
from forestcoll.ui.report.facts import as_json
from forestcoll.verify.simulate import BOTH

RING = machine("ring gpus=4")
FAT = machine("fat-tree hosts=1 gpus=2")


def test_figures_are_those_of_a_whole_comparison() -> None:
    """Of all baselines, each size by itself, and not quickly."""
    told = advice.advise(FAT)
    for size in advice.SIZES:
        whole = compare(FAT, sizes=(size,))
        gain = next(one for one in told.gains if one.size == size)
        ratios = []
        for rule in whole.rules:
            library = [whole.cell(name, size, rule) for name in advice.LIBRARY]
            best = min(cell.time for cell in library if cell is not None)
            ours = whole.cell("forestcoll", size, rule)
            mine = told.comparison.cell("forestcoll", size, rule)
            assert ours is not None
            assert mine is not None
            assert (ours.time, ours.plan) == (mine.time, mine.plan)
            ratios.append(best / ours.time)
        assert (gain.least, gain.most) == pytest.approx((min(ratios), max(ratios)))


def test_two_sound_boxes_have_nothing_to_gain() -> None:
    told = advice.advise(machine("dgx-a100 boxes=2"))
    assert told.nothing
    assert all(0.98 < gain.least <= gain.most < advice.WORTH for gain in told.gains)
    text = draw(report.advice(told, "-t dgx-a100 --set boxes=2"))
    assert (
        "verdict     nothing to gain while all works: plans are 1.00 to 1.01 times as fast" in text
    )
    assert "without box0/gpu0 links allow 3.24 times what it takes" in text


def test_the_verdict_is_by_size() -> None:
    """Small calls gain on any machine with more hops than needed; large ones where links do."""
    told = advice.advise(RING)
    text = " ".join(draw(report.advice(told, "-t ring")).split())
    least = told.gains[0].least
    assert [gain.least >= advice.WORTH for gain in told.gains] == [True, False, False]
    assert f"worth it for calls of 64 KiB ({least:.2f} x): at least so many times" in text
    assert "as what the library does itself; nothing to gain at 8 MiB, 1 GiB bound" in text


def test_a_slower_plan_says_how_much_of_the_bound_each_reaches() -> None:
    compared = compare(RING, sizes=(size := advice.SIZES[2],), against=("rings",))
    slower = replace(
        compared,
        cells=tuple(
            replace(cell, time=1.25 * cell.time, percent=cell.percent / 1.25)
            if cell.name == "forestcoll"
            else cell
            for cell in compared.cells
        ),
    )
    gain = advice._gain(slower, size)
    assert gain.least == pytest.approx(0.8, abs=0.01)
    assert gain.reason == "rings: 100 % of the bound, the plan: 80 %"


def test_failures_are_the_worst_of_degrade() -> None:
    """Of each kind, with what the library's ways reach then, by the links."""
    told = advice.advise(RING, "allgather")
    work = losses.Workload(RING, told.comparison.collective)
    for state in told.states[1:]:
        assert state.failure is not None
        kind = state.failure.failure.kind
        every = losses.report_losses(work, (kind,)).losses
        least = min(loss.new or 0 for loss in every)
        assert state.bound == least
        assert state.failure.looked == state.failure.of
    now = told.states[0]
    assert now.bound == told.comparison.bound
    assert now.library is not None
    assert now.gain == now.bound / now.library.algbw


def test_ways_are_those_of_the_machine() -> None:
    ways = {way.name: way for way in advice.list_ways(machine("mi250"), Collective.ALLREDUCE)}
    assert ways["rccl-trees"].why == "24 trees: 171.4 GB/s"
    assert [name for name, way in ways.items() if way.serves] == [
        *("rccl-trees", "rccl", "mscclpp", "torch"),
    ]
    ways = {way.name: way for way in advice.list_ways(machine("rail"), Collective.ALLREDUCE)}
    assert "out, rings on common rails: 0 of 16 hops" in ways["nccl-graph"].why
    assert not ways["rccl-trees"].serves


@pytest.mark.parametrize(
    ("name", "trees"), [("topo_8p_940", 4), ("topo_16p1h", 24), ("topo_4p4h", 2)]
)
def test_a_dump_of_rccl_is_of_a_machine_of_amd(name: str, trees: int) -> None:
    """By the architecture that it states, whatever its file is called; one is before gfx90a."""
    dump = forestcoll.load_topology(real(f"rccl-xml/{name}.xml"))
    ways = {way.name: way for way in advice.list_ways(dump, Collective.ALLREDUCE)}
    assert ways["rccl-trees"].why.startswith(f"{trees} trees")
    assert "rccl" in ways
    assert "msccl" not in ways
    assert ways["mscclpp"].serves == (name != "topo_4p4h")


def test_the_command_says_what_to_type_next() -> None:
    told = answer("advise", "ring", "--set", "gpus=4", "-c", "allgather")
    assert told["nothing_to_gain"] in (True, False)
    assert told["bound_decimal"] == float(Fraction(told["bound"]))
    assert [row["size"] for row in told["sizes"]] == list(advice.SIZES)
    commands = [text for way in told["ways"] for text in way["commands"]]
    assert "forestcoll deploy plans/ --runtime mscclpp -o deployed/" in commands
    assert any("-t ring --set gpus=4 -c allgather --target mscclpp" in text for text in commands)
    assert as_json(report.advice(advice.advise(RING, "allgather"), "-t ring --set gpus=4")) == told


ROW = "{size:>12} {count:>12}  float     sum      -1 {us:>8} 1.0 1.0 0 {us:>8} 1.0 1.0 0"


def test_what_was_measured_is_held_against_the_links(tmp_path: Path) -> None:
    """A size between those that are played, one as fast as the links, one twice as slow."""
    told = advice.advise(RING)
    size = (advice.SIZES[1] + advice.SIZES[2]) // 2
    cells = [(s, told.comparison.best_baseline(s, rule)) for s in advice.SIZES for rule in BOTH]
    known = [max(cell.time for s, cell in cells if cell and s == size) for size in advice.SIZES]
    middle = (known[1] + known[2]) / 2
    last = 4 * advice.SIZES[2]
    rows = [(advice.SIZES[0], 1.1 * known[0]), (size, 2 * middle), (last, 4.1 * known[2])]
    text = "# Collective test starting: all_reduce_perf\n"
    text += "".join(
        f"#  Rank  {k} Group  0 Pid  {k} on  host device  {k} [0000:0{k}:00] NVIDIA\n"
        for k in range(4)
    )
    text += "\n".join(ROW.format(size=s, count=s // 4, us=f"{us:.2f}") for s, us in rows)
    file = tmp_path / "perf.log"
    file.write_text(text + "\n")
    found = answer("advise", "ring", "--set", "gpus=4", "--measured", file)["measured"]
    assert [row["slow"] for row in found] == [False, True, False]
    assert [row["size"] for row in found] == [s for s, _ in rows]
    assert found[1]["expected_us"] == pytest.approx(middle)
    with pytest.raises(UnsupportedError, match="perf: no allreduce was timed in it"):
        advice.hold(told, Run("nccl-tests", ["host"] * 4), "perf")
    with pytest.raises(UnsupportedError, match="perf: timed among 2 ranks; ring-4 has 4"):
        advice.hold(told, Run("nccl-tests", ["host"] * 2), "perf")
