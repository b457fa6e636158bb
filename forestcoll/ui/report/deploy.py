"""A deployment as text: environment, files, how to start, what proves that the plans ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.study.predict import known_of
from forestcoll.ui.report import reached, table, words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.execute.deploy import Deployment
    from forestcoll.study.figures import Figures

HEADS = ("plan", "collective", "calls", "from", "to", "multiple of")


def served(deployment: Deployment) -> RenderableType:
    """What each plan serves, a row a plan."""
    rows = []
    for plan in deployment.plans:
        program = plan.program
        modes = (("in place", plan.in_place), ("out of place", plan.out_of_place))
        rooted = f", root {program.root}" if program.root >= 0 else ""
        rows.append(
            (
                Path(plan.source).name,
                f"{program.collective}{rooted}",
                ", ".join(word for word, on in modes if on),
                words.size(program.min_bytes) if program.min_bytes else "any",
                words.size(plan.max_bytes) if plan.max_bytes else "any",
                plan.sizes.amount(),
            )
        )
    return table.columns(HEADS, rows)


def known(deployment: Deployment) -> dict[str, Figures | None]:
    """Per plan file what links allow it, where forest or routes lie beside it."""
    plans = deployment.plans
    return {plan.source: known_of(plan.program, Path(plan.source))[1] for plan in plans}


def facts(deployment: Deployment, written: Sequence[Path]) -> RenderableType:
    """Everything else, a line a fact."""
    spread = deployment.places
    each = f" of {spread.per_node}" if spread.per_node else ""
    nodes = len(spread.nodes)
    rows = [
        ("runtime", deployment.runtime),
        ("ranks", f"{len(spread.places)} on {nodes} node{'s' if nodes > 1 else ''}{each}"),
    ]
    rows += [("links", reached.line(figures)) for figures in known(deployment).values() if figures]
    rows += [("set", f"{key}={value}") for key, value in deployment.environment.items()]
    rows += [("proof", words_of) for words_of in deployment.proof.split("; ")]
    rows += [("note", note) for note in deployment.notes]
    if written:
        rows += [("start", deployment.start)]
        rows += [("written", str(path)) for path in written]
    else:
        rows.append(("next", "--output DIR writes plans, environment and run.sh, which proves use"))
    return table.facts(rows)


def summary(deployment: Deployment, written: Sequence[Path]) -> dict[str, object]:
    """The same for machines."""
    figures = known(deployment)
    return {
        "runtime": deployment.runtime,
        "environment": deployment.environment,
        "start": deployment.start,
        "proof": deployment.proof.split("; "),
        "notes": list(deployment.notes),
        "places": [
            {"rank": p.rank, "node": p.node, "gpu": p.gpu} for p in deployment.places.places
        ],
        "plans": [
            {
                "file": plan.source,
                "name": plan.name,
                "collective": plan.program.collective.value,
                "root": plan.program.root if plan.program.root >= 0 else None,
                "in_place": plan.in_place,
                "out_of_place": plan.out_of_place,
                "min_bytes": plan.program.min_bytes,
                "max_bytes": plan.max_bytes or None,
                "multiple": plan.multiple,
                **reached.summary(figures[plan.source]),
            }
            for plan in deployment.plans
        ],
        "written": [str(path) for path in written],
    }
