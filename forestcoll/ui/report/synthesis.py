"""What `optimum`, `synthesize` and `front` found, of one group and of several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.compile.budget import different_trees
from forestcoll.program import Collective
from forestcoll.program.sizes import Sizes
from forestcoll.study.figures import figures_of
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    Part,
    Rows,
    bandwidth_facts,
    files,
    line,
    machine,
    model,
    notes,
    same,
    seconds,
)

if TYPE_CHECKING:
    from fractions import Fraction

    from forestcoll.compile.formats import Format
    from forestcoll.compile.front import FrontTable, Row
    from forestcoll.compile.problem import Problem
    from forestcoll.compile.synthesize import Synthesis
    from forestcoll.compile.together import GroupsProblem, Schedules
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Bound
    from forestcoll.solver import Optimum
    from forestcoll.solver.groups.split import Split
    from forestcoll.study.layout import Layout

ROWS = 32
"""Groups that the table names one by one."""
PLACES = 16
"""Ranks whose GPUs are told one by one."""


def schedule(
    result: Synthesis, timings: Mapping[str, float], paths: Mapping[Format, Path]
) -> list[Fact]:
    """The forest against its bound, the plans, where the time went, and what was written."""
    forest, bound, bands = result.forest, result.optimum.bound, result.bands
    program = next(iter(result.programs.values()), None)
    figures = figures_of(forest, program)._replace(in_switches=result.in_switches)
    shares = ""
    if result.programs and bands:
        shares = f", {words.shares(bands.values(), bound.algbw)}"
    # what the trees reach in switches beside their plan, or plans of GPUs beside the trees
    other = ""
    if forest.graph.copies:
        other = f" in the switches; {words.rate(result.plan_algbw)} of plans that copy and add on"
        other += " the GPUs"
        if result.programs:
            other = f"; {words.rate(forest.algbw)} of its trees, in the switches"
    reach = bandwidth_facts(figures, other, shares)
    plans: dict[str, dict[str, object]] = {}
    for form, needs in result.needs.items():
        sizes = Sizes.of(result.programs[form])
        plans[form] = {
            "thread_blocks": needs.thread_blocks,
            "busy_thread_blocks": needs.busy,
            "steps": needs.steps,
            "channels": needs.channels,
            "operations": needs.operations,
            "scratch": needs.scratch,
            "instances": needs.instances,
            "multiple_bytes": sizes.multiple(),
            "powers_of_two": sizes.powers,
            "simulated": bands.get(form),
        }
    least = result.least_height
    return [
        *_head("schedule", result.name, forest.graph, forest.collective, forest.root),
        *reach[:3],
        Fact("trees", forest.count, _trees(result)),
        Fact("height", forest.height, words.height(forest, result.latency, least)),
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
            height_bound=least,
            latency_us=result.latency,
            latency_us_decimal=float(result.latency),
            cut=_names(forest.graph, bound),
            plan_algbw=result.plan_algbw,
            plans=plans,
        ),
        *(line(form, _plan(result, form)) for form in result.programs),
        Fact(
            "simulated", bands.get("forest"), lambda band: f"{words.rates(band)}, the trees alone"
        ),
        model(bands.values()),
        seconds(timings),
        *files(paths),
        *notes(result.notes),
    ]


def optimum(
    name: str, asked: Problem, best: Optimum, took: float, switched: Fraction | None = None
) -> list[Fact]:
    """The optimum of plans, exact and decimal, and why none is faster; then what switches could do.

    `switched`: GB/s that plans which copy and add in a switch reach, if there are any.
    """
    graph, collective, bound, other = asked.graph, asked.collective, best.bound, best.in_switches
    root = -1 if asked.root is None else asked.root
    unit = "unit" if max(graph.parts) > 1 else ""
    share = ""
    if bound.algbw != best.algbw:
        share = f"{words.rate(bound.algbw)}; {words.percent(best.algbw, bound.algbw)} of it"
        share += " is reached"
    each = "" if collective.has_root and not unit else words.rate(best.rate)
    trees = f"{best.trees_per_root} per {unit or 'root'} at the least"
    switches = ""
    if other is not None:
        plans = "no plan does so here: --nvls needs all GPUs on one such switch"
        if switched is not None:
            plans = f"MSCCL++ plans of --nvls reach {words.rate(switched)}"
        switches = f"{words.in_switches(other.algbw)}; {plans}"
    return [
        *_head("optimum", name, graph, collective, root),
        Fact("algbw", best.algbw, words.rate),
        Fact("bound", bound.algbw, share),
        Fact("rate", best.rate, each, f"per {unit or 'rank'}"),
        Fact("trees_per_root", best.trees_per_root, trees, "trees"),
        same("bottleneck", words.bottleneck(graph, collective, bound)),
        Fact("in_switches", None if other is None else other.algbw, switches, "switches"),
        seconds(took),
        same("note", best.note),
        *machine(
            algbw_decimal=float(best.algbw),
            bound_method=bound.method,
            cut=_names(graph, bound),
            nvls_plans=switched,
        ),
    ]


def _head(
    label: str, name: str, graph: CapacityGraph, collective: Collective, root: int
) -> list[Fact]:
    """What is done where: `"allgather on dgx-a100-2, 16 ranks"`."""
    ranks = words.plural(len(graph.ranks), "rank")
    if graph.shares:
        least, most = min(graph.shares), max(graph.shares)
        what = "sums" if collective.two_phases else "parts"
        ranks += f" with {what} of {least} to {most}" if least < most else f" with equal {what}"
    whose = graph.names[graph.ranks[root]] if 0 <= root < len(graph.ranks) else None
    if collective.has_root:
        ranks += f" {'to' if collective.reduces else 'from'} {whose}"
    return [
        Fact("topology", name, f"{collective} on {name}, {ranks}", label),
        *machine(collective=collective, ranks=len(graph.ranks), root=whose),
    ]


def _names(graph: CapacityGraph, bound: Bound) -> list[list[str]]:
    return [[graph.names[v] for v in sorted(part)] for part in bound.parts]


def _trees(result: Synthesis) -> str:
    forest, best = result.forest, result.optimum
    per_root = forest.trees_per_root
    unit = "unit of a part" if max(forest.graph.parts) > 1 else "root"
    text = f"{forest.count}, {per_root} per {unit}"
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


# --- groups ---------------------------------------------------------------------------------------


def groups_optimum(
    asked: GroupsProblem, best: Split, alone: Sequence[Fraction], took: float
) -> list[Fact]:
    """The common algbw with its bound, and what each group would have alone."""
    texts = [f"{words.rate(rate)} alone on all links" for rate in alone]
    return [
        *_groups_head("optimum", asked, best.algbw, best.bound.algbw),
        Fact("alone", alone),
        *_each(asked, texts),
        seconds(took),
        *notes([best.note] if best.note else []),
    ]


def schedules(
    asked: GroupsProblem, result: Schedules, timings: Mapping[str, float], paths: Sequence[Path]
) -> list[Fact]:
    """The common algbw, each group's trees, where the time went, and what was written."""
    done, forests = result.done, result.done.forests
    texts = [
        f"{words.plural(len(forest.trees), 'tree')}, {forest.trees_per_root} per root, height "
        f"{words.height(forest, latency)}"
        for forest, latency in zip(forests, result.latencies, strict=True)
    ]
    return [
        *_groups_head("schedules", asked, done.algbw, done.bound.algbw),
        *machine(
            trees_per_root=[forest.trees_per_root for forest in forests],
            height=[forest.height for forest in forests],
            latency_us=result.latencies,
        ),
        *_each(asked, texts),
        seconds(timings, whole=True),
        Fact("files", paths, _in_folder(paths), "written"),
        *notes(result.notes),
    ]


def _groups_head(label: str, asked: GroupsProblem, algbw: Fraction, bound: Fraction) -> list[Fact]:
    names = asked.machine.names
    title = (
        f"{asked.collective} on {asked.name}, {words.plural(len(asked.members), 'group')} at once"
    )
    return [
        Fact("topology", asked.name, title, label),
        Fact("collective", asked.collective),
        Fact("groups", [[names[v] for v in members] for members in asked.members]),
        Fact("algbw", algbw, f"{words.rate(algbw)} in every group"),
        Fact("algbw_decimal", float(algbw)),
        Fact("bound", bound, words.rate),
        Fact("optimal", algbw == bound, words.percent(algbw, bound), "of optimal"),
    ]


def _each(asked: GroupsProblem, texts: Sequence[str]) -> list[Fact]:
    """A line a group: its ranks, then the text."""
    rows = []
    for g, (members, text) in enumerate(zip(asked.members, texts, strict=True)):
        if g == ROWS:
            rows.append(line("...", f"{len(texts) - ROWS} groups more"))
            break
        ranks = words.label(asked.machine, frozenset(members))
        rows.append(line(f"group {g}", f"{ranks}: {text}"))
    return rows


# --- layouts --------------------------------------------------------------------------------------


def layout(done: Layout, took: float, more: Sequence[str], paths: Sequence[Path]) -> list[Part]:
    """What a placement takes and each row reaches, beside the topology's order and the bounds."""
    sizes = [
        f"{name}={size}"
        for grid in done.job.parallel.grids
        for name, size in zip(grid.names, grid.sizes, strict=True)
        if size > 1
    ]
    shown = ", ".join(dict.fromkeys(sizes))
    title = f"{shown} on {done.topology.name}, {words.plural(len(done.names), 'rank')}"
    default = "cannot be served"
    if done.default is not None:
        faster = f"placed {float(done.default / done.seconds):.3g} times as fast"
        gained = "no slower" if done.default == done.seconds else faster
        default = f"{_of_step(done.default)}; {gained}"
    places = [f"{rank}: {name}" for rank, name in enumerate(done.names[:PLACES])]
    places += ["..."] * (len(done.names) > PLACES)
    notes_of = [step.cost.note for step in done.steps if step.cost.note]
    stopped = ["the search was interrupted: this is the best so far"] if done.stopped else []
    facts = [
        Fact("topology", done.topology.name, title, "layout"),
        Fact("step_seconds", done.seconds, _of_step, "time a step"),
        Fact("default_seconds", done.default, default, "topology's order"),
        Fact("bound_seconds", done.bound, _of_step, "at least"),
        Fact("gpus", done.names, ", ".join(places)),
        Fact("exact_programs", done.exact),
        seconds(took),
        Fact("files", list(paths), _in_folder(paths), "written"),
        *notes([*stopped, *dict.fromkeys(notes_of), *more]),
    ]
    rows = [
        [
            same("step", number),
            same("row", result.row.traffic.name, "traffic"),
            Fact("bytes", result.row.total, words.size, "a step"),
            Fact("algbw", result.algbw, words.decimal),
            Fact(
                "default",
                result.default,
                "none" if result.default is None else words.decimal(result.default),
                "topology's order",
            ),
            Fact("alone_at_most", result.bound, f"{result.bound:.4g}", "alone at most"),
            Fact("proven", step.cost.algbw == step.cost.bound),
        ]
        for number, step in enumerate(done.steps)
        for result in step.rows
    ]
    return [facts, Rows("rows", rows, right=range(2, 7))]


def _of_step(seconds: Fraction | float) -> str:
    return words.duration(float(seconds) * 1e6)


def _in_folder(paths: Sequence[Path]) -> str:
    """How many files, where, and how large."""
    if not paths:
        return ""
    total = words.size(sum(path.stat().st_size for path in paths))
    return f"{words.plural(len(paths), 'file')} in {paths[0].parent} ({total})"


# --- fronts ---------------------------------------------------------------------------------------


def pareto_front(front: FrontTable) -> list[Part]:
    """A line a point, and what plans need or why there is none."""
    ranks, best = len(front.graph.ranks), front.optimum.algbw
    bands = [row.band for row in front.rows if row.band is not None]
    plans = "thread blocks per rank / channels / steps per thread block"
    left = f"{words.plural(front.left_out, 'point')} between; --all" if front.left_out else ""
    title = f"{front.collective} on {front.name}, {words.plural(ranks, 'rank')}"
    facts = [
        Fact("topology", front.name, title, "front"),
        *machine(collective=front.collective, ranks=ranks, optimum_decimal=float(best)),
        Fact("optimum", best, words.rate),
        seconds(front.timings, whole=True),
        line("simulated", "GB/s of the trees alone at 1 GB" if bands else ""),
        model(bands),
        Fact("left_out", front.left_out, left, "left out"),
        line("plans", plans if front.rows[0].needs else ""),
    ]
    points = [_point(row, front) for row in front.rows]
    return [facts, Rows("points", points, right=range(7))]


def _point(row: Row, front: FrontTable) -> list[Fact]:
    """A row; of points without a forest only what the trees per root say."""
    algbw, late = row.point.algbw, row.latency
    facts = [
        same("trees_per_root", row.point.trees, "trees per root"),
        Fact("algbw", algbw, words.decimal),
        Fact("algbw_decimal", float(algbw)),
        Fact(
            "percent",
            float(100 * row.point.share),
            words.percent(algbw, front.optimum.algbw),
            "of optimal",
        ),
    ]
    if row.height is not None:
        least = row.least_height
        height = str(row.height)
        if least not in (None, row.height) and len(front.graph.ranks) > words.BOUNDED_FROM:
            height += f" (>= {least})"
        facts += [
            Fact("simulated", row.band, words.span),
            Fact("height", row.height, height),
            Fact("height_bound", least),
        ]
    if late is not None:
        facts.append(Fact("latency_us", late, words.microseconds, "latency"))
        facts.append(Fact("latency_us_decimal", float(late)))
    if row.height is not None:
        facts.append(same("different_trees_per_root", row.different, "different"))
    plans: dict[str, dict[str, object]] = {}
    for target, need in row.needs.items():
        if isinstance(need, str):  # the figure that is too large
            plans[target] = {"fits": False, "reason": need}
            text = "no: " + need.partition("; ")[0].rpartition(": ")[2]
        else:
            own = {key: getattr(need, key) for key in ("thread_blocks", "channels", "steps")}
            plans[target] = {"fits": True, **own}
            text = " / ".join(map(str, own.values()))
        facts.append(line(target, text))
    return [*facts, *machine(plans=plans)] if plans else facts
