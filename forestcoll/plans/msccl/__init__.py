"""MSCCL XML, which msccl-executor-nccl and RCCL read: `loads` gives a Program, `dumps` a text.

spelling   the text as the runtimes' own parsers cut it, and as XML proper
elements   the elements one after the other, and their integers: what both of these read
text       the elements, for reading: the first error ends it
tags       the elements, for lint: every breach of the grammar is noted
read       elements -> Program
write      Program -> text
rules      what the format and its runtimes ask of a Program
lint       what the runtimes refuse, misread or do not survive: algo, blocks, steps
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.plans.msccl.read import loads
from forestcoll.plans.msccl.rules import MAX_FUSED
from forestcoll.plans.msccl.write import FORMAT_LIMITS, dumps

if TYPE_CHECKING:
    from forestcoll.program import Program

__all__ = ["FORMAT_LIMITS", "MAX_FUSED", "dumps", "largest_size", "loads", "offer", "stand_in"]


def largest_size(program: Program) -> int:
    """Bytes that the device can count, whatever a file says; 0: no end of its own."""
    return 0


def offer(text: str, program: Program) -> tuple[str, bool, bool]:
    """(name, whether for calls in place, out of place) under which the runtimes offer the file."""
    return program.name, program.in_place, program.out_of_place


def stand_in(text: str) -> tuple[str, list[str]]:
    """A plan that a Program holds in place of one that none does: there is none."""
    return text, []
