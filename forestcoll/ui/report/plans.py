"""Plans: what a linter finds in one, what a plan set serves, what a runtime needs to use them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forestcoll.plans.lint import Report, Severity
from forestcoll.plans.rule_catalogue import SEVERITIES
from forestcoll.program.sizes import Sizes
from forestcoll.study.predict import figures_of_file
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    Part,
    Rows,
    as_json,
    bandwidth_facts,
    grid,
    line,
    machine,
    model,
    notes,
    rate_words,
    same,
    seconds,
    switches,
    texts,
)

if TYPE_CHECKING:
    from forestcoll.compile.plan_set import Ends, PlanSet
    from forestcoll.execute.deploy import Deployment
    from forestcoll.execute.deploy.plans import Plan
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.routes import Routes

ENDS = "us at from", "GB/s at to"
"""Columns of what is simulated."""
SIMULATED = "simulated, at 64 MiB at most"


def title(report: Report) -> str:
    """`2 errors, 1 warning for target rccl`: what there is of each severity."""
    proven = "the algorithm is right, but " if report.verified is not None else ""
    return f"{proven}{_counts(report, SEVERITIES)} for {_target(report)}"


def lines(report: Report) -> list[str]:
    """A line for each finding, worst first, and one for those that are not listed."""
    lines_listed = [str(finding) for finding in report.findings]
    if report.more:
        lines_listed.append(f"... and {report.more} more of these")
    return lines_listed


def target(report: Report) -> str:
    """`target rccl (guessed from the file; --target says otherwise): fits; ...`."""
    runs = f"; {report.launches} launches in a row" if report.verified is not None else ""
    return f"{_target(report)}: {_counts(report, SEVERITIES[:2]) or 'fits'}{runs}"


def complaint(report: Report) -> str:
    """The first error in words, and how many there are."""
    first = report.findings[0]
    count = report.counts["error"]
    line = f":{first.line}" if first.line > 0 else ""
    at = f" at {first.place}" if first.place else ""
    rest = f" ({count} errors in all)" if count > 1 else ""
    return f"{report.source}{line}: {first.rule}{at}: {first.text}{rest}"


def clash(one: Plan, other: Plan) -> str:
    """Two plans of a runtime that would answer the same call, and which calls those are."""
    a, b = one.program, other.program
    low = max(a.min_bytes, b.min_bytes)
    high = min((size for size in (one.max_bytes, other.max_bytes) if size), default=None)
    sizes = f"from {low} bytes" if high is None else f"of {low} to {high} bytes"
    places = [
        word
        for word, both in (
            ("in-place", one.in_place and other.in_place),
            ("out-of-place", one.out_of_place and other.out_of_place),
        )
        if both
    ]
    return (
        f"{one.source} and {other.source}: both answer {' and '.join(places)} calls of "
        f"{a.collective} over {a.n} ranks {sizes}; the runtime takes whichever it finds first"
    )


def namesakes(one: Plan, other: Plan) -> str:
    """Two plans that MSCCL++ would take for one."""
    return (
        f"{one.source} and {other.source}: both are named {one.name!r}, and MSCCL++ keeps what it "
        "has set up for a plan by its name; give each a name of its own"
    )


def findings(report: Report) -> list[Part]:
    """What was looked at, how much is wrong with it, and what; places not known are null."""
    rows = []
    for one in report.findings:
        at = {"rank": one.rank, "thread_block": one.block, "step": one.step, "line": one.line}
        places = {name: None if number < 0 else number for name, number in at.items()}
        words = {"text": one.text, "cure": one.cure}
        rows.append(machine(rule=one.rule, severity=one.severity, **places, **words))
    return [
        machine(
            file=report.source,
            ok=report.ok,
            target=report.target,
            target_guessed=report.guessed,
            launches=report.launches,
            counts=report.counts,
        ),
        Rows("findings", rows),
        machine(not_listed=report.more),
    ]


def _target(report: Report) -> str:
    guessed = " (guessed from the file; --target says otherwise)" if report.guessed else ""
    return f"target {report.target}{guessed}"


def _counts(report: Report, severities: tuple[Severity, ...]) -> str:
    words = [
        f"{n} {severity}{'s' * (n > 1)}"
        for severity in severities
        if (n := report.counts[severity])
    ]
    return ", ".join(words)


# --- plan sets ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A plan of a set: bytes that it serves, what it was made from, what is simulated of it."""

    format: PlanFormat
    low: int
    high: int
    program: Program
    made_from: Forest | Routes | None
    ends: Ends | None


def plan_set(
    result: PlanSet, files: Mapping[str, str], timings: Mapping[str, float], directory: Path | None
) -> list[Part]:
    """A line a plan; what no plan serves; what was written. `files`: their texts by name."""
    entries = [(plans.format, e) for plans in result.plans for e in plans.entries]
    rows = [Row(form, e.low, e.high, e.program, e.origin, e.ends) for form, e in entries]
    played = any(row.ends for row in rows)
    where = f"{words.plural(len(files), 'file')} in {directory}" if directory else ""
    title = f"{result.collective} on {result.name}, {_span(result.low, result.high)}"
    head = [
        Fact("index", json.loads(files["index.json"]), title, "plan set"),
        Fact("bound", result.bound, words.rate),
        Fact("plain_bound", result.bound),
        switches(result.in_switches),
        line("multiple", "bytes of float32 that a plan's sizes are multiples of"),
        line("links", "GB/s that they allow for many bytes"),
        line("us, GB/s", SIMULATED if played else ""),
        Fact("simulated", simulation_rows(rows)),
        set_model(rows),
    ]
    gaps = [
        f"{of.format}: {_span(gap.low, gap.high)}: {gap.why}"
        for of in result.plans
        for gap in of.unserved
    ]
    paths = [directory / file for file in files] if directory else []
    foot = [
        *texts("not served", gaps),
        *notes(result.notes),
        seconds(timings, whole=True),
        Fact("files", paths, where, "written"),
    ]
    return [head, plans(rows), foot]


def set_model(rows: Iterable[Row]) -> Fact:
    """The model that all of the plans were simulated with."""
    return model(row.ends[0] for row in rows if row.ends is not None)


def plans(rows: Sequence[Row]) -> Rows:
    """A line a plan; without the columns of what is simulated where nothing is."""
    from forestcoll.solver.alltoall.routes import Routes

    noun = "units" if isinstance(rows[0].made_from, Routes) else "trees"
    heads = ["plans", "from", "to", "protocol", "hops", noun, "links", *ENDS, "blocks", "multiple"]
    return grid(heads, [_cells(row) for row in rows], right=(1, 2, 4, 5, 6, 7, 8, 9))


def simulation_rows(rows: Iterable[Row]) -> list[dict[str, object]]:
    """What was simulated of each plan, for machines."""
    return [
        {
            "format": row.format,
            "min_bytes": row.low,
            "from": row.ends[0].summary(),
            "to": row.ends[1].summary(),
        }
        for row in rows
        if row.ends is not None
    ]


def _cells(row: Row) -> list[object]:
    from forestcoll.lower import usage
    from forestcoll.solver.alltoall.routes import Routes

    source, ends = row.made_from, ("", "")
    if row.ends is not None:  # the time of the first size and the bandwidth of the last
        first, last = row.ends
        times = "-".join(f"{time:.1f}" for time in sorted((first.fifo, first.fair)))
        ends = times, words.span(last).replace(" ", "")
    shape: tuple[object, object, str] = "", "", ""
    if isinstance(source, Routes):
        shape = source.hops, source.units, words.decimal(source.algbw, 1)
    elif source is not None:
        shape = source.height, source.trees_per_root, words.decimal(source.plain_algbw, 1)
    return [
        row.format,
        words.size(row.low),
        words.size(row.high),
        row.program.protocol,
        *shape,
        *ends,
        usage(row.program).thread_blocks,
        f"{Sizes.of(row.program).multiple()} bytes",
    ]


def _span(low: int, high: int | None) -> str:
    return f"{words.size(low)} to {words.size(high)}" if high is not None else words.size(low)


# --- deployments ----------------------------------------------------------------------------------


def size_rows(deployment: Deployment) -> Rows:
    """What each plan serves, a row a plan."""
    return Rows("", [_plan(plan) for plan in deployment.plans], right=())


def _plan(plan: Plan) -> list[Fact]:
    program = plan.program
    low, high = program.min_bytes, plan.max_bytes
    modes = (("in place", plan.in_place), ("out of place", plan.out_of_place))
    rooted = f", root {program.root}" if program.root >= 0 else ""
    return [
        Fact("file", plan.source, Path(plan.source).name, "plan"),
        *machine(name=plan.name, root=program.root if rooted else None),
        Fact("collective", program.collective, f"{program.collective}{rooted}"),
        line("calls", ", ".join(word for word, on in modes if on)),
        *machine(in_place=plan.in_place, out_of_place=plan.out_of_place),
        Fact("min_bytes", low, words.size(low) if low else "any", "from"),
        Fact("max_bytes", high or None, words.size(high) if high else "any", "to"),
        Fact("multiple", plan.multiple, plan.sizes.amount(), "multiple of"),
    ]


def needs(deployment: Deployment, written: Sequence[Path]) -> list[Fact]:
    """What a runtime needs, what proves that the plans ran, and of each plan what it serves."""
    spread = deployment.places
    figures = [figures_of_file(plan.program, Path(plan.source))[1] for plan in deployment.plans]
    each = f" of {spread.per_node}" if spread.per_node else ""
    ranks = f"{len(spread.places)} on {words.plural(len(spread.nodes), 'node')}{each}"
    proof = deployment.proof.split("; ")
    how = "--output DIR writes plans, environment and run.sh, which proves use"
    places = [place._asdict() for place in spread.places]
    plans = [
        as_json([*_plan(plan), *bandwidth_facts(links)])
        for plan, links in zip(deployment.plans, figures, strict=True)
    ]
    return [
        same("runtime", deployment.runtime),
        Fact("places", places, ranks, "ranks"),
        *texts("links", [rate_words(links) for links in figures if links]),
        Fact("environment", deployment.environment),
        *texts("set", [f"{key}={value}" for key, value in deployment.environment.items()]),
        Fact("proof", proof),
        *texts("proof", proof),
        *notes(deployment.notes),
        Fact("start", deployment.start, deployment.start if written else ""),
        Fact("plans", plans),
        Fact("written", written),
        *texts("written", map(str, written)),
        line("next", "" if written else how),
    ]
