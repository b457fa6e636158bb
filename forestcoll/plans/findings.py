"""What is wrong with a plan: `Finding`, the collectors of a reading, and the fields of files.

A format is read once, for `loads` and for the linter. What the reading comes upon goes to a
collector: `Findings` keeps all of it, `FirstError` raises at the first thing that no Program can
hold, and keeps notes of what a runtime minds or reads otherwise.

Tables say what the fields of plan files may be, and one reading serves both formats. An object of a
file, a JSON one or an XML element, is an `Entry` with a `Shape`: a `Field` for each name that the
loaders read. `get` gives a value as its field says, and tells `Findings` of what is missing, of
another type, or none of the values that the runtimes take. How a value is written is the format's
(mscclpp/shapes.py, msccl/text.py); what several fields say together, its reader's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from forestcoll.common.errors import PlanError, UnsupportedError, did_you_mean
from forestcoll.plans.rule_catalogue import RULES, SEVERITIES, Severity
from forestcoll.program import Program

if TYPE_CHECKING:
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


@dataclass(slots=True)
class Findings:
    """Collects: the first `LISTED_OF_A_RULE` of each rule are kept, all are counted."""

    held: bool = True  # whether a Program can hold the plan
    lacks: list[str] = field(default_factory=list)
    foreign: str = ""
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
        broken = RULES[rule]
        severity = severity or broken.severity
        key = (rule, rank, block, step, text)
        if key in self._seen:
            return
        self.counts[severity, rule] += 1
        if self._of_rule[rule] < LISTED_OF_A_RULE:
            self._of_rule[rule] += 1
            self._seen.add(key)
            finding = Finding(rule, severity, text, broken.cure, rank, block, step, line)
            self.kept.append(finding)

    def refuse(self, rule: str, text: str, **at: Unpack[At]) -> None:
        """Note a breach that leaves nothing for a Program to hold."""
        self.held = False
        self.add(rule, text, **at)

    def fault(self, rule: str, text: str, **at: Unpack[At]) -> None:
        """Note a breach that a Program can hold, but no run survives."""
        self.add(rule, text, **at)

    def lack(self, words: str, **at: Unpack[At]) -> None:
        """Remember what this version cannot do, though the runtimes may."""
        self.held = False
        self.lacks.append(words)

    def other(self, word: str, words: str, **at: Unpack[At]) -> None:
        """Remember the word of a collective that is none of this version's; reading goes on."""
        self.foreign = word

    def missing_root(self, what: str) -> int:
        """The root of a plan that does not say it: the data will, in a run."""
        return -1

    def remark(self, text: str) -> None:
        """Take what a Program holds otherwise than the file says it; no rule is broken."""

    @property
    def errors(self) -> int:
        """How many errors so far."""
        return sum(n for (severity, _), n in self.counts.items() if severity == "error")

    def has(self, rule: str, severity: Severity = "error") -> bool:
        """Whether there is any of that rule."""
        return self.counts[severity, rule] > 0


READ_OTHERWISE = frozenset((
    "XML-ELEMENT", "XML-OCTAL", "XML-ATTRIBUTES", "XML-SPACES", "XML-GPU-CHUNKS", "XML-DEP-LATE",
    "XML-NOP-EMPTY", "XML-NOP-TAIL", "XML-STEP-NUMBER", "MPP-PROTOCOL", "MPP-FLUSH",
))  # fmt: skip
"""Warnings that a runtime reads or does something else than the file says."""


class FirstError(Findings):
    """Raises at the first thing that no Program can hold; `source` names the file.

    The first of each rule that a runtime minds, or reads otherwise, becomes a note.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.notes: dict[str, str] = {}

    def add(self, rule: str, text: str, **at: Any) -> None:
        """Keep a note of what a Program can hold."""
        if rule in self.notes:
            return
        if (at.pop("severity", None) or RULES[rule].severity) == "error" or rule in READ_OTHERWISE:
            finding = Finding(rule, "error", text, RULES[rule].what, **at)
            place = f"{finding.place}: " if finding.place else ""
            self.notes[rule] = f"{place}{text}; {RULES[rule].what}"

    def refuse(self, rule: str, text: str, **at: Unpack[At]) -> None:
        """Raise: PlanError with the file, the place, what is wrong, and what to do."""
        broken = RULES[rule]
        cure = f": {broken.cure}" if broken.cure else ""
        place = (at.get("rank", -1), at.get("block", -1), at.get("step", -1))
        words = f"{self._place(at)}: {text}"
        if rule != "RUN-REFUSED":  # which only says that there is no Program
            words += f"{cure} (rule {rule}: {broken.what})"
        raise PlanError(words, rule=rule, at=tuple(n for n in place if n >= 0))

    fault = refuse

    def _place(self, at: At) -> str:
        line = f":{at['line']}" if at.get("line", -1) >= 0 else ""
        inside: At = {**at, "line": -1}
        place = Finding("", "error", "", "", **inside).place
        return f"{self.source}{line}" + (f": {place}" if place else "")

    def lack(self, words: str, **at: Unpack[At]) -> None:
        """Raise UnsupportedError."""
        raise UnsupportedError(f"{self._place(at)}: {words}")

    def other(self, word: str, words: str, **at: Unpack[At]) -> None:
        """Raise UnsupportedError."""
        self.lack(words, **at)

    def missing_root(self, what: str) -> int:
        """Rank 0, with a note."""
        self.remark(f"{what} does not say the root; rank 0 is assumed")
        return 0

    def remark(self, text: str) -> None:
        """Keep a note."""
        self.notes.setdefault(text, text)

    def sign(self, program: Program) -> Program:
        """The program with the notes, one a line, if there are any."""
        if not self.notes:
            return program
        return replace(program, extra={**program.extra, "notes": "\n".join(self.notes.values())})


class Report(NamedTuple):
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


LARGE = 2**80
"""Above every number of a file: their digits are limited."""
Verb = Literal["add", "fault", "refuse"]
POSITIVE = range(1, LARGE)


class Field(NamedTuple):
    """What a field may be.

    `rule`: the one that a value breaks which is none of `fits` (of a list: its length). A Program
    holds those in `held` all the same (None: any). `usual`: what stands for one that is not there.
    `need`: what a missing one is: refused, a finding, or nothing (""). `of`: the type of what is in
    a list, or the shape of objects.
    """

    type: type = int
    rule: str = ""
    fits: Container[Any] = ()
    held: Container[Any] | None = ()
    usual: Any = None
    need: Literal["refuse", "add", ""] = "refuse"
    of: Any = int


Shape = Mapping[str, Field]


class Entry:
    """An object of a file: `where` names it in messages, `at` is the place in the plan."""

    __slots__ = ("at", "out", "shape", "values", "where", "wrong")
    missing: str
    """The rule that a field breaks which is not there."""

    def __init__(
        self, values: dict[str, Any], where: str, at: At, out: Findings, shape: Shape
    ) -> None:
        self.values, self.where, self.at, self.out, self.shape = values, where, at, out, shape
        self.wrong = False  # whether anything was told of it

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @abstractmethod
    def value(self, key: str, field: Field) -> Any:
        """The value of a field that is there, or None where it cannot be read, with a finding."""

    def lack(self, key: str) -> str:
        """Words for a field that is not there."""
        return f"{self.where} has no {key!r}"

    def get(self, key: str) -> Any:
        """The field's value, what stands for it, or None for one that no Program holds."""
        field = self.shape[key]
        value = self.values.get(key)
        if field.type is not str or type(value) is not str:  # both formats have words as they are
            value = self.value(key, field) if key in self.values else None
        if value is None:
            if field.need and key not in self.values:
                self.tell(field.need, self.missing, self.lack(key))
            return field.usual
        if field.rule and (len(value) if field.type is list else value) not in field.fits:
            return self.judge(key, field, value)
        return value

    def judge(self, key: str, field: Field, value: Any) -> Any:
        """Tell of a value that does not fit; it is returned where a Program holds it."""
        name = f"{key} of {self.where}" if self.where else key
        if field.type is list:
            self.add(field.rule, f"{name} has {len(value)} entries")
            return value
        shown, hint = value, ""
        if field.type is str:
            shown = repr(value[:40])
            hint = did_you_mean(value[:40], field.fits)  # type: ignore[arg-type]
        held = field.held is None or value in field.held
        self.tell("add" if held else "refuse", field.rule, f"{name} is {shown}{hint}")
        return value if held else None

    def add(self, rule: str, words: str) -> None:
        """Tell of what the runtime minds."""
        self.tell("add", rule, words)

    def fault(self, rule: str, words: str) -> None:
        """Tell of what no run survives."""
        self.tell("fault", rule, words)

    def refuse(self, rule: str, words: str) -> None:
        """Tell of what no Program holds."""
        self.tell("refuse", rule, words)

    def tell(self, verb: Verb, rule: str, words: str) -> None:
        """Tell of a breach; `verb` is what `Findings` does with it."""
        self.wrong = True
        getattr(self.out, verb)(rule, words, **self.at)
