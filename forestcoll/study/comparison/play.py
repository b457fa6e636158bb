"""compare(): every competitor's plans, played at every size under every rule of links.

Ours first, then size by size the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path

from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.compile.problem import parse_collective, parse_root
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import baselines
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.baselines.alltoall import EXCHANGES, Exchange
from forestcoll.solver.baselines.alltoall import by_name as exchange_by_name
from forestcoll.study.comparison import competitors
from forestcoll.study.comparison.competitors import (
    Fixed,
    Plan,
    Player,
    Source,
    bare_timing,
    of_baseline,
    of_exchange,
    use_of,
)
from forestcoll.study.comparison.outcome import OURS, Cell, Comparison, Entrant, Kind
from forestcoll.study.figures import Figures, best_of
from forestcoll.topology import Topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import KINDS, Options, Rule, Timing

DEFAULT_RULES: tuple[Rule, ...] = ("fair", "fifo")
DEFAULT_SIZES = "1K:4G"
FACTOR = 4
"""Between one size and the next."""
OLD = "old plan"
COUNTED = "what has no plan is counted: bytes over the fullest link, and the longest way's latency"
QUICKLY = (
    "quick: where the links alone make a baseline slower than another there is no plan of it, but "
    "the most that they allow, marked <"
)

Progress = Callable[[str, float], None]
Seen = Callable[[Comparison], None]


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
    count = int(math.log(high / low, factor) + 1e-9)
    return tuple(dict.fromkeys([*(low * factor**k for k in range(count + 1)), high]))


def _bytes(word: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,12})([KMGT]?)(?:iB|B)?\s*", word, re.IGNORECASE)
    value = 0 if match is None else int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
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
    gets what is known after each competitor and size, marked partial. Above RANKS ranks trees
    are compared alone.

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
    known = baselines.BASELINES if kind.phases else EXCHANGES
    by_name = baselines.by_name if kind.phases else exchange_by_name
    records = [by_name(name) for name in (known if against is None else against)]
    player = Player(here, rules, Options(signal=signal), quick)
    game = _Game(here, sound, graph, kind, rank, sized, player, progress, seen)
    for path in files:
        game.add_file(Path(path))
    game.add_ours(broken is not None)
    if quick:
        game.notes.append(QUICKLY)
    for name in sorted(game.sources, key=(OURS, OLD).__contains__, reverse=True):
        for size in sized:
            game.play(name, size)
    game.add_baselines(records)
    game.play_baselines()
    return replace(game.outcome(), partial=False)


@dataclass
class _Game:
    """Competitors in the making, in the order in which they are shown, and their cells so far."""

    here: Topology
    sound: Topology
    graph: CapacityGraph
    collective: Collective
    root: int | None
    sizes: Sequence[int]
    player: Player
    progress: Progress | None
    seen: Seen | None
    entrants: list[Entrant] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.alone:
            trees = "trees are compared alone, without plans"
            loads = "loads of links are compared, without plans"
            what = trees if self.collective.phases else loads
            self.notes.append(f"more than {simulate.RANKS} ranks: {what}")

    @property
    def alone(self) -> bool:
        """Whether there are too many ranks for plans."""
        return len(self.graph.ranks) > simulate.RANKS

    def add_ours(self, broken: bool) -> None:
        """Our plans for the machine; and, where it is broken, those for the sound one on it."""
        self._add(OURS, "ours", "the plan that our set of these sizes has", self._ours(self.here))
        if broken:
            words = f"ours, made for {self.sound.name}; lost links are gone round"
            try:
                plans = self._ours(self.sound).plans
                plans_here = [competitors.reroute(plan, self.graph) for plan in plans]
            except UnsupportedError as error:
                self.entrants.append(Entrant(OLD, "old", words, str(error)))
                return
            self._add(OLD, "old", words, Fixed(plans_here))
            self.notes.append(
                "the old plan's way round a lost link costs links alone: GPUs on it pass data on "
                "as switches do, at no cost to them"
            )

    @cached_property
    def best(self) -> Figures:
        """What bounds all of them."""
        return best_of(self.here, self.collective, self.root)

    def report(self, stage: str, share: float) -> None:
        """Tell the caller what is under way."""
        if self.progress is not None:
            self.progress(stage, share)

    def _ours(self, topology: Topology) -> Fixed:
        if not self.alone:
            made = self.player.made if topology is self.here else None
            asked = topology, self.collective, self.root, self.sizes
            return competitors.ours(*asked, self.notes, self.progress, made)
        if self.collective.phases:
            made_of = partial(synthesize, topology, self.collective, root=self.root)
            forest = made_of(formats="forest", compact=False).forest
            return Fixed([Plan("trees alone", None, forest)])
        return competitors.links_of_ours(topology)

    def add_baselines(self, records: Sequence[baselines.Baseline | Exchange]) -> None:
        """These; or why one stays out."""
        for k, record in enumerate(records):
            name = record.name
            self.report(f"trees of {name}", k / len(records))
            try:
                if isinstance(record, Exchange):
                    best = self._best_exchange
                    source: Source = of_exchange(record, self.graph, best, self.player)
                else:
                    asked = self.graph, self.collective, self.root, self.player, self.alone
                    source = of_baseline(record, *asked)
            except ForestCollError as error:
                self.entrants.append(Entrant(name, "baseline", record.words, str(error)))
                continue
            self._add(name, "baseline", record.words, source)
            if isinstance(record, Exchange) and isinstance(source, Fixed):
                self.notes.append(COUNTED)

    @cached_property
    def _best_exchange(self) -> Optimum | None:
        """The optimum of an all-to-all, where plans are compared."""
        return None if self.alone else solve(uniform(self.here))

    def add_file(self, path: Path) -> None:
        """A plan or forest of somebody's."""
        name = path.name
        while name in {OURS, OLD, *baselines.BASELINES, *EXCHANGES, *self.sources}:
            name += "'"
        source = competitors.of_file(path, self.collective, len(self.graph.ranks))
        self._add(name, "file", str(path), source)

    def _add(self, name: str, kind: Kind, words: str, source: Source) -> None:
        self.entrants.append(Entrant(name, kind, words))
        self.sources[name] = source

    # --- cells

    def outcome(self) -> Comparison:
        """What is known so far; competitors in the order in which they are shown."""
        kinds = ("ours", "old", "baseline", "file")
        entrants = sorted(self.entrants, key=lambda entrant: kinds.index(entrant.kind))
        place = {entrant.name: k for k, entrant in enumerate(entrants)}
        cells = sorted(self.cells, key=lambda cell: (place[cell.name], self.sizes.index(cell.size)))
        return Comparison(
            self.here.name,
            self.collective,
            len(self.graph.ranks),
            self.best.bound or self.best.algbw,
            tuple(self.sizes),
            tuple(self.player.rules),
            tuple(entrants),
            tuple(cells),
            tuple(dict.fromkeys(self.notes)),
            self.best,
            self.player.options.words(() if self.alone else KINDS, self.player.rules),
            partial=True,
        )

    def play(self, name: str, size: int, share: float = 0.0) -> None:
        """A competitor's cells for a size; `share`: of the work that is done."""
        sizes = self.sizes
        self.report(f"{name}, size {sizes.index(size) + 1} of {len(sizes)}", share)
        played = list(self.sources[name].play(size, self.player))
        for k, rule in enumerate(self.player.rules if played else ()):
            plan, timings = min(played, key=lambda pair: pair[1][k].time)
            plan.prove()
            self._add_cell(name, rule, timings[k], plan)
        self._show()

    def _show(self) -> None:
        if self.seen is not None:
            self.seen(self.outcome())

    def play_baselines(self) -> None:
        """Those of all baselines, size by size; quickly those first that the links make fastest."""
        names = [e.name for e in self.entrants if e.kind == "baseline" and not e.why]
        total = len(names) * len(self.sizes)
        for done, size in enumerate(self.sizes):
            quick = self.player.quick
            least = {name: self.sources[name].least(size) if quick else 0.0 for name in names}
            for k, name in enumerate(sorted(names, key=lambda n: least[n])):
                outcome = self.outcome() if quick else None
                rules = self.player.rules
                best = [outcome.best_baseline(size, r) if outcome else None for r in rules]
                # whether under all rules another baseline is known to be faster
                if all(cell is not None and cell.time <= least[name] for cell in best):
                    for rule in self.player.rules:
                        asked = size, rule, self.collective, len(self.graph.ranks)
                        self._add_cell(name, rule, bare_timing(least[name], *asked))
                    self._show()
                    continue
                self.play(name, size, (done * len(names) + k) / total)

    def _add_cell(self, name: str, rule: Rule, timing: Timing, plan: Plan | None = None) -> None:
        kind = next(e.kind for e in self.entrants if e.name == name)
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
                use_of(plan, timing, self.graph) if plan and kind == "file" else "",
            )
        )
