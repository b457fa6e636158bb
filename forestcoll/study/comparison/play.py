"""compare(): every competitor's plans, played at every size under every rule of links.

Ours first, then size by size the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Protocol as Shape

from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.compile.problem import parse_collective, parse_root
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import usage
from forestcoll.program import Collective
from forestcoll.solver import baselines
from forestcoll.study.comparison import competitors, exchange
from forestcoll.study.comparison.competitors import LONG
from forestcoll.study.comparison.outcome import OURS, Cell, Comparison, Entrant, Kind, sizes_between
from forestcoll.study.figures import Figures, best_of
from forestcoll.topology import Topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import KINDS, Options, Rule, Timing

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

CLOSE = 0.01
"""Share of a time that a further plan has to be able to save, or it is not made."""
BEHIND = 0.01
"""Share of its time by which a plan is slower than another at long calls to be left out."""
TRIED = 2
"""Plans of a baseline that are played for a size and runtime, by estimate the fastest; ..."""
QUICK = 1
"""... and for a quick answer."""
QUICKLY = (
    "quick: of a baseline one plan for each runtime; where the links alone make it slower than "
    "another baseline there is no plan, but the most that they allow, marked <"
)

Progress = Callable[[str, float], None]
Seen = Callable[[Comparison], None]
Played = list[tuple[competitors.Plan, Timing]]
"""The fastest plan under each rule."""


class _Source(Shape):
    def enter(self, race: competitors.Race) -> None: ...


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
    quick: bool = False,
    progress: Progress | None = None,
    seen: Seen | None = None,
) -> Comparison:
    """Our plans, baselines and plan files on a machine: simulated times by size.

    `against`: names of `baselines.BASELINES`, of an all-to-all of `baselines.alltoall.EXCHANGES`;
    None: all. `files`: plans of either format, and
    forests. `broken`: the machine with links lost or slowed: everybody's new plans are for that,
    and the old plan, made for `topology`, runs on it beside them. `signal`: microseconds that a
    message's announcement takes besides the links' latency; None: as everywhere (`simulate.HOP`).
    `quick`: plans of baselines only where links alone do not tell that another is faster. `seen`
    gets what is known after each competitor and size, marked partial. Above RANKS ranks trees are
    compared alone.

    Raises ForestCollError where a file is wrong or for something else.
    """
    from forestcoll.topology.catalog import topology_of

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
    for path in files:
        maker.add_file(Path(path))
    maker.add_ours(broken is not None)
    if quick:
        maker.notes.append(QUICKLY)
    game = _Game(maker, _Player(here, rules, signal, quick), maker.best(), seen)
    for name in sorted(maker.sources, key=(OURS, OLD).__contains__, reverse=True):
        for size in sized:
            game.play(name, size)
    maker.add_baselines(against)
    game.play_baselines()
    return replace(game.found(), partial=False)


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

    def best(self) -> Figures:
        """What bounds all of them."""
        return best_of(self.here, self.collective, self.root)

    def add_baselines(self, names: Sequence[str] | None) -> None:
        """Those named, or all."""
        wanted = list(baselines.BASELINES if names is None else names)
        for k, name in enumerate(wanted):
            self.report(f"trees of {name}", k / len(wanted))
            self.add_baseline(baselines.named(name))

    def report(self, stage: str, share: float) -> None:
        """Tell the caller what is under way."""
        if self.progress is not None:
            self.progress(stage, share)

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
        while name in {OURS, OLD, *baselines.BASELINES, *exchange.EXCHANGES, *self.sources}:
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


class _Game:
    """Cells of a comparison as they become known."""

    def __init__(self, maker: _Maker, player: _Player, best: Figures, seen: Seen | None) -> None:
        self.maker, self.player, self.best, self.seen = maker, player, best, seen
        self.cells: list[Cell] = []

    def found(self) -> Comparison:
        """What is known so far; competitors in the order in which they are shown."""
        maker = self.maker
        kinds = ("ours", "old", "baseline", "file")
        entrants = sorted(maker.entrants, key=lambda entrant: kinds.index(entrant.kind))
        place = {entrant.name: k for k, entrant in enumerate(entrants)}
        cells = sorted(
            self.cells, key=lambda cell: (place[cell.name], maker.sizes.index(cell.size))
        )
        return Comparison(
            maker.here.name,
            maker.collective,
            len(maker.graph.ranks),
            self.best.bound or self.best.algbw,
            tuple(maker.sizes),
            tuple(self.player.rules),
            tuple(entrants),
            tuple(cells),
            tuple(dict.fromkeys(maker.notes)),
            self.best,
            Options(signal=self.player.signal).words(
                () if maker.alone else KINDS, self.player.rules
            ),
            partial=True,
        )

    def play(self, name: str, size: int, share: float = 0.0) -> None:
        """A competitor's cells for a size; `share`: of the work that is done."""
        sizes = self.maker.sizes
        self.maker.report(f"{name}, size {sizes.index(size) + 1} of {len(sizes)}", share)
        played = self.player.play(self.maker.sources[name], size)
        for rule, (plan, timing) in zip(self.player.rules, played, strict=bool(played)):
            plan.prove()
            self._add(name, rule, timing, plan)
        self._show()

    def _show(self) -> None:
        if self.seen is not None:
            self.seen(self.found())

    def play_baselines(self) -> None:
        """Those of all baselines, size by size; quickly those first that the links make fastest."""
        names = [e.name for e in self.maker.entrants if e.kind == "baseline" and not e.why]
        total = len(names) * len(self.maker.sizes)
        for done, size in enumerate(self.maker.sizes):
            least = {name: self._least(name, size) for name in names}
            for k, name in enumerate(sorted(names, key=lambda n: least[n])):
                if self._is_slower(least[name], size):
                    for rule in self.player.rules:
                        self._add(name, rule, _at_least(least[name], size, rule, self.maker))
                    self._show()
                    continue
                self.play(name, size, (done * len(names) + k) / total)

    def _least(self, name: str, size: int) -> float:
        source = self.maker.sources[name]
        if not self.player.quick or not isinstance(source, competitors.Theirs):
            return 0.0
        return source.least(size, self.player.signal)

    def _is_slower(self, least: float, size: int) -> bool:
        """Whether under all rules another baseline is known to be faster."""
        if not self.player.quick:
            return False
        found = self.found()
        best = [found.best_baseline(size, rule) for rule in self.player.rules]
        return all(cell is not None and cell.time <= least for cell in best)

    def _add(
        self, name: str, rule: Rule, timing: Timing, plan: competitors.Plan | None = None
    ) -> None:
        kind = next(e.kind for e in self.maker.entrants if e.name == name)
        inside = plan is not None and plan.in_switches
        bound = (inside and self.best.in_switches) or self.best.bound or self.best.algbw
        self.cells.append(
            Cell(
                name,
                rule,
                timing.size,
                timing.time,
                timing.algbw,
                timing.busbw,
                100 * timing.algbw / float(bound),
                "" if plan is None else plan.label,
                tuple(timing.busiest[:3]),
                _use(plan, timing, self.maker.graph) if plan and kind == "file" else "",
            )
        )


def _at_least(time: float, size: int, rule: Rule, maker: _Maker) -> Timing:
    algbw = size / time / 1000
    busbw = algbw * float(maker.collective.bus_factor(len(maker.graph.ranks)))
    return Timing(rule, size, time, algbw, busbw, 0, ())


class _Player:
    """Plays competitors' plans under all rules of links; `quick`: fewer of them."""

    def __init__(
        self, topology: Topology, rules: Sequence[Rule], signal: float | None, quick: bool
    ) -> None:
        self.topology, self.rules, self.signal, self.quick = topology, rules, signal, quick
        self._times: dict[int, dict[int, list[float]]] = {}  # id of a plan -> size -> per rule

    def play(self, source: _Source, size: int) -> Played:
        """The fastest plan under each rule with its timing; empty where there is no plan."""
        race = _Race(self, size)
        source.enter(race)
        return race.best

    def timings(self, plan: competitors.Plan, size: int, rules: Sequence[Rule]) -> list[Timing]:
        """The plan's under each of the rules."""
        return _timings(plan, self.topology, size, rules, self.signal)

    def note(self, plan: competitors.Plan, size: int, timings: Sequence[Timing]) -> None:
        """Keep the times of a plan for `behind`."""
        self._times.setdefault(id(plan), {})[size] = [timing.time for timing in timings]

    def behind(self, plan: competitors.Plan, other: competitors.Plan, size: int) -> bool:
        """Whether the plan is slower than the other for so long a call.

        The time of long calls is a line over their size. So a plan that was slower than another at
        two sizes from LONG on, and fell further behind from one to the other, is slower at larger
        ones.
        """
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


class _Race:
    """See `competitors.Race`."""

    def __init__(self, player: _Player, size: int) -> None:
        self.player, self.size, self.signal = player, size, player.signal
        self.tries = QUICK if player.quick else TRIED
        self.best: Played = []
        self._run: list[competitors.Plan] = []

    def may_win(self, least: float) -> bool:
        return not self.best or any(least < t.time * (1 - CLOSE) for _, t in self.best)

    def trial(self, plan: competitors.Plan) -> float | None:
        if not self.best:
            return None
        (timing,) = self.player.timings(plan, self.size, self.player.rules[:1])
        lost = timing.time > competitors.REFINED * max(t.time for _, t in self.best)
        return timing.time if lost else None

    def run(self, plan: competitors.Plan) -> float:
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


def _use(plan: competitors.Plan, timing: Timing, graph: CapacityGraph) -> str:
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


def _timings(
    plan: competitors.Plan,
    topology: Topology,
    size: int,
    rules: Sequence[Rule],
    signal: float | None,
) -> list[Timing]:
    """Of a plan, or trees alone, under each of the rules."""
    options = Options(signal=signal)
    if plan.rate is not None:
        count = CapacityGraph.from_topology(topology)
        hop = options.hop(("fifo", plan.protocol))
        return [exchange.timing(plan, count, size, rule, hop) for rule in rules]
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
