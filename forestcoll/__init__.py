"""ForestColl: topology in, proven schedule out. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forestcoll.common.errors import ForestCollError
    from forestcoll.compile.budget import Budget
    from forestcoll.compile.front import front
    from forestcoll.compile.optimum import optimum
    from forestcoll.compile.request import Request
    from forestcoll.compile.synthesize import Synthesis, synthesize
    from forestcoll.compile.verdict import verify_text
    from forestcoll.execute.cpu import run
    from forestcoll.plans import read_plan
    from forestcoll.program import Collective, Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.study.comparison.play import compare
    from forestcoll.topology import Topology
    from forestcoll.topology.catalog import load as load_topology

__version__ = "0.1.0"
# fmt: off
__all__ = ["Budget", "Collective", "Forest", "ForestCollError", "Program", "Request", "Synthesis",
    "Topology", "compare", "front", "load_topology", "optimum", "read_plan", "run", "synthesize",
    "verify_text"]
_HOMES = {"synthesize": "compile.synthesize", "Synthesis": "compile.synthesize",
          "verify_text": "compile.verdict", "optimum": "compile.optimum", "front": "compile.front",
          "ForestCollError": "common.errors", "Budget": "compile.budget", "run": "execute.cpu",
          "load_topology": "topology.catalog", "Topology": "topology", "read_plan": "plans",
          "Collective": "program", "Program": "program", "compare": "study.comparison.play",
          "Forest": "schedule.forest", "Request": "compile.request"}
# fmt: on
import_module("forestcoll.common.native")  # finds compiled modules, and `forestcoll.torch`


def __getattr__(name: str) -> object:
    if name == "torch":
        return import_module("forestcoll.torch")
    if name not in _HOMES:
        raise AttributeError(f"module 'forestcoll' has no attribute '{name}'")
    home = import_module(f"forestcoll.{_HOMES[name]}")
    return getattr(home, "load" if name == "load_topology" else name)
