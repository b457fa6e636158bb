"""The table of irregular switch fabrics: five seeds of every family, the whole command each.

    python scripts/benchmarks/irregular_table.py [--only fat-tree,dragonfly] [--seeds 5] [--write]
                                                 [--also FILE ...]

Processor seconds of `synthesize -c allgather --format forest` in a fresh process, the forest
checked and written; the largest of the seeds. `--also` adds a row for each of these topology files,
which must come in ALSO_SECONDS at ALSO_HEIGHT. `--write` puts the table between its marks in
docs/reference/speed.md. Exit 1 where a row misses what it must reach.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

from irregular import FAMILIES, Family, make
from measure import forestcoll, machine, run
from scale import PAGE, write_between

from forestcoll.topology import dumps_topology

HEAD = (
    "| fabric | GPUs | must: seconds, height | processor seconds | height | at least | "
    "of optimal | different trees of a root | result |\n|---|---|---|---|---|---|---|---|---|"
)
ALSO_SECONDS, ALSO_HEIGHT = 1.5, 3
SLOWEST = 900
"""Seconds after which a command is stopped."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the seeds of a family came to; `found`: the reports of those that ended well."""

    name: str
    family: Family
    seconds: list[float]
    found: list[dict[str, Any]]
    failed: list[str]

    @property
    def passed(self) -> bool:
        """Whether every seed meets what the family must."""
        family = self.family
        return (
            not self.failed
            and max(self.seconds) <= family.seconds
            and all(report["height"] <= family.height for report in self.found)
            and all(_percent(report) >= family.reach for report in self.found)
        )

    def row(self) -> str:
        """The line of the table."""
        family = self.family
        asked = "" if family.percent is None else f", --min-percent {float(family.percent):g}"
        cells = [
            family.title + asked,
            _range(report["ranks"] for report in self.found),
            f"{family.seconds:g} s, {family.height}",
            f"{max(self.seconds):.2f}" if self.seconds else "",
            _range(report["height"] for report in self.found),
            _range(report["height_bound"] for report in self.found),
            f"{float(min(map(_percent, self.found))):.5g} %" if self.found else "",
            _range(report["different_trees_per_root"] for report in self.found),
            "pass" if self.passed else "; ".join(self.failed) or "missed",
        ]
        return f"| {' | '.join(cells)} |"


def _percent(report: dict[str, Any]) -> Fraction:
    return 100 * Fraction(report["algbw"]) / Fraction(report["bound"])


def _range(values: Any) -> str:
    known = sorted(set(values))
    return "" if not known else f"{known[0]:,}" + (f" to {known[-1]:,}" if known[1:] else "")


def measure(name: str, seeds: int, folder: Path) -> Outcome:
    """Runs the command for every seed of a family."""
    sources = []
    for seed in range(seeds):
        sources.append(folder / f"{name}-{seed}.yaml")
        sources[-1].write_text(dumps_topology(make(name, seed)), encoding="utf-8")
    return measure_files(name, FAMILIES[name], sources, folder)


def measure_files(name: str, family: Family, sources: Sequence[Path], folder: Path) -> Outcome:
    """Runs the command on each of these files."""
    outcome = Outcome(name, family, [], [], [])
    target = folder / "forest.json"
    for seed, source in enumerate(sources):
        words = ["-t", str(source), "-c", "allgather", "--format", "forest", "-o", str(target)]
        if family.percent is not None:
            words += ["--min-percent", f"{float(family.percent):g}"]
        used = run(forestcoll("synthesize", *words, "--force", "--json"), SLOWEST)
        if used.code or used.timed_out:
            outcome.failed.append(f"seed {seed}: {'too slow' if used.timed_out else used.err}")
            continue
        outcome.seconds.append(used.processor)
        outcome.found.append(json.loads(used.out))
        target.unlink()
    return outcome


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and write where that is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--also", nargs="*", type=Path, default=[], metavar="FILE")
    asked = parser.parse_args(words)
    unknown = set(asked.only.split(",")) - set(FAMILIES)
    if unknown:
        parser.error(f"no family is called {', '.join(sorted(unknown))}; {', '.join(FAMILIES)} are")
    print(HEAD)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.only.split(","):
            outcomes.append(measure(name, asked.seeds, Path(folder)))
            print(outcomes[-1].row(), flush=True)
        for file in asked.also:
            family = Family(f"`{file.stem}`", lambda *_: None, ALSO_HEIGHT, ALSO_SECONDS, ())
            outcomes.append(measure_files(file.stem, family, [file], Path(folder)))
            print(outcomes[-1].row(), flush=True)
    if asked.write:
        rows = "\n".join([HEAD, *(outcome.row() for outcome in outcomes)])
        passed = sum(outcome.passed for outcome in outcomes)
        ends = f"{date.today()}, {machine()}. {passed} of {len(outcomes)} rows pass."
        write_between(PAGE, "irregular", f"{rows}\n\n{ends}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
