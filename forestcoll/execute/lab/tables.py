"""Routing tables of a network: what every node does with packets, by their way between ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from forestcoll.schedule.routes import Pair, Routes


@dataclass(frozen=True, slots=True)
class Table:
    """What one node does with packets: by destination rank, or by source and destination."""

    to: dict[int, int]  # rank -> next node
    between: dict[Pair, int]  # exceptions


def tables(found: Routes) -> dict[int, Table]:
    """Every node's table, such that packets between any two ranks take their way."""
    steps: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for (i, j), path in found.ways.items():
        for here, there in pairwise(path):
            steps[here][j][i] = there
    made = {}
    for node, by_target in steps.items():
        to, between = {}, {}
        for j, by_source in by_target.items():
            to[j] = Counter(by_source.values()).most_common(1)[0][0]
            between.update({(i, j): there for i, there in by_source.items() if there != to[j]})
        made[node] = Table(to, between)
    return made
