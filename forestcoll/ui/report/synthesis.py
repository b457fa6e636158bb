"""What `optimum` and `synthesize` found, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.compile.budget import different_trees
from forestcoll.program import Collective
from forestcoll.program.sizes import Sizes
from forestcoll.study.figures import figures_of
from forestcoll.ui.report import reached, words
from forestcoll.ui.report.facts import Fact, files, machine, model, notes, seconds, views

if TYPE_CHECKING:
    from fractions import Fraction

    from forestcoll.compile.formats import Format
    from forestcoll.compile.synthesize import Synthesis
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Bound
    from forestcoll.solver import Optimum
    from forestcoll.study.figures import Figures


def _facts(
    result: Synthesis, timings: Mapping[str, float], paths: Mapping[Format, Path]
) -> list[Fact]:
    """The forest against its bound, the plans, where the time went, and what was written."""
    forest, bound, bands = result.forest, result.optimum.bound, result.bands
    figures = _links_allow(result)
    shares = ""
    if result.programs and bands:
        shares = f", {words.shares(bands.values(), bound.algbw)}"
    reach = reached.facts(figures, _otherwise(result), shares)
    alone = bands.get("forest")
    trees = "" if alone is None else f"{words.rates(alone)}, the trees alone"
    height = words.height(forest, result.latency, result.least_height)
    return [
        *_head("schedule", result.name, forest.graph, forest.collective, forest.root),
        *reach[:3],
        Fact("trees", len(forest.trees) * forest.images, _trees(result)),
        Fact("height", forest.height, height),
        *reach[3:],
        *machine(
            algbw_decimal=float(figures.algbw),
            forest_algbw=forest.algbw,
            plain_algbw=forest.plain_algbw,
            plain_bound=result.plain_bound.algbw,
            bound_method=bound.method,
            optimal=figures.algbw == bound.algbw,
            trees_per_root=forest.trees_per_root,
            representatives=len(forest.trees),
            different_trees_per_root=different_trees(forest),
            height_bound=result.least_height,
            latency_us=result.latency,
            latency_us_decimal=float(result.latency),
            cut=_names(forest.graph, bound),
            plan_algbw=result.plan_algbw,
            plans={form: _figures(result, form) for form in result.needs},
        ),
        *(Fact("", None, _plan(result, form), form) for form in result.programs),
        Fact("simulated", alone, trees),
        model(bands.values()),
        seconds(timings),
        *files(paths),
        *notes(result.notes),
    ]


table, summary = views(_facts)


def _optimum(
    name: str,
    graph: CapacityGraph,
    collective: Collective,
    best: Optimum,
    root: int,
    took: float,
    switched: Fraction | None = None,
) -> list[Fact]:
    """The optimum of plans, exact and decimal, and why none is faster; then what switches could do.

    `switched`: GB/s that plans which copy and add in a switch reach, if there are any.
    """
    bound, other, unit = best.bound, best.in_switches, "unit" if graph.shares else ""
    share = ""
    if bound.algbw != best.algbw:
        share = f"{words.rate(bound.algbw)}; {words.percent(best.algbw, bound.algbw)} of it"
        share += " is reached"
    each = "" if collective.rooted and not unit else words.rate(best.rate)
    trees = f"{best.trees_per_root} per {unit or 'root'} at the least"
    limit = words.bottleneck(graph, collective, bound)
    switches = "" if other is None else _switches(other.algbw, switched)
    return [
        *_head("optimum", name, graph, collective, root),
        Fact("algbw", best.algbw, words.rate(best.algbw)),
        Fact("bound", bound.algbw, share),
        Fact("rate", best.rate, each, f"per {unit or 'rank'}"),
        Fact("trees_per_root", best.trees_per_root, trees, "trees"),
        Fact("bottleneck", limit, limit),
        Fact("in_switches", None if other is None else other.algbw, switches, "switches"),
        seconds(took),
        Fact("note", best.note, best.note),
        *machine(
            algbw_decimal=float(best.algbw),
            bound_method=bound.method,
            cut=_names(graph, bound),
            nvls_plans=switched,
        ),
    ]


optimum_table, optimum_summary = views(_optimum)


def _head(
    label: str, name: str, graph: CapacityGraph, collective: Collective, root: int
) -> list[Fact]:
    """What is done where: `"allgather on dgx-a100-2, 16 ranks"`."""
    ranks = words.plural(len(graph.ranks), "rank")
    if graph.shares:
        ranks += f" with parts of {min(graph.shares)} to {max(graph.shares)}"
    whose = graph.names[graph.ranks[root]] if 0 <= root < len(graph.ranks) else None
    if collective.rooted:
        ranks += f" {'to' if collective.reduces else 'from'} {whose}"
    return [
        Fact("topology", name, f"{collective} on {name}, {ranks}", label),
        *machine(collective=collective, ranks=len(graph.ranks), root=whose),
    ]


def _names(graph: CapacityGraph, bound: Bound) -> list[list[str]]:
    return [[graph.names[v] for v in sorted(part)] for part in bound.parts]


def _switches(algbw: Fraction, switched: Fraction | None) -> str:
    """What switches that copy and add could do, and what plans make of it."""
    text = f"{words.in_switches(algbw)}; "
    if switched is None:
        return text + "no plan does so here: --nvls needs all GPUs on one such switch"
    return text + f"MSCCL++ plans of --nvls reach {words.rate(switched)}"


def _links_allow(result: Synthesis) -> Figures:
    """The figures of the plans, or of the trees where there are none."""
    program = next(iter(result.programs.values()), None)
    return replace(figures_of(result.forest, program), in_switches=result.in_switches)


def _otherwise(result: Synthesis) -> str:
    """What the trees reach in switches beside their plan, or plans of GPUs beside the trees."""
    if not result.forest.graph.copies:
        return ""
    if result.programs:
        return f"; {words.rate(result.forest.algbw)} of its trees, in the switches"
    plans = f"{words.rate(result.plan_algbw)} of plans that copy and add on the GPUs"
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


def _plan(result: Synthesis, form: PlanFormat) -> list[str]:
    """What a plan takes, which sizes it serves, what it reaches: a line each."""
    needs, program = result.needs[form], result.programs[form]
    text = f"{words.plural(needs.thread_blocks, 'thread block')} per rank at most"
    if needs.busy < needs.thread_blocks:
        text += f", {needs.busy} of them move{'s' * (needs.busy == 1)} data"
    if needs.instances > 1:
        text += f", {needs.instances} instances"
    if needs.scratch:
        text += f", scratch {float(needs.scratch):.2f} of the input"
    modes = [m for m in ("in_place", "out_of_place") if getattr(program, m)]
    lines = [f"{text}; {' and '.join(modes).replace('_', ' ')}"]
    lines.append(f"serves {words.serves(Sizes.of(program))}")
    if form in result.bands:
        lines.append(f"simulated {words.band(result.bands[form])}")
    return [*lines, str(program.extra.get("halves", ""))]


def _figures(result: Synthesis, form: PlanFormat) -> dict[str, object]:
    needs, sizes = result.needs[form], Sizes.of(result.programs[form])
    return {
        "thread_blocks": needs.thread_blocks,
        "busy_thread_blocks": needs.busy,
        "steps": needs.steps,
        "channels": needs.channels,
        "operations": needs.operations,
        "scratch": needs.scratch,
        "instances": needs.instances,
        "multiple_bytes": sizes.multiple(),
        "powers_of_two": sizes.powers,
        "simulated": result.bands.get(form),
    }
