"""Synthesize for several groups at once, on one machine: what `--groups` calls.

Every group gets a forest and plans of its own, each checked on the way; one more file says what
they share (`groups_file`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from forestcoll.common.clock import Clock, Progress
from forestcoll.common.errors import PlanError, TopologyError, UnsupportedError
from forestcoll.compile.formats import FORMATS, Format, seat, targets_of, write_plan
from forestcoll.compile.problem import parse_collective
from forestcoll.program import Collective
from forestcoll.program.targets import PlanFormat, TargetName, sms_of

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph, Relays
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat, Target, TargetName
    from forestcoll.schedule.group import Group, Together
    from forestcoll.schedule.latency import Latencies
    from forestcoll.solver.groups.split import Split
    from forestcoll.topology import Topology

FEWER = (16, 12, 8, 6, 4, 3, 2, 1)
"""Trees a root that are tried, in turn, where the plans of the best forests do not fit."""


@dataclass(frozen=True, slots=True)
class GroupsProblem:
    """Groups on a machine: `members[g]` are nodes of `machine`, `roots[g]` a rank number.

    `collectives`: of each group; `weights`: its algbw / the common one (1). `links`: microseconds
    over each link of the topology.
    """

    name: str
    machine: CapacityGraph
    members: list[list[int]]
    roots: list[int]
    collectives: list[Collective]
    relays: Relays
    links: Latencies
    weights: list[Fraction] = field(default_factory=list)

    @property
    def collective(self) -> str:
        """All that the groups run, in words."""
        return " and ".join(dict.fromkeys(self.collectives))


@dataclass(frozen=True, slots=True)
class Schedules:
    """What `synthesize` made. `texts[file name]` is ready to be written to a file."""

    name: str
    done: Together
    texts: dict[str, str] = field(repr=False)
    timings: dict[str, float]  # seconds a stage
    notes: list[str] = field(default_factory=list)
    latencies: tuple[Fraction, ...] = ()  # us a group: the forest's height in its links' latencies


def problem(
    topology: Topology,
    collective: Collective | str,
    groups: Sequence[Sequence[str]],
    *,
    root: int | str | None = None,
    relays: Relays = "none",
) -> GroupsProblem:
    """The groups by node numbers. `groups`: ids or globs of each; `root`: a rank number in each.

    A GPU may be in several groups. Raises `TopologyError` (unknown ids, a group of one),
    UnsupportedError (the root).
    """
    from forestcoll.graph.capacity_graph import CapacityGraph, select_ranks

    parsed = parse_collective(collective)
    if not groups:
        raise TopologyError("groups: none is given")
    machine = CapacityGraph.from_topology(topology, relays="all").plain
    number = machine.node_of
    members = []
    for g, patterns in enumerate(groups):
        try:
            names = select_ranks(topology, patterns)
        except TopologyError as error:
            raise TopologyError(f"group {g}: {error}") from None
        if len(names) < 2:
            raise TopologyError(f"group {g} ('{','.join(patterns)}') is one rank; it needs two")
        members.append([number[name] for name in names])
    roots = [_root(parsed, root, g, len(own)) for g, own in enumerate(members)]
    return GroupsProblem(
        topology.name,
        machine,
        members,
        roots,
        [parsed] * len(members),
        relays,
        topology.latencies(),
    )


def _root(collective: Collective, root: int | str | None, g: int, size: int) -> int:
    if not collective.has_root:
        if root is not None:
            raise UnsupportedError(f"{collective} has no root: leave --root away")
        return 0
    if root is None:
        return 0
    text = str(root)
    if not (text.isascii() and text.isdecimal()) or int(text) >= size:
        raise UnsupportedError(
            f"root {root!r}: with groups, a rank number that every group has; group {g} has "
            f"0 to {size - 1}"
        )
    return int(text)


def optimum(asked: GroupsProblem) -> Split:
    """The largest algbw that all groups reach at once, its proof, and how the links are split."""
    from forestcoll.solver.groups.split import split

    return split(asked.machine, _views(asked))


def alone(asked: GroupsProblem, common: Fraction) -> list[Fraction]:
    """The algbw (GB/s) that each group would have with all links to itself.

    `common`: what all reach at once, and so each alone, whatever is known of its optimum.
    """
    from forestcoll import solver

    return [
        max(
            common,
            solver.optimum(
                group.graph, group.collective, group.root if group.collective.has_root else None
            ).algbw,
        )
        for group in _views(asked)
    ]


def _views(asked: GroupsProblem) -> list[Group]:
    from forestcoll.schedule.group import view_groups

    return view_groups(
        asked.machine, asked.members, asked.roots, asked.relays, asked.collectives, asked.weights
    )


def synthesize(
    asked: GroupsProblem,
    *,
    trees: int | Literal["auto"] = "auto",
    instances: int | Literal["auto"] = "auto",
    target: TargetName = "any",
    formats: Iterable[Format] = tuple(FORMATS),
    progress: Progress | None = None,
    shares: Split | None = None,
) -> Schedules:
    """Forests of all groups that reach the same algbw at once, and the plans made from them.

    The algbw is the best there is, up to the sizes named in `solver.groups.split`; where plans of
    these forests fit no target, the best of some with fewer trees per root. `instances`: "auto" as
    many as keep the links that a group has busy. Groups run at the same time, so those of a GPU
    share its multiprocessors. Every forest is checked, all of them together against the machine,
    every plan is read back and run symbolically. `shares`: how the links are split, where that is
    known.

    Raises InfeasibleError, PlanError, UnsupportedError like `synthesize` of one group.
    """
    from forestcoll.schedule import certificate, forest_file, groups_file
    from forestcoll.schedule.latency import latency

    formats = tuple(dict.fromkeys(formats))
    shared = max(Counter(node for own in asked.members for node in own).values())
    targets = targets_of(formats, target, sms_of(asked.name) // shared)
    clock = Clock(progress)
    left_out: list[str] = []
    for group in _views(asked):
        targets, why = seat(targets, group.graph, asked.name, target == "any")
        left_out += why
    formats = tuple(form for form in formats if form == "forest" or form in targets)
    done, programs, notes = _choose(asked, trees, instances, targets, clock, shares)
    notes = [*left_out, *notes]
    if instances == "auto":
        notes += _fill(done, programs, targets, asked.links, clock)
    with clock.stage("check"):
        for forest in done.forests:
            certificate.check(forest)
    texts: dict[str, str] = {}
    files = []
    for forest, of_group in zip(done.forests, programs, strict=True):
        stem = f"{forest.name}.{forest.collective}"
        files.append(f"{stem}{FORMATS['forest']}")
        if "forest" in formats:
            texts[files[-1]] = forest_file.dumps(forest)
        for form, program in of_group.items():
            texts[f"{stem}{FORMATS[form]}"] = write_plan(
                program, form, targets[form], forest, clock
            )
    if "forest" in formats:
        whole = f"{asked.name}.{'-'.join(done.collectives)}{groups_file.SUFFIX}"
        texts[whole] = groups_file.dumps(done, asked.name, files)
    if done.note:
        notes.append(done.note)
    waited = tuple(latency(forest, asked.links) for forest in done.forests)
    return Schedules(asked.name, done, texts, clock.seconds, notes, waited)


Programs = list[dict[PlanFormat, "Program"]]


def _choose(
    asked: GroupsProblem,
    trees: int | Literal["auto"],
    instances: int | Literal["auto"],
    targets: dict[PlanFormat, Target],
    clock: Clock,
    given: Split | None,
) -> tuple[Together, Programs, list[str]]:
    """(forests, programs, notes): the best forests, or the best of fewer trees that fit."""
    from forestcoll.lower import lower
    from forestcoll.solver.groups.forests import pack_forests

    with clock.stage("optimum"):
        shares = given or optimum(asked)
    views = _views(asked)

    def pack(k: int | Literal["auto"]) -> Together:
        with clock.stage("solve"):
            return pack_forests(asked.machine, views, shares, asked.relays, k, asked.name)

    parts = 1 if instances == "auto" else instances

    def lower_all(done: Together) -> Programs:
        with clock.stage("lower"):
            return [
                {form: lower(forest, t, instances=parts) for form, t in targets.items()}
                for forest in done.forests
            ]

    best = pack(trees)
    try:
        return best, lower_all(best), []
    except PlanError:
        if trees != "auto":
            raise
        reason: PlanError | None = None
    for done in sorted((pack(k) for k in FEWER), key=lambda done: -done.algbw):
        try:
            programs = lower_all(done)
        except PlanError as error:
            reason = error
            continue
        k = max(forest.trees_per_root for forest in done.forests)
        note = (
            f"{k} {'tree' if k == 1 else 'trees'} per root fit the plans: {float(done.algbw):.4g} "
            f"GB/s; the best, {float(best.algbw):.4g} GB/s, takes "
            f"{max(forest.trees_per_root for forest in best.forests)} (--format forest writes it)"
        )
        return done, programs, [note]
    raise reason or PlanError("no forest of the groups fits the plans")


def _fill(
    done: Together,
    programs: Programs,
    targets: dict[PlanFormat, Target],
    links: Latencies,
    clock: Clock,
) -> list[str]:
    """Gives each program the instances that keep its group's links busy; where they do not, why."""
    from forestcoll.compile.search import SPREADING, search

    notes: dict[str, list[int]] = {}
    with clock.stage("lower"):
        for g, (forest, of_group) in enumerate(zip(done.forests, programs, strict=True)):
            for form, target in targets.items():
                of_group[form], note = search(forest, target, of_group[form], SPREADING, links)
                if note:
                    notes.setdefault(note, []).append(g)
    return [
        note if len(groups) == len(programs) else f"group {', '.join(map(str, groups))}: {note}"
        for note, groups in notes.items()
    ]
