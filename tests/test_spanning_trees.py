"""Spanning trees of equal shares and few children, and RCCL_TREES as its parser has it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest
from real_files import real

import forestcoll
from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.plans.findings import Findings
from forestcoll.plans.stock import trees as rccl
from forestcoll.solver.stock.spanning_trees import Mesh, Packing, bound_of, pack
from forestcoll.topology import Link, Node, Topology
from forestcoll.topology.edit import edit


def check(packing: Packing) -> None:
    """Trees span, ranks have few children, links hold them, and the prices prove the bound."""
    mesh = packing.mesh
    way = {frozenset(pair.ranks): pair.links for pair in mesh.pairs}
    load = Counter[int]()
    for tree in packing.trees:
        assert set(tree.children) == set(range(mesh.n))
        below = [child for children in tree.children.values() for child in children]
        assert sorted([*below, next(iter(tree.children))]) == list(range(mesh.n))
        assert max(map(len, tree.children.values())) <= rccl.MOST_CHILDREN
        for rank, children in tree.children.items():
            for child in children:
                load.update(way[frozenset((rank, child))])
    for link, count in load.items():
        assert count * packing.share <= mesh.capacity[link] * mesh.unit
    prices = packing.bound.prices
    assert min(prices) >= 0
    cheapest = sum(prices[e] for i in mesh.cheapest(prices) for e in mesh.pairs[i].links)
    assert cheapest >= 1
    total = sum(price * c for price, c in zip(prices, mesh.capacity, strict=True))
    assert total * mesh.unit == packing.bound.algbw >= packing.algbw


def packing_of(topology: Topology) -> Packing:
    """Trees that are proven, and are the same once they are in the variable and read back."""
    packing = pack(CapacityGraph.from_topology(topology), rccl.MOST_TREES, rccl.MOST_CHILDREN)
    check(packing)
    trees = [tree.children for tree in packing.trees]
    out = Findings()
    assert rccl.read(rccl.dumps(trees), out, len(topology.gpus)) == trees
    assert not out.kept  # at most 63 trees, 255 characters each
    return packing


@pytest.mark.parametrize(
    ("machine", "trees", "algbw", "depth"),
    [
        ("mi300x", 4, 256, 3),
        ("mi250", 24, Fraction(1200, 7), 7),
        ("dgx1-v100", 24, Fraction(600, 7), 4),
        ("ring", 8, Fraction(400, 7), 4),
    ],
)
def test_boxes_reach_what_any_spanning_trees_do(
    machine: str, trees: int, algbw: Fraction, depth: int
) -> None:
    packing = packing_of(forestcoll.load_topology(machine))
    assert packing.algbw == packing.bound.algbw == algbw
    assert (len(packing.trees), packing.trees[-1].depth) == (trees, depth)


@pytest.mark.parametrize(
    ("machine", "link", "algbw"),
    [
        ("mi300x", "box0/gpu0-box0/gpu1", Fraction(1728, 7)),
        ("mi250", "box0/gpu0-box0/gpu4", Fraction(1100, 7)),
        ("mi250", "box0/gpu0-box0/gpu8", Fraction(1150, 7)),
    ],
)
def test_with_a_link_out_they_reach_it_too(machine: str, link: str, algbw: Fraction) -> None:
    packing = packing_of(edit(forestcoll.load_topology(machine), [link], []))
    assert packing.algbw == packing.bound.algbw == algbw


@pytest.mark.parametrize(
    ("name", "algbw", "link", "without"),
    [
        ("topo_16p1h", Fraction(864, 7), "gpu0-gpu1", 108),
        ("topo_8p_940", 192, "gpu0-gpu1", Fraction(1296, 7)),
        ("topo_8p6l_4nic", Fraction(576, 7), "gpu0-gpu1", Fraction(552, 7)),
        ("topo_8p_90a", Fraction(432, 7), "gpu0-gpu1", Fraction(396, 7)),
        ("topo_8p_rome_n2", Fraction(288, 7), "gpu0-gpu1", Fraction(264, 7)),
        ("topo_4p4h", 24, "gpu0-gpu5", 24),
        ("topo_3p_pcie", 24, "", 24),
    ],
)
def test_dumps_of_rccl(name: str, algbw: Fraction, link: str, without: Fraction) -> None:
    """Sound, and with a link out; without any of a PCIe tree's nothing joins all ranks."""
    machine = forestcoll.load_topology(real(f"rccl-xml/{name}.xml"))
    packing = packing_of(machine)
    assert packing.algbw == packing.bound.algbw == algbw
    packing = packing_of(edit(machine, [link] if link else [], []))
    assert packing.algbw == packing.bound.algbw == without


def random_box(rng: random.Random, n: int) -> Topology:
    """GPUs with links of one to four times 10 GB/s: a ring, and some more."""
    pairs = {tuple(sorted((k, (k + 1) % n))) for k in range(n)}
    pairs |= {pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.4}
    nodes = {f"gpu{k}": Node("gpu") for k in range(n)}
    links = [
        Link(f"gpu{u}", f"gpu{v}", Fraction(10), count=rng.randint(1, 4)) for u, v in sorted(pairs)
    ]
    return Topology("box", nodes, tuple(links))


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    first, *rest = items
    parts = []
    for partition in partitions(rest):
        parts.append([[first], *partition])
        parts += [
            [*partition[:k], [first, *partition[k]], *partition[k + 1 :]]
            for k in range(len(partition))
        ]
    return parts


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_that_of_nash_williams_and_tutte(seed: int) -> None:
    """The least, over all partitions, of what joins its parts, over their number less one."""
    rng = random.Random(seed)
    topology = random_box(rng, rng.randint(3, 6))
    n = len(topology.gpus)
    best = min(
        Fraction(
            sum(
                link.bandwidth * link.count
                for link in topology.links
                if not any({int(link.src[3:]), int(link.dst[3:])} <= set(part) for part in parts)
            ),
            len(parts) - 1,
        )
        for parts in partitions(list(range(n)))
        if len(parts) > 1
    )
    packing = packing_of(topology)
    assert packing.bound.algbw == best
    assert packing.algbw >= Fraction(9, 10) * best


def test_ranks_that_no_links_join_both_ways_are_refused() -> None:
    links = [Link("gpu0", "gpu1", Fraction(10)), Link("gpu1", "gpu2", Fraction(10), oneway=True)]
    topology = Topology("box", {f"gpu{k}": Node("gpu") for k in range(3)}, tuple(links))
    with pytest.raises(UnsupportedError, match="links that carry data both ways do not join"):
        pack(CapacityGraph.from_topology(topology), 8, rccl.MOST_CHILDREN)


def test_a_rank_that_would_need_more_children_is_refused() -> None:
    """All others hang on the first, which may have two children and, below its parent, one more."""
    links = tuple(Link("gpu0", f"gpu{k}", Fraction(10)) for k in range(1, 6))
    topology = Topology("box", {f"gpu{k}": Node("gpu") for k in range(6)}, links)
    assert bound_of(Mesh.of(CapacityGraph.from_topology(topology))).algbw == 10
    with pytest.raises(UnsupportedError, match="no spanning tree with at most 2 children"):
        pack(CapacityGraph.from_topology(topology), 8, rccl.MOST_CHILDREN)


def rules_of(value: str, ranks: int | None = None) -> list[str]:
    out = Findings()
    rccl.read(value, out, ranks)
    return [finding.rule for finding in out.kept]


def test_any_trees_are_read_as_they_were_written() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        n, trees = rng.randint(2, 32), []
        for _ in range(rng.randint(1, 3)):
            first, *others = rng.sample(range(n), n)
            tree: dict[int, list[int]] = {first: []}
            for rank in others:
                parent = rng.choice([r for r, children in tree.items() if len(children) < 2])
                tree[parent].append(rank)
                tree[rank] = []
            trees.append(tree)
        out = Findings()
        assert rccl.read(rccl.dumps(trees), out, n) == trees
        assert not out.kept


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("", "SYNTAX"),
        ("(0", "SYNTAX"),
        ("(0))", "SYNTAX"),
        ("0)", "SYNTAX"),
        ("(0)(1)", "SYNTAX"),
        ("(0(1) (2))", "SYNTAX"),
        ("(0(1))|", "SYNTAX"),
        ("(0())", "SYNTAX"),
        ("(0(\u0663))", "SYNTAX"),
        ("(0(1)(1))", "TWICE"),
        ("(0(1)(2)(3))", "CHILDREN"),
        ("(0(1)(2)(3)(4))", "CHILDREN"),
        ("(0(1))|(0(1(2)))", "MISSING"),
        ("|".join(["(0(1))"] * 64), "COUNT"),
        ("(0" + "".join(f"({k}" for k in range(1, 80)) + ")" * 80, "LENGTH"),
    ],
)
def test_what_the_library_would_misread_is_refused(value: str, rule: str) -> None:
    assert rules_of(value) == [f"TREES-{rule}"]


def test_ranks_are_those_of_the_box() -> None:
    assert rules_of("(0(1(2)))", 2) == ["TREES-RANK"]
    assert rules_of("(0(1(2)))", 4) == ["TREES-MISSING"]
