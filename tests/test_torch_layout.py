"""Plans of a layout's folder behind torch.distributed: each process group by its members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from torch_ranks import dist, ft, needs_gloo, run_ranks, torch

from forestcoll.common.errors import ForestCollError

pytestmark = needs_gloo

JOB = """format: forestcoll.layout/1
sizes: {tp: 2, dp: 2}
traffic:
  - {dim: tp, collective: allreduce, bytes: 4M, times: 2}
  - {dim: dp, collective: allreduce, bytes: 4M, with: "tp:allreduce"}
  - {dim: tp, collective: alltoall, bytes: 1M}
"""


def of_rank(rank: int, count: int) -> Any:
    """Small whole numbers, so that sums are exact."""
    return ((torch.arange(count) * 7 + rank * 5) % 11).float()


def two_kinds_at_once(rank: int, folder: Path) -> tuple[list[str], int, list[str]]:
    wrong = []
    tp = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    dp = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    with ft.install(folder) as used:
        for count in (1, 1000, 20_001):
            calls = []
            for group, members in (
                (tp, (rank // 2 * 2, rank // 2 * 2 + 1)),
                (dp, (rank % 2, rank % 2 + 2)),
            ):
                tensor = of_rank(rank, count)
                work = dist.all_reduce(tensor, group=group, async_op=True)
                calls.append((tensor, work, sum(of_rank(r, count) for r in members)))
            for tensor, work, expected in calls:
                work.wait()
                if not torch.equal(tensor, expected):
                    wrong.append(f"{count} elements")
        blocks, got = of_rank(rank, 2000), torch.empty(2000)
        dist.all_to_all_single(got, blocks, group=tp)
        both = [of_rank(r, 2000).chunk(2)[rank % 2] for r in (rank // 2 * 2, rank // 2 * 2 + 1)]
        if not torch.equal(got, torch.cat(both)):
            wrong.append("all-to-all")
        world = of_rank(rank, 10)
        dist.all_reduce(world)
        if not torch.equal(world, sum(of_rank(r, 10) for r in range(4))):
            wrong.append("world")
        refused = []
        for group in (tp, dist.group.WORLD):
            try:
                ft.install(folder, group)
            except ForestCollError as error:
                refused.append(str(error))
    return wrong, sum(used.used.values()), [reason for _, reason in used.fallbacks] + refused


def test_groups_of_a_layout_are_served_by_their_members(call: Run, tmp_path: Path) -> None:
    """Two kinds of groups at once, every element compared."""
    (tmp_path / "job.yaml").write_text(JOB)
    out = tmp_path / "placed"
    words = ("layout", str(tmp_path / "job.yaml"), "-t", "star", "--set", "gpus=4", "-o", str(out))
    words += ("--target", "msccl")
    assert call(*words)[0] == 0
    assert (out / "layout.svg").read_text().count("<rect") == 1 + 3 * 2 * 4
    for wrong, served, reasons in run_ranks(4, two_kinds_at_once, out):
        assert wrong == []
        assert served == 7
        assert reasons[0] == "another process group"
        assert reasons[1:] == ["a layout serves the groups that it has: leave group away"] * 2
    index = json.loads((out / "layout.json").read_text())
    for names in ("gpus", "default_gpus"):
        index[names].append("gpu4")
    (out / "layout.json").write_text(json.dumps(index))
    said = run_ranks(4, refusal, out)
    assert set(said) == {f"{out}/layout.json: places 5 ranks, and there are 4 processes"}


def refusal(rank: int, folder: Path) -> str:
    with pytest.raises(ForestCollError) as error:
        ft.install(folder)
    return str(error.value)
