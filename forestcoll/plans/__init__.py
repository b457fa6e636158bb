"""Formats of plan files: `read_plan` and `loads` give a Program, `dumps` gives a file's text.

    msccl      MSCCL XML, read by msccl-executor-nccl and RCCL
    mscclpp    MSCCL++ execution plans
    rules      what both ask of a Program
    findings   what a reading came upon: all of it, or the first error; fields of files by tables
    lint       everything that is wrong with a plan for a runtime (rule_catalogue: its rules)

A format is a row of `FORMATS` and a package with `read`, `loads`, `dumps`, `largest_size`, `offer`
and `stand_in`. `read` is the one reading: `loads` raises at its first error, lint goes on. Writing
and reading back gives an equal Program. Reading never crashes, hangs or runs away on anybody's
bytes: it ends in a Program or in a ForestCollError.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from forestcoll.common import arguments
from forestcoll.common.errors import PlanError
from forestcoll.common.garbage_collection import collect_rarely
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.program.targets import PlanFormat

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.program.targets import Target

Format = PlanFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """What is to be known of a format without reading or writing it.

    `sign`: the first character of its texts. `unit`: what the sizes that a plan serves are counted
    in. `both_places`: whether one file serves calls in place and out of place.
    """

    title: str
    home: str  # the package that reads and writes it
    suffix: str  # of the files that we write
    sign: str
    begins: str
    collective: str  # a pattern for the word of the collective
    operations: tuple[str, ...]  # that the runtimes do with its plans
    unit: Literal["elements", "bytes"]
    both_places: bool
    last_minimum: int  # the largest smallest size that the runtimes read; 0: any
    by_name: bool  # whether the runtimes take plans of one name for one plan
    lookup: str  # which plan answers a call
    odd_size: str  # what the runtime does with a size that the plan does not serve


FORMATS: dict[Format, FileFormat] = {
    "msccl-xml": FileFormat(
        title="MSCCL XML",
        home="forestcoll.plans.msccl",
        suffix=".msccl.xml",
        sign="<",
        begins="<algo ...",
        collective=r'<algo\b[^<>]*?\bcoll="([^"]*)"',
        operations=("sum", "prod", "min", "max"),
        unit="elements",
        both_places=True,
        last_minimum=0,
        by_name=False,
        lookup="the first file, by name, whose min_bytes and max_bytes hold the size and whose "
        "multiple divides the number of elements; collective, number of ranks and in or out of "
        "place count, root, type and topology do not. Where there is none the runtime uses its own "
        "algorithm",
        odd_size="uses its own algorithm",
    ),
    "mscclpp-json": FileFormat(
        title="MSCCL++ JSON",
        home="forestcoll.plans.mscclpp",
        suffix=".mscclpp.json",
        sign="{",
        begins="{ ...",
        collective=r'"collective"\s*:\s*"([^"]*)"',
        operations=("sum",),
        unit="bytes",
        both_places=False,
        last_minimum=2**31 - 1,
        by_name=True,
        lookup="a registered plan whose min_bytes and max_bytes hold the size; collective, number "
        "of ranks, ranks a node and in or out of place count, operation, type and multiple do not: "
        "the call fails where the size is not of the multiple, and always adds up",
        odd_size="refuses the call",
    ),
}

__all__ = ["FORMATS", "FileFormat", "Format", "detect", "dumps", "loads", "read_plan"]


def read_plan(path: str | PathLike[str]) -> Program:
    """The Program in a plan file, whichever format it has.

    Raises PlanError where the file cannot be read, is larger than 256 MiB, or is no plan, and
    UnsupportedError where the plan asks for something this version cannot do.
    """
    path = arguments.path("path", path)
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        regular = True  # reading says what is wrong
    if not regular:
        raise PlanError(f"{path}: not a regular file; give the path of a plan file")
    text = read_text(path, PLAN_BYTES, PlanError)
    return loads(text, str(path))


def loads(text: str, source: str, format: Format | None = None) -> Program:
    """The Program in a plan's text; `source` names it in errors, `format` is found if None."""
    if len(text) > PLAN_BYTES:
        raise PlanError(f"{source}: larger than {PLAN_BYTES // 2**20} MiB {PLAN_BYTES.note}")
    with collect_rarely():
        program: Program = home_of(format or detect(text, source)).loads(text, source)
    return program


def dumps(
    program: Program,
    format: Format,
    target: Target | None = None,
    *,
    in_place: bool | None = None,
) -> str:
    """The plan's text in `format`; PlanError where `target` (or the format) cannot hold it.

    `in_place`: the calls that MSCCL++ JSON is for, see there; MSCCL XML is for all that are right.
    """
    text: str = home_of(format).dumps(program, target, in_place=in_place)
    return text


def home_of(format: Format, module: str = "") -> Any:
    """The package of a format, or one of its modules."""
    return import_module(FORMATS[format].home + module)


def detect(text: str, source: str) -> Format:
    """The format of a plan's text, by its first sign; PlanError where it is neither."""
    # A plan starts with its first sign; only a file of other kind has much in front of it.
    first = text[:65536].lstrip("\ufeff \t\r\n")[:1]
    for name, form in FORMATS.items():
        if first == form.sign:
            return name
    if not first:
        kinds = " or ".join(form.title for form in FORMATS.values())
        raise PlanError(f"{source}: the file is empty; a plan is {kinds}")
    kinds = " nor ".join(f"{form.title} ({form.begins})" for form in FORMATS.values())
    raise PlanError(f"{source}: starts with {first!r}, so it is neither {kinds}")
