"""Programs that let switches copy and add (MSCCL++ switch channels, NVLS).

    allreduce   rank r has the switch add up its share of all inputs and store the sum everywhere
    allgather   rank r has the switch store its part in every output
    broadcast   the root has the switch store its data in every output

These are the forests in which every tree is one hop through one switch that copies (and adds). The
runtime has no addition in the switch but the one that stores the sum at all ranks, so a
reduce-scatter or reduce would cost as much as an allreduce: there are none.

The first thing is that everybody has begun: nobody's input is read, and nobody's output written,
while its caller still has it. The last is that everybody is done: what the others store here is
there. Where a thread block cannot reach all peers they share them, with barriers of the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from forestcoll.common.errors import PlanError
from forestcoll.lower.layout import Layout, layout
from forestcoll.lower.limits import NOP, Limits, check_ranks, sync
from forestcoll.program import (
    Buffer,
    Channel,
    Collective,
    Instruction,
    Op,
    Program,
    RankProgram,
    Ref,
    Switch,
    ThreadBlock,
)
from forestcoll.program.targets import Target
from forestcoll.schedule.forest import Forest

BLOCKS = 8
"""Thread blocks of a rank that share its work, at least: few keep a switch busy."""
MOST_BLOCKS = 128
"""Of all ranks together, beyond the least; many GPUs keep the switch busy with few each."""
RATE = Fraction(450, BLOCKS)
"""GB/s of a GPU's links for each thread block. MSCCL++'s own allreduce in a switch takes 8 on a DGX
H100 (450 GB/s per GPU), and on sm_100 128 / GPUs, which its authors found to work well: 16 for 8
GPUs of 900 GB/s (microsoft/mscclpp 1f5f065d, allreduce_nvls_zero_copy.cu).
"""

_ONLY = frozenset((Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST))


def lower_nvls(
    forest: Forest, target: Target, *, in_place: bool = True, blocks: int | None = None
) -> Program:
    """The program that carries the forest out in its switch.

    `blocks`: thread blocks of a rank; None takes as many as its links want. An allreduce serves
    either in-place or out-of-place calls: in place the switch is bound to one buffer, out of place
    to two. Raises PlanError where some tree is not one hop through the switch, or the runtime has
    no such operation.
    """
    if target.style != "onesided":
        raise PlanError(f"{target.name} has no operations that copy and add in switches")
    title = f"{forest.collective} on {forest.name}"
    if forest.collective not in _ONLY:
        raise PlanError(
            f"{title}: {target.name} adds in a switch only where it stores the sum at all ranks, "
            "which costs as much as an allreduce; plans without switches do better"
        )
    _check_hops(forest, title)
    names = forest.graph.rank_names
    chunks = layout(forest)
    reducing = forest.collective.two_phases
    wanted = min(_enough_blocks(forest), target.thread_blocks) if blocks is None else blocks
    adds_in_place = in_place and reducing
    program = Program(
        name=forest.name,
        collective=forest.collective,
        style="onesided",
        ranks=tuple(
            RankProgram(
                tuple(_blocks(chunks, rank, target, wanted, adds_in_place=adds_in_place)),
                chunks.input_chunks,
                chunks.output_chunks,
                0,
            )
            for rank in range(forest.n)
        ),
        in_place=in_place or not reducing,
        out_of_place=not adds_in_place,
        root=forest.root,
        names=names,
    )
    check_ranks(program.ranks, Limits(target, title, names, forest.trees_per_root))
    return program


def _enough_blocks(forest: Forest) -> int:
    """Thread blocks of a rank that keep its links busy: a power of two."""
    most = max(BLOCKS, MOST_BLOCKS // forest.n)
    wanted = BLOCKS
    while 2 * wanted <= most and wanted * RATE < _slowest(forest):
        wanted *= 2
    return wanted


def _slowest(forest: Forest) -> Fraction:
    """GB/s of the slowest link of a rank."""
    graph, ranks = forest.graph, set(forest.graph.ranks)
    return graph.unit * min(c for t, h, c in graph.arcs if {t, h} & ranks)


def _check_hops(forest: Forest, title: str) -> None:
    """PlanError unless every tree is one hop through one switch that copies, or adds."""
    graph = forest.graph
    through: set[int] = set()
    for tree in forest.trees:
        for path in tree.edges:
            if len(path) != 3 or tree.root not in (path[0], path[-1]) or graph.gpu[path[1]]:
                raise PlanError(
                    f"{title}: data go {' -> '.join(graph.names[v] for v in path)} in the tree of "
                    f"{graph.names[tree.root]}; a plan that copies and adds in a switch needs "
                    "every tree to be one hop through it, all GPUs in one NVLink domain"
                )
            through.add(path[1])
        switch = tree.edges[0][1]
        able, word = {
            "broadcast": (graph.multicast, "multicast"),
            "reduce": (graph.aggregation, "aggregation"),
        }[tree.phase]
        if not able[switch]:
            raise PlanError(
                f"{title}: {graph.names[switch]} has no {word}, which the {tree.phase} tree of "
                f"{graph.names[tree.root]} needs"
            )
    if len(through) > 1:
        names = ", ".join(sorted(graph.names[v] for v in through))
        raise PlanError(f"{title}: trees go through several switches ({names}); one must do")


def _blocks(
    chunks: Layout, rank: int, target: Target, wanted: int, *, adds_in_place: bool
) -> Iterator[ThreadBlock]:
    """The rank's thread blocks: slices of its work, between begin and end.

    `adds_in_place`: of an allreduce within one buffer.
    """
    everyone, start = tuple(range(chunks.n)), chunks.start
    roots = [p for p in everyone if start[p] < start[p + 1]]
    # who stores asks everybody, who does not only those who do
    peers = [p for p in (everyone if rank in roots else roots) if p != rank]
    least = -(-(chunks.n - 1) // target.channels)  # thread blocks that reach everybody together
    count = max(wanted, least) if least > 1 else wanted
    adds = chunks.collective.two_phases
    bound = [Buffer.INPUT] * adds + [Buffer.OUTPUT] * (not adds_in_place)
    switches = tuple(Switch(everyone, buffer) for buffer in bound)
    for k in range(count):
        asked = peers[k::count] if least > 1 else peers
        channels = tuple(Channel(p, "memory", 0 if least > 1 else k) for p in asked)
        begin, end = (
            [i for op in ops for i in sync(op, range(len(asked)), -1, target.peers)]
            for ops in ((Op.RELAXED_SIGNAL, Op.RELAXED_WAIT), (Op.SIGNAL, Op.WAIT))
        )
        begun, done = (
            Instruction(Op.BARRIER, ident=ident, group=count) if least > 1 else NOP
            for ident in (0, 1)
        )
        work = _work(chunks, rank, (k, count), len(switches))
        steps = (*begin, begun, *work, done, *end)
        yield ThreadBlock(steps, channels=channels, switches=switches)


def _work(chunks: Layout, rank: int, part: tuple[int, int], buffers: int) -> list[Instruction]:
    """The rank's share of the work: nothing where it is no root. `buffers`: bound to the switch."""
    low, count = chunks.start[rank], chunks.start[rank + 1] - chunks.start[rank]
    own, whole = chunks.input(rank, low, count), Ref(Buffer.OUTPUT, low, count)
    if not count:
        return []
    if not chunks.collective.two_phases:
        return [Instruction(Op.FABRIC_STORE, (own,), (whole,), part=part, switches=(0,))]
    to, through = (own, (0, 0)) if buffers == 1 else (whole, (0, 1))
    return [Instruction(Op.FABRIC_REDUCE_STORE, (own,), (to,), part=part, switches=through)]


def most_algbw(forest: Forest) -> Fraction:
    """GB/s that the switch can give such a program; less than the forest's algbw.

    The runtime's operations have the switch fetch a rank's own share from it as well, and bring it
    back: n + 1 of n parts of an allreduce each way where trees need n, and n where an allgather's
    need n - 1.
    """
    rate = _slowest(forest)
    return rate * forest.n / (forest.n + 1) if forest.collective.two_phases else rate
