"""The catalogue's multi-plane Clos: planes and spines merged, told apart, and what is exact."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
from graphs import machine

from forestcoll.common.errors import InfeasibleError, TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import optimum
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.study.degrade.failures import list_failures
from forestcoll.study.degrade.losses import Workload, play_worst, report_losses
from forestcoll.topology import Topology, loads_topology
from forestcoll.topology.catalog import load
from forestcoll.topology.edit import edit, parse_scale

BOXES = {"leaves": 8, "spines": 8, "hosts": 2, "gpus": 8}
LONE = {"leaves": 8, "spines": 8, "hosts": 16, "gpus": 1}
PORT, LINK = "box0/gpu0-plane3.leaf0", "plane3.leaf2-plane3.spine5"


def clos(shape: dict[str, object], *without: str, scale: tuple[str, ...] = ()) -> Topology:
    whole = load("multi-plane-clos", {name: str(value) for name, value in shape.items()})
    return edit(whole, without, [parse_scale(text) for text in scale])


def allgather(topology: Topology, ranks: int | None = None) -> Fraction:
    graph = CapacityGraph.from_topology(topology, topology.gpus[:ranks])
    try:
        return optimum(graph.plain, Collective.ALLGATHER).algbw
    except InfeasibleError:
        return Fraction(0)


def alltoall(topology: Topology) -> Fraction:
    try:
        return solve(uniform(topology)).algbw
    except InfeasibleError:
        return Fraction(0)


@pytest.mark.parametrize(
    ("without", "values"),
    [
        ((), ("320/3", "12800/127", "6400/7", "12800/127")),
        ((PORT,), ("105", "11200/127", "900", "11200/127")),
        ((LINK,), ("320/3", "12800/127", "6400/7", "12800/127")),
        (("plane3.spine5",), ("320/3", "12800/127", "6400/7", "12800/127")),
        (("plane3.leaf2",), ("280/3", "11200/127", "800", "11200/127")),
        (("plane3.*",), ("280/3", "11200/127", "800", "11200/127")),
    ],
)
def test_what_fails(without: tuple[str, ...], values: tuple[str, ...]) -> None:
    """All-to-all of 128 GPUs in boxes, and lone; allgather of 64 in boxes, and of 128 lone."""
    half = partial(allgather, ranks=64)
    of = (alltoall, BOXES), (alltoall, LONE), (half, BOXES), (allgather, LONE)
    assert tuple(solve_(clos(shape, *without)) for solve_, shape in of) == tuple(
        map(Fraction, values)
    )


def test_oversubscription() -> None:
    half, quarter = ({**BOXES, "oversubscription": n} for n in (2, 4))
    assert alltoall(clos(half)) == Fraction(400, 7)
    assert alltoall(clos(quarter)) == Fraction(200, 7)


def shapes(seed: int) -> tuple[dict[str, object], list[str], list[str]]:
    """A small fabric and what is out of order there: nodes and links that are gone, slow links."""
    rng = random.Random(seed)
    pods, gpus = rng.choice([1, 1, 2]), rng.choice([1, 2])
    rails = int(gpus == 2 and rng.random() < 0.5)
    shape: dict[str, object] = {
        "planes": rng.choice([2, 3]),
        "leaves": 2 * (1 + rails) if pods == 1 else 2,
        "spines": rng.choice([1, 2, 3]),
        "hosts": rng.choice([1, 2]) if gpus == 1 else 1,
        "gpus": gpus,
        "pods": pods,
        "cores": rng.choice([1, 2]),
        "rails": rails,
        "oversubscription": rng.choice([1, 1, 2]),
        "nvlink": 100,
    }
    links = [link for link in clos({**shape, "merge": 0}).links if "plane" in link.dst]
    hit = rng.sample(links, rng.choice([0, 1, 1, 2, 3]))
    without, scale = [], []
    for link in hit:
        arrow = rng.choice(["<->", "->"])
        what = rng.choice([f"{link.src}{arrow}{link.dst}=1/2", f"{link.src}<->{link.dst}", ""])
        if "=" in what:
            scale.append(what)
        else:
            without.append(what or link.dst)
    globs = ["plane1.*", "plane?.spine0", "*.leaf1-*.spine0", "plane*1*.spine*"]
    if rng.random() < 0.3:
        scale.append(f"{rng.choice(globs[:2])}=2/3")
    return shape, list(dict.fromkeys(without)), list(dict.fromkeys(scale))


def values(shape: dict[str, object], without: list[str], scale: list[str]) -> object:
    """(allgather, all-to-all) of what is left, None where an edit names what is gone."""
    try:
        topology = clos(shape, *without, scale=tuple(scale))
    except TopologyError:
        return None
    return allgather(topology), alltoall(topology)


def test_merged_is_expanded() -> None:
    same = 0
    for seed in range(32):
        shape, without, scale = shapes(seed)
        whole = values({**shape, "merge": 0}, without, scale)
        assert values(shape, without, scale) == whole, (shape, without, scale)
        same += whole is not None
    assert same >= 24


@pytest.mark.parametrize("pattern", ["plane*1*.spine*", "plane[13].*", "*.spine0", "plane?.leaf0"])
def test_a_glob_means_what_it_would_of_each_switch(pattern: str) -> None:
    shape: dict[str, object] = {"planes": 4, "spines": 3, "gpus": 1, "leaves": 3}
    without = (pattern, "plane2.leaf1-plane2.spine2")
    merged, whole = clos(shape, *without), clos({**shape, "merge": 0}, *without)
    assert sum(link.bandwidth * link.count for link in merged.links) == sum(
        link.bandwidth * link.count for link in whole.links
    )
    assert allgather(merged) == allgather(whole)


def test_edits_of_edits_are_edits_at_once() -> None:
    shape: dict[str, object] = {"planes": 4, "spines": 3, "gpus": 1, "leaves": 3}
    once = clos(shape, PORT, "plane2.spine2")
    twice = edit(pickle.loads(pickle.dumps(clos(shape, PORT))), ["plane2.spine2"])
    assert twice.nodes == once.nodes
    assert twice.links == once.links
    assert "plane0..1.spine0..1" in once.nodes
    assert "plane3.spine2" in once.nodes


ALIKE = """format: forestcoll.topology/1
name: a
alike: {p: {values: 0..3}}
nodes:
  g{0..1}: {kind: gpu}
  s{p}: {kind: switch}
links:
  - {src: "g{0..1}", dst: "s{p}", bandwidth: 1}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"s{p}"', '"s{p+1}"', "links[0]: 'p+1': an index of 'alike' stands alone in braces"),
        ('"s{p}"', '"s{p..3}"', "links[0]: 'p': an index of 'alike' stands alone in braces"),
        ("bandwidth: 1", "bandwidth: p", "bandwidth: 'p': an index of 'alike' stands alone"),
        ("bandwidth: 1", "bandwidth: 1, for: {p: 0..1}", "for: 'p' is a parameter already"),
        ("0..3}", "0..3, when: 2}", "'2' is 2, neither true (1) nor false (0)"),
        ("0..3", "0..9999999", "count 10000000 must be between 1 and 1,000,000"),
        ("0..3", "0..9999999, when: 0", "an index counts over 10,000,000 values (input limit"),
        ("{p: {", "{box: {", "alike: box: cannot name an index"),
        ("values", "range", "alike: p: unknown key 'range'"),
    ],
)
def test_what_is_said_of_alike(old: str, new: str, said: str) -> None:
    assert "s0..3" in loads_topology(ALIKE).nodes
    with pytest.raises(TopologyError) as caught:
        loads_topology(ALIKE.replace(old, new))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "shape",
    [
        {"planes": 2, "leaves": 2, "spines": 2, "hosts": 2, "gpus": 1},
        {"planes": 2, "leaves": 2, "spines": 3, "hosts": 1, "gpus": 2, "nvlink": 50},
    ],
)
def test_each_failure_leaves_what_it_would_of_the_expanded_fabric(shape: dict[str, object]) -> None:
    """As many failures of a kind leave as much; and the report names switches one by one."""
    left = []
    for merge in (0, 1):
        report = report_losses(Workload(clos({**shape, "merge": merge}), Collective.ALLGATHER))
        counts: Counter[tuple[str, Fraction | None]] = Counter()
        for loss in report.losses:
            counts[loss.failure.kind, loss.new] += loss.failure.copies
        left.append(counts)
    assert left[0] == left[1]
    assert len(play_worst(report, 3)) == 3
    whole = clos(shape)
    named = [f.name for f in list_failures(whole, ("switch", "link")) if "plane" in f.name]
    assert "plane0.spine0" in named
    assert not [name for name in named if ".." in name]


def test_a_plane_fails_whole() -> None:
    [merged] = list_failures(clos(BOXES), ["plane"])
    assert (merged.copies, merged.without) == (8, ("plane0.*",))
    assert allgather(merged.apply(clos(BOXES)), 64) == 800
    single = list_failures(clos({**BOXES, "planes": 3, "merge": 0}), ["plane"])
    assert [(f.name, f.without) for f in single] == [
        (f"plane of plane{k}.leaf0", (f"plane{k}.*",)) for k in range(3)
    ]
    assert not list_failures(clos({**BOXES, "planes": 1}), ["plane"])
    assert not list_failures(machine("ring"), ["plane"])


def test_a_plane_without_a_prefix_of_its_own_is_named_switch_by_switch() -> None:
    """Two planes whose switches begin alike, and one switch alone that is no plane."""
    topology = loads_topology("""
format: forestcoll.topology/1
name: crossed
nodes:
  gpu{0..2}: {kind: gpu}
  s{1..5}: {kind: switch}
links:
  - {src: "gpu{0..1}", dst: s1, bandwidth: 10}
  - {src: s1, dst: s3, bandwidth: 10}
  - {src: gpu2, dst: s3, bandwidth: 10}
  - {src: "gpu{0..1}", dst: s2, bandwidth: 5}
  - {src: s2, dst: s4, bandwidth: 5}
  - {src: gpu2, dst: s4, bandwidth: 5}
  - {src: "gpu{0..2}", dst: s5, bandwidth: 1}
""")
    planes = list_failures(topology, ["plane"])
    assert [f.without for f in planes] == [("s1", "s3"), ("s2", "s4")]
    assert [allgather(f.apply(topology)) for f in planes] == [9, 16.5]
