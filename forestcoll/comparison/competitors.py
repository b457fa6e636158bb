"""Whose plans take part in a comparison: ours by size, baselines in both formats, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.baselines import Baseline
from forestcoll.compile import plan_set
from forestcoll.compile.formats import seat
from forestcoll.compile.plan_set.estimate import HOP, Line, line_of
from forestcoll.compile.plan_set.values import Candidate
from forestcoll.compile.synthesize import synthesize
from forestcoll.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.forest import Forest, check
from forestcoll.graph import CapacityGraph
from forestcoll.input_limits import FILE_BYTES
from forestcoll.lower import fill, lower, refine
from forestcoll.lower.nvls import lower_nvls
from forestcoll.program import Collective, Program, Protocol
from forestcoll.targets import MSCCL, MSCCLPP, RCCL, Target
from forestcoll.text_file import read_text
from forestcoll.topology import Topology
from forestcoll.verify import verify

if TYPE_CHECKING:
    from forestcoll.compile.clock import Progress
    from forestcoll.latency import Latencies

FORESTS = 3
"""Forests of a baseline that take part: the fastest, ..."""
TRIED = 2
"""... and of their plans for a size and runtime those that are estimated to be the fastest."""


@dataclass(slots=True)
class Plan:
    """Something that can be played. `forest`: whose ways its transfers take; `label`: for people.

    Without a program it is the forest alone, or where there is none the loads of links: `rate` GB/s
    of algbw, after `hops` messages that wait for one another.
    """

    label: str
    program: Program | None
    forest: Forest | None
    low: int = 1
    high: int = 2**62
    rate: Fraction | None = None
    hops: int = 0

    def serves(self, size: int) -> bool:
        """Whether the size is within its range."""
        return self.low <= size <= self.high

    @property
    def protocol(self) -> Protocol:
        """How its messages are sent."""
        return "Simple" if self.program is None else self.program.protocol


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
        self.notes: list[str] = []
        low, high = max(1, min(sizes) // 2), min(2 * max(sizes), plan_set.LARGEST)
        made = plan_set.make(topology, collective, low, high, root=root, progress=progress)
        self.plans = [
            Plan(
                f"{plans.format}, {entry.program.protocol}",
                entry.program,
                entry.candidate.forest if isinstance(entry.candidate, Candidate) else None,
                entry.low,
                entry.high,
            )
            for plans in made.plans
            for entry in plans.entries
        ]
        try:
            inside = synthesize(
                topology, collective, root=root, nvls="in-place", formats="mscclpp-json"
            )
        except ForestCollError:
            return  # no switch does it
        program = inside.programs["mscclpp-json"]
        self.plans.append(Plan("mscclpp-json, NVLS", program, inside.forest))

    def at(self, size: int) -> list[Plan]:
        """What the set has for the size, one a format."""
        return [plan for plan in self.plans if plan.serves(size)]


@dataclass(slots=True)
class Theirs:
    """A baseline's plans, made when they are first wanted, for the library of the `machine`."""

    baseline: Baseline
    forests: list[Forest]
    links: Latencies
    machine: str
    _made: dict[tuple[int, str, Protocol], Plan | None] = field(default_factory=dict)

    @staticmethod
    def of(
        baseline: Baseline,
        graph: CapacityGraph,
        collective: Collective,
        root: int | None,
        topology: Topology,
    ) -> Theirs:
        """Raises UnsupportedError where the baseline does not serve the machine."""
        found: list[Forest] = []
        for forest in baseline.forests(graph, collective, root):
            check(forest)
            if all(forest.trees != other.trees for other in found):
                found.append(forest)
        lowest = min(found, key=lambda forest: forest.height)
        kept = found[:FORESTS] + [f for f in (lowest,) if f not in found[:FORESTS]]
        return Theirs(baseline, kept, topology.latencies(), topology.name)

    @property
    def ends(self) -> list[Forest]:
        """The fastest forest, and the lowest if that is another."""
        lowest = min(self.forests, key=lambda forest: forest.height)
        return [self.forests[0], *([lowest] if lowest is not self.forests[0] else [])]

    def at(self, size: int) -> list[Plan]:
        """Of each runtime's plans those that the estimate has first."""
        if self.baseline.in_switch:
            return [plan for plan in [self._in_switch()] if plan is not None]
        found: list[Plan] = []
        both = {target.format: target for target in (RCCL, MSCCLPP)}
        taken, _ = seat(both, self.forests[0].graph, self.machine, any_target=True)
        for target in taken.values():
            known = [p for p in HOP if target.style == "fifo" or p != "LL128"]
            ways = [(k, p) for k in range(len(self.forests)) for p in known]
            ways.sort(key=lambda way: self._line(*way).time(size))
            tried = 0
            for k, protocol in ways:
                plan = self._plan(k, target, protocol)
                if plan is not None and plan.serves(size):
                    found.append(plan)
                    tried += 1
                if tried == TRIED:
                    break
        return found

    def _line(self, k: int, protocol: Protocol) -> Line:
        return line_of(self.forests[k], protocol, self.links, self.machine)

    def _plan(self, k: int, target: Target, protocol: Protocol) -> Plan | None:
        key = (k, target.style, protocol)
        if key not in self._made:
            targets = (target, MSCCL) if target is RCCL else (target,)
            made = (self._lowered(self.forests[k], each, protocol) for each in targets)
            self._made[key] = next((plan for plan in made if plan is not None), None)
        return self._made[key]

    def _lowered(self, named: Forest, target: Target, protocol: Protocol) -> Plan | None:
        forest = replace(named, name=self.machine)
        try:
            program = lower(forest, target, protocol=protocol)
            if protocol == "Simple":
                program = refine(forest, target, fill(forest, target, program)[0])
        except PlanError:
            return None
        verify(program)
        most = program.max_bytes or 2**62
        return Plan(f"{target.format}, {protocol}, {named.name}", program, forest, high=most)

    def _in_switch(self) -> Plan | None:
        key = (0, "onesided", "Simple")
        if key not in self._made:
            forest = self.forests[0]
            program = lower_nvls(forest, MSCCLPP)
            verify(program)
            self._made[key] = Plan("mscclpp-json, NVLS", program, forest)  # type: ignore[index]
        return self._made[key]  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Plans that are there already: a file's, or what was made for a sound machine."""

    plans: tuple[Plan, ...]

    def at(self, size: int) -> list[Plan]:
        """Those that serve the size."""
        return [plan for plan in self.plans if plan.serves(size)]


def of_file(path: Path, collective: Collective, ranks: int) -> Fixed:
    """A plan of either format, or a forest file; proven first.

    Raises PlanError where it is for something else, or wrong.
    """
    from forestcoll import forest_file, plans, predict
    from forestcoll.compile import verdict

    text = read_text(path, FILE_BYTES, UnsupportedError)
    if not verdict.is_plan(text):
        forest = forest_file.loads(text, str(path))
        check(forest)
        _check_same(path, (forest.collective, forest.n), (collective, ranks))
        return Fixed((Plan("forest alone", None, forest.expanded()),))
    program = plans.loads(text, str(path))
    _check_same(path, (program.collective, program.n), (collective, ranks))
    verify(program)
    beside = predict.forest_beside(path)
    known = None if beside is None else forest_file.load(beside).expanded()
    if known is not None and (known.collective, known.n) != (collective, ranks):
        known = None
    high = program.max_bytes or 2**62
    label = f"{plans.detect(text, str(path))}, {program.protocol}"
    return Fixed((Plan(label, program, known, max(1, program.min_bytes), high),))


def _check_same(path: Path, own: tuple[Collective, int], wanted: tuple[Collective, int]) -> None:
    if own != wanted:
        raise PlanError(
            f"{path}: is for {own[0]} on {own[1]} ranks; compared is {wanted[0]} on {wanted[1]}"
        )


def alone(topology: Topology, collective: Collective, root: int | None) -> Fixed:
    """Our forest without a plan: for more ranks than plans are made for in a comparison."""
    made = synthesize(topology, collective, root=root, formats="forest", compact=False)
    return Fixed((Plan("trees alone", None, made.forest),))


def on_broken(plan: Plan, graph: CapacityGraph) -> Plan:
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
    return replace(plan, forest=replace(forest, graph=graph, trees=tuple(trees)))


__all__ = ["Fixed", "Ours", "Plan", "Theirs", "alone", "of_file", "on_broken"]
