"""The few figures that reports state of a plan in simulated time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from artefacts import Artefacts
from command_line import as_json
from graphs import machine, named

from forestcoll.compile.synthesize import synthesize
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.study import predict
from forestcoll.ui import cli
from forestcoll.ui.report import words
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Band

MB = 10**6


@pytest.mark.parametrize("pieces", [1, 4, 50])
def test_a_chain_fills_while_its_last_link_waits(pieces: int) -> None:
    """Three hops: the first link is idle while the last two carry the last piece."""
    graph = named("ring gpus=4 bandwidth=100")
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
    topology = machine("dgx-a100")
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


@pytest.mark.parametrize("end", ["msccl.xml", "mscclpp.json", "forest.json"])
def test_verify_and_time_say_what_synthesize_said(
    end: str, compiled: Artefacts, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = ("--format", "forest") if end == "forest.json" else ()
    made = compiled("dgx1-v100", "reduce-scatter", *alone)
    plans = {"msccl.xml": "msccl-xml", "mscclpp.json": "mscclpp-json"}
    said = made.summary["plans"][plans[end]] if end in plans else made.summary
    band = said["simulated"]
    assert set(band) == {"size", "in_order", "fair", "fill_us", "model"}
    (entry,) = as_json("verify", made.file(end))
    assert entry["simulated"] == band
    timed = as_json("time", made.file(end), "-t", "dgx1-v100", "--size", 10**9)["timings"]
    times = {each["rule"]: each["time_us"] for each in timed}
    assert times["fifo"] == pytest.approx(band["in_order"]["time_us"])
    assert times["fair"] == pytest.approx(band["fair"]["time_us"])
    assert cli.main(["verify", str(made.file(end))]) == 0
    first, second = (f"{band[rule]['algbw']:.1f}" for rule in ("in_order", "fair"))
    assert f"  simulated {first} GB/s in order, {second} fair, at 1 GB" in capsys.readouterr().out


def test_nothing_is_simulated_for_many_ranks() -> None:
    made = synthesize(machine("dgx-a100 boxes=9"), "allgather", formats="forest")
    assert made.bands == {}


def test_predictions_are_simulated() -> None:
    topology = machine("dgx-a100")
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
