"""Candidates: what plans may be made from, of ours and of others, and the best program of each.

Others' forests are the fastest ones and the lowest of each baseline. Of an all-to-all: the ways of
others; and the optimum's routes, with one unit of every pair, and with as many as come near it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.compile.choose import ENOUGH, round_forest
from forestcoll.compile.plan_set.estimate import line_of
from forestcoll.compile.plan_set.others import Other
from forestcoll.compile.plan_set.values import LARGEST, Candidate, Source
from forestcoll.compile.rivals import trees_of
from forestcoll.lower.alltoall.lowering import write_out
from forestcoll.lower.rounds import Rounds, lower_rounds
from forestcoll.program.sizes import is_power
from forestcoll.schedule.forest import Forest
from forestcoll.solver.alltoall.rounding import MOST_UNITS, route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import routes_over
from forestcoll.solver.baselines.alltoall import EXCHANGES
from forestcoll.verify import simulate
from forestcoll.verify.simulate import DEFAULTS, KINDS, Options

if TYPE_CHECKING:
    from forestcoll.program import Program, Protocol, Style
    from forestcoll.program.targets import Target
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Rule, Timing, Where
    from forestcoll.verify.simulate.options import Kind

WIDE: Final = 4
"""Times as many parts of trees in LL and LL128, at any size."""
PIECES: Final = (2, 4, 8)
"""Times as many parts of trees, on a schedule, or slices of MSCCL++'s pipelines: looked at where no
program is good."""
FINER: Final[Mapping[Style, tuple[int, ...]]] = {"fifo": (2, 4, 8, 16), "onesided": (2,)}
"""Times as many pieces of an all-to-all's blocks for more bytes: what is lost until all hops are
under way, or while links in order serve others, is as long as a piece."""
LEAST: Final = 2**11
"""Bytes of such a piece at least."""


def round_forests(
    forests: Iterable[Forest], targets: Collection[Target], instances: int = 1
) -> Iterator[Forest]:
    """The forests in few chunks that serve powers of two, where there are such."""
    for forest in [*forests] if targets else []:
        with suppress(PlanError):  # GPUs that are no ranks relay
            least = ENOUGH * forest.plain_algbw
            rounded = round_forest(forest, least, targets, instances, "LL")
            if rounded is not None:
                yield rounded


def find_ways(best: Optimum) -> Iterator[Routes]:
    """The routes that plans of an all-to-all may be made from.

    Of those whose ranks hand on the same, which switches tell apart, the fastest.
    """
    ways: list[Routes] = []
    for exchange in EXCHANGES.values():
        with suppress(ForestCollError):  # no boxes, or no way
            if exchange.lowered:
                ways.append(routes_over(best, exchange.flows(best.demand.graph)))
    fastest = route(best, powers=True)
    ways.append(fastest)
    ways += [route(best, k) for k in _fewer(fastest.units)]
    seen: set[object] = set()
    for one in sorted(ways, key=lambda way: -way.algbw):  # stable
        carried = one.units, frozenset(write_out(one))
        if carried not in seen:
            seen.add(carried)
            yield one


def _fewer(units: int) -> list[int]:
    """Units a pair beside those of the routes that come nearest to the optimum."""
    powers = [k for k in (1, 2, 4, MOST_UNITS) if k <= units]
    return [1] if is_power(units) and units > 1 else powers if units > 1 else []


def candidates_of(
    sources: Iterable[Source],
    styles: Collection[Style],
    topology: Topology,
    options: Options = DEFAULTS,
) -> list[Candidate]:
    """Each source in each protocol of the styles that programs of it are in.

    Forests in LL and LL128 over connections once more, in more parts on a schedule of the links: by
    levels a rank hands on nothing before it has sent all that is its own. Routes once more in
    smaller pieces, for sizes of which these have bytes enough.
    """
    links = topology.latencies()
    return [
        Candidate(source, kind, line, *more)
        for source in sources
        for kind in KINDS
        if kind[0] in styles and _has(source, kind)
        for line in [line_of(source, kind, links, topology.name, options)]
        for more in ((1, 0), *_finer(source, kind))
    ]


def _finer(source: Source, kind: Kind) -> Iterator[tuple[int, int]]:
    """How many times as many pieces programs are looked at in, and above how many bytes."""
    # MSCCL++'s packets of trees in more parts are nowhere the fastest of the catalogue
    if isinstance(source, Forest) and kind != ("onesided", "LL"):
        for times in PIECES:
            yield times, 0 if times == WIDE and kind in KINDS[:2] else LARGEST
    elif isinstance(source, Routes) and kind[1] != "LL":
        chunks = len(source.graph.ranks) * source.units
        relays = kind[0] == "onesided" and source.hops > 1  # in stages already
        for times in () if relays else FINER[kind[0]]:
            yield times, times * chunks * LEAST


def _has(source: Source, kind: Kind) -> bool:
    """Whether programs of that style and protocol are made from it: rounds are in LL alone."""
    if isinstance(source, Other):
        return (source.program.style, source.program.protocol) == kind
    return kind[1] == "LL" or not isinstance(source, Rounds)


@dataclass(frozen=True, slots=True)
class Made:
    """What was made and played on a topology.

    `programs`: those of `best_program`. `refused`: why there is none. `plays`: by the program's id,
    bytes and options; the program itself, and what it takes under the rules of links.
    """

    programs: dict[object, tuple[Program, str]] = field(default_factory=dict)
    refused: dict[object, str] = field(default_factory=dict)
    plays: dict[object, tuple[Program, dict[Rule, Timing]]] = field(default_factory=dict)

    def timings(
        self,
        program: Program,
        where: Where,
        size: int,
        rules: Sequence[Rule],
        links: Topology,
        options: Options,
        until: float = math.inf,
    ) -> list[Timing]:
        """Those of `simulate.run_each`, of each program once that takes no more than `until`."""
        _, own = self.plays.setdefault((id(program), size, options), (program, {}))
        if not own.keys() >= {*rules}:
            timings = simulate.run_each(
                program, where, size, rules, links=links, options=options, until=until
            )
            if timings[-1].time == math.inf:
                return timings
            own |= dict(zip(rules, timings, strict=True))
        return [own[rule] for rule in rules]


def best_program(
    candidate: Candidate,
    target: Target,
    topology: Topology,
    instances: int = 1,
    tuned: bool = True,
    *,
    made: Made,
) -> tuple[Program, str]:
    """The best program of a candidate, and why it keeps no links busy, or "".

    `tuned`: in as many instances as links ask for, else in just so many. `made`: of the same trees
    on this topology it is taken from there. Raises PlanError where the target holds none.
    """
    from forestcoll.compile.search import search
    from forestcoll.lower import UNIT_BYTES, in_protocol, lower, slice_pipelines
    from forestcoll.lower.alltoall.filling import fill

    source, protocol = candidate.origin, candidate.protocol
    if isinstance(source, Routes):
        return fill(source, target, topology.name, protocol, candidate.times)
    if isinstance(source, Rounds):
        return lower_rounds(source, target), ""
    if isinstance(source, Other):
        return source.program, ""
    programs, times = made.programs, candidate.times
    # LL128's steps are those of LL, but with a root, where it may be what much data is sent in
    alike = protocol == "LL128" and not source.collective.has_root
    steps: Protocol = "LL" if alike else protocol
    key = trees_of(source), source.collective, target, instances

    def lower_in(parts: int, scheduled: bool) -> Program:
        own = *key, steps, parts, scheduled
        if own in made.refused:
            raise PlanError(made.refused[own])
        if own not in programs:
            try:
                program = lower(
                    source, target, instances=parts, protocol=steps, scheduled=scheduled
                )
            except PlanError as error:
                made.refused[own] = str(error)
                raise
            programs[own] = program, ""
        return in_protocol(programs[own][0], protocol)

    if times > 1 and candidate.kind[0] == "fifo":
        return lower_in(instances * times, scheduled=True), ""
    if (*key, protocol, tuned) not in programs:
        program, note = lower_in(instances, scheduled=False), ""
        if tuned:
            program, note = search(source, target, program, links=topology.latencies())
        programs[*key, protocol, tuned] = program, note
    program, note = programs[*key, protocol, tuned]
    return slice_pipelines(program, UNIT_BYTES // times) if times > 1 else program, note
