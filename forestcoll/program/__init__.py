"""The middle of the house: what a plan does on every rank, whatever wrote it and whatever runs it.

collective  what each collective is
ops         what each operation is
program     programs: ranks, thread blocks, instructions
"""

from __future__ import annotations

from forestcoll.program.collective import BY_PLAN_WORD, BY_TREES, EVERYONE, Collective, Phase
from forestcoll.program.ops import (
    ADDS,
    BY_JSON,
    BY_XML,
    DATA,
    FABRIC,
    FUSED,
    OPERATIONS,
    PACKETS,
    PUTS,
    RECEIVES,
    REDUCTIONS,
    SEMAPHORES,
    SENDS,
    SIGNALS,
    SPREADS,
    SYNCS,
    WAITS,
    Op,
    Operation,
)
from forestcoll.program.program import (
    Buffer,
    Channel,
    Instruction,
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
    "ADDS",
    "BY_JSON",
    "BY_PLAN_WORD",
    "BY_TREES",
    "BY_XML",
    "DATA",
    "EVERYONE",
    "FABRIC",
    "FUSED",
    "OPERATIONS",
    "PACKETS",
    "PUTS",
    "RECEIVES",
    "REDUCTIONS",
    "SEMAPHORES",
    "SENDS",
    "SIGNALS",
    "SPREADS",
    "SYNCS",
    "WAITS",
    "Buffer",
    "Channel",
    "Collective",
    "Instruction",
    "Op",
    "Operation",
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
