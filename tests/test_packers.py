"""Every packer on every fabric, by one validator: trees span, start where they should, and fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import reference
from graphs import build, dgx_a100, mi250, named, ring, torus
from random_graphs import validate

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Tree, all_images
from forestcoll.solver.compact.forests import pack_compact
from forestcoll.solver.packing import pack, pack_quickly
from forestcoll.solver.phase_packing import pack_part
from forestcoll.solver.shallow.rehanging import Wanted, pack_irregular
from forestcoll.solver.task import analyse

Packer = Callable[[CapacityGraph, list[int], list[int]], Sequence[Tree] | None]


def pack_by_oracle(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree]:
    """The plain twin's stages: switches split off, trees packed, paths put back."""
    links = dict(zip(graph.ends, capacity, strict=True))
    return [*reference.pack_paths(graph, links, {v: k for v, k in enumerate(supply) if k})]


def pack_by_symmetry(
    graph: CapacityGraph, capacity: list[int], supply: list[int]
) -> list[Tree] | None:
    """A few trees and their images under a group."""
    found = pack_compact(graph, max(supply), capacity)
    return None if found is None else all_images(graph, *found)


def pack_first(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree] | None:
    """In layers, or box by box."""
    found = pack_quickly(graph, capacity, supply)
    return None if found is None else found[1]


def pack_low(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree] | None:
    """By re-hanging boxes."""
    return pack_irregular(Wanted(graph, capacity, supply), 2)


def without_link(graph: CapacityGraph, one: str, other: str) -> CapacityGraph:
    """`graph` less the links between two nodes."""
    kept = [
        e for e, (u, v) in enumerate(graph.ends) if {graph.names[u], graph.names[v]} != {one, other}
    ]
    assert len(kept) == len(graph.tail) - 2
    return graph.keep(kept)


PACKERS: dict[str, Packer] = {
    "any": pack,
    "part": pack_part,
    "first": pack_first,
    "symmetry": pack_by_symmetry,
    "low": pack_low,
    "oracle": pack_by_oracle,
}
FABRICS: dict[str, Callable[[], CapacityGraph]] = {
    "ring": lambda: ring(5),
    "one-way ring": lambda: ring(4, both=False),
    "torus": lambda: torus(4, 4),
    "star": lambda: named("star", gpus=6),
    "two A100 boxes": lambda: dgx_a100(2),
    "two MI250 boxes": lambda: mi250(2, dies=4),
    "fat tree": lambda: named("fat-tree", leaves=2, hosts=2, gpus=2),
    "a link down": lambda: without_link(dgx_a100(3, gpus=4), "box0/gpu0", "fabric0"),
    "uneven": lambda: build([("a", "b", 3), ("b", "c", 2), ("c", "a", 1), ("c", "d", 2)]),
}


REFUSED = {
    "all": {
        ("first", "uneven"),
        ("symmetry", "torus"),
        ("symmetry", "a link down"),
        ("symmetry", "uneven"),
    },
    "one": {
        ("first", "ring"),
        ("first", "torus"),
        ("first", "uneven"),
        ("low", "torus"),
        ("low", "star"),
    },
}
"""What a packer gives back to the next one, by how many roots there are."""


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("root", [None, 0], ids=["all roots", "one root"])
def test_packed_trees_are_what_was_asked_for(packer: str, fabric: str, root: int | None) -> None:
    graph = FABRICS[fabric]()
    task = analyse(graph, root)
    assert task.graph == graph  # balanced as it is
    capacity, supply = task.capacities(), task.supply(task.trees_per_root)
    if packer == "symmetry" and root is not None:
        pytest.skip("symmetries bring a root to other roots")
    trees = PACKERS[packer](graph, capacity, supply)
    assert (trees is None) == ((packer, fabric) in REFUSED["all" if root is None else "one"])
    if trees is not None:
        validate(graph, capacity, supply, trees)
