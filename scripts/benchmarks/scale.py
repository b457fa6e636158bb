"""The table of large, broken and awkward fabrics as markdown, and the growth with the ranks.

    scripts/bench --scale [--only NAME ...] [--repeat N] [--json FILE] [--plot] [--write]

Rows that take less than a second time the solve call in a warm process (`warm.py`: median of five
or more); all others the whole command, start of Python included, in a fresh process with the forest
checked and written, after which `forestcoll verify` proves the file in another process (not timed).
`must` and `aim` are judged by the clock; processor time stands beside it because machines are
shared. Memory is the largest resident set of the process. algbw is compared with the known value
where there is one, else with the bound that the forest proves: a difference is an error of the run
(exit 1). A row that is too slow, too tall or too large says FAIL and is no error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from fractions import Fraction
from pathlib import Path

import growth
import measure
from cases import CASES, Case
from rows import Row, measured

PAGE = measure.SOURCE / "docs" / "reference" / "speed.md"
PICTURE = measure.SOURCE / "docs" / "growth.svg"
HEAD = (
    "| case | seconds | processor | must | aim | result | algbw GB/s | of optimal | height | k "
    "| per root | in all | memory |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """The row of the page's table in markdown: everything."""
    result = "pass, aim" if row.aimed else "pass"
    if row.missed:
        result = f"**FAIL**: {row.wrong or row.missed}"
    cells = [
        row.what + (f" ({row.note})" if row.note else ""),
        _seconds(row.wall),
        _seconds(row.processor),
        _limits(row.goal.must),
        _limits(row.goal.aim),
        result,
        _rate(row.algbw),
        _percent(row.share),
        _number(row.height),
        _number(row.trees_per_root),
        _number(row.different),
        _number(row.trees),
        _memory(row.peak),
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def _memory(peak: int | None) -> str:
    return "" if peak is None else f"{peak / (1 << 20):,.0f} MiB"


def _limits(limits: tuple[float | None, int | None]) -> str:
    seconds, height = limits
    words = [f"{seconds:g} s"] if seconds is not None else []
    words += [f"height {height}"] if height is not None else []
    return ", ".join(words)


def _rate(algbw: str) -> str:
    if not algbw:
        return ""
    value = Fraction(algbw)
    return algbw if value.denominator == 1 else f"{algbw} ({float(value):.3f})"


def _percent(share: str) -> str:
    """Rounded down: less than the whole never reads as the whole."""
    if not share:
        return ""
    hundredths = Fraction(share) * 10_000 // 1
    return "100 %" if hundredths == 10_000 else f"{hundredths // 100}.{hundredths % 100:02d} %"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def chosen_cases(names: Sequence[str]) -> list[Case]:
    """All cases, or those whose name is or begins with one of `names`."""
    found = [c for c in CASES if not names or any(c.name.startswith(name) for name in names)]
    lost = [name for name in names if not any(c.name.startswith(name) for c in CASES)]
    if lost:
        raise SystemExit(f"no case {lost[0]!r}; there are {', '.join(c.name for c in CASES)}")
    return found


def table(cases: Iterable[Case], repeat: int, limit: float) -> list[Row]:
    """Measures and prints row after row."""
    print(HEAD, flush=True)
    rows = []
    for case in cases:
        rows.append(measured(case, repeat, limit))
        print(line(rows[-1]), flush=True)
    return rows


def summary(rows: Sequence[Row]) -> str:
    """How many rows pass, and which do not."""
    failed = [row.name for row in rows if row.missed]
    text = f"{len(rows) - len(failed)} of {len(rows)} rows pass"
    return text + (f"; not: {', '.join(failed)}" if failed else "")


def write_between(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- /name -->` in `page`."""
    old = page.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if old.count(first) != 1 or old.count(last) != 1:
        raise SystemExit(f"{page} has no place for {name}: {first.strip()} ... {last}")
    before, rest = old.split(first)
    page.write_text(f"{before}{first}{text}\n{last}{rest.split(last)[1]}", encoding="utf-8")


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench --scale",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], help="rows named so; repeatable")
    parser.add_argument("--list", action="store_true", help="the names of the rows, nothing else")
    parser.add_argument("--repeat", type=int, default=1, help="runs, the middle one counts")
    parser.add_argument("--limit", type=float, default=600, help="seconds a process may take")
    parser.add_argument("--json", type=Path, help="everything measured, into this file")
    parser.add_argument("--plot", action="store_true", help=f"growth too, plot in {PICTURE.name}")
    parser.add_argument("--plot-only", action="store_true", help="growth and plot, no table")
    parser.add_argument("--most", type=int, default=16_384, help="ranks up to which growth goes")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and write what is asked for."""
    chosen = options()
    if chosen.list:
        for case in CASES:
            print(f"{case.name:<28} {case.what}")
        return 0
    print(f"{measure.machine()} at the start\n", flush=True)
    rows: list[Row] = []
    points: list[growth.Point] = []
    if not chosen.plot_only:
        rows = table(chosen_cases(chosen.only), chosen.repeat, chosen.limit)
        print(f"\n{summary(rows)}\n", flush=True)
    if chosen.plot or chosen.plot_only:
        points = growth.measured(chosen.most, chosen.repeat, chosen.limit)
        print(growth.table(points), flush=True)
        growth.draw(points, PICTURE)
    here = measure.machine()
    print(f"\n{here} at the end")
    if chosen.json:
        figures = {"rows": [r.as_json() for r in rows], "growth": [p.as_json() for p in points]}
        text = json.dumps({"machine": here} | figures, indent=1)
        chosen.json.write_text(text, encoding="utf-8")
    if chosen.write and rows:
        lines = [f"{date.today()}, {here}. {summary(rows)}.", "", HEAD, *map(line, rows)]
        write_between(PAGE, "table", "\n".join(lines))
    if chosen.write and points:
        write_between(PAGE, "growth", f"{here}.\n\n{growth.table(points)}")
    wrong = [f"{row.name}: {row.wrong}" for row in rows if row.wrong]
    for text in wrong:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
