"""The command line's options for other problems: links down, parts that differ, groups at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run, fine

from forestcoll import plans
from forestcoll.compile import together
from forestcoll.schedule import forest_file

TWO = ("-t", "dgx-a100", "--set", "boxes=2")


def test_shares_give_a_forest(call: Run, tmp_path: Path) -> None:
    shares = "*=1,box0/gpu0=5,box1/gpu*=0"
    said = fine(
        call(
            *("synthesize", *TWO, "-c", "allgather", "--shares", shares),
            *("--format", "forest", "-o", "out/"),
        )
    )
    assert "16 ranks with parts of 0 to 5" in said
    assert "2 per unit of a part" in said
    (file,) = (tmp_path / "out").iterdir()
    forest = forest_file.load(file)
    assert forest.graph.shares == (5, *[1] * 7, *[0] * 8)
    assert "optimal: the bound (cut) equals it" in fine(call("verify", str(file)))


BOX = ("-t", "dgx-h100", "-c", "allreduce", "--target", "msccl")


def blocks(path: Path) -> int:
    """Thread blocks of the fullest rank of a plan."""
    program = plans.read_plan(path)
    return max(len(rank.thread_blocks) for rank in program.ranks)


def test_plans_of_groups_keep_their_links_busy(call: Run, tmp_path: Path) -> None:
    halves = ("--groups", "box0/gpu[0-1];box0/gpu[2-3]", "--format", "msccl-xml")
    fine(call("synthesize", *BOX, *halves, "-o", "auto/"))
    fine(call("synthesize", *BOX, *halves, "--instances", "1", "-o", "one/"))
    for g in range(2):
        name = f"dgx-h100-1-group{g}.allreduce.msccl.xml"
        assert blocks(tmp_path / "auto" / name) > blocks(tmp_path / "one" / name)
        assert fine(call("verify", "--no-simulate", f"auto/{name}")).count(": ok\n") == 1
    code, _, err = call("synthesize", *BOX, *halves, "--instances", "1024", "-o", "many/")
    assert code == 1
    assert "steps" in err


def test_groups_of_a_gpu_share_its_multiprocessors(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both plans of a GPU run at the same time, and all thread blocks of both must be resident."""
    monkeypatch.setattr(together, "sms_of", lambda name: 24)
    alone = ("--groups", "box0/gpu[0-3];box0/gpu[4-7]")
    both = ("--groups", "box0/gpu[0-3];box0/gpu[0-3]")
    fine(call("synthesize", *BOX, *alone, "-o", "alone/"))
    fine(call("synthesize", *BOX, *both, "-o", "both/"))
    most = [
        max(blocks(file) for file in (tmp_path / name).glob("*.xml")) for name in ("alone", "both")
    ]
    assert 12 < most[0] <= 24
    assert most[1] <= 12


def test_flows_that_are_wrong(call: Run, tmp_path: Path) -> None:
    fine(call("optimum", *TWO, "-c", "alltoall", "-o", "x.json"))
    text = (tmp_path / "x.json").read_text().replace('"theta": "25/8"', '"theta": "25/4"')
    (tmp_path / "x.json").write_text(text)
    code, _, err = call("verify", "x.json")
    assert code == 1
    assert "x.json: the flow of box0/gpu0 leaves" in err
    code, _, err = call("verify", "x.json", "--target", "rccl")
    assert code == 1
