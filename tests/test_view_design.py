"""What the page says by colour, order and place; what it draws once; what its address keeps."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import test_view_page
from graphs import machine, named
from test_view_data import SCHEDULES, subject_of, unpack
from test_view_page import PAGES, Show, best, processor_time

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule import forest_file
from forestcoll.ui.view import Subject
from forestcoll.ui.view.data import collect
from forestcoll.ui.view.layout import find_twins, lay_out
from forestcoll.ui.view.svg import HEAT, hops
from forestcoll.ui.view.timeline import LOCAL, find_phases

browser, make, show = test_view_page.browser, test_view_page.make, test_view_page.show


# --- phases and hops ------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["forest.json", "msccl.xml", "mscclpp.json"])
@pytest.mark.parametrize("name", ["dgx-a100-2", "dgx1-v100-1", "mi250-1"])
def test_each_phase_moves_what_its_trees_move(name: str, file: str) -> None:
    subject = subject_of(f"{name}/allreduce.{file}")
    forest = subject.forest
    assert forest is not None
    phase_of, moved = find_phases(subject), Counter[str]()
    for span in subject.simulate(2**26).timeline:
        moved[phase_of(span)] += span.bytes * len(span.links)
    for phase in ("reduce", "broadcast"):
        trees = [tree for tree in forest.trees if tree.phase == phase]
        crossed = sum(forest.share(t) * sum(len(path) - 1 for path in t.edges) for t in trees)
        assert moved[phase] == pytest.approx(float(crossed) * 2**26, rel=1e-6)
    assert set(moved) <= {"reduce", "broadcast", LOCAL}


@pytest.mark.parametrize(
    ("file", "phase"), [("allgather.msccl.xml", "broadcast"), ("reduce.mscclpp.json", "reduce")]
)
def test_other_collectives_have_one_phase(file: str, phase: str) -> None:
    subject = subject_of(f"dgx-a100-1/{file}")
    phase_of = find_phases(subject)
    assert {phase_of(span) for span in subject.simulate(2**20).timeline if span.links} == {phase}


@pytest.mark.parametrize("name", ["mi250-1", "dgx-a100-2"])
def test_hops_count_forward_in_time(name: str) -> None:
    subject = subject_of(f"{name}/allreduce.forest.json")
    forest = subject.forest
    assert forest is not None
    begun: dict[tuple[int, int, int], float] = {}
    rank = {node: number for number, node in enumerate(forest.graph.ranks)}
    for span in subject.simulate(2**26).timeline:
        key = span.block, span.rank, span.peer
        begun[key] = min(span.start, begun.get(key, span.start))
    for number, tree in enumerate(forest.trees):
        found = list(zip(tree.edges, hops(tree), strict=True))
        assert min(hop for _, hop in found) == 1
        for path, hop in found:
            before = [h for other, h in found if other[-1] == path[0]]
            assert hop == 1 + max(before, default=0)
            start = begun[number, rank[path[0]], rank[path[-1]]]
            for other, h in found:
                if other[-1] == path[0]:
                    assert h < hop
                    assert begun[number, rank[other[0]], rank[other[-1]]] < start


def test_the_page_numbers_hops_as_the_drawing(show: Show) -> None:
    path = SCHEDULES / "mi250-1" / "allreduce.forest.json"
    opened = show(path, "--size", "1M")
    ask = "[...forestcoll.data.trees.keys()].map(k => forestcoll.trees.edges(k).map(e => e[1]))"
    assert opened.ask(ask) == [hops(tree) for tree in forest_file.load(path).trees]


# --- order ----------------------------------------------------------------------------------------


def test_rails_boxes_and_gpus_stand_in_rank_order() -> None:
    topology = machine("rail boxes=4")
    graph = CapacityGraph.from_topology(topology)
    layout = lay_out(graph)
    across = sorted(range(graph.n), key=lambda v: layout.x[v])
    rails = [graph.names[v] for v in across if layout.layers[v] == 1]
    assert rails == [f"rail{k}" for k in range(8)]
    turned = CapacityGraph.from_topology(topology, topology.gpus[::-1])
    layout = lay_out(turned)
    assert [box.name for box in layout.boxes] == ["box3", "box2", "box1", "box0"]
    for box in layout.boxes:
        gpus = [v for v in box.nodes if turned.gpu[v]]
        read = sorted(gpus, key=lambda v: (layout.y[v], layout.x[v]))
        assert read == sorted(gpus, key=turned.ranks.index)


# --- likeness -------------------------------------------------------------------------------------


def kinds_of(graph: CapacityGraph) -> list[int]:
    return list(graph.capacity)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("dgx-h100 boxes=64", 8 + 1 + 1),
        ("rail boxes=64", 8 + 1 + 8 + 1),  # every rail has a GPU of its own in a box
        ("fat-tree leaves=8 hosts=4 spines=4", 8 + 1 + 1 + 1),
        ("star gpus=50", 1 + 1),
        ("torus-2d", 16),  # neighbours in place of a node cannot be itself
        ("dragonfly", 12),
    ],
)
def test_of_what_is_alike_one_is_left(words: str, shown: int) -> None:
    graph = named(words)
    twins = find_twins(graph, kinds_of(graph))
    assert len(set(twins)) == shown
    links = set(graph.ends)
    for v, twin in enumerate(twins):
        assert twins[twin] == twin
        assert graph.gpu[v] == graph.gpu[twin]
    assert all((twins[u], twins[v]) in links for u, v in links)


def test_a_box_with_another_load_stays() -> None:
    graph = named("dgx-h100 boxes=64")
    kinds = kinds_of(graph)
    odd = next(e for e, v in enumerate(graph.tail) if graph.names[v] == "box7/gpu3")
    kinds[odd] += 1
    twins = find_twins(graph, kinds)
    boxes = {graph.box(v) for v in twins} - {""}
    assert boxes == {"box0", "box7"}


def test_2048_boxes_are_small_and_quick(show: Show) -> None:
    opened = show("dgx-h100", "--set", "boxes=2048")
    assert opened.path.stat().st_size < 250_000
    draw = """() => { forestcoll.fabric.stale = true; forestcoll.draw();
      forestcoll.fabric.context.getImageData(0, 0, 1, 1); }"""
    took = processor_time(opened)
    assert best(lambda: took(draw), 50) < 50


# --- colours --------------------------------------------------------------------------------------

LINEAR = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
DEUTAN = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTAN = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])
"""Machado, Oliveira, Fernandes 2009: linear colours as they are seen without one kind of cones."""


def lab(colour: str, seen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """CIELAB of #rrggbb."""
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = LINEAR @ np.clip(seen @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def red(colour: str) -> bool:
    r, g, b = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return r > 1.6 * g and r > 1.6 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(show: Show, scheme: str) -> None:
    plan = SCHEDULES / "mi250-1" / "allreduce.mscclpp.json"
    opened = show(plan, scheme=scheme)
    palette = opened.ask("forestcoll.palette")
    phases, kinds = list(palette["phases"].values()), palette["kinds"]
    for seen in (np.eye(3), DEUTAN, PROTAN):
        for colours in (phases, kinds):
            for one, two in combinations([*colours, palette["page"], palette["other"]], 2):
                if palette["page"] in (one, two) and palette["other"] in (one, two):
                    continue
                assert np.linalg.norm(lab(one, seen) - lab(two, seen)) > 12, (one, two, seen)
        for ramp in (palette["heat"], HEAT):
            light = [lab(colour, seen)[0] for colour in ramp]
            assert light in (sorted(light), sorted(light, reverse=True))
    assert not any(map(red, [*palette["heat"], *HEAT, palette["select"]]))
    assert palette["select"] not in (*palette["heat"], *phases, *kinds)
    found = opened.page.evaluate(PIXELS, ["time", phases[:2]])
    assert min(found) > 2000
    opened.press("b")
    assert opened.state("colour") == "kind"
    used = opened.ask(
        "forestcoll.run.categories('kind').used.map(k => forestcoll.palette.kinds[k])"
    )
    assert len(used) == 3  # 200, 100 and 50 GB/s
    assert min(opened.page.evaluate(PIXELS, ["time", used])) > 200
    legend = opened.page.inner_text("#legend")
    assert all(f"links of {rate} GB/s" in legend for rate in (200, 100, 50))


PIXELS = """([name, colours]) => {
  forestcoll.draw();
  const canvas = document.getElementById(name);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const hex = k => '#' + [0, 1, 2].map(i => data[k + i].toString(16).padStart(2, '0')).join('');
  const counts = new Map();
  for (let k = 0; k < data.length; k += 4) counts.set(hex(k), (counts.get(hex(k)) || 0) + 1);
  return colours.map(colour => counts.get(colour) || 0);
}"""


def test_what_is_selected_keeps_its_colour_and_the_others_fade(show: Show) -> None:
    plan = SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml"
    opened = show(plan)
    colours = opened.ask("[forestcoll.palette.phases.reduce, forestcoll.palette.other]")
    full = opened.ask("forestcoll.palette.heat.at(-1)")
    before = opened.page.evaluate(PIXELS, ["time", colours])
    assert before[0] > 2000
    assert before[1] < 50
    outlined = opened.page.evaluate(PIXELS, ["fabric", ["#1f2328", full]])
    opened.ask("forestcoll.select({kind: 'pair', index: 0})")
    opened.page.wait_for_timeout(100)
    after = opened.page.evaluate(PIXELS, ["time", colours])
    assert 0 < after[0] < before[0] / 4
    assert after[1] > 2000
    selected = opened.page.evaluate(PIXELS, ["fabric", ["#1f2328", full]])
    assert selected[0] > outlined[0] + 50  # a line on either side
    assert selected[1] > outlined[1] / 2
    assert "other bars" in opened.page.inner_text("#legend")


# --- links over time ------------------------------------------------------------------------------


def test_rows_of_links_hold_the_bytes_that_crossed_them(show: Show) -> None:
    plan = SCHEDULES / "dgx-a100-2" / "allreduce.mscclpp.json"
    opened = show(plan)
    assert opened.state("rows") == "links"
    rows = opened.ask("[...forestcoll.timeline.rows.rank]")
    assert rows == [k // 4 for k in range(64)]
    names = opened.ask("forestcoll.timeline.rows.names.slice(0, 4)")
    assert names == ["to nvswitch", "to fabric", "from nvswitch", "from fabric"]
    moved = opened.ask(
        """() => { const { timeline, run } = forestcoll, { rows } = timeline, width = 900;
        const colours = 5, cover = timeline.measure(0, rows.count, 1, width, colours);
        return [...rows.link].map((link, row) => { let bytes = 0;
          for (let c = 0; c < colours; c++) { let level = 0;
            for (let x = 0; x < width; x++) {
              level += cover[(row * colours + c) * (width + 2) + x];
              bytes += level * timeline.perPixel * rows.bandwidth[link] * 1000; } }
          return [bytes, forestcoll.data.linkBytes[link]]; }); }"""
    )
    for drawn, crossed in moved:
        assert drawn == pytest.approx(crossed, rel=0.02)
    opened.press("r")
    assert opened.state("rows") == "blocks"
    assert opened.ask("forestcoll.timeline.rows.count") == opened.ask("forestcoll.run.names.length")


def test_where_ranks_are_left_away_rows_are_blocks(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forestcoll.ui.view.data.MOST_BARS", 100)
    plan = SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml"
    opened = show(plan, "--size", "64M")
    opened.press("r")
    assert opened.state("rows") == "blocks"
    assert opened.page.is_disabled("#rows")


def test_phases_and_twins_are_in_the_data() -> None:
    data = unpack(collect(subject_of("dgx-a100-2/allreduce.msccl.xml"), 2**24, ""))
    names = data["run"]["phases"]
    assert {names[k] for k in data["phase"]} == {"reduce", "broadcast"}
    assert "twin" not in data
    topology = machine("dgx-h100 boxes=64")
    data = unpack(collect(Subject(topology.name, "topology", topology), 1, ""))
    assert len(set(data["twin"].tolist())) == 10
    assert [box[0] for box in data["folded"]["boxes"]] == ["box0 and 63 alike"]


# --- the address ----------------------------------------------------------------------------------

STATE = """() => { const { state, fabric, timeline } = forestcoll;
  const { hovered, playing, speed, ...rest } = state;
  return JSON.parse(JSON.stringify([rest, fabric.window(), timeline.window()],
    (_, value) => typeof value === 'number' ? Number(value.toPrecision(5)) : value)); }"""


def test_the_address_keeps_what_is_shown(show: Show) -> None:
    opened = show(*PAGES["forest"])
    opened.page.wait_for_timeout(500)
    assert opened.ask("location.hash") == ""  # nothing but what is usual
    opened.press("]", "]", ",", "c", "h", "d", "r", "b", "End")
    opened.ask("forestcoll.select({kind: 'bar', index: 7})")
    opened.page.focus("#fabric")
    opened.press("+", "ArrowLeft")
    opened.page.focus("#time")
    opened.press("+", "}")
    opened.until("location.hash.includes('time=')")
    opened.page.wait_for_timeout(400)
    text, shown = opened.ask("location.hash"), opened.ask(STATE)
    assert "tree=1" in text
    assert "selected=bar.7" in text
    assert shown[0]["theme"] == "dark"
    again = show(*PAGES["forest"], at=text)
    assert again.ask(STATE) == shown
    again.press("d", "f", "Escape", "Home", "h", "r", "b", "b")
    again.ask("location.hash = ''")
    again.until("forestcoll.state.theme === 'light' && forestcoll.state.rows === 'links'")
    again.said[:] = [line for line in again.said if not line.startswith("file:")]


def test_a_foreign_address_changes_nothing(show: Show) -> None:
    usual = show(*PAGES["forest"]).ask(STATE)
    for text in (
        "#tree=999&cut=-1&now=1e308&hops=0&selected=node.1e9&rows=none&colour=__proto__",
        "#selected=constructor.0&theme=%3Cscript%3E&tree=NaN&all=2&folded=1&loads=true",
        "#fabric=1,2&time=0,0,0,0&now=&selected=bar.99999999&tree=-3",
        "#fabric=Infinity,0,1&time=5,1,0,9&%E0%A4%A=1&=&&",
        "#<img src=x onerror=alert(1)>",
        "#" + "tree=1" * 20_000,
    ):
        opened = show(*PAGES["forest"], at=text)
        found = opened.ask(STATE)
        opened.close()
        if "now=1e308" in text:
            found[0]["now"] = 0
        assert found == usual, text
