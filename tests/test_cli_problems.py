"""The command line's options for other problems: links down, parts that differ, groups at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run, fine

from forestcoll import plans
from forestcoll.compile import together
from forestcoll.schedule import certificate, forest_file
from forestcoll.study.predict import NO_LATENCIES

TWO = ("-t", "dgx-a100", "--set", "boxes=2")


def test_without_and_scale_change_what_is_solved(call: Run) -> None:
    changes = ("--without=box0/gpu0-fabric", "--scale=box1/gpu3<->fabric=0.5")
    whole = json.loads(fine(call("optimum", *TWO, "-c", "allgather", "--json")))
    less = json.loads(fine(call("optimum", *TWO, "-c", "allgather", *changes, "--json")))
    assert whole["algbw"] == "1040/3"
    # gpu0 takes in fifteen of sixteen parts over NVLink alone
    assert less["algbw"] == "320"
    assert less["topology"].startswith("dgx-a100-2-without-1-scaled-1-")


def test_files_of_an_edited_topology_have_its_name(call: Run, tmp_path: Path) -> None:
    fine(
        call(
            *("synthesize", *TWO, "-c", "allgather", "--without", "box0/gpu0->fabric"),
            *("--format", "forest", "-o", "out/"),
        )
    )
    (file,) = (tmp_path / "out").iterdir()
    assert file.name.startswith("dgx-a100-2-without-1-")
    forest = forest_file.load(file)
    assert file.name == f"{forest.name}.allgather.forest.json"
    algbw, bound = certificate.check(forest)
    assert algbw == bound == 345


def test_expand_writes_the_edited_topology(call: Run) -> None:
    text = fine(call("topology", "expand", "ring", "--set", "gpus=3", "--scale", "gpu0->gpu1=1/3"))
    assert 'bandwidth: "50/3"' in text
    assert "gpu2" not in fine(
        call("topology", "expand", "ring", "--set", "gpus=3", "--without", "gpu2")
    )


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


GROUPS = ("--groups", "box0/*;box1/*")


def test_groups_at_once(call: Run, tmp_path: Path) -> None:
    said = fine(call("optimum", *TWO, "-c", "allgather", *GROUPS))
    assert "2600/7 (371.429) GB/s in every group" in said
    found = json.loads(fine(call("optimum", *TWO, "-c", "broadcast", *GROUPS, "--json")))
    assert (found["algbw"], found["optimal"], found["alone"]) == ("325", True, ["325", "325"])
    assert [len(group) for group in found["groups"]] == [8, 8]
    said = fine(call("synthesize", *TWO, "-c", "allgather", *GROUPS, "-o", "out/"))
    assert "7 files in out" in said
    files = sorted(str(path) for path in (tmp_path / "out").iterdir())
    assert len(files) == 7
    code, out, err = call("verify", *files)
    assert (code, out.count(": ok\n")) == (0, 7)
    assert err == f"forestcoll: note: {NO_LATENCIES}\n"  # once: no machine has a group's name
    shown = json.loads(fine(call("verify", "out/dgx-a100-2.allgather.groups.json", "--json")))
    assert shown[0]["figures"]["optimal"] is True
    code, _, err = call("synthesize", *TWO, "-c", "allgather", *GROUPS, "-o", "out/")
    assert code == 1
    assert "exists already" in err
    again = call("synthesize", *TWO, "-c", "allgather", *GROUPS, "-o", "out/", "--force", "--json")
    assert len(json.loads(fine(again))["files"]) == 7


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
