"""Plans on fabrics of network namespaces, beside rings, trees, direct sending and gloo's own.

    scripts/lab [--only FABRIC] [--seconds S] [--rate MBIT] [--engine cpu|torch] [--write]

Exit 1 where a plan reaches less than 85 % of what theory says, where it beats a ring or gloo by a
factor that is more than 15 % off the theory's, where an all-to-all is less than 1.3 times as fast
as sending directly, or where an element is wrong. `--write` puts the
tables between the marks of docs/reference/lab.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forestcoll.common.errors import ForestCollError
from forestcoll.execute.lab.measurement import Matrix, Report, Wishes, compare, make_plan
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import Topology, catalog
from forestcoll.topology.edit import edit, parse_scale
from forestcoll.ui.cli.compare import plan_for_lab
from forestcoll.ui.report import words

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lab.md"
MARKS = "<!-- tables: scripts/lab --write -->", "<!-- end of tables -->"
SHARE = 0.85
"""Of the prediction that a plan has to reach."""
OFF = 0.15
"""By how much its lead may differ from the theory's."""
LEADS = ("ring", "rings", "gloo")
"""Schedules whose lead is judged."""
DIRECT = ("direct", "gloo")
AHEAD = 1.3
"""By how much an all-to-all has to be ahead of sending directly."""
EXPERTS = 32
"""Of a skewed exchange, in Zipf's proportions."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A topology of the catalogue, perhaps with slower links."""

    what: str
    topology: str
    settings: Mapping[str, str]
    scale: Sequence[str] = ()
    without: Sequence[str] = ()
    collective: Literal["allreduce", "alltoall", "alltoallv"] = "allreduce"
    rate: float = 0.0

    @property
    def options(self) -> str:
        """Of `forestcoll lab`."""
        given = [f"--set {name}={value}" for name, value in self.settings.items()]
        given += [f"--scale {link}" for link in self.scale]
        given += [f"--without {link}" for link in self.without]
        if self.collective != "allreduce":
            given.append(f"-c {self.collective}")
        if self.collective == "alltoallv":
            given.append("--matrix bytes.txt")
        if self.rate:
            given.append(f"--rate {self.rate:g}")
        return " ".join(["-t", self.topology, *given])

    def load(self) -> Topology:
        """The topology, with what is out and what is slower."""
        known = catalog.load(self.topology, dict(self.settings))
        if self.scale or self.without:
            known = edit(known, self.without, [parse_scale(text) for text in self.scale])
        return known


RAIL = {"boxes": "2", "gpus": "4", "rails": "4"}
FABRICS = {
    "two-boxes": Fabric(
        "Two boxes of 4 GPUs, 450 GB/s inside, 50 GB/s per GPU between them", "rail", RAIL
    ),
    "mi250": Fabric("One MI250 box: 16 dies in a mesh", "mi250", {}),
    "slowed": Fabric(
        "The two boxes, one GPU's link to its rail at a quarter",
        "rail",
        RAIL,
        ("box0/gpu0-rail0=1/4",),
    ),
    "mi250-2": Fabric("Two MI250 boxes: 32 dies", "mi250", {"boxes": "2"}),
    "nic-out": Fabric(
        "Two DGX A100 boxes, a NIC out", "dgx-a100", {"boxes": "2"}, without=("box0/gpu0-fabric",)
    ),
    "dgx-a100": Fabric("Two DGX A100 boxes: 16 GPUs", "dgx-a100", {"boxes": "2"}),
    "alltoall-mi250": Fabric(
        "All-to-all on one MI250 box", "mi250", {}, collective="alltoall", rate=240.0
    ),
    "alltoall-nic-out": Fabric(
        "All-to-all on two DGX A100 boxes, a NIC out",
        "dgx-a100",
        {"boxes": "2"},
        without=("box0/gpu0-fabric",),
        collective="alltoall",
        rate=240.0,
    ),
    "alltoallv-skewed": Fabric(
        "A skewed exchange of experts, static plan, on the two boxes of 4",
        "rail",
        RAIL,
        collective="alltoallv",
    ),
}
DEFAULT = tuple(name for name in FABRICS if name != "dgx-a100")


def measure(fabric: Fabric, seconds: float, rate: float, engine: str) -> Report:
    """Make a plan for the fabric, and run it and all others there."""
    known = fabric.load()
    graph = CapacityGraph.from_topology(known)
    wishes = Wishes(
        rate or fabric.rate,
        seconds,
        engine=engine,
        progress=lambda name, _: print(f"{known.name}: {name}", file=sys.stderr, flush=True),
    )
    if fabric.collective == "allreduce":
        program, forest = plan_for_lab(known)
        return compare(graph, program, forest, name=known.name, wishes=wishes)
    matrix = skewed(len(graph.ranks)) if fabric.collective == "alltoallv" else None
    plan, paths = make_plan(known, ragged=matrix is not None)
    return compare(graph, plan, paths, name=known.name, wishes=wishes, matrix=matrix)


def skewed(n: int) -> Matrix:
    """Bytes from rank to rank: the experts of a layer, liked in Zipf's proportions.

    `scripts/moe.py --matrix` writes those of a real run.
    """
    dice = random.Random(1)
    order = dice.sample(range(EXPERTS), EXPERTS)
    rows = []
    for _ in range(n):
        row = [0] * n
        for expert, place in enumerate(order):
            row[expert * n // EXPERTS] += int(1_000_000 / (1 + place) * dice.uniform(0.8, 1.2))
        rows.append(tuple(row))
    return tuple(rows)


def misses(report: Report) -> Iterator[str]:
    """What is not as it has to be."""
    plan = report.rows[0]
    if plan.share < SHARE:
        yield f"{report.name}: {plan.share:.1%} of the prediction, less than {SHARE:.0%}"
    for row in report.rows:
        theory, measured = report.ratios(row)
        if report.collective.transposes and row.name in DIRECT and measured < AHEAD:
            yield (
                f"{report.name}: {measured:.2f} times as fast as {row.name}, which is less than "
                f"{AHEAD}"
            )
        if row.wrong:
            yield f"{report.name}: {row.name} left {row.wrong} wrong elements"
        if row.name in LEADS and abs(measured / theory - 1) > OFF:
            yield (
                f"{report.name}: {measured:.2f} times as fast as {row.name}, not {theory:.2f}: "
                f"more than {OFF:.0%} off"
            )


def table(fabric: Fabric, report: Report) -> str:
    """One fabric as markdown."""
    lines = [
        f"### {fabric.what}",
        "",
        f"`forestcoll lab {fabric.options}`: {report.ranks} ranks, "
        f"{float(report.scale) / 1e6:.3g} Mbit/s for each GB/s.",
        "",
        "| schedule | GB/s | predicted MB/s | measured MB/s | of it | plan is faster "
        "| by theory | off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        theory, measured = report.ratios(row)
        lead = f"{measured:.2f} x | {theory:.2f} x | {100 * (measured / theory - 1):+.1f} %"
        lines.append(
            f"| {row.name} | {words.decimal(row.algbw)} | {row.predicted / 1e6:.3f} "
            f"| {row.measured / 1e6:.3f} | {100 * row.share:.1f} % "
            f"| {lead if row is not report.rows[0] else ' | | '} |"
        )
    return "\n".join([*lines, *(f"\n{note}" for note in report.notes), ""])


def machine() -> str:
    """When and on what, with how many others at work."""
    cores = len(os.sched_getaffinity(0))
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{today}, {platform.machine()}, {cores} cores, Linux {platform.release().split('-')[0]}, "
        f"load {loads} at the end of it."
    )


def main() -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[*FABRICS], help="fabrics to build")
    parser.add_argument("--seconds", type=float, default=20.0, help="that a schedule should take")
    parser.add_argument("--rate", type=float, default=0.0, help="Mbit/s into all ranks together")
    parser.add_argument("--engine", choices=("cpu", "torch"), default="cpu")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    chosen = parser.parse_args()
    parts, missed = [], list[str]()
    for name in chosen.only or DEFAULT:
        report = measure(FABRICS[name], chosen.seconds, chosen.rate, chosen.engine)
        parts.append(table(FABRICS[name], report))
        missed += misses(report)
    text = "\n".join([machine(), "", *parts])
    if chosen.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        _, after = rest.split(MARKS[1])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}", encoding="utf-8")
    else:
        print(text)
    for line in missed:
        print(f"lab.py: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ForestCollError as error:
        sys.exit(f"lab.py: {error}")
