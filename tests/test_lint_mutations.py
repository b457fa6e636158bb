"""Good plans spoilt in one way each: lint names the rule that is broken, and where.

None passes, none crashes. What is listed is never harmless: a plan with it is refused, unused,
slow, hangs, corrupts memory or adds wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import lint_mutations_json
import lint_mutations_xml
import pytest

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.plans.lint import RULES, Report, lint

XML, JSON = lint_mutations_xml, lint_mutations_json


@cache
def xml_base(name: str) -> str:
    return XML.base_text(name)


@cache
def json_base(name: str) -> str:
    return JSON.base_text(name)


def named(report: Report, rule: str, at: tuple[int, ...]) -> bool:
    """Whether a finding breaks the rule at that place."""
    return any(
        f.rule == rule and (f.rank, f.block, f.step)[: len(at)] == at and f.severity != "note"
        for f in report.findings
    )


def check(change: Callable[[str], str], text: str, rule: str, at: tuple[int, ...],
          target: str | None) -> None:  # fmt: skip
    spoilt = change(text)
    assert rule == "RCCL-FUSED" or spoilt != text
    if rule == "PlanError":
        with pytest.raises(PlanError):
            lint(spoilt, "plan", target)
        return
    report = lint(spoilt, "plan", target)
    shown = "\n".join(map(str, report.findings))
    assert named(report, rule, at), f"expected {rule} at {at}, found\n{shown}"
    assert report.ok == (RULES[rule].severity != "error" and not report.counts["error"]), shown
    errors = {finding.rule for finding in report.findings if finding.severity == "error"}
    first = ""
    try:
        plans.loads(spoilt, "plan")
    except PlanError as error:  # `loads` is the same reading, to its first error
        first = error.rule
    except UnsupportedError:
        pass
    assert first in errors | {""}, shown


@pytest.mark.parametrize("base", XML.BASES)
def test_good_xml(base: str) -> None:
    report = lint(xml_base(base), base)
    assert report.ok, report.findings
    assert not report.counts["warning"], report.findings
    assert report.verified is not None


@pytest.mark.parametrize("base", JSON.BASES)
def test_good_json(base: str) -> None:
    report = lint(json_base(base), base)
    assert report.ok, report.findings
    assert not report.counts["warning"], report.findings
    assert report.verified is not None


@pytest.mark.parametrize("mutation", XML.MUTATIONS, ids=lambda m: m.name)
def test_xml(mutation: lint_mutations_xml.Mutation) -> None:
    text = xml_base(mutation.base)
    check(mutation.change, text, mutation.rule, mutation.at, mutation.target)


@pytest.mark.parametrize("mutation", JSON.MUTATIONS, ids=lambda m: m.name)
def test_json(mutation: lint_mutations_json.Mutation) -> None:
    check(mutation.change, json_base(mutation.base), mutation.rule, mutation.at, None)


def test_there_are_many() -> None:
    assert len(XML.MUTATIONS) + len(JSON.MUTATIONS) >= 120
