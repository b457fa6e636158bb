"""Pinned routes in the kernel: every address of a permutation carries its flow, as walked."""

from __future__ import annotations

from fractions import Fraction

import pytest

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.lab import network, pinned
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.routes.edges import collect
from forestcoll.solver.routes.fabric import Fabric
from forestcoll.solver.routes.segments import Edge, edges_with_ways
from forestcoll.solver.routes.spread import spread
from forestcoll.topology.catalog import load
from forestcoll.topology.edit import edit, take_apart
from forestcoll.ui.report import facts, runs

REASON = network.lacking() or pinned.lacking()
kernel = pytest.mark.skipif(bool(REASON), reason=REASON or "it runs")
SHAPE = {"planes": "2", "leaves": "2", "spines": "2", "hosts": "2", "gpus": "1"}


def permutation(**more: str) -> tuple[Fabric, list[Edge], int]:
    """Every host sends to one at the other leaf, and gets as much from there."""
    whole = load("multi-plane-clos", SHAPE | more)
    graph = CapacityGraph.from_topology(whole)
    number, half = graph.node_of, len(graph.ranks) // 2
    paths = []
    for i in range(2 * half):
        j = (i + half) % (2 * half)
        leaves = [f"plane0..1.leaf{k // int(SHAPE['hosts'])}" for k in (i, j)]
        names = [f"box{i}/gpu0", leaves[0], "plane0..1.spine0..1", leaves[1], f"box{j}/gpu0"]
        paths.append(((tuple(number[name] for name in names),), 1, False))
    fabric = Fabric(whole, whole)
    spreading = spread(fabric, collect(graph, paths, 1), "flows")
    return fabric, edges_with_ways(spreading), spreading.total


@kernel
@pytest.mark.timeout(180)
def test_the_kernel_carries_pinned_flows() -> None:
    """Loosely timed: this machine may be busy. Each flow has a link of its own, and after the cut
    two share one."""
    report = pinned.measure(*permutation(), 80, 0.8)
    first, *hashed, last = report.trials
    assert [trial.name for trial in report.trials][1:-1] == [f"ECMP {k}" for k in range(1, 7)]
    assert report.flows == len(first.rates) == 8
    assert report.mended == 2 * report.predicted
    assert min(first.rates) > 0.5 * report.link
    assert min(last.rates) > 0.25 * report.link
    assert sum(trial.seconds for trial in hashed) / 6 > 0.9 * first.seconds
    head, rows = (facts.as_json(part) for part in runs.flow_parts(report, "a permutation"))
    assert head["flows"] == 8
    assert [row["run"] for row in rows] == [trial.name for trial in report.trials]


def test_what_the_lab_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "lacking", lambda: "")
    monkeypatch.setattr(pinned, "MOST_FLOWS", 7)
    with pytest.raises(UnsupportedError, match="8 flows; the lab takes 7"):
        pinned.measure(*permutation(), 80, 1)
    fabric, edges, total = permutation()
    inside = [Edge(e.src, e.dst, e.ways) for e in edges[:0]]
    with pytest.raises(UnsupportedError, match="nothing to pin"):
        pinned.measure(fabric, inside, total, 80, 1)
    monkeypatch.setattr(pinned, "lacking", lambda: "no kernel")
    with pytest.raises(UnsupportedError, match="no kernel"):
        pinned.measure(fabric, edges, total, 80, 1)


def test_what_is_merged_is_taken_apart() -> None:
    whole = load("multi-plane-clos", SHAPE)
    apart = take_apart(edit(whole, ["plane1.spine0"]))
    same = edit(load("multi-plane-clos", SHAPE | {"merge": "0"}), ["plane1.spine0"])
    assert apart.nodes.keys() == same.nodes.keys()
    assert sum((link.bandwidth for link in apart.links), Fraction(0)) == sum(
        (link.bandwidth for link in same.links), Fraction(0)
    )
