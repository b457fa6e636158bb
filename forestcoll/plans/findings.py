"""What the linter found: `Finding`, the collector `Findings`, and the finished `Report`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypedDict

from forestcoll.plans.rule_catalogue import RULES, SEVERITIES, Severity
from forestcoll.program import Program
from forestcoll.verify import Verified

LISTED_OF_A_RULE = 20
LISTED = 200


class At(TypedDict, total=False):
    """A place in a plan, as keywords of `Findings.add`."""

    rank: int
    block: int
    step: int
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule. -1 where a place is not known or does not apply."""

    rule: str
    severity: Severity
    text: str
    cure: str
    rank: int = -1
    block: int = -1
    step: int = -1
    line: int = -1  # of the file

    @property
    def place(self) -> str:
        """`line 7, rank 0, thread block 1, step 2`, as far as it is known."""
        parts = (("line", self.line), ("rank", self.rank), ("thread block", self.block))
        words = [f"{word} {n}" for word, n in (*parts, ("step", self.step)) if n >= 0]
        return ", ".join(words)

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{self.severity} {self.rule}{where}: {self.text}{cure}"

    def as_dict(self) -> dict[str, object]:
        """For machines; places that are not known are null."""
        places = {
            name: None if value < 0 else value
            for name, value in (
                ("rank", self.rank),
                ("thread_block", self.block),
                ("step", self.step),
                ("line", self.line),
            )
        }
        head = {"rule": self.rule, "severity": self.severity}
        return {**head, **places, "text": self.text, "cure": self.cure}


@dataclass(slots=True)
class Findings:
    """Collects: the first `LISTED_OF_A_RULE` of each rule are kept, all are counted."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[Severity, str]] = field(default_factory=Counter)
    _seen: set[tuple[str, int, int, int, str]] = field(default_factory=set)
    _of_rule: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        rule: str,
        text: str,
        *,
        rank: int = -1,
        block: int = -1,
        step: int = -1,
        line: int = -1,
        severity: Severity | None = None,
    ) -> None:
        """Note a breach of `rule`; the same one at the same place is noted once."""
        known = RULES[rule]
        severity = severity or known.severity
        key = (rule, rank, block, step, text)
        if key in self._seen:
            return
        self.counts[severity, rule] += 1
        if self._of_rule[rule] < LISTED_OF_A_RULE:
            self._of_rule[rule] += 1
            self._seen.add(key)
            found = Finding(rule, severity, text, known.cure, rank, block, step, line)
            self.kept.append(found)

    @property
    def errors(self) -> int:
        """How many errors so far."""
        return sum(n for (severity, _), n in self.counts.items() if severity == "error")

    def has(self, rule: str, severity: Severity = "error") -> bool:
        """Whether there is any of that rule."""
        return self.counts[severity, rule] > 0


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found in one plan. `counts` counts also what is beyond `findings`."""

    source: str
    target: str
    guessed: bool  # the target, from the file's format
    findings: tuple[Finding, ...]
    counts: dict[Severity, int]
    launches: int  # in a row, that were run
    program: Program | None = None  # as far as it could be read
    verified: Verified | None = None  # what was proven, if all is right

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.counts["error"]

    @property
    def more(self) -> int:
        """How many are counted, but not listed."""
        return sum(self.counts.values()) - len(self.findings)


def report(
    findings: Findings,
    source: str,
    target: str,
    guessed: bool,
    launches: int,
    program: Program | None = None,
    verified: Verified | None = None,
) -> Report:
    """The report of what was collected: worst first, then in the order of the file."""
    ordered = sorted(
        findings.kept, key=lambda f: (SEVERITIES.index(f.severity), f.rank, f.block, f.step, f.line)
    )
    counts: dict[Severity, int] = dict.fromkeys(SEVERITIES, 0)
    for (severity, _), n in findings.counts.items():
        counts[severity] += n
    listed = tuple(ordered[:LISTED])
    return Report(source, target, guessed, listed, counts, launches, program, verified)
