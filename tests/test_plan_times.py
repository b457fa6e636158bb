"""What the plans in schedules/ reach, simulated at 1 GB: the worse of fair and fifo links."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "benchmarks"))

import times

SCHEDULES = Path(__file__).parents[1] / "schedules"
LEAST = {"allgather": 95, "reduce-scatter": 92, "allreduce": 90, "broadcast": 90, "reduce": 90}
"""Percent of the links' algbw."""


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
        "mi250-1/reduce-scatter.mscclpp.json",
        "mi300x-1/allgather.mscclpp.json",
    ],
)
def test_a_plan_keeps_the_links_busy(plan: str) -> None:
    collective = Path(plan).name.split(".")[0]
    assert min(times.percent(SCHEDULES / plan, 10**9)) >= LEAST[collective]


def test_the_table_has_a_row_for_each_stored_schedule(tmp_path: Path) -> None:
    folder = tmp_path / "schedules" / "mi300x-1"
    folder.mkdir(parents=True)
    for file in (SCHEDULES / "mi300x-1").iterdir():
        (folder / file.name).symlink_to(file)
    rows = times.table(tmp_path).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == list(LEAST)
    assert rows[0].startswith("| mi300x-1 | allgather | 100.0 | 100.0 | ")
