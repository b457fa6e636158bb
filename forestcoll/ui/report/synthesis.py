"""What `optimum` and `synthesize` found, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.compile.wishes import different_trees
from forestcoll.program import Collective
from forestcoll.program.sizes import Sizes
from forestcoll.study.figures import figures_of
from forestcoll.ui.report import reached, words
from forestcoll.ui.report import table as tables

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.console import RenderableType

    from forestcoll.compile.formats import Format
    from forestcoll.compile.synthesize import Synthesis
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program.targets import PlanFormat
    from forestcoll.solver import Optimum
    from forestcoll.study.figures import Figures

ENOUGH = 0.005
"""Seconds below which a stage's time is not worth a word."""


def table(
    result: Synthesis, timings: Mapping[str, float], paths: Mapping[Format, Path]
) -> RenderableType:
    """The forest against its bound, the plans, where the time went, and what was written."""
    forest = result.forest
    said = dict(reached.rows(_reached(result)))
    said["algbw"] += _otherwise(result)
    if result.programs and result.bands:
        said["of optimal"] += f", {words.shares(result.bands.values(), result.optimum.bound.algbw)}"
    shape = [
        ("trees", _trees(result)),
        ("height", words.height(forest, result.latency, result.least_height)),
    ]
    rows = [
        ("schedule", f"{_title(forest.collective, result.name, forest.graph, forest.root)}"),
        *list(said.items())[:3],
        *shape,
        *list(said.items())[3:],
    ]
    for form, program in result.programs.items():
        rows.append((form, f"{_needs(result, form)}; {_modes(program)}"))
        rows.append(("", f"serves {words.served(Sizes.of(program))}"))
        if form in result.bands:
            rows.append(("", f"simulated {words.band(result.bands[form])}"))
        if halves := program.extra.get("halves"):
            rows.append(("", halves))
    if "forest" in result.bands:
        rows.append(("simulated", f"{words.rates(result.bands['forest'])}, the trees alone"))
    if result.bands:
        rows.append(("model", words.model(result.bands.values())))
    rows.append(("wall time", _times(timings)))
    for path in paths.values():
        rows.append(("written", f"{path} ({words.size(path.stat().st_size)})"))
    rows.extend(("note", note) for note in result.notes)
    return tables.facts(rows)


def summary(
    result: Synthesis, timings: Mapping[str, float], paths: Mapping[Format, Path]
) -> dict[str, object]:
    """The same for machines: fractions as strings, seconds as numbers."""
    forest, bound, found = result.forest, result.optimum.bound, _reached(result)
    return {
        "topology": result.name,
        "collective": forest.collective.value,
        "ranks": forest.n,
        "root": _root(forest.graph, forest.root),
        **reached.summary(found),
        "algbw_decimal": float(found.algbw),
        "forest_algbw": str(forest.algbw),
        "plain_algbw": str(forest.plain_algbw),
        "plain_bound": str(result.plain_bound.algbw),
        "bound_method": bound.method,
        "optimal": found.algbw == bound.algbw,
        "trees_per_root": forest.trees_per_root,
        "trees": len(forest.trees) * forest.images,
        "representatives": len(forest.trees),
        "different_trees_per_root": different_trees(forest),
        "height": forest.height,
        "height_bound": result.least_height,
        "latency_us": str(result.latency),
        "latency_us_decimal": float(result.latency),
        "cut": [[forest.graph.names[v] for v in sorted(part)] for part in bound.parts],
        "seconds": dict(timings),
        "plans": {form: _figures(result, form) for form in result.needs},
        "simulated": result.bands["forest"].summary() if "forest" in result.bands else None,
        "model": words.model(result.bands.values()) or None,
        "plan_algbw": str(result.plan_algbw),
        "files": {form: str(path) for form, path in paths.items()},
        "notes": list(result.notes),
    }


def optimum_table(
    name: str,
    graph: CapacityGraph,
    collective: Collective,
    best: Optimum,
    root: int,
    took: float,
    switched: Fraction | None = None,
) -> RenderableType:
    """The optimum of plans, exact and decimal, and why none is faster; then what switches could do.

    `switched`: GB/s that plans which copy and add in a switch reach, if there are any.
    """
    rows = [
        ("optimum", _title(collective, name, graph, root)),
        ("algbw", f"{words.exact(best.algbw)} GB/s"),
        ("per unit" if graph.shares else "per rank", f"{words.exact(best.rate)} GB/s"),
        ("trees", f"{best.trees_per_root} per {'unit' if graph.shares else 'root'} at the least"),
        ("bottleneck", words.bottleneck(graph, collective, best.bound)),
        ("wall time", words.seconds(took)),
    ]
    if best.bound.algbw != best.algbw:
        share = words.percent(best.algbw, best.bound.algbw)
        rows.insert(2, ("bound", f"{words.exact(best.bound.algbw)} GB/s; {share} of it is reached"))
    if best.in_switches is not None:
        rows.insert(-1, ("switches", _switches(best.in_switches, switched)))
    if best.note:
        rows.append(("note", best.note))
    if collective.rooted:
        rows = [row for row in rows if row[0] != "per rank"]
    return tables.facts(rows)


def optimum_summary(
    name: str,
    graph: CapacityGraph,
    collective: Collective,
    best: Optimum,
    root: int,
    took: float,
    switched: Fraction | None = None,
) -> dict[str, object]:
    """The same for machines."""
    other = best.in_switches
    return {
        "topology": name,
        "collective": collective.value,
        "ranks": len(graph.ranks),
        "root": _root(graph, root),
        "algbw": str(best.algbw),
        "algbw_decimal": float(best.algbw),
        "rate": str(best.rate),
        "trees_per_root": best.trees_per_root,
        "bound": str(best.bound.algbw),
        "bound_method": best.bound.method,
        "bottleneck": words.bottleneck(graph, collective, best.bound),
        "cut": [[graph.names[v] for v in sorted(part)] for part in best.bound.parts],
        "in_switches": None if other is None else str(other.algbw),
        "nvls_plans": None if switched is None else str(switched),
        "seconds": took,
        "note": best.note,
    }


def _switches(best: Optimum, switched: Fraction | None) -> str:
    """What switches that copy and add could do, and what plans make of it."""
    text = f"{words.in_switches(best.algbw)}; "
    if switched is None:
        return text + "no plan does so here: --nvls needs all GPUs on one such switch"
    return text + f"MSCCL++ plans of --nvls reach {words.exact(switched)} GB/s"


def _title(collective: Collective, name: str, graph: CapacityGraph, root: int) -> str:
    rooted = f" {'from' if collective.value == 'broadcast' else 'to'} {_root(graph, root)}"
    ranks = words.plural(len(graph.ranks), "rank")
    if graph.shares:
        ranks += f" with parts of {min(graph.shares)} to {max(graph.shares)}"
    return f"{collective.value} on {name}, {ranks}{rooted if collective.rooted else ''}"


def _root(graph: CapacityGraph, root: int) -> str | None:
    return graph.names[graph.ranks[root]] if 0 <= root < len(graph.ranks) else None


def _reached(result: Synthesis) -> Figures:
    """The figures of the plans, or of the trees where there are none."""
    program = next(iter(result.programs.values()), None)
    return replace(figures_of(result.forest, program), in_switches=result.in_switches)


def _otherwise(result: Synthesis) -> str:
    """What the trees reach in switches beside their plan, or plans of GPUs beside the trees."""
    if not result.forest.graph.copies:
        return ""
    if result.programs:
        return f"; {words.exact(result.forest.algbw)} GB/s of its trees, in the switches"
    plans = f"{words.exact(result.plan_algbw)} GB/s of plans that copy and add on the GPUs"
    return f" in the switches; {plans}"


def _trees(result: Synthesis) -> str:
    forest, best = result.forest, result.optimum
    per_root = forest.trees_per_root
    unit = "unit of a part" if forest.graph.shares else "root"
    text = f"{len(forest.trees) * forest.images}, {per_root} per {unit}"
    if forest.group is not None:
        text += f"; {len(forest.trees)} written, the others by {forest.images} symmetries"
    comparable = bool(result.programs) or best.algbw == best.bound.algbw
    if comparable and per_root != best.trees_per_root and forest.algbw != best.algbw:
        text += f" (the optimum takes {best.trees_per_root} per {unit})"
    return text


def _needs(result: Synthesis, form: PlanFormat) -> str:
    """`"8 thread blocks per rank at most, 4 of them move data, 4 instances, scratch 0.13 ..."`."""
    needs = result.needs[form]
    text = f"{words.plural(needs.thread_blocks, 'thread block')} per rank at most"
    if needs.busy < needs.thread_blocks:
        text += f", {needs.busy} of them move{'s' * (needs.busy == 1)} data"
    if needs.instances > 1:
        text += f", {needs.instances} instances"
    return text + (f", scratch {float(needs.scratch):.2f} of the input" if needs.scratch else "")


def _figures(result: Synthesis, form: PlanFormat) -> dict[str, object]:
    needs = result.needs[form]
    return {
        "thread_blocks": needs.thread_blocks,
        "busy_thread_blocks": needs.busy,
        "steps": needs.steps,
        "channels": needs.channels,
        "operations": needs.operations,
        "scratch": str(needs.scratch),
        "instances": needs.instances,
        "multiple_bytes": Sizes.of(result.programs[form]).multiple(),
        "powers_of_two": Sizes.of(result.programs[form]).powers,
        "simulated": result.bands[form].summary() if form in result.bands else None,
    }


def _modes(program: object) -> str:
    modes = [m for m in ("in_place", "out_of_place") if getattr(program, m)]
    return " and ".join(m.replace("_", " ") for m in modes)


def _times(timings: Mapping[str, float]) -> str:
    """`"0.42 s: solve 0.31 s, verify 0.09 s"`; stages of a few milliseconds are summed only."""
    slow = [f"{stage} {words.seconds(t)}" for stage, t in timings.items() if t >= ENOUGH]
    total = words.seconds(sum(timings.values()))
    return f"{total}: {', '.join(slow)}" if slow else total
