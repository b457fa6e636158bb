"""Positions of nodes, and the drawing: nothing overlaps, everything is there."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from graphs import named
from stored_schedules import SCHEDULES

from forestcoll.common.errors import ForestCollError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule import forest_file
from forestcoll.topology import catalog
from forestcoll.ui.view.layout import Layout, lay_out
from forestcoll.ui.view.svg import draw, hops

FABRICS = [
    *catalog.names(),
    *("dgx-a100 boxes=2", "dgx-a100 boxes=16", "mi250 boxes=4", "rail boxes=32", "star gpus=200"),
    "fat-tree leaves=8 hosts=4 spines=4",
]


def check(graph: CapacityGraph, layout: Layout) -> None:
    points = np.array([layout.x, layout.y]).T
    assert len(points) == graph.n
    assert (points >= 0.3).all()
    assert (points <= np.array([layout.width, layout.height]) - 0.3).all()
    far = np.linalg.norm(points[:, None] - points[None], axis=2) + 9 * np.eye(graph.n)
    assert far.min() >= 0.95
    wide = np.array([not gpu for gpu in graph.gpu])
    aside = abs(points[:, None, 0] - points[None, :, 0])
    level = abs(points[:, None, 1] - points[None, :, 1]) < 0.5
    both = wide[:, None] & wide[None] & level & ~np.eye(graph.n, dtype=bool)
    assert (aside[both] >= 1.29).all()  # names of switches stand side by side
    for box in layout.boxes:
        for node in box.nodes:
            assert graph.box(node) == box.name
            assert box.left + 0.5 <= layout.x[node] <= box.right - 0.5
            assert box.top + 0.5 <= layout.y[node] <= box.bottom - 0.5
    for one, two in pairwise(sorted(layout.boxes, key=lambda b: (b.top, b.left))):
        assert two.left >= one.right or two.top >= one.bottom or two.top != one.top
    boxes = {graph.box(v) for v in range(graph.n) if graph.gpu[v]} - {""}
    assert {box.name for box in layout.boxes} == boxes


@pytest.mark.parametrize("words", FABRICS)
def test_nothing_overlaps(words: str) -> None:
    graph = named(words)
    layout = lay_out(graph)
    check(graph, layout)
    assert layout == lay_out(graph)
    if graph.n > 12:
        assert 0.6 < layout.width / layout.height < 6


def test_layers_of_a_fat_tree() -> None:
    graph = named("fat-tree leaves=4 spines=2")
    layout = lay_out(graph)
    by_name = dict(zip(graph.names, zip(layout.layers, layout.y, strict=True), strict=True))
    assert by_name["leaf0"][0] == 1
    assert by_name["spine1"][0] == 2
    assert by_name["spine1"][1] < by_name["leaf3"][1] < by_name["box0/nvswitch"][1]
    assert by_name["box0/nvswitch"][1] < by_name["box0/gpu0"][1]
    assert by_name["box0/nvswitch"][0] == by_name["box0/gpu0"][0] == 0


def read(text: str) -> tuple[ET.Element, list[str]]:
    root = ET.fromstring(text)
    return root, ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", ["dgx-a100-2", "mi250-1", "dgx1-v100-1"])
def test_a_drawing_has_every_node_link_and_a_legend(name: str) -> None:
    forest = forest_file.load(SCHEDULES / name / "allgather.forest.json")
    graph = forest.graph
    root, texts = read(draw(graph, forest=forest, title="a <title> & more"))
    assert texts[0] == "a <title> & more"
    assert {str(rank) for rank in range(forest.n)} <= set(texts)
    assert "0 to 100 % of the time busy" in texts
    assert any(text.startswith("links of ") and text.endswith(" GB/s each way") for text in texts)
    tips = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert tips == list(graph.names)
    paths = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("fill") == "none"]
    assert len(paths) == len({frozenset(ends) for ends in graph.ends})


@pytest.mark.parametrize("tree", [0, 17])
def test_a_drawing_of_one_tree(tree: int) -> None:
    forest = forest_file.load(SCHEDULES / "dgx-a100-2" / "allreduce.forest.json")
    root, texts = read(draw(forest.graph, forest=forest, tree=tree))
    chosen = forest.trees[tree]
    steps = {step for path in chosen.edges for step in pairwise(path)}
    arrows = [e for e in root.iter() if (e.get("marker-end") or "").startswith("url(#a")]
    assert len(arrows) == len(steps)
    assert max(hops(chosen)) == 2
    assert "hop 2" in texts
    assert "hop 3" not in texts
    share = f"root {forest.graph.names[chosen.root]}: {forest.share(chosen)} of the data"
    assert any(share in text for text in texts)
    with pytest.raises(ForestCollError, match="tree must be at least 0"):
        draw(forest.graph, forest=forest, tree=len(forest.trees))
