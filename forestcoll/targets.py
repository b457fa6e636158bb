"""What the runtimes can hold: the limits that lowering obeys and linting checks.

Sources: Azure/msccl-executor-nccl c6f6b36 (msccl_struct.h, msccl_parser.cc), ROCm/rccl 0cbce2a
(msccl_struct.h), microsoft/mscclpp 1f5f065d (execution_common.hpp, executor.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forestcoll.program import Style


@dataclass(frozen=True, slots=True)
class Target:
    """Limits of one runtime."""

    name: str
    format: Literal["msccl-xml", "mscclpp-json"]
    style: Style
    thread_blocks: int  # per rank
    steps: int  # per thread block (MSCCL++: pipeline and inner operations counted alike)
    channels: int  # fifo: channel numbers; onesided: channels of one kind in a thread block
    count: int  # largest count of chunks in one step
    dependency_blocks: int  # thread blocks that may be named in a dependency
    fused: bool  # rcs, rrs, rrc, rrcs run


MSCCL = Target("msccl", "msccl-xml", "fifo", 108, 64, 32, 71, 128, True)
RCCL = Target("rccl", "msccl-xml", "fifo", 64, 64, 32, 71, 64, False)
MSCCLPP = Target("mscclpp", "mscclpp-json", "onesided", 108, 64, 16, 2**31 - 1, 108, False)
TARGETS = {t.name: t for t in (MSCCL, RCCL, MSCCLPP)}
