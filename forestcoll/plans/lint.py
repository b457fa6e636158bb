"""Lint a plan's text against a runtime: the rules of its format, then the symbolic run.

The loaders of MSCCL XML and MSCCL++ JSON check next to nothing, so a plan may be refused, silently
unused, hang, corrupt memory or add wrongly. The linter knows their rules (catalogue.py,
docs/lint.md). It reads a file as the loader does, and goes on where a reader would stop.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.plans.findings import Finding, Findings, Report, report
from forestcoll.plans.rule_catalogue import RULES, Rule, Severity
from forestcoll.plans.symbolic_run import Told, run_plan
from forestcoll.program import FUSED, OPERATIONS, Collective
from forestcoll.program.targets import NARROWEST, TARGETS, Target, sms_of

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "Told", "lint"]

LAUNCHES = 2
"""That a plan is run for: the first shows what a launch does, the second what it leaves behind."""
_FUSED = re.compile(rf'\btype="(?:{"|".join(OPERATIONS[op].xml for op in FUSED)})"')
_NAME = re.compile(r'(?:<algo\b[^<>]*?\bname=|"name"\s*:\s*)"([^"]*)"')
Rules = Callable[[str, Target, int, Collective | None, Findings], None]


def lint(
    text: str,
    source: str,
    target: str | None = None,
    *,
    told: Told | None = None,
    sms: int | None = None,
    launches: int = LAUNCHES,
) -> Report:
    """Everything that is wrong with a plan for `target` (a name in TARGETS; None: by its format).

    `source` names the file in messages, `told` says what the file does not, `sms` how many thread
    blocks run at once (None: those of the machine in the plan's name, or an A100's). Any text may
    be given. Raises PlanError where it is no plan at all, or one of another runtime's format.
    """
    if len(text) > PLAN_BYTES:
        raise PlanError(f"{source}: larger than {PLAN_BYTES // 2**20} MiB {PLAN_BYTES.note}")
    form = plans.detect(text, source)
    if target is not None and target not in TARGETS:
        raise PlanError(f"{source}: no target {target!r}; known are {', '.join(TARGETS)}")
    chosen = TARGETS[target or guess(text, form)]
    if chosen.format != form:
        raise PlanError(f"{source}: is {form}; target {chosen.name} reads {chosen.format}")
    told = told or Told()
    out = Findings()
    rules: Rules = plans.home_of(form, ".lint").lint
    rules(text, chosen, sms or sms_of(_name(text)), told.collective, out)
    program, done = run_plan(text, source, chosen, told, launches, out)
    ran = launches if done is None else max(launches, done.launches)
    return report(out, source, chosen.name, target is None, ran, program, done)


def _name(text: str) -> str:
    """The plan's name: ours begin with the machine's."""
    found = _NAME.search(text)
    return found[1] if found else ""


def guess(text: str, form: plans.Format) -> str:
    """The runtime that a plan is meant for: the narrowest of its format that it fits.

    What that one runs, the others run too.
    """
    chosen = NARROWEST[form]
    wide = next((t.name for t in TARGETS.values() if t.format == form and t.fused), chosen.name)
    ranks = text.split("<gpu ")[1:]
    fits = all(rank.count("<tb ") <= chosen.thread_blocks for rank in ranks)
    return chosen.name if fits and not _FUSED.search(text) else wide
