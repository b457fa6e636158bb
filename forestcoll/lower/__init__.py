"""Forest -> Program: chunks, thread blocks, channels, within the limits of a target.

    layout           which chunks a tree carries, and where they lie in each rank's buffers
    transfers        what one rank hands another in one step, of trees and of routes
    schedule         transfers for much data in the order of a schedule on the links
    fifo             MSCCL XML: send, receive, copy, reduce; dependencies between thread blocks
      fifo_blocks    its thread blocks while they are written
    network_planes   two networks: which channels lead to which
    onesided         MSCCL++: put, signal, wait; one pipeline a tree
      tree_pieces    trees too wide for a thread block, cut
      tree_bundles   trees that go through their pipelines in step
      partial_sums   where they lie
      pipelines      what is repeated slice by slice
      piece_work     what a rank does for a piece of a tree
      handshakes     what makes launch after launch safe, on the channels to be
      thread_blocks  which pieces share thread blocks
      shared_blocks  which of them a rank has
    packets          MSCCL++ for few bytes: packet_thread_blocks, packet_handshakes
    nvls             MSCCL++ where switches copy and add
    in_place         a program for calls in place alone, where one for both would be wrong
    filling          how the work is spread over thread blocks, by simulated time
    instances        into how many parts trees are cut, for more thread blocks at work
    limits           what a program takes of a target, and the refusals
    protocols        how messages are sent

A program that a box's ports leave with an allgather's input is right out of place only, and
`serve` makes one for calls in place of it; a few of packets are too (packets). All others are right
in place and out of place. Out of place none ever writes the input.
"""

from __future__ import annotations

from dataclasses import replace

from forestcoll.common.errors import PlanError
from forestcoll.lower.fifo import lower_fifo
from forestcoll.lower.filling import fill, refine, reorder
from forestcoll.lower.in_place import serve
from forestcoll.lower.instances import block_rate
from forestcoll.lower.layout import Layout, layout
from forestcoll.lower.limits import Limits, Usage, check_limits, usage
from forestcoll.lower.network_planes import no_parity, parity_of
from forestcoll.lower.onesided import TOGETHER, Spread, lower_onesided
from forestcoll.lower.packets import MAX_BYTES, lower_packets
from forestcoll.lower.protocols import bulk_protocol, choose_protocol
from forestcoll.lower.schedule import Links, Partners, links_of
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import Target, most_bytes, runtime_of
from forestcoll.schedule.forest import Forest

__all__ = [
    "UNIT_BYTES",
    "Usage",
    "fill",
    "fits",
    "hopeless",
    "lower",
    "refine",
    "reorder",
    "serve",
    "usage",
]

UNIT_BYTES = 256 * 1024
"""Slice of a onesided pipeline: long enough for a network's packets, short against a buffer."""


def lower(
    forest: Forest,
    target: Target,
    *,
    unit_bytes: int = UNIT_BYTES,
    instances: int = 1,
    protocol: Protocol | None = None,
    spread: Spread = TOGETHER,
    adders: bool = False,
    partners: Partners = "shift",
) -> Program:
    """The program that carries the forest out on every rank, within the limits of `target`.

    `unit_bytes`: the slice that a onesided pipeline moves at a time, a multiple of 16. `instances`:
    equal parts into which every tree is cut, for more thread blocks at work on few trees.
    `protocol`: how messages are sent; None takes what is fastest for much data. Onesided programs
    have Simple and, for little data, LL: packets. `adders`: thread blocks of their own add up the
    sums of a fifo program. `partners`: which of its equally urgent messages go first. A compact
    forest is written out first (UnsupportedError beyond its limit). Raises PlanError where the
    target cannot hold it (with rank, figure, limit, a way out), or a path relays through no rank.
    """
    _check_arguments(forest, unit_bytes, instances)
    forest = forest.expanded()
    names = tuple(forest.graph.names[node] for node in forest.graph.ranks)
    title = f"{forest.collective} on {forest.name}"
    limits = Limits(target, title, names, forest.trees_per_root)
    fifo = target.style == "fifo"
    parity = parity_of(forest.graph) if fifo else no_parity
    chunks = layout(forest, instances, parity, spread.grain, spread.units)
    boxes = tuple(forest.graph.box(node) for node in forest.graph.ranks)
    extra = {"instances": str(instances)} if instances > 1 else {}
    if not fifo and protocol not in (None, "Simple"):
        return _packets(forest, chunks, limits, boxes, protocol, extra)
    sent = choose_protocol(forest, target, protocol)
    if fifo:
        ranks = lower_fifo(chunks, limits, _scheduled_on(forest, target, sent, partners), adders)
    else:
        ranks, halves = lower_onesided(chunks, limits, boxes, unit_bytes, spread)
        if halves:
            extra["halves"] = halves
    program = Program(
        name=forest.name,
        collective=forest.collective,
        style=target.style,
        ranks=ranks,
        in_place=True,
        out_of_place=True,
        root=forest.root,
        protocol=sent,
        names=names,
        extra=extra,
    )
    if fifo:  # of the runtimes that can run it, the narrowest
        most = most_bytes(runtime_of(program), sent, chunks.chunks)
        program = replace(program, max_bytes=most)
    if next(program.misplaced(), None) is not None:
        program = replace(program, in_place=False)  # `serve` makes one for calls in place
    if not fifo:
        check_limits(program, limits)
    return program


def _check_arguments(forest: Forest, unit_bytes: int, instances: int) -> None:
    if unit_bytes < 16 or unit_bytes % 16:
        raise PlanError(f"unit_bytes is {unit_bytes}: must be a positive multiple of 16")
    if instances < 1:
        raise PlanError(f"instances is {instances}: must be at least 1")
    if forest.n < 2:
        raise PlanError(f"{forest.name} has {forest.n} ranks: a plan needs at least 2")


def _scheduled_on(
    forest: Forest, target: Target, protocol: Protocol, partners: Partners
) -> Links | None:
    """The links on whose schedule messages go, where the protocol is that for much data."""
    if protocol != bulk_protocol(forest, target):
        return None
    return links_of(forest, block_rate(forest, protocol), partners)


def _packets(
    forest: Forest,
    chunks: Layout,
    limits: Limits,
    boxes: tuple[str, ...],
    protocol: Protocol | None,
    extra: dict[str, str],
) -> Program:
    if protocol != "LL":
        raise PlanError(f"protocol {protocol}: {limits.target.name} has Simple and LL (packets)")
    least = 16 * chunks.chunks
    if least > MAX_BYTES:
        raise PlanError(
            f"{limits.title}: {chunks.chunks} chunks of 16 bytes are {least} bytes at least, and "
            f"packets are for up to {MAX_BYTES}; fewer trees (--trees 1) make fewer chunks"
        )
    ranks, in_place = lower_packets(chunks, limits, boxes)
    program = Program(
        name=forest.name,
        collective=forest.collective,
        style="onesided",
        ranks=ranks,
        in_place=in_place,
        out_of_place=True,
        root=forest.root,
        protocol="LL",
        names=limits.names,
        max_bytes=MAX_BYTES,
        double_scratch=True,
        extra=extra,
    )
    check_limits(program, limits)
    return program


def fits(forest: Forest, target: Target, protocol: Protocol | None = None) -> str | None:
    """Why `target` cannot hold the forest's program, or None where it can."""
    try:
        lower(forest, target, protocol=protocol)
    except PlanError as error:
        return str(error)
    return None


def hopeless(target: Target, collective: Collective, n: int, trees: int) -> str | None:
    """Why no forest of `trees` unequal trees per root over `n` ranks can fit, from counts alone.

    None where only lowering can tell.
    """
    chunks = trees if collective.rooted else n * trees
    if chunks > target.chunks:
        return f"{chunks} chunks in a buffer, {target.name} holds {target.chunks}"
    # every rank takes in all chunks but its own: one step at least for so many of them
    received = max(0, chunks - (0 if collective.rooted else trees))
    received *= len(collective.phases)
    steps = -(-received // target.count)
    limit = target.thread_blocks * target.steps
    if steps > limit:
        return f"{steps} steps at a rank, {target.name} holds {limit}"
    return None
