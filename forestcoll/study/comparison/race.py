"""What is played: plans, forests alone, or loads of links, each timed under all rules of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from forestcoll.common.clock import Clock
from forestcoll.compile.plan_set.candidates import Made
from forestcoll.compile.plan_set.contest import Contest, Lower
from forestcoll.compile.plan_set.values import Candidate
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import usage
from forestcoll.program import Collective, Program, Protocol
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify import simulate, verify
from forestcoll.verify.simulate import Options, Rule, Timing, Where

PIECES = (4, 64)
"""Pieces of each tree where trees are compared alone, at least and at most, ..."""
TRANSFERS = 100_000
"""... and what they may come to in all."""


@dataclass(slots=True)
class Plan:
    """Something that can be played. `forest`: whose ways its transfers take, or `where`: what else
    it runs on than the topology; `label`: for people.

    Without a program it is the forest alone, or where there is none the loads of links: `rate` GB/s
    of algbw, after `latency` microseconds of the longest way. `proven`: whether its program is.
    """

    label: str
    program: Program | None
    forest: Forest | None
    low: int = 1
    high: int = 2**62
    rate: Fraction | None = None
    latency: float = 0.0
    proven: bool = False
    where: Where | None = None

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


@dataclass(frozen=True, slots=True)
class Player:
    """Plays plans on a machine under the rules of links; `quick`: fewer plans of baselines.

    `made`: programs of all competitors there.
    """

    topology: Topology
    rules: Sequence[Rule]
    options: Options
    quick: bool
    made: Made = field(default_factory=Made)

    def contest(self, candidates: Sequence[Candidate], lower: Lower) -> Contest:
        """Candidates that are judged by the same times."""
        return Contest(
            candidates,
            lower,
            self.topology,
            Clock(),
            self.made,
            rules=self.rules,
            options=self.options,
        )

    def timings(self, plan: Plan, size: int) -> list[Timing]:
        """A plan's, or those of trees or links alone, under each of the rules."""
        topology, options = self.topology, self.options
        if plan.rate is not None:
            graph = CapacityGraph.from_topology(topology)
            time = size / float(plan.rate) / 1000 + plan.latency
            ranks = len(graph.ranks)
            return [bare_timing(time, size, r, Collective.ALLTOALL, ranks) for r in self.rules]
        if plan.program is not None:
            where = plan.forest or plan.where or topology
            return self.made.timings(plan.program, where, size, self.rules, topology, options)
        assert plan.forest is not None
        edges = sum(len(tree.edges) for tree in plan.forest.trees)
        pieces = max(PIECES[0], min(PIECES[1], TRANSFERS // edges))
        return [
            simulate.run_forest(
                plan.forest, size, topology=topology, rule=rule, options=options, pieces=pieces
            )
            for rule in self.rules
        ]


def use_of(plan: Plan, timing: Timing, graph: CapacityGraph) -> str:
    """What a plan takes of the links of GPUs: "1 channel: 24 of 300 GB/s a GPU"."""
    gpus = {*graph.rank_names}
    out = [use for use in timing.links if use.src in gpus]
    if plan.program is None or not out:
        return ""
    taken = usage(plan.program)
    fifo = plan.program.style == "fifo"
    count, noun = (taken.channels, "channel") if fifo else (taken.busy, "thread block")
    used = sum(use.bytes for use in out) / timing.time / 1000 / len(gpus)
    most = sum(use.bandwidth for use in out) / len(gpus)
    return f"{count} {noun}{'s' * (count != 1)}: {used:.3g} of {most:.4g} GB/s a GPU"


def bare_timing(time: float, size: int, rule: Rule, collective: Collective, ranks: int) -> Timing:
    """A time in microseconds that is not simulated, with its rates."""
    algbw = size / time / 1000
    return Timing(rule, size, time, algbw, algbw * float(collective.bus_factor(ranks)), 0, ())
