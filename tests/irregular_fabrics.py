"""Small members of the families of irregular fabrics that scripts/benchmarks/irregular.py makes."""

from __future__ import annotations

from typing import Any

from command_line import script

from forestcoll.graph.capacity_graph import CapacityGraph


def families() -> Any:
    """The generator, which is a script and in no package."""
    return script("irregular")


def small(family: str, seed: int = 0) -> CapacityGraph:
    """A member with a good 64 ranks."""
    made = families()
    sizes = made.FAMILIES[family].small
    return CapacityGraph.from_topology(made.make(family, seed, *sizes))
