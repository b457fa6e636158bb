"""Search: the plan of a forest that is fastest in simulated time, from the plainest one on.

A plan is a candidate: into how many parts trees are cut, how their work is spread over thread
blocks, how long slices are. An action makes other candidates of one. What is better is taken and
the actions begin anew, until none makes a better one, or the plan is as fast as its links allow.

Two things keep links idle. Too few thread blocks: each moves only so much, which is counted
(lower/limits.py). And thread blocks that serve several links in turn, long chunks and slices of
which others wait, equal messages in an order that fills one list alone: these show in simulated
time, of a short call and of a long one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from statistics import mode
from typing import Final, TypeVar

from forestcoll.common.errors import PlanError
from forestcoll.lower import UNIT_BYTES, Usage, lower, slice_pipelines, usage
from forestcoll.lower.layout import layout
from forestcoll.lower.limits import Work, bulk_protocol, hardest, most_instances, shortage
from forestcoll.lower.onesided import TOGETHER, Spread, forks
from forestcoll.lower.schedule import ORDERS, Partners
from forestcoll.program import Pipeline, Program
from forestcoll.program.sizes import RARE, Sizes, most_chunks
from forestcoll.program.targets import Target, message_slots, runtime_on
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.latency import Latencies, latency
from forestcoll.verify import _machine, simulate
from forestcoll.verify.columns import columns_of, rows_of
from forestcoll.verify.simulate import Band

# --- what the search is tuned by: the rows of scripts/benchmarks/frozen.json

SHORT: Final = 64 * 10**6
LONG: Final = 10**9
"""Bytes of the calls that count, each as much."""
LOWERINGS: Final = 7
"""Programs of a forest that are lowered at most."""
FAR: Final = 0.92
"""Share of the optimum that both calls reach, or other forests are solved for, ..."""
TREES: Final = (1, 2, 4, 8, 16)
"""... of so many trees a root."""
IN_TURN: Final = 0.85
"""Share of a joint optimum that phases in turn allow at least, to be candidates of plan sets."""
STARTS: Final = 2
"""Starts that are searched in turn without being faster than all before."""
RISE: Final = 1.45
"""How many times as fast a search makes plain plans of connections with thread blocks enough."""
LONGER: Final = (1.1, 1.04)
"""How many times as long the short and the long call may take of a start that is faster on an
average: two DGX A100, a NIC out, allreduce; MI250 allgather. Bandwidth is what many bytes ask for.
"""
LOSS: Final = 0.125
"""That power of what the short call gains a long one may take more in longer transfers."""
SURE: Final = 1.01
"""Cost up to which nothing else is tried, or of a long call up to which work is not spread; how
many times as fast a plan of a set has to be to be one."""
KEPT: Final = 1.008
"""How many times as long a call may take of what is tried last: long calls are known within 1 %."""
GAIN: Final = 1.004
"""How many times as fast a candidate has to be, or as slow it may be in fewer thread blocks, ..."""
MORE: Final = 0.058
"""... or that power of how many times as many thread blocks it takes: 4 % for twice as many."""
LOADED: Final = 1.1
"""How many times as fast, where thread blocks have more to move than they are counted for; how
many times as slow, where they have less. Their rates are known no better."""
SLOW: Final = 1 / 0.9
CROWDED: Final = 1.06
"""Cost of a short call from which on full lists get thread blocks."""
FLUENT: Final = 1.03
"""Cost of a short call for which trees are cut finer, ..."""
FINEST: Final = 125_000
"""... to no fewer bytes a chunk: then signals take longer than data, ..."""
OPERATIONS: Final = 160_000
ROOTED_OPERATIONS: Final = 80_000
"""... and to no more operations of all ranks: larger programs take minutes, and with a root those
of several forests are cut."""
SUMS: Final = 128_000
"""Operations of all ranks at most where sums have thread blocks of their own."""
SLICES: Final = (2**17, 2**16, 2**15)
"""Bytes of shorter slices."""
MOVED: Final = 2**18
"""Slices of different lengths that all ranks move through switches in a long call at most: playing
a million takes a minute, for no two end at the same time."""
ROUNDS: Final = 2**16 - 1
"""Slices of a pipeline at most: a 16-bit number on the device, which bounds the sizes served."""
MANY: Final = 64
"""Thread blocks of a rank from which on fewer are looked for, be the plan fast or not."""
FACTOR: Final = 2
"""Sizes for which plans of a set are played are so many times apart: as tests double them; ..."""
HALVINGS: Final = 4
"""... and so often the border of two plans is sought halfway between two of them."""
PARTED: Final = 8
"""Chunks of the parts of a tree, if it has room: their number need be no power of two."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to lower a forest: what `lower` calls by these names."""

    instances: int = 1
    spread: Spread = TOGETHER
    unit_bytes: int = UNIT_BYTES
    partners: Partners = "shift"
    adders: bool = False
    least: int = 1


@dataclass(frozen=True, slots=True)
class Bound:
    """What links allow: GB/s; hops one after the other, and microseconds over links in all."""

    algbw: Fraction
    hops: int
    latency: Fraction


class Judge:
    """Lowers and plays the candidates of a forest, each once, and compares them.

    `first`: the program of `start`, cut in no parts but those asked for. `links`: latencies; with
    them calls are played as reports have them. `bands`: those so far. `lowered`: so many programs.
    `refusals`: why the target does not hold a candidate. What takes longer than it may, to be
    better than the best so far, is not played to its end, nor again: its time is infinite.
    """

    def __init__(
        self, forest: Forest, target: Target, first: Program, links: Latencies | None = None
    ) -> None:
        self.forest, self.target, self.first, self.links = forest, target, first, links
        self.start = Candidate(int(first.extra.get("instances", "1")))
        self.fifo = first.style == "fifo"
        bulk = first.protocol == bulk_protocol(forest, target)
        self.plays = bulk and forest.n <= simulate.RANKS
        self.served = Sizes.of(first)
        self.trees = layout(forest).trees
        self.lowered = 1
        self.refusals: dict[Candidate, str] = {}
        self._programs: dict[Candidate, Program | None] = {self.start: first}
        self.bands: dict[tuple[Candidate, int], Band] = {}
        self._facts: dict[Candidate, tuple[Work, Usage]] = {}
        played = (SHORT, LONG) if forest.n <= simulate.RANKS else ()
        self.sizes = tuple(sorted({simulate.longest(first, size) for size in played}))
        self._wire = Fraction(1)
        if self.fifo:
            runtime = runtime_on(first, forest.name)
            self._wire = runtime.messages.wire(first.protocol)
            self.message, _ = message_slots(first, runtime)
        self._bound = bound_of(forest, links)

    def program(self, one: Candidate) -> Program | None:
        """The candidate's program; None where the target cannot hold it, or LOWERINGS are over."""
        if one not in self._programs:
            self._programs[one] = self._lower(one)
        return self._programs[one]

    def _lower(self, one: Candidate) -> Program | None:
        whole = replace(one, unit_bytes=UNIT_BYTES)
        if whole != one:
            program = self.program(whole)
            return program and slice_pipelines(program, one.unit_bytes)
        if self.lowered >= LOWERINGS:
            return None
        self.lowered += 1
        try:
            return lower(
                self.forest,
                self.target,
                instances=one.instances,
                protocol=self.first.protocol,
                spread=one.spread,
                partners=one.partners,
                adders=one.adders,
                least=one.least,
            )
        except PlanError as error:
            self.refusals[one] = str(error).split(": ", 1)[-1].split("; ")[0]
            return None

    def facts(self, one: Candidate) -> tuple[Work, Usage]:
        """The work of its hardest thread blocks, and what it takes of the target."""
        whole = replace(one, unit_bytes=UNIT_BYTES)
        if whole not in self._facts:
            program = self.program_of(whole)
            self._facts[whole] = hardest(self.forest, program), usage(program)
        return self._facts[whole]

    def blocks(self, one: Candidate) -> int:
        """Thread blocks of the rank that has most."""
        return self.facts(one)[1].thread_blocks

    def load(self, one: Candidate) -> Fraction:
        """How many times as many thread blocks as it has its work takes, at least 1."""
        return max(Fraction(1), self.facts(one)[0].ratio)

    def stretch(self, one: Candidate, size: int, most: float = math.inf) -> float:
        """The time of a call as a multiple of the least that links allow, under the worse rule."""
        least = self.least(self._bound, size)
        return max(1.0, self.time(one, size, most * least) / least) if self.plays else 1.0

    def least(self, bound: Bound, size: int) -> float:
        """Microseconds of a call at least, of plans like the first one."""
        hop = simulate.DEFAULTS.hop((self.first.style, self.first.protocol))
        rate = 1000 * bound.algbw / self._wire  # bytes a microsecond
        return float(size / rate + bound.latency) + bound.hops * hop

    def time(self, one: Candidate, size: int, most: float = math.inf) -> float:
        """Microseconds of a call under the worse rule; pipelines go on under each as they began."""
        if not self.fifo and size > 2 * SHORT:
            short, more = self.band(one, SHORT, most), (size - SHORT) / SHORT
            near = max(short.fifo, short.fair)
            if near > most:
                return math.inf
            twice = self.band(one, 2 * SHORT, near + (most - near) / more)
            sides = (short.fifo, twice.fifo), (short.fair, twice.fair)
            return max(near + (far - near) * more for near, far in sides)
        band = self.band(one, size, most)
        return max(band.fifo, band.fair)

    def band(self, one: Candidate, size: int, most: float = math.inf) -> Band:
        """A call of so many bytes, played; for `most` microseconds at most."""
        if (one, size) not in self.bands:
            program = self.program_of(one)
            self.bands[one, size] = simulate.band(
                program, self.forest, size, links=self.links, until=most
            )
        return self.bands[one, size]

    def program_of(self, one: Candidate) -> Program:
        """The program of a candidate that there is."""
        program = self.program(one)
        assert program is not None
        return program

    def note(self, one: Candidate) -> str:
        """That its thread blocks do not suffice, and why there are no more; or ""."""
        if self.first.protocol == "LL":
            return ""
        return shortage(self.facts(one)[0], self.target, _reason(self, one))

    def cost(self, one: Candidate, most: float = math.inf) -> float:
        """The mean stretch of both calls; no less than what thread blocks are overloaded by."""
        short = self.stretch(one, SHORT, most**2)
        if short > most**2:  # whatever the long call
            return math.inf
        mean = math.sqrt(short * self.stretch(one, LONG, most**2 / short))
        load = float(self.load(one))
        return max(mean, load) if load > 2 else mean

    def better(self, one: Candidate, best: Candidate) -> bool:
        """Whether `one` is faster, by as much as its thread blocks ask for; or as fast in fewer."""
        if self.program(one) is None:
            return False
        less, more = self.load(best) - self.load(one), self.blocks(one) / self.blocks(best)
        if less:
            least = 1 / LOADED if less > 0 else LOADED
        else:
            least = 1 / GAIN if more < 1 else gain_for(more)
        most = self.cost(best) / least
        return self.cost(one, most) <= most


def bound_of(forest: Forest, links: Latencies | None) -> Bound:
    """What no plan of the forest is faster than."""
    hops = forest.height * len(forest.collective.phases)
    return Bound(forest.plain_algbw, hops, latency(forest, links) if links else Fraction(0))


def gain_for(more: float) -> float:
    """The rule: how many times as fast is better, in `more` times as many thread blocks."""
    return max(GAIN, math.pow(more, MORE))


# --- actions


def add_blocks(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """More parts of each tree, until thread blocks suffice for the work; or as many as fit.

    Parts that share thread blocks all the same are none.
    """
    most, _ = most_instances(judge.first, judge.target)
    count = min(one.instances << (math.ceil(judge.load(one)) - 1).bit_length(), most)
    while count > one.instances:
        other = replace(one, instances=count)
        if judge.program(other) is not None and judge.load(other) < judge.load(one):
            yield other
        count //= 2


def shorten_slices(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Shorter slices, the last of all actions; not so many that 32 bits tell more bytes."""
    shorter = next((unit for unit in SLICES if unit < one.unit_bytes), None)
    other = replace(one, unit_bytes=shorter or one.unit_bytes)
    program = judge.program(other)
    if shorter and program and counts_rounds(program):
        yield other


def vary_slices(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Slices of different lengths, shorter ones first, where thread blocks read what they add up.

    Over one link several would all wait for their answers at the same time.
    """
    forest = judge.forest
    least = LONG * (forest.n - 1) / MOVED if forest.graph.n > forest.n else 0
    if forest.collective.reduces and not one.spread.uneven and one.unit_bytes >= least:
        other = replace(one, spread=one.spread._replace(uneven=True))
        yield from (short for short in shorten_slices(judge, other) if short.unit_bytes >= least)
        yield other


def cut_coarser(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Half as many chunks, which suit an order that was found after them; or twice as many in a
    transfer, where signals take longer than that."""
    chunks = Fraction(judge.served.chunks * one.instances, judge.start.instances)
    if one.least * SHORT < FINEST * chunks:
        yield replace(one, least=2 * one.least)
    if one.partners != ORDERS[0] and one.instances > judge.start.instances:
        yield replace(one, instances=one.instances // 2)


def lengthen(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """A tree in four transfers, or in two, where lists are full of more.

    Of an odd number of boxes rounded shares are dozens of chunks, and lists hold but so many steps.
    """
    if judge.cost(one) < CROWDED:
        return
    _, _, operands, _ = rows_of(columns_of(judge.program_of(one)))
    now = mode(count for *_, count in operands)
    whole = max(tree.count for tree in judge.trees)
    for other in (replace(one, least=-(-whole // parts)) for parts in (4, 2)):
        if other.least >= 2 * now and judge.program(other) is not None:
            gain = judge.stretch(one, SHORT) / judge.stretch(other, SHORT)
            most = judge.stretch(one, LONG) * max(1.0, gain) ** LOSS
            if judge.stretch(other, LONG, most) <= most:
                yield other


def join_parts(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Fewer parts of trees: just enough of them."""
    blocks = judge.blocks(one)
    parts = math.ceil(judge.load(judge.start))
    enough = judge.stretch(one, SHORT) <= SLOW and blocks <= MANY
    if enough or judge.blocks(judge.start) * parts >= blocks:
        return
    most = max(tree.count for tree in judge.trees)
    room, units = most_chunks(judge.forest.n) // judge.served.chunks, 1
    while most * units < PARTED * parts and 2 * units <= room:
        units *= 2
    grain = max(1, round(Fraction(most * units, parts))) if parts > 1 else 0
    for children in (False, True) if forks(judge.forest, judge.trees) else (False,):
        yield Candidate(1, Spread(grain, children, units if grain else 1))


def spread_work(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Thread blocks of their own for children, or for parts of large trees; as many as suffice.

    Half as many parts where they would share thread blocks. Where a long call is as fast as links
    allow, none of them waits for another.
    """
    if judge.load(one) == 1 and judge.stretch(one, LONG) <= SURE:
        return
    counts = sorted(tree.count for tree in judge.trees)
    grains = [counts[0], max(1, counts[0] // 2)] if counts[0] < counts[-1] else [counts[0]]
    ways = (True, False) if forks(judge.forest, judge.trees) else (False,)
    for spread in (Spread(grain, children) for grain in (0, *grains) for children in ways):
        other = replace(one, spread=spread, instances=judge.start.instances)
        if spread not in (TOGETHER, one.spread) and judge.program(other) is not None:
            more = next(add_blocks(judge, other), other)
            if judge.blocks(more) == judge.target.thread_blocks and more.instances > 1:
                yield replace(more, instances=more.instances // 2)
            yield more


def order_equals(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Other orders of equally urgent messages, which only switches have for several ranks.

    Where the plainest program is as slow in another order, none helps.
    """
    forest = judge.forest
    if forest.collective.has_root or forest.graph.n == forest.n or one.partners != ORDERS[0]:
        return
    probe = replace(judge.start, partners=ORDERS[1])
    if judge.stretch(one, LONG) < FLUENT or (program := judge.program(probe)) is None:
        return
    if _machine.rows(columns_of(program)) == _machine.rows(columns_of(judge.first)):
        return
    if judge.stretch(probe, LONG) != judge.stretch(judge.start, LONG):
        yield from (replace(one, partners=partners) for partners in ORDERS[1:-1])


def order_parts(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Parts of trees one after the other: sums of the first are handed on while others add up.

    Where the longest chains first leave links idle; not for a slower long call.
    """
    other = replace(one, partners=ORDERS[-1])
    if judge.forest.collective.two_phases and one != other and judge.cost(one) >= CROWDED:
        most = judge.stretch(one, LONG)
        if judge.program(other) is not None and judge.stretch(other, LONG, most) <= most:
            yield other


def cut_finer(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Smaller chunks, which a rank hands on sooner: at once as many as the short call asks for.

    What is lost is as long as a chunk, or as a message of it. Half as many, if that is faster on an
    average and a long call takes about as long.
    """
    fitting = (other for other in _finer(judge, one) if judge.blocks(other) <= judge.blocks(one))
    finest, half = next(fitting, None), next(fitting, None)
    if finest is None:
        return
    if half is not None:
        than = finest if judge.better(finest, one) else one
        most = LONGER[1] * judge.stretch(than, LONG)
        if judge.stretch(half, LONG, most) <= most and judge.cost(half) < judge.cost(finest):
            yield half
    yield finest


def sum_apart(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Sums of a reduce in thread blocks of their own, where lists are full of them; and finer."""
    forest, used = judge.forest, judge.facts(one)[1]
    reduces = forest.collective.has_root and forest.collective.reduces
    if not reduces or one.adders or judge.stretch(one, SHORT) <= SLOW:
        return
    most, times = min(_most(judge, one), Fraction(SUMS, used.operations * forest.n)), 1
    while 2 * times <= most:
        times *= 2
    if times > 1 and 2 * used.steps > judge.target.steps:
        yield replace(one, adders=True, instances=times * one.instances)


def cut_wider(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """Smaller chunks in more thread blocks, as full lists need: the fastest of them first."""
    most = LOADED * judge.cost(one)
    yield from sorted(
        (other for other in _finer(judge, one) if judge.blocks(other) > judge.blocks(one)),
        key=lambda other: (round(judge.cost(other, most), 3), judge.blocks(other)),
    )


def _finer(judge: Judge, one: Candidate) -> Iterator[Candidate]:
    """The candidates of smaller chunks that the target holds, the smallest first."""
    forest, used = judge.forest, judge.facts(one)[1]
    largest = ROOTED_OPERATIONS if forest.collective.has_root else OPERATIONS
    most = min(_most(judge, one), Fraction(largest, used.operations * forest.n))
    lost = judge.stretch(one, SHORT) - 1
    once = 1 if lost < CROWDED - 1 else 4  # times that lists may be too full
    most = min(most, Fraction(once * judge.target.steps, used.steps))
    messages = SHORT * judge.start.instances / (judge.served.chunks * one.instances * judge.message)
    wanted = max(1.0, messages) * lost / (FLUENT - 1)
    times = 1
    while times < max(2, wanted) and 2 * times <= most:
        times *= 2
    while times > 1:
        other = replace(one, instances=times * one.instances)
        times //= 2
        if judge.program(other) is not None:
            yield other


def _most(judge: Judge, one: Candidate) -> Fraction:
    """How many times as many chunks sizes in use leave."""
    chunks = min(most_chunks(judge.forest.n) if judge.served.powers else RARE, SHORT // FINEST)
    return Fraction(chunks, judge.served.chunks) * judge.start.instances / one.instances


T = TypeVar("T")
Action = Callable[[Judge, Candidate], Iterator[Candidate]]
SPREADING: Final[tuple[Action, ...]] = (add_blocks, spread_work)
"""What gives links thread blocks enough."""
ACTIONS: Final[dict[str, tuple[Action, ...]]] = {
    "fifo": (add_blocks, cut_finer, sum_apart, cut_wider, order_equals, order_parts, lengthen),
    "onesided": (add_blocks, join_parts, spread_work, shorten_slices),
}
"""All actions of a style, in the order in which they are tried.

Slices are shortened last, and nothing else is tried with shorter ones: which thread blocks do the
work is decided by calls of long slices, that take a fraction of the time to play.
"""


def search(
    forest: Forest,
    target: Target,
    program: Program,
    actions: Sequence[Action] | None = None,
    links: Latencies | None = None,
) -> tuple[Program, str]:
    """The best program that actions lead to, and a note where thread blocks do not suffice, or "".

    `program`: the forest's, all of whose trees stay whole. The others: see `fastest`, `Judge`.
    """
    judge = Judge(forest, target, program, links)
    best = fastest(judge, actions)
    return judge.program_of(best), judge.note(best)


def fastest(judge: Judge, actions: Sequence[Action] | None = None) -> Candidate:
    """The best candidate that actions lead to. `actions`: others are left out.

    Deterministic. Programs of protocol LL are for few bytes and stay as they are; those of a
    protocol that is not for much data, or of many ranks, only get more thread blocks.
    """
    known = ACTIONS[judge.first.style] if judge.plays else (add_blocks,)
    tried = [action for action in known if actions is None or action in actions]

    def offers(best: Candidate) -> Iterator[Candidate]:
        if judge.first.protocol != "LL" and (judge.load(best) > 1 or judge.cost(best) > SURE):
            for action in tried:
                if best.unit_bytes == UNIT_BYTES or action is shorten_slices:
                    yield from action(judge, best)

    return climb(judge.start, offers, judge.better)


def finish(judge: Judge, first: Candidate) -> Candidate:
    """The candidate after what is tried with the fastest of all alone, and makes no call slower."""

    def better(one: Candidate, best: Candidate) -> bool:
        return judge.better(one, best) and all(
            judge.time(one, size) <= KEPT * judge.time(first, size) for size in judge.sizes
        )

    if not judge.plays or judge.cost(first) <= SURE:
        return first
    judge.lowered = 0  # as many once more
    return climb(first, partial(cut_coarser if judge.fifo else vary_slices, judge), better)


def climb(best: T, offers: Callable[[T], Iterator[T]], better: Callable[[T, T], bool]) -> T:
    """The loop that chooses: takes the first offer that is better, and asks anew, until none is."""
    while (after := next((one for one in offers(best) if better(one, best)), None)) is not None:
        best = after
    return best


def _reason(judge: Judge, one: Candidate) -> str:
    """Why it has no more thread blocks at work."""
    most, limit = most_instances(judge.first, judge.target)
    if 2 * one.instances > most:
        return limit
    idle = f"no more than {judge.facts(one)[0].blocks} of them have work at once"
    if one.instances > judge.start.instances and judge.load(one) == judge.load(judge.start):
        return idle
    for other, reason in judge.refusals.items():
        if other.instances > one.instances:
            return f"with {other.instances} instances {reason}"
    if judge.blocks(one) * 2 > judge.target.thread_blocks > judge.facts(one)[0].blocks:
        return "with more, parts of trees share thread blocks and wait for each other"
    return idle


def counts_rounds(program: Program) -> bool:
    """Whether its pipelines serve all sizes that 32 bits can tell."""
    most = max(
        max(r.input_chunks, r.output_chunks, r.scratch_chunks * program.scratch_factor)
        for r in program.ranks
    )
    steps = (step for r in program.ranks for b in r.thread_blocks for step in b.steps)
    pipelines = (step for step in steps if isinstance(step, Pipeline))
    return all(ROUNDS * p.unit_bytes * most >= 2**32 * p.chunks for p in pipelines)
