"""Trees and rings for stock libraries: deployed, and read out of the libraries' logs."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from command_line import Finished, finished
from stored_schedules import SCHEDULES

from forestcoll.execute.deploy import stock
from forestcoll.ui.cli import main

Tree = dict[int, list[int]]
TREES: list[Tree] = [{0: [1, 2], 1: [3], 2: [], 3: []}, {2: [3], 3: [0], 0: [1], 1: []}]
ENV = "export RCCL_TREES='(0(1(3))(2))|(2(3(0(1))))'\n"
RINGS = [[[0, 1, 2], [3, 4, 5]], [[2, 0, 1], [5, 3, 4]]]
"""Channel -> box -> ranks."""


def run(*words: str | Path) -> tuple[int, str]:
    """(exit code, what is printed) of a command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, words)])
    return code, out.getvalue() + err.getvalue()


def graph_text(box: int, twice: bool = False) -> str:
    """A file in the library's format, by hand."""
    channels = []
    for c, ring in enumerate(RINGS):
        ranks = [ring[box][0], *ring[box][:-1]] if twice else ring[box]
        gpus = "".join(f'<gpu dev="{rank % 3}" rank="{rank}"/>' for rank in ranks)
        channels.append(f'<channel><net dev="{c}"/>{gpus}<net dev="{c}"/></channel>')
    said = 'crossnic="0" speedintra="48" speedinter="48" samechannels="0" typeintra="NVL"'
    head = f'<graph id="0" pattern="4" nchannels="{len(RINGS)}" {said} typeinter="PXN">'
    return f'<graphs version="1">{head}{"".join(channels)}</graph></graphs>'


def line_of(rank: int, text: str) -> str:
    return f"[{rank}]: node7:41{rank}:42{rank} [{rank}] NCCL INFO {text}"


def tree_log(trees: list[Tree], channels: int, rest: str = "") -> list[str]:
    """As RCCL prints them; NCCL leaves out the `rest`."""
    lines = []
    for rank in range(4):
        parts = []
        for c in range(channels):
            tree = trees[c % len(trees)]
            children = [*tree[rank], -1, -1, -1][:3]
            parent = next((one for one, below in tree.items() if rank in below), -1)
            parts.append(f" [{c}] {'/'.join(map(str, children))}->{rank}->{parent}")
        lines.append(line_of(rank, f"Trees{''.join(parts)}{rest}"))
    return lines


def ring_log(channels: int) -> list[str]:
    """As NCCL prints them with NCCL_DEBUG_SUBSYS=GRAPH."""
    lines = []
    for c in range(channels):
        ring = [rank for box in RINGS[c % 2] for rank in box]
        for place, rank in enumerate(ring):
            before, after = ring[place - 1], ring[(place + 1) % 6]
            lines.append(line_of(rank, f"Ring {c:02d} : {before} -> {rank} -> {after}"))
    return lines


def told_of_trees(lines: list[str]) -> tuple[bool, list[str]]:
    return stock.compare(stock.read([("t.env", ENV)]), "\n".join(lines))


def told_of_rings(lines: list[str]) -> tuple[bool, list[str]]:
    given = stock.read([("b.xml", graph_text(1)), ("a.xml", graph_text(0))])
    return stock.compare(given, "\n".join(lines))


@pytest.mark.parametrize("rest", ["", " comm 0x55d0 nRanks 04 busId c1000"])
def test_trees_in_use(rest: str) -> None:
    lines = [*tree_log(TREES, 4, rest), "torn [3] 1/2", line_of(0, "Trees"), "x" * 20_000]
    random.Random(1).shuffle(lines)
    assert told_of_trees(lines) == (True, ["trees in use: 4 channels at 4 ranks"])
    turned = [{rank: below[::-1] for rank, below in tree.items()} for tree in TREES]
    assert told_of_trees(tree_log(turned, 2))[0]  # children in any order


def test_the_rank_that_has_another_tree_is_named() -> None:
    other = {0: [1, 2], 1: [], 2: [3], 3: []}
    ok, told = told_of_trees(tree_log([other, TREES[1]], 2))
    assert not ok
    assert told == [
        "rank 1: channel 0 is -1->1->0, not 3->1->0",
        "rank 2: channel 0 is 3->2->0, not -1->2->0",
        "rank 3: channel 0 is -1->3->2, not -1->3->1",
    ]


def test_a_rank_that_says_nothing_and_channels_that_do_not_share_alike() -> None:
    hint = "no line about its trees (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH)"
    assert told_of_trees(tree_log(TREES, 2)[:3]) == (False, [f"rank 3: {hint}"])
    assert told_of_trees(["nothing"]) == (False, [f"rank 0: {hint}"])
    ok, told = told_of_trees(tree_log(TREES, 3))
    assert (ok, told) == (False, ["3 channels over 2 trees: shares are not equal"])


def test_other_communicators_do_not_count() -> None:
    """One of two ranks, a later one of four by other trees, and one of more ranks."""
    lines = [line_of(1, "Trees [0] -1/-1/-1->1->0 comm 0x1 nRanks 02 busId 1")]
    lines += tree_log(TREES, 2, " comm 0x2 nRanks 04 busId 1")
    lines += tree_log([{0: [1], 1: [2], 2: [3], 3: []}], 1, " comm 0x3 nRanks 04 busId 1")
    assert told_of_trees(lines)[0]
    assert told_of_trees([*lines, line_of(4, "Trees [0] -1/-1/-1->4->0")])[0]


def test_rings_in_use() -> None:
    lines = ring_log(4)
    random.Random(1).shuffle(lines)
    # channels of a thread come in order
    lines.sort(key=lambda line: int(line.split("Ring ")[1][:2]))
    assert told_of_rings(lines) == (True, ["rings in use: 4 channels at 6 ranks"])
    swapped = [line.replace("1 -> 2 -> 3", "1 -> 2 -> 5") for line in lines]
    assert told_of_rings(swapped) == (
        False,
        ["rank 2: channel 0 is 1->2->5, not 1->2->3"],
    )


def deployed(folder: Path, runtime: str, *files: Path) -> None:
    code, text = run("deploy", *files, "--runtime", runtime, "-o", folder)
    assert code == 0, text


def start(folder: Path, *command: str | Path) -> Finished:
    return finished("bash", folder / "run.sh", *command)


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    folder = tmp_path / "graphs"
    folder.mkdir()
    for box in range(2):
        (folder / f"m.{box}.nccl-graph.xml").write_text(graph_text(box))
    (folder / "m.nccl-graph.env").write_text("export NCCL_CROSS_NIC=0\n")
    return folder


def test_trees_are_deployed_and_proven_by_the_log(tmp_path: Path) -> None:
    source, folder = tmp_path / "t.env", tmp_path / "d"
    source.write_text(ENV + 'export EVIL="$(touch evil)"\n')
    deployed(folder, "rccl", source)
    document = json.loads((folder / "deploy.json").read_text())
    assert (document["ranks"], document["nodes"], document["check"]) == (4, 1, "check_nccl.py")
    assert document["plans"][0]["torch"] == "all_reduce"
    told = start(folder, "env").stdout
    assert "RCCL_TREES=(0(1(3))(2))|(2(3(0(1))))\n" in told
    assert "NCCL_MIN_NCHANNELS=32\n" in told
    assert "EVIL" not in told  # of a file only what is known is taken over
    log = tmp_path / "log"
    log.write_text("\n".join(tree_log(TREES, 32)))
    good = start(folder, "cat", log)
    assert (good.returncode, good.stderr) == (0, "")
    assert "used: trees in use: 32 channels at 4 ranks" in good.stdout
    log.write_text("\n".join(tree_log(TREES[::-1], 32)))
    bad = start(folder, "cat", log)
    assert bad.returncode == 3
    assert "NOT USED: rank 0: channel 0 is 1->0->3, not 1/2->0->-1" in bad.stderr


def test_rings_are_deployed_for_both_libraries(graphs: Path, tmp_path: Path) -> None:
    for runtime in ("nccl", "rccl"):
        folder = tmp_path / runtime
        deployed(folder, runtime, graphs)
        assert sorted(path.name for path in (folder / "plans").iterdir()) == [
            "0.nccl-graph.xml",
            "1.nccl-graph.xml",
        ]
        log = tmp_path / "log"
        log.write_text("\n".join(line for line in ring_log(4) if "[0]" in line or "[1]" in line))
        some = start(folder, "cat", log)  # of three ranks that this node has
        assert some.returncode == 3
        assert "NOT USED: rank 2: no line about its rings" in some.stderr
        log.write_text("\n".join(line for line in ring_log(4) if line[1] in "012"))
        assert start(folder, "cat", log).returncode == 0
    line = f"source {tmp_path}/nccl/env.sh; echo $NCCL_GRAPH_FILE"
    told = finished("bash", "-c", line, env={"SLURM_NODEID": "1", "PATH": "/usr/bin:/bin"})
    assert told.stdout.strip() == str(tmp_path / "nccl" / "plans" / "1.nccl-graph.xml")


def test_verify_reads_logs(graphs: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(ring_log(2)))
    files = sorted(graphs.glob("*.xml"))
    code, text = run("verify", *files, "--log", log)
    assert code == 0, text
    assert "rings in use: 2 channels at 6 ranks" in text
    code, text = run("verify", "--json", files[0], "--log", log)
    assert code == 1
    entry = json.loads(text[: text.rindex("]") + 1])[-1]
    assert (entry["kind"], entry["ok"]) == ("log", False)
    assert entry["told"][0] == "rank 0: channel 0 is 5->0->1, not 2->0->1"


def spoil(graphs: Path, change: Callable[[str], str]) -> Path:
    file = graphs / "m.1.nccl-graph.xml"
    file.write_text(change(file.read_text()))
    return graphs


def test_what_does_not_fit_together_is_refused(graphs: Path, tmp_path: Path) -> None:
    trees = tmp_path / "t.env"
    trees.write_text(ENV)
    plan = tmp_path / "p.msccl.xml"
    plan.write_text("<algo/>")
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        ((trees, "--runtime", "nccl"), "RCCL_TREES is for a stock library: --runtime rccl"),
        ((trees, "--runtime", "torch"), "RCCL_TREES is for a stock library: --runtime rccl"),
        ((graphs, "--runtime", "msccl"), "is for a stock library: --runtime nccl or rccl"),
        ((plan, "--runtime", "nccl"), "stock NCCL runs no plans"),
        (
            (plan, graphs, "--runtime", "rccl"),
            "p.msccl.xml: is not for a stock library",
        ),
        ((graphs, trees, "--runtime", "rccl"), "give one file of trees, or files of rings alone"),
        ((tmp_path / "none.xml", "--runtime", "nccl"), "none.xml: cannot be read: No such file"),
        ((graphs / "m.1.nccl-graph.xml", "--runtime", "nccl"), "every rank from 0 on once"),
    ]
    for words, said in cases:
        code, text = run("deploy", *words)
        assert (code, said in text) == (1, True), text
    code, text = run("deploy", spoil(graphs, lambda _: graph_text(1, True)), "--runtime", "nccl")
    assert (code, "GRAPH-TWICE" in text) == (1, True), text


def test_a_log_is_for_files_of_stock_libraries(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    plan = SCHEDULES / "mi250-1" / "allgather.forest.json"
    code, text = run("verify", plan, "--log", log)
    assert code != 0
    assert "--log is for RCCL_TREES and NCCL_GRAPH_FILE's" in text
