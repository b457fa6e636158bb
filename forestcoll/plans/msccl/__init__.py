"""MSCCL XML, which msccl-executor-nccl and RCCL read: `loads` gives a Program, `dumps` a text.

text    the elements with the tables of their attributes, and what the runtimes' own parsers would
        cut otherwise
read    elements -> Program, and all that the runtimes refuse, misread or do not survive
steps   the same of what thread blocks do
write   Program -> text, and what the format and its runtimes ask of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.plans.msccl.read import loads, read
from forestcoll.plans.msccl.write import FORMAT_LIMITS, MAX_FUSED, dumps

if TYPE_CHECKING:
    from forestcoll.program import Program

__all__ = [
    "FORMAT_LIMITS",
    "MAX_FUSED",
    "dumps",
    "largest_size",
    "loads",
    "offer",
    "read",
    "stand_in",
]


def largest_size(program: Program) -> int:
    """Bytes that the device can count, whatever a file says; 0: no end of its own."""
    return 0


def offer(text: str, program: Program) -> tuple[str, bool, bool]:
    """(name, whether for calls in place, out of place) under which the runtimes offer the file."""
    return program.name, program.in_place, program.out_of_place


def stand_in(text: str) -> tuple[str, list[str]]:
    """A plan that a Program holds in place of one that none does: there is none."""
    return text, []
