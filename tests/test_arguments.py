"""Public functions check what they are given: a ForestCollError that says what is wanted."""

from __future__ import annotations

import copy
import inspect
from fractions import Fraction
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from graphs import machine

import forestcoll
from forestcoll.common import arguments
from forestcoll.execute.request import Asked, Request
from forestcoll.graph.link_table import LinkTable
from forestcoll.program import Program
from forestcoll.topology import Topology

RING = machine("ring gpus=4")


@pytest.fixture(scope="module")
def made() -> forestcoll.Synthesis:
    return forestcoll.synthesize(RING, "allreduce")


@pytest.fixture(scope="module")
def plan(made: forestcoll.Synthesis) -> Program:
    return made.programs["mscclpp-json"]


def test_what_leaves_no_doubt_is_taken(tmp_path: Path) -> None:
    """A name or a file for a topology, a file for a plan, one word for a list, numpy's numbers."""
    assert forestcoll.optimum("ring", "allgather").algbw == Fraction(800, 7)
    file = tmp_path / "mine.yaml"
    from forestcoll.topology import dumps_topology

    file.write_text(dumps_topology(RING))
    for given in (file, str(file), RING, RING.to_networkx()):
        assert forestcoll.optimum(given, "allgather").algbw == Fraction(400, 3)
    result = forestcoll.synthesize(RING, "allgather", formats="mscclpp-json", min_percent=99.5)
    assert list(result.texts) == ["mscclpp-json"]
    assert set(forestcoll.synthesize(RING, "allgather", target="rccl").texts) == {
        "forest",
        "msccl-xml",
    }
    written = tmp_path / "plan.json"
    written.write_text(result.texts["mscclpp-json"])
    for path in (written, str(written)):
        ran = forestcoll.run(path, np.int64(4096), modes="in-place")
        assert [row.mode for row in ran.rows] == ["in-place"]
        assert ran.wrong == 0
    named = forestcoll.optimum(RING, "broadcast", root=np.int32(2), ranks="gpu0, gpu1, gpu2")
    assert named == forestcoll.optimum(RING, "broadcast", root="gpu2", ranks=["gpu0", "gpu[12]"])
    parts = {"*": 1, "gpu0": 3}
    assert (
        forestcoll.optimum(RING, "allgather", shares=parts).algbw
        == forestcoll.optimum(RING, "allgather", shares=[3, 1, 1, 1]).algbw
    )
    few = forestcoll.synthesize(RING, "allgather", formats="forest", budget={"trees": 1})
    assert few.forest.trees_per_root == 1


def test_numbers() -> None:
    assert arguments.percent("p", 99.9) == Fraction(999, 10)
    assert arguments.percent("p", "99.9") == Fraction(999, 10)
    assert arguments.whole("n", np.uint8(3)) == 3


def test_every_public_value_fits_on_a_screen(made: forestcoll.Synthesis, plan: Program) -> None:
    """Also of a machine whose forest is megabytes."""
    many = forestcoll.synthesize("dgx-a100", "allgather", formats="forest", compact=True)
    graph = many.forest.graph
    values: dict[str, object] = {
        "<Topology dgx-a100-16: 128 GPUs, 17 switches, 256 links>": machine("dgx-a100 boxes=16"),
        "<Program ring-4: allreduce, 4 ranks, onesided, Simple, ": plan,
        "<RankProgram: ": plan.ranks[0],
        "<ThreadBlock: ": plan.ranks[0].thread_blocks[0],
        "<Forest allreduce on ring-4: 4 ranks, 16 trees, bound 200/3 GB/s>": made.forest,
        "<Tree reduce, root 0, weight ": made.forest.trees[0],
        "<Bound 200/3 GB/s, by ": made.forest.bound,
        "<CapacityGraph: 9 nodes, 8 of them ranks, 16 links in units of ": graph,
        "<SymmetryGroup of 8 elements on 9 nodes>": many.forest.group,
        "<Optimum 200/3 GB/s, 2 trees per root, bound 200/3 GB/s>": made.optimum,
        "<Synthesis of allreduce on ring-4: 200/3 GB/s of at most 200/3, 16 trees; forest, "
        "msccl-xml, mscclpp-json>": made,
        "<RunResult: out-of-place 4096 bytes in ": forestcoll.run(plan, 4096),
        "<FrontTable of allgather on ring-4: ": forestcoll.front(RING, "allgather"),
    }
    for start, value in values.items():
        assert repr(value).startswith(start), repr(value)
        assert len(repr(value)) < 500
    assert copy.copy(made.forest) == made.forest


def test_links_have_names_and_numbers() -> None:
    forest = forestcoll.synthesize("dgx-a100", "allgather", formats="forest").forest
    table = forest.links
    assert len(table) == len(forest.graph.tail)
    first = table[0]
    assert (first.src, first.dst, first.bandwidth) == ("box0/gpu0", "box0/nvswitch", 300)
    # By hand: 7 others get this GPU's eighth, at 7/8 of all data over 300 GB/s: always busy.
    assert first.load == Fraction(7, 8)
    assert first.percent == 100
    assert max(row.percent for row in table) == 100
    for row, load in zip(table, forest.loads(), strict=True):
        assert row.load == Fraction(load, forest.total)
        assert row.percent == 100 * row.load * forest.algbw / row.bandwidth
    lines = repr(table).splitlines()
    assert lines[0].split() == ["src", "dst", "bandwidth", "load", "percent"]
    assert lines[1].split() == ["box0/gpu0", "box0/nvswitch", "300", "0.875", "100"]
    assert len(lines) == 1 + len(table)
    assert len(forestcoll.synthesize("dgx-a100", "allreduce", formats="forest").forest.links) == 16
    long = LinkTable(list(table) * 10)
    assert repr(long).splitlines()[-1] == f"... and {len(long) - 20} links more"


def test_forests_become_graphs(made: forestcoll.Synthesis) -> None:
    forest = made.forest
    graph = forest.to_networkx()
    assert graph.nodes["gpu2"] == {"kind": "gpu", "rank": 2}
    assert {(u, v, d["load"]) for u, v, d in graph.edges(data=True)} == {
        (row.src, row.dst, row.load) for row in forest.links
    }
    for number, tree in enumerate(forest.trees):
        drawn = forest.to_networkx(tree=number)
        turned = drawn.reverse() if tree.phase == "reduce" else drawn
        assert nx.is_arborescence(turned)
        root = next(node for node, degree in turned.in_degree() if not degree)
        assert root == forest.graph.names[tree.root]
        assert all(d["path"][0] == u and d["path"][-1] == v for u, v, d in drawn.edges(data=True))


def test_topologies_become_graphs_and_come_back() -> None:
    topology = machine("dgx-a100 boxes=2")
    back = Topology.from_networkx(topology.to_networkx())
    assert (back.name, back.nodes) == (topology.name, topology.nodes)
    assert back.rates() == topology.rates()
    plain = nx.Graph(name="pair")
    plain.add_edge("a", "b", bandwidth=10)
    assert repr(Topology.from_networkx(plain)) == "<Topology pair: 2 GPUs, 0 switches, 1 links>"
    assert forestcoll.optimum(plain, "allgather").algbw == 20  # type: ignore[arg-type]


def test_what_engines_share_is_what_a_request_takes(plan: Program) -> None:
    taken = inspect.signature(Request.of).parameters.values()
    named = {p.name: p.default for p in taken if p.kind is p.KEYWORD_ONLY}
    assert set(named) == set(Asked.__annotations__)
    assert inspect.Parameter.empty not in named.values()
    with pytest.raises(TypeError, match="unexpected keyword argument 'iteration'"):
        forestcoll.run(plan, 64, iteration=2)  # type: ignore[call-arg]
