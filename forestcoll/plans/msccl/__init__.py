"""MSCCL XML, which msccl-executor-nccl and RCCL read: `loads` gives a Program, `dumps` a text.

spelling   the text as the runtimes' own parsers cut it, and as XML proper
text       the elements, for reading: the first error ends it
tags       the elements, for lint: every breach of the grammar is noted
read       elements -> Program
write      Program -> text
rules      what the format and its runtimes ask of a Program
lint       what the runtimes refuse, misread or do not survive: algo, blocks, steps
"""

from __future__ import annotations

from forestcoll.plans.msccl.read import loads
from forestcoll.plans.msccl.rules import MAX_FUSED
from forestcoll.plans.msccl.write import FORMAT_LIMITS, dumps

__all__ = ["FORMAT_LIMITS", "MAX_FUSED", "dumps", "loads"]
