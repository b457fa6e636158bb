"""A linter's report for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.plans.lint import Report, Severity
from forestcoll.plans.rule_catalogue import SEVERITIES

if TYPE_CHECKING:
    from forestcoll.execute.deploy.plans import Plan


def title(report: Report) -> str:
    """`2 errors, 1 warning for target rccl`: what there is of each severity."""
    proven = "the algorithm is right, but " if report.verified is not None else ""
    return f"{proven}{_counts(report, SEVERITIES)} for {_target(report)}"


def lines(report: Report) -> list[str]:
    """A line for each finding, worst first, and one for those that are not listed."""
    found = [str(finding) for finding in report.findings]
    if report.more:
        found.append(f"... and {report.more} more of these")
    return found


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


def summary(report: Report) -> dict[str, object]:
    """For machines."""
    return {
        "file": report.source,
        "ok": report.ok,
        "target": report.target,
        "target_guessed": report.guessed,
        "launches": report.launches,
        "counts": dict(report.counts),
        "findings": [finding.as_dict() for finding in report.findings],
        "not_listed": report.more,
    }


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
