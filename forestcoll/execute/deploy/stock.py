"""What stock libraries take without a plan, deployed: trees in a variable, rings in files.

The proof is in the library's own log: what it says of every rank is what it was given, or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.plans import stock
from forestcoll.plans.stock import trees as rccl

_LOG: Any = import_module("forestcoll.execute.deploy.scripts.stock_log")
DEBUG: Final = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH"}
NO_PLANS: Final = (
    "stock NCCL runs no plans: --runtime mscclpp, msccl and torch do; or give it rings on rails "
    "('forestcoll export MACHINE --to nccl-graph')"
)
NOTES: Final[dict[stock.Kind, tuple[str, ...]]] = {
    "rccl-trees": (
        "it can: allreduce over these trees, in one box, all of them with equal shares, GPU k as "
        "rank k",
        "it cannot: other collectives, which stay on the library's rings; trees between boxes; "
        "plans ('--runtime rccl' deploys those of MSCCL XML, too)",
    ),
    "nccl-graph": (
        "it can: these rings for all collectives, and chains in the boxes for trees",
        "it cannot: plans, an order of boxes other than by rank, trees between boxes but its own, "
        "trees that branch in boxes, unequal shares",
        "adapters have numbers of the library's own list ('Using [0]...' in its log)",
    ),
}


class Given(NamedTuple):
    """What a library is given: how many ranks each box has, per channel what the log says of each.

    `environment` with `$PLANS` for the folder that holds `files`.
    """

    kind: stock.Kind
    boxes: tuple[int, ...]
    channels: list[list[str]]
    environment: dict[str, str]
    files: dict[str, str]


def collect(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """(source, text) of the files, in folders of those for graphs; none: all are plans."""
    held = [file for path in paths for file in sorted(path.glob("*.nccl-graph.xml")) or [path]]
    texts = [(str(p), read_text(p, PLAN_BYTES, PlanError)) for p in held if not p.is_dir()]
    return texts if any(stock.kind_of(text) for _, text in texts) else []


def read(texts: Iterable[tuple[str, str]]) -> Given:
    """What the files (source, text) give a library: one of trees, or one of rings for each box.

    Raises PlanError where it would not survive one, or they do not fit together.
    """
    own = dict(texts)
    readings: dict[str, stock.Reading] = {}
    for source, text in own.items():
        kind = stock.kind_of(text)
        if kind is None:
            raise PlanError(f"{source}: is not for a stock library, others are; deploy it apart")
        readings[source] = stock.lint(text, source, kind)
        if not readings[source].report.ok:
            raise PlanError(f"{source}: {readings[source].report.findings[0]}")
    trees = [reading.trees for reading in readings.values() if reading.trees]
    if trees and len(readings) > 1:
        raise PlanError(f"{', '.join(readings)}: give one file of trees, or files of rings alone")
    if not trees:
        return _rings(own, {source: reading.rings for source, reading in readings.items()})
    channels = []
    for tree in trees[0]:
        above = {child: rank for rank, children in tree.items() for child in children}
        channels.append(
            [_LOG.tree_text(tree[rank], rank, above.get(rank, -1)) for rank in sorted(tree)]
        )
    variables = rccl.variables(trees[0])
    files = {"rccl-trees.env": f"export {rccl.VARIABLE}='{variables[rccl.VARIABLE]}'\n"}
    return Given("rccl-trees", (len(trees[0][0]),), channels, variables | DEBUG, files)


def _rings(texts: dict[str, str], of: dict[str, list[list[int]]]) -> Given:
    """Files of rings, ordered by their ranks."""
    order = sorted(of, key=lambda source: min(of[source][0]))
    rings = [of[source] for source in order]
    held = [rank for own in rings for rank in sorted(own[0])]
    if held != list(range(len(held))):
        raise PlanError(
            f"{', '.join(order)}: ranks {held[:4]} ... of {len(held)}; there has to be a file for "
            "each box, and in them every rank from 0 on once, box by box"
        )
    channels = [
        [text for _, text in sorted(_LOG.ring_texts([rank for one in ring for rank in one]))]
        for ring in zip(*rings, strict=False)  # the library takes the least of all boxes
    ]
    environment = {
        "NCCL_GRAPH_FILE": "$PLANS/${NODE_RANK:-${SLURM_NODEID:-0}}.nccl-graph.xml",
        "NCCL_CROSS_NIC": "0",
    }
    files = {f"{k}.nccl-graph.xml": texts[source] for k, source in enumerate(order)}
    boxes = tuple(len(own[0]) for own in rings)
    return Given("nccl-graph", boxes, channels, environment | DEBUG, files)


def compare(given: Given, text: str) -> tuple[bool, list[str]]:
    """Whether a log of all ranks shows what was given, and a line for each thing to say of it."""
    ok, told = _LOG.compare(text.splitlines(), given.kind, given.channels, len(given.channels[0]))
    return bool(ok), list(told)
