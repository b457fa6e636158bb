"""What was found for an all-to-all, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.program.sizes import Sizes
from forestcoll.solver.alltoall.file import word
from forestcoll.study.figures import figures_of
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    bandwidth_facts,
    describe_file,
    files,
    line,
    machine,
    model,
    notes,
    seconds,
)

if TYPE_CHECKING:
    from forestcoll.compile.alltoall_plans import Plan
    from forestcoll.solver.alltoall.demand import Demand
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.reference_routes import Reference
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.verify.simulate import Band


def optimum(
    best: Optimum,
    name: str,
    timings: Mapping[str, float],
    path: Path | None,
    others: Mapping[Reference, Fraction | None],
) -> list[Fact]:
    """The optimum, what limits it, what usual ways reach, and where the time went."""
    demand = best.demand
    few = min(map(len, demand.groups), default=len(demand.graph.ranks))  # of several groups
    algbw, pair, least = words.rate(best.algbw), "", ""
    busbw = words.rate(best.algbw * Fraction(few - 1, few))
    if demand.matrix is None:
        pair = "" if demand.groups else words.rate(best.theta)
    else:
        algbw, busbw = f"{algbw} of the largest send buffer", ""
        stays = sum(row[i] for i, row in enumerate(demand.matrix))
        total = sum(map(sum, demand.matrix)) - stays
        least = f"{words.in_time(1 / best.theta)} for {words.size(total)}"
    usual = []
    for way, reached in others.items():
        text = f"impossible: {WORDS[way]}"
        if reached is not None:
            share = words.percent(reached, best.algbw)
            text = f"{words.rate(reached)}, {share} of it: {WORDS[way]} (ECMP)"
        usual.append(line(way, text))
    return [
        *_head("optimum", name, demand),
        Fact("groups", [len(group) for group in demand.groups]),
        Fact("nanoseconds", None if demand.matrix is None else 1 / best.theta, least, "least time"),
        Fact("algbw", best.algbw, algbw),
        line("busbw", busbw),
        Fact("theta", best.theta, pair, "each pair"),
        _limits(best),
        Fact("bound", best.bound, _proof(best), "proof"),
        *machine(
            algbw_decimal=float(best.algbw),
            bound_method="lengths",
            sources=len(best.folding.sources),
            usual=others,
        ),
        *usual,
        seconds(timings),
        Fact("file", path, describe_file, "written"),
    ]


def routes(
    routes: Routes,
    name: str,
    plans: Sequence[Plan],
    bands: Mapping[str, Band],
    timings: Mapping[str, float],
    paths: Mapping[str, Path],
    about: Sequence[str],
) -> list[Fact]:
    """The routes against their bound, their plans, and what was written."""
    reach, algbw = bandwidth_facts(figures_of(routes)), routes.algbw
    pair = words.rate(algbw / routes.optimum.demand.scale)
    keys = ("thread_blocks", "steps", "channels", "scratch")
    needs = {
        p.format: {
            **{key: getattr(p.needs, key) for key in keys},
            "simulated": bands.get(p.format),
        }
        for p in plans
    }
    said = []
    for plan in plans:
        blocks = words.plural(plan.needs.thread_blocks, "thread block")
        steps = words.plural(plan.needs.steps, "step")
        scratch = words.decimal(plan.needs.scratch, 2)
        band = bands.get(plan.format)
        lines = [
            f"{blocks} per rank at most, {steps} in one, scratch {scratch} of the input; out of "
            "place",
            f"serves {words.serves(Sizes.of(plan.program))}",
            f"simulated {words.band(band)}" if band else "",
        ]
        said.append(line(plan.format, lines))
    return [
        *_head("routes", name, routes.demand),
        *reach[:3],
        Fact("units", routes.units, f"{words.plural(routes.units, 'unit')}, {pair}", "each pair"),
        Fact("paths", len(routes.routes), paths_of(routes)),
        _limits(routes.optimum),
        *machine(**{fact.key: fact.value for fact in reach[3:]}),
        *machine(
            algbw_decimal=float(algbw),
            optimal=algbw == routes.optimum.bound,
            images=routes.images,
            hops=routes.hops,
            plans=needs,
        ),
        *said,
        model(bands.values()),
        seconds(timings),
        *files(paths),
        *notes(about),
    ]


def _head(label: str, name: str, demand: Demand) -> list[Fact]:
    return [
        Fact("topology", name, f"{word(demand)} on {name}, {_who(demand)}", label),
        *machine(collective=word(demand), ranks=len(demand.graph.ranks)),
    ]


def _limits(best: Optimum) -> Fact:
    return Fact("limits", words.limiting(best), words.limits_of(best))


def paths_of(exchange: Routes) -> str:
    """`"63 paths, 4032 with their images by 64 symmetries; at most 6 hops from GPU to GPU"`."""
    count = words.plural(len(exchange.routes), "path")
    if exchange.images > 1:
        count += f", {exchange.total} with their images by "
        count += words.plural(exchange.images, "symmetry")
    return f"{count}; at most {words.plural(exchange.hops, 'hop')} from GPU to GPU"


WORDS: dict[Reference, str] = {
    "direct": "each block straight to its rank",
    "shortest": "shortest ways, ranks passing on",
}


def _who(demand: Demand) -> str:
    if not demand.groups:
        return words.plural(len(demand.graph.ranks), "rank")
    sizes = sorted({len(group) for group in demand.groups})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{words.plural(len(demand.groups), 'group')} of {each} ranks at once"


def _proof(best: Optimum) -> str:
    flows = words.plural(len(best.flows), "flow")
    few = len(best.flows) < len(best.demand.graph.ranks)
    alike = f" ({len(best.demand.graph.ranks)} by symmetry)" if few else ""
    least = "nothing is faster"
    if best.bound != best.algbw:
        least = f"this is {words.percent(best.algbw, best.bound)} of the optimum at least"
    values = sorted(set(best.lengths))
    lengths = (", " if len(values) > 2 else " and ").join(map(str, values))
    if len(values) > 3:
        lengths = f"from {values[0]} to {values[-1]}"
    return f"reached by {flows}{alike}; link lengths {lengths} prove that {least}"
