"""ForestColl: topology in, proven bandwidth-optimal collective schedule out.

The public names below are imported when first used, so that `import forestcoll` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forestcoll.budget import Budget
    from forestcoll.catalog import load as load_topology
    from forestcoll.errors import ForestCollError
    from forestcoll.execute.cpu import run
    from forestcoll.forest import Forest
    from forestcoll.pipeline import Synthesis, front, optimum, synthesize
    from forestcoll.plans import read_plan
    from forestcoll.program import Collective, Program
    from forestcoll.topology import Topology
    from forestcoll.verdict import verify_text

__version__ = "0.1.0"
# fmt: off
__all__ = ["Budget", "Collective", "Forest", "ForestCollError", "Program", "Synthesis", "Topology",
           "front", "load_topology", "optimum", "read_plan", "run", "synthesize", "verify_text"]
_HOMES = {"Budget": "budget", "Collective": "program", "Forest": "forest",
          "ForestCollError": "errors", "Program": "program", "Synthesis": "pipeline",
          "Topology": "topology", "front": "pipeline", "load_topology": "catalog",
          "optimum": "pipeline", "read_plan": "plans", "run": "execute.cpu",
          "synthesize": "pipeline", "verify_text": "verdict"}
# fmt: on


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'forestcoll' has no attribute '{name}'")
    home = import_module(f"forestcoll.{_HOMES[name]}")
    return getattr(home, "load" if name == "load_topology" else name)
