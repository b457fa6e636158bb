"""Seconds and memory against the number of ranks: DGX A100 boxes, 16 to 16,384 GPUs.

Two series, each a whole command in a fresh process: forests with every tree written out, as far as
they go (2,048 ranks, beyond which a file has gigabytes), and compact forests (a few trees and the
symmetries that make the others) up to the end. The part of the command that does not depend on N
(Python, imports) hides the growth at small N, so exponents are fitted to the upper half of a
series, as slopes of least squares in log-log.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import measure

Series = Literal["whole", "compact"]
WHOLE = 2_048
"""Ranks up to which all trees are written out."""
FITTED = 256
"""Ranks from which on points count for the exponent of whole forests; of compact ones, 2,048."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run. `wall`, `processor`: seconds of the whole command; `solve`: of optimum and packing.

    `peak` and `size` (of the forest file) in bytes.
    """

    series: Series
    ranks: int
    wall: float
    processor: float
    solve: float
    peak: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return asdict(self)


def measured(most: int, repeat: int, limit: float) -> list[Point]:
    """All points; a process that fails or takes more than `limit` seconds ends the run."""
    points = []
    for series, ranks in _plan(most):
        boxes = ranks // 8
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.forest.json"
            words = ["synthesize", "-t", "dgx-a100", "--set", f"boxes={boxes}", "-c", "allgather"]
            words += ["--format", "forest", f"--{series}", "--json", "--force", "-o", str(file)]
            runs = []
            for _ in range(repeat):
                used = measure.run(measure.forestcoll(*words), limit)
                if used.code:
                    raise SystemExit(f"{series} forest of {ranks} ranks: {used.err.strip()[-300:]}")
                runs.append(used)
            found, size = json.loads(runs[-1].out), file.stat().st_size
        known = f"{200 * boxes}/{boxes - 1}"  # a box takes in 200 GB/s and lacks the other boxes
        if boxes > 3 and Fraction(found["algbw"]) != Fraction(known):
            raise SystemExit(f"{ranks} ranks: {found['algbw']} GB/s, not {known}")
        middle, seconds = measure.median(runs), found["seconds"]
        solve = sum(seconds.get(stage, 0.0) for stage in ("optimum", "front", "solve"))
        points.append(Point(series, ranks, middle.wall, middle.processor, solve, middle.peak, size))
    return points


def _plan(most: int) -> Iterator[tuple[Series, int]]:
    ranks = 16
    while ranks <= most:
        if ranks <= WHOLE:
            yield "whole", ranks
        yield "compact", ranks
        ranks *= 2


def exponent(points: Sequence[Point], field: str) -> float:
    """The slope of log(field) over log(ranks), by least squares; points of one series."""
    logs = [(math.log(p.ranks), math.log(getattr(p, field))) for p in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


def fitted(points: Sequence[Point], series: Series) -> list[Point]:
    """The points of a series that count for its exponents; fewer than two where it is short."""
    start = FITTED if series == "whole" else WHOLE
    return [p for p in points if p.series == series and p.ranks >= start]


def table(points: Sequence[Point]) -> str:
    """The points and the exponents, as markdown."""
    lines = [
        "| ranks | forest | seconds | of them optimum and trees | processor | memory | file |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in points:
        lines.append(
            f"| {p.ranks:,} | {p.series} | {p.wall:.2f} s | {p.solve:.3f} s | {p.processor:.2f} s "
            f"| {p.peak / (1 << 20):,.0f} MiB | {p.size / 1e6:,.1f} MB |"
        )
    return "\n".join([*lines, "", exponents(points)])


def exponents(points: Sequence[Point]) -> str:
    """A line for each series that is long enough: how time and memory grow with the ranks N."""
    lines = []
    for series in get_args(Series):
        kept = fitted(points, series)
        if len(kept) < 2:
            continue
        lines.append(
            f"Fitted exponents, {series} forests of {kept[0].ranks:,} to {kept[-1].ranks:,} ranks: "
            f"processor time N^{exponent(kept, 'processor'):.2f}, "
            f"seconds N^{exponent(kept, 'wall'):.2f}, "
            f"optimum and trees alone N^{exponent(kept, 'solve'):.2f}, "
            f"memory N^{exponent(kept, 'peak'):.2f}."
        )
    return "\n".join(lines)


def draw(points: Sequence[Point], file: Path) -> None:
    """Two panels side by side, seconds and memory, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "forestcoll"  # the same points give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    panels = (
        (
            axes[0],
            (("processor", "command (processor)"), ("solve", "optimum and trees (clock)")),
            "time (s)",
            1.0,
        ),
        (axes[1], (("peak", "command"),), "peak memory (MiB)", 1 / (1 << 20)),
    )
    colours: tuple[tuple[Series, str], ...] = (("whole", "tab:blue"), ("compact", "tab:orange"))
    for axis, fields, label, scale in panels:
        for series, colour in colours:
            for (field, what), style in zip(fields, ("o-", "s--"), strict=False):
                mine = [p for p in points if p.series == series]
                kept = fitted(points, series)
                slope = f": N^{exponent(kept, field):.2f}" if len(kept) > 1 else ""
                axis.plot(
                    [p.ranks for p in mine],
                    [getattr(p, field) * scale for p in mine],
                    style,
                    color=colour,
                    markersize=4,
                    label=f"{series} forest, {what}{slope}",
                )
        axis.set(xscale="log", yscale="log", xlabel="ranks N (DGX A100 GPUs)", ylabel=label)
        ticks = sorted({p.ranks for p in points})[::2]
        axis.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=30)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))  # off the lines
    axes[1].set_ylim(10, 4 * max(p.peak for p in points) / (1 << 20))
    figure.suptitle(
        f"exponents fitted to {FITTED:,} ranks and more (whole), {WHOLE:,} and more (compact)",
        fontsize=9,
    )
    metadata = {"Date": None} if file.suffix == ".svg" else None
    figure.savefig(file, metadata=metadata, dpi=110)
    plt.close(figure)
