"""MSCCL++ execution plans (JSON): `loads` gives a Program, `dumps` a text.

text       strict JSON, for reading: the first error ends it
fields     the same fields, for lint: whatever is not there is noted
header     what stands before the ranks
read       JSON -> Program
write      Program -> JSON
rules      what the format and its runtime ask of a Program: packets, switches
lint       what the runtime refuses, misreads or does not survive: ops, operands
stand_ins  the same plan without what no Program holds
"""

from __future__ import annotations

from forestcoll.plans.mscclpp.read import loads
from forestcoll.plans.mscclpp.rules import largest_size
from forestcoll.plans.mscclpp.write import FORMAT_LIMITS, dumps

__all__ = ["FORMAT_LIMITS", "dumps", "largest_size", "loads"]
