"""Whose plans take part in a comparison: ours by size, baselines in both formats, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.common.input_limits import FILE_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.compile import plan_set
from forestcoll.compile.plan_set.estimate import Line, line_of
from forestcoll.compile.search import SPREADING, search
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.lower.nvls import lower_nvls
from forestcoll.program import Collective, Program, Protocol, Style
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, Target
from forestcoll.schedule.forest import Forest, check
from forestcoll.schedule.latency import latency
from forestcoll.solver.baselines import Baseline
from forestcoll.study.comparison.race import LONG, REFINED, Plan, Race, runtimes_for
from forestcoll.topology import Topology
from forestcoll.verify import verify
from forestcoll.verify.simulate import HOP, Options

if TYPE_CHECKING:
    from forestcoll.common.clock import Progress
    from forestcoll.schedule.latency import Latencies

FORESTS = 3
"""Forests of a baseline that take part: the fastest, ..."""


class Ours:
    """The plan set of a machine, and its plan that lets a switch copy and add."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        root: int | None,
        sizes: Sequence[int],
        progress: Progress | None,
    ) -> None:
        low, high = max(1, min(sizes) // 2), min(2 * max(sizes), plan_set.LARGEST)
        whole_set = plan_set.make(
            topology, collective, low, high, root=root, progress=progress, write=False
        )
        self.plans = [
            Plan(
                f"{plans.format}, {entry.program.protocol}",
                entry.program,
                entry.origin if isinstance(entry.origin, Forest) else None,
                entry.low,
                entry.high,
            )
            for plans in whole_set.plans
            for entry in plans.entries
        ]
        try:
            inside = synthesize(
                topology, collective, root=root, nvls="in-place", formats="mscclpp-json"
            )
        except ForestCollError:
            return  # no switch does it
        program = inside.programs["mscclpp-json"]
        self.plans.append(Plan("mscclpp-json, NVLS", program, inside.forest, proven=True))

    def enter(self, race: Race) -> None:
        """What the set has for the size, one a format."""
        for plan in self.plans:
            if plan.serves(race.size):
                race.run(plan)


Way = tuple[int, Style, Protocol]
"""A plan that may be made: the forest's number, the runtime's style, the protocol."""


@dataclass(slots=True)
class Theirs:
    """A baseline's plans, made when they may win, for the library of the `machine`."""

    baseline: Baseline
    forests: list[Forest]
    links: Latencies
    machine: str
    _drafts: dict[Way, tuple[Target, Program, Plan] | None] = field(default_factory=dict)
    _made: dict[Way, Plan] = field(default_factory=dict)
    _known: dict[Way, tuple[int, float]] = field(default_factory=dict)  # size, least us
    _latencies: dict[tuple[int, Fraction], Fraction] = field(default_factory=dict)

    @staticmethod
    def of(
        baseline: Baseline,
        graph: CapacityGraph,
        collective: Collective,
        root: int | None,
        topology: Topology,
    ) -> Theirs:
        """Raises UnsupportedError where the baseline does not serve the machine."""
        forests: list[Forest] = []
        for forest in baseline.forests(graph, collective, root):
            check(forest)
            if all(forest.trees != other.trees for other in forests):
                forests.append(forest)
        lowest = min(forests, key=lambda forest: forest.height)
        kept = forests[:FORESTS] + [f for f in (lowest,) if f not in forests[:FORESTS]]
        return Theirs(baseline, kept, topology.latencies(), topology.name)

    @property
    def ends(self) -> list[Forest]:
        """The fastest forest, and the lowest if that is another."""
        lowest = min(self.forests, key=lambda forest: forest.height)
        return [self.forests[0], *([lowest] if lowest is not self.forests[0] else [])]

    def enter(self, race: Race) -> None:
        """Of each runtime's plans those that the estimate has first, while they may win."""
        if self.baseline.in_switch:
            race.run(self._in_switch())
            return
        for target in self._targets():
            tried = 0
            slow: dict[Protocol, tuple[float, float]] = {}
            for k, protocol in self._ways(target, race.size):
                tried += self._enter(race, target, k, protocol, slow)
                if tried == race.tries:
                    break

    def least(self, size: int, signal: float | None) -> float:
        """Microseconds that none of its plans takes less."""
        if self.baseline.in_switch:
            return 0.0
        ways = {
            (k, target.style, protocol)
            for target in self._targets()
            for k, protocol in self._ways(target, size)
        }
        return min(self._least(way, size, signal) for way in ways)

    def _targets(self) -> tuple[Target, ...]:
        """The runtimes that take the ranks as boxes hold them."""
        return runtimes_for(self.forests[0].graph, self.machine, RCCL, MSCCLPP)

    def _ways(self, target: Target, size: int) -> list[tuple[int, Protocol]]:
        protocols = [p for p in HOP if target.style == "fifo" or p != "LL128"]
        ways = [(k, p) for k in range(len(self.forests)) for p in protocols]
        return sorted(ways, key=lambda way: self._line(*way).time(size))

    def _line(self, k: int, protocol: Protocol) -> Line:
        return line_of(self.forests[k], ("fifo", protocol), self.links, self.machine)

    def _least(self, way: Way, size: int, signal: float | None) -> float:
        """Microseconds of the links alone: of the first byte's way, or of all bytes.

        What MSCCL++ reads first is not announced: that hop may take no more than its links.
        """
        k, style, protocol = way
        hop = Fraction(int(100 * Options(signal=signal).hop((style, protocol))), 100)
        if (k, hop) not in self._latencies:
            self._latencies[k, hop] = latency(self.forests[k], self.links, hop)
        bytes_ = size / (1000 * float(self._line(k, protocol).algbw))
        first = hop if (style, protocol) == ("onesided", "Simple") else 0
        return max(float(self._latencies[k, hop] - first), bytes_)

    def _enter(
        self,
        race: Race,
        target: Target,
        k: int,
        protocol: Protocol,
        slow: dict[Protocol, tuple[float, float]],
    ) -> bool:
        """Whether there is such a plan for the size, as far as it was needed; runs it, then.

        `slow`: by protocol what links alone take of a forest whose plan fell far behind, and what
        that plan takes at least; one that is no better by its links falls behind as well.
        """
        way, size = (k, target.style, protocol), race.size
        least = self._least(way, size, race.signal)
        plan = self._known.get(way)
        if plan is not None and plan[0] <= size:  # from LONG on a line, as steep as links allow
            rate = 1000 * float(self._line(k, protocol).algbw)
            least = max(least, plan[1] + (size - plan[0]) / rate)
        if not race.may_win(least):
            return True
        if protocol in slow and least >= slow[protocol][0]:
            self._know(way, size, slow[protocol][1])
            return True
        drafted = self._draft(target, way)
        if drafted is None or not drafted[-1].serves(size):
            return False
        if protocol == "Simple" and way not in self._made:
            time = race.trial(drafted[-1])
            if time is not None:
                slow[protocol] = least, time
                self._know(way, size, time)
                return True
        if way not in self._made:
            self._made[way] = self._refine(*drafted)
        self._know(way, size, race.run(self._made[way]))
        return True

    def _know(self, way: Way, size: int, time: float) -> None:
        if size >= LONG:
            self._known[way] = (size, time / REFINED)

    def _draft(self, target: Target, way: Way) -> tuple[Target, Program, Plan] | None:
        """Which runtime holds the way's plan, its plainest program, and one that fills the links.

        None where none holds it.
        """
        if way not in self._drafts:
            named, _, protocol = self.forests[way[0]], *way[1:]
            forest = replace(named, name=self.machine)
            self._drafts[way] = None
            for each in (target, MSCCL) if target is RCCL else (target,):
                try:
                    first = program = lower(forest, each, protocol=protocol)
                    if protocol == "Simple":
                        program, _ = search(forest, each, first, SPREADING)
                except PlanError:
                    continue
                label = f"{each.format}, {protocol}, {named.name}"
                most = program.max_bytes or 2**62
                self._drafts[way] = each, first, Plan(label, program, forest, high=most)
                break
        return self._drafts[way]

    def _refine(self, target: Target, first: Program, plan: Plan) -> Plan:
        assert plan.forest is not None
        if plan.protocol != "Simple":
            return plan
        program, _ = search(plan.forest, target, first)
        return replace(plan, program=program, high=program.max_bytes or 2**62)

    def _in_switch(self) -> Plan:
        key: Way = (0, "onesided", "Simple")
        if key not in self._made:
            forest = self.forests[0]
            self._made[key] = Plan("mscclpp-json, NVLS", lower_nvls(forest, MSCCLPP), forest)
        return self._made[key]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Plans that are there already: a file's, or what was made for a sound machine."""

    plans: tuple[Plan, ...]

    def enter(self, race: Race) -> None:
        """Those that serve the size."""
        for plan in self.plans:
            if plan.serves(race.size):
                race.run(plan)


def of_file(path: Path, collective: Collective, ranks: int) -> Fixed:
    """A plan of either format, or a forest file; proven first.

    Raises PlanError where it is for something else, or wrong.
    """
    from forestcoll import plans
    from forestcoll.compile import verdict
    from forestcoll.schedule import forest_file
    from forestcoll.study import predict

    text = read_text(path, FILE_BYTES, UnsupportedError)
    if not verdict.is_plan(text):
        forest = forest_file.loads(text, str(path))
        check(forest)
        _check_same(path, (forest.collective, forest.n), (collective, ranks))
        return Fixed((Plan("forest alone", None, forest.expand()),))
    program = plans.loads(text, str(path))
    _check_same(path, (program.collective, program.n), (collective, ranks))
    verify(program)
    beside = predict.forest_beside(path)
    forest_beside = None if beside is None else forest_file.load(beside).expand()
    if forest_beside is not None and (forest_beside.collective, forest_beside.n) != (
        collective,
        ranks,
    ):
        forest_beside = None
    high = program.max_bytes or 2**62
    label = f"{plans.detect(text, str(path))}, {program.protocol}"
    low = max(1, program.min_bytes)
    return Fixed((Plan(label, program, forest_beside, low, high, proven=True),))


def _check_same(path: Path, own: tuple[Collective, int], wanted: tuple[Collective, int]) -> None:
    if own != wanted:
        raise PlanError(
            f"{path}: is for {own[0]} on {own[1]} ranks; compared is {wanted[0]} on {wanted[1]}"
        )


def alone(topology: Topology, collective: Collective, root: int | None) -> Fixed:
    """Our forest without a plan: for more ranks than plans are made for in a comparison."""
    synthesis = synthesize(topology, collective, root=root, formats="forest", compact=False)
    return Fixed((Plan("trees alone", None, synthesis.forest),))


def reroute(plan: Plan, graph: CapacityGraph) -> Plan:
    """A plan on a fabric that has lost links: what took one goes the shortest way that is left.

    Raises UnsupportedError where ranks are gone, or the trees alone need a link that is.
    """
    forest = plan.forest
    if plan.program is not None and len(graph.ranks) != plan.program.n:
        raise UnsupportedError("the fabric has lost ranks that the plan has")
    if forest is None:
        return plan
    number = {name: node for node, name in enumerate(graph.names)}
    links = set(zip(graph.tail, graph.head, strict=True))
    lost = False
    trees = []
    for tree in forest.trees:
        paths = [tuple(number.get(forest.graph.names[v], -1) for v in p) for p in tree.edges]
        kept = tuple(path for path in paths if all(step in links for step in pairwise(path)))
        lost |= len(kept) < len(paths)
        trees.append(replace(tree, root=number[forest.graph.names[tree.root]], edges=kept))
    if lost and plan.program is None:
        raise UnsupportedError("trees alone cannot do without a link that is gone")
    left = graph if forest.graph.copies else graph.plain
    return replace(plan, forest=replace(forest, graph=left, trees=tuple(trees)))
