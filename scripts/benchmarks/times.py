"""Simulated times of the plans in schedules/: percent of the links' algbw at 1 GB and 64 MB.

    python scripts/benchmarks/times.py [--write]

`--write` puts the table into docs/plan-time.md. Of fair and fifo links the worse counts; fifo is
the least of two draws of who goes first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forestcoll import forest_file, plans, simulate
from forestcoll.program import BY_TREES

ROOT = Path(__file__).parents[2]
SIZES = (10**9, 64 * 10**6)
SUFFIXES = (".msccl.xml", ".mscclpp.json")
BEGIN, END = "<!-- times -->", "<!-- /times -->"


def percent(plan: Path, size: int) -> tuple[float, float]:
    """Of the links' algbw: (fair, fifo)."""
    name = next(plan.name.removesuffix(s) for s in SUFFIXES if plan.name.endswith(s))
    forest = forest_file.load(plan.with_name(f"{name}.forest.json"))
    program, best = plans.read_plan(plan), float(forest.plain_algbw)

    def run(rule: simulate.Rule, seed: int) -> float:
        options = simulate.Options(seed=seed)
        return 100 * simulate.run(program, forest, size, rule=rule, options=options).algbw / best

    return run("fair", 0), min(run("fifo", 0), run("fifo", 1))


def table(root: Path = ROOT) -> str:
    """A row for each machine and collective: MSCCL XML and MSCCL++, worse of both rules."""
    lines = [
        "| machine | collective | XML 1 GB | XML 64 MB | MSCCL++ 1 GB | MSCCL++ 64 MB |",
        "|---|---|---|---|---|---|",
    ]
    for folder in sorted(path for path in (root / "schedules").iterdir() if path.is_dir()):
        for collective in BY_TREES:
            cells = [
                f"{min(percent(folder / f'{collective}{suffix}', size)):.1f}"
                for suffix in SUFFIXES
                for size in SIZES
            ]
            lines.append(f"| {folder.name} | {collective} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    found = table()
    print(found)
    if "--write" in sys.argv[1:]:
        page = ROOT / "docs" / "plan-time.md"
        text = page.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        page.write_text(f"{head}{BEGIN}\n{found}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
