"""How the work of a plan is spread over thread blocks: as many, and so, that the links are busy.

Two things keep links idle. Too few thread blocks: each moves only so much (instances.py counts).
And thread blocks that serve several links in turn, or unequal shares: all links but one wait. So
onesided programs are made in several ways (`Spread`), played against the links in simulated time,
and the fastest is taken; of those about as fast, the one with the fewest thread blocks.

Where a call is not long, links also wait while the first data are on their way, and at the end. So
trees of fifo programs are cut finer, in the same thread blocks, and onesided ones move shorter
slices at a time, until a call of some MB is fast (`refine`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from forestcoll.common.errors import PlanError
from forestcoll.lower.instances import BLOCK, OPERATIONS, filled, hardest, shortage
from forestcoll.lower.layout import RankTree, layout
from forestcoll.lower.limits import bulk_protocol, steps, usage
from forestcoll.lower.onesided import TOGETHER, Spread
from forestcoll.lower.schedule import ORDERS
from forestcoll.program import Pipeline, Program, ThreadBlock
from forestcoll.program.sizes import RARE, Sizes, most_chunks
from forestcoll.program.targets import Target, message_slots, runtime_on
from forestcoll.schedule.forest import Forest
from forestcoll.verify import simulate

SIZE: Final = 10**9
"""Bytes of the call that is played: long enough for the links to be all that counts."""
ENOUGH: Final = 0.985
"""Share of the forest's algbw at which no other way is tried."""
ALIKE: Final = 0.01
"""Shares that differ by less are as good: fewer thread blocks decide."""
MORE: Final = 0.02
"""What a share has to gain by more thread blocks."""
LOADED: Final = 2
"""Times what a thread block is counted for that one may have to move for want of others."""
WAITING: Final = "with more, parts of trees share thread blocks and wait for each other"
"""Why a program has no more."""
PROMISE: Final = 0.026
"""What it has to gain where chunks half as long halve what is lost, for them to be tried in more
thread blocks."""
SHORT: Final = 64 * 10**6
"""Bytes of the call for which programs are cut finer, ..."""
FLUENT: Final = {"fifo": 0.96, "onesided": 0.9}
"""... until it reaches that share of the forest's algbw, as far as flags leave it, ..."""
FINEST: Final = 62_500
"""... to no fewer bytes a chunk: then signals take longer than data, ..."""
FINEST_OPERATIONS: Final = 160_000
"""... and for no more operations of all ranks: larger programs take minutes; ..."""
FINEST_ROOTED: Final = 80_000
"""... with a root for no more than that, for there several forests' programs are cut; ..."""
LEAST_SLICE: Final = 2**16
"""... nor a slice of a onesided pipeline; ..."""
SHORT_SLICES: Final = (3 * 2**14, 2**15)
"""... but one of those, where a short call gains more than one four times as long loses ..."""
LOADED_SLICES: Final = (*SHORT_SLICES, 3 * 2**13, 2**14)
"""... (the last a word for each of 1,024 threads, where thread blocks are what is slow), ..."""
LATENCY: Final = 0.5
"""... when each link takes so many microseconds: a signal once, a read there and back."""
SLOW: Final = 0.9
"""Share, of what flags leave, below which a reduce is tried with sums in thread blocks of their
own, ..."""
MOST_SUMS: Final = 128_000
"""... with no more operations of all ranks than so many."""
ROUNDS: Final = 2**16 - 1
"""Of a onesided pipeline at most: a 16-bit number on the device, which bounds the sizes served."""
MANY: Final = 64
"""Thread blocks of a rank from which on fewer are looked for, be the program fast or not."""
PARTED: Final = 8
"""Chunks of the parts of a tree, if it has room: their number need be no power of two."""
RANKS: Final = 64
"""Programs of more ranks are taken as they are: making and playing more takes seconds."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A program with its note, and the share of the forest's algbw that it reaches."""

    program: Program
    note: str
    share: float

    @property
    def blocks(self) -> int:
        """Thread blocks of the rank that has most."""
        return max(len(rank.thread_blocks) for rank in self.program.ranks)


def fill(forest: Forest, target: Target, program: Program) -> tuple[Program, str]:
    """The forest's program so spread over thread blocks that the links are busy, and a note or "".

    `program`: that of one instance, all of whose trees stay whole. Deterministic. Fifo programs,
    and those of packets, only get more instances.
    """
    from forestcoll.lower import lower

    first = filled(forest, target, program)
    if program.style == "fifo" or not _played(forest, program):
        return first
    best, taken = _Tried(*first, _share(forest, first[0])), TOGETHER
    for spread in _spreads(forest):
        if best.share >= ENOUGH:
            break
        try:
            other = lower(forest, target, protocol=program.protocol, spread=spread)
            if sum(steps(b) for rank in other.ranks for b in rank.thread_blocks) > OPERATIONS:
                continue
            more = filled(forest, target, other, spread)
        except PlanError:  # a target has only so many thread blocks
            continue
        tried = _Tried(*more, _share(forest, more[0]))
        if _better(best, tried) is tried:
            best, taken = tried, spread
    best = _apart(forest, target, best, taken)
    return best.program, best.note


def _apart(forest: Forest, target: Target, tried: _Tried, spread: Spread) -> _Tried:
    """The onesided program, or one of fewer instances where those it has wait for each other.

    With more parts than thread blocks, several share one, which does them one after the other, and
    elsewhere thread blocks wait for the last of them. Those of fewer instances have more to move
    than they are counted for, so the program has to gain MORE, and none may have over LOADED times
    as much.
    """
    from forestcoll.lower import lower

    if tried.blocks < target.thread_blocks:
        return tried
    while tried.share < ENOUGH and (count := usage(tried.program).instances // 2):
        try:
            fewer = lower(forest, target, instances=count, spread=spread)
        except PlanError:
            break
        work = hardest(forest, fewer)
        if work.ratio > LOADED:
            break
        share = _share(forest, fewer)
        if share <= tried.share + MORE:
            break
        tried = _Tried(fewer, shortage(work, target, WAITING), share)
    return tried


def refine(forest: Forest, target: Target, program: Program, orders: bool = True) -> Program:
    """The filled program in so small pieces that a short call, too, keeps the links busy.

    In no more thread blocks. Deterministic. Those that are for few bytes by their protocol stay as
    they are. `orders`: also in the best order of equal messages (`reorder`), which takes as long.
    """
    if forest.n > RANKS or program.protocol != bulk_protocol(forest, target):
        return program
    if program.style == "fifo":
        finer = _finer(forest, target, program)
        return reorder(forest, target, finer) if orders else finer
    best, share = _leaner(forest, target, *_sooner(forest, program))
    return _shortest(forest, best) if share < FLUENT["onesided"] else best


def _played(forest: Forest, program: Program) -> bool:
    return program.protocol == "Simple" and forest.n <= RANKS


def _finer(forest: Forest, target: Target, program: Program) -> Program:
    """The fifo program with smaller chunks: a rank hands on sooner what it gets.

    In more thread blocks only where that is faster by MORE, and lists are long already. Where a
    short call is as fast, smaller chunks are taken if a long one is faster by MORE: its list is
    repeated for slices of a chunk, and what begins anew in each waits for what ends.
    """
    from forestcoll.lower import lower

    first = usage(program)
    served = Sizes.of(program)
    runtime = runtime_on(program, forest.name)
    flags = runtime.messages.wire(program.protocol)
    enough = FLUENT["fifo"] / float(flags)
    chunks = min(most_chunks(forest.n) if served.powers else RARE, SHORT // FINEST)
    most = first.instances * chunks // served.chunks
    best, count = program, 2 * first.instances
    largest = FINEST_ROOTED if forest.collective.rooted else FINEST_OPERATIONS
    if forest.collective.rooted:  # longer chunks than a message go in the same messages
        message, _ = message_slots(program, runtime)
        while 2 * count <= most and count * served.chunks * message < SHORT * first.instances:
            count *= 2
    share, used = _share(forest, program, SHORT), first
    while share < enough and count <= most:
        finer = Fraction(count, used.instances)
        if finer * used.operations * forest.n > largest:
            break
        if finer * used.steps > target.steps and 2 * share / (1 + share) < share + PROMISE:
            break
        try:
            program = lower(forest, target, instances=count, protocol=program.protocol)
        except PlanError:
            break
        used = usage(program)
        wider = used.thread_blocks > first.thread_blocks
        found = _share(forest, program, SHORT)
        alike = not wider and abs(found - share) <= ALIKE
        if alike and _share(forest, program) > _share(forest, best) + MORE:
            best, share = program, max(found, share)
        elif found > share + (MORE if wider else ALIKE):
            best, share = program, found
        if wider:
            break
        count *= 2
    if share < SLOW / flags and forest.collective.rooted and forest.collective.reduces:
        return _leaving_sums(forest, target, best, share, most)
    return best


def reorder(forest: Forest, target: Target, program: Program) -> Program:
    """The refined program, or the fastest of those whose lists have equal messages otherwise.

    Of fifo programs without a root, until one is FLUENT in short calls and long ones. Only switches
    have equally urgent messages for several ranks; where the first other order changes nothing,
    none does.
    """
    from forestcoll.lower import lower

    meshed = forest.graph.n == forest.n
    if program.style != "fifo" or forest.collective.rooted or meshed or forest.n > RANKS:
        return program
    if program.protocol != bulk_protocol(forest, target):
        return program
    used, sizes = usage(program), (SHORT, SIZE)
    first = best = min(_share(forest, program, size) for size in sizes)
    for partners in ORDERS[1:]:
        if best >= FLUENT["fifo"]:
            break
        try:
            made = lower(
                forest,
                target,
                instances=used.instances,
                protocol=program.protocol,
                partners=partners,
            )
        except PlanError:  # lists of another order may be longer
            continue
        share = min(_share(forest, made, size) for size in sizes)
        if partners == ORDERS[1] and share == first:
            break
        if share > best and usage(made).thread_blocks <= used.thread_blocks:
            program, best = made, share
    return program


def _leaving_sums(
    forest: Forest, target: Target, program: Program, share: float, most: int
) -> Program:
    """The fifo program of a reduce, or a finer one whose sums have thread blocks of their own.

    Where the lists of those that receive are full of sums, finer pieces take them more thread
    blocks; so the sums do. `share`: what it reaches in a short call. `most`: instances.
    """
    from forestcoll.lower import lower

    used = usage(program)
    if 2 * used.steps <= target.steps:
        return program
    count = used.instances
    while (
        2 * count <= most and 2 * count * used.operations * forest.n <= MOST_SUMS * used.instances
    ):
        count *= 2
    if count == used.instances:
        return program
    try:
        for pieces in (used.instances, count):  # as many as there are take little time to try
            kept = lower(forest, target, instances=pieces, protocol=program.protocol, adders=True)
            gain = _share(forest, kept, SHORT) - share
            if gain < (MORE if pieces == count else -ALIKE):
                return program
    except PlanError:
        return program
    return kept if _share(forest, kept) > _share(forest, program) - gain else program


def _sooner(forest: Forest, program: Program) -> tuple[Program, float]:
    """The onesided program with shorter slices, and what it reaches in a short call."""
    best, share = program, _share(forest, program, SHORT)
    unit = _slice(program) // 2
    while share < FLUENT["onesided"] and unit >= LEAST_SLICE:
        program = _sliced(program, unit)
        found = _share(forest, program, SHORT)
        if found > share + ALIKE:
            best, share = program, found
        unit //= 2
    return best, share


def _counts(program: Program) -> bool:
    """Whether the rounds of its pipelines serve all sizes that 32 bits can tell."""
    most = max(
        max(r.input_chunks, r.output_chunks, r.scratch_chunks * program.scratch_factor)
        for r in program.ranks
    )
    return all(ROUNDS * p.unit_bytes * most >= 2**32 * p.chunks for p in _pipelines(program))


def _reached(forest: Forest, program: Program, block_rate: float | None) -> float:
    """Shares of the forest's algbw with LATENCY in a short call and one four times as long, added.

    What further bytes take is what twice as many take longer. `block_rate`: GB/s of a thread block.
    """
    options = simulate.Options(latency=LATENCY, block_rate=block_rate)
    short, twice = (simulate.band(program, forest, k * SHORT, options=options) for k in (1, 2))
    slowest = max(3 * twice.fifo - 2 * short.fifo, 3 * twice.fair - 2 * short.fair)
    return short.share(forest.plain_algbw) + SHORT / (250 * slowest * float(forest.plain_algbw))


def _shortest(forest: Forest, program: Program) -> Program:
    """The onesided program with still shorter slices, or as it is where those are of no use.

    Thread blocks that have more to move than they are counted for are as slow as that.
    """
    if _slice(program) != LEAST_SLICE:
        return program
    rate = float(BLOCK) if hardest(forest, program).ratio > 1 else None
    reached = _reached(forest, program, rate)
    for unit in SHORT_SLICES if rate is None else LOADED_SLICES:
        other = _sliced(program, unit)
        found = _reached(forest, other, rate) if _counts(other) else 0.0
        if found <= reached:
            break
        program, reached = other, found
    return program


def _leaner(
    forest: Forest, target: Target, program: Program, share: float
) -> tuple[Program, float]:
    """The onesided program, or one of fewer thread blocks that is faster for a short call.

    `share`: what the program reaches in that call. Instances are powers of two, often more than the
    rates of links ask for. All parts of a tree are on their way at once: of the same slices, fewer
    parts arrive sooner.
    """
    from forestcoll.lower import lower

    best, blocks, load = program, usage(program).thread_blocks, hardest(forest, program).ratio
    if share >= FLUENT["onesided"] and blocks <= MANY:
        return program, share
    whole = lower(forest, target, protocol=program.protocol)
    parts = math.ceil(hardest(forest, whole).ratio)
    trees = layout(forest).trees
    most = max(tree.count for tree in trees)
    room = most_chunks(whole.n) // Sizes.of(whole).chunks
    units = 1
    while most * units < PARTED * parts and 2 * units <= room:
        units *= 2
    grain = max(1, round(Fraction(most * units, parts)))
    for children in (False, True) if _forks(forest, trees) else (False,):
        try:
            other = lower(forest, target, spread=Spread(grain, children, units))
        except PlanError:
            continue
        if usage(other).thread_blocks >= blocks:
            continue
        if hardest(forest, other).ratio > max(Fraction(1), load):
            continue
        other = _sliced(other, _slice(program))
        found = _share(forest, other, SHORT)
        if found > share + ALIKE and _share(forest, other) > _share(forest, program) - ALIKE:
            best, share = other, found
    return best, share


def _slice(program: Program) -> int:
    """Bytes of the longest slice of its pipelines."""
    return max((pipeline.unit_bytes for pipeline in _pipelines(program)), default=0)


def _pipelines(program: Program) -> Iterator[Pipeline]:
    """Those of all thread blocks."""
    for rank in program.ranks:
        for block in rank.thread_blocks:
            yield from (step for step in block.steps if isinstance(step, Pipeline))


def _sliced(program: Program, unit: int) -> Program:
    """The program whose pipelines all move so many bytes at a time."""

    def block(old: ThreadBlock) -> ThreadBlock:
        steps = (replace(s, unit_bytes=unit) if isinstance(s, Pipeline) else s for s in old.steps)
        return replace(old, steps=tuple(steps))

    ranks = (replace(r, thread_blocks=tuple(map(block, r.thread_blocks))) for r in program.ranks)
    return replace(program, ranks=tuple(ranks))


def _spreads(forest: Forest) -> Iterator[Spread]:
    """Other ways than all trees whole: a thread block for each child first, as most are faster."""
    trees = layout(forest).trees
    counts = sorted({tree.count for tree in trees})
    forks = _forks(forest, trees)
    if forks:
        yield Spread(children=True)
    grains = [counts[0], max(1, counts[0] // 2)] if counts[0] != counts[-1] else [counts[0]]
    for grain in dict.fromkeys(grains):
        if forks:
            yield Spread(grain=grain, children=True)
        yield Spread(grain=grain)


def _forks(forest: Forest, trees: Iterable[RankTree]) -> bool:
    """Whether `Spread.children` makes thread blocks for any children; `trees`: of its layout."""
    both = forest.collective.two_phases
    return any(
        len(found) > 1
        for tree in trees
        if (apart := Spread(children=True).apart(tree, both)) != "no"
        for rank, found in enumerate(tree.children())
        if apart == "all" or rank != tree.root
    )


def _better(one: _Tried, other: _Tried) -> _Tried:
    """The faster of two, or where they are about as fast the one of fewer thread blocks."""
    if abs(one.share - other.share) <= ALIKE:
        return min(one, other, key=lambda tried: tried.blocks)
    return max(one, other, key=lambda tried: tried.share)


def _share(forest: Forest, program: Program, size: int = SIZE) -> float:
    """What the program reaches of the forest's algbw under the worse of two rules of links."""
    played = simulate.band(program, forest, size, options=simulate.LINKS_ALONE)
    return played.share(forest.plain_algbw)
