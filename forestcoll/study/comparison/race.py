"""What is played: plans, and the races of those of one competitor, each timed under all rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol as Shape

from forestcoll.common.errors import UnsupportedError
from forestcoll.compile.formats import seat
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import usage
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import Target
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify import simulate, verify
from forestcoll.verify.simulate import Options, Rule, Timing

REFINED = 1.5
"""How many times as fast finer parts make a plan at most (1.34 is the most that was seen), or
longer calls its links busier."""
LONG = 2**24
"""Bytes of a call from which on its time is a line over the size."""
PIECES = (4, 64)
"""Pieces of each tree where trees are compared alone, at least and at most, ..."""
TRANSFERS = 100_000
"""... and what they may come to in all."""

CLOSE = 0.01
"""Share of a time that a further plan has to be able to save, or it is not made."""
BEHIND = 0.01
"""Share of its time by which a plan is slower than another at long calls to be left out."""
TRIED = 2
"""Plans of a baseline that are played for a size and runtime, by estimate the fastest; ..."""
QUICK = 1
"""... and for a quick answer."""


@dataclass(slots=True)
class Plan:
    """Something that can be played. `forest`: whose ways its transfers take; `label`: for people.

    Without a program it is the forest alone, or where there is none the loads of links: `rate` GB/s
    of algbw, after `hops` messages that wait for one another. `proven`: whether its program is.
    """

    label: str
    program: Program | None
    forest: Forest | None
    low: int = 1
    high: int = 2**62
    rate: Fraction | None = None
    hops: int = 0
    proven: bool = False

    def serves(self, size: int) -> bool:
        """Whether the size is within its range."""
        return self.low <= size <= self.high

    @property
    def in_switches(self) -> bool:
        """Whether switches copy or add."""
        if self.program is not None:
            return self.program.in_switches
        return self.forest is not None and self.forest.graph.copies

    @property
    def protocol(self) -> Protocol:
        """How its messages are sent."""
        return "Simple" if self.program is None else self.program.protocol

    def prove(self) -> None:
        """Verify the program, once; PlanError where it is wrong."""
        if self.program is not None and not self.proven:
            verify(self.program)
            self.proven = True


class Source(Shape):
    """A competitor."""

    def enter(self, race: Race) -> None:
        """Run its plans for the race's size."""


Played = list[tuple[Plan, Timing]]
"""The fastest plan under each rule."""


def runtimes_for(graph: CapacityGraph, machine: str, *targets: Target) -> tuple[Target, ...]:
    """Those of the runtimes that take the ranks as boxes hold them."""
    by_format = {target.format: target for target in targets}
    return tuple(seat(by_format, graph, machine, any_target=True)[0].values())


@dataclass
class Player:
    """Plays competitors' plans under all rules of links; `quick`: fewer of them."""

    topology: Topology
    rules: Sequence[Rule]
    signal: float | None
    quick: bool
    # id of a plan -> size -> microseconds per rule
    _times: dict[int, dict[int, list[float]]] = field(default_factory=dict)

    def play(self, source: Source, size: int) -> Played:
        """The fastest plan under each rule with its timing; empty where there is no plan."""
        race = Race(self, size)
        source.enter(race)
        return race.best

    def timings(self, plan: Plan, size: int, rules: Sequence[Rule]) -> list[Timing]:
        """A plan's, or those of trees alone, under each of the rules."""
        topology, options = self.topology, Options(signal=self.signal)
        if plan.rate is not None:
            graph = CapacityGraph.from_topology(topology)
            hop = options.hop(("fifo", plan.protocol))
            return [_count_loads(plan, graph, size, rule, hop) for rule in rules]
        if plan.program is not None:
            where = plan.forest or topology
            return simulate.run_each(
                plan.program, where, size, rules, links=topology, options=options
            )
        assert plan.forest is not None
        edges = sum(len(tree.edges) for tree in plan.forest.trees)
        pieces = max(PIECES[0], min(PIECES[1], TRANSFERS // edges))
        return [
            simulate.run_forest(
                plan.forest, size, topology=topology, rule=rule, options=options, pieces=pieces
            )
            for rule in rules
        ]

    def note(self, plan: Plan, size: int, timings: Sequence[Timing]) -> None:
        """Keep the times of a plan for `behind`."""
        self._times.setdefault(id(plan), {})[size] = [timing.time for timing in timings]

    def behind(self, plan: Plan, other: Plan, size: int) -> bool:
        """Whether the plan is slower than the other for so long a call.

        The time of long calls is a line over their size. So a plan that was slower than another at
        two sizes from LONG on, and fell further behind from one to the other, is slower at larger
        ones.
        """
        mine, theirs = self._times.get(id(plan), {}), self._times.get(id(other), {})
        before = sorted(earlier for earlier in mine if LONG <= earlier < size)[-2:]
        if len(before) < 2 or any(earlier not in theirs for earlier in before):
            return False
        first, second = before
        return all(
            mine[second][k] - theirs[second][k]
            > mine[first][k] - theirs[first][k]
            > BEHIND * theirs[first][k]
            for k in range(len(self.rules))
        )


class Race:
    """The plans of one competitor for calls of `size` bytes: those that are run, the fastest win.

    `tries`: plans of a runtime that a baseline has run.
    """

    def __init__(self, player: Player, size: int) -> None:
        self.player, self.size, self.signal = player, size, player.signal
        self.tries = QUICK if player.quick else TRIED
        self.best: Played = []
        self._run: list[Plan] = []

    def may_win(self, least: float) -> bool:
        """Whether a plan that takes `least` microseconds or more may be the fastest."""
        return not self.best or any(least < t.time * (1 - CLOSE) for _, t in self.best)

    def trial(self, plan: Plan) -> float | None:
        """Microseconds of a plan that is slower than REFINED times the others, else None."""
        if not self.best:
            return None
        (timing,) = self.player.timings(plan, self.size, self.player.rules[:1])
        lost = timing.time > REFINED * max(t.time for _, t in self.best)
        return timing.time if lost else None

    def run(self, plan: Plan) -> float:
        """Play the plan; microseconds under the rule of links that it is fastest under."""
        if any(self.player.behind(plan, other, self.size) for other in self._run):
            return 0.0
        timings = self.player.timings(plan, self.size, self.player.rules)
        self.player.note(plan, self.size, timings)
        self._run.append(plan)
        best = self.best or [(plan, timing) for timing in timings]
        self.best = [
            (plan, mine) if mine.time < other[1].time else other
            for mine, other in zip(timings, best, strict=True)
        ]
        return min(timing.time for timing in timings)


def use_of(plan: Plan, timing: Timing, graph: CapacityGraph) -> str:
    """What a plan takes of the links of GPUs: "1 channel: 24 of 300 GB/s a GPU"."""
    gpus = {graph.names[v] for v in graph.ranks}
    out = [use for use in timing.links if use.src in gpus]
    if plan.program is None or not out:
        return ""
    taken = usage(plan.program)
    fifo = plan.program.style == "fifo"
    count, noun = (taken.channels, "channel") if fifo else (taken.busy, "thread block")
    used = sum(use.bytes for use in out) / timing.time / 1000 / len(gpus)
    most = sum(use.bandwidth for use in out) / len(gpus)
    return f"{count} {noun}{'s' * (count != 1)}: {used:.3g} of {most:.4g} GB/s a GPU"


def _count_loads(plan: Plan, graph: CapacityGraph, size: int, rule: Rule, signal: float) -> Timing:
    """The time by the loads of links alone, and `signal` microseconds for each hop."""
    if plan.rate is None:
        raise UnsupportedError(f"{plan.label} has no loads of links")
    time = size / float(plan.rate) / 1000 + signal * plan.hops
    return bare_timing(time, size, rule, Collective.ALLTOALL, len(graph.ranks))


def bare_timing(time: float, size: int, rule: Rule, collective: Collective, ranks: int) -> Timing:
    """A time in microseconds that is not simulated, with its rates."""
    algbw = size / time / 1000
    return Timing(rule, size, time, algbw, algbw * float(collective.bus_factor(ranks)), 0, ())
