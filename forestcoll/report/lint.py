"""A linter's report for people and for machines."""

from __future__ import annotations

from forestcoll.lint import Report, Severity
from forestcoll.lint.rules import SEVERITIES


def title(report: Report) -> str:
    """`2 errors, 1 warning for target rccl`: what there is of each severity."""
    return f"{_counted(report, SEVERITIES)} for {_target(report)}"


def lines(report: Report) -> list[str]:
    """A line for each finding, worst first, and one for those that are not listed."""
    found = [str(finding) for finding in report.findings]
    if report.more:
        found.append(f"... and {report.more} more of these")
    return found


def target(report: Report) -> str:
    """`target rccl (guessed from the file; --target says otherwise): fits; ...`."""
    runs = f"; {report.launches} launches in a row" if report.verified is not None else ""
    return f"{_target(report)}: {_counted(report, SEVERITIES[:2]) or 'fits'}{runs}"


def complaint(report: Report) -> str:
    """The first error in words, and how many there are."""
    first = report.findings[0]
    count = report.counts["error"]
    line = f":{first.line}" if first.line > 0 else ""
    at = f" at {first.place}" if first.place else ""
    rest = f" ({count} errors in all)" if count > 1 else ""
    return f"{report.source}{line}: {first.rule}{at}: {first.text}{rest}"


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


def _counted(report: Report, severities: tuple[Severity, ...]) -> str:
    words = [
        f"{n} {severity}{'s' * (n > 1)}"
        for severity in severities
        if (n := report.counts[severity])
    ]
    return ", ".join(words)
