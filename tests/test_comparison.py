"""Comparisons: who takes part, who is fastest where, what a broken fabric does to a plan."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import programs
import pytest
from graphs import machine, named

import forestcoll
from forestcoll.compile.plan_set.contest import NEVER, Contest
from forestcoll.compile.search import SURE
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.program.targets import MSCCL, RCCL
from forestcoll.schedule.forest import Forest
from forestcoll.solver import baselines
from forestcoll.study.comparison import competitors, outcome
from forestcoll.study.comparison.outcome import Comparison
from forestcoll.study.comparison.play import DEFAULT_RULES, compare, parse_sizes
from forestcoll.topology import Topology
from forestcoll.ui.report import comparison as report
from forestcoll.ui.report import facts
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Options

RING = machine("ring gpus=4")


@cache
def small() -> Comparison:
    return compare(RING, "allgather", sizes="1K,1M,64M", against=("rings", "tree", "multitree"))


def player(topology: Topology) -> competitors.Player:
    return competitors.Player(topology, DEFAULT_RULES, Options(), False)


def baseline(name: str, topology: Topology, collective: Collective) -> competitors.Theirs:
    graph = CapacityGraph.from_topology(topology)
    record = baselines.by_name(name)
    source = competitors.of_baseline(record, graph, collective, None, player(topology))
    assert isinstance(source, competitors.Theirs)
    return source


def test_baselines_have_the_messages_of_the_machine() -> None:
    """Their forests are called by other names than the machine, whose GPUs are AMD's."""
    topology = machine("mi300x")
    contest = baseline("rings", topology, Collective.ALLGATHER).contest
    number = [candidate.kind for candidate in contest.candidates].index(("fifo", "LL128"))
    program, forest = contest.program(number), contest.candidates[number].origin
    assert program is not None
    assert isinstance(forest, Forest)
    timings = [
        simulate.run(program, forest, 1 << 20, options=Options(runtime=runtime))
        for runtime in (None, RCCL, MSCCL)
    ]
    assert timings[0].time == timings[1].time != timings[2].time


def test_every_cell_is_there_and_within_the_bound() -> None:
    found = small()
    assert [e.name for e in found.entrants] == ["forestcoll", "rings", "tree", "multitree"]
    assert [e.name for e in found.present] == ["forestcoll", "rings", "multitree"]
    assert len(found.cells) == 3 * 3 * 2
    for cell in found.cells:
        assert 0 < cell.percent <= 100
        assert cell.algbw == pytest.approx(cell.size / cell.time / 1000)
        assert cell.busbw == pytest.approx(cell.algbw * 3 / 4)
        assert cell.busiest
    assert "tree is for allreduce, broadcast, reduce, not for allgather" in found.entrants[2].why


def test_much_data_reaches_what_theory_says() -> None:
    """Three quarters of the data over each of two links of 50 GB/s."""
    found = small()
    assert found.bound == pytest.approx(133.3333333)
    assert at(found, "forestcoll", 2**26, "fair").percent > 95


def test_speed_up_is_against_the_best_baseline() -> None:
    found = small()
    for rule in found.rules:
        for size in found.sizes:
            best = found.best_baseline(size, rule)
            mine, speedup = at(found, "forestcoll", size, rule), found.speedup(size, rule)
            assert best is not None
            assert best.time == min(
                c.time for c in found.cells if (c.size, c.rule) == (size, rule) and c is not mine
            )
            assert speedup == best.time / mine.time
            assert found.speedup(size, rule, best.name) == 1


def at(found: Comparison, *asked: Any) -> outcome.Cell:
    """A cell that is there."""
    cell = found.cell(*asked)
    assert cell is not None
    return cell


def cell(name: str, size: int, time: float) -> outcome.Cell:
    return outcome.Cell(name, "fair", size, time, size / time / 1000, 1.0, 1.0, "a plan")


def made(*cells: outcome.Cell) -> Comparison:
    names = dict.fromkeys(c.name for c in cells)
    kinds = {"forestcoll": "ours"}
    return Comparison(
        "machine",
        Collective.ALLREDUCE,
        8,
        small().bound,
        tuple(dict.fromkeys(c.size for c in cells)),
        ("fair",),
        tuple(outcome.Entrant(n, kinds.get(n, "baseline"), "") for n in names),  # type: ignore[arg-type]
        cells,
    )


def test_crossovers_lie_where_the_lines_cross() -> None:
    """10 us and 20 us at 1000 bytes, 40 us and 30 us at 3000: both take 25 us at 2000."""
    found = made(
        cell("forestcoll", 1000, 20.0),
        cell("ring", 1000, 10.0),
        cell("forestcoll", 3000, 30.0),
        cell("ring", 3000, 40.0),
    )
    leads = [(lead.name, lead.low, lead.high) for lead in found.leads("fair")]
    assert leads == [("ring", 1000, 2000), ("forestcoll", 2000, 3000)]


def test_of_equals_ours_leads() -> None:
    found = made(cell("forestcoll", 1000, 10.0), cell("ring", 1000, 10.0))
    assert [lead.name for lead in found.leads("fair")] == ["forestcoll"]


def document(found: Comparison) -> Any:
    return facts.as_json([report.heading(found), *report.body(found)])


def test_rows_csv_and_json_say_the_same() -> None:
    found = small()
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    summary = json.loads(json.dumps(document(found)))
    assert len(rows) == len(summary["rows"]) == len(found.cells)
    for row, other in zip(rows, summary["rows"], strict=True):
        assert float(row["time_us"]) == other["time_us"]
        assert row["schedule"] == other["schedule"]
    assert summary["schedules"][2]["refused"].startswith("tree is for")
    assert {row["links"] for row in summary["fastest"]} == {"fair", "fifo"}


def test_pandas_table() -> None:
    pytest.importorskip("pandas")
    table = small().to_pandas()
    assert list(table.columns[:4]) == ["schedule", "kind", "links", "size"]
    assert len(table) == len(small().cells)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [6.0, 12.0])
def test_labels_of_a_plot_do_not_overlap(dark: bool, width: float) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = small().plot(dark=dark, width=width)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.bbox
    for axes in figure.axes:
        assert axes.get_title(loc="left").startswith("Links ")
        labels = [t for t in axes.get_xticklabels() if t.get_text() and t.get_visible()]
        boxes = [t.get_window_extent(renderer) for t in labels]
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    assert figure.axes[2].get_xlabel() == "size (bytes)"
    assert figure.axes[0].get_ylabel() == "algbw (GB/s)"
    legend = figure.legends[0].get_window_extent(renderer)
    assert legend.x0 >= whole.x0
    assert legend.x1 <= whole.x1
    assert not any(legend.overlaps(a.get_tightbbox(renderer)) for a in figure.axes)


@pytest.mark.parametrize(("collective", "name"), [("alltoall", "ring"), ("allgather", "bruck2")])
def test_unknown_baselines_are_refused_before_anything_is_played(
    collective: str, name: str
) -> None:
    seen: list[Comparison] = []
    with pytest.raises(forestcoll.ForestCollError, match=name):
        compare(RING, collective, sizes="1M", against=(name,), seen=seen.append)
    assert seen == []


def test_the_old_plan_on_a_broken_fabric() -> None:
    """A ring of five that has lost a link: what took it goes the other way round."""
    broken = machine("ring gpus=5 -gpu0-gpu1")
    found = compare(
        machine("ring gpus=5"), "allgather", sizes="64M", against=("tree",), broken=broken
    )
    old, new = (
        {c.rule: c for c in found.cells if c.name == name} for name in ("old plan", "forestcoll")
    )
    # Detours cost the old plan's GPUs nothing: where links share, both are at the bound.
    assert all(99 < cell.percent <= 100 for cell in (*new.values(), old["fair"]))
    # Links in order serve what goes round after what does not.
    assert new["fifo"].time < 0.95 * old["fifo"].time
    assert found.name == broken.name
    assert [e.kind for e in found.entrants] == ["ours", "old", "baseline"]
    assert any("GPUs on it pass data on as switches do" in text for text in found.notes)


def test_an_old_plan_cannot_run_without_its_ranks() -> None:
    broken = machine("dgx-a100 -box0/gpu3")
    sound = machine("dgx-a100")
    found = compare(sound, "allgather", sizes="1M", against=(), broken=broken)
    assert found.entrants[1].why == "the fabric has lost ranks that the plan has"
    assert found.cell("old plan", 2**20, "fair") is None


def test_anybodys_plan_has_its_own_column(tmp_path: Path) -> None:
    """A ring in MSCCL's published dialect, as its tools write it: no names, no sizes."""
    path = tmp_path / "theirs.xml"
    path.write_text(published_ring())
    found = compare(RING, "allgather", sizes="64M", against=("ring",), files=[path])
    mine, ring = (at(found, name, 2**26, "fair") for name in ("theirs.xml", "ring"))
    assert found.entrants[-1].kind == "file"
    assert mine.time == pytest.approx(ring.time, rel=0.2)
    used = mine.algbw * 3 / 4  # a ring sends three quarters of the data over one of two links
    assert mine.use == f"1 channel: {used:.3g} of 100 GB/s a GPU"
    assert ring.use == ""


def published_ring(n: int = 4) -> str:
    """A ring's allgather in the dialect of MSCCL's own tools: no sizes, no operator."""
    text = programs.text_of("ring_allgather", f"n={n}")
    return re.sub(r' (min|max)Bytes="0"| redop="sum"', "", text)


def test_many_ranks_are_compared_by_their_trees_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forestcoll.verify.simulate.RANKS", 8)
    topology = machine("rail boxes=3 gpus=3 rails=3")
    found = compare(topology, "allgather", sizes="1G", against=("ring", "hierarchical"))
    assert "more than 8 ranks: trees are compared alone, without plans" in found.notes
    best, ring = (at(found, name, 2**30, "fair") for name in ("forestcoll", "ring"))
    assert best.plan == "trees alone"
    assert best.time < ring.time


def test_switches_add_for_a_library_at_every_size() -> None:
    """Seven GPUs: the plan serves multiples of seven, so the next one is played."""
    topology = machine("dgx-h100 -box0/gpu0")
    found = compare(topology, "allreduce", sizes="8M,7M", against=("in-switch",), quick=True)
    for rule in DEFAULT_RULES:
        less, more = (at(found, "in-switch", size << 20, rule) for size in (7, 8))
        assert more.plan == "mscclpp-json, NVLS"
        assert more.time == pytest.approx(less.time * 8 / 7, rel=0.1)


def test_sizes() -> None:
    for text, sizes in {
        "1K:64K": (1 << 10, 1 << 12, 1 << 14, 1 << 16),
        "1K:4K:2": (1 << 10, 1 << 11, 1 << 12),
        "1000:5000": (1000, 4000, 5000),
        "64k, 1MiB": (1 << 16, 1 << 20),
        "1G": (1 << 30,),
    }.items():
        assert parse_sizes(text) == sizes


def test_the_command_knows_all_baselines() -> None:
    from forestcoll.ui.cli.compare import BASELINES

    assert tuple(baselines.BASELINES) == BASELINES


def test_two_boxes_reach_the_known_ratio() -> None:
    """Two DGX A100: 346.67 GB/s against 213.33 of rings; two MI250 boxes: 354.13 at most."""
    rings = baselines.forests("rings", named("dgx-a100 boxes=2"), Collective.ALLGATHER)[0].algbw
    best = [
        forestcoll.optimum(machine(f"{name} boxes=2"), "allgather").algbw
        for name in ("dgx-a100", "mi250")
    ]
    assert [round(float(algbw), 2) for algbw in (*best, rings)] == [346.67, 354.13, 213.33]


@pytest.mark.parametrize(("gpus", "collective"), [(5, "allgather"), (4, "broadcast")])
def test_plans_that_are_left_out_are_not_the_fastest(
    gpus: int, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What links alone make too slow is not played, and would not have been taken."""
    calls: list[int] = []
    run_each = simulate.run_each
    monkeypatch.setattr(
        simulate, "run_each", lambda *a, **k: calls.append(a[2]) or run_each(*a, **k)
    )
    topology = machine(f"star gpus={gpus}")
    asked = {"sizes": "16K,16M,64M,256M,1G", "against": ("rings", "direct", "blink", "tree")}
    fast = compare(topology, collective, **asked)
    few = len(calls)
    calls.clear()
    monkeypatch.setattr(Contest, "least", lambda contest, i, size: 0.0)
    full = compare(topology, collective, **asked)
    assert few < len(calls)

    def slower(found: Comparison) -> dict[tuple[str, int], float]:
        cells = sorted(found.cells, key=lambda cell: cell.time)
        return {(cell.name, cell.size): cell.time for cell in cells}

    there = slower(full)
    for key, time in slower(fast).items():
        assert time <= there[key] * SURE**2


def test_no_plan_is_faster_than_its_links_alone() -> None:
    """What drops plans unseen: the least time of a forest bounds each of its plans' times."""
    topology = machine("star gpus=5")
    for name in ("rings", "double-tree", "halving-doubling", "direct"):
        contest = baseline(name, topology, Collective.ALLREDUCE).contest
        for size in (1 << 12, 1 << 20, 1 << 28):
            for i in range(len(contest.candidates)):
                time = max(contest.times(i, size))
                if time < NEVER:
                    assert time >= contest.least(i, size) * 0.9999


def test_our_rows_come_first_and_the_rest_one_by_one() -> None:
    asked = {"sizes": "1K,1M", "against": ("rings", "tree")}
    steps: list[Comparison] = []
    found = compare(RING, "allgather", seen=steps.append, **asked)
    known = [{(cell.name, cell.size) for cell in step.cells} for step in steps]
    assert known[0] == {("forestcoll", 1 << 10)}
    assert known[1] == {("forestcoll", 1 << 10), ("forestcoll", 1 << 20)}
    assert known[2] == known[1] | {("rings", 1 << 10)}
    assert all(earlier <= later for earlier, later in pairwise(known))
    assert all(step.partial and document(step)["partial"] for step in steps)
    assert not found.partial
    assert steps[-1].cells == found.cells


def test_a_quick_comparison_has_the_same_leaders() -> None:
    """Plans stand where a baseline may lead; else what its links allow, which is no less."""
    topology = machine("star gpus=4")
    asked = {"sizes": "4K,64M", "against": ("ring", "rings", "direct", "halving-doubling")}
    full = compare(topology, "allreduce", **asked)
    quick = compare(topology, "allreduce", quick=True, **asked)
    left = [cell for cell in quick.cells if not cell.plan]
    assert left
    assert any("quick: " in text for text in quick.notes)
    for cell in left:
        best = quick.best_baseline(cell.size, cell.rule)
        assert best is not None
        assert best.time <= cell.time <= at(full, cell.name, cell.size, cell.rule).time
    for size in quick.sizes:
        leaders = {one.best_baseline(size, "fair") for one in (quick, full)}
        assert len({leader and leader.name for leader in leaders}) == 1


def test_ours_in_a_comparison_is_what_the_set_has() -> None:
    """Plans for its sizes alone, not written; under no rule as far behind a range's as that is."""
    from forestcoll.compile import plan_set

    found = competitors.ours(RING, Collective.ALLREDUCE, None, (1 << 20,), [], None)
    made = plan_set.make(RING, "allreduce", 1 << 20, 1 << 20, points=(1 << 20,))
    programs = [entry.program for plans in made.plans for entry in plans.entries]
    assert [plan.program for plan in found.plans] == programs
    assert not any(plan.proven for plan in found.plans)
    whole = plan_set.make(RING, "allreduce", 1 << 19, 1 << 21)
    links = RING.latencies()
    for one, ranges in zip(made.plans, whole.plans, strict=True):
        (entry,) = one.entries
        assert (entry.low, entry.high, entry.text) == (1 << 20, 1 << 20, "")
        beside = next(e for e in ranges.entries if e.low <= 1 << 20 <= e.high)
        times = [
            simulate.band(e.program, e.origin or RING, 1 << 20, links=links)
            for e in (entry, beside)
        ]
        ratios = times[0].fair / times[1].fair, times[0].fifo / times[1].fifo
        assert max(ratios) * min(ratios) <= 1


def test_what_wins_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[str] = []
    monkeypatch.setattr(competitors, "verify", lambda program: proven.append(program.protocol))
    found = compare(RING, "allgather", sizes="1K,64M", against=("rings",))
    won = {(cell.name, cell.plan) for cell in found.cells}
    assert len(proven) == len(won)
