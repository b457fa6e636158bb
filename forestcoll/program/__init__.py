"""The middle of the house: what a plan does on every rank, whatever wrote it and whatever runs it.

collective  what each collective is
program     programs: ranks, thread blocks, instructions
"""

from __future__ import annotations

from forestcoll.program.collective import BY_PLAN_WORD, EVERYONE, Collective, Phase
from forestcoll.program.program import (
    FABRIC,
    PACKETS,
    PUTS,
    Buffer,
    Channel,
    Instruction,
    Op,
    PacketShape,
    Pipeline,
    Program,
    Protocol,
    RankProgram,
    Ref,
    Step,
    Style,
    Switch,
    ThreadBlock,
)

__all__ = [
    "BY_PLAN_WORD",
    "EVERYONE",
    "FABRIC",
    "PACKETS",
    "PUTS",
    "Buffer",
    "Channel",
    "Collective",
    "Instruction",
    "Op",
    "PacketShape",
    "Phase",
    "Pipeline",
    "Program",
    "Protocol",
    "RankProgram",
    "Ref",
    "Step",
    "Style",
    "Switch",
    "ThreadBlock",
]
