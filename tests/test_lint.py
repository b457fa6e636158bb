"""The linter: targets, lists, the command line, any bytes.

What it says of plans: rows/*.txt, by test_spoilt.py.
"""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import programs
import pytest
from edits import edit_text, mutant
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.plans.findings import LISTED, LISTED_OF_A_RULE, Findings, report
from forestcoll.plans.lint import RULES, Report, lint
from forestcoll.ui import cli
from forestcoll.verify import verify

ROOT = Path(__file__).parents[1]
RING, STAR, CHAIN = map(programs.text_of, ("ring_allreduce", "star_reduce", "chain_broadcast"))
BEYOND = edit_text(STAR, ["0.1.0.dstoff = 9"])
GOOD = programs.all_good()


def rules_of(found: Report) -> set[str]:
    return {finding.rule for finding in found.findings}


def test_target_is_guessed_from_the_file() -> None:
    assert (lint(RING, "p").target, lint(RING, "p").guessed) == ("msccl", True)
    assert lint(STAR, "p").target == "rccl"  # s, r, re, cpy: both run it
    assert lint(programs.text_of("pipelined_broadcast"), "p").target == "mscclpp"
    assert lint(STAR, "p", "msccl").guessed is False
    assert lint(edit_text(STAR, ['0.4 + <tb id="9"/> * 70']), "p").target == "msccl"


def test_a_target_of_the_other_format_is_refused() -> None:
    with pytest.raises(PlanError, match="p: is msccl-xml; target mscclpp reads mscclpp-json"):
        lint(RING, "p", "mscclpp")
    with pytest.raises(PlanError, match="p: the file is empty"):
        lint("", "p")


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
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert page.count("\n| `") == len(RULES)


def test_every_rule_is_used_and_every_name_is_a_rule() -> None:
    """Names in the code are rules, and no rule is one that nothing can break."""
    words: set[str] = set()
    for folder in ("plans", "program", "verify"):
        for path in (ROOT / "forestcoll" / folder).rglob("*.py"):
            if path.name == "catalogue.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
                if isinstance(node, ast.keyword) and node.arg == "rule":
                    for value in ast.walk(node.value):
                        if isinstance(value, ast.Constant):
                            assert value.value in RULES, (path, value.value)
    assert set(RULES) <= words


# --- the command line -----------------------------------------------------------------------------


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def test_verify_lists_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.msccl.xml", tmp_path / "bad.msccl.xml"
    good.write_text(STAR)
    bad.write_text(BEYOND)
    assert run("verify", str(good), str(bad)) == 1
    out, err = capsys.readouterr()
    assert f"{good}: ok\n" in out
    assert "target rccl (guessed from the file; --target says otherwise): fits" in out
    assert f"{bad}: 1 error, " in out
    assert "\n  error XML-BOUNDS at line 7, rank 0, thread block 1, step 0: " in out
    assert err.count("\n") == 1
    assert err.startswith(f"forestcoll: error: {bad}:7: XML-BOUNDS at line 7, rank 0")


def test_the_proof_comes_first_where_only_selecting_attributes_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the first MSCCL's tools wrote them: three of today's attributes are not there."""
    path = tmp_path / "p.msccl.xml"
    lacking = re.sub(r' (minBytes|maxBytes|outofplace)="\d*"', "", RING)
    path.write_text(lacking)
    assert run("verify", "--place", "both", str(path)) == 1
    out, err = capsys.readouterr()
    title, what, proof, _, *findings = out.splitlines()
    assert title.startswith(f"{path}: the algorithm is right, but 3 errors, ")
    assert what.startswith("  allreduce, 4 ranks, ")
    assert proof.startswith("  every output chunk is right, out-of-place and in-place; ")
    missing = [line for line in findings if line.startswith("  error XML-MISSING at line 1: ")]
    assert [line.split("no ")[1] for line in missing] == [
        "minBytes; add it",
        "maxBytes; add it",
        "outofplace; add it",
    ]
    assert "XML-MISSING" in err
    assert run("verify", "--json", str(path)) == 1
    [entry] = json.loads(capsys.readouterr().out)
    assert not entry["ok"]
    assert "every output chunk is right" in entry["proven"][1]

    path.write_text(lacking.replace('type="rrs"', 'type="rrcs"', 1).replace("rrcs", "rcs", 1))
    assert run("verify", str(path)) == 1
    out, _ = capsys.readouterr()
    assert "is right" not in out
    assert "  error RUN-WRONG-" in out


def test_verify_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.msccl.xml"
    path.write_text(BEYOND)
    assert run("verify", "--json", "--target", "rccl", str(path)) == 1
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["ok"], entry["target"], entry["target_guessed"]) == (False, "rccl", False)
    assert entry["counts"]["error"] == 1
    first = entry["findings"][0]
    assert {k: first[k] for k in ("rule", "severity", "rank", "thread_block", "step", "line")} == {
        "rule": "XML-BOUNDS", "severity": "error", "rank": 0, "thread_block": 1, "step": 0,
        "line": 7,
    }  # fmt: skip
    assert first["cure"]


def test_verify_takes_what_the_file_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "p.msccl.xml"
    path.write_text(CHAIN.replace(' root="0"', ""))
    assert run("verify", str(path)) == 0
    assert run("verify", str(path), "--root", "1") == 1
    assert run("verify", str(path), "--collective", "allreduce") == 1
    assert run("verify", str(path), "--target", "mscclpp") == 1
    assert run("verify", str(path), "--place", "in", "--sms", "1") == 1


def test_plans_that_answer_the_same_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stored(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    ring = RING
    first = stored("a.msccl.xml", ring.replace('maxBytes="0"', 'maxBytes="4096"'))
    second = stored("b.msccl.xml", ring.replace('minBytes="0"', 'minBytes="4096"'))
    stored("c.msccl.xml", ring.replace('minBytes="0"', 'minBytes="8192"').replace(
        'outofplace="1"', 'outofplace="0"'))  # fmt: skip
    stored("d.msccl.xml", STAR)
    assert run("verify", "--target", "msccl", str(tmp_path)) == 0  # all in it
    said = capsys.readouterr().out
    assert (
        f"warning: {first} and {second}: both answer in-place and out-of-place calls of allreduce "
        "over 4 ranks of 4096 to 4096 bytes; the runtime takes whichever it finds first\n"
    ) in said
    assert "both answer in-place calls of allreduce over 4 ranks from 8192 bytes" in said
    assert said.count("both answer") == 2
    assert run("verify", "--target", "msccl", "--json", str(tmp_path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["clashes"] == [second]
    assert [len(entry.get("clashes", ())) for entry in found] == [1, 2, 1, 0]
    assert run("verify", first, second) == 0  # for runtimes that nobody named
    assert "both answer" not in capsys.readouterr().out


def test_an_empty_directory_is_no_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", "--target", "rccl", str(tmp_path)) == 1
    assert "index" in capsys.readouterr().err


def test_forests_have_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x.forest.json")
    assert run("synthesize", "-t", "ring", "-c", "allgather", "-o", path) == 0
    assert run("verify", path) == 0
    capsys.readouterr()
    assert run("verify", path, "--target", "rccl") == 1
    assert "a forest; --target and the like are for plans" in capsys.readouterr().err


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
    found = lint(path.read_text(encoding="utf-8"), path.name)
    assert [str(f) for f in found.findings if f.severity != "note"] == []


# --- any bytes ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
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
