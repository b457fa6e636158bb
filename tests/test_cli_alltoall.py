"""All-to-all on the command line: the optimum, its file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run, fine

TWO = ("-t", "dgx-a100", "--set", "boxes=2")


def test_optimum_says_what_limits_it(call: Run) -> None:
    out = fine(call("optimum", *TWO, "-c", "alltoall", "--without", "box0/gpu0-fabric"))
    assert "175/4 (43.75) GB/s" in out
    assert "(7 links of 25 GB/s)" in out
    assert "fabric" in out
    said = json.loads(fine(call("optimum", *TWO, "-c", "alltoall", "--json")))
    assert said["algbw"] == said["bound"] == "50"
    assert said["theta"] == "25/8"
    assert len(said["limits"]) == 1


def test_two_kinds_of_links_limit_it(call: Run) -> None:
    slow = ("--scale", "gpu0->gpu1=1/2")
    said = json.loads(fine(call("optimum", "-t", "ring", "-c", "alltoall", *slow, "--json")))
    assert len(said["limits"]) > 1
    assert all("% of the weight" in line for line in said["limits"])


def test_file_is_proven_and_not_overwritten(call: Run, tmp_path: Path) -> None:
    ask = ("optimum", *TWO, "-c", "alltoall", "-o", "out/")
    assert "out/dgx-a100-2.alltoall.flows.json" in fine(call(*ask))
    said = fine(call("verify", "out/dgx-a100-2.alltoall.flows.json"))
    assert "1 flow (the images of which are those of all 16)" in said
    assert "optimal: the bound (lengths of links, shortest ways recomputed) equals it" in said
    figures = json.loads(fine(call("verify", "out/", "--json")))[0]["figures"]
    assert (figures["algbw"], figures["optimal"], figures["catalogue"]) == ("50", True, True)
    code, _, err = call(*ask)
    assert code == 1
    assert "exists already; --force overwrites it" in err
    fine(call(*ask, "--force"))
    before = (tmp_path / "out/dgx-a100-2.alltoall.flows.json").read_text()
    assert fine(call("optimum", *TWO, "-c", "alltoall", "-o", "-")) == before


def test_wrong_file(call: Run, tmp_path: Path) -> None:
    fine(call("optimum", *TWO, "-c", "alltoall", "-o", "x.json"))
    text = (tmp_path / "x.json").read_text().replace('"theta": "25/8"', '"theta": "25/4"')
    (tmp_path / "x.json").write_text(text)
    code, _, err = call("verify", "x.json")
    assert code == 1
    assert "x.json: the flow of box0/gpu0 leaves" in err
    code, _, err = call("verify", "x.json", "--target", "rccl")
    assert code == 1


def test_routes(call: Run) -> None:
    ask = ("synthesize", *TWO, "-c", "alltoall", "--without", "box0/gpu0-fabric")
    out = fine(call(*ask, "-o", "out/", "--format", "routes"))
    assert "99.37 %" in out
    assert "paths; at most 2 hops from GPU to GPU" in out
    said = fine(call("verify", "out/"))
    assert "paths give every pair 5 units" in said
    assert "bound 175/4 = 43.750 GB/s holds: at least 99.37 %" in said
    told = json.loads(fine(call(*ask, "--units", "7", "-o", "seven/", "--json")))
    assert (told["algbw"], told["optimal"], told["units"]) == ("175/4", True, 7)
    few = json.loads(fine(call(*ask, "--min-percent", "90", "-o", "few/", "--json")))
    assert few["units"] == 1
    code, out, err = call(*ask, "--units", "7", "-o", "-", "--format", "routes")
    assert code == 0
    assert json.loads(out)["routes"]["units"] == 7
    assert "of optimal" in err


def test_plans(call: Run, tmp_path: Path) -> None:
    """Routes and both formats; each is right, fits its runtimes, and moves real bytes."""
    out = fine(call("synthesize", "-t", "dgx1-v100", "-c", "alltoall", "-o", "out/"))
    assert "8 units" in out
    assert "serves multiples of 512 bytes of float32: every power of two from 512 bytes on" in out
    for target, end in (
        ("rccl", ".msccl.xml"),
        ("msccl", ".msccl.xml"),
        ("mscclpp", ".mscclpp.json"),
    ):
        plan = f"out/dgx1-v100-1.alltoall{end}"
        assert f"target {target}: fits" in fine(call("verify", "--target", target, plan))
        code, said, _ = call("run", plan, "-b", "64K", "-e", "64K")
        assert code == 0
        assert "# Out of bounds values : 0 OK" in said
    assert "MPP-UNHOOKED" in fine(call("verify", "out/dgx1-v100-1.alltoall.mscclpp.json"))
    said = fine(
        call("deploy", "out/dgx1-v100-1.alltoall.mscclpp.json", "--runtime", "mscclpp", "-o", "d/")
    )
    assert "alltoall is not hooked by the NCCL shim: call it through the Executor" in said


def test_spread_routes(call: Run) -> None:
    two = ("-t", "dgx-h100", "--set", "boxes=2")
    ask = ("synthesize", *two, "-c", "alltoall", "--spread")
    out = fine(call(*ask, "--format", "routes", "--format", "msccl-xml", "-o", "out/"))
    assert "8 units" in out
    assert "of optimal  100 %" in out
    assert "blocks of any size: at most 11/9 times the best time, whatever the sizes" in out
    assert "optimal: the bound" in fine(call("verify", "out/dgx-h100-2.alltoall.routes.json"))
    code, _, err = call("synthesize", "-t", "mi250", "-c", "alltoall", "--spread", "-o", "x/")
    assert code == 1
    assert "spread routes are for two or more boxes" in err
    code, _, err = call(*ask, "--units", "2", "-o", "x/")
    assert code == 2
    assert "--spread has as many units as a box has GPUs" in err


def test_plans_that_do_not_fit(call: Run, tmp_path: Path) -> None:
    """71 peers are too many for RCCL: said with the figure; all else is there all the same."""
    ask = ("synthesize", "-t", "dgx-a100", "--set", "boxes=9", "-c", "alltoall")
    code, out, err = call(*ask, "-o", "out/")
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert "note no msccl-xml: alltoall on dgx-a100-9: rank 0 (box0/gpu0) needs" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dgx-a100-9.alltoall.mscclpp.json",
        "dgx-a100-9.alltoall.routes.json",
    ]
    code, _, err = call(*ask, "-o", "more/", "--target", "rccl")
    assert code == 1
    assert "rccl holds 64" in err
    assert "--format routes writes the paths without any" in err
    assert not (tmp_path / "more").exists()


def test_groups_at_once(call: Run) -> None:
    out = fine(call("optimum", *TWO, "-c", "alltoall", "--groups", "box*/gpu[0-3];box*/gpu[4-7]"))
    assert "2 groups of 8 ranks at once" in out
    assert "50 GB/s" in out


def test_matrix(call: Run, tmp_path: Path) -> None:
    rows = [" ".join("0" if i == j else "1000000" for j in range(8)) for i in range(8)]
    (tmp_path / "m.txt").write_text("\n".join(rows))
    ask = ("optimum", "-t", "dgx-a100", "-c", "alltoallv", "--matrix", "m.txt")
    assert "23.333 us for 56000000 bytes" in fine(call(*ask))
    assert json.loads(fine(call(*ask, "--json")))["nanoseconds"] == "70000/3"
    fine(call(*ask, "-o", "v.json"))
    assert "alltoallv on dgx-a100-1: 8 ranks" in fine(call("verify", "v.json"))


def test_simulated_times_and_too_few_thread_blocks_are_told(call: Run) -> None:
    code, out, err = call("synthesize", "-t", "mi300x", "-c", "alltoall", "-o", "out/", "--json")
    assert code == 0, err
    plans = json.loads(out)["plans"]
    assert plans["msccl-xml"]["simulated"]["fair"]["algbw"] == pytest.approx(512, rel=0.01)
    assert plans["mscclpp-json"]["simulated"]["in_order"]["algbw"] <= 512
    code, out, err = call("synthesize", "-t", "star", "--set", "gpus=24", "--set", "bandwidth=2000",
                          "-c", "alltoall", "--target", "rccl", "-o", "out/")  # fmt: skip
    assert code == 0, err
    assert " GB/s in order, " in out
    said = " ".join(out.split())
    assert "2 of the 4 thread blocks that 86.96 GB/s between two ranks take" in said
    assert "with 4 rank 0 (gpu0) needs 93 thread blocks, rccl holds 64" in said
