"""Forest -> Program: chunks, thread blocks, channels, within the limits of a target.

    layout         which chunks a tree carries, and where they lie in each rank's buffers
    schedule       what transfers of trees are told: connections, channels, and the links
    fifo           MSCCL XML: send, receive, copy, reduce; dependencies between thread blocks
    onesided       MSCCL++: put, signal, wait; one pipeline a tree
    packets        MSCCL++ for few bytes
    rounds         allreduce of few bytes, without trees
    nvls           MSCCL++ where switches copy and add
    limits         what a program takes of a target, the refusals, its protocol and channels,
                   how many thread blocks the work of a rank takes

In C++ (graph/kernel/lowering):

    transfers        what one rank hands another in one step, of trees and of routes: level by
                     level, or for much data in the order of a schedule on the links
    fifo_blocks      what the thread blocks of fifo programs do for transfers in an order
    onesided_blocks  which transfers of onesided programs share thread blocks
      pipelines      what a rank repeats slice by slice for a tree

A program that a box's ports leave with an allgather's input is right out of place only, and
`serve` makes one for calls in place of it; a few of packets are too (packets). All others are right
in place and out of place. Out of place none ever writes the input.

In place, the input of an allgather is the rank's own part of its output. Its threads find it there
by the pointer that they are given. A port finds memory by where its allocation begins, so it has to
be told of the output; out of place nothing lies there yet. So where ports read the input, calls in
place and out of place have a program each. (The same holds for the output of a reduce-scatter and
its input.)
"""

from __future__ import annotations

from dataclasses import replace

from forestcoll.common.errors import PlanError
from forestcoll.lower.fifo import lower_fifo
from forestcoll.lower.layout import Layout, layout, no_parity, parity_of
from forestcoll.lower.limits import (
    Limits,
    Usage,
    block_rate,
    bulk_protocol,
    check_ranks,
    choose_protocol,
    usage,
)
from forestcoll.lower.onesided import TOGETHER, Spread, lower_onesided
from forestcoll.lower.packets import MAX_BYTES, check_bytes, lower_packets
from forestcoll.lower.schedule import Partners, links_of
from forestcoll.program import (
    Buffer,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Protocol,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.check import accept
from forestcoll.program.targets import Target, most_bytes, runtime_for, runtime_of
from forestcoll.schedule.forest import Forest
from forestcoll.verify._machine import Columns
from forestcoll.verify.columns import columns_of
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.order import digest_of, reduction_order

__all__ = [
    "UNIT_BYTES",
    "Usage",
    "hopeless",
    "in_protocol",
    "lower",
    "program_of",
    "serve",
    "slice_pipelines",
    "usage",
]

ALIGNED = 16
"""Bytes of which a pipeline moves multiples at a time."""
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
    scheduled: bool = False,
    least: int = 1,
) -> Program:
    """Returns the program that carries the forest out on every rank, within the limits of `target`.

    forest      of any collective; a compact one is written out (UnsupportedError beyond its limit)
    target      of `TARGETS`, or narrower; its style decides between fifo and onesided programs
    unit_bytes  onesided: what pipelines move at a time on average, in proportion to their chunks
    instances   from 1: equal parts of every tree, for more thread blocks at work on few trees
    protocol    how transfers are sent; None takes what is fastest for much data (Simple, or LL128
                where a rooted fifo program leaves a box). Onesided: Simple, or LL for little data
    spread      onesided, Simple: how the work of a rank is spread over thread blocks
    adders      fifo, for much data: thread blocks of their own add up the sums
    partners    fifo, for much data: which of equally urgent transfers go first
    scheduled   fifo, for less data too: in the order of a schedule on the links, not by levels
    least       fifo, for much data: chunks in a transfer at least

    What a style or protocol does not know is left out of account. Raises PlanError where the target
    cannot hold the program (with rank, figure, limit, a way out), where a path relays through no
    rank, and for arguments out of range.
    """
    if unit_bytes < ALIGNED or unit_bytes % ALIGNED:
        raise PlanError(f"unit_bytes is {unit_bytes}: must be a positive multiple of {ALIGNED}")
    if instances < 1:
        raise PlanError(f"instances is {instances}: must be at least 1")
    if forest.n < 2:
        raise PlanError(f"{forest.name} has {forest.n} ranks: a plan needs at least 2")
    forest = forest.expand()
    title = f"{forest.collective} on {forest.name}"
    limits = Limits(target, title, forest.graph.rank_names, forest.trees_per_root)
    fifo = target.style == "fifo"
    parity = parity_of(forest.graph) if fifo else no_parity
    chunks = layout(forest, instances, parity, spread.grain, spread.units)
    extra = {"instances": str(instances)} if instances > 1 else {}
    in_place = True
    sent: Protocol = "LL"
    columns = None
    if not fifo and protocol == "LL":
        check_bytes(chunks, limits, "fewer trees (--trees 1) make fewer chunks")
        ranks, in_place = lower_packets(chunks, limits)
    else:
        sent = choose_protocol(forest, target, protocol)
        if fifo:
            links, bulk = None, sent == bulk_protocol(forest, target)
            if scheduled or bulk:  # on a schedule
                links = links_of(forest, block_rate(forest, sent), partners)
            ranks, columns = lower_fifo(chunks, limits, links, adders, bulk, least)
        else:
            ranks, halves = lower_onesided(chunks, limits, unit_bytes, spread)
            if halves:
                extra["halves"] = halves
    program = program_of(
        ranks, limits, forest.name, chunks, in_place,
        protocol=sent, root=forest.root, extra=extra, columns=columns,
    )  # fmt: skip
    if forest.sums:
        program.extra["sums"] = digest_of(forest)
        if reduction_order(dataflow(program)).digest != program.extra["sums"]:
            raise PlanError(f"{title}: a {sent} plan of these trees adds up in another order")
    return program


def program_of(
    ranks: tuple[RankProgram, ...],
    limits: Limits,
    name: str,
    chunks: Layout,
    in_place: bool,
    *,
    protocol: Protocol,
    root: int = -1,
    extra: dict[str, str] | None = None,
    columns: Columns | None = None,
) -> Program:
    """Returns the program of all ranks; raises PlanError where it breaks a limit.

    `in_place`: whether it is right so as well, as far as ports find what they read. `columns`: of
    ranks that break none.
    """
    columns = columns or check_ranks(ranks, limits)
    style = limits.target.style
    packets = style == "onesided" and protocol == "LL"
    runtime = runtime_for(ranks)  # of those that can run it, the narrowest
    most = most_bytes(runtime, protocol, chunks.chunks) if style == "fifo" else MAX_BYTES * packets
    program = Program(
        name=name,
        collective=chunks.collective,
        style=style,
        ranks=ranks,
        in_place=in_place,
        out_of_place=True,
        root=root,
        protocol=protocol,
        names=limits.names,
        max_bytes=most,
        double_scratch=packets,
        extra=extra or {},
    )
    runtime_of.keep(program, runtime)
    columns_of.keep(program, columns)
    if not packets and next(program.misplacements(), None) is not None:
        program = replace(program, in_place=False)  # `serve` makes one for calls in place
        columns_of.keep(program, columns)
    return accept(program)


def in_protocol(program: Program, protocol: Protocol) -> Program:
    """The program, of fifo style if that is another, with what it sends in that protocol."""
    if protocol == program.protocol:
        return program
    first, runtime = program.ranks[0], runtime_of(program)
    most = most_bytes(runtime, protocol, max(first.input_chunks, first.output_chunks))
    sent = replace(program, protocol=protocol, max_bytes=most)
    runtime_of.keep(sent, runtime)
    columns_of.keep(sent, columns_of(program))
    return accept(sent)


def slice_pipelines(program: Program, unit: int) -> Program:
    """The program whose pipelines move so many bytes at a time on average, in their proportions."""
    blocks = (block for rank in program.ranks for block in rank.thread_blocks)
    own = [s.unit_bytes for block in blocks for s in block.steps if isinstance(s, Pipeline)]
    count, whole = len(own), sum(own)

    def block(old: ThreadBlock) -> ThreadBlock:
        steps = (
            replace(s, unit_bytes=max(1, s.unit_bytes * unit * count // whole // ALIGNED) * ALIGNED)
            if isinstance(s, Pipeline)
            else s
            for s in old.steps
        )
        return replace(old, steps=tuple(steps))

    ranks = (replace(r, thread_blocks=tuple(map(block, r.thread_blocks))) for r in program.ranks)
    return accept(replace(program, ranks=tuple(ranks)))


def hopeless(target: Target, collective: Collective, n: int, trees: int) -> str | None:
    """Returns why no forest of `trees` unequal trees a root over `n` ranks fits, by counts alone.

    None where only lowering can tell.
    """
    chunks = trees if collective.has_root else n * trees
    if chunks > target.chunks:
        return f"{chunks} chunks in a buffer, {target.name} holds {target.chunks}"
    # every rank takes in all chunks but its own: one step at least for so many of them
    received = max(0, chunks - (0 if collective.has_root else trees))
    received *= len(collective.phases)
    steps = -(-received // target.count)
    limit = target.thread_blocks * target.steps
    if steps > limit:
        return f"{steps} steps at a rank, {target.name} holds {limit}"
    return None


def serve(program: Program, *, in_place: bool) -> Program:
    """Returns a program right for these calls: `program` where it is, else what follows from it.

    Raises PlanError where there is none.
    """
    if program.in_place if in_place else program.out_of_place:
        return program
    if not in_place or next(program.misplacements(), None) is None:
        raise PlanError(
            f"{program.collective} on {program.name}, {program.protocol}: the plan is right for "
            f"calls {'out of' if in_place else 'in'} place only"
            + (": sums on their way lie in the output" if program.double_scratch else "")
        )

    def move(rank: int, i: Instruction) -> Instruction | None:
        """With the shorter buffer named as part of the longer; no copy onto itself."""
        src = tuple(_ref(program, rank, ref) for ref in i.src)
        dst = tuple(_ref(program, rank, ref) for ref in i.dst)
        return None if i.op is Op.COPY and src == dst else replace(i, src=src, dst=dst)

    return replace(program.edit(move), in_place=True, out_of_place=False)


def _ref(program: Program, rank: int, ref: Ref) -> Ref:
    if ref.buffer is not program.shorter:
        return ref
    longer = Buffer.OUTPUT if ref.buffer is Buffer.INPUT else Buffer.INPUT
    first = program.ranks[0]
    part = min(first.input_chunks, first.output_chunks)
    owner = rank if ref.rank is None else ref.rank
    return replace(ref, buffer=longer, offset=owner * part + ref.offset)
