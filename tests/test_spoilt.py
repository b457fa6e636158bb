"""Good programs and plans spoilt in one way each, and what is said of them: the rows of rows/*.txt.

programs.txt: what the proof says, and what the writer of the format. msccl-xml.txt and
mscclpp-json.txt: the linter's first finding of every rule, and what `loads` says. None passes, none
crashes: a plan with what is listed is refused, unused, slow, hangs, corrupts memory or adds
wrongly. `--update-golden` writes what is said now.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import programs
import pytest
from edits import ROWS, Row, check_rows, edit_text, rows_of
from notation import line_of, tree_of

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.plans.findings import Finding
from forestcoll.plans.lint import Report, Told, lint
from forestcoll.program import Collective, Program
from forestcoll.program.targets import MSCCLPP, TARGETS
from forestcoll.verify import verify


def told(error: ForestCollError) -> str:
    """Rule (or class) and text of an error."""
    return f"{error.rule or type(error).__name__}: {error}"


def program_of(row: Row) -> Program:
    """The spoilt program of a row."""
    options = [option for option in row.options if option[0] != "@"]
    return programs.edit(programs.base(row.base, *options), *row.edits)


def say_of_program(row: Row) -> Iterator[str]:
    """What the proof says, and the writer where it says something else."""
    program, said = program_of(row), ""
    try:
        done = verify(program)
        yield f"right: {', '.join(done.modes)}; {done.launches} launches, {done.events} events"
    except ForestCollError as error:
        said = told(error)
        yield said
    named = [TARGETS[option[1:]] for option in row.options if option[0] == "@"]
    target = named[0] if named else MSCCLPP if program.style == "onesided" else None
    try:
        plans.dumps(program, programs.format_of(program), target)
    except ForestCollError as error:
        if told(error) != said:
            yield f"written: {told(error)}"


@cache
def text_of(row_base: str, *options: str) -> str:
    """The good plan that a row spoils: of a program, or a file of rows/."""
    files = [*ROWS.glob(f"{row_base}.xml"), *ROWS.glob(f"{row_base}.json")]
    return files[0].read_text() if files else programs.text_of(row_base, *options)


def good_text(row: Row) -> str:
    """The same of a row."""
    return text_of(row.base, *(option for option in row.options if option[0] != "@"))


@cache
def findings_of(text: str) -> set[str]:
    """What the linter says of a good plan."""
    return set(map(str, lint(text, "t").findings))


def lint_row(row: Row, **options: Any) -> Report:
    """What the linter says of the spoilt plan; `@rccl` is a target, `@root=1` what it is told."""
    words = [option[1:] for option in row.options if option[0] == "@"]
    target = next((word for word in words if word in TARGETS), None)
    given = dict(word.split("=") for word in words if "=" in word)
    sms = given.pop("sms", None)
    told = Told(
        Collective(given["collective"]) if "collective" in given else None,
        int(given["root"]) if "root" in given else None,
        given.get("place"),  # type: ignore[arg-type]
    )
    text = edit_text(good_text(row), row.edits)
    return lint(text, "t", target, told=told, sms=sms and int(sms), **options)


def say_of_plan(format: plans.Format, row: Row) -> Iterator[str]:
    """The first finding of each rule, notes only where the good plan has them not; what is read."""
    text, report = edit_text(good_text(row), row.edits), None
    try:
        report = lint_row(row)
    except PlanError as error:
        yield f"no plan: {told(error)}"
    rules: dict[str, list[Finding]] = {}
    if report is not None:
        usual = findings_of(good_text(row)) if row.edits else set()
        for finding in report.findings:
            if finding.severity != "note" or str(finding) not in usual:
                rules.setdefault(finding.rule, []).append(finding)
        for first, *more in rules.values():
            yield f"{first}{''.join(f' | {finding.place}' for finding in more[:5])}"
        assert report.ok == all(finding.severity != "error" for finding in report.findings)
        if report.verified is None and report.ok:
            yield "not proven"
    try:
        program = plans.loads(text, "t", format)
        if "notes" in program.extra:
            yield f"read: {program.extra['notes']}"
        if "@read" in row.options:
            fields = tree_of(program)
            yield str({key: fields[key] for key in ("name", "root", "places", "max_bytes")})
            for r, b, s, i in program.instructions():
                yield f"{r}.{b}.{s} {line_of(i)}"
    except ForestCollError as error:  # the same reading, to its first error
        yield f"refused: {told(error)}"
        listed = report is None or isinstance(error, UnsupportedError) or error.rule in {*rules, ""}
        if not listed:
            raise


@pytest.mark.parametrize("format", plans.FORMATS)
def test_plans(format: plans.Format, request: pytest.FixtureRequest) -> None:
    check_rows(f"{format}.txt", partial(say_of_plan, format), request)


def test_programs(request: pytest.FixtureRequest) -> None:
    check_rows("programs.txt", say_of_program, request)


@pytest.mark.parametrize("name", programs.all_good())
def test_good_plans(name: str) -> None:
    """What is spoilt was right, so that a finding is due to the edits."""
    program = programs.all_good()[name]
    report = lint(plans.dumps(program, programs.format_of(program)), name, launches=3)
    assert report.ok, report.findings
    assert not report.counts["warning"], report.findings
    assert report.verified is not None


def test_three_launches_find_what_two_do() -> None:
    for row in rows_of("mscclpp-json.txt"):
        if any(line.startswith("error RUN-") for line in row.said):
            two, three = lint_row(row), lint_row(row, launches=3)
            assert {f.rule for f in two.findings} == {f.rule for f in three.findings}, row.name
