"""What the plans in schedules/ reach, simulated at 1 GB: the worse of fair and fifo links."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import script
from graphs import named
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.lower import lower, usage
from forestcoll.program import Collective
from forestcoll.program.targets import RCCL
from forestcoll.solver import baselines

times = script("times")


@pytest.mark.parametrize(
    "plan",
    [
        *(
            f"{machine}/{collective}.msccl.xml"
            for machine in ("dgx-a100-1", "dgx-a100-2", "dgx1-v100-1")
            for collective in ("allgather", "reduce-scatter", "allreduce")
        ),
        "dgx-a100-2/broadcast.msccl.xml",
        "dgx1-v100-1/broadcast.msccl.xml",
        "dgx1-v100-1/reduce.msccl.xml",
        "mi250-1/allgather.msccl.xml",
        "mi250-1/allreduce.msccl.xml",
        "mi250-1/reduce-scatter.msccl.xml",
        "mi250-1/reduce-scatter.mscclpp.json",
        "mi300x-1/allgather.mscclpp.json",
    ],
)
def test_a_plan_keeps_the_links_busy(plan: str) -> None:
    collective = Path(plan).name.split(".")[0]
    assert min(times.percent(SCHEDULES / plan, 10**9)) >= times.bars_of(collective)[1]


def test_a_reduce_takes_no_more_thread_blocks_than_make_it_faster() -> None:
    """Seven trees of unequal shares, in 16 equal parts each, were 112 thread blocks at 93.8 %."""
    plan = SCHEDULES / "dgx-h100-1" / "reduce.mscclpp.json"
    assert usage(plans.read_plan(plan)).thread_blocks <= 96
    assert min(times.percent(plan, 10**9)) > 98
    assert min(times.percent(plan, 64 * 10**6)) > 86


def test_the_table_takes_up_what_is_stored_and_measures_the_rest(tmp_path: Path) -> None:
    store = tmp_path / "times.jsonl"
    machine = ("mi300x", (), "")
    known, fresh = (
        times.Case(*machine, collective, "rccl")
        for collective in (Collective.BROADCAST, Collective.ALLGATHER)
    )
    found = times.Found(known.key, 448.0, (91.0, 80.0), (92.0, 90.0), 39, 3, 5, 1.0, optimum=448.0)
    older = {"key": fresh.key, "algbw": 1.0, "refused": ""}  # the form that had no optimum
    lines = [{n: getattr(found, n) for n in times.Found.__slots__}, older]
    store.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = times.collect([known, fresh], store, 1)
    assert rows[known.key].worse == (91.0, 80.0)
    assert times.stored(store) == {
        key: times.Found(**{**vars_of(row), "fair": [*row.fair], "fifo": [*row.fifo]})
        for key, row in rows.items()
    }
    lines = times.table([known, fresh], rows).splitlines()
    assert lines[2] == "| mi300x | broadcast | 91.0, **80.0** (39/3) |"
    assert lines[3].startswith("| mi300x | allgather | 100.0, 100.0 (")


def vars_of(row: Any) -> dict[str, object]:
    return {name: getattr(row, name) for name in times.Found.__slots__}


def test_the_table_says_where_no_plan_fits() -> None:
    assert times.cell(times.Found("x", refused="too much"), "allgather") == "-"


def test_the_plans_that_are_stored_have_a_row_each(tmp_path: Path) -> None:
    folder = tmp_path / "schedules" / "mi300x-1"
    folder.mkdir(parents=True)
    for file in (SCHEDULES / "mi300x-1").iterdir():
        (folder / file.name).symlink_to(file)
    lines = times.table(*times.of_schedules(tmp_path)).splitlines()
    assert lines[0] == "| machine | collective | rccl | mscclpp |"
    assert [line.split(" | ")[1] for line in lines[2:]] == list(map(str, times.BY_TREES))
    assert lines[2].startswith("| mi300x-1 | allgather | 100.0, 100.0 (")


def test_rings_below_the_optimum_count_by_the_optimum() -> None:
    """All that its own links allow is far less than what the best trees have."""
    graph = named("dgx-a100 boxes=2")
    forest = baselines.forests("rings", graph, Collective.ALLGATHER)[0]
    best = times.best_of(forest)
    assert (forest.plain_algbw, best) == (Fraction(640, 3), float(Fraction(1040, 3)))
    program = lower(forest, RCCL)
    fair, fifo = times.shares(program, forest, 10**9, best)
    assert 60 < fifo <= fair + 1e-9 <= float(100 * forest.plain_algbw) / best + 1e-6
    slow = times.Found("x", float(forest.plain_algbw), (fair,) * 2, (fifo,) * 2, optimum=best)
    assert times.reason(slow, "rccl") == (
        "rings or fewer trees, 61.5 % of the optimum: plans of it are slower"
    )


def test_slow_plans_are_listed_with_what_keeps_them_slow() -> None:
    machine = ("mi250", (), "")
    cases = [
        times.Case(*machine, Collective.REDUCE, target) for target in ("rccl", "mscclpp", "msccl")
    ]
    figures = (200.0, (91.0, 80.0), (92.0, 90.0), 39, 3)
    found = {
        cases[0].key: times.Found(cases[0].key, *figures, 64, 1.0, optimum=200.0),
        cases[1].key: times.Found(cases[1].key, 200.0, (91.0, 86.0), (92.0, 90.0), 39, 3, 5, 1.0),
        cases[2].key: times.Found(cases[2].key, refused="too many chunks"),
    }
    lines = times.exceptions(cases, found).splitlines()
    assert lines[0] == "2 of 3 plans stay below:"
    assert lines[4:] == [
        "| mi250: reduce, rccl | 91.0 %, 182.0 GB/s | 80.0 %, 160.0 GB/s | "
        "lists have 64 of 64 steps: no room for shorter chunks |",
        "| mi250: reduce, msccl | - | - | too many chunks |",
    ]
    assert times.reason(times.Found("x", *figures, 20), "rccl").endswith("more than 512")
    slow = times.Found("x", *figures, 20, protocol="LL128")
    assert (
        times.reason(slow, "rccl") == "LL128 has 93.75 % data, the rest flags; trees fill and drain"
    )
    slow = times.Found("mi250 boxes=2: reduce, rccl", *figures, 20, protocol="LL128")
    assert times.reason(slow, "rccl").startswith("LL128 has 87.50 % data")
    assert "slices of 39 thread blocks" in times.reason(times.Found("x", *figures, 5), "mscclpp")


def test_tables_go_to_their_place_in_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y --><!-- /y -->\n")
    times.put(page, "x", "new")
    assert page.read_text() == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n<!-- y --><!-- /y -->\n"
