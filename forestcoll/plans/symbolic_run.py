"""What shows when a plan is run symbolically: wiring, deadlock, races, wrong data.

The readers and forestcoll/verify decide; here their words become findings. A plan is run for
several launches in a row, with as many messages in a queue as the runtime holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.plans import FORMATS, Format, home_of
from forestcoll.plans.findings import At, Findings
from forestcoll.plans.mscclpp.rules import body_of
from forestcoll.plans.rule_catalogue import RULES
from forestcoll.plans.rules import OTHER_COLLECTIVES, check_header
from forestcoll.program import (
    PUTS,
    WAITS,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Step,
    ThreadBlock,
)
from forestcoll.program.targets import Target
from forestcoll.verify.check import Verified, examine, run_repeatedly
from forestcoll.verify.wiring import wiring_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

MANY_MESSAGES = 50_000  # beyond, a launch is run with one slice of every chunk, not two
MOST_FAULTS = 1000  # of the run: the rest is more of the same
SKIPPED = "data, deadlocks and races were not looked at, for the errors above"
MEANINGS = frozenset(("RUN-WRONG-RESULT", "RUN-WRONG-SUM"))
Place = Literal["in", "out", "both"]
_WAITS = WAITS | {Op.ACQUIRE}
_SIGNALS = PUTS | {Op.SIGNAL, Op.RELEASE}
_BARRIERS = frozenset((Op.NOP, Op.BARRIER))


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller knows better than the file."""

    collective: Collective | None = None
    root: int | None = None
    place: Place | None = None


STAND_IN = OTHER_COLLECTIVES
"""Collectives that are none of ours: where their buffers are those of an allreduce, they can be
run, whatever the data mean."""


def run_plan(
    text: str, source: str, target: Target, told: Told, launches: int, out: Findings
) -> tuple[Program | None, Verified | None]:
    """The program as far as it can be read, and what was proven of it; the rest are findings."""
    form = target.format
    word = _collective(text, form)
    other = told.collective is None and word in STAND_IN
    if other:
        told = replace(told, collective=Collective.ALLREDUCE)
    program, partly = _read(text, source, form, told, out)
    if program is None:
        return None, None
    before = out.errors
    _note_all(wiring_faults(program), program, out)
    if out.errors > before or _stops(out):
        out.add("RUN-SKIPPED", SKIPPED)
        return program, None
    try:
        check_header(program if program.root >= 0 else replace(program, root=_any_root(program)))
        done, faults = examine(program, launches=launches, target=target)
        found = list(islice(faults, MOST_FAULTS))
        if program.style == "fifo":
            slices = 2 if done is None or done.moved <= MANY_MESSAGES else 1
            run_repeatedly(program, launches=launches, slices=slices, target=target)
    except (PlanError, UnsupportedError) as error:
        if other and not error.at:  # its buffers are others
            out.add("RUN-DATA-UNFOLLOWED", f"{word!r} cannot be run here: {error}")
        else:
            out.add(_rule(error), str(error), **_at(error))
        return program, None
    if other:
        found = [fault for fault in found if fault.rule not in MEANINGS]
        out.add("RUN-DATA-UNFOLLOWED", f"what {word!r} means is not known here: its order, "
                "deadlocks and races were looked at, its result was not")  # fmt: skip
    _note_all(found, program, out)
    if not found:
        _check_flushes(program, launches, out)
    if done is not None and program.root < 0 <= done.root:
        out.add("RUN-ROOT", f"the root is rank {done.root}")
    unproven = other or partly or out.has("MPP-FLUSH")
    return program, None if unproven else done


def _any_root(program: Program) -> int:
    return 0 if program.collective.rooted else -1


def _check_flushes(program: Program, launches: int, out: Findings) -> None:
    """The runtime's flush does nothing: is the plan right without?"""
    if all(i.op is not Op.FLUSH for _, _, _, i in program.instructions()):
        return
    try:
        _, faults = examine(_without_flushes(program), launches=launches)
        fault = next(iter(faults), None)
    except PlanError as error:
        fault = error
    if fault is not None:
        rank, block, step = next(
            (r, b, s) for r, b, s, i in program.instructions() if i.op is Op.FLUSH
        )
        out.add("MPP-FLUSH", f"this flush is needed, but does nothing; without: {fault}",
                rank=rank, block=block, step=step, severity="error")  # fmt: skip


def _without_flushes(program: Program) -> Program:
    def kept(step: Step) -> Step | None:
        if isinstance(step, Pipeline):
            return replace(step, body=tuple(i for i in step.body if i.op is not Op.FLUSH))
        return None if step.op is Op.FLUSH else step

    def block(one: ThreadBlock) -> ThreadBlock:
        return replace(one, steps=tuple(s for s in map(kept, one.steps) if s is not None))

    ranks = tuple(
        replace(rank, thread_blocks=tuple(map(block, rank.thread_blocks))) for rank in program.ranks
    )
    return replace(program, ranks=ranks)


def _collective(text: str, form: Format) -> str:
    """The word for the collective, wherever it stands; the rules have looked at it already."""
    found = re.search(FORMATS[form].collective, text)
    return found[1] if found else ""


def _read(
    text: str, source: str, form: Format, told: Told, out: Findings
) -> tuple[Program | None, bool]:
    """The program, and whether another one stands in for what the file says."""
    partly = False
    try:
        try:
            program = _loads(text, source, form, told)
        except UnsupportedError:
            if out.errors:
                raise
            other, said = home_of(form).stand_in(text)
            if not said:
                raise
            program, partly = _loads(other, source, form, told), True
            for words in said:
                out.add("RUN-PARTLY-FOLLOWED", words)
    except (PlanError, UnsupportedError) as error:
        if out.errors:
            out.add("RUN-SKIPPED", SKIPPED)
        else:
            rule = "RUN-REFUSED" if isinstance(error, PlanError) else "RUN-UNFOLLOWED"
            out.add(rule, str(error).removeprefix(f"{source}:").strip())
        return None, False
    if program.collective.rooted and told.root is None and "root" in program.extra.get("notes", ""):
        program = replace(program, root=-1)  # nobody says it: the data do
    if told.root is not None:
        program = replace(program, root=told.root)
    if told.place is not None:
        program = replace(program, in_place=told.place != "out", out_of_place=told.place != "in")
    return program, partly


def _loads(text: str, source: str, form: Format, told: Told) -> Program:
    reader = home_of(form)
    program: Program = reader.loads(text, source, check=False, collective=told.collective)
    return program


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


def _stops(out: Findings) -> bool:
    """Whether something was found that makes a run meaningless."""
    return any(severity == "error" and rule not in _SURFACE for severity, rule in out.counts)


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
    code = [[(s, i) for i in body_of(one)] for s, one in enumerate(block.steps)]
    body = code[step]
    earlier = [pair for part in code[:step] for pair in part]
    later = [pair for part in code[step + 1 :] for pair in part]
    before, after = [earlier + body[:k]], [body[k + 1 :] + later]
    if isinstance(block.steps[step], Pipeline):
        before.append(body + body[:k])
        after.append(body[k + 1 :] + body)
    return [way[::-1] for way in before], after


def _before_barrier(ways: list[Code], wanted: frozenset[Op]) -> list[int]:
    """Steps of `wanted` operations that come before a thread barrier on some way."""
    found = []
    for way in ways:
        for s, i in way:
            if i.op in _BARRIERS:
                break
            if i.op in wanted:
                found.append(s)
    return found
