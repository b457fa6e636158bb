"""MSCCL++ execution plans (JSON): `loads` gives a Program, `dumps` a text.

shapes     strict JSON, the fields of its objects, and what the runtime takes in them
read       JSON -> Program, and all that the runtime refuses, misreads or does not survive
ops        the same of what thread blocks do
write      Program -> JSON, and what the format and its runtime ask of it: packets, switches
stand_ins  the same plan without what no Program holds
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forestcoll.plans.mscclpp.read import loads, read
from forestcoll.plans.mscclpp.stand_ins import stand_in
from forestcoll.plans.mscclpp.write import FORMAT_LIMITS, dumps, largest_size

if TYPE_CHECKING:
    from forestcoll.program import Program

__all__ = ["FORMAT_LIMITS", "dumps", "largest_size", "loads", "offer", "read", "stand_in"]


def offer(text: str, program: Program) -> tuple[str, bool, bool]:
    """(name, whether for calls in place, out of place) under which the runtime offers the file.

    It knows no other name than the file's, and takes each plan for one kind of calls.
    """
    document = json.loads(text)
    return document["name"], document["inplace"], not document["inplace"]
