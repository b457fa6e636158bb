"""What plans take of their runtimes' limits, and how large a machine may be, as markdown.

    python scripts/benchmarks/plan_limits.py [--ranks N] [--seconds S] [--only MACHINE] [--write]

Every machine of the catalogue grows until its plans of the exact optimum fit no more, then until
those of one tree per root do not either, or until it has more than N ranks, or a plan has taken
more than S seconds of processor time: the next larger one would take several times as much.
`--write` puts the tables between the marks of docs/reference/plan-limits.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forestcoll.common.errors import PlanError
from forestcoll.compile.formats import seat
from forestcoll.compile.search import SPREADING, search
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import Usage, hopeless, lower, usage
from forestcoll.program import BY_TREES, Collective
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, Target, sms_of
from forestcoll.schedule.forest import Forest
from forestcoll.solver import solve
from forestcoll.topology import catalog

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan-limits.md"
MARKS = "<!-- tables: scripts/benchmarks/plan_limits.py --write -->", "<!-- end of tables -->"
DETAIL = 72
"""Ranks up to which a machine has rows of its own."""
MACHINES: Mapping[str, list[dict[str, str]]] = {
    **{
        name: [{"boxes": str(2**k)} for k in range(6)]
        for name in ("dgx1-v100", "dgx-a100", "dgx-h100", "dgx-b200", "mi250", "mi300x")
    },
    "dgx2-v100": [{"boxes": str(2**k)} for k in range(5)],
    "gb200-nvl72": [{"boxes": "1"}, {"boxes": "2"}],
    "star": [{"gpus": str(n)} for n in (8, 16, 32, 36, 64, 72, 128)],
    "ring": [{"gpus": str(n)} for n in (8, 16, 32, 64, 128)],
    "hypercube": [{"dimension": str(d)} for d in range(3, 8)],
    "torus-2d": [{"x": str(x), "y": str(y)} for x, y in ((4, 4), (8, 4), (8, 8), (16, 8))],
    "torus-3d": [
        {"x": str(x), "y": str(y), "z": str(z)} for x, y, z in ((4, 4, 2), (4, 4, 4), (8, 4, 4))
    ],
    "rail": [{"boxes": str(2**k)} for k in range(1, 5)],
    "fat-tree": [{"leaves": str(x), "hosts": str(h)} for x, h in ((2, 1), (2, 2), (4, 2), (4, 4))],
    "dragonfly": [{"groups": "3", "routers": "2", "gpus": g} for g in ("1", "2", "4")]
    + [{"groups": "5", "routers": "4", "gpus": "4"}],
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that was lowered, or why not; `one`: of one tree per root."""

    ranks: int
    needs: Usage | str
    one: bool = False


def solved(name: str, settings: Mapping[str, str], collective: Collective, one: bool) -> Forest:
    """The optimum's forest, or the best of one tree per root."""
    topology = catalog.load(name, settings)
    graph = CapacityGraph.from_topology(topology)
    root = 0 if collective.has_root else None
    return solve(graph, collective, root, 1 if one else "auto", name=topology.name)


def tried(forest: Forest, target: Target, one: bool) -> Tried:
    """What the forest's plan takes of the target, or the words in which it is refused."""
    counts = hopeless(target, forest.collective, forest.n, forest.trees_per_root)
    if counts is not None:
        return Tried(forest.n, counts, one)
    try:
        seat({target.format: target}, forest.graph, forest.name, any_target=False)
        program = lower(forest, target)
        if forest.n <= DETAIL:
            program, _ = search(forest, target, program, SPREADING)
        return Tried(forest.n, usage(program), one)
    except PlanError as error:
        return Tried(forest.n, short(str(error)), one)


def short(refusal: str) -> str:
    """`"72 thread blocks, rccl holds 64"` of a refusal's text."""
    found = re.search(r"needs? (.*? holds (?:\d+)?)|(\d+ ranks a node)", refusal)
    return (found[1] or found[2] if found else refusal.split(": ", 1)[-1]).strip()


def grow(
    name: str, collective: Collective, most: int, seconds: float
) -> Iterator[tuple[Forest, Target, Tried]]:
    """All that is tried of a machine, size by size, for every target as long as it fits."""
    fitting = {target.name: target for target in (MSCCLPP, MSCCL, RCCL)}
    for settings in MACHINES[name]:
        forests: dict[bool, Forest] = {}
        for key, target in list(fitting.items()):
            for one in (False, True):
                if one not in forests:
                    forests[one] = solved(name, settings, collective, one)
                forest = forests[one]
                if forest.n > most:
                    return
                began = time.process_time()
                found = tried(forest, target.on(sms_of(forest.name)), one)
                yield forest, target, found
                if time.process_time() - began > seconds:
                    fitting.pop(key, None)
                if isinstance(found.needs, Usage):
                    break
                if forest.trees_per_root == 1 or one:
                    fitting.pop(key, None)
                    break


def cell(found: Tried | None) -> str:
    """`"8 (6) / 16 / 16 / 0.13, x2"`: thread blocks, steps, channels, scratch, instances."""
    if found is None or isinstance(found.needs, str):
        return "-"
    needs = found.needs
    busy = f" ({needs.busy})" if needs.busy < needs.thread_blocks else ""
    scratch = f"{float(needs.scratch):.2f}" if needs.scratch else "0"
    text = f"{needs.thread_blocks}{busy} / {needs.steps} / {needs.channels} / {scratch}"
    text += f", x{needs.instances}" if needs.instances > 1 else ""
    return f"{text}, one tree per root" if found.one else text


def tables(machines: list[str], most: int, seconds: float) -> tuple[list[str], list[str]]:
    """The rows of both tables: what plans take, and how far they go."""
    rows: list[str] = []
    ends: list[str] = []
    for name in machines:
        own: list[tuple[int, str]] = []
        for collective in BY_TREES:
            sizes: dict[int, dict[str, Tried]] = {}
            for forest, target, found in grow(name, collective, most, seconds):
                sizes.setdefault(forest.n, {})[target.name] = found
            for ranks, by in sizes.items():
                if ranks <= DETAIL:
                    cells = " | ".join(cell(by.get(t)) for t in ("mscclpp", "msccl", "rccl"))
                    row = f"| {name} | {ranks} | {collective} | {cells} |"
                    own.append((ranks, row))
            far = " | ".join(reach(sizes, t) for t in ("mscclpp", "msccl", "rccl"))
            ends.append(f"| {name} | {collective} | {far} |")
            print(ends[-1], file=sys.stderr, flush=True)
        rows += [row for _, row in sorted(own, key=lambda pair: pair[0])]
    return rows, ends


def reach(sizes: Mapping[int, Mapping[str, Tried]], target: str) -> str:
    """How many ranks the target's plans go to, and what comes first beyond."""
    by = [found for some in sizes.values() if (found := some.get(target)) is not None]
    fit = [found for found in by if isinstance(found.needs, Usage)]
    words = f"{max(f.ranks for f in fit)}" if fit else "none"
    if any(found.one for found in fit):
        whole = [f.ranks for f in fit if not f.one]
        words = f"{max(whole) if whole else 'none'}; {words} with one tree per root"
    refused = [found for found in by if isinstance(found.needs, str)]
    if not refused:
        return f"{words} or more"
    return f"{words}; then {refused[-1].ranks}: {refused[-1].needs}"


def page(rows: list[str], ends: list[str]) -> str:
    """Both tables as markdown."""
    limits = [
        (t.name, f"{t.thread_blocks} / {t.steps} / {t.channels}") for t in (MSCCLPP, MSCCL, RCCL)
    ]
    heads = " | ".join(f"{name} (limits {limit})" for name, limit in limits)
    return "\n".join(
        [
            "### How far",
            "",
            f"| machine | collective | {' | '.join(name for name, _ in limits)} |",
            "|---|---|---|---|---|",
            *ends,
            "",
            "### What plans take",
            "",
            f"| machine | ranks | collective | {heads} |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=128, help="largest machine that is tried")
    parser.add_argument("--seconds", type=float, default=20, help="longest a plan may take")
    parser.add_argument("--only", action="append", choices=[*MACHINES], help="machines to try")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    chosen = parser.parse_args()
    text = page(*tables(chosen.only or [*MACHINES], chosen.ranks, chosen.seconds))
    if not chosen.write:
        print(text)
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
