"""ForestColl: topology in, proven schedule out. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forestcoll.catalog import load as load_topology
    from forestcoll.comparison import compare
    from forestcoll.compile.budget import Budget
    from forestcoll.compile.front import front
    from forestcoll.compile.optimum import optimum
    from forestcoll.compile.synthesize import Synthesis, synthesize
    from forestcoll.compile.verdict import verify_text
    from forestcoll.errors import ForestCollError
    from forestcoll.execute.cpu import run
    from forestcoll.forest import Forest
    from forestcoll.plans import read_plan
    from forestcoll.program import Collective, Program
    from forestcoll.topology import Topology

__version__ = "0.1.0"
# fmt: off
__all__ = ["Budget", "Collective", "Forest", "ForestCollError", "Program", "Synthesis", "Topology",
    "compare", "front", "load_topology", "optimum", "read_plan", "run", "synthesize", "verify_text"]
_HOMES = {"synthesize": "compile.synthesize", "Synthesis": "compile.synthesize", "Forest": "forest",
          "verify_text": "compile.verdict", "optimum": "compile.optimum", "front": "compile.front",
          "ForestCollError": "errors", "Budget": "compile.budget", "load_topology": "catalog",
          "Collective": "program", "compare": "comparison", "Topology": "topology",
          "Program": "program", "run": "execute.cpu", "read_plan": "plans"}
# fmt: on
import_module("forestcoll.native")  # who looks for compiled modules where nobody else finds them


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'forestcoll' has no attribute '{name}'")
    home = import_module(f"forestcoll.{_HOMES[name]}")
    return getattr(home, "load" if name == "load_topology" else name)
