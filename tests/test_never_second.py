"""No baseline is faster than our set: twenty cells of `scripts/bench --never-second`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command_line import script
from graphs import machine

from forestcoll.program import Collective
from forestcoll.study.comparison.play import compare, parse_sizes

never_second = script("never_second")
SIZES = parse_sizes("4K:256M:16")


@pytest.mark.parametrize(
    ("name", "collective"),
    [("dgx-a100", Collective.BROADCAST), ("dgx1-v100", Collective.ALLGATHER)],
)
def test_no_baseline_is_faster(name: str, collective: Collective) -> None:
    """Without others' forests among its candidates the set of each lost cells of these."""
    row = never_second.measure(machine(name), collective, SIZES)
    assert row.cells == 2 * len(SIZES) == 10
    assert row.lost == ()


def test_a_lost_cell_is_told() -> None:
    """With times of ours twice as long; links alone are let be 5 % faster."""
    right = compare(machine("star gpus=4"), "alltoall", sizes="1M", quick=True)
    slow = [replace(c, time=2 * c.time) if c.name == "forestcoll" else c for c in right.cells]
    lost = list(never_second.lost_cells(replace(right, cells=tuple(slow))))
    assert [(cell.size, cell.rule) for cell in lost] == [(1 << 20, "fair"), (1 << 20, "fifo")]
    assert all(cell.times >= cell.least > 1.5 for cell in lost)
    for times, count in ((1.04, 0), (1.06, 2)):
        bare = [
            replace(c, name="direct-ecmp", plan="links alone", time=c.time / times)
            for c in right.cells
            if c.name == "forestcoll"
        ]
        rest = [c for c in right.cells if c.name != "direct-ecmp"]
        beside = replace(right, cells=(*rest, *bare))
        assert len(list(never_second.lost_cells(beside))) == count
    ours, theirs = {"fair": 2.0, "fifo": 2.2}, {"fair": 2.4, "fifo": 2.0}
    cells = [replace(c, time=(ours if c.name == "forestcoll" else theirs)[c.rule])
             for c in right.cells if c.name in ("forestcoll", "direct")]  # fmt: skip
    (one,) = never_second.lost_cells(replace(right, cells=tuple(cells)))
    assert (one.rule, one.by, one.times, one.least) == ("fifo", "direct", 1.1, 0.833)
    assert "| 1.10 times as long | 0.83 |" in never_second.table(
        [never_second.Row("star-4", "alltoall", 2, (one,), 0.0)]
    )
    row = never_second.Row("star-4", "alltoall", 2, tuple(lost), 0.0)
    assert "| star-4 | 2 of 2 |" in never_second.table([row])
    assert "2 of 2 cells are lost:" in never_second.table([row])
