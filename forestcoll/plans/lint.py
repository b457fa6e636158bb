"""Lint a plan's text against a runtime: the rules of its format, then the symbolic run.

The loaders of MSCCL XML and MSCCL++ JSON check next to nothing, so a plan may be refused, silently
unused, hang, corrupt memory or add wrongly. The reading of a format knows their rules
(rule_catalogue.py, docs/reference/rules.md), and goes on where `loads` stops. Then
forestcoll/verify runs what was read for several launches in a row, with as many messages in a queue
as the runtime holds, and its words become findings.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.plans import home_of
from forestcoll.plans.findings import At, Finding, Findings, Report, report
from forestcoll.plans.rule_catalogue import RULES, Rule, Severity
from forestcoll.plans.rules import check_header
from forestcoll.program import (
    FUSED,
    OPERATIONS,
    PUTS,
    WAITS,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    ThreadBlock,
)
from forestcoll.program.targets import NARROWEST, TARGETS, Target, sms_of
from forestcoll.verify.check import Verified, examine
from forestcoll.verify.wiring import wiring_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "Told", "lint"]

LAUNCHES = 2
"""That a plan is run for: the first shows what a launch does, the second what it leaves behind."""
_FUSED = re.compile(rf'type="(?:{"|".join(OPERATIONS[op].xml for op in FUSED)})"')
_NAME = re.compile(r'(?:<algo\b[^<>]*?\bname=|"name"\s*:\s*)"([^"]*)"')
MOST_FAULTS = 1000  # of the run: the rest is more of the same
SKIPPED = "data, deadlocks and races were not looked at, for the errors above"
MEANINGS = frozenset(("RUN-WRONG-RESULT", "RUN-WRONG-SUM"))
Place = Literal["in", "out", "both"]
_WAITS = WAITS | {Op.ACQUIRE}
_SIGNALS = PUTS | {Op.SIGNAL, Op.RELEASE}
_BARRIERS = frozenset((Op.NOP, Op.BARRIER))


class Told(NamedTuple):
    """What the caller knows better than the file."""

    collective: Collective | None = None
    root: int | None = None
    place: Place | None = None


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
    program, partly = _read(text, chosen, sms or sms_of(_name(text)), told, out)
    done = None if program is None else _run(program, out.foreign, chosen, launches, out)
    ran = launches if done is None else max(launches, done.launches)
    proven = None if partly else done
    return report(out, source, chosen.name, target is None, ran, program, proven)


def _name(text: str) -> str:
    """The plan's name: ours begin with the machine's."""
    match = _NAME.search(text)
    return match[1] if match else ""


def guess(text: str, form: plans.Format) -> str:
    """The runtime that a plan is meant for: the narrowest of its format that it fits.

    What that one runs, the others run too.
    """
    chosen = NARROWEST[form]
    wide = next((t.name for t in TARGETS.values() if t.format == form and t.fused), chosen.name)
    ranks = text.split("<gpu ")[1:]
    fits = all(rank.count("<tb ") <= chosen.thread_blocks for rank in ranks)
    return chosen.name if fits and not _FUSED.search(text) else wide


# --- reading and running ----


def _run(
    program: Program, other: str, target: Target, launches: int, out: Findings
) -> Verified | None:
    """What is proven of the program; the rest are findings. `other`: a word for what it does."""
    before = out.errors
    _note_all(wiring_faults(program), program, out)
    told = any(level == "error" and rule not in _SURFACE for level, rule in out.counts)
    if told or out.errors > before:
        out.add("RUN-SKIPPED", SKIPPED)
        return None
    try:
        rootless = program.collective.has_root and program.root < 0
        check_header(replace(program, root=0) if rootless else program)
        done, faults = examine(program, launches=launches, target=target, wired=True)
        listed = list(islice(faults, MOST_FAULTS))
    except (PlanError, UnsupportedError) as error:
        if other and not error.at:  # its buffers are others
            out.add("RUN-DATA-UNFOLLOWED", f"{other!r} cannot be run here: {error}")
        else:
            out.add(_rule(error), str(error), **_at(error))
        return None
    if other:
        listed = [fault for fault in listed if fault.rule not in MEANINGS]
        out.add("RUN-DATA-UNFOLLOWED", f"what {other!r} means is not known here: its order, "
                "deadlocks and races were looked at, its result was not")  # fmt: skip
    _note_all(listed, program, out)
    if not listed:
        _check_flushes(program, launches, out)
    if done is not None and program.root < 0 <= done.root:
        out.add("RUN-ROOT", f"the root is rank {done.root}")
    return None if other or out.has("MPP-FLUSH") else done


def _check_flushes(program: Program, launches: int, out: Findings) -> None:
    """The runtime's flush does nothing: is the plan right without?"""
    if all(i.op is not Op.FLUSH for _, _, _, i in program.instructions()):
        return
    try:
        bare = program.edit(lambda rank, i: None if i.op is Op.FLUSH else i)
        _, faults = examine(bare, launches=launches)
        fault = next(iter(faults), None)
    except PlanError as error:
        fault = error
    if fault is not None:
        rank, block, step = next(
            (r, b, s) for r, b, s, i in program.instructions() if i.op is Op.FLUSH
        )
        out.add("MPP-FLUSH", f"this flush is needed, but does nothing; without: {fault}",
                rank=rank, block=block, step=step, severity="error")  # fmt: skip


def _read(
    text: str, target: Target, sms: int, told: Told, out: Findings
) -> tuple[Program | None, bool]:
    """The program, and whether another one stands in for what the file says."""
    reader = home_of(target.format)
    program: Program | None = reader.read(text, target, out, sms=sms, collective=told.collective)
    partly = False
    if program is None and not out.errors:  # nothing is wrong, but no Program holds it
        other, said = reader.stand_in(text)
        quiet = Findings()
        program = reader.read(other, target, quiet, collective=told.collective) if said else None
        partly = program is not None
        if program is None:
            out.add("RUN-UNFOLLOWED", (quiet.lacks or out.lacks)[0])
            return None, False
        for words in said:
            out.add("RUN-PARTLY-FOLLOWED", words)
    if program is None:
        out.add("RUN-SKIPPED", SKIPPED)
        return None, False
    if told.root is not None:
        program = replace(program, root=told.root)
    if told.place is not None:
        program = replace(program, in_place=told.place != "out", out_of_place=told.place != "in")
    return program, partly


# What the runtime refuses, but a run can look past: it says what the plan would do once cured.
_SURFACE = frozenset(
    name
    for name, rule in RULES.items()
    if rule.severity == "error"
    and name
    in {
        "XML-PROLOG", "XML-WHITESPACE", "XML-TAG", "XML-MISSING", "XML-COLLECTIVE", "XML-NCHANNELS",
        "XML-TB-SMS", "XML-TB-COUNT", "RCCL-TB-COUNT", "RCCL-FUSED", "XML-STEP-NUMBER",
        "XML-STEP-COUNT", "XML-COUNT", "XML-CHANNEL", "XML-CHANNEL-LOAD", "XML-DEP-WRAP",
        "XML-NODES", "XML-OFFSET-16", "XML-SIZE-RANGE", "XML-VALUE-LENGTH", "XML-NOP-EMPTY",
        "MPP-COLLECTIVE", "MPP-MIN-SIZE", "MPP-SIZE-RANGE", "MPP-4GIB", "MPP-TB-SMS", "MPP-OPS",
        "MPP-TB-CHANNELS", "MPP-TB-REMOTES", "MPP-OP-CHANNELS", "MPP-BARRIER-ID", "MPP-THREADS",
        "XML-RE-JOINED", "MPP-NODES", "MPP-NICS", "MPP-MEMORY-FAR", "MPP-SIGNAL-THREADS",
        "MPP-REMOTE-EMPTY",
    }
)  # fmt: skip


def _rule(error: ForestCollError) -> str:
    if error.rule in RULES:
        return error.rule
    return "RUN-UNFOLLOWED" if isinstance(error, UnsupportedError) else "RUN-REFUSED"


def _at(error: ForestCollError) -> At:
    rank, block, step = (*error.at, -1, -1, -1)[:3]
    return {"rank": rank, "block": block, "step": step}


def _note_all(faults: Iterable[ForestCollError], program: Program, out: Findings) -> None:
    """A finding for each fault: the modes (in place or out of place) that it is in count once."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for fault in islice(faults, MOST_FAULTS):
        rule = _rule(fault)
        key = rule, fault.at
        if key in seen:
            continue
        seen.add(key)
        if (
            rule in ("RUN-RACE", "RUN-RACE-CALLER")
            and (place := _missing_nop(fault, program)) is not None
        ):
            out.add("RUN-RACE-NOP", f"{place[1]}: {fault}", **place[0])
        else:
            out.add(rule, str(fault), **_at(fault))


# --- where a nop is missing -----------------------------------------------------------------------

Code = list[tuple[int, Instruction]]  # steps and their instructions


def _missing_nop(fault: ForestCollError, program: Program) -> tuple[At, str] | None:
    """Where a nop would part one side of a race from its wait or signal, and what it would part."""
    for at in (fault.at, fault.other):
        if len(at) < 4 or program.style != "onesided":
            continue
        rank, block, step, k = at
        before, after = _around(program.ranks[rank].thread_blocks[block], step, k)
        waits = _before_barrier(before, _WAITS)
        if waits:
            text = f"no nop between the wait in step {waits[0]} and step {step}"
            return {"rank": rank, "block": block, "step": step}, text
        signals = _before_barrier(after, _SIGNALS)
        if signals:
            text = f"no nop between step {step} and the signal in step {signals[0]}"
            return {"rank": rank, "block": block, "step": signals[0]}, text
    return None


def _around(block: ThreadBlock, step: int, k: int) -> tuple[list[Code], list[Code]]:
    """What may come before (backwards) and after the k-th instruction of a step.

    A pipeline comes from what stands before it or from its own last round, and likewise goes on.
    """
    code = [*block.instructions()]
    earlier = [pair for pair in code if pair[0] < step]
    body = [pair for pair in code if pair[0] == step]
    later = code[len(earlier) + len(body) :]
    before, after = [earlier + body[:k]], [body[k + 1 :] + later]
    if isinstance(block.steps[step], Pipeline):
        before.append(body + body[:k])
        after.append(body[k + 1 :] + body)
    return [way[::-1] for way in before], after


def _before_barrier(ways: list[Code], wanted: frozenset[Op]) -> list[int]:
    """Steps of `wanted` operations that come before a thread barrier on some way."""
    early = []
    for way in ways:
        for s, i in way:
            if i.op in _BARRIERS:
                break
            if i.op in wanted:
                early.append(s)
    return early
