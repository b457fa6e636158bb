"""Public functions check what they are given: a ForestCollError that says what is wanted."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import forestcoll
from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, ForestCollError
from forestcoll.execute.request import Asked, Request
from forestcoll.program import Program
from forestcoll.topology import Topology

RING = forestcoll.load_topology("ring", {"gpus": 4})


@pytest.fixture(scope="module")
def made() -> forestcoll.Synthesis:
    return forestcoll.synthesize(RING, "allreduce")


@pytest.fixture(scope="module")
def plan(made: forestcoll.Synthesis) -> Program:
    return made.programs["mscclpp-json"]


LOAD: list[tuple[tuple[Any, ...], str]] = [
    ((5,), "topology must be the path of a file, not 5"),
    ((None,), "topology must be the path of a file, not None"),
    (("",), "the topology's name is empty; the catalogue has dgx-a100"),
    (("dgx-a10",), "did you mean 'dgx-a100'?"),
    (("ring", "gpus=4"), "settings must be a mapping, such as {'boxes': 2}, not 'gpus=4'"),
    (("ring", [("gpus", 4)]), "settings must be a mapping, such as {'boxes': 2}, not a list"),
    (("ring", {"gpus": 4.5}), "gpus must be a whole number"),
]


@pytest.mark.parametrize(("given", "text"), LOAD)
def test_load_topology(given: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ForestCollError) as caught:
        forestcoll.load_topology(*given)
    assert text in str(caught.value)


PROBLEM: list[tuple[dict[str, Any], str]] = [
    (
        {"topology": 3},
        "topology must be a Topology, a name of the catalogue, or the path of a file",
    ),
    ({"topology": "dgx-a10"}, "did you mean 'dgx-a100'?"),
    ({"topology": Path("none.yaml")}, "none.yaml"),
    ({"collective": "AllReduce"}, "unknown collective 'AllReduce'; did you mean 'allreduce'?"),
    ({"collective": "reduce_scatter"}, "did you mean 'reduce-scatter'?"),
    ({"collective": None}, "unknown collective 'None' (known: allgather, "),
    ({"collective": ["allreduce"]}, "unknown collective"),
    ({"collective": "broadcast", "root": 1.5}, "root must be a whole number, not 1.5"),
    ({"collective": "broadcast", "root": True}, "root must be a whole number, not True"),
    ({"collective": "broadcast", "root": -1}, "root must be at least 0, not -1"),
    ({"collective": "broadcast", "root": 4}, "root 4: the ranks are 0 to 3"),
    ({"collective": "broadcast", "root": "gpu9"}, "root 'gpu9' is none of the ranks; did you mean"),
    ({"root": 0}, "allgather has no root"),
    ({"ranks": 5}, "ranks must be a list, not 5"),
    ({"ranks": [0, 1]}, "ranks are ids or globs, such as 'box0/gpu0' or 'box0/*', not 0"),
    ({"ranks": []}, "0 ranks; a collective needs at least two GPUs"),
    (
        {"ranks": "0-1"},
        "ranks are named by id or glob: did you mean 'gpu0,gpu1'?",
    ),
    ({"relays": None}, "relays is 'none', 'idle' or 'all', not None"),
    ({"shares": 5}, "shares must be a list, not 5"),
    ({"shares": [1, 2]}, "shares: 2 amounts for 4 ranks"),
    ({"shares": [1.5, 2, 3, 4]}, "shares must be a whole number, not 1.5"),
    ({"shares": {"gpu0": 3}}, "shares: no part is given for rank 'gpu1' and 2 more"),
]
WISHES: list[tuple[dict[str, Any], str]] = [
    ({"formats": "xml"}, "unknown format 'xml' (known: forest, msccl-xml, mscclpp-json)"),
    ({"formats": ["forest", "mscclpp"]}, "unknown format 'mscclpp'; did you mean 'mscclpp-json'?"),
    ({"formats": 5}, "format must be a list, not 5"),
    ({"formats": [5]}, "unknown format 5 (known"),
    ({"trees": "many"}, "trees (or 'auto') must be a whole number, not 'many'"),
    ({"trees": 0}, "trees (or 'auto') must be at least 1, not 0"),
    ({"trees": 1.5}, "not 1.5"),
    ({"trees": None}, "not None"),
    ({"min_percent": 0}, "min_percent is 0: must be over 0 and at most 100"),
    ({"min_percent": "many"}, "min_percent must be a percentage, not 'many'"),
    ({"min_percent": float("nan")}, "min_percent must be a percentage, not nan"),
    ({"trees": 1, "min_percent": 99}, "trees and min_percent both say how many trees"),
    ({"max_height": "2"}, "max_height must be a whole number, not '2'"),
    ({"budget": "trees=3"}, "budget must be a Budget, not 'trees=3', nor a mapping such as"),
    ({"budget": {"treees": 3}}, "unknown limit of a budget 'treees'; did you mean 'trees'?"),
    ({"budget": {"trees": "3"}}, "budget: trees must be a whole number, not '3'"),
    ({"budget": None}, "budget must be a Budget, not None"),
    ({"compact": "yes"}, "compact must be True or False, not 'yes'"),
    ({"instances": "x"}, "instances (or 'auto') must be a whole number, not 'x'"),
    ({"protocol": "ll"}, "unknown protocol 'll'; did you mean 'LL'? (known: Simple, LL, LL128)"),
    ({"sms": 0}, "sms must be at least 1, not 0"),
    ({"nvls": True}, "unknown nvls True (known: in-place, out-of-place)"),
    ({"target": "nccl"}, "unknown target 'nccl'; did you mean 'rccl'?"),
    ({"target": None}, "unknown target None (known: mscclpp, msccl, rccl, any)"),
    (
        {"target": "rccl", "formats": "mscclpp-json"},
        "target rccl reads msccl-xml, not mscclpp-json",
    ),
    ({"progress": 5}, "progress must be a function"),
]


def refused(act: Callable[..., object], given: dict[str, Any], text: str) -> None:
    with pytest.raises(ForestCollError) as caught:
        act(**({"topology": RING, "collective": "allgather"} | given))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "text"), PROBLEM)
@pytest.mark.parametrize("name", ["optimum", "synthesize", "front"])
def test_what_is_to_be_done(name: str, given: dict[str, Any], text: str) -> None:
    refused(getattr(forestcoll, name), given, text)


@pytest.mark.parametrize(("given", "text"), WISHES)
def test_synthesize(given: dict[str, Any], text: str) -> None:
    refused(forestcoll.synthesize, given, text)


RUN: list[tuple[dict[str, Any], str]] = [
    ({"program": "x.xml"}, "x.xml: cannot be read: No such file or directory"),
    ({"program": Path("x.xml")}, "x.xml: cannot be read"),
    ({"program": 5}, "plan must be a Program or the path of a plan file, not 5"),
    ({"program": RING}, "plan must be a Program or the path of a plan file, not a Topology"),
    ({"size_bytes": "64M"}, "size_bytes must be a whole number, not '64M'"),
    ({"size_bytes": 1.5}, "size_bytes must be a whole number, not 1.5"),
    ({"size_bytes": 0}, "size_bytes must be at least 1, not 0"),
    ({"dtype": 3}, "unknown data type 3 (known: float32, "),
    ({"dtype": "Float32"}, "unknown data type 'Float32'; did you mean 'float32'?"),
    ({"op": None}, "unknown operation None (known: sum, prod, min, max, avg)"),
    ({"iterations": 1.5}, "iterations must be a whole number, not 1.5"),
    ({"warmup": -1}, "warmup must be at least 0, not -1"),
    ({"modes": 5}, "mode must be a list, not 5"),
    ({"modes": "inplace"}, "unknown mode 'inplace'; did you mean 'in-place'?"),
    ({"timeout": float("nan")}, "timeout must be above 0 and finite, not nan"),
    ({"timeout": "5"}, "timeout must be a number, not '5'"),
    ({"root": 1}, "allreduce has no root"),
    ({"threads": 0}, "threads must be at least 1, not 0"),
    ({"slots": "a"}, "slots must be a whole number, not 'a'"),
    ({"slot_bytes": 0.5}, "slot_bytes must be a whole number, not 0.5"),
    ({"slice_bytes": -4}, "slice_bytes must be at least 1, not -4"),
    ({"ranks_as": None}, "unknown ranks_as None (known: threads, processes, auto)"),
    ({"check": "no"}, "check must be True or False, not 'no'"),
]


@pytest.mark.parametrize(("given", "text"), RUN)
def test_run(given: dict[str, Any], text: str, plan: Program) -> None:
    with pytest.raises(ForestCollError) as caught:
        forestcoll.run(**({"program": plan, "size_bytes": 4096} | given))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("read_plan", (5,), "path must be the path of a file, not 5"),
        ("read_plan", (RING,), "path must be the path of a file, not a Topology"),
        ("read_plan", ("none.xml",), "none.xml: cannot be read"),
        ("verify_text", (5, "x"), "text must be a text, not 5"),
        ("verify_text", (b"{}", "x"), "text must be a text, not a bytes"),
        ("verify_text", (Path("x"), "x"), "read the file: text=Path(...).read_text()"),
        ("verify_text", ("{}", 5), "source must be the path of a file, not 5"),
        ("verify_text", ("{}", "x.json"), "x.json: "),
    ],
)
def test_reading(name: str, given: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ForestCollError) as caught:
        getattr(forestcoll, name)(*given)
    assert text in str(caught.value)


def test_what_leaves_no_doubt_is_taken(tmp_path: Path, plan: Program) -> None:
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
    with pytest.raises(ArgumentError, match=r"^n must be at least 1 and at most 4, not 5$"):
        arguments.whole("n", 5, 1, 4)
    with pytest.raises(ArgumentError, match=r"not '(x{79})\.\.\.$"):
        arguments.whole("n", "x" * 1000)


def test_every_public_value_fits_on_a_screen(made: forestcoll.Synthesis, plan: Program) -> None:
    """Also of a machine whose forest is megabytes."""
    many = forestcoll.synthesize("dgx-a100", "allgather", formats="forest", compact=True)
    graph = many.forest.graph
    values: dict[str, object] = {
        "<Topology dgx-a100-16: 128 GPUs, 17 switches, 256 links>": forestcoll.load_topology(
            "dgx-a100", {"boxes": 16}
        ),
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
    long = forestcoll.synthesize("dgx-a100", "allreduce", formats="forest").forest.links
    assert len(long) == 16


def test_long_tables_are_cut(made: forestcoll.Synthesis) -> None:
    from forestcoll.graph.link_table import LinkTable

    table = LinkTable(list(made.forest.links) * 10)
    assert repr(table).splitlines()[-1] == f"... and {len(table) - 20} links more"


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
    with pytest.raises(ArgumentError, match=r"tree must be at least 0 and at most 15, not 16"):
        forest.to_networkx(tree=16)


def test_topologies_become_graphs_and_come_back() -> None:
    topology = forestcoll.load_topology("dgx-a100", {"boxes": 2})
    back = Topology.from_networkx(topology.to_networkx())
    assert (back.name, back.nodes) == (topology.name, topology.nodes)
    assert back.directed() == topology.directed()
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
