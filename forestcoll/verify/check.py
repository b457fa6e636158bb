"""The symbolic check of a program, from its fields to the data that it leaves everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError
from forestcoll.program import PACKETS, SENDS, Collective, Instruction, Program
from forestcoll.program.check import check
from forestcoll.program.chunks import ChunkCounts, count_chunks
from forestcoll.program.targets import Target
from forestcoll.verify.aliasing import explain_misplaced
from forestcoll.verify.atoms import find_atoms
from forestcoll.verify.fifo import run_fifo, slots_of
from forestcoll.verify.halves import check_halves
from forestcoll.verify.layout import Layout
from forestcoll.verify.memory import Memory
from forestcoll.verify.onesided import run_onesided
from forestcoll.verify.order import unordered
from forestcoll.verify.packets import (
    PacketReplay,
    has_packets,
    run_packets,
    without_causes,
)
from forestcoll.verify.replay import Replay
from forestcoll.verify.scale import scale_of
from forestcoll.verify.trace import Trace, flatten
from forestcoll.verify.wiring import check_wiring

if TYPE_CHECKING:
    from forestcoll.schedule.forest import Forest

Loads = dict[tuple[int, int], Fraction]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was proven of a program, in figures.

    `loads[i, j]` is the fraction of the collective's total data (`chunks` chunks) that rank i hands
    straight to rank j in a launch; `moved` is the number of chunks between ranks in all. `steps`
    counts instructions, `events` those of the abstract run (parts of messages, rounds, launches).
    """

    collective: Collective
    ranks: int
    root: int  # of a broadcast or reduce, also where the program does not say; else -1
    modes: tuple[str, ...]  # "out-of-place", "in-place"
    chunks: int
    moved: Fraction
    loads: Loads
    steps: int
    events: int
    launches: int  # 1 for fifo programs, where one stands for all
    queue: int | None  # messages a connection was taken to hold (fifo)


def verify(
    program: Program,
    *,
    launches: int = 2,
    rounds: int = 2,
    queue: int | None = None,
    target: Target | None = None,
) -> Verified:
    """Prove that `program` does its collective, or raise PlanError saying where it does not.

    Proven: every operand lies within its buffer; all that is sent is received and all that is
    signalled is waited for, one to one; no thread block waits for ever, with connections that hold
    `queue` messages (by default as many as the runtime's with this protocol); any two accesses to a
    chunk of which one writes are ordered, also from one launch to the next; no contribution is
    added twice and no different chunks are mixed; every output chunk ends as the collective
    defines, in each mode that the program claims; out of place the input is as it was.

    One run is enough: every connection and semaphore has one producer and one consumer, so the
    program is a deterministic network (Kahn), and without races its memory is deterministic too.
    `launches` (at least 2 to see one launch disturb the next) and `rounds` (of every pipeline) are
    how much of a onesided program is unrolled; onesided.py and fifo.py say why so little is enough.
    `target`: the runtime whose messages a fifo program is cut into; by default the narrowest that
    can run it (`targets.runtime_of`).

    Any program may be passed, a stranger's too. Raises UnsupportedError where it is larger than
    this check handles, or where its outcome depends on timing that the check does not follow.
    """
    done, faults = examine(program, launches=launches, rounds=rounds, queue=queue, target=target)
    for fault in faults:
        raise fault
    assert done is not None  # there is a fault otherwise
    return done


def examine(
    program: Program,
    *,
    launches: int = 2,
    rounds: int = 2,
    queue: int | None = None,
    target: Target | None = None,
) -> tuple[Verified | None, Iterator[PlanError]]:
    """What `verify` proves, or None and all that the run found wrong: races, wrong sums and data.

    What stops the run from being made at all (fields, wiring, deadlock) is raised as by `verify`.
    """
    for name, value in (("launches", launches), ("rounds", rounds), ("queue", queue)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    sizes = check(program)
    check_halves(program)
    packets = any(i.op in PACKETS for *_, i in program.instructions())
    launches = 1 if program.style == "fifo" else launches
    if program.double_scratch:  # the first that uses a half again is the third
        launches = max(launches, 3)
    scale = scale_of(program, sizes, rounds=rounds, launches=launches)
    check_wiring(program)
    code = flatten(program, rounds)
    piece, slots = slots_of(program, sizes.total, target)
    queue = slots if queue is None else queue
    layout = Layout(program, sizes, grain=scale.grain)
    atoms = find_atoms(code, layout, scale.rounds, piece)
    if program.style == "fifo":
        trace = run_fifo(code, atoms, queue, piece)
    elif packets:
        trace = run_packets(code, layout, atoms, launches)
    else:
        trace = run_onesided(code, launches)
    memories = [
        Memory(layout, atoms, in_place=in_place)
        for claimed, in_place in ((program.out_of_place, False), (program.in_place, True))
        if claimed
    ]
    root, faults = _replay(trace, memories, program.root, sizes)
    first = next(faults, None)
    if first is not None:
        return None, chain([first], faults)
    loads = rank_loads(program, sizes)
    done = Verified(
        collective=program.collective,
        ranks=program.n,
        root=root if program.collective.rooted else -1,
        modes=tuple(memory.mode.replace(" ", "-") for memory in memories),
        chunks=sizes.total,
        moved=sum(loads.values(), Fraction(0)) * sizes.total,
        loads=loads,
        steps=scale.instructions,
        events=len(trace),
        launches=launches,
        queue=queue if program.style == "fifo" else None,
    )
    return done, iter(())


def _replay(
    trace: Trace, memories: list[Memory], root: int, sizes: ChunkCounts
) -> tuple[int, Iterator[PlanError]]:
    """The root, and what is wrong in each mode with the data or with their order."""
    replays: list[Replay] = []
    failure: PlanError | None = None
    kind = PacketReplay if has_packets(trace) else Replay
    for memory in memories:
        replay = kind(trace, memory)
        try:
            replay.run()
            if replay.accesses.mixed:
                replay = kind(trace, memory, every=True)
                replay.run()
        except PlanError as error:
            failure = error  # unless an earlier mode has something to say
            break
        replays.append(replay)
    loose = unordered(trace, {pair for replay in replays for pair in replay.accesses.collisions})
    if trace.weak and loose:
        loose = without_causes(trace, loose, replays)
    if replays:
        root = replays[0].final.root(root)
    faults = [replay.faults(loose, root) for replay in replays]
    if failure is not None:
        faults.append(iter((failure,)))
    program = trace.code.program
    return root, chain.from_iterable(
        explain_misplaced(program, sizes, found) if memory.in_place else found
        for memory, found in zip(memories, faults, strict=False)  # none beyond a failure
    )


def rank_loads(program: Program, sizes: ChunkCounts) -> Loads:
    """(from rank, to rank) -> fraction of the total data handed straight from one to the other."""
    chunks: dict[tuple[int, int, int], int] = {}  # from, to, parts of a chunk -> how many

    def move(src: int, dst: int, count: int, parts: int) -> None:
        chunks[src, dst, parts] = chunks.get((src, dst, parts), 0) + count

    for r, b, _, i in program.instructions():
        if i.op in SENDS:
            move(r, program.ranks[r].thread_blocks[b].send, _length(i), 1)
        sources, targets = program.ranks[r].thread_blocks[b].operands(r, i)
        for ref in targets:
            if ref.rank is not None:
                move(r, ref.rank, ref.count, i.part[1])
        for ref in sources:
            if ref.rank is not None:
                move(ref.rank, r, ref.count, i.part[1])
    loads: Loads = {}
    for (src, dst, parts), count in sorted(chunks.items()):
        loads[src, dst] = loads.get((src, dst), Fraction(0)) + Fraction(count, parts * sizes.total)
    return loads


def _length(i: Instruction) -> int:
    return (*i.src, *i.dst)[0].count


def link_loads(program: Program, forest: Forest) -> Loads:
    """The loads between ranks, equal to the fraction for program and forest.

    The forest's load from rank i to rank j is the sum of the shares of its trees' edges there.
    Raises PlanError naming the first pair of ranks where the two differ.
    """
    number = {node: rank for rank, node in enumerate(forest.graph.ranks)}
    if len(number) != program.n:
        raise PlanError(f"the program has {program.n} ranks, the forest {len(number)}")
    weights: dict[tuple[int, int], int] = {}
    for tree in forest.trees:
        for path in tree.edges:
            pair = number[path[0]], number[path[-1]]
            weights[pair] = weights.get(pair, 0) + tree.weight
    wanted = {pair: Fraction(weight, forest.total) for pair, weight in weights.items()}
    loads = rank_loads(program, count_chunks(program))
    for pair in sorted(wanted.keys() | loads.keys()):
        plan, tree_load = loads.get(pair, Fraction(0)), wanted.get(pair, Fraction(0))
        if plan != tree_load:
            raise PlanError(
                f"rank {pair[0]} to rank {pair[1]}: the program moves {plan} of the data, "
                f"the forest's trees {tree_load}"
            )
    return loads
