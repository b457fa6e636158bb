"""Capacity graphs for tests: built by hand, of the catalogue, and changed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from fractions import Fraction
from itertools import product

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import Topology, catalog, loads_topology
from forestcoll.topology.edit import edit, parse_scale

MI250 = (
    "0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 4-5:4 4-6:1 "
    "5-6:1 5-7:1 6-7:4 8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 13-14:1 "
    "13-15:1 14-15:4"
)


def build(
    links: Iterable[tuple[str, str, int]],
    *,
    both: bool = True,
    ranks: Iterable[str] | None = None,
    switches: Iterable[str] = (),
    unit: Fraction = Fraction(1),
) -> CapacityGraph:
    """A graph from named links; `...switch`, `fabric...` and those in `switches` are switches."""
    capacity: dict[tuple[str, str], int] = defaultdict(int)
    for u, v, c in links:
        capacity[u, v] += c
        if both:
            capacity[v, u] += c
    names = tuple(dict.fromkeys(v for pair in capacity for v in pair))
    index = {name: number for number, name in enumerate(names)}
    known = set(switches)
    gpu = tuple(not (n in known or n.startswith("fabric") or n.endswith("switch")) for n in names)
    chosen = ranks if ranks is not None else [n for n, g in zip(names, gpu, strict=True) if g]
    none = (False,) * len(names)
    return CapacityGraph(
        names=names,
        gpu=gpu,
        multicast=none,
        aggregation=none,
        ranks=tuple(index[n] for n in chosen),
        tail=tuple(index[u] for u, _ in capacity),
        head=tuple(index[v] for _, v in capacity),
        capacity=tuple(capacity.values()),
        unit=unit,
    )


def dgx_a100(boxes: int, planes: int = 1, gpus: int = 8) -> CapacityGraph:
    """Boxes of 8 GPUs, 300 GB/s to the NVSwitch, 25 to the fabric (or to fabric i % planes)."""
    links = []
    for b, i in product(range(boxes), range(gpus)):
        links.append((f"box{b}/gpu{i}", f"box{b}/nvswitch", 300))
        if boxes > 1:
            links.append((f"box{b}/gpu{i}", f"fabric{i % planes}", 25))
    return build(links)


def mi250(boxes: int, dies: int = 16) -> CapacityGraph:
    """Boxes of MI250 dies, 50 GB/s per link, 16 a die to the fabric; the first `dies` are ranks."""
    links = []
    for b in range(boxes):
        for word in MI250.split():
            pair, count = word.split(":")
            u, v = map(int, pair.split("-"))
            if max(u, v) < dies:
                links.append((f"box{b}/die{u}", f"box{b}/die{v}", 50 * int(count)))
        if boxes > 1:
            links += [(f"box{b}/die{i}", "fabric", 16) for i in range(dies)]
    return build(links)


def torus(*sides: int, capacity: int = 50) -> CapacityGraph:
    """A torus, one link each way between neighbours; a side of 2 has one link, not two."""
    capacities: dict[tuple[str, str], int] = {}
    for at in product(*map(range, sides)):
        for axis, side in enumerate(sides):
            if side == 1:
                continue
            to = (*at[:axis], (at[axis] + 1) % side, *at[axis + 1 :])
            u, v = (".".join(map(str, p)) for p in (at, to))
            capacities[u, v] = capacities[v, u] = capacity
    return build([(u, v, c) for (u, v), c in capacities.items()], both=False)


def ring(count: int, capacity: int = 1, both: bool = True) -> CapacityGraph:
    """`count` GPUs in a circle."""
    return build([(f"g{i}", f"g{(i + 1) % count}", capacity) for i in range(count)], both=both)


def star(*capacities: int) -> CapacityGraph:
    """GPUs around one switch, which is node 1."""
    return build([(f"g{i}", "switch", c) for i, c in enumerate(capacities)])


def machine(text: str) -> Topology:
    """One of the catalogue, with settings; a `-` goes before what it is without, or with less of.

    `machine("dgx-a100 boxes=2 -box0/gpu0-fabric -box1/gpu3-fabric=1/2")`
    """
    name, *words = text.split()
    settings = dict(word.split("=") for word in words if word[0] != "-")
    return changed(catalog.load(name, settings), [word[1:] for word in words if word[0] == "-"])


def changed(topology: Topology, changes: Sequence[str]) -> Topology:
    """Without links or nodes, and with links slower, whose change has an `=`."""
    gone, slow = ([c for c in changes if ("=" in c) == slower] for slower in (False, True))
    return edit(topology, gone, [*map(parse_scale, slow)])


def named(name: str, **settings: object) -> CapacityGraph:
    """The graph of a machine of the catalogue: all in its text, or with settings beside it."""
    words = (f"{key}={value}" for key, value in settings.items())
    return CapacityGraph.from_topology(machine(" ".join([name, *words])))


def able(
    graph: CapacityGraph, pattern: str = "*", copies: bool = True, adds: bool = True
) -> CapacityGraph:
    """The graph whose switches of these names copy, and add."""
    switch = tuple(
        not gpu and fnmatch(name, pattern) for name, gpu in zip(graph.names, graph.gpu, strict=True)
    )
    none = (False,) * graph.n
    return replace(
        graph, multicast=switch if copies else none, aggregation=switch if adds else none
    )


def perturbed(graph: CapacityGraph, seed: int, per: str = "cable") -> CapacityGraph:
    """Every cable, or every direction of one, up to 10 % faster or slower; two decimals."""
    rng = random.Random(seed)
    bandwidths: dict[tuple[int, int], Fraction] = {}
    for e, (u, v) in enumerate(graph.ends):
        if per == "cable" and (v, u) in bandwidths:
            bandwidths[u, v] = bandwidths[v, u]
            continue
        changed = graph.bandwidth(e) * Fraction(rng.randint(900, 1100), 1000)
        bandwidths[u, v] = Fraction(round(100 * changed), 100)
    return CapacityGraph(
        names=graph.names,
        gpu=graph.gpu,
        multicast=graph.multicast,
        aggregation=graph.aggregation,
        ranks=graph.ranks,
    ).with_bandwidths(bandwidths)


def shuffled(graph: CapacityGraph, seed: int) -> CapacityGraph:
    """The same graph with nodes, ranks and links in another order, under names that say nothing."""
    rng = random.Random(seed)
    to = list(range(graph.n))
    rng.shuffle(to)
    order = sorted(to, key=to.__getitem__)
    links = list(range(len(graph.tail)))
    rng.shuffle(links)
    ranks = [to[v] for v in graph.ranks]
    rng.shuffle(ranks)
    return replace(
        graph,
        names=tuple(f"n{v}" for v in range(graph.n)),
        gpu=tuple(graph.gpu[v] for v in order),
        multicast=tuple(graph.multicast[v] for v in order),
        aggregation=tuple(graph.aggregation[v] for v in order),
        ranks=tuple(ranks),
        tail=tuple(to[graph.tail[e]] for e in links),
        head=tuple(to[graph.head[e]] for e in links),
        capacity=tuple(graph.capacity[e] for e in links),
    )


CLOS = """
format: forestcoll.topology/1
name: three-tiers-{pods}x{leaves}x{hosts}
parameters: {pods: 16, leaves: 8, hosts: 16, spines: 8, cores: 8}
boxes:
  count: pods * leaves * hosts
  nodes: {"gpu{0..7}": {kind: gpu}, nvswitch: {kind: switch}}
  links: [{src: "gpu{0..7}", dst: nvswitch, bandwidth: 450}]
nodes:
  pod{0..pods-1}-leaf{0..leaves-1}: {kind: switch}
  pod{0..pods-1}-spine{0..spines-1}: {kind: switch}
  core{0..spines-1}-{0..cores-1}: {kind: switch}
links:
  - for: {b: 0..pods*leaves*hosts-1}
    src: box{b}/gpu{0..7}
    dst: pod{b // (hosts*leaves)}-leaf{b // hosts % leaves}
    bandwidth: 50
  - for: {p: 0..pods-1}
    src: pod{p}-leaf{0..leaves-1}
    dst: pod{p}-spine{0..spines-1}
    bandwidth: hosts * 8 * 50 / spines
  - for: {p: 0..pods-1, s: 0..spines-1}
    src: pod{p}-spine{s}
    dst: core{s}-{0..cores-1}
    bandwidth: leaves * hosts * 8 * 50 / spines / cores
"""
"""A Clos network of three tiers: 16,384 GPUs."""


def clos(**sizes: int) -> Topology:
    """That network, whole or of other sizes."""
    return loads_topology(CLOS, settings={name: str(size) for name, size in sizes.items()})


PLANES = """
format: forestcoll.topology/1
name: planes-{leaves}x{hosts}
parameters: {leaves: 32, hosts: 64, spines: 4}
boxes:
  count: leaves * hosts
  nodes: {"gpu{0..7}": {kind: gpu}, nvswitch: {kind: switch}}
  links: [{src: "gpu{0..7}", dst: nvswitch, bandwidth: 450}]
nodes:
  plane{0..7}-leaf{0..leaves-1}: {kind: switch}
  plane{0..7}-spine{0..spines-1}: {kind: switch}
links:
  - for: {b: 0..leaves*hosts-1, r: 0..7}
    src: box{b}/gpu{r}
    dst: plane{r}-leaf{b // hosts}
    bandwidth: 50
  - for: {r: 0..7}
    src: plane{r}-leaf{0..leaves-1}
    dst: plane{r}-spine{0..spines-1}
    bandwidth: hosts * 50 / spines
"""
"""Eight planes, each a fat tree of its own with a GPU of every box: 16,384 GPUs."""


def planes(**sizes: int) -> Topology:
    """That network, whole or of other sizes."""
    return loads_topology(PLANES, settings={name: str(size) for name, size in sizes.items()})
