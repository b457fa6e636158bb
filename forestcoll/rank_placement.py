"""Which GPU of which node every rank must be: plans speak of ranks, machines of GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forestcoll.errors import PlanError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs. `gpu`: number within its node, by the topology's name for it."""

    rank: int
    node: str
    gpu: int


@dataclass(frozen=True, slots=True)
class Places:
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


def places(names: Sequence[str], n: int) -> Places:
    """The places that ranks' names (`box1/gpu3`) tell; without names, one node with n GPUs."""
    names = names if len(names) == n and all(names) else [f"gpu{i}" for i in range(n)]
    boxes = [name.rpartition("/")[0] for name in names]
    nodes = tuple(dict.fromkeys(boxes))
    found: list[Place] = []
    held = dict.fromkeys(nodes, 0)
    for rank, (name, box) in enumerate(zip(names, boxes, strict=True)):
        number = re.search(r"(\d+)$", name)
        found.append(Place(rank, box, int(number[1]) if number else held[box]))
        held[box] += 1
    if len({(p.node, p.gpu) for p in found}) < n:  # names that do not number the GPUs of a node
        seats = {box: iter(range(n)) for box in nodes}
        found = [Place(p.rank, p.node, next(seats[p.node])) for p in found]
    counts = set(held.values())
    return Places(
        tuple(found),
        nodes,
        counts.pop() if len(counts) == 1 else 0,
        boxes == [box for box in nodes for _ in range(held[box])],
    )


def same_places(all_names: Sequence[tuple[str, Sequence[str], int]]) -> Places:
    """The places of plans that are used together: (source, names, ranks) of each.

    Raises PlanError where two plans number the same GPUs differently.
    """
    first, names, n = all_names[0]
    for source, other, count in all_names[1:]:
        if count != n:
            raise PlanError(
                f"{source}: {count} ranks, but {first} has {n}; deploy plans of one group at a time"
            )
        if tuple(other) != tuple(names) and any(other) and any(names):
            raise PlanError(f"{source}: numbers the GPUs otherwise than {first}; deploy them apart")
    return places(names, n)
