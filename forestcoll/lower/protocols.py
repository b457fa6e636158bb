"""Which protocol a plan sends its messages in."""

from __future__ import annotations

from forestcoll.common.errors import PlanError
from forestcoll.program import Protocol
from forestcoll.program.targets import Target
from forestcoll.schedule.forest import Forest


def bulk_protocol(forest: Forest, target: Target) -> Protocol:
    """That for much data: Simple, but LL128 for a rooted collective that leaves a box in MSCCL XML.

    There the proxies count a Simple broadcast's or reduce's steps by those collectives' own rule,
    one a slice, which the interpreter does not follow (Azure/msccl-executor-nccl c6f6b36,
    msccl_setup.cc): it would stop half-way. Nor would messages for which both counts agree help:
    the interpreter's slices are two steps and it tells the size of the first alone, while the proxy
    waits for that of each (prims_simple.h: waitPeer; net.cc: sendProxyProgress). RCCL 0cbce2a does
    the same.
    """
    if target.style == "onesided" or not forest.collective.rooted:
        return "Simple"
    graph = forest.graph
    return "LL128" if len({graph.box(node) for node in graph.ranks}) > 1 else "Simple"


def choose_protocol(forest: Forest, target: Target, asked: Protocol | None) -> Protocol:
    """What is asked for, else that for much data. PlanError where the target does not have it."""
    bulk = bulk_protocol(forest, target)
    if target.style == "onesided" and asked not in (None, "Simple"):
        raise PlanError(
            f"protocol {asked}: {target.name} plans are of protocol Simple; LL and LL128 are "
            "for msccl and rccl (--target, or --format msccl-xml)"
        )
    if asked == "Simple" != bulk:
        raise PlanError(
            f"protocol Simple: a {forest.collective} that leaves a box would stop half-way in "
            f"{target.name}, whose proxies count its steps otherwise; use LL or LL128 (--protocol)"
        )
    return asked or bulk
