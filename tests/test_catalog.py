"""The bundled topologies: right capacities, right names, found the right way."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from forestcoll.common.errors import TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import (
    Topology,
    catalog,
    check_connected,
    dumps_topology,
    load_topology,
    loads_topology,
)

SHARED = Path(__file__).parents[2] / "shared" / "topologies-real"
MACHINES = (
    "dgx1-v100",
    "dgx2-v100",
    "dgx-a100",
    "dgx-h100",
    "dgx-b200",
    "gb200-nvl72",
    "mi250",
    "mi300x",
)
FAMILIES = (
    "torus-2d",
    "torus-3d",
    "fat-tree",
    "rail",
    "dragonfly",
    "hypercube",
    "ring",
    "star",
)


def load(name: str, **parameters: object) -> Topology:
    return catalog.load(name, {key: str(value) for key, value in parameters.items()})


def degrees(topology: Topology) -> set[Fraction]:
    """GB/s leaving each GPU, as a set."""
    leaving = dict.fromkeys(topology.gpus, Fraction(0))
    for (src, _), bandwidth in topology.rates().items():
        if src in leaving:
            leaving[src] += bandwidth
    return set(leaving.values())


def test_the_catalogue_is_complete() -> None:
    new = sorted(set(catalog.names()) - {*MACHINES, *FAMILIES})
    assert not new, (
        f"{', '.join(new)}: new in topologies/. Add it here: a machine to MACHINES, with a row in "
        "test_machines, a family to FAMILIES, with a test of its links. The rest stands in "
        'CONTRIBUTING.md under "A topology".'
    )
    gone = sorted({*MACHINES, *FAMILIES} - set(catalog.names()))
    assert not gone, f"{', '.join(gone)}: in MACHINES or FAMILIES here, but not in topologies/"


def test_a_new_topology_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "names", lambda: (*MACHINES, *FAMILIES, "my-star"))
    with pytest.raises(AssertionError, match=r'my-star: new in topologies/\. Add .* "A topology"'):
        test_the_catalogue_is_complete()
    monkeypatch.setattr(catalog, "names", lambda: (*MACHINES, *FAMILIES[1:]))
    with pytest.raises(AssertionError, match="torus-2d: in MACHINES or FAMILIES here"):
        test_the_catalogue_is_complete()


@pytest.mark.parametrize("name", MACHINES + FAMILIES)
def test_every_entry(name: str) -> None:
    topology = load(name)
    check_connected(topology)
    assert CapacityGraph.from_topology(topology).n == len(topology.nodes)
    assert loads_topology(dumps_topology(topology)) == topology
    assert topology.name.startswith(f"{name}-")
    about = catalog.describe(name)
    assert "\n" not in about
    for parameter in catalog.heading(name).parameters:
        assert str(parameter) in about
    # The source of the numbers stands in the comment at the head.
    head = catalog.source(name).split("format:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert re.search(r"GB/s", head)


@pytest.mark.parametrize(
    ("name", "gpus", "inside", "outside"),
    [
        ("dgx1-v100", 8, 150, Fraction(25, 4)),
        ("dgx2-v100", 16, 150, Fraction(25, 4)),
        ("dgx-a100", 8, 300, 25),
        ("dgx-h100", 8, 450, 50),
        ("dgx-b200", 8, 900, 50),
        ("gb200-nvl72", 72, 900, 50),
        ("mi300x", 8, 448, 50),
    ],
)
def test_machines(name: str, gpus: int, inside: int, outside: Fraction | int) -> None:
    one = load(name)
    assert len(one.gpus) == gpus
    assert one.name == f"{name}-1"
    assert "fabric" not in one.nodes
    assert degrees(one) == {inside}
    two = load(name, boxes=2)
    assert two.name == f"{name}-2"
    assert len(two.gpus) == 2 * gpus
    assert degrees(two) == {inside + outside}
    assert two.rates()["box1/gpu0", "fabric"] == outside
    assert len(two.boxes) == 2


def test_switches_of_hopper_and_later_copy_and_add() -> None:
    for name in ("dgx-h100", "dgx-b200", "gb200-nvl72"):
        node = load(name).nodes["box0/nvswitch"]
        assert node.multicast
        assert node.aggregation
        plain = load(name, nvls=0).nodes["box0/nvswitch"]
        assert not plain.multicast
        assert not plain.aggregation
    assert not load("dgx-a100").nodes["box0/nvswitch"].multicast


def bound(topology: Topology, inside: Callable[[str], bool]) -> Fraction:
    """The allgather bound of the cut that holds the nodes for which `inside` is true."""
    graph = CapacityGraph.from_topology(topology)
    cut = frozenset(i for i, name in enumerate(graph.names) if inside(name))
    ranks = sum(rank in cut for rank in graph.ranks)
    return graph.leaving(cut) * len(graph.ranks) / ranks


def test_tight_cuts_give_the_known_optima() -> None:
    def all_but(*names: str) -> Callable[[str], bool]:
        return lambda node: node not in names

    def all_but_box0(node: str) -> bool:
        return not node.startswith("box0/")

    gpu = "box0/gpu0"
    assert bound(load("dgx-a100"), all_but(gpu)) == Fraction(2400, 7)
    assert bound(load("dgx-a100", boxes=2), all_but(gpu)) == Fraction(1040, 3)
    assert bound(load("dgx-a100", boxes=4), all_but_box0) == Fraction(800, 3)
    assert bound(load("dgx-a100", boxes=8), all_but_box0) == Fraction(1600, 7)
    assert bound(load("dgx-a100", boxes=128), all_but_box0) == Fraction(25600, 127)
    pair = ("box0/gpu14", "box0/gpu15")
    assert bound(load("mi250"), all_but(*pair)) == Fraction(2400, 7)
    assert bound(load("mi250", boxes=2), all_but(*pair)) == Fraction(5312, 15)
    assert bound(load("torus-3d", x=8, y=8, z=16), all_but("gpu0")) == Fraction(102400, 341)


def test_mi250_links_are_those_of_the_system_description() -> None:
    path = SHARED / "rccl-xml" / "topo_16p1h.xml"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_text()
    buses: dict[str, int] = {}
    stated: list[tuple[str, str, int]] = []
    bus = ""
    for match in re.finditer(
        r'<pci busid="([^"]+)"|<gpu dev="(\d+)"|<xgmi target="([^"]+)" count="(\d+)"', text
    ):
        if match[1]:
            bus = match[1]
        elif match[2]:
            buses[bus] = int(match[2])
        else:
            stated.append((bus, match[3], int(match[4])))
    counts = {(buses[src], buses[dst]): count for src, dst, count in stated}
    directed = {
        (int(src.removeprefix("box0/gpu")), int(dst.removeprefix("box0/gpu"))): bandwidth / 50
        for (src, dst), bandwidth in load("mi250").rates().items()
    }
    assert sorted(counts.values()) == sorted(directed.values())
    assert _degrees_by_die(counts) == _degrees_by_die(directed)


def _degrees_by_die(counts: dict[tuple[int, int], Fraction] | dict[tuple[int, int], int]) -> object:
    return sorted(
        sorted(count for (src, _), count in counts.items() if src == die) for die in range(16)
    )


def test_dgx1_links_are_those_that_nvidia_smi_prints() -> None:
    path = SHARED / "nvidia-smi-topo" / "dgx1-v100.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    printed = {}
    for line in path.read_text().splitlines():
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d", cells[0]) and "X" in cells:
            for other, cell in enumerate(cells[1:9]):
                if cell.startswith("NV"):
                    printed[f"box0/{cells[0].lower()}", f"box0/gpu{other}"] = int(cell[2:]) * 25
    assert len(printed) == 32
    assert load("dgx1-v100").rates() == printed


@pytest.mark.parametrize(
    ("sizes", "links", "degree"),
    [
        ((4, 4, 4), 192, {300}),
        ((8, 8, 16), 3072, {300}),
        ((2, 2, 2), 12, {150}),
        ((1, 1, 2), 1, {50}),
        ((2, 1, 3), 9, {150}),
        ((1, 5, 1), 5, {100}),
    ],
)
def test_torus(sizes: tuple[int, int, int], links: int, degree: set[int]) -> None:
    x, y, z = sizes
    torus = load("torus-3d", x=x, y=y, z=z)
    assert torus.name == f"torus-3d-{x}x{y}x{z}"
    assert len(torus.gpus) == x * y * z
    assert len(torus.links) == links == len(torus.rates()) // 2
    assert degrees(torus) == degree
    check_connected(torus)


def test_torus_neighbours() -> None:
    torus = load("torus-2d", x=3, y=5)
    assert torus.name == "torus-2d-3x5"
    expected = set()
    for i in range(3):
        for j in range(5):
            for a, b in ((i + 1) % 3, j), (i, (j + 1) % 5):
                one, two = f"gpu{5 * i + j}", f"gpu{5 * a + b}"
                expected |= {(one, two), (two, one)}
    assert set(torus.rates()) == expected


def test_hypercube_ring_star() -> None:
    cube = load("hypercube", dimension=4)
    assert set(cube.rates()) == {
        (f"gpu{i}", f"gpu{i ^ 1 << bit}") for i in range(16) for bit in range(4)
    }
    assert degrees(load("ring", gpus=5)) == {100}
    assert degrees(load("ring", gpus=2)) == {50}
    assert degrees(load("star", gpus=3, bandwidth="37.3")) == {Fraction(373, 10)}


def test_dragonfly_joins_every_two_groups_once() -> None:
    fly = load("dragonfly", groups=9, routers=4, gpus=2)
    assert len(fly.gpus) == 72
    between = [
        (link.src, link.dst)
        for link in fly.links
        if link.src.split("/")[0] != link.dst.split("/")[0]
    ]
    assert len({frozenset(end.split("/")[0] for end in ends) for ends in between}) == 36
    ports: dict[str, int] = {}
    for ends in between:
        for end in ends:
            ports[end] = ports.get(end, 0) + 1
    assert set(ports.values()) == {2}
    assert len(ports) == 36
    check_connected(fly)


def test_fat_tree_oversubscription() -> None:
    for ratio in (1, 2, "3/2"):
        tree = load("fat-tree", leaves=4, hosts=2, gpus=4, spines=2, oversubscription=ratio)
        up = [b for (src, dst), b in tree.rates().items() if (src, dst[:5]) == ("leaf1", "spine")]
        assert len(up) == 2
        assert sum(up) * Fraction(ratio) == 2 * 4 * 50
        assert ("box7/gpu0", "leaf3") in tree.rates()
        check_connected(tree)
    assert len(load("fat-tree", leaves=1, hosts=1).nodes) == 9


def test_rails() -> None:
    rails = load("rail", boxes=4, gpus=8, rails=4, oversubscription=2)
    directed = rails.rates()
    assert directed["box3/gpu5", "rail1"] == 50
    assert directed["rail1", "spine"] == 4 * 2 * 50 / Fraction(2)
    alone = load("rail", boxes=2, spine=0)
    assert "spine" not in alone.nodes
    check_connected(alone)
    uneven = load("rail", boxes=2, gpus=3, rails=2).rates()
    assert (uneven["rail0", "spine"], uneven["rail1", "spine"]) == (200, 100)


def test_load_takes_paths_and_names(tmp_path: Path) -> None:
    assert load("dgx-a100.yaml") == load("dgx-a100")
    path = tmp_path / "mine.yaml"
    path.write_text(dumps_topology(load("ring", gpus=3)))
    assert catalog.load(path) == catalog.load(str(path)) == load_topology(path)
    # A file of that name wins over the catalogue.
    assert catalog.load(path).name == "ring-3"


def test_unknown_names_elsewhere() -> None:
    with pytest.raises(TopologyError, match=r"^no file and no topology of the catalogue is called"):
        catalog.load("a\0b")
    for function in (catalog.source, catalog.describe, catalog.heading):
        with pytest.raises(TopologyError, match="did you mean 'mi250'"):
            function("mi25")
