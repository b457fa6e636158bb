"""Our plan sets beside every baseline, over the catalogue up to 32 ranks: the cells that are lost.

    python scripts/benchmarks/never_second.py [--only MACHINE] [--collective C] [--sizes SIZES]
                                              [--jobs N] [--store FILE] [--again] [--write]

A cell is a machine (its default, and two boxes), a collective, a size from 1 KiB to 1 GiB and a
rule of links. It is lost where ours takes over 1 % more simulated time, with the plan that our set
has for the size, than a baseline's plan; and than a baseline that is counted on the links, without
a plan, over 5 % more. What is done is kept in `--store`, a row as it is done, and a later call goes
on from there; `--again` measures what is asked for anew. The tables are of all that the store has;
`--write` puts them into docs/reference/plan-times.md. The exit code is 1 where a cell is lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from catalogue import machines
from times import ROOT, commit_of_code, put

import forestcoll
from forestcoll.program import Collective
from forestcoll.study.comparison.outcome import Comparison
from forestcoll.study.comparison.play import parse_sizes
from forestcoll.topology import Topology, catalog
from forestcoll.ui.report import words
from forestcoll.verify.simulate import Rule

PLACE = "never-second"
"""Of the page: `<!-- never-second -->` begins it."""
STORE = ROOT / "build" / "never-second.jsonl"
SIZES = "1K:1G"
RANKS = 32
LOST = 1.01
LOST_TO_LINKS = 1.05
"""How many times as long ours takes where a cell is lost, to a plan and to what has none."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A cell. `times`: how many times as long ours takes; `plan`, `ours`: which plans.

    `least`: the same under the other rule, where theirs has one plan for both. Ours is chosen for
    both too: below 1 that is what it is slower for.
    """

    size: int
    rule: str
    by: str
    times: float
    plan: str
    ours: str
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A machine and a collective: cells in all, those that are lost, seconds of the processor.

    `commit`: of the code.
    """

    machine: str
    collective: str
    cells: int
    lost: tuple[Lost, ...]
    seconds: float
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it apart."""
        return self.machine, self.collective, self.cells


def lost_cells(comparison: Comparison) -> Iterator[Lost]:
    """The cells of a comparison in which a baseline is faster, with the one that is most."""
    for rule in comparison.rules:
        for size in comparison.sizes:
            ours = comparison.cell("forestcoll", size, rule)
            rest = [c for c in comparison.cells if (c.size, c.rule) == (size, rule) and c.plan]
            lost = []
            for cell in rest:
                times = _ratio(comparison, cell.name, size, rule)
                if times > (LOST_TO_LINKS if cell.plan == "links alone" else LOST):
                    plan = "" if ours is None else ours.plan
                    least = min(_ratio(comparison, cell.name, size, r) for r in comparison.rules)
                    took = round(times, 3), cell.plan, plan, round(least, 3)
                    lost.append(Lost(size, rule, cell.name, *took))
            if lost:
                yield max(lost, key=lambda cell: cell.times)


def _ratio(comparison: Comparison, name: str, size: int, rule: Rule) -> float:
    """How many times as long ours takes as a baseline."""
    ours, theirs = (comparison.cell(one, size, rule) for one in ("forestcoll", name))
    return ours.time / theirs.time if ours is not None and theirs is not None else float("inf")


def measure(topology: Topology, collective: Collective, sizes: Sequence[int]) -> Row:
    """The row of a machine and a collective."""
    begin = time.process_time()
    comparison = forestcoll.compare(topology, collective, sizes=sizes, quick=True)
    cells = len(comparison.rules) * len(comparison.sizes)
    lost = tuple(lost_cells(comparison))
    return Row(topology.name, collective, cells, lost, round(time.process_time() - begin, 1))


def table(rows: Sequence[Row]) -> str:
    """How many cells each machine has lost, and each lost cell."""
    collectives = list(dict.fromkeys(row.collective for row in rows))
    lines = [f"| machine | {' | '.join(collectives)} |", "|---" * (1 + len(collectives)) + "|"]
    for machine in dict.fromkeys(row.machine for row in rows):
        own = {row.collective: row for row in rows if row.machine == machine}
        counts = [f"{len(own[c].lost)} of {own[c].cells}" if c in own else "" for c in collectives]
        lines.append(f"| {machine} | {' | '.join(counts)} |")
    lost, cells = sum(len(row.lost) for row in rows), sum(row.cells for row in rows)
    lines += ["", f"{lost} of {cells} cells are lost{':' if lost else '.'}", ""]
    if lost:
        lines += [
            "| machine | collective | size | links | to | ours takes | under the other rule "
            "| its plan | our plan |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
    for row in rows:
        for cell in row.lost:
            links = {"fair": "fair", "fifo": "in order"}[cell.rule]
            lines.append(
                f"| {row.machine} | {row.collective} | {words.size(cell.size)} | {links} "
                f"| {cell.by} | {cell.times:.2f} times as long | {cell.least or cell.times:.2f} "
                f"| {cell.plan} "
                f"| {cell.ours or 'none'} |"
            )
    return "\n".join(lines).rstrip("\n")


def stored(store: Path) -> dict[tuple[str, str, int], Row]:
    """What a store holds; of rows of the same the last one counts."""
    if not store.exists():
        return {}
    rows = map(json.loads, store.read_text(encoding="utf-8").splitlines())
    made = (Row(**row | {"lost": tuple(Lost(**cell) for cell in row["lost"])}) for row in rows)
    return {row.key: row for row in made}


def collect(
    wanted: Sequence[tuple[Topology, Collective]], sizes: Sequence[int], store: Path, jobs: int
) -> None:
    """Measures what is wanted, several at a time, and puts each row into the store."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs) as pool, store.open("a", encoding="utf-8") as file:
        futures = [pool.submit(measure, *one, sizes) for one in wanted]
        for number, future in enumerate(as_completed(futures), 1):
            row = replace(future.result(), commit=commit_of_code())
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            text = f"{row.machine} {row.collective}: {len(row.lost)} of {row.cells} lost"
            counted = f"[{number}/{len(futures)}] {text}, {row.seconds:.1f} s"
            print(counted, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="a machine, or its full name")
    parser.add_argument("--collective", action="append", choices=[*map(str, Collective)])
    parser.add_argument("--sizes", type=parse_sizes, default=SIZES, help="as those of compare")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--again", action="store_true", help="what the store has already, too")
    parser.add_argument("--write", action="store_true", help="into plan-times.md")
    asked = parser.parse_args()
    cells = 2 * len(asked.sizes)
    every = {
        (topology.name, str(collective), cells): (name, topology, collective)
        for name, settings in machines(RANKS)
        for topology in [catalog.load(name, settings)]
        for collective in Collective
    }
    rows = stored(asked.store)
    wanted = [
        (topology, collective)
        for key, (name, topology, collective) in every.items()
        if not asked.only or {name, topology.name} & {*asked.only}
        if not asked.collective or collective in asked.collective
        if asked.again or key not in rows
    ]
    collect(wanted, asked.sizes, asked.store, asked.jobs)
    rows = stored(asked.store)
    ordered = [rows[key] for key in every if key in rows]
    text = table(ordered)
    print(text)
    if asked.write:
        put(ROOT / "docs" / "reference" / "plan-times.md", PLACE, text)
    return 1 if any(row.lost for row in ordered) else 0


if __name__ == "__main__":
    sys.exit(main())
