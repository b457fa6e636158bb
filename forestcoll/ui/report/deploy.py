"""A deployment as text: environment, files, how to start, what proves that the plans ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.study.predict import known_of
from forestcoll.ui.report import reached, words
from forestcoll.ui.report.facts import Fact, Rows, as_json, as_table, machine, notes, texts, views

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.execute.deploy import Deployment
    from forestcoll.execute.deploy.plans import Plan
    from forestcoll.study.figures import Figures


def served(deployment: Deployment) -> RenderableType:
    """What each plan serves, a row a plan."""
    return as_table([Rows("", [_plan(plan) for plan in deployment.plans], right=(99,))])


def _plan(plan: Plan) -> list[Fact]:
    program = plan.program
    low, high = program.min_bytes, plan.max_bytes
    modes = (("in place", plan.in_place), ("out of place", plan.out_of_place))
    rooted = f", root {program.root}" if program.root >= 0 else ""
    return [
        Fact("file", plan.source, Path(plan.source).name, "plan"),
        *machine(name=plan.name, root=program.root if rooted else None),
        Fact("collective", program.collective, f"{program.collective}{rooted}"),
        Fact("", None, ", ".join(word for word, on in modes if on), "calls"),
        *machine(in_place=plan.in_place, out_of_place=plan.out_of_place),
        Fact("min_bytes", low, words.size(low) if low else "any", "from"),
        Fact("max_bytes", high or None, words.size(high) if high else "any", "to"),
        Fact("multiple", plan.multiple, plan.sizes.amount(), "multiple of"),
    ]


def _figures_of(deployment: Deployment) -> dict[str, Figures | None]:
    """Per plan file what links allow it, where forest or routes lie beside it."""
    plans = deployment.plans
    return {plan.source: known_of(plan.program, Path(plan.source))[1] for plan in plans}


def _facts(deployment: Deployment, written: Sequence[Path]) -> list[Fact]:
    """What a runtime needs, what proves that the plans ran, and of each plan what it serves."""
    spread, figures = deployment.places, _figures_of(deployment)
    each = f" of {spread.per_node}" if spread.per_node else ""
    ranks = f"{len(spread.places)} on {words.plural(len(spread.nodes), 'node')}{each}"
    proof = deployment.proof.split("; ")
    how = "--output DIR writes plans, environment and run.sh, which proves use"
    places = [{"rank": p.rank, "node": p.node, "gpu": p.gpu} for p in spread.places]
    plans = [
        {**as_json(_plan(plan)), **reached.summary(figures[plan.source])}
        for plan in deployment.plans
    ]
    return [
        Fact("runtime", deployment.runtime, deployment.runtime),
        Fact("places", places, ranks, "ranks"),
        *texts("links", [reached.line(found) for found in figures.values() if found]),
        Fact("environment", deployment.environment),
        *texts("set", [f"{key}={value}" for key, value in deployment.environment.items()]),
        Fact("proof", proof),
        *texts("proof", proof),
        *notes(deployment.notes),
        Fact("start", deployment.start, deployment.start if written else ""),
        Fact("plans", plans),
        Fact("written", written),
        *texts("written", map(str, written)),
        Fact("", None, "" if written else how, "next"),
    ]


facts, summary = views(_facts)
