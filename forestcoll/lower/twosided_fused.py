"""Two-sided programs (fifo style) for runtimes that receive, add and send in one step.

Why it cannot get stuck, whatever the depth of the queues: the segments (chains.py and
chain_channels.py) are put in one order, in which each comes after those that it needs, and every
thread block does its steps in that order. Take the first segment that is not done. All thread
blocks on its way have done what comes before it and stand at their step of it, each at another, for
none comes twice; so its data flows from the first to the last, piece by piece, and nothing that
stands later in the order can be in the way: queues hold only messages of segments before it, which
are all taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from forestcoll.lower.chain_channels import Segment, Wirer, Wiring, joined_segments, without_repeats
from forestcoll.lower.chains import Chain, Need, Stop, chains_of, topological
from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Limits, check_steps, steps
from forestcoll.lower.messages import early_copies
from forestcoll.lower.writer import Port, Ports, RankWriter, packed, pair, waited_first
from forestcoll.program import Op, RankProgram

MORE_WIDTHS = 8
"""Channels beyond the fewest that are tried for fewer cuts."""


def lower_fused(layout: Layout, limits: Limits) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = limits.target
    early = frozenset[int]() if layout.collective.reduces else early_copies(layout)
    chains, needs, scratch = chains_of(layout, target.count, early)
    visits = Counter(stop.rank for chain in chains for stop in chain.stops)
    check_steps([visits[rank] for rank in range(layout.n)], limits)
    most = target.steps
    while True:
        wiring = without_repeats(_best_wiring(layout, chains, most, limits))
        programs = _emit(layout, wiring, needs, scratch, early, limits)
        longest = max(steps(b) for r in programs for b in r.thread_blocks)
        if longest <= target.steps:
            break
        if most == 1:
            raise limits.refuse("a thread block", "steps", longest, target.steps)
        most = max(1, min(most - 1, most * target.steps // longest))
    blocks: list[list[Ports]] = [list(ports) for ports in wiring.blocks]
    paired = pair(blocks, programs, limits)
    if paired != blocks:
        wiring = without_repeats(replace(wiring, blocks=tuple(map(tuple, paired))))
        programs = _emit(layout, wiring, needs, scratch, early, limits)
    return tuple(waited_first(packed(p), target.dependency_blocks) for p in programs)


def _best_wiring(layout: Layout, chains: list[Chain], most: int, limits: Limits) -> Wiring:
    """The wiring with the fewest cuts that takes no more thread blocks than an unfused program.

    Of those the one with the fewest channels. The fewest channels that hold the chains at all are
    taken in any case.
    """
    target = limits.target
    instances = 1 + max(chain.instance for chain in chains)
    allowed = min(_connections(layout.n, chains), target.thread_blocks)
    found: list[tuple[int, int, Wiring]] = []
    for width in range(1, target.channels // instances + 1):
        wiring = Wirer(layout.n, width, most, target).wire(chains)
        if wiring is None:
            continue
        if found and (wiring.most > allowed or width > found[0][1] + MORE_WIDTHS):
            break
        found.append((len(wiring.segments), width, wiring))
        if len(wiring.segments) == len(chains):
            break
    if not found:
        wanted = max(target.channels, instances) + 1
        raise limits.refuse(
            "the plan", f"or more channels of {most} steps", wanted, target.channels
        )
    return min(found, key=lambda item: item[:2])[2]


def _connections(n: int, chains: Sequence[Chain]) -> int:
    """Thread blocks that the fullest rank takes where every end of a connection has its own."""
    ends = {
        (*port[:3], chain.instance, b.parity)
        for chain in chains
        for pair, b in zip(Segment(chain, 0).ports, chain.stops[1:], strict=True)
        for port in pair
    }
    counts = [0] * n
    for rank, *_ in ends:
        counts[rank] += 1
    return max(counts)


def _emit(
    layout: Layout,
    wiring: Wiring,
    needs: list[Need],
    scratch: list[int],
    early: frozenset[int],
    limits: Limits,
) -> tuple[RankProgram, ...]:
    ranks = []
    copies = []
    for number, ports in enumerate(wiring.blocks):
        found = []
        local = 0
        if not layout.collective.reduces:  # sums begin with the own data, and need no copy of it
            local = min(max(1, limits.target.thread_blocks - len(ports)), local_blocks(layout))
            found = layout.copies(number, limits.target.count, local)
        copies.append(found)
        rank = RankWriter(list(ports), min(local, len(found)), scratch[number])
        if number in early:
            rank.copy(found)
        ranks.append(rank)
    for segment in _ordered(wiring, needs, limits.target.count):
        _write(segment, ranks)
    for number, rank in enumerate(ranks):
        if number not in early:
            rank.copy(copies[number])
    return tuple(rank.program(layout) for rank in ranks)


def _ordered(wiring: Wiring, needs: list[Need], most: int) -> list[Segment]:
    """The segments, each after what it needs, by the hops that have to come before them."""
    segments, found = joined_segments(wiring, needs, most)
    times: list[list[int]] = [[0] * len(s.chain.stops) for s in segments]
    needed: list[list[tuple[int, int, int]]] = [[] for _ in segments]
    for (first, i), (second, j) in found:
        if first != second:
            needed[second].append((j, first, i))
    for number, _ in topological(len(segments), found, lambda c: c):
        time = times[number]
        for j, first, i in needed[number]:
            time[j] = max(time[j], times[first][i])
        for j in range(1, len(time)):
            time[j] = max(time[j], time[j - 1] + 1)

    def key(number: int) -> tuple[int, int, int]:
        chain = segments[number].chain
        return times[number][0], chain.tree, chain.chunk

    return [segments[number] for number, _ in topological(len(segments), found, key)]


def _write(segment: Segment, ranks: list[RankWriter]) -> None:
    stops = segment.chain.stops
    sender, _ = next(iter(segment.ports))
    start = stops[0]
    assert start.src is not None
    ranks[start.rank].add(ranks[start.rank].block[sender], Op.SEND, (start.src,))
    for (_, into), stop in zip(segment.ports, stops[1:], strict=True):
        rank = ranks[stop.rank]
        op = _operation(stop, stop is stops[-1])
        src = () if stop.src is None else (stop.src,)
        dst = () if stop.keep is None or op is Op.RECV_REDUCE_SEND else (stop.keep,)
        rank.add(rank.block[Port(*into)], op, src, dst)


def _operation(stop: Stop, last: bool) -> Op:
    if stop.src is None:
        return Op.RECV if last else Op.RECV_COPY_SEND
    if last:
        return Op.RECV_REDUCE_COPY
    return Op.RECV_REDUCE_COPY_SEND if stop.stored else Op.RECV_REDUCE_SEND
