"""Small members of the families of irregular fabrics that scripts/benchmarks/irregular.py makes."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from forestcoll.graph.capacity_graph import CapacityGraph

SCRIPT = Path(__file__).parents[1] / "scripts" / "benchmarks" / "irregular.py"


@lru_cache
def families() -> ModuleType:
    """The generator, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("irregular_families", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def small(family: str, seed: int = 0) -> CapacityGraph:
    """A member with a good 64 ranks."""
    made = families()
    sizes = made.FAMILIES[family].small
    return CapacityGraph.from_topology(made.make(family, seed, *sizes))
