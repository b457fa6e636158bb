"""The commands of simulated times, `time` and `calendar`: on which links a plan is played."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestCollError
from forestcoll.ui.cli.process import guard, size_of

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.study.predict import Prediction
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Rule


def predict(program: Program, source: str, topology: Topology | None) -> Prediction:
    """Of a plan's file, on the topology or by what lies beside it."""
    from forestcoll.study import predict as predictions

    beside = predictions.forest_beside(Path(source))
    if topology is not None:
        return predictions.by_topology(program, topology, beside)
    with guard(source, size_of(*([beside] if beside else []))):
        prediction, why = predictions.beside(program, Path(source))
    if prediction is None:
        raise ForestCollError(why or _no_links(program, source))
    return prediction


def rules_of(rules: tuple[Rule | None, ...]) -> list[Rule]:
    """The rules in the order in which the model has them; a link's own is one of them."""
    from forestcoll.verify.simulate import BOTH

    return [rule for rule in (BOTH[::-1] if None in rules else rules) if rule is not None]


def _no_links(program: Program, source: str) -> str:
    kind = "forest" if program.collective.phases else "routes"
    return (
        f"{source}: no {kind} file beside it, so "
        "its links are unknown; give the topology with --topology NAME or FILE"
    )
