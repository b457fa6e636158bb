"""Allreduce of few bytes in few rounds: groups of ranks hand each other all that they have.

In a round everybody sends its whole sum so far to its group, and adds up what comes of it. That
takes more bytes than trees, which carry parts of the data, and half their hops.

One round of all ranks is the one-step allreduce: MSCCL++'s allreduceAllPairs (microsoft/mscclpp
004879a, src/ext/collectives/allreduce/allreduce_allpair_packet.cu), which puts its input as packets
into a slot of its own in each peer's scratch, whose halves launches take by turns, and adds up; and
msccl-tools' examples/mscclang/allreduce_1step.py (9b7adbf) over connections in LL. (msccl-tools'
programs/allreduce_allpairs.py takes two steps: a part to each, then the sums to all.) Groups of two
are recursive doubling, of several recursive multiplying (Ruefenacht, Bull, Booth, "Generalisation
of recursive doubling for AllReduce", 2017): where not every pair is joined, or boxes are far apart.

All members of a group add up in its order, so every rank ends with the same bits, as with trees,
whose roots add up for all. (MSCCL++'s kernel begins with the own data at each rank.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import program_of
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Limits
from forestcoll.lower.packets import Groups, sum_packets
from forestcoll.program import (
    Buffer,
    Collective,
    Instruction,
    Op,
    Program,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.targets import Target
from forestcoll.solver.baselines.shapes import paths

PARTS = 4
"""Parts of the data over connections: each is added up by a thread block of its own."""
Waits = tuple[tuple[int, int], ...]
"""(thread block, step) of the rank."""


class Rounds(NamedTuple):
    """An allreduce over the ranks of `graph`, of the machine called `name`.

    `sizes`: of the groups of each round, their product the number of ranks. The first are of
    neighbours in rank order, the next of ranks at the same place in neighbouring groups, ...
    """

    name: str
    graph: CapacityGraph
    sizes: tuple[int, ...]

    @property
    def groups(self) -> list[Groups]:
        """Of each round, per rank its group, itself among them, ascending."""
        ranks = range(len(self.graph.ranks))
        strides = accumulate(self.sizes, mul, initial=1)
        return [
            [_group(rank, size, stride) for rank in ranks]
            for size, stride in zip(self.sizes, strides, strict=False)
        ]

    @property
    def pairs(self) -> set[tuple[int, int]]:
        """(rank, rank): the first hands all its data to the other."""
        return {
            (rank, peer)
            for groups in self.groups
            for rank, group in enumerate(groups)
            for peer in group
            if peer != rank
        }


def _group(rank: int, size: int, stride: int) -> range:
    first = rank - rank // stride % size * stride
    return range(first, first + size * stride, stride)


def rounds_of(name: str, graph: CapacityGraph) -> Iterator[Rounds]:
    """Yields those whose ranks reach their groups over links and switches: no runtime relays."""
    n, ways = len(graph.ranks), paths(graph)
    sizes = {(n,), *((k, n // k) for k in range(2, n) if n % k == 0), _primes(n)}
    for own in sorted(sizes, key=lambda own: (len(own), own)):
        rounds = Rounds(name, graph, own)
        if all((graph.ranks[a], graph.ranks[b]) in ways for a, b in rounds.pairs):
            yield rounds


def _primes(n: int) -> tuple[int, ...]:
    least = next((k for k in range(2, n) if n % k == 0), n)
    return (least, *_primes(n // least)) if n > 1 else ()


def lower_rounds(rounds: Rounds, target: Target) -> Program:
    """Returns the program, in LL or packets, right in any call; PlanError beyond the limits."""
    graph, groups = rounds.graph, rounds.groups
    n, hint = len(graph.ranks), "trees take fewer thread blocks"
    title = f"allreduce in rounds of {' x '.join(map(str, rounds.sizes))} ranks on {rounds.name}"
    limits = Limits(target, title, graph.rank_names, 1, hint)
    fifo = target.style == "fifo"
    chunks = PARTS if fifo else 1
    layout = Layout(Collective.ALLREDUCE, n, chunks, (0,) * n + (chunks,), ())
    if fifo:
        ranks = tuple(_program(rank, groups, limits) for rank in range(n))
    else:
        ranks = sum_packets(layout, groups, limits)
    return program_of(ranks, limits, rounds.name, layout, True, protocol="LL")


def _program(rank: int, rounds: Sequence[Groups], limits: Limits) -> RankProgram:
    """What a rank does over connections: for each peer a thread block receives, another sends.

    The last ones add up a part of the data each, in scratch, and copy it to the output at last. By
    then they have waited for all sends of that part, too: in place the output is what those read.
    """
    block = {peer: k for k, peer in enumerate(p for g in rounds for p in g[rank] if p != rank)}
    sends: list[list[Instruction]] = [[] for _ in block]
    takes: list[list[Instruction]] = [[] for _ in block]
    adders = []
    for k in range(PARTS):
        own, told = Ref(Buffer.INPUT, k, 1), Waits()
        sums: list[Instruction] = []
        for groups in rounds:
            parts: list[tuple[Ref, Waits]] = []
            for peer in groups[rank]:
                if peer == rank:
                    parts.append((own, ()))
                    continue
                b = block[peer]
                slot = Ref(Buffer.SCRATCH, b * PARTS + k, 1)
                sends[b].append(Instruction(Op.SEND, (own,), after=told))
                takes[b].append(Instruction(Op.RECV, dst=(slot,)))
                parts.append((slot, ((b, k), (len(block) + b, k))))
            if parts[0][0] == own:  # nothing is added to what is sent; two may change places
                parts[:2] = parts[1::-1]
            own, waits = parts[0]
            for part, after in parts[1:]:
                sums.append(Instruction(Op.REDUCE, (part,), (own,), after=waits + after))
                waits = ()
            told = ((2 * len(block) + k, len(sums) - 1),)
        copy = Instruction(Op.COPY, (own,), (Ref(Buffer.OUTPUT, k, 1),))
        adders.append(ThreadBlock((*sums, copy)))
    lanes = -(-len(rounds[0]) // limits.target.channel_blocks)
    blocks = [
        ThreadBlock(tuple(takes[b]), recv=peer, channel=(rank + peer) % lanes)
        for peer, b in block.items()
    ]
    blocks += [
        ThreadBlock(tuple(sends[b]), send=peer, channel=(rank + peer) % lanes)
        for peer, b in block.items()
    ]
    return RankProgram((*blocks, *adders), PARTS, PARTS, len(block) * PARTS)
