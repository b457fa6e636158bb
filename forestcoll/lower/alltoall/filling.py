"""How many thread blocks share what goes between two ranks: as many as keep its links busy.

A thread block moves only so much, and one for each peer is too few where a link is fast. So every
unit is cut in equal parts, and a connection deals them out to several thread blocks. More parts
mean more chunks, of which every size must be a multiple: only powers of two are taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import PlanError
from forestcoll.lower.alltoall.lowering import Lanes, lower, write_out
from forestcoll.lower.limits import BLOCK, ENOUGH, LINK, kind_of, most_instances
from forestcoll.program import Program, Protocol
from forestcoll.program.targets import Target
from forestcoll.solver.alltoall.routes import Routes

Pair = tuple[int, int]
MOST_OPERATIONS = 2**16
"""Operations of all ranks that a program may have for more stages: these take ten seconds."""
MOST_STAGES = 4
"""Stages of a onesided program: with these, what is lost until all hops are under way is small."""
MOST_PIECES = 16
"""The same where all is one hop: then what others wait for a link in order is small."""


def shares_of(routes: Routes) -> dict[Pair, Fraction]:
    """What each rank sends each over a connection of the routes, as shares of a send buffer."""
    counts: dict[Pair, int] = defaultdict(int)
    for flow in write_out(routes):
        for hop in pairwise(flow.ranks):
            counts[hop] += flow.count
    whole = len(routes.graph.ranks) * routes.units
    return {pair: Fraction(count, whole) for pair, count in counts.items()}


def blocks_for(rate: Fraction) -> int:
    """Thread blocks that move `rate` GB/s of a link's bandwidth, a power of two."""
    return 1 << (max(1, math.ceil(rate * LINK * ENOUGH / BLOCK)) - 1).bit_length()


def fill(
    routes: Routes,
    target: Target,
    name: str,
    protocol: Protocol | None,
    times: int = 1,
) -> tuple[Program, str]:
    """The program with as many thread blocks as its links keep busy, or as fit; and a note or "".

    `times`: in so many times as many stages, if there is room. The note says why there are no more
    thread blocks. Plans of protocol LL are for few bytes, which need no more than one for a
    connection. Raises PlanError where not even that fits.
    """
    graph, algbw = routes.graph, routes.algbw
    program = lower(routes, target, name, protocol)
    if protocol == "LL":
        return program, ""
    boxes = graph.boxes
    rates = {
        pair: share * algbw
        for pair, share in shares_of(routes).items()
        if target.style == "fifo" or kind_of(*pair, boxes) == "memory"  # others move ports' data
    }
    fastest = max(rates.values(), default=Fraction(0))
    wanted = blocks_for(fastest)
    local = blocks_for(algbw / program.n)
    of = {pair: blocks_for(rate) for pair, rate in rates.items()}

    def first(program: Program, lanes: Lanes, more: Iterable[Lanes]) -> tuple[Program, Lanes, str]:
        """The first with more lanes that fits, and why the one before did not; else `program`."""
        why = ""
        for wider in more:
            try:
                return lower(routes, target, name, program.protocol, wider), wider, why
            except PlanError as error:
                why = f"with {wider.parts} {str(error).split(': ', 1)[-1].split('; ')[0]}"
        return program, lanes, why

    most, why = most_instances(program)
    tried = (Lanes(parts, local, of) for parts in _halve(min(wanted, most)))
    program, lanes, refused = first(program, Lanes(of=of), tried)
    lanes = replace(lanes, local=min(lanes.width, local))
    most = times
    if target.style != "fifo":  # fifo programs go round by round, as in stages
        most *= MOST_STAGES if routes.hops > 1 else MOST_PIECES
    stages = min(most, most_instances(program, most_operations=MOST_OPERATIONS)[0])
    staged = (replace(lanes, stages=stages) for stages in _halve(stages))
    program, _, _ = first(program, lanes, staged)
    if lanes.width == wanted:
        return program, ""
    return program, (
        f"{target.format}: {lanes.width} of the {wanted} thread blocks that {float(fastest):.4g} "
        f"GB/s between two ranks take (each moves some {BLOCK}): {refused or why}"
    )


def _halve(most: int) -> Iterator[int]:
    """A power of two, its half and so on, down to 2."""
    while most > 1:
        yield most
        most //= 2
