"""Topology files in and out: exactness, the compact form, one clear message a mistake."""

from __future__ import annotations

import re
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml
from artefacts import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_readings import text_of

from forestcoll.common.errors import InfeasibleError, TopologyError
from forestcoll.topology import (
    Link,
    Node,
    Topology,
    bandwidth,
    catalog,
    check_connected,
    dumps_topology,
    from_networkx,
    load_topology,
    loads_topology,
    read_heading,
)
from forestcoll.topology.arithmetic import compile_expression

HEAD = "format: forestcoll.topology/1\nname: t\n"
TWO = HEAD + "nodes:\n  a: {kind: gpu}\n  b: {kind: gpu}\n"
ONE_LINK = TWO + "links:\n  - {src: a, dst: b, bandwidth: 25}\n"

TWO_BOXES = text_of("topology", "explicit form is exact")
POD = text_of("topology", "compact form expands")


def test_explicit_form_is_exact() -> None:
    topology = loads_topology(TWO_BOXES)
    directed = topology.rates()
    assert directed["box0/gpu0", "fabric"] == Fraction("37.3") == directed["fabric", "box0/gpu0"]
    assert directed["fabric", "box1/gpu0"] == 50 + Fraction(325, 15)
    assert ("box1/gpu0", "box0/gpu1") not in directed
    assert topology.latency("box0/nvswitch", "box0/gpu0") == Fraction(7, 10)
    assert topology.latency("box0/gpu0", "fabric") == 1
    assert topology.latency("box1/gpu0", "fabric") == 3
    assert topology.latencies()["fabric", "box1/gpu0"] == 3
    assert topology.boxes == (("box0/gpu0", "box0/gpu1", "box0/nvswitch"), ("box1/gpu0",))
    with pytest.raises(TopologyError, match="no link from 'box1/gpu0' to 'box0/gpu1'"):
        topology.latency("box1/gpu0", "box0/gpu1")
    check_connected(topology)


def test_dump_gives_an_equal_topology_back() -> None:
    topology = loads_topology(TWO_BOXES)
    text = dumps_topology(topology)
    assert 'bandwidth: "373/10"' in text
    assert "count: 2" in text
    assert "oneway: true" in text
    assert loads_topology(text) == topology
    # Another YAML reader must see the same ids and integers.
    assert yaml.safe_load(text)["links"][0]["bandwidth"] == 300


@pytest.mark.parametrize("boxes", ["1", "2", "13"])
def test_boxes_that_are_alike_are_those_that_are_expanded_one_by_one(boxes: str) -> None:
    """A template that mentions its box is expanded for each, any other once, and copied."""
    alike = POD.replace("bandwidth: 1 + box", "bandwidth: 1 + ring, latency: gpus / 3")
    each = alike.replace("multicast: ring", "multicast: ring * (box >= 0)")
    settings = {"boxes": boxes, "gpus": "5"}
    one, other = loads_topology(alike, "pod", settings), loads_topology(each, "pod", settings)
    assert one == other
    assert list(one.nodes) == list(other.nodes)
    again = alike.replace("fabric: {kind", f"box{int(boxes) - 1}/gpu3: {{kind")
    with pytest.raises(TopologyError, match=rf"box{int(boxes) - 1}/gpu3' is there already, from"):
        loads_topology(again.replace(", when: boxes > 1}\nlinks", "}\nlinks"), "pod", settings)
    many = alike.replace("boxes: 2", "boxes: 40000")
    with pytest.raises(TopologyError, match=r"^f:12: boxes: nodes: more than 200,000 nodes"):
        loads_topology(many, "f", {"gpus": "5"})
    meshed = alike.replace('dst: "gpu{i+1}"', 'dst: "gpu{i+1..gpus-1}"')
    with pytest.raises(TopologyError, match=r"^f:10: boxes: links: more than 1,000,000 links"):
        loads_topology(meshed, "f", {"gpus": "16", "boxes": "11000"})


def test_the_heading_of_a_file() -> None:
    heading = read_heading(POD)
    assert heading.description == "a pod"
    assert [str(p) for p in heading.parameters] == ["boxes=2", "gpus=3", "uplink=25/2", "ring=1"]


def test_the_plain_python_parser_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loads_topology(POD)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert loads_topology(POD) == expected
    with pytest.raises(TopologyError, match=r"^f:1: nested more than 16 deep"):
        loads_topology("[" * 5000, "f")
    with pytest.raises(TopologyError, match=r"^f:1: not YAML: expected"):
        loads_topology("name: [a", "f")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"none\.yaml: cannot be read: No such file"):
        load_topology(tmp_path / "none.yaml")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        load_topology(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(HEAD.encode() + b"# caf\xe9\n")
    with pytest.raises(TopologyError, match=r"latin\.yaml:3: not text in UTF-8 \(byte 43\)"):
        load_topology(path)
    path.write_bytes(b"#" * (25 * 2**20))
    with pytest.raises(TopologyError, match="larger than 24 MiB"):
        load_topology(path)
    path.write_bytes(b"\xef\xbb\xbf" + ONE_LINK.encode())
    assert load_topology(path).gpus == ("a", "b")


def test_yaml_bombs_end_soon() -> None:
    laughs = "a: &a [x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)}]\n" for i in range(20)
    )
    start = time.monotonic()
    for text in (laughs, "{a: " * 100_000, "- " * 100_000, "? " * 100_000, "!" * 100_000):
        with pytest.raises(TopologyError):
            loads_topology(text, "bomb")
    assert time.monotonic() - start < 10


def test_other_types_of_a_topology_made_by_hand_are_converted() -> None:
    """By pydantic, which then has to be imported. (refusals/model.txt: what cannot be.)"""
    asked: dict[str, Any] = {"bandwidth": "75/2", "latency": 0.5, "count": "2", "oneway": 1}
    link = Link("a", "b", **asked)
    assert link == Link("a", "b", Fraction(75, 2), Fraction(1, 2), 2, True)
    assert Link("a", "b", 37.3).bandwidth == Fraction(373, 10)  # type: ignore[arg-type]
    nodes: Any = {"a": {"kind": "gpu"}, "b": Node("switch", multicast="yes")}  # type: ignore[arg-type]
    made = Topology("t", nodes, [link])  # type: ignore[arg-type]
    assert made == Topology("t", {"a": Node("gpu"), "b": Node("switch", True)}, (link,))
    nodes["c"] = Node("gpu")
    assert made.gpus == ("a",)
    with pytest.raises(AttributeError):
        made.name = "u"  # type: ignore[misc]


def test_networkx_there_and_back() -> None:
    topology = loads_topology(TWO_BOXES)
    back = from_networkx(topology.to_networkx())
    assert back.name == topology.name
    assert back.nodes == topology.nodes
    assert back.rates() == topology.rates()
    assert back.latencies() == topology.latencies()
    assert len(back.links) == len(topology.links)


def test_networkx_graphs_of_others() -> None:
    graph = nx.cycle_graph(4)
    nx.set_edge_attributes(graph, 12.5, "bandwidth")
    topology = from_networkx(graph, "cycle")
    assert topology.gpus == ("0", "1", "2", "3")
    assert topology.rates()["3", "0"] == Fraction(25, 2) == topology.rates()["0", "3"]
    oneway = nx.DiGraph([(0, 1, {"bandwidth": 1}), (1, 0, {"bandwidth": 2})])
    assert from_networkx(oneway).rates() == {("0", "1"): 1, ("1", "0"): 2}


IDS = st.from_regex(r"[a-z0-9_.:@+#-]{1,6}(/[a-z0-9]{1,3})?", fullmatch=True)
NUMBERS = st.fractions(Fraction(1, 10**6), 10**6, max_denominator=10**9)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ids = draw(st.lists(IDS, min_size=2, max_size=8, unique=True))
    nodes = {
        name: Node("gpu") if i == 0 or draw(st.booleans()) else Node("switch", draw(st.booleans()))
        for i, name in enumerate(ids)
    }
    ends = st.tuples(st.sampled_from(ids), st.sampled_from(ids)).filter(lambda e: e[0] != e[1])
    links = tuple(
        Link(
            src,
            dst,
            draw(NUMBERS),
            draw(st.none() | NUMBERS),
            draw(st.integers(1, 9)),
            draw(st.booleans()),
        )
        for src, dst in draw(st.lists(ends, max_size=8))
    )
    return Topology("t", nodes, links)


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_every_topology_survives_its_file(topology: Topology) -> None:
    text = dumps_topology(topology)
    assert loads_topology(text) == topology
    assert list(loads_topology(text).nodes) == list(topology.nodes)
    assert yaml.safe_load(text)["nodes"].keys() == topology.nodes.keys()
    assert from_networkx(topology.to_networkx()).rates() == topology.rates()


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_connectivity_agrees_with_networkx(topology: Topology) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(topology.nodes)
    graph.add_edges_from(topology.rates())
    gpus = topology.gpus
    whole = all(nx.has_path(graph, a, b) for a in gpus for b in gpus)
    if len(gpus) < 2:
        with pytest.raises(TopologyError):
            check_connected(topology)
    elif whole:
        check_connected(topology)
    else:
        with pytest.raises(InfeasibleError):
            check_connected(topology)


LEAVES = st.integers(0, 20).map(str) | st.sampled_from(("x", "y"))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(("+", "-", "*", "//", "%", "<", "==", "/")),
            inner,
        )
        | inner.map("(-{})".format)
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
@example("((1 // 1) / (3 // 1))")
@settings(max_examples=80, deadline=None)
def test_arithmetic_is_pythons(text: str) -> None:
    names = {"x": 3, "y": 7}
    try:
        exactly = re.sub(r"(\d+)", r"F(\1)", text.replace("(", "F("))  # "//" gives an int else
        expected = eval(exactly, {"F": Fraction, "x": Fraction(3), "y": Fraction(7)})
    except ZeroDivisionError:
        with pytest.raises(TopologyError, match="division by zero"):
            compile_expression(text).value(names)
        return
    assert compile_expression(text).value(names) == expected


def test_logic_and_precedence() -> None:
    for text, value in (
        ("1 + 2 * 3 ** 2", 19),
        ("-2 ** 2", -4),
        ("7 // 2 + 7 % 4", 6),
        ("1 < 2 and not 2 < 1", 1),
        ("0 or 1 == 2", 0),
        ("not 0 and 0", 0),
        ("1e3 / 8", 125),
        ("37.3", Fraction(373, 10)),
    ):
        assert compile_expression(text).value({}) == value


def test_the_documents_examples_are_real() -> None:
    page = (ROOT / "docs" / "machines.md").read_text()
    examples = re.findall(r"```yaml\n(format:.*?)```", page, flags=re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        check_connected(loads_topology(text))
    assert len(loads_topology(examples[1], "pod", {"boxes": "3"}).gpus) == 24


SAME = "25;200Gb/s;200 Gbit/s;200gbps;200Gb;25GB/s;25 GBps;0.2Tb/s;25000MB/s"


def test_bandwidths_with_units() -> None:
    for text, rate in (*((text, 25) for text in SAME.split(";")), ("1/3 GB/s", Fraction(1, 3))):
        assert bandwidth(text) == rate, text
        assert loads_topology(ONE_LINK.replace("25", f'"{text}"')).links[0].bandwidth == rate
        assert Link("a", "b", text).bandwidth == rate  # type: ignore[arg-type]
    assert bandwidth("400G", label=True) == 50
    with pytest.raises(TopologyError, match=r"latency: '2Gb/s' is a bandwidth; a number goes here"):
        loads_topology(ONE_LINK.replace("25}", "1, latency: 2Gb/s}"))


def test_units_of_parameters_and_doubted_ports() -> None:
    def load(**settings: str) -> Topology:
        return catalog.load("dgx-h100", {"boxes": "2", **settings})

    assert load(network="400Gb/s") == load(network="50GB/s") == load(network="50") == load()
    assert not load(network="400Gb/s", nvlink="900").notes
    notes = load(network="200").notes
    assert notes == (
        "network=200 is 200 GB/s, 1,600 Gb/s, and no network port carries so much: did you mean "
        "200Gb/s = 25 GB/s?",
    )
    own = ONE_LINK.replace("25}", "up}") + "parameters: {up: {default: 100Gb/s}}\n"
    for given_, rate in (({}, 12.5), ({"up": "12.5"}, 12.5), ({"up": "7.5"}, 7.5)):
        assert loads_topology(own, "f", given_).links[0].bandwidth == rate  # type: ignore[arg-type]
