"""What sizes the default plans of the catalogue serve, and at what share of the optimum.

    python scripts/benchmarks/sizes.py [--only MACHINE] [--most RANKS] [--write]

For each machine (its default, and two boxes; some with numbers of ranks that are no power of two),
collective and target: the plans that `synthesize` would write, and whether they serve 1 MiB, 16 MiB
and 1 GiB in the unit that people ask in: the data, or a rank's part where ranks deal it out and
their number is no power of two. `--write` puts the tables between the marks of
docs/reference/plan-sizes.md.
The exit code is 1 where some plan is below the optimum by over 1 %, or does not serve these sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from catalogue import machines

from forestcoll.common.clock import Clock
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.choose import ENOUGH, Chooser, units_of
from forestcoll.compile.formats import Format, seat, targets_of
from forestcoll.compile.problem import Problem
from forestcoll.compile.request import Request
from forestcoll.program import BY_TREES, Collective
from forestcoll.program.sizes import Sizes, is_power
from forestcoll.program.targets import MSCCL, TargetName, sms_of
from forestcoll.topology import Topology, catalog

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan-sizes.md"
MARKS = "<!-- tables: scripts/benchmarks/sizes.py --write -->", "<!-- end of tables -->"
WANTED = (1 << 20, 16 << 20, 1 << 30)
TARGETS: tuple[TargetName, ...] = ("mscclpp", "msccl", "rccl", "any")
NONE = "-"
"""Where the runtime does not take the ranks as nodes hold them."""
UNEVEN: Sequence[tuple[str, Mapping[str, str]]] = (
    ("star", {"gpus": "9"}),
    ("dgx-a100", {"boxes": "3"}),
    ("torus-3d", {"x": "3", "y": "3", "z": "3"}),
    ("rail", {"boxes": "5"}),
    ("mi300x", {"boxes": "6"}),
    ("gb200-nvl72", {}),
)
"""Machines whose number of ranks is no power of two."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the default plans of one problem serve. `refused`: there are none, in these words."""

    machine: str
    ranks: int
    collective: Collective
    target: str
    share: Fraction = Fraction(0)  # of the optimum
    units: int = 0  # parts into which the forest cuts the data, or a rank's part of it
    missed: tuple[int, ...] = ()  # of WANTED
    refused: str = ""
    notes: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        """Whether all that is wanted is served at ENOUGH of the optimum."""
        wanted = not self.missed and self.share >= ENOUGH
        return self.refused == NONE or (not self.refused and wanted)


def serve(topology: Topology, collective: Collective, target: TargetName) -> Served:
    """What `synthesize` would take; nothing is written or verified."""
    problem = Problem.of(topology, collective)
    best = problem.optimum()
    formats: tuple[Format, ...] = ("msccl-xml", "mscclpp-json")
    if target != "any":
        formats = ("mscclpp-json",) if target == "mscclpp" else ("msccl-xml",)
    targets = targets_of(formats, target, sms_of(topology.name))
    key = (topology.name, len(problem.graph.ranks), collective, target)
    try:
        targets, _ = seat(targets, problem.graph, topology.name, target == "any")
    except PlanError:
        return Served(*key, refused=NONE)
    try:
        with contextlib.suppress(PlanError):
            return _served(key, Chooser(problem, targets, Request(), best, Clock()))
        if target == "any":  # as `synthesize` does: without RCCL
            targets["msccl-xml"] = MSCCL.on(sms_of(topology.name))
        return _served(key, Chooser(problem, targets, Request(), best, Clock()))
    except (PlanError, UnsupportedError) as error:
        return Served(*key, refused=str(error))


def _served(key: tuple[str, int, Collective, str], chooser: Chooser) -> Served:
    choice = chooser.choose()
    sizes = [Sizes.of(program) for program in choice.programs.values()]
    parts = sizes[0].parts
    unit = 1 if is_power(parts) else parts
    missed = tuple(w for w in WANTED if not all(s.serves(w * unit) for s in sizes))
    share = choice.forest.plain_algbw / chooser.best.algbw
    return Served(
        *key,
        share=share,
        units=units_of(choice.forest, tuple(chooser.targets.values())),
        missed=missed,
        notes=tuple(choice.notes),
    )


def rows(only: Sequence[str], most: int) -> Iterator[Served]:
    """Every problem, machine by machine."""
    for name, settings in (*machines(most), *UNEVEN):
        if only and name not in only:
            continue
        topology = catalog.load(name, dict(settings))
        for collective in BY_TREES:
            for target in TARGETS:
                yield serve(topology, collective, target)


def cell(found: Served) -> str:
    """`"99.79 %, 1/16"`, with what is not as it should be in bold."""
    if found.refused == NONE:
        return NONE
    if found.refused:
        return f"**{found.refused.split(': ', 1)[-1].split(';')[0]}**"
    text = f"{float(found.share * 10_000 // 1) / 100:g} %, 1/{found.units}"
    return text if found.fine else f"**{text}**"


def page(found: Sequence[Served]) -> str:
    """Both tables as markdown: the exceptions, and all."""
    lines = ["### Exceptions", ""]
    wrong = [f for f in found if not f.fine]
    if wrong:
        lines += ["| machine | ranks | collective | target | why |", "|---|---|---|---|---|"]
        for f in wrong:
            why = f.refused or "; ".join(f.notes)
            lines.append(f"| {f.machine} | {f.ranks} | {f.collective} | {f.target} | {why} |")
    else:
        lines.append("None.")
    lines += ["", "### All", "", f"| machine | ranks | collective | {' | '.join(TARGETS)} |"]
    lines.append("|---" * (3 + len(TARGETS)) + "|")
    table: dict[tuple[str, int, Collective], dict[str, str]] = {}
    for f in found:
        table.setdefault((f.machine, f.ranks, f.collective), {})[f.target] = cell(f)
    for (machine, ranks, collective), cells in table.items():
        text = " | ".join(cells[target] for target in TARGETS)
        lines.append(f"| {machine} | {ranks} | {collective} | {text} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="machines to try")
    parser.add_argument("--most", type=int, default=64, help="largest machine of the catalogue")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    chosen = parser.parse_args()
    found = []
    for served in rows(chosen.only, chosen.most):
        found.append(served)
        text = f"{served.machine} {served.collective} {served.target}: {cell(served)}"
        print(text, file=sys.stderr, flush=True)
    text = page(found)
    if chosen.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        _, after = rest.split(MARKS[1])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}", encoding="utf-8")
    else:
        print(text)
    return 0 if all(served.fine or served.refused for served in found) else 1


if __name__ == "__main__":
    sys.exit(main())
