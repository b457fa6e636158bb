"""InfraGraph and dot: read back; Perfetto: read with its own protobuf classes."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest
from artefacts import ROOT
from graphs import machine
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
from real_files import read_as
from stored_schedules import SCHEDULES
from test_view_data import subject_of

from forestcoll.schedule import forest_file
from forestcoll.topology import Topology
from forestcoll.ui import cli
from forestcoll.ui.export import FORMATS, Settings, export
from forestcoll.ui.view import Subject


def test_the_documentation_names_every_format() -> None:
    text = (ROOT / "docs" / "check.md").read_text()
    for form in FORMATS.values():
        assert f"--to {form.name}" in text, form.name


# --- InfraGraph -----------------------------------------------------------------------------------


def fabric(topology: Topology) -> nx.Graph:
    made: nx.Graph = nx.Graph()
    for name, node in topology.nodes.items():
        made.add_node(name, kind=node.kind)
    for link in topology.links:
        assert not link.oneway
        rate = made.get_edge_data(link.src, link.dst, {"rate": Fraction(0)})["rate"]
        made.add_edge(link.src, link.dst, rate=float(rate + link.bandwidth * link.count))
    return made


@pytest.mark.parametrize(
    "text",
    [
        *("dgx-a100 boxes=3", "dgx1-v100", "mi250 boxes=2", "torus-3d", "rail"),
        "fat-tree leaves=3 spines=3",
    ],
)
def test_infragraph_is_read_back_as_the_same_fabric(text: str) -> None:
    topology = machine(text)
    subject = Subject(topology.name, "topology", topology)
    (data,) = export(subject, "infragraph", Settings()).values()
    back = read_as("infragraph", data.decode(), "back.json")
    assert len(back.gpus) == len(topology.gpus)
    assert nx.is_isomorphic(
        fabric(topology),
        fabric(back),
        node_match=lambda a, b: a["kind"] == b["kind"],
        edge_match=lambda a, b: a["rate"] == b["rate"],
    )


def test_infragraph_writes_equal_boxes_once() -> None:
    topology = machine("dgx-a100 boxes=8")
    subject = Subject(topology.name, "topology", topology)
    (text,) = export(subject, "infragraph", Settings()).values()
    made = json.loads(text)
    assert [(i["name"], i["count"]) for i in made["instances"]] == [("host0", 8), ("network", 1)]
    (gpus, switch) = made["devices"][0]["components"]
    assert (gpus["name"], gpus["choice"], gpus["count"]) == ("gpu", "xpu", 8)
    assert switch["choice"] == "switch"
    latencies = {link["physical"]["latency"]["us"] for link in made["links"]}
    stated = {float(v) for v in topology.latencies().values()}
    assert latencies <= stated


# --- dot ------------------------------------------------------------------------------------------

NAME = r'"((?:[^"\\]|\\.)*)"'


def read_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, dict[str, str]]]]:
    """Nodes and edges of the statements that we write, whatever cluster they stand in."""
    assert text.startswith("digraph ")
    assert text.count("{") == text.count("}")
    nodes, edges = {}, []
    for line in text.splitlines():
        found = re.fullmatch(rf"\s*{NAME}(?: -> {NAME})?(?: \[(.*)\])?;", line)
        if found is None:
            continue
        given = dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\w+)', found[3] or ""))
        attributes = {key: value.strip('"') for key, value in given.items()}
        if found[2] is None:
            nodes[found[1]] = attributes
        else:
            edges.append((found[1], found[2], attributes))
    return nodes, edges


@pytest.mark.parametrize("name", ["dgx-a100-2", "mi250-1", "dgx1-v100-1"])
def test_dot_has_every_link_with_its_load(name: str) -> None:
    forest = forest_file.load(SCHEDULES / name / "broadcast.forest.json")
    subject = Subject(name, "forest", forest=forest)
    (text,) = export(subject, "dot", Settings()).values()
    nodes, edges = read_dot(text.decode())
    assert list(nodes) == list(forest.graph.names)
    for node, gpu in zip(forest.graph.names, forest.graph.gpu, strict=True):
        assert nodes[node]["shape"] == ("box" if gpu else "ellipse")
    drawn = {}
    for tail, head, attributes in edges:
        rate, percent = attributes["label"].split("\\n")
        for ends in ((tail, head), (head, tail))[: 1 + ("dir" in attributes)]:
            assert ends not in drawn
            drawn[ends] = rate, float(percent.removesuffix(" %"))
    assert len(drawn) == len(forest.links)
    for row in forest.links:
        rate, percent = drawn[row.src, row.dst]
        assert rate == f"{float(row.bandwidth):g} GB/s"
        assert percent == pytest.approx(float(row.percent), rel=1e-3)


def test_dot_of_one_tree_spans(capsys: pytest.CaptureFixture[str]) -> None:
    path = SCHEDULES / "mi250-1" / "allgather.forest.json"
    assert cli.main(["export", str(path), "--to", "dot", "--tree", "5"]) == 0
    _, edges = read_dot(capsys.readouterr().out)
    forest = forest_file.load(path)
    tree = nx.DiGraph([(u, v) for u, v, _ in edges])
    reached = nx.descendants(tree, forest.graph.names[forest.trees[5].root])
    assert len(reached & {forest.graph.names[r] for r in forest.graph.ranks}) == forest.n - 1


# --- Perfetto -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "dgx-a100-2/allreduce.mscclpp.json",
        "mi250-1/broadcast.msccl.xml",
        "mi300x-1/reduce.mscclpp.json",
        "dgx1-v100-1/allreduce.forest.json",
    ],
)
def test_perfetto_trace_is_the_simulated_run(name: str) -> None:
    subject, size = subject_of(name), 2**20
    (data,) = export(subject, "perfetto", Settings(size=size)).values()
    trace = perfetto.Trace.FromString(data)
    timing = subject.simulate(size)
    tracks, parents = dict[int, str](), dict[int, int]()
    words: dict[int, str] = {}
    slices: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    open_: dict[int, tuple[int, str]] = {}
    flows, ends, counters = Counter[int](), Counter[int](), defaultdict(list)
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        words.update({n.iid: n.name for n in packet.interned_data.event_names})
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            tracks[track.uuid] = track.process.process_name or track.name
            parents[track.uuid] = track.parent_uuid
            assert tracks[track.uuid]
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        flows.update(event.flow_ids)
        ends.update(event.terminating_flow_ids)
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_  # slices of a track follow each other
            open_[event.track_uuid] = packet.timestamp, words[event.name_iid]
        elif event.type == event.TYPE_SLICE_END:
            start, word = open_.pop(event.track_uuid)
            assert start <= packet.timestamp
            slices[event.track_uuid].append((start, packet.timestamp, word))
        elif event.type == event.TYPE_COUNTER:
            counters[tracks[event.track_uuid]].append(
                (packet.timestamp, event.double_counter_value)
            )
        else:
            assert event.type == event.TYPE_INSTANT
    assert not open_
    for found in slices.values():
        assert all(a[1] <= b[0] for a, b in pairwise(found))
    drawn = Counter(entry for found in slices.values() for entry in found)
    assert drawn == Counter(
        (round(1000 * s.start), round(1000 * s.end), s.what) for s in timing.timeline
    )
    assert flows == ends
    assert len(flows) == timing.transfers == max(flows.values()) * len(flows)
    assert {tracks[p] for p in parents.values() if p} >= {f"rank 0 ({subject.graph().names[0]})"}
    for use in timing.links:
        steps = counters[f"{use.src} -> {use.dst}"]
        moved = sum((b[0] - a[0]) * a[1] for a, b in pairwise(steps))  # ns x GB/s
        assert moved == pytest.approx(use.bytes, rel=0.05, abs=use.bandwidth * len(steps))
