"""The catalogue: every entry is whole and says where its numbers come from; known cuts and links.

What each is made of stands in readings/catalogue.txt.
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatch
from fractions import Fraction
from pathlib import Path

import pytest
from graphs import machine, named
from real_files import real
from test_readings import rows

from forestcoll.common.errors import TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import (
    catalog,
    check_connected,
    dumps_topology,
    load_topology,
    loads_topology,
)


def test_the_catalogue_is_complete() -> None:
    told = {name.partition(" ")[0] for name in rows("catalogue")}
    assert told == set(catalog.names()), (
        "what is in topologies/ has rows in tests/readings/catalogue.txt: see CONTRIBUTING.md, "
        '"A topology"'
    )


@pytest.mark.parametrize("text", rows("catalogue"))
def test_every_entry(text: str) -> None:
    name, topology = text.partition(" ")[0], machine(text)
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


# GB/s of the allgather that the cut round all of a box, or all but these, allows
CUTS = {
    "dgx-a100": ("2400/7", "box0/gpu0"),
    "dgx-a100 boxes=2": ("1040/3", "box0/gpu0"),
    "dgx-a100 boxes=4": ("800/3", "box0/*"),
    "dgx-a100 boxes=8": ("1600/7", "box0/*"),
    "dgx-a100 boxes=128": ("25600/127", "box0/*"),
    "mi250": ("2400/7", "box0/gpu1[45]"),
    "mi250 boxes=2": ("5312/15", "box0/gpu1[45]"),
    "torus-3d x=8 y=8 z=16": ("102400/341", "gpu0"),
}


@pytest.mark.parametrize("text", CUTS)
def test_tight_cuts_give_the_known_optima(text: str) -> None:
    graph, (algbw, outside) = named(text), CUTS[text]
    cut = frozenset(v for v, name in enumerate(graph.names) if not fnmatch(name, outside))
    inside = sum(rank in cut for rank in graph.ranks)
    assert graph.leaving(cut) * len(graph.ranks) / inside == Fraction(algbw)


def test_mi250_links_are_those_of_the_system_description() -> None:
    """By the degrees of its dies, which are numbered otherwise there."""
    stated: dict[str, list[int]] = {}
    for line in real("rccl-xml/topo_16p1h.xml").read_text().splitlines():
        if bus := re.search(r'<pci busid="([^"]+)"', line):
            die = bus[1]
        for count in re.findall(r'<xgmi target="[^"]+" count="(\d+)"', line):
            stated.setdefault(die, []).append(int(count))
    ours: dict[str, list[Fraction]] = {}
    for (src, _), rate in machine("mi250").rates().items():
        ours.setdefault(src, []).append(rate / 50)
    assert len(stated) == 16
    assert sorted(map(sorted, stated.values())) == sorted(map(sorted, ours.values()))


def test_dgx1_links_are_those_that_nvidia_smi_prints() -> None:
    printed = {}
    for line in real("nvidia-smi-topo/dgx1-v100.txt").read_text().splitlines():
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d", cells[0]) and "X" in cells:
            for other, cell in enumerate(cells[1:9]):
                if cell.startswith("NV"):
                    printed[f"box0/{cells[0].lower()}", f"box0/gpu{other}"] = int(cell[2:]) * 25
    assert len(printed) == 32
    assert machine("dgx1-v100").rates() == printed


def test_neighbours() -> None:
    """In a torus one step along a side; in a hypercube one bit; every two groups share a link."""
    steps = [
        (f"gpu{5 * i + j}", f"gpu{5 * ((i + a) % 3) + (j + b) % 5}")
        for i in range(3)
        for j in range(5)
        for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))
    ]
    assert set(machine("torus-2d x=3 y=5").rates()) == set(steps)
    bits = {(f"gpu{i}", f"gpu{i ^ 1 << bit}") for i in range(16) for bit in range(4)}
    assert set(machine("hypercube dimension=4").rates()) == bits
    fly = machine("dragonfly groups=9 routers=4 gpus=2")
    between = [
        (link.src, link.dst)
        for link in fly.links
        if link.src.split("/")[0] != link.dst.split("/")[0]
    ]
    assert len({frozenset(end.split("/")[0] for end in ends) for ends in between}) == 36
    assert set(Counter(end for ends in between for end in ends).values()) == {2}


def test_load_takes_paths_and_names(tmp_path: Path) -> None:
    assert machine("dgx-a100.yaml") == machine("dgx-a100")
    path = tmp_path / "mine.yaml"
    path.write_text(dumps_topology(machine("ring gpus=3")))
    assert catalog.load(path) == catalog.load(str(path)) == load_topology(path)
    # A file of that name wins over the catalogue.
    assert catalog.load(path).name == "ring-3"


def test_unknown_names_elsewhere() -> None:
    with pytest.raises(TopologyError, match=r"^no file and no topology of the catalogue is called"):
        catalog.load("a\0b")
    for function in (catalog.source, catalog.describe, catalog.heading):
        with pytest.raises(TopologyError, match="did you mean 'mi250'"):
            function("mi25")
