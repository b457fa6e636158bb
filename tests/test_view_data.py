"""What a page holds, read back without a browser; what the command refuses."""

from __future__ import annotations

import base64
import json
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artefacts import ROOT
from graphs import machine
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.program.tiles import tiles
from forestcoll.schedule import forest_file
from forestcoll.ui import cli
from forestcoll.ui.view import Subject
from forestcoll.ui.view.data import SCRIPTS, TICKS, collect, page
from forestcoll.ui.view.timeline import Work, assign_rows, rates
from forestcoll.verify import simulate


def unpack(data: bytes) -> dict[str, Any]:
    raw = zlib.decompress(data)
    length = int.from_bytes(raw[:4], "little")
    found = json.loads(raw[4 : 4 + length])
    for name, (kind, count, offset) in found["arrays"].items():
        size = int(kind[1])
        start = 4 + length + offset
        planes = np.frombuffer(raw, np.uint8, count * size, start).reshape(size, count)
        found[name] = np.ascontiguousarray(planes.T).view(f"<{kind}").reshape(-1)
    return found


def starts(sizes: np.ndarray[Any, Any]) -> list[int]:
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]


def subject_of(plan: str) -> Subject:
    path = SCHEDULES / plan
    forest = forest_file.load(path.with_name(path.name.partition(".")[0] + ".forest.json"))
    program = None if path.name.endswith(".forest.json") else plans.read_plan(path)
    return Subject(forest.name, "plan" if program else "forest", None, forest, program)


def test_loads_are_exact_and_trees_are_whole() -> None:
    subject = subject_of("mi250-1/allreduce.mscclpp.json")
    forest = subject.forest
    assert forest is not None
    subject = subject._replace(said=(("bottleneck", "the limit"),))
    data = unpack(collect(subject, 2**20, "the limit"))
    graph = forest.graph
    assert data["nodes"] == list(graph.names)
    assert (data["tail"] == graph.tail).all()
    assert (data["head"] == graph.head).all()
    for number, row in zip(data["linkClass"], forest.links, strict=True):
        exact = [str(row.bandwidth), str(row.load), str(row.percent)]
        assert data["classes"][number] == exact
    edges, paths = starts(data["treeEdges"]), starts(data["pathSizes"])
    for k, tree in enumerate(forest.trees):
        assert data["trees"][k] == [k, tree.root, tree.phase, str(forest.share(tree))]
        found = [
            tuple(data["pathNodes"][paths[e] : paths[e + 1]]) for e in range(edges[k], edges[k + 1])
        ]
        assert found == list(tree.edges)
    assert ["bottleneck", "the limit"] in data["facts"]
    bound = forest.bound
    assert bound is not None
    cuts = starts(data["cutSizes"])
    sides = [set(data["cutNodes"][a:b].tolist()) for a, b in pairwise(cuts)]
    assert sides == [set(part) for part in bound.parts[: len(sides)]]


@pytest.mark.parametrize(
    "name", ["dgx-a100-2/allgather.mscclpp.json", "dgx1-v100-1/allreduce.forest.json"]
)
def test_bars_are_the_simulated_run(name: str) -> None:
    subject = subject_of(name)
    data = unpack(collect(subject, 2**24, ""))
    pieces = len(data["gap"]) // len(subject.simulate(2**24).timeline)
    timing = subject.simulate(2**24, pieces=pieces)
    assert data["run"]["time"] == timing.time
    spans = [span for _, span in assign_rows(timing)]
    assert len(spans) == len(data["gap"]) == len(data["way"])
    rows, ways = starts(data["rowBars"]), starts(data["waySizes"])
    tick = timing.time / TICKS
    for row, (first, end) in enumerate(pairwise(rows)):
        at = 0
        for k in range(first, end):
            span, start = spans[k], at + int(data["gap"][k])
            at = start + int(data["length"][k])
            assert start * tick == pytest.approx(span.start, abs=2 * tick)
            assert at * tick == pytest.approx(span.end, abs=2 * tick)
            assert data["rowRank"][row] == span.rank
            assert data["run"]["words"][data["what"][k]] == span.what
            assert data["run"]["amounts"][data["amount"][k]] == span.bytes
            way = data["way"][k]
            assert tuple(data["wayLinks"][ways[way] : ways[way + 1]]) == span.links
    for use, sent, busy in zip(timing.links, data["linkBytes"], data["linkUse"], strict=True):
        assert sent == pytest.approx(use.bytes, rel=1e-6)
        assert busy == pytest.approx(100 * use.utilisation, rel=1e-6)


@pytest.mark.parametrize("file", ["dgx-a100-1/allreduce.mscclpp.json", "mi300x-1/reduce.msccl.xml"])
def test_tiles_are_consumed_once_they_are_final_by_the_calendar(file: str) -> None:
    """Bars beside those of the tiled plan, against the calendar's rows byte by byte."""
    subject, size, order = subject_of(file), 2**22, [2, 0, 3, 1]
    assert subject.program is not None
    data = unpack(collect(subject, size, "", work=Work(order, 80.0, 20.0)))
    run, rows = data["run"], starts(data["rowBars"])
    made = [(2**20 * (k + 1), 20.0 * (order.index(k) + 1)) for k in range(4)]
    dates = simulate.calendar(tiles(subject.program, order), subject._where(), size, produced=made)
    final = [
        [max((e.us for e in entries if e.offset >> 20 == k), default=0.0) for k in range(4)]
        for entries in dates.outputs
    ]
    assert all(e.offset >> 20 == (e.offset + e.bytes - 1) >> 20 for r in dates.outputs for e in r)
    tick, end, seen = run["time"] / TICKS, dates.time, []
    for row, (first, last) in enumerate(pairwise(rows)):
        if row < run["blocks"]:
            continue
        at, rank, tile = 0, data["rowRank"][row], int(run["names"][row].removeprefix("tile "))
        seen.append((rank, tile))
        for k in range(first, last):
            start = (at + data["gap"][k]) * tick
            at += int(data["gap"][k] + data["length"][k])
            phase, stop = run["phases"][data["phase"][k]], at * tick
            if phase == "producer":
                wanted = 20.0 * order.index(tile), 20.0 * order.index(tile) + 20
            elif phase == "in the plan":
                wanted = 20.0 * order.index(tile) + 20, final[rank][tile]
            else:
                assert start >= final[rank][tile] - tick
                wanted, end = (start, start + 5), max(end, stop)
            assert (start, stop) == pytest.approx(wanted, abs=2 * tick)
    ranks = subject.program.n
    assert seen == [(rank, tile) for rank in range(ranks) for tile in order]
    assert run["time"] == pytest.approx(end, abs=2 * tick)
    takers = ranks if "allreduce" in file else 1
    count = sum(run["phases"][k] == "consumer" for k in data["phase"])
    assert count == 4 * takers
    alone = subject.simulate(size).time
    told = f"4 tiles: {run['time']:.6g} us; one after the other {100 + alone:.6g} (80 producer, "
    assert told in dict(map(tuple, data["facts"]))["overlap"]


def test_a_plan_on_a_topology_keeps_its_forest_where_the_links_are_the_same(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    plan = str(SCHEDULES / "dgx-a100-2" / "allgather.mscclpp.json")

    def view(*arguments: str) -> dict[str, Any]:
        assert cli.main(["view", plan, "--size", "1M", *arguments]) == 0
        text = capsysbinary.readouterr().out.decode()
        block = re.search(r'id="data">([^<]*)<', text)
        assert block is not None
        return unpack(base64.b64decode(block[1]))

    bare, slow = view(), view("-t", "dgx-a100", "--set", "boxes=2")
    assert slow["trees"] == bare["trees"]
    assert slow["run"]["time"] == bare["run"]["time"]  # the forest's links are the catalogue's
    assert (slow["linkBytes"] == bare["linkBytes"]).all()
    ends = slow["tail"][slow["wayLinks"]], slow["head"][slow["wayLinks"]]
    first = starts(slow["waySizes"])
    for begin, end in pairwise(first):
        assert (ends[1][begin : end - 1] == ends[0][begin + 1 : end]).all()  # a way hangs together
    other = view("-t", "dgx-h100", "--set", "boxes=2")
    assert "trees" not in other


def test_rates_add_up_to_the_bytes() -> None:
    timing = subject_of("dgx-a100-2/allgather.mscclpp.json").simulate(2**22)
    for use, steps in zip(timing.links, rates(timing.timeline, len(timing.links)), strict=True):
        moved = sum((b[0] - a[0]) * a[1] * 1000 for a, b in pairwise(steps))
        assert moved == pytest.approx(use.bytes)
        assert steps[-1][1] == 0


def test_a_topology_has_neither_loads_nor_time() -> None:
    topology = machine("rail boxes=2")
    data = unpack(collect(Subject(topology.name, "topology", topology), 1, ""))
    assert sorted(data["classes"]) == [["100"], ["450"], ["50"]]
    assert "trees" not in data
    assert "run" not in data
    assert data["whyNoRun"] == ""
    facts = dict(data["facts"])
    assert facts["boxes"] == "2 of 8 GPUs"
    assert facts["switches"] == "2 in boxes, 8 in tier 1, 1 in tier 2"
    assert facts["each rank"] == "500 GB/s out, 500 GB/s in"


def test_chosen_trees_alone_are_in_the_page() -> None:
    data = unpack(collect(subject_of("mi250-1/allgather.forest.json"), 2**20, "", [7, 3]))
    assert [tree[0] for tree in data["trees"]] == [7, 3]
    assert data["treesNote"] == "2 of 44 trees are in this page (--tree N)"


def test_a_page_asks_for_nothing_and_escapes_what_others_wrote() -> None:
    text = page("<b>&\"'", b"data")
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert "default-src 'none'" in text
    assert base64.b64encode(b"data").decode() in text
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert "https:" not in text
    folder = ROOT / "forestcoll" / "ui" / "view" / "page"
    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)


def test_the_forest_of_another_plan_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = SCHEDULES / "mi300x-1" / "allgather.msccl.xml"
    (tmp_path / "x.msccl.xml").write_bytes(plan.read_bytes())
    forest = plan.with_name("allreduce.forest.json").read_bytes()
    (tmp_path / "x.forest.json").write_bytes(forest)
    assert cli.main(["view", str(tmp_path / "x.msccl.xml")]) == 1
    assert capsys.readouterr().err.endswith(
        "a forest for allreduce over 8 ranks, not for the plan's allgather over 8; give the "
        "topology with --topology NAME or FILE\n"
    )


def test_links_of_a_forest_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = SCHEDULES / "mi250-1" / "allgather.forest.json"
    assert cli.main(["verify", str(path), "--json", "--links"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    links = forest_file.load(path).links
    assert entry["figures"]["links"] == [
        {name: str(value) for name, value in row._asdict().items()} for row in links
    ]
