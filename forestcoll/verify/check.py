"""The symbolic check of a program, from its fields to the data that it leaves everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.common.input_limits import CHECK_STEPS, LOCATIONS, SLICES
from forestcoll.program import Collective, Program
from forestcoll.program.check import check
from forestcoll.program.chunks import ChunkCounts, count_chunks
from forestcoll.program.targets import Target, message_slots
from forestcoll.verify import _machine
from forestcoll.verify.columns import columns_of, shape_of
from forestcoll.verify.faults import Faults
from forestcoll.verify.misplaced import check_halves, explain_misplacements
from forestcoll.verify.wiring import check_wiring

if TYPE_CHECKING:
    from forestcoll.schedule.forest import Forest

Loads = dict[tuple[int, int], Fraction]

MOST_RACES = 1000
"""Races of a mode that are told: the rest is more of the same."""


LAUNCHES, ROUNDS = 2, 2
"""Of a program, and of each pipeline of it, that are followed at least."""


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
    launches: int = LAUNCHES,
    rounds: int = ROUNDS,
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
    how much of a onesided program is unrolled; onesided_run.cpp and fifo_run.cpp say why so little
    is enough. `target`: the runtime whose messages a fifo program is cut into; by default the
    narrowest that can run it (`targets.runtime_of`).

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
    launches: int = LAUNCHES,
    rounds: int = ROUNDS,
    queue: int | None = None,
    target: Target | None = None,
    finest: bool = False,
    wired: bool = False,
) -> tuple[Verified | None, Iterator[PlanError]]:
    """What `verify` proves, or None and all that the run found wrong: races, wrong sums and data.

    What stops the run from being made at all (fields, wiring, deadlock) is raised as by `verify`.
    `finest`: every chunk by itself, which finds the same, slowly. `wired`: `wiring_faults` has
    found none.
    """
    for name, value in (("launches", launches), ("rounds", rounds), ("queue", queue)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    sizes = check(program)
    check_halves(program)
    launches = _launches(program, launches)
    grain, instructions = scale_of(program, sizes, rounds=rounds, launches=launches)
    if not wired:
        check_wiring(program)
    piece, slots = slots_of(program, sizes.total, target)
    queue = slots if queue is None else queue
    modes = [in_place for in_place in (False, True) if _claims(program, in_place)]
    root = program.root if program.collective.has_root else 0
    proof = _machine.prove(
        columns_of(program), shape_of(program, sizes, grain),
        rounds, launches, piece, queue, modes, root, MOST_RACES, finest,
    )  # fmt: skip
    words = Faults(program, sizes)
    words.raise_stop(proof, queue if program.style == "fifo" else None)
    faults = chain.from_iterable(
        explain_misplacements(program, sizes, words.of_mode(mode))
        if mode["in_place"]
        else words.of_mode(mode)
        for mode in proof["modes"]
    )
    first = next(faults, None)
    if first is not None:
        return None, chain([first], faults)
    loads = rank_loads(program, sizes)
    done = Verified(
        collective=program.collective,
        ranks=program.n,
        root=proof["root"] if program.collective.has_root else -1,
        modes=tuple("in-place" if in_place else "out-of-place" for in_place in modes),
        chunks=sizes.total,
        moved=sum(loads.values(), Fraction(0)) * sizes.total,
        loads=loads,
        steps=instructions,
        events=proof["events"],
        launches=launches,
        queue=queue if program.style == "fifo" else None,
    )
    return done, iter(())


def _claims(program: Program, in_place: bool) -> bool:
    return program.in_place if in_place else program.out_of_place


def _launches(program: Program, launches: int) -> int:
    if program.style == "fifo":
        return 1
    return max(launches, 3) if program.double_scratch else launches  # a half again: the third


def check_scale(program: Program) -> None:
    """UnsupportedError where the program is larger than `verify` handles."""
    scale_of(program, check(program), rounds=ROUNDS, launches=_launches(program, LAUNCHES))


def scale_of(
    program: Program, sizes: ChunkCounts, *, rounds: int, launches: int
) -> tuple[int, int]:
    """Returns (locations a chunk, instructions) of a run of the program, within the limits.

    Keeps time and memory bounded whatever the program says: UnsupportedError beyond the limits.
    """
    grain, work, instructions = _machine.scale(columns_of(program), rounds, int(SLICES))
    if grain > SLICES:
        raise UnsupportedError(
            f"the instructions' parts cut a chunk into more than {SLICES} slices {SLICES.note}"
        )
    locations = grain * sum(sizes.input + sizes.output + count for count in sizes.scratch)
    if locations > LOCATIONS:
        raise UnsupportedError(
            f"the buffers hold {locations // grain} chunks in all; "
            f"at most {LOCATIONS // grain} can be checked {LOCATIONS.note}"
        )
    work *= grain * launches
    if work > CHECK_STEPS:
        raise UnsupportedError(
            f"the program takes {work} steps on chunks to check; at most {CHECK_STEPS} are done "
            f"{CHECK_STEPS.note}"
        )
    return grain, instructions


def slots_of(program: Program, chunks: int, target: Target | None = None) -> tuple[int, int]:
    """(most chunks in one message piece, pieces that a connection holds) of the real runtime.

    `chunks`: of the collective's whole data. `target`: None for what `targets.runtime_of` finds. A
    program that serves every size is cut finest: a piece a chunk. (Onesided ones have no messages.)
    """
    size, count = message_slots(program, target)
    if not program.max_bytes:
        return 1, count
    return max(1, size // -(-program.max_bytes // chunks)), count


def rank_loads(program: Program, sizes: ChunkCounts) -> Loads:
    """(from rank, to rank) -> fraction of the total data handed straight from one to the other."""
    loads: Loads = {}
    for src, dst, parts, count in _machine.moves(columns_of(program)):
        loads[src, dst] = loads.get((src, dst), Fraction(0)) + Fraction(count, parts * sizes.total)
    return loads


def link_loads(program: Program, forest: Forest) -> Loads:
    """The loads between ranks, equal to the fraction for program and forest.

    The forest's load from rank i to rank j is the sum of the shares of its trees' edges there.
    Raises PlanError naming the first pair of ranks where the two differ.
    """
    number = forest.graph.rank_of
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
