"""From a case to its row: runs it, proves what came out once more, and judges it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import measure
from cases import Case, Command, Goal, Perturbed, Warm
from measure import Used


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured. `wrong`: why the whole run fails, or empty; `missed`: what is not met.

    `wall` and `processor` in seconds, `peak` in bytes, `algbw` GB/s as a fraction.
    """

    name: str
    what: str
    goal: Goal
    wall: float | None = None
    processor: float | None = None
    algbw: str = ""
    share: str = ""  # of the proven bound, a fraction
    height: int | None = None
    trees_per_root: int | None = None
    different: int | None = None  # trees of a root, at most
    trees: int | None = None  # different trees in all
    peak: int | None = None
    wrong: str = ""
    missed: str = ""
    aimed: bool = False
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return asdict(self)


def measured(case: Case, repeat: int, limit: float) -> Row:
    """The row of one case; commands run `repeat` times, the middle one counts."""
    blank = Row(case.name, case.what, case.goal)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(case.how, Warm):
            row = _warm(blank, case.how, max(5, repeat), limit)
        elif isinstance(case.how, Command):
            row = _command(blank, case.how, repeat, limit, Path(folder))
        else:
            row = _perturbed(blank, case.how, limit, Path(folder))
    return _judged(row)


def _judged(row: Row) -> Row:
    """With what is not met of `must`, and whether `aim` is."""
    if row.wrong:
        return replace(row, missed="wrong")
    goal = row.goal
    misses = [row.missed] if row.missed else []
    misses += _over(row, goal.must)
    if goal.memory is not None and row.peak is not None and row.peak > goal.memory:
        misses.append(f"memory over {goal.memory >> 30} GiB")
    aimed = not misses and goal.aim != (None, None) and not _over(row, goal.aim)
    return replace(row, missed=", ".join(misses), aimed=aimed)


def _over(row: Row, limits: tuple[float | None, int | None]) -> list[str]:
    seconds, height = limits
    out = []
    if seconds is not None and (row.wall is None or row.wall > seconds):
        out.append(f"over {seconds:g} s")
    if height is not None and (row.height is None or row.height > height):
        out.append(f"height over {height}")
    return out


def _failed(row: Row, used: Used, what: str = "") -> Row:
    """The row of a process that did not end well."""
    if used.timed_out:
        note = f"stopped after {used.wall:.0f} s"
        return replace(row, wall=used.wall, processor=used.processor, peak=used.peak, missed=note)
    lines = used.err.strip().splitlines() or ["no message"]
    return replace(row, wrong=f"{what}exit {used.code}: {lines[-1]}")


def _wrong_value(goal: Goal, algbw: str, bound: str | None, trees: int | None) -> str:
    """Why these figures cannot be right, or empty."""
    if bound is None or Fraction(algbw) != Fraction(bound):
        return f"{algbw} GB/s, the bound is {bound}"
    if goal.algbw is not None and Fraction(algbw) != Fraction(goal.algbw):
        return f"{algbw} GB/s, the known value is {goal.algbw}"
    if goal.trees is not None and trees != goal.trees:
        return f"{trees} trees per root, known are {goal.trees}"
    return ""


def _warm(row: Row, how: Warm, repeat: int, limit: float) -> Row:
    wanted = json.dumps(how.wanted | {"repeat": repeat})
    used = measure.run(measure.script("warm.py", wanted), limit)
    if used.code:
        return _failed(row, used)
    found = json.loads(used.out)
    wrong = ""
    for algbw, bound in found["rates"]:
        wrong = wrong or _wrong_value(row.goal, algbw, bound, found["trees_per_root"])
    return replace(
        row,
        wall=found["wall"],
        processor=found["processor"],
        algbw=found["rates"][0][0],
        share="1",
        height=found["height"],
        trees_per_root=found["trees_per_root"],
        different=found["different_trees_per_root"],
        trees=found["trees"],
        peak=used.peak,
        wrong=wrong,
    )


def _command(row: Row, how: Command, repeat: int, limit: float, folder: Path) -> Row:
    options = [*how.options]
    if how.fabric:
        file = folder / "topology.yaml"
        made = measure.run(measure.script("fabrics.py", *how.fabric, str(file)), limit)
        if made.code:
            return _failed(row, made, "topology: ")
        options += ["-t", str(file)]
    runs: list[Used] = []
    found: dict[str, Any] | None = None
    while found is None or len(runs) < repeat:
        used, found = _run_once(how.verb, options, limit, folder / "out.forest.json")
        if found is None:
            return _failed(row, used)
        runs.append(used)
    middle = measure.median(runs)
    row = replace(row, wall=middle.wall, processor=middle.processor, peak=middle.peak)
    row = _figures(row, found)
    if how.verb == "synthesize":
        row = replace(row, wrong=_not_proven(folder / "out.forest.json", found, limit))
    wrong = _wrong_value(row.goal, found["algbw"], found["bound"], row.trees_per_root)
    row = replace(row, wrong=row.wrong or wrong)
    if how.solve is None or row.wrong:
        return row
    return _with_solve_call(row, _warm(row, how.solve, max(5, repeat), limit))


SHORT = 1.0
"""Seconds of a whole command below which the solve call in a warm process counts."""


def _with_solve_call(command: Row, solve: Row) -> Row:
    """The row of a command of which the solve call was timed as well: the one that counts, with
    the other in the note."""
    if solve.wrong or solve.missed or command.wall is None or solve.wall is None:
        return solve
    if command.wall >= SHORT:
        return replace(command, note=f"its solve call, warm: {solve.wall:.2f} s")
    whole = f"{command.wall:.2f} s, {command.processor:.2f} s of processors"
    return replace(solve, peak=command.peak, note=f"solve call; the whole command: {whole}")


def _run_once(
    verb: str, options: Sequence[str], limit: float, file: Path
) -> tuple[Used, dict[str, Any] | None]:
    """(what the command took, its summary or None where it failed)."""
    output = ["-o", str(file), "--force"] if verb == "synthesize" else []
    used = measure.run(measure.forestcoll(verb, *options, *output, "--json"), limit)
    return used, None if used.code else json.loads(used.out)


def _figures(row: Row, found: dict[str, Any]) -> Row:
    return replace(
        row,
        algbw=found["algbw"],
        share=str(Fraction(found["algbw"]) / Fraction(found["bound"])),
        height=found.get("height"),
        trees_per_root=found["trees_per_root"],
        different=found.get("different_trees_per_root"),
        trees=found.get("trees"),
    )


def _not_proven(file: Path, found: dict[str, Any], limit: float) -> str:
    """Why `forestcoll verify`, in a process of its own, does not confirm the figures; or empty."""
    used = measure.run(measure.forestcoll("verify", str(file), "--json"), limit)
    if used.code:
        return f"verify: {(used.err.strip() or used.out.strip())[-200:]}"
    figures = json.loads(used.out)[0]["figures"]
    for key in ("algbw", "bound", "height", "trees"):
        if figures[key] != found[key]:
            return f"verify finds {key} {figures[key]}, synthesize says {found[key]}"
    return ""


def _perturbed(row: Row, how: Perturbed, limit: float, folder: Path) -> Row:
    """Every seed in a process of its own; the slowest, highest and largest count."""
    shape = ("--boxes", str(how.boxes), "--per", how.per)
    enough = ("--min-percent", "99", "--budget", "trees=8")
    options = ("-c", "allgather", "--format", "forest", *enough)
    rows: list[Row] = []
    for seed in range(how.seeds):
        fabric = ("perturbed", how.machine, *shape, "--seed", str(seed))
        file = folder / "topology.yaml"
        made = measure.run(measure.script("fabrics.py", *fabric, str(file)), limit)
        if made.code:
            return _failed(row, made, f"seed {seed}, topology: ")
        output = folder / "out.forest.json"
        used, found = _run_once("synthesize", (*options, "-t", str(file)), limit, output)
        if found is None:
            return _failed(row, used, f"seed {seed}: ")
        one = replace(row, wall=used.wall, processor=used.processor, peak=used.peak)
        wrong = _not_proven(output, found, limit)
        if wrong:
            return replace(row, wrong=f"seed {seed}: {wrong}")
        rows.append(_figures(one, found))
    good = [r for r in rows if Fraction(r.share) >= Fraction(99, 100) and (r.different or 0) <= 8]
    equal = measure.run(
        measure.script("equal.py", how.machine, str(how.boxes), how.per, str(how.seeds)), limit
    )
    if equal.code:
        return _failed(row, equal, "equal trees: ")
    seeds = json.loads(equal.out)
    least = min(rows, key=lambda r: Fraction(r.share))
    return replace(
        row,
        wall=max(r.wall or 0 for r in rows),
        processor=max(r.processor or 0 for r in rows),
        share=least.share,
        height=max(r.height or 0 for r in rows),
        trees_per_root=max(r.trees_per_root or 0 for r in rows),
        different=max(r.different or 0 for r in rows),
        trees=max(r.trees or 0 for r in rows),
        peak=max(r.peak or 0 for r in rows),
        missed="" if len(good) == how.seeds else f"only {len(good)} of {how.seeds} seeds",
        note=(
            f"{len(good)} of {how.seeds} with at most 8 different trees per root; with at most 8 "
            f"equal ones {sum(s['reached'] for s in seeds)}, proven impossible for "
            f"{sum(s['refuted'] for s in seeds)}"
        ),
    )
