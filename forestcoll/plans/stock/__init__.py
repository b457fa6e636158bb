"""What stock NCCL and RCCL take without a plan: trees in a variable, graphs in a file.

    trees    RCCL_TREES: an allreduce's trees in one box
    graph    NCCL_GRAPH_FILE: rings and chains by NICs

Both libraries accept nearly anything here and crash, hang or add wrongly later, so `lint` says what
they would not survive.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from forestcoll.plans.findings import Findings, Report, report
from forestcoll.plans.stock import graph, trees

Kind = Literal["rccl-trees", "nccl-graph"]
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Z][A-Z0-9_]*)=(.*?)[ \t]*$", re.MULTILINE)
WORDS: dict[Kind, str] = {"rccl-trees": "RCCL_TREES", "nccl-graph": "NCCL_GRAPH_FILE's"}
SAMPLE = 65_536
"""Characters of a file that are looked at to know what it is."""


def kind_of(text: str) -> Kind | None:
    """What the text is, if it is for a stock library."""
    head = text[:SAMPLE]
    if re.search(r"<graphs\b", head):
        return "nccl-graph"
    return "rccl-trees" if trees.VARIABLE in environment(head) else None


def environment(text: str) -> dict[str, str]:
    """The variables that a shell's file sets, their values without quotes."""
    values = {match[1]: match[2] for match in _ASSIGNMENT.finditer(text)}
    return {name: re.sub(r"^(['\"])(.*)\1$", r"\2", value) for name, value in values.items()}


class Reading(NamedTuple):
    """Everything that is wrong with a file, lines of what is right if nothing is, what it holds."""

    report: Report
    lines: list[str]
    trees: list[trees.Children]
    rings: list[list[int]]


def lint(text: str, source: str, kind: Kind, ranks: int | None = None) -> Reading:
    """What such a file is read as. `ranks`: those of the machine, where it is known."""
    out = Findings()
    if kind == "nccl-graph":
        graphs = graph.read(text, source, out)
        told = report(out, source, "nccl", False, 0)
        lines = [
            f"{graph.KINDS[number]}: {len(channels)} channels of {len(channels[0])} GPUs"
            for number, channels in graphs.items()
            if channels and number in graph.KINDS
        ]
        return Reading(told, lines if told.ok else [], [], graphs.get(graph.RING, []))
    rooted = trees.read(environment(text)[trees.VARIABLE], out, ranks)
    told = report(out, source, "rccl", False, 0)
    lines = [f"{len(rooted)} spanning trees over {len(rooted[0]) if rooted else 0} ranks"]
    return Reading(told, lines if told.ok else [], [*rooted], [])
