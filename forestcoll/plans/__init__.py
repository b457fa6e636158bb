"""Plan files of real runtimes: `read_plan` and `loads` give a Program, `dumps` gives a file's text.

    msccl_xml      MSCCL XML, read by msccl-executor-nccl and RCCL
    mscclpp_json   MSCCL++ execution plans

Writing and reading back gives an equal Program. Reading never crashes, hangs or runs away on
anybody's bytes: it ends in a Program or in a ForestCollError.
"""

from __future__ import annotations

import stat
from os import PathLike
from typing import TYPE_CHECKING, Literal

from forestcoll import arguments
from forestcoll.errors import PlanError
from forestcoll.input_limits import PLAN_BYTES

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.targets import Target

Format = Literal["msccl-xml", "mscclpp-json"]

__all__ = ["Format", "detect", "dumps", "loads", "read_plan"]


def read_plan(path: str | PathLike[str]) -> Program:
    """The Program in a plan file, whichever format it has.

    Raises PlanError where the file cannot be read, is larger than 256 MiB, or is no plan, and
    UnsupportedError where the plan asks for something this version cannot do.
    """
    path = arguments.path("path", path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PlanError(f"{path}: not a regular file; give the path of a plan file")
        with path.open("rb") as file:
            data = file.read(PLAN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path}: cannot be read: {reason}") from None
    if len(data) > PLAN_BYTES:
        raise PlanError(f"{path}: larger than {PLAN_BYTES // 2**20} MiB {PLAN_BYTES.note}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not a text file: byte {error.start} is not UTF-8") from None
    return loads(text, str(path))


def loads(text: str, source: str, format: Format | None = None) -> Program:
    """The Program in a plan's text; `source` names it in errors, `format` is found if None."""
    if len(text) > PLAN_BYTES:
        raise PlanError(f"{source}: larger than {PLAN_BYTES // 2**20} MiB {PLAN_BYTES.note}")
    if (format or detect(text, source)) == "msccl-xml":
        from forestcoll.plans import msccl_xml

        return msccl_xml.loads(text, source)
    from forestcoll.plans import mscclpp_json

    return mscclpp_json.loads(text, source)


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
    if format == "msccl-xml":
        from forestcoll.plans import msccl_xml

        return msccl_xml.dumps(program, target)
    from forestcoll.plans import mscclpp_json

    return mscclpp_json.dumps(program, target, in_place=in_place)


def detect(text: str, source: str) -> Format:
    """The format of a plan's text, by its first sign; PlanError where it is neither."""
    # A plan starts with its first sign; only a file of other kind has much in front of it.
    first = text[:65536].lstrip("\ufeff \t\r\n")[:1]
    if first == "<":
        return "msccl-xml"
    if first == "{":
        return "mscclpp-json"
    if not first:
        raise PlanError(f"{source}: the file is empty; a plan is MSCCL XML or MSCCL++ JSON")
    raise PlanError(
        f"{source}: starts with {first!r}, so it is neither MSCCL XML (<algo ...) nor MSCCL++ "
        f"JSON ({{ ...)"
    )
