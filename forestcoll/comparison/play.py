"""compare(): every competitor's plans, played at every size under every rule of links."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Protocol as Shape

from forestcoll import baselines, simulate
from forestcoll.comparison import competitors, exchange
from forestcoll.comparison.outcome import OURS, Cell, Comparison, Entrant, Kind, sizes_between
from forestcoll.compile.optimum import optimum
from forestcoll.compile.plan_set.estimate import HOP
from forestcoll.compile.problem import parse_collective, parse_root
from forestcoll.errors import ForestCollError, UnsupportedError
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.simulate import Options, Rule, Timing
from forestcoll.topology import Topology

DEFAULT_RULES: tuple[Rule, ...] = ("fair", "fifo")
DEFAULT_SIZES = "1K:4G"
FACTOR = 4
"""Between one size and the next."""
RANKS = 64
"""Ranks up to which plans are made; above, trees are compared alone."""
OLD = "old plan"
PIECES = (4, 64)
"""Pieces of each tree where trees are compared alone, at least and at most, ..."""
TRANSFERS = 100_000
"""... and what they may come to in all."""

LONG = 2**24
"""Bytes of a call from which on its time is a line over the size, ..."""
BEHIND = 0.01
"""... and the share of its time by which a plan is slower than another to be left out."""

Progress = Callable[[str, float], None]


class _Source(Shape):
    def at(self, size: int) -> list[competitors.Plan]: ...


def parse_sizes(text: str) -> tuple[int, ...]:
    """'1K:4G' (by factors of 4), '1K:4G:2', or '64K,1M': bytes, K, M, G are powers of 1024."""
    parts = text.split(":")
    if len(parts) == 1:
        return tuple(_bytes(part, text) for part in text.split(","))
    if len(parts) > 3:
        raise UnsupportedError(f"sizes '{text}': LOW:HIGH, LOW:HIGH:FACTOR or SIZE,SIZE,...")
    low, high = _bytes(parts[0], text), _bytes(parts[1], text)
    factor = int(parts[2]) if len(parts) == 3 and re.fullmatch(r"[1-9]\d{0,5}", parts[2]) else 0
    if len(parts) == 2:
        factor = FACTOR
    if low > high or factor < 2:
        raise UnsupportedError(
            f"sizes '{text}': ascending, and the factor is a whole number from 2"
        )
    return sizes_between(low, high, factor)


def _bytes(word: str, text: str) -> int:
    found = re.fullmatch(r"\s*(\d{1,12})([KMGT]?)(?:iB|B)?\s*", word, re.IGNORECASE)
    value = 0 if found is None else int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")
    if not 1 <= value <= simulate.MOST_BYTES:
        raise UnsupportedError(f"sizes '{text}': '{word}' is no size such as 64K, 1M or 4G")
    return value


def compare(
    topology: Topology | str | PathLike[str],
    collective: Collective | str = "allreduce",
    *,
    sizes: str | Sequence[int] = DEFAULT_SIZES,
    root: str | int | None = None,
    against: Sequence[str] | None = None,
    files: Sequence[str | PathLike[str]] = (),
    broken: Topology | None = None,
    rules: Sequence[Rule] = DEFAULT_RULES,
    signal: float | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Our plans, baselines and plan files on a machine: simulated times by size.

    `against`: names of `baselines.BASELINES`, of an all-to-all of `baselines.alltoall.EXCHANGES`;
    None: all. `files`: plans of either format, and
    forests. `broken`: the machine with links lost or slowed: everybody's new plans are for that,
    and the old plan, made for `topology`, runs on it beside them. `signal`: microseconds that a
    message's announcement takes besides the links' latency; None: what the plan set's estimate has
    for each protocol. Above RANKS ranks trees are compared alone.

    Raises ForestCollError where a file is wrong or for something else.
    """
    from forestcoll.catalog import topology_of

    sound = topology_of(topology)
    kind = Collective.ALLTOALL
    if collective != kind:
        kind = parse_collective(collective)
    sized = parse_sizes(sizes) if isinstance(sizes, str) else tuple(sizes)
    here = sound if broken is None else broken
    graph = CapacityGraph.from_topology(here)
    rank = parse_root(graph, kind, root)
    make = _Maker if kind.phases else _Exchanges
    maker = make(here, sound, graph, kind, rank, sized, progress)
    maker.add_ours(broken is not None)
    maker.add_baselines(against)
    for path in files:
        maker.add_file(Path(path))
    best = maker.bound()
    cells = _play(maker, here, best, sized, rules, signal, progress)
    return Comparison(
        here.name,
        kind,
        len(graph.ranks),
        best,
        sized,
        tuple(rules),
        tuple(maker.entrants),
        tuple(cells),
        tuple(dict.fromkeys(maker.notes)),
    )


class _Maker:
    """Competitors in the making, in the order in which they are shown."""

    ALONE = "trees are compared alone, without plans"

    def __init__(
        self,
        here: Topology,
        sound: Topology,
        graph: CapacityGraph,
        collective: Collective,
        root: int | None,
        sizes: Sequence[int],
        progress: Progress | None,
    ) -> None:
        self.here, self.sound, self.graph = here, sound, graph
        self.collective, self.root, self.sizes, self.progress = collective, root, sizes, progress
        self.entrants: list[Entrant] = []
        self.sources: dict[str, _Source] = {}
        self.notes: list[str] = []
        self.alone = len(graph.ranks) > RANKS
        if self.alone:
            self.notes.append(f"more than {RANKS} ranks: {self.ALONE}")

    def add_ours(self, broken: bool) -> None:
        """Our plans for the machine; and, where it is broken, those for the sound one on it."""
        self._add(OURS, "ours", "the plan that our set has for the size", self._ours(self.here))
        if broken:
            words = f"ours, made for {self.sound.name}; lost links are gone round"
            try:
                plans = self._ours(self.sound)
                found = [competitors.on_broken(plan, self.graph) for plan in plans.plans]
            except UnsupportedError as error:
                self.entrants.append(Entrant(OLD, "old", words, str(error)))
                return
            self._add(OLD, "old", words, competitors.Fixed(tuple(found)))
            self.notes.append(
                "the old plan's way round a lost link costs links alone: GPUs on it pass data on "
                "as switches do, at no cost to them"
            )

    def bound(self) -> Fraction:
        """GB/s that nothing exceeds."""
        best = optimum(self.here, self.collective, root=self.root)
        return max(best.algbw, best.in_switches.algbw if best.in_switches else Fraction(0))

    def add_baselines(self, names: Sequence[str] | None) -> None:
        """Those named, or all."""
        for name in baselines.BASELINES if names is None else names:
            self.add_baseline(baselines.named(name))

    def _ours(self, topology: Topology) -> competitors.Ours | competitors.Fixed:
        if self.alone:
            return competitors.alone(topology, self.collective, self.root)
        return competitors.Ours(topology, self.collective, self.root, self.sizes, self.progress)

    def add_baseline(self, baseline: baselines.Baseline) -> None:
        """The baseline, or why it stays out."""
        try:
            made = competitors.Theirs.of(
                baseline, self.graph, self.collective, self.root, self.here
            )
        except ForestCollError as error:
            self.entrants.append(Entrant(baseline.name, "baseline", baseline.words, str(error)))
            return
        source: _Source = made
        if self.alone:
            plans = (competitors.Plan(f.name, None, f) for f in made.ends)
            source = competitors.Fixed(tuple(plans))
        self._add(baseline.name, "baseline", baseline.words, source)

    def add_file(self, path: Path) -> None:
        """A plan or forest of somebody's."""
        name = path.name
        while name in self.sources:
            name += "'"
        ranks = len(self.graph.ranks)
        found = competitors.of_file(path, self.collective, ranks)
        self._add(name, "file", str(path), found)

    def _add(self, name: str, kind: Kind, words: str, source: _Source) -> None:
        self.entrants.append(Entrant(name, kind, words))
        self.sources[name] = source


class _Exchanges(_Maker):
    """The competitors of an all-to-all, which no trees carry."""

    ALONE = "loads of links are compared, without plans"

    def bound(self) -> Fraction:
        """GB/s that nothing exceeds."""
        return exchange.bound(self.here)

    def add_baselines(self, names: Sequence[str] | None) -> None:
        """Those named, or all; or why one stays out."""
        for name in exchange.EXCHANGES if names is None else names:
            record = exchange.named(name)
            try:
                plans = exchange.theirs(record, self.graph, self.here.name, not self.alone)
            except ForestCollError as error:
                self.entrants.append(Entrant(name, "baseline", record.words, str(error)))
                continue
            self._add(name, "baseline", record.words, competitors.Fixed(plans))
            if any(plan.program is None for plan in plans):
                self.notes.append(exchange.NOTE)

    def _ours(self, topology: Topology) -> competitors.Fixed:
        return competitors.Fixed(exchange.ours(topology, not self.alone, self.notes))


def _play(
    maker: _Maker,
    topology: Topology,
    bound: Fraction,
    sizes: Sequence[int],
    rules: Sequence[Rule],
    signal: float | None,
    progress: Progress | None,
) -> list[Cell]:
    cells = []
    players = {name: _Player(topology, rules, signal) for name in maker.sources}
    work = [(name, size) for name in maker.sources for size in sizes]
    for done, (name, size) in enumerate(work):
        if progress is not None:
            progress(f"playing {name}", done / len(work))
        played = players[name].play(maker.sources[name].at(size), size)
        for k, rule in enumerate(rules if played else ()):
            plan, timings = min(played, key=lambda pair: pair[1][k].time)
            timing = timings[k]
            cells.append(
                Cell(
                    name,
                    rule,
                    size,
                    timing.time,
                    timing.algbw,
                    timing.busbw,
                    100 * timing.algbw / float(bound),
                    plan.label,
                    tuple(timing.busiest[:3]),
                )
            )
    return cells


class _Player:
    """Plays a competitor's plans under all rules, without those that long calls leave behind.

    The time of long calls is a line over their size. So a plan that was slower than another at two
    sizes from LONG on, and fell further behind from one to the other, is slower at larger ones.
    """

    def __init__(self, topology: Topology, rules: Sequence[Rule], signal: float | None) -> None:
        self.topology, self.rules, self.signal = topology, rules, signal
        self._times: dict[int, dict[int, list[float]]] = {}  # id of a plan -> size -> per rule

    def play(
        self, plans: Sequence[competitors.Plan], size: int
    ) -> list[tuple[competitors.Plan, list[Timing]]]:
        """Each plan that may be the fastest for the size, with its timing per rule."""
        kept = [p for p in plans if not any(self._behind(p, other, size) for other in plans)]
        played = [
            (plan, _timings(plan, self.topology, size, self.rules, self.signal)) for plan in kept
        ]
        for plan, timings in played:
            self._times.setdefault(id(plan), {})[size] = [timing.time for timing in timings]
        return played

    def _behind(self, plan: competitors.Plan, other: competitors.Plan, size: int) -> bool:
        mine, theirs = self._times.get(id(plan), {}), self._times.get(id(other), {})
        before = sorted(known for known in mine if LONG <= known < size)[-2:]
        if len(before) < 2 or any(known not in theirs for known in before):
            return False
        first, second = before
        return all(
            mine[second][k] - theirs[second][k]
            > mine[first][k] - theirs[first][k]
            > BEHIND * theirs[first][k]
            for k in range(len(self.rules))
        )


def _timings(
    plan: competitors.Plan,
    topology: Topology,
    size: int,
    rules: Sequence[Rule],
    signal: float | None,
) -> list[Timing]:
    """Of a plan, or trees alone, under each of the rules."""
    options = Options(signal=float(HOP[plan.protocol]) if signal is None else signal)
    if plan.rate is not None:
        count = CapacityGraph.from_topology(topology)
        return [exchange.timing(plan, count, size, rule, options.signal) for rule in rules]
    if plan.program is not None:
        where = plan.forest or topology
        return simulate.run_each(plan.program, where, size, rules, links=topology, options=options)
    assert plan.forest is not None
    edges = sum(len(tree.edges) for tree in plan.forest.trees)
    pieces = max(PIECES[0], min(PIECES[1], TRANSFERS // edges))
    return [
        simulate.run_forest(
            plan.forest, size, topology=topology, rule=rule, options=options, pieces=pieces
        )
        for rule in rules
    ]
