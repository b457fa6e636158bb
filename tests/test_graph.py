"""Topologies as integer graphs: exact scaling, merging, ranks and relays."""

from __future__ import annotations

import math
from fractions import Fraction

from graphs import machine
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.graph.capacity_graph import CAPACITY_LIMIT, CapacityGraph, select_ranks
from forestcoll.topology import Link, Node, Topology

GPU, SWITCH = Node("gpu"), Node("switch")


def chain(*bandwidths: Fraction | int | str) -> Topology:
    """GPUs a0 - a1 - a2 ... with those bandwidths between them."""
    nodes = {f"a{i}": GPU for i in range(len(bandwidths) + 1)}
    links = tuple(
        Link(f"a{i}", f"a{i + 1}", b)
        for i, b in enumerate(bandwidths)  # type: ignore[arg-type]
    )
    return Topology("chain", nodes, links)


def test_parallel_links_are_merged() -> None:
    nodes = {"a": GPU, "b": GPU, "s": Node("switch", True, False)}
    links = (
        Link("a", "b", Fraction(10), count=3),
        Link("b", "a", Fraction(5), oneway=True),
        Link("a", "b", Fraction(5)),
        Link("a", "s", Fraction(5), oneway=True),
    )
    graph = CapacityGraph.from_topology(Topology("t", nodes, links))
    assert graph.unit == 5
    merged = graph.links
    assert merged == {(0, 1): 7, (1, 0): 8, (0, 2): 1}
    assert graph.multicast == (False, False, True)
    assert graph.gpu == (True, True, False)


def test_ranks_and_relays() -> None:
    topology = machine("mi250 boxes=2")
    half = ["box0/gpu[0-7]", "box1/gpu[0-7]"]
    alone = CapacityGraph.from_topology(topology, half)
    assert len(alone.ranks) == 16
    assert alone.n == 17
    assert sum(alone.gpu) == 16
    assert "fabric" in alone.names
    for relays in ("idle", "all"):
        graph = CapacityGraph.from_topology(topology, half, relays)  # type: ignore[arg-type]
        assert len(graph.ranks) == 16
        assert graph.n == 33
        assert sum(graph.gpu) == 32
    assert select_ranks(topology, ["*"]) == topology.gpus
    ordered = CapacityGraph.from_topology(topology, ["box1/gpu3", "box0/gpu[01]"])
    assert [ordered.names[r] for r in ordered.ranks] == ["box1/gpu3", "box0/gpu0", "box0/gpu1"]


def test_what_can_be_scaled_and_reached() -> None:
    """Up to the limit (beyond it: refusals/graph.txt); large primes too, as long as they fit."""
    largest = CapacityGraph.from_topology(chain(1, 2**57))
    assert sum(largest.capacity) * len(largest.ranks) < CAPACITY_LIMIT
    assert CapacityGraph.from_topology(chain(999983, 1000003)).unit == 1
    CapacityGraph.from_topology(chain(1, 1)).check_connected()
    CapacityGraph.from_topology(chain(1, 1), ["a0", "a2"], "idle").check_connected()
    assert CapacityGraph.from_topology(Topology("t", {"a": GPU, "b": GPU}, ())).capacity == ()


def test_reverse_and_leaving() -> None:
    nodes = {"a": GPU, "b": GPU, "s": Node("switch", True, False)}
    links = (Link("a", "s", Fraction(3), oneway=True), Link("s", "b", Fraction(2), oneway=True))
    graph = CapacityGraph.from_topology(Topology("t", nodes, links))
    assert graph.leaving(frozenset({0})) == 3
    assert graph.reverse().leaving(frozenset({1})) == 2
    assert graph.reverse().aggregation == (False, False, True)
    assert graph.box(0) == ""


BANDWIDTHS = st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000)


@given(st.lists(BANDWIDTHS, min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_scaling_never_loses_anything(bandwidths: list[Fraction]) -> None:
    graph = CapacityGraph.from_topology(chain(*bandwidths))
    count = len(bandwidths)
    assert graph.names == tuple(f"a{i}" for i in range(count + 1))
    assert list(graph.ends) == [ends for i in range(count) for ends in ((i, i + 1), (i + 1, i))]
    assert [graph.bandwidth(e) for e in range(2 * count)] == [b for b in bandwidths for _ in "ab"]
    assert all(c > 0 for c in graph.capacity)
    # No coarser unit does: the capacities have no common divisor.
    assert math.gcd(*graph.capacity) == 1
