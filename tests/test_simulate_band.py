"""The few figures that reports state of a plan in simulated time."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts

from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.study import predict
from forestcoll.topology import catalog
from forestcoll.ui import cli
from forestcoll.ui.report import words
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Band

MB = 10**6


@pytest.mark.parametrize("pieces", [1, 4, 50])
def test_a_chain_fills_while_its_last_link_waits(pieces: int) -> None:
    """Three hops: the first link is idle while the last two carry the last piece."""
    graph = CapacityGraph.from_topology(catalog.load("ring", {"gpus": 4, "bandwidth": 100}))
    edges = tuple((graph.ranks[i], graph.ranks[i + 1]) for i in range(3))
    tree = Tree(graph.ranks[0], "broadcast", 1, edges)
    forest = Forest("chain", graph, Collective.BROADCAST, 1, (tree,), root=0)
    rate = float(forest.plain_algbw) * 1000  # bytes a microsecond
    band = simulate.forest_band(forest, 90 * MB, pieces=pieces)
    assert band.fill == pytest.approx(2 * 90 * MB / pieces / rate)
    assert band.fair == pytest.approx(90 * MB / rate + band.fill)
    assert band.fifo == pytest.approx(band.fair)
    assert band.share(forest.plain_algbw) == pytest.approx(pieces / (pieces + 2))


def test_the_band_is_what_both_rules_give() -> None:
    topology = catalog.load("dgx-a100")
    made = synthesize(topology, "allreduce", target="rccl")
    for form, program in made.programs.items():
        band = made.bands[form]
        for rule, time in (("fifo", band.fifo), ("fair", band.fair)):
            alone = simulate.run(program, made.forest, 10**9, rule=rule, links=topology.latencies())  # type: ignore[arg-type]
            assert time == alone.time
        assert band.least == min(band.fifo_algbw, band.fair_algbw) <= 1200 / 7


def test_words_of_a_band() -> None:
    band = Band(10**9, 5000.0, 4000.0, 64.2)
    assert words.band(band) == "200.0 GB/s in order, 250.0 fair, at 1 GB; fill 64 us"
    assert words.band(Band(10**9, 5000.0, 4000.0, 5.8e-12)).endswith("; fill 0 us")
    assert words.band(Band(10**9, 5000.0, 4000.0, 0.68)).endswith("; fill 0.68 us")
    assert words.shares([band], Fraction(250)) == "simulated 80.0 to 100.0 %"
    assert words.shares([Band(1000, 4.0, 4.0, 0.0)], Fraction(1)) == "simulated 25.0 %"
    assert words.rates(Band(64 << 20, 1.0, 1.0, 0.0)).endswith("at 64 MiB")
    assert [words.amount(n) for n in (64 * MB, 1000, 4096)] == ["64 MB", "1 KB", "4 KiB"]


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main([*argv]) == 0
    return capsys.readouterr().out


def test_reports_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What synthesize says of a plan is what `time` and `run` say of the file."""
    argv = ["synthesize", "-t", "dgx-a100", "-c", "allgather", "--target", "rccl"]
    text = call(capsys, *argv, "-o", str(tmp_path / "a"))
    assert "100 %, simulated 98." in text
    assert "GB/s in order, 342.4 fair, at 1 GB; fill" in text
    said = json.loads(call(capsys, *argv, "-o", str(tmp_path / "b"), "--json"))
    band = said["plans"]["msccl-xml"]["simulated"]
    assert set(band) == {"size", "in_order", "fair", "fill_us", "model"}
    plan = tmp_path / "a" / "dgx-a100-1.allgather.msccl.xml"
    timed = ["time", str(plan), "-t", "dgx-a100", "--size", "1000000000", "--json"]
    times = {each["rule"]: each["time_us"] for each in json.loads(call(capsys, *timed))["timings"]}
    assert times["fifo"] == pytest.approx(band["in_order"]["time_us"])
    assert times["fair"] == pytest.approx(band["fair"]["time_us"])
    ran = ["run", str(plan), "-t", "dgx-a100", "--size", "1M"]
    assert "# Simulated algbw      : " in call(capsys, *ran)
    found = json.loads(call(capsys, *ran, "--json"))
    assert found["simulated"]["size"] == 1 << 20
    assert found["simulated"]["fair"]["algbw"] < 342.9


def test_a_forest_alone_has_one_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["synthesize", "-t", "torus-2d", "-c", "allgather", "--format", "forest"]
    text = call(capsys, *argv, "-o", str(tmp_path / "a.forest.json"))
    assert "fair, at 1 GB, the trees alone" in text
    said = json.loads(call(capsys, *argv, "-o", str(tmp_path / "b.forest.json"), "--json"))
    assert 0 < said["simulated"]["fair"]["algbw"] <= said["algbw_decimal"]


@pytest.fixture(scope="module")
def made(compiled: Artefacts) -> tuple[Path, dict[str, Any]]:
    """Files of a reduce-scatter, and what synthesize says of them."""
    artefact = compiled("dgx1-v100", "reduce-scatter")
    return artefact.folder, artefact.summary["plans"]


SUFFIXES = {"msccl-xml": "msccl.xml", "mscclpp-json": "mscclpp.json"}


@pytest.mark.parametrize("form", SUFFIXES)
def test_verify_says_what_synthesize_said(
    form: str, made: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, plans = made
    file = out / f"dgx1-v100-1.reduce-scatter.{SUFFIXES[form]}"
    machine = ["-t", "dgx1-v100"]
    (entry,) = json.loads(call(capsys, "verify", "--json", str(file)))
    assert entry["simulated"] == plans[form]["simulated"]
    line = f"{entry['simulated']['fair']['algbw']:.1f} fair, at 1 GB; fill"
    assert (
        f"  simulated {entry['simulated']['in_order']['algbw']:.1f} GB/s in order, {line}"
        in call(capsys, "verify", str(file))
    )
    alone = tmp_path / file.name
    alone.write_bytes(file.read_bytes())
    assert "simulated" not in call(capsys, "verify", str(alone))  # where does it run?
    assert line in call(capsys, "verify", str(alone), *machine)
    assert "simulated" not in call(capsys, "verify", str(file), "--no-simulate")
    (entry,) = json.loads(call(capsys, "verify", "--json", str(file), "--no-simulate"))
    assert entry["simulated"] is None


def test_verify_simulates_the_trees_of_a_forest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.forest.json"
    argv = ["synthesize", "-t", "torus-2d", "-c", "allreduce", "--format", "forest", "--json"]
    said = json.loads(call(capsys, *argv, "-o", str(file)))
    (entry,) = json.loads(call(capsys, "verify", "--json", str(file)))
    assert entry["simulated"] == said["simulated"]
    text = call(capsys, "verify", str(file))
    assert f"simulated {said['simulated']['in_order']['algbw']:.1f} GB/s in order" in text
    assert "at 1 GB, the trees alone" in text


def test_a_right_plan_stays_right_where_it_cannot_be_simulated(
    made: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = made[0] / "dgx1-v100-1.reduce-scatter.msccl.xml"
    assert cli.main(["verify", str(file), "-t", "ring", "--set", "gpus=4"]) == 0
    found = capsys.readouterr()
    assert "no race" in found.out
    assert "simulated" not in found.out
    assert "not simulated: the plan is for 8 ranks; ring-4 has 4 GPUs" in found.err
    forest = made[0] / "dgx1-v100-1.reduce-scatter.forest.json"
    for command in ("verify", "time"):  # the proof of a forest is its own; its time is on links
        code = cli.main([command, str(forest), "-t", "mi250"])
        assert code == (0 if command == "verify" else 1)
        lost = "there is no link from 'box0/gpu0' to 'box0/gpu2', which the forest has"
        assert lost in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words_"),
    [
        (["--set", "boxes=2"], "--set is for a --topology"),
        (["-t", "dgx-a100", "--no-simulate"], "leave --no-simulate away"),
    ],
)
def test_options_of_the_simulation_belong_together(
    more: list[str], words_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "plan.xml", *more]) == 2
    assert words_ in capsys.readouterr().err


def test_nothing_is_simulated_for_many_ranks() -> None:
    made = synthesize(catalog.load("dgx-a100", {"boxes": 9}), "allgather", formats="forest")
    assert made.bands == {}


def test_predictions_are_simulated() -> None:
    topology = catalog.load("dgx-a100")
    made = synthesize(topology, "allgather", target="rccl")
    program = made.programs["msccl-xml"]
    found = predict.by_topology(program, topology)
    assert found.algbw == made.forest.plain_algbw
    for size in (1 << 16, 1 << 26):
        assert found.microseconds(size) == simulate.run(program, topology, size).time
        assert found.microseconds(size) > float(size / found.algbw / 1000)
        band = found.band(size)
        assert band is not None
        assert band.size == size


def test_where_switches_add_plans_have_a_figure_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["synthesize", "-t", "dgx-h100", "-c", "allreduce"]
    text = call(capsys, *argv, "--nvls", "in-place", "-o", str(tmp_path / "plans"))
    assert "400 GB/s; 450 GB/s of its trees, in the switches" in text
    text = call(capsys, *argv, "--format", "forest", "-o", str(tmp_path / "forest.json"))
    assert "450 GB/s in the switches; 1800/7 (257.143) GB/s of plans that copy and add" in text
    plain = [*argv, "--format", "forest", "--json", "-o", str(tmp_path / "other.json")]
    said = json.loads(call(capsys, *plain))
    assert (said["algbw"], said["plan_algbw"]) == ("450", "1800/7")
