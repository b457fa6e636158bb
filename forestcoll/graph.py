"""The topology as the solver sees it: integer nodes, integer capacities, one exact unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from forestcoll.errors import TopologyError, did_you_mean

if TYPE_CHECKING:
    from forestcoll.topology import Topology

Relays = Literal["none", "idle", "all"]

CAPACITY_LIMIT = 2**62
"""Sums of capacities (times the number of ranks) at or beyond this are refused: the kernel is int64."""


@dataclass(frozen=True, slots=True)
class CapacityGraph:
    """A directed graph with integer capacities.

    Nodes are 0..n-1, in the order of the topology. Link e goes from `tail[e]` to `head[e]` and
    carries `capacity[e] * unit` GB/s; parallel links are merged, self-loops do not occur.
    """

    names: tuple[str, ...]
    gpu: tuple[bool, ...]  # per node: GPU (else switch)
    multicast: tuple[bool, ...]  # per node: switch that copies in the fabric
    aggregation: tuple[bool, ...]  # per node: switch that adds in the fabric
    ranks: tuple[int, ...]  # node of rank 0, 1, ...
    tail: tuple[int, ...]
    head: tuple[int, ...]
    capacity: tuple[int, ...]
    unit: Fraction  # GB/s of one unit of capacity

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.names)

    def bandwidth(self, link: int) -> Fraction:
        """GB/s of link `link`, exact."""
        return self.capacity[link] * self.unit

    def box(self, node: int) -> str:
        """The box (host) that holds `node`: what stands before the last "/" of its id, or ""."""
        return self.names[node].rpartition("/")[0]

    def reverse(self) -> CapacityGraph:
        """The same graph with every link turned round (multicast and aggregation trade places)."""
        return CapacityGraph(
            names=self.names,
            gpu=self.gpu,
            multicast=self.aggregation,
            aggregation=self.multicast,
            ranks=self.ranks,
            tail=self.head,
            head=self.tail,
            capacity=self.capacity,
            unit=self.unit,
        )

    def leaving(self, nodes: frozenset[int]) -> Fraction:
        """GB/s of all links from inside `nodes` to outside, exact."""
        total = sum(
            c
            for t, h, c in zip(self.tail, self.head, self.capacity, strict=True)
            if t in nodes and h not in nodes
        )
        return total * self.unit
