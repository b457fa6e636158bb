"""Fields of plan files: tables say what each may be, and one reading serves both formats.

An object of a file, a JSON one or an XML element, is an `Entry` with a `Shape`: a `Field` for each
name that the loaders read. `get` gives a value as its field says, and tells `Findings` of what is
missing, of another type, or none of the values that the runtimes take. How a value is written is
the format's (mscclpp/text.py, msccl/text.py); what several fields say together, its reader's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping
from typing import Any, Literal, NamedTuple

from forestcoll.common.errors import did_you_mean
from forestcoll.plans.findings import At, Findings

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
