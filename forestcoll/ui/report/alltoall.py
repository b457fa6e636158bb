"""What was found for an all-to-all, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.program.sizes import Sizes
from forestcoll.solver.alltoall.file import word
from forestcoll.study.figures import figures_of
from forestcoll.ui.report import reached, words
from forestcoll.ui.report import table as tables
from forestcoll.ui.report.limits import limiting, limits_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.compile.alltoall_plans import Plan
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.solver.alltoall.usual import Usual
    from forestcoll.verify.simulate import Band


def optimum_table(
    best: Optimum,
    name: str,
    timings: Mapping[str, float],
    path: Path | None,
    others: Mapping[Usual, Fraction | None],
) -> RenderableType:
    """The optimum, what limits it, what usual ways reach, and where the time went."""
    demand = best.demand
    rows = [("optimum", f"{word(demand)} on {name}, {_who(best)}")]
    if demand.matrix is None:
        rows.append(("algbw", f"{words.exact(best.algbw)} GB/s"))
        rows.append(("busbw", f"{words.exact(_busbw(best))} GB/s"))
        if not demand.groups:
            rows.append(("each pair", f"{words.exact(best.theta)} GB/s"))
    else:
        total = sum(map(sum, demand.matrix)) - _kept(best)
        rows.append(("least time", f"{in_time(1 / best.theta)} for {words.size(total)}"))
        rows.append(("algbw", f"{words.exact(best.algbw)} GB/s of the largest send buffer"))
    rows += [("limits" if i == 0 else "", text) for i, text in enumerate(limits_of(best))]
    rows.append(("proof", _proof(best)))
    for way, algbw in others.items():
        rows.append((way, _usual(way, algbw, best)))
    rows.append(("wall time", _times(timings)))
    if path is not None:
        rows.append(("written", f"{path} ({words.size(path.stat().st_size)})"))
    return tables.facts(rows)


def optimum_summary(
    best: Optimum,
    name: str,
    timings: Mapping[str, float],
    path: Path | None,
    others: Mapping[Usual, Fraction | None],
) -> dict[str, object]:
    """The same for machines: fractions as strings, seconds as numbers."""
    graph = best.demand.graph
    return {
        "topology": name,
        "collective": word(best.demand),
        "ranks": len(graph.ranks),
        "groups": [len(group) for group in best.demand.groups],
        "algbw": str(best.algbw),
        "algbw_decimal": float(best.algbw),
        "theta": str(best.theta),
        "nanoseconds": None if best.demand.matrix is None else str(1 / best.theta),
        "bound": str(best.bound),
        "bound_method": "lengths",
        "limits": list(limiting(best)),
        "sources": len(best.folding.sources),
        "usual": {way: None if algbw is None else str(algbw) for way, algbw in others.items()},
        "seconds": dict(timings),
        "file": None if path is None else str(path),
    }


@dataclass(frozen=True, slots=True)
class Made:
    """What `synthesize` made of an all-to-all, how long it took, and where it is."""

    found: Routes
    name: str
    timings: Mapping[str, float]
    paths: Mapping[str, Path]
    plans: tuple[Plan, ...] = ()
    notes: tuple[str, ...] = ()
    simulated: Mapping[str, Band] = field(default_factory=dict)


def routes_table(made: Made) -> RenderableType:
    """The routes against their bound, their plans, and what was written."""
    found = made.found
    best, algbw = found.optimum, found.algbw
    pairs = words.plural(found.units, "unit")
    rows = [
        ("routes", f"{word(found.demand)} on {made.name}, {_who(best)}"),
        *reached.rows(figures_of(found))[:3],
        ("each pair", f"{pairs}, {words.exact(algbw / best.demand.scale)} GB/s"),
        ("paths", paths_of(found)),
    ]
    rows += [("limits" if i == 0 else "", text) for i, text in enumerate(limits_of(best))]
    for plan in made.plans:
        needs = plan.needs
        blocks = words.plural(needs.thread_blocks, "thread block")
        rows.append(
            (
                plan.format,
                f"{blocks} per rank at most, {words.plural(needs.steps, 'step')} in one, scratch "
                f"{words.decimal(needs.scratch, 2)} of the input; out of place",
            )
        )
        rows.append(("", f"serves {words.served(Sizes.of(plan.program))}"))
        if plan.format in made.simulated:
            rows.append(("", f"simulated {words.band(made.simulated[plan.format])}"))
    if made.simulated:
        rows.append(("model", words.model(made.simulated.values())))
    rows.append(("wall time", _times(made.timings)))
    for path in made.paths.values():
        rows.append(("written", f"{path} ({words.size(path.stat().st_size)})"))
    rows.extend(("note", note) for note in made.notes)
    return tables.facts(rows)


def routes_summary(made: Made) -> dict[str, object]:
    """The same for machines: fractions as strings, seconds as numbers."""
    found = made.found
    algbw, bound = found.algbw, found.optimum.bound
    return {
        "topology": made.name,
        "collective": word(found.demand),
        "ranks": len(found.graph.ranks),
        **reached.summary(figures_of(found)),
        "algbw_decimal": float(algbw),
        "optimal": algbw == bound,
        "model": words.model(made.simulated.values()) or None,
        "units": found.units,
        "paths": len(found.routes),
        "images": found.images,
        "hops": found.hops,
        "limits": list(limiting(found.optimum)),
        "seconds": dict(made.timings),
        "plans": {
            plan.format: {
                "thread_blocks": plan.needs.thread_blocks,
                "steps": plan.needs.steps,
                "channels": plan.needs.channels,
                "scratch": str(plan.needs.scratch),
                "simulated": made.simulated[plan.format].summary()
                if plan.format in made.simulated
                else None,
            }
            for plan in made.plans
        },
        "files": {form: str(path) for form, path in made.paths.items()},
        "notes": list(made.notes),
    }


def paths_of(found: Routes) -> str:
    """`"63 paths, 4032 with their images by 64 symmetries; at most 6 hops from GPU to GPU"`."""
    count = words.plural(len(found.routes), "path")
    if found.group is not None:
        count += f", {found.total} with their images by "
        count += words.plural(found.images, "symmetry").replace("symmetrys", "symmetries")
    return f"{count}; at most {words.plural(found.hops, 'hop')} from GPU to GPU"


def _times(timings: Mapping[str, float]) -> str:
    parts = [f"{what} {words.seconds(took)}" for what, took in timings.items() if took >= 0.005]
    total = words.seconds(sum(timings.values()))
    return f"{total}: {', '.join(parts)}" if len(parts) > 1 else total


WORDS: dict[Usual, str] = {
    "direct": "each block straight to its rank",
    "shortest": "shortest ways, ranks passing on",
}


def _usual(way: Usual, algbw: Fraction | None, best: Optimum) -> str:
    if algbw is None:
        return f"impossible: {WORDS[way]}"
    share = words.percent(algbw, best.algbw)
    return f"{words.exact(algbw)} GB/s, {share} of it: {WORDS[way]} (ECMP)"


def _who(best: Optimum) -> str:
    demand = best.demand
    if not demand.groups:
        return words.plural(len(demand.graph.ranks), "rank")
    sizes = sorted({len(group) for group in demand.groups})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{words.plural(len(demand.groups), 'group')} of {each} ranks at once"


def _busbw(best: Optimum) -> Fraction:
    """algbw (N - 1) / N; of several groups that of the smallest."""
    least = min(map(len, best.demand.groups), default=len(best.demand.graph.ranks))
    return best.algbw * Fraction(least - 1, least)


def _kept(best: Optimum) -> int:
    """Bytes that stay where they are."""
    return sum(row[i] for i, row in enumerate(best.demand.matrix or ()))


def in_time(nanoseconds: Fraction) -> str:
    """`"81.6 us"`."""
    for unit, length in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= length:
            return f"{words.decimal(nanoseconds / length)} {unit}"
    return f"{words.decimal(nanoseconds)} ns"


def _proof(best: Optimum) -> str:
    flows = words.plural(len(best.flows), "flow")
    few = len(best.flows) < len(best.demand.graph.ranks)
    alike = f" ({len(best.demand.graph.ranks)} by symmetry)" if few else ""
    least = "nothing is faster"
    if best.bound != best.algbw:
        least = f"this is {words.percent(best.algbw, best.bound)} of the optimum at least"
    return f"reached by {flows}{alike}; link lengths {_values(best)} prove that {least}"


def _values(best: Optimum) -> str:
    found = sorted(set(best.lengths))
    if len(found) <= 3:
        return " and ".join(map(str, found)) if len(found) < 3 else ", ".join(map(str, found))
    return f"from {found[0]} to {found[-1]}"
