"""Which GPU of which node every rank must be: plans speak of ranks, machines of GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from forestcoll.common.errors import PlanError


class Place(NamedTuple):
    """Where a rank runs. `gpu`: number within its node, by the topology's name for it."""

    rank: int
    node: str
    gpu: int


class Places(NamedTuple):
    """All ranks' places. `per_node` is 0 where nodes hold different numbers of ranks.

    `in_order`: ranks are numbered node by node, as launchers number processes.
    """

    places: tuple[Place, ...]
    nodes: tuple[str, ...]
    per_node: int
    in_order: bool

    @property
    def plain(self) -> bool:
        """Whether a launcher that fills node after node gets every rank right by itself."""
        return self.in_order and self.per_node > 0


def places(names: Sequence[str], n: int, host: int = 0) -> Places:
    """The places that ranks' names (`box1/gpu3`) tell; without names, one node with n GPUs.

    `host`: GPUs of a host where a box is several hosts, which are the nodes then; 0: it is one.
    """
    names = names if len(names) == n and all(names) else [f"gpu{i}" for i in range(n)]
    nodes = [name.rpartition("/")[0] for name in names]
    gpus: list[int] = []
    held = dict.fromkeys(nodes, 0)
    for name, node in zip(names, nodes, strict=True):
        number = re.search(r"(\d+)$", name)
        gpus.append(int(number[1]) if number else held[node])
        held[node] += 1
    if len({*zip(nodes, gpus, strict=True)}) < n:  # names that do not number the GPUs of a node
        seats = {node: count() for node in held}
        gpus = [next(seats[node]) for node in nodes]
    if host:
        of = zip(nodes, gpus, strict=True)
        nodes = [f"{node}/host{gpu // host}".lstrip("/") for node, gpu in of]
        gpus = [gpu % host for gpu in gpus]
    counts = Counter(nodes)
    return Places(
        tuple(map(Place, range(n), nodes, gpus)),
        tuple(counts),
        nodes.count(nodes[0]) if len({*counts.values()}) == 1 else 0,
        nodes == [node for node, ranks in counts.items() for _ in range(ranks)],
    )


def same_places(all_names: Sequence[tuple[str, Sequence[str], int]], host: int) -> Places:
    """The places of plans that are used together: (source, names, ranks) of each; `host`: as above.

    Raises PlanError where two plans number the same GPUs differently.
    """
    first, names, n = all_names[0]
    for source, other, ranks in all_names[1:]:
        if ranks != n:
            raise PlanError(
                f"{source}: {ranks} ranks, but {first} has {n}; deploy plans of one group at a time"
            )
        if tuple(other) != tuple(names) and any(other) and any(names):
            raise PlanError(f"{source}: numbers the GPUs otherwise than {first}; deploy them apart")
    return places(names, n, host)
