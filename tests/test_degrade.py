"""Single failures: what can fail, and what it costs by brute force."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import Run, draw, fine

from forestcoll import solver
from forestcoll.common.errors import ForestError, InfeasibleError, UnsupportedError
from forestcoll.compile.formats import Format
from forestcoll.compile.problem import capacity_graph, parse_root
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest
from forestcoll.solver import Optimum
from forestcoll.study.degrade import (
    KINDS,
    Failure,
    Workload,
    list_failures,
    play_whole,
    play_worst,
    report_losses,
)
from forestcoll.topology import Link, Node, Topology, catalog
from forestcoll.ui.report.degrade import losses

GPU, SWITCH = Node("gpu"), Node("switch")


def irregular() -> Topology:
    """Three boxes that differ: two GPUs on a switch; a pair by two cables; a lone, slow GPU."""
    links = (
        Link("a/g0", "a/sw", Fraction(100)),
        Link("a/g1", "a/sw", Fraction(100)),
        Link("b/g0", "b/g1", Fraction(40), count=2),
        Link("a/g0", "net", Fraction(25)),
        Link("a/g1", "net", Fraction(25)),
        Link("b/g0", "net", Fraction(25), count=2),
        Link("b/g1", "net", Fraction(50), oneway=True),
        Link("net", "b/g1", Fraction(20), oneway=True),
        Link("c", "net", Fraction(12)),
    )
    names = ("a/g0", "a/g1", "b/g0", "b/g1", "c")
    nodes = {**dict.fromkeys(names, GPU), "a/sw": SWITCH, "net": SWITCH}
    return Topology("irregular", nodes, links)


def test_each_thing_that_can_fail_is_listed_once() -> None:
    found = list_failures(irregular())
    assert [(f.kind, f.name, f.copies) for f in found] == [
        ("link", "a/g0-a/sw", 1),
        ("link", "a/g1-a/sw", 1),
        ("link", "b/g0-b/g1, one of 2", 2),
        ("link", "b/g0-net, one of 2", 2),
        ("link", "b/g1->net", 1),
        ("link", "net->b/g1", 1),
        ("link", "c-net", 1),
        ("adapter", "a/g0's network adapter", 1),
        ("adapter", "a/g1's network adapter", 1),
        ("adapter", "b/g0's network adapter", 1),
        ("adapter", "b/g1's network adapter", 1),
        ("gpu", "a/g0", 1),
        ("gpu", "a/g1", 1),
        ("gpu", "b/g0", 1),
        ("gpu", "b/g1", 1),
        ("gpu", "c", 1),
        ("switch", "a/sw", 1),
        ("switch", "net", 1),
    ]
    options = {f.name: f.options for f in found}
    assert options["b/g0-net, one of 2"] == "--scale 'b/g0<->net=1/2'"
    assert options["c-net"] == "--without 'c<->net'"
    assert options["b/g1->net"] == "--without 'b/g1->net'"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_failure_says_it_leaves_is_what_the_edited_topology_has(kind: str) -> None:
    whole = irregular()
    for failure in list_failures(whole, [kind]):  # type: ignore[list-item]
        after = failure.apply(whole).rates()
        expected = {**whole.rates(), **dict(failure.left)}
        assert {arc: rate for arc, rate in expected.items() if rate} == after, failure.name


def _brute(
    workload: Workload, failure: Failure, forest: Forest
) -> tuple[Fraction | None, Fraction | None]:
    """(old, new) of one failure, from the edited topology alone."""
    graph = capacity_graph(workload.topology)
    left = failure.apply(workload.topology).rates()
    worst: Fraction | None = None
    stops = failure.node in (workload.ranks or workload.topology.gpus)
    for e, load in enumerate(forest.loads()):
        if load:
            arc = graph.names[graph.tail[e]], graph.names[graph.head[e]]
            rate = left.get(arc, Fraction(0)) * forest.total / load
            worst = rate if worst is None else min(worst, rate)
    try:
        after = workload.after(failure)
        rest = capacity_graph(after.topology)
        root = parse_root(rest, after.collective, after.root)
        new = solver.optimum(rest, after.collective, root).algbw
    except (InfeasibleError, UnsupportedError):
        new = None
    return (None if stops or not worst else worst), new


@pytest.mark.parametrize(
    ("machine", "collective"),
    [
        *(("irregular", one) for one in ("allgather", "reduce-scatter", "allreduce", "broadcast")),
        ("dgx-a100", "allgather"),
        ("dgx-a100", "allreduce"),
        ("dgx1-v100", "reduce-scatter"),
        ("dgx1-v100", "broadcast"),
    ],
)
def test_every_loss_is_what_brute_force_finds(machine: str, collective: str) -> None:
    topology = irregular()
    if machine != "irregular":
        topology = catalog.load(machine, {"boxes": "2"} if machine == "dgx-a100" else {})
    root = topology.gpus[1] if collective == "broadcast" else None
    workload = Workload(topology, Collective(collective), root)
    found = report_losses(workload)
    formats: tuple[Format, ...] = ("forest",)
    made = synthesize(topology, collective, root=root, formats=formats)
    assert found.forest == made.forest
    assert [loss.failure for loss in found.losses] == list_failures(topology)
    step = 1 if machine == "irregular" else 5  # each failure is solved anew here
    for number in range(0, len(found.losses), step):
        loss = found.losses[number]
        assert (loss.old, loss.new) == _brute(workload, loss.failure, made.forest), (
            loss.failure.name
        )
        assert loss.new is not None or loss.reason


def test_what_takes_minutes_is_left_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(irregular(), Collective.ALLREDUCE)
    exact = report_losses(workload)
    assert not any(loss.note for loss in exact.losses)
    monkeypatch.setattr("forestcoll.solver.allreduce.PATIENT", 3)
    found = report_losses(workload)
    noted = 0
    for loss, best in zip(found.losses, exact.losses, strict=True):
        assert (loss.old, loss.reason) == (best.old, best.reason)
        if loss.new is None or best.new is None:
            assert loss.new == best.new
        elif loss.note:
            noted += 1
            assert max(loss.old or 0, 0) <= loss.new <= best.new
        else:
            assert loss.new == best.new
    assert noted
    text = draw(losses(found, play_worst(found, 40), None))
    assert "may be faster than said: reduce-scatter and allgather over the same trees" in text
    assert "at least " in text


def test_a_failure_that_costs_nothing_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(irregular(), Collective.ALLREDUCE)
    solved: list[int] = []

    def count(graph: CapacityGraph, *given: object, **more: object) -> Optimum:
        solved.append(len(graph.ranks))
        return optimum(graph, *given, **more)  # type: ignore[arg-type]

    optimum = solver.optimum
    monkeypatch.setattr(solver, "optimum", count)
    found = report_losses(workload)
    free = {loss.member_of for loss in found.losses if loss.old == found.optimum}
    lost = {loss.member_of for loss in found.losses} - free
    assert free
    assert len(solved) == 1 + len(lost)
    assert all(loss.new == found.optimum for loss in found.losses if loss.member_of in free)


def test_the_worst_failures_are_simulated() -> None:
    found = report_losses(Workload(irregular(), Collective.BROADCAST))
    whole = play_whole(found)
    assert whole is not None
    assert whole.least < found.before
    worst = play_worst(found, 100)
    assert [(w.loss, w.alike) for w in worst] == found.worst()
    for entry in worst:
        old, new, loss = entry.old, entry.new, entry.loss
        assert (old is None) == (loss.old is None)
        assert (new is None) == (loss.new is None)
        assert old is None or loss.old is None or 0 < old.least < loss.old
        assert new is None or loss.new is None or 0 < new.least < loss.new


def test_failures_that_are_alike_are_solved_once() -> None:
    found = report_losses(Workload(catalog.load("dgx-a100", {"boxes": "16"}), Collective.ALLGATHER))
    assert (len(found.losses), found.solved) == (401, 5)
    entry = next(e for e in found.worst() if e[0].failure.kind == "adapter")
    assert entry[1] == 128
    assert entry[0].new == Fraction(560, 3)  # the README's "again after a cable failed"


def test_a_group_looks_at_its_own_part_of_the_fabric() -> None:
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    ranks = tuple(f"box0/gpu{i}" for i in range(4))
    found = report_losses(Workload(topology, Collective.ALLGATHER, ranks=ranks))
    names = {loss.failure.name for loss in found.losses}
    assert "box0/gpu3" in names
    assert not any("box1/gpu" in name or "gpu7" in name for name in names)


def test_a_forest_of_another_problem_is_refused() -> None:
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    graph = capacity_graph(topology)
    forest = solver.solve(graph, Collective.ALLGATHER)
    with pytest.raises(ForestError, match="is of allgather, not of allreduce"):
        report_losses(Workload(topology, Collective.ALLREDUCE), forest=forest)
    slower = catalog.load("dgx-a100", {"boxes": "2", "network": "12"})
    with pytest.raises(ForestError, match="topology with other links"):
        report_losses(Workload(slower, Collective.ALLGATHER), forest=forest)
    larger = catalog.load("dgx-a100", {"boxes": "3"})
    with pytest.raises(ForestError, match="other ranks"):
        report_losses(Workload(larger, Collective.ALLGATHER), forest=forest)


# ------------------------------------------------------------------------------- command line


MACHINE = ("degrade", "-t", "dgx-a100", "--set", "boxes=2", "-c", "allgather")


def test_the_table_names_the_worst_and_how_to_see_them(call: Run) -> None:
    text = fine(call(*MACHINE))
    assert "in use     1040/3 (346.667) GB/s" in text
    assert "51, in 5 classes" in text
    line = next(line for line in text.splitlines() if line.startswith("box0/gpu0's network"))
    assert line.split() == [
        *["box0/gpu0's", "network", "adapter", "16", "stops", "320", "(92.30", "%)"],
        *["297.5", "-", "316.9", "--without", "'box0/gpu0<->fabric'"],
    ]
    assert "simulated 344.4 GB/s in order, 343.9 fair, at 1 GB, the trees alone" in text
    assert "cannot reach" in text


def test_json_lists_every_failure(call: Run) -> None:
    asked = ("-t", "mi300x", "-c", "allreduce", "--kinds", "link", "--json")
    found = json.loads(fine(call("degrade", *asked)))
    assert len(found["failures"]) == 28
    assert {entry["kind"] for entry in found["failures"]} == {"link"}
    assert Fraction(found["worst"][0]["new_algbw"]) < Fraction(found["algbw"])
    assert sum(entry["alike"] for entry in found["worst"]) == 28


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dask", "local"], "--format, --target and --dask are of --bundle DIR"),
        (["--plot", "losses.pdf"], "ends in .svg or .png"),
        (["--kinds", "cable"], "'cable' is not one of"),
        (["--groups", "box0/*"], "leave --groups away"),
        (["--worst", "0"], "--worst"),
    ],
)
def test_wrong_options_are_refused(words: list[str], told: str, call: Run) -> None:
    code, _, error = call(*MACHINE, *words)
    assert code == 2
    assert told in error


def test_plots_say_what_they_show(call: Run) -> None:
    pytest.importorskip("matplotlib")
    fine(call(*MACHINE, "--plot", "x.svg"))
    svg = Path("x.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml")
    assert "Worst single failures" in svg
    fine(call(*MACHINE, "--plot", "x.png"))
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")
    code, _, error = call(*MACHINE, "--plot", "x.png")
    assert code == 1
    assert "exists already; --force overwrites it" in error
