"""Every plan of the catalogue, checked in every way, as a table in markdown.

    python scripts/benchmarks/catalogue.py [--only MACHINE] [--collective C] [--most RANKS]

For each machine (its default, and two boxes), collective, target and protocol, and for plans that
let the switch copy and add: the plan as a file for calls in place and one for calls out of place
reads back equal; its link loads are the forest's, to the fraction; lint finds neither errors nor
warnings and follows several launches with the runtime's queues; and the engine runs three launches
in each mode, every element compared, with one message a queue and with the runtime's, and with
pipelines cut into many rounds. What the runtime's limits leave no room for is listed with the
limit; whatever goes wrong is a fault, and the exit code 1. All-to-all has catalogue_alltoall.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.compile.choose import PlanFormat
from forestcoll.compile.formats import Place
from forestcoll.compile.synthesize import Synthesis, synthesize
from forestcoll.execute.cpu import run
from forestcoll.lower import serve
from forestcoll.plans import mscclpp
from forestcoll.plans.lint import lint
from forestcoll.program import BY_TREES, Collective, Pipeline, Program, Protocol
from forestcoll.program.targets import TARGETS, Target, sms_of
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology, catalog
from forestcoll.verify import link_loads

LAUNCHES = 3
PART_BYTES = 4096  # of the data, a rank
ROUND_BYTES = 16  # of a pipeline cut into many rounds: the least that there is
MOST_RANKS = 72
MORE: tuple[tuple[str, dict[str, str]], ...] = (("dgx-a100", {"boxes": "8"}),)
"""Beside defaults and two boxes."""
CHOOSING = frozenset(("graph", "optimum", "front", "solve", "lower", "choose"))
"""Stages of `synthesize` in which a refusal says that no plan fits."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to ask for a plan."""

    target: str
    protocol: Protocol | None = None
    nvls: Place | None = None

    def __str__(self) -> str:
        return f"{self.target} {self.protocol or f'NVLS {self.nvls}'}"


PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL", "LL128")
KINDS = (
    *(Kind(target, protocol) for target in ("msccl", "rccl") for protocol in PROTOCOLS),
    *(Kind("mscclpp", protocol) for protocol in PROTOCOLS[:2]),
    *(Kind("mscclpp", None, place) for place in ("in-place", "out-of-place")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one plan. `refused`: no plan fits, in these words. `all_places`: there are."""

    machine: str
    collective: Collective
    kind: Kind
    places: tuple[str, ...] = ()
    refused: str = ""
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    all_places: int = 2

    @property
    def cell(self) -> str:
        """`"ok"`, `"in-place only"` or `"out-of-place only"` (both right), `"-"` or `"FAULT"`."""
        if self.faults:
            return "FAULT"
        if self.refused:
            return "-"
        return "ok" if len(self.places) == self.all_places else f"{self.places[0]} only"


def machines(most: int = MOST_RANKS) -> list[tuple[str, dict[str, str]]]:
    """Names and settings: all of the catalogue, those that have boxes also with two of them."""
    named: list[tuple[str, dict[str, str]]] = [(name, {}) for name in catalog.names()]
    for name in catalog.names():
        if any(p.name == "boxes" and p.default == 1 for p in catalog.heading(name).parameters):
            named.append((name, {"boxes": "2"}))
    return [one for one in (*named, *MORE) if len(catalog.load(*one).gpus) <= most]


def kinds_of(topology: Topology) -> tuple[Kind, ...]:
    """Those that can be asked for: plans for switches only where one copies."""
    copies = any(node.multicast for node in topology.nodes.values())
    return tuple(kind for kind in KINDS if copies or kind.nvls is None)


def synthesized(topology: Topology, collective: Collective, kind: Kind) -> Synthesis | str:
    """What the command line would make, or why no plan fits; other errors are passed on."""
    form = TARGETS[kind.target].format
    stages: list[str] = []
    try:
        return synthesize(
            topology,
            collective,
            target=kind.target,  # type: ignore[arg-type]  # a name of TARGETS
            formats=(form,),
            protocol=kind.protocol,
            nvls=kind.nvls,
            progress=lambda stage, _: stages.append(stage),
        )
    except (PlanError, UnsupportedError) as error:
        if stages[-1] not in CHOOSING:
            raise
        return str(error)


def served(program: Program) -> list[Program]:
    """The program, and the one for calls in place where ports make it serve the others alone."""
    try:
        other = serve(program, in_place=True)
    except PlanError:  # nothing follows from it: a reduce-scatter that keeps sums in its output
        return [program]
    return [program] if other is program else [program, other]


def texts(program: Program, form: PlanFormat, target: Target) -> dict[str, str]:
    """Place -> the plan's file for calls of that kind; XML serves both with one."""
    offered = {"in-place": program.in_place, "out-of-place": program.out_of_place}
    places = [place for place, right in offered.items() if right]
    if form == "msccl-xml":
        return dict.fromkeys(places, plans.dumps(program, form, target))
    return {place: mscclpp.dumps(program, target, in_place=place == "in-place") for place in places}


def faults_of_file(program: Program, text: str, target: Target, forest: Forest) -> Iterator[str]:
    """What is wrong with a plan file: read back, link loads, lint with its run."""
    if plans.loads(text, "plan", target.format) != program:
        yield "does not read back equal"
    try:
        link_loads(program, forest)
    except PlanError as error:
        yield f"link loads: {error}"
    report = lint(text, "plan", target.name, sms=target.thread_blocks)
    yield from (f"lint: {found}" for found in report.findings if found.severity != "note")
    modes = {m for m in ("in-place", "out-of-place") if getattr(program, m.replace("-", "_"))}
    if report.ok and (report.verified is None or set(report.verified.modes) != modes):
        yield f"lint: not all of {', '.join(sorted(modes))} was proven"
    if report.launches < 2:
        yield f"lint: {report.launches} launch"


def in_rounds(program: Program) -> Program:
    """The same with pipelines of the shortest rounds."""

    def block_of(block: object) -> object:
        steps = tuple(
            replace(step, unit_bytes=ROUND_BYTES) if isinstance(step, Pipeline) else step
            for step in block.steps  # type: ignore[attr-defined]
        )
        return replace(block, steps=steps)  # type: ignore[type-var]

    ranks = tuple(
        replace(rank, thread_blocks=tuple(map(block_of, rank.thread_blocks)))  # type: ignore[arg-type]
        for rank in program.ranks
    )
    return replace(program, ranks=ranks)


def faults_of_run(program: Program, *, usual: bool = True) -> Iterator[str]:
    """What goes wrong when the engine runs it, in each mode that it offers.

    First where little may run ahead, then, if `usual`, as the engine would run it by itself.
    """
    fifo = program.style == "fifo"
    ways: Sequence[tuple[str, Program, int | None]] = (
        ("with queues of 1", program, 1) if fifo else ("in short rounds", in_rounds(program), None),
        ("", program, None),
    )
    for how, one, slots in ways if usual else ways[:1]:
        try:
            result = run(
                one,
                min(one.n * PART_BYTES, one.max_bytes or 2**62),
                iterations=LAUNCHES,
                slots=slots,
                dtype="int32",
                timeout=60,
            )
        except ForestCollError as error:
            yield f"run {how}: {error}"
            continue
        if result.wrong:
            yield f"run {how}: {result.wrong} wrong elements; {result.mismatches[0]}"


def checked(topology: Topology, collective: Collective, kind: Kind) -> Outcome:
    """One plan, from the topology to the last element."""
    start = time.process_time()
    blank = Outcome(topology.name, collective, kind)
    target = TARGETS[kind.target].on(sms_of(topology.name))
    found: list[str] = []
    files: dict[str, str] = {}
    try:
        made = synthesized(topology, collective, kind)
        if isinstance(made, str):
            return replace(blank, refused=made, seconds=time.process_time() - start)
        program = made.programs[target.format]
        for one in [program] if program.style == "fifo" else served(program):
            these = texts(one, target.format, target)
            if one is program and made.texts[target.format] not in these.values():
                found.append("synthesize wrote another file")
            for text in dict.fromkeys(these.values()):
                found += faults_of_file(one, text, target, made.forest)
            found += faults_of_run(one)
            files |= these
    except Exception as error:  # the other plans are still to be looked at
        found.append(f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start
    return replace(blank, places=tuple(files), faults=tuple(found), seconds=seconds)


def table(
    outcomes: Sequence[Outcome], sizes: Mapping[str, int], kinds: Sequence[Kind] = KINDS
) -> Iterator[str]:
    """Markdown: a row a machine and collective; below, in words, what does not fit and faults."""
    by = {(o.machine, o.collective, o.kind): o for o in outcomes}
    yield f"| machine | ranks | collective | {' | '.join(map(str, kinds))} |"
    yield "|---|---|---|" + "---|" * len(kinds)
    for machine, collective in dict.fromkeys((o.machine, o.collective) for o in outcomes):
        cells = (by.get((machine, collective, kind)) for kind in kinds)
        line = " | ".join("" if one is None else one.cell for one in cells)
        yield f"| {machine} | {sizes[machine]} | {collective} | {line} |"
    fit = [o for o in outcomes if not o.refused]
    right = sum(not o.faults for o in fit)
    files = sum(len(o.places) for o in fit)
    yield ""
    yield (
        f"{right} of {len(fit)} plans are right ({files} with each place counted), "
        f"{len(outcomes) - len(fit)} do not fit, or the runtime has none."
    )
    yield from listed("Faults", ((one, line) for one in outcomes for line in one.faults))
    yield from listed("Does not fit", ((one, one.refused) for one in outcomes if one.refused))


def listed(title: str, lines: Iterable[tuple[Outcome, str]]) -> Iterator[str]:
    """A list of texts, each once, with all kinds of plan that it is about."""
    by: dict[tuple[str, Collective, str], list[Kind]] = {}
    for one, text in lines:
        by.setdefault((one.machine, one.collective, text), []).append(one.kind)
    if by:
        yield from ("", f"{title}:", "")
    for (machine, collective, text), kinds in by.items():
        yield f"- {machine} {collective} {', '.join(map(str, kinds))}: {text}"


def main() -> int:
    """Print the table; a line for each plan on standard error meanwhile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=catalog.names(), help="a machine")
    parser.add_argument("--collective", action="append", type=Collective, choices=[*BY_TREES])
    parser.add_argument("--most", type=int, default=MOST_RANKS, help="ranks of the largest machine")
    chosen = parser.parse_args()
    outcomes: list[Outcome] = []
    sizes: dict[str, int] = {}
    for name, settings in machines(chosen.most):
        if chosen.only and name not in chosen.only:
            continue
        topology = catalog.load(name, settings)
        sizes[topology.name] = len(topology.gpus)
        for collective in chosen.collective or BY_TREES:
            for kind in kinds_of(topology):
                one = checked(topology, collective, kind)
                outcomes.append(one)
                told = f"{topology.name} {collective} {kind}: {one.cell} {one.seconds:.1f} s"
                print(told, *one.faults, sep="\n  ", file=sys.stderr, flush=True)
    print("\n".join(table(outcomes, sizes)))
    return 1 if any(one.faults for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
