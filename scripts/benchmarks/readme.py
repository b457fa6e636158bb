"""The README's table of results, and its picture: a fabric with one tree, and bars.

    python scripts/benchmarks/readme.py [--write]

For each case: what NCCL's way, rings with one a NIC, may reach on the links; the best of all
baselines; our plan, simulated at 1 GB under the worse of fair and fifo links, as `synthesize`
reports it, by the model of all commands; and the bound.
Baselines are taken at what the links allow them, which flatters them: their plans lose, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Literal

import forestcoll
from forestcoll.common.errors import ForestCollError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.program.targets import PlanFormat
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.solver import baselines
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit
from forestcoll.ui.view import svg

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "overview.svg"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEAD = (
    "| machine | collective | rings | best baseline | plan, simulated | bound "
    "| speed-up over rings | over best baseline | compile time |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Case:
    """A problem of the table, its plan for the target. `drawn`: the picture shows it."""

    words: str
    machine: str
    settings: tuple[tuple[str, str], ...]
    collective: Collective
    without: tuple[str, ...] = ()
    ranks: tuple[str, ...] | None = None
    drawn: bool = False
    target: Literal["mscclpp", "rccl"] = "mscclpp"


TWO = (("boxes", "2"),)
CASES = (
    Case("two DGX A100", "dgx-a100", TWO, Collective.ALLGATHER),
    Case(
        "two DGX A100, a NIC out",
        "dgx-a100",
        TWO,
        Collective.ALLREDUCE,
        ("box0/gpu3-fabric",),
        drawn=True,
    ),
    Case("two MI250 boxes", "mi250", TWO, Collective.ALLREDUCE, target="rccl"),
    Case(
        "8 of the 16 dies of two MI250 boxes each",
        "mi250",
        TWO,
        Collective.ALLREDUCE,
        (),
        ("box*/gpu[0-7]",),
    ),
    Case("two MI300X boxes, a NIC out", "mi300x", TWO, Collective.ALLREDUCE, ("box0/gpu0-fabric",)),
    Case("fat tree, 32 GPUs in 4 boxes", "fat-tree", (), Collective.ALLREDUCE),
)


@dataclass(frozen=True)
class Result:
    """What a case gives, algbw in GB/s. `best`: name and algbw of the best baseline."""

    case: Case
    ring: float
    rings: float
    best: tuple[str, float]
    plan: float
    bound: Fraction
    forest: Forest
    seconds: float


def measure(case: Case) -> Result:
    """Solve, lower for the target, simulate; and let every baseline try."""
    topology = edit(catalog.load(case.machine, dict(case.settings)), case.without)
    graph = CapacityGraph.from_topology(topology, ranks=case.ranks)
    form: PlanFormat = "mscclpp-json" if case.target == "mscclpp" else "msccl-xml"
    start = time.process_time()
    made = forestcoll.synthesize(
        topology,
        case.collective,
        ranks=case.ranks,
        target=case.target,
        formats=("forest", form),
    )
    took = time.process_time() - start
    plan = made.bands[form].least
    others = {}
    for name in baselines.BASELINES:
        try:
            others[name] = float(baselines.forests(name, graph, case.collective)[0].plain_algbw)
        except ForestCollError:  # it does not serve this machine
            continue
    best = max(others, key=lambda name: others[name])
    read = forest_file.loads(made.texts["forest"])
    return Result(
        case,
        others["ring"],
        others["rings"],
        (best, others[best]),
        plan,
        forestcoll.optimum(topology, case.collective, ranks=case.ranks).bound.algbw,
        read,
        took,
    )


def row(found: Result) -> str:
    """A line of the table; speed-ups are those of its figures."""
    name, best = found.best[0], round(found.best[1], 1)
    plan, rings = round(found.plan, 1), round(found.rings, 1)
    return (
        f"| {found.case.words} | {found.case.collective} | {rings:.1f} | {best:.1f} ({name}) "
        f"| {plan:.1f} | {float(found.bound):.1f} | {plan / rings:.2f} x "
        f"| {plan / best:.2f} x | {found.seconds:.1f} s |"
    )


def _outward(forest: Forest) -> int:
    """The first tree in which data leave the root."""
    return next(i for i, tree in enumerate(forest.trees) if tree.phase == "broadcast")


def picture(found: Result) -> str:
    """The fabric with one tree, and beside it what each way reaches."""
    forest = found.forest
    left = svg.draw(forest.graph, forest=forest, tree=_outward(forest), title=found.case.words)
    name, best = found.best
    bars = [
        ("one ring", found.ring, "other"),
        ("rings, one a NIC", found.rings, "other"),
        (f"best baseline: {name}", best, "other"),
        ("ForestColl's plan, simulated", found.plan, "ours"),
        ("bound: no schedule beats it", float(found.bound), "limit"),
    ]
    if name in ("ring", "rings"):
        del bars[2]
    full, top, step, x = 330.0, 96.0, 62.0, 660.0
    parts = [
        f'<text class="title" x="{x:g}" y="25">{escape(str(found.case.collective))}, 1 GB</text>',
        f'<text class="small" x="{x:g}" y="46">algorithm bandwidth, GB/s; '
        "one NIC of 16 has failed</text>",
    ]
    for place, (words, value, kind) in enumerate(bars):
        y, wide = top + place * step, full * value / float(found.bound)
        parts += [
            f'<text x="{x:g}" y="{y - 8:g}">{escape(words)}</text>',
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:.1f}" height="24" rx="3"/>',
            f'<text x="{x + wide + 8:.1f}" y="{y + 17:g}">{value:.1f}</text>',
        ]
    style = (
        "<style>.other{fill:#8797aa}.ours{fill:#1a7f64}.limit{fill:none;stroke:#57606a;"
        "stroke-dasharray:4 3}@media (prefers-color-scheme:dark){.ours{fill:#2ea98a}"
        ".limit{stroke:#9da7b1}}</style>"
    )
    head, rest = left.split("\n", 1)
    height = head.split('height="')[1].split('"')[0]
    words = f"{found.case.words}: one tree, and what rings, baselines and the plan reach"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 {height}" width="1060" '
            f'height="{height}" role="img" aria-label="{escape(words)}">',
            style,
            f'<rect class="page" width="1060" height="{height}"/>',
            head,
            rest.rstrip(),
            *parts,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Print the table; `--write` puts it into the README, and the picture beside the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into README.md and docs/")
    write = parser.parse_args().write
    found = []
    print(HEAD)
    for case in CASES:
        found.append(measure(case))
        print(row(found[-1]), flush=True)
    if write:
        table = "\n".join([HEAD, *map(row, found)])
        head, rest = README.read_text(encoding="utf-8").split(BEGIN)
        README.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
        drawn = next(result for result in found if result.case.drawn)
        PICTURE.write_text(picture(drawn), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
