"""Single failures: what can fail, and what it costs by brute force."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import draw
from graphs import machine

from forestcoll import solver
from forestcoll.common.errors import ForestCollError, InfeasibleError, UnsupportedError
from forestcoll.compile.formats import Format
from forestcoll.compile.problem import capacity_graph, parse_root
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest
from forestcoll.solver import Optimum
from forestcoll.study.degrade.failures import KINDS, Failure, list_failures
from forestcoll.study.degrade.losses import Journal, Workload, play_whole, play_worst, report_losses
from forestcoll.topology import Topology, loads_topology
from forestcoll.ui.report.degrade import losses

IRREGULAR = """
format: forestcoll.topology/1
name: irregular
nodes:
  {a/g0: {kind: gpu}, a/g1: {kind: gpu}, b/g0: {kind: gpu}, b/g1: {kind: gpu}, c: {kind: gpu},
   a/sw: {kind: switch}, net: {kind: switch}}
links:
  - {src: a/g0, dst: a/sw, bandwidth: 100}
  - {src: a/g1, dst: a/sw, bandwidth: 100}
  - {src: b/g0, dst: b/g1, bandwidth: 40, count: 2}
  - {src: a/g0, dst: net, bandwidth: 25}
  - {src: a/g1, dst: net, bandwidth: 25}
  - {src: b/g0, dst: net, bandwidth: 25, count: 2}
  - {src: b/g1, dst: net, bandwidth: 50, oneway: true}
  - {src: net, dst: b/g1, bandwidth: 20, oneway: true}
  - {src: c, dst: net, bandwidth: 12}
"""
"""Three boxes that differ: two GPUs on a switch; a pair by two cables; a lone, slow GPU."""


def irregular() -> Topology:
    return loads_topology(IRREGULAR)


def test_one_rank_of_two_is_left() -> None:
    pair = Workload(machine("ring gpus=2"), Collective.ALLGATHER)
    reasons = {loss.failure.name: loss.reason for loss in report_losses(pair).losses}
    assert reasons.pop("gpu0-gpu1").startswith("rank gpu1 cannot reach gpu0")
    assert reasons == dict.fromkeys(("gpu0", "gpu1"), "one rank is left")
    ranks = Workload(machine("ring"), Collective.BROADCAST, "gpu4", ("gpu0", "gpu4"), "all")
    failure = next(f for f in list_failures(ranks.topology, ("gpu",)) if f.node == "gpu0")
    with pytest.raises(UnsupportedError, match="one rank is left"):
        ranks.after(failure)


def test_each_thing_that_can_fail_is_listed_once() -> None:
    found = list_failures(irregular())
    links = "a/g0-a/sw, a/g1-a/sw, b/g0-b/g1 x2, b/g0-net x2, b/g1->net, net->b/g1, c-net"
    assert ", ".join(told(f) for f in found if f.kind == "link") == links
    boxed = ("a/g0", "a/g1", "b/g0", "b/g1")
    others = [("adapter", f"{gpu}'s network adapter") for gpu in boxed]
    others += [("gpu", gpu) for gpu in (*boxed, "c")] + [("switch", "a/sw"), ("switch", "net")]
    assert [(f.kind, f.name) for f in found if f.kind != "link"] == others
    options = {f.name: f.options for f in found}
    assert options["b/g0-net, one of 2"] == "--scale 'b/g0<->net=1/2'"
    assert options["c-net"] == "--without 'c<->net'"
    assert options["b/g1->net"] == "--without 'b/g1->net'"


def told(failure: Failure) -> str:
    """The link that fails, and of how many."""
    one_of = f", one of {failure.copies}" if failure.copies > 1 else ""
    assert failure.name.endswith(one_of)
    return failure.name.removesuffix(one_of) + f" x{failure.copies}" * (failure.copies > 1)


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
    ("text", "collective"),
    [
        *(("irregular", one) for one in ("allgather", "reduce-scatter", "allreduce", "broadcast")),
        ("dgx-a100 boxes=2", "allgather"),
        ("dgx-a100 boxes=2", "allreduce"),
        ("dgx1-v100", "reduce-scatter"),
        ("dgx1-v100", "broadcast"),
    ],
)
def test_every_loss_is_what_brute_force_finds(text: str, collective: str) -> None:
    topology = irregular() if text == "irregular" else machine(text)
    root = topology.gpus[1] if collective == "broadcast" else None
    workload = Workload(topology, Collective(collective), root)
    found = report_losses(workload)
    formats: tuple[Format, ...] = ("forest",)
    made = synthesize(topology, collective, root=root, formats=formats)
    assert found.forest == made.forest
    assert [loss.failure for loss in found.losses] == list_failures(topology)
    step = 1 if text == "irregular" else 5  # each failure is solved anew here
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
    found = report_losses(Workload(machine("dgx-a100 boxes=16"), Collective.ALLGATHER))
    assert (len(found.losses), found.solved) == (401, 5)
    entry = next(e for e in found.worst() if e[0].failure.kind == "adapter")
    assert entry[1] == 128
    assert entry[0].new == Fraction(560, 3)  # the README's "again after a cable failed"


def test_a_group_looks_at_its_own_part_of_the_fabric() -> None:
    topology = machine("dgx-a100 boxes=2")
    ranks = tuple(f"box0/gpu{i}" for i in range(4))
    found = report_losses(Workload(topology, Collective.ALLGATHER, ranks=ranks))
    names = {loss.failure.name for loss in found.losses}
    assert "box0/gpu3" in names
    assert not any("box1/gpu" in name or "gpu7" in name for name in names)


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is solved stands in the file at once, and is not solved again."""
    asked, file = Workload(machine("dgx-a100 boxes=4"), Collective.ALLGATHER), tmp_path / "j.json"
    whole = report_losses(asked)
    calls: list[int] = []
    optimum = solver.optimum

    def interrupted(graph: CapacityGraph, *more: Any, **options: Any) -> Optimum:
        calls.append(graph.n)
        if len(calls) == 4:  # after the whole fabric and two failures
            raise KeyboardInterrupt
        return optimum(graph, *more, **options)

    monkeypatch.setattr(solver, "optimum", interrupted)
    journal = Journal(file, asked)
    with pytest.raises(KeyboardInterrupt):
        report_losses(asked, solved=journal)
    assert len(journal) == 2
    again = Journal(file, asked)
    assert again == journal
    assert report_losses(asked, solved=again).losses == whole.losses
    assert len(calls) == 4 + 1 + len(again) - 2
    report_losses(asked, solved=Journal(file, asked))
    assert len(calls) == 4 + 1 + len(again) - 2 + 1

    with pytest.raises(ForestCollError, match="was made for another problem; name another file"):
        Journal(file, Workload(machine("dgx-a100 boxes=3"), Collective.ALLGATHER))
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == len(again)
    file.write_text("".join(lines[:-1]) + lines[-1][:20])  # cut off while it was written
    cut = Journal(file, asked)
    assert list(cut) == list(again)[:-1]
    assert report_losses(asked, solved=cut).losses == whole.losses
    assert file.read_text() == "".join(lines)
    with pytest.raises(ForestCollError, match=r"j\.json: cannot be written: No such"):
        Journal(tmp_path / "nowhere" / "j.json", asked)
    file.write_text(file.read_text().replace("nvswitch", "switch", 1))
    with pytest.raises(ForestCollError, match="was changed after it was made"):
        Journal(file, asked)
    file.write_text("[]")
    with pytest.raises(ForestCollError, match="is no record of a losses"):
        Journal(file, asked)
