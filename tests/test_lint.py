"""The linter: targets, lists, any bytes.

What it says of plans: rows/*.txt, by test_spoilt.py; on the command line: commands/lint.txt.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path

import programs
import pytest
from artefacts import ROOT
from edits import edit_text, mutant
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.plans.findings import LISTED, LISTED_OF_A_RULE, Findings, report
from forestcoll.plans.lint import RULES, Report, lint
from forestcoll.verify import verify

RING, STAR = map(programs.text_of, ("ring_allreduce", "star_reduce"))
GOOD = programs.all_good()


def rules_of(found: Report) -> set[str]:
    return {finding.rule for finding in found.findings}


def test_target_is_guessed_from_the_file() -> None:
    assert (lint(RING, "p").target, lint(RING, "p").guessed) == ("msccl", True)
    assert lint(STAR, "p").target == "rccl"  # s, r, re, cpy: both run it
    assert lint(programs.text_of("pipelined_broadcast"), "p").target == "mscclpp"
    assert lint(STAR, "p", "msccl").guessed is False
    assert lint(edit_text(STAR, ['0.4 + <tb id="9"/> * 70']), "p").target == "msccl"


def test_all_findings_are_listed_worst_first() -> None:
    edits = ["0.1.0.dstoff = 9", "0.2.1.depid = 9", "minBytes -", "1.0.chan = 4"]
    found = lint(edit_text(STAR, edits), "p")
    assert {"XML-BOUNDS", "XML-DEP", "XML-MISSING", "XML-CHANNEL"} <= rules_of(found)
    assert [f.severity for f in found.findings] == sorted(
        [f.severity for f in found.findings], key=("error", "warning", "note").index
    )
    assert found.counts["error"] == sum(f.severity == "error" for f in found.findings)


def test_lists_are_bounded_and_the_rest_counted() -> None:
    found = lint(RING.replace('cnt="1"', 'cnt="0"'), "p")
    listed = [f for f in found.findings if f.rule == "XML-COUNT"]
    assert len(listed) == LISTED_OF_A_RULE
    assert found.counts["error"] == 28
    assert found.more == 28 - LISTED_OF_A_RULE
    out = Findings()
    names = [name for name, rule in RULES.items() if rule.severity == "error"]
    for name in names:
        for k in range(LISTED_OF_A_RULE):
            out.add(name, "text", rank=k)
    many = report(out, "p", "msccl", False, 2)
    assert len(many.findings) == LISTED
    assert many.more == len(names) * LISTED_OF_A_RULE - LISTED


def test_the_same_finding_counts_once() -> None:
    out = Findings()
    for _ in range(3):
        out.add("XML-DEP", "text", rank=1, block=2, step=3)
    assert out.errors == 1


def test_every_rule_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    assert page.count("\n| `") == len(RULES)


def test_every_rule_is_used_and_every_name_is_a_rule() -> None:
    """Names in the code are rules, and no rule is one that nothing can break."""
    words: set[str] = set()
    for folder in ("plans", "program", "verify"):
        for path in (ROOT / "forestcoll" / folder).rglob("*.py"):
            if path.name == "catalogue.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
                if isinstance(node, ast.keyword) and node.arg == "rule":
                    for value in ast.walk(node.value):
                        if isinstance(value, ast.Constant):
                            assert value.value in RULES, (path, value.value)
    assert set(RULES) <= words


# --- our own plans --------------------------------------------------------------------------------


# Those of the other machines are what test_execute_catalog.py lints, byte by byte.
GOLDENS = sorted(
    path
    for machine in ("dgx-a100-1", "dgx-a100-2", "mi250-1")
    for path in (ROOT / "schedules" / machine).glob("*.m*")
    if path.stat().st_size < 400_000
)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_goldens_fit(path: Path) -> None:
    found = lint(path.read_text(), path.name)
    assert [str(f) for f in found.findings if f.severity != "note"] == []


# --- any bytes ------------------------------------------------------------------------------------


@settings(max_examples=70, deadline=None)
@given(st.integers(0, 2**64), st.sampled_from(list(GOOD)))
def test_whatever_a_reader_or_the_proof_refuses_lint_refuses(seed: int, name: str) -> None:
    """And it never crashes."""
    text = plans.dumps(GOOD[name], programs.format_of(GOOD[name]))
    spoilt_text = mutant(text, random.Random(seed))
    try:
        found = lint(spoilt_text, "p")
    except PlanError:
        return  # no plan at all
    assert not found.ok or "RUN-DATA-UNFOLLOWED" in rules_of(found) or proven(spoilt_text)


def proven(text: str) -> bool:
    """Whether a reader takes the plan and it is right."""
    try:
        verify(plans.loads(text, "p"))
    except (PlanError, UnsupportedError):
        return False
    return True
