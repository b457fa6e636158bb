"""Topologies: what is linked to what, at which exact bandwidth.

`load_topology(path, settings)` gives a `Topology`: nodes in order (the order of the GPUs is the
order of the ranks) and links in GB/s (10^9 bytes a second). The file is YAML:

    format: forestcoll.topology/1
    name: pod-{boxes}                   # {expressions} over the parameters
    description: GPUs behind one switch a box
    parameters:                         # what --set name=value may change
      boxes: 1                          # whole number, at least 1
      uplink: {default: 25, type: number, minimum: 1, maximum: 400, description: GB/s per GPU}
    boxes:                              # repeated under box0/, box1/, ...; {box} is the number
      count: boxes
      nodes:
        gpu{0..7}: {kind: gpu}          # eight nodes
        nvswitch: {kind: switch, multicast: true, aggregation: true}
      links:
        - {src: "gpu{0..7}", dst: nvswitch, bandwidth: 300, latency: 0.35}
    nodes:
      fabric: {kind: switch, when: boxes > 1}
    links:
      - {src: "box{0..boxes-1}/gpu{0..7}", dst: fabric, bandwidth: uplink, when: boxes > 1}
      - {for: {b: 0..boxes-2}, src: "box{b}/gpu0", dst: "box{b+1}/gpu0", bandwidth: 10}

A range in `src` or `dst` stands for all its nodes, two ranges for all pairs; `for` names indices
(a later range may use an earlier index) where ends belong together. Numbers may be expressions of
exact arithmetic: + - * / // % ** ( ), == != < <= > >=, and, or, not. Nodes of the boxes come first.
Without parameters, boxes, ranges and loops it is the explicit form, which `dumps_topology` writes.

docs/machines.md has the whole of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forestcoll.topology.file import (
        Heading,
        dumps_topology,
        load_topology,
        loads_topology,
        read_heading,
        read_text,
    )
    from forestcoll.topology.model import (
        Adapter,
        Link,
        LinkRule,
        Node,
        Topology,
        check_connected,
        cut_in_words,
        find_cut,
        from_networkx,
        slug,
    )
    from forestcoll.topology.numbers import bandwidth, doubt_port, exact, has_unit, show

__all__ = [
    "Adapter",
    "Heading",
    "Link",
    "LinkRule",
    "Node",
    "Topology",
    "bandwidth",
    "check_connected",
    "cut_in_words",
    "doubt_port",
    "dumps_topology",
    "exact",
    "find_cut",
    "from_networkx",
    "has_unit",
    "load_topology",
    "loads_topology",
    "read_heading",
    "read_text",
    "show",
    "slug",
]


def __getattr__(name: str) -> object:
    """Imports a name's module when it is first used: the command line names readers alone."""
    for home in ("model", "numbers", "file") if name in __all__ else ():
        module = import_module(f"forestcoll.topology.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'forestcoll.topology' has no attribute '{name}'")
