"""What everybody else does, as forests: rings, trees, exchanges, hierarchies, other packings.

Whatever lowers, proves, runs or measures a forest does so with these, and a baseline's `algbw` is
what the links allow it. They are no optimum, and say so: `bound` is None.

`BASELINES` has a record for each. A baseline may have several forests, such as rings in rank order
and along rails: `forests` gives all that serve a machine, the first of the fastest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from forestcoll.common.errors import UnsupportedError, did_you_mean
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines import blink_multitree, exchange, hierarchy, rings
from forestcoll.solver.baselines.shapes import Problem

__all__ = ["BASELINES", "Baseline", "by_name", "forests"]


_UNROOTED = tuple(c for c in BY_TREES if not c.has_root)
_WHOLE = tuple(c for c in BY_TREES if not c.has_parts)
"""Collectives of which one tree can carry all data."""
_EVERYWHERE = tuple(c for c in BY_TREES if c.phases[-1] == "broadcast")
"""Collectives whose results are everywhere: what a switch adds up, it stores at all ranks."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A way that others take. `words`: what it is; `serves`: what it is made for.

    `in_switch`: its plans have a switch copy and add (`lower.nvls`), no trees over GPUs; `packed`:
    its trees follow from the capacities of links, one after the other, and take long to find.
    """

    name: str
    words: str
    serves: Sequence[Collective]
    make: Callable[[Problem], Iterator[Forest]]
    in_switch: bool = False
    packed: bool = False

    @lru_cache(maxsize=32)  # noqa: B019 (baselines are constants, and asked for again)
    def forests(
        self, graph: CapacityGraph, collective: Collective, root: int | None = None
    ) -> list[Forest]:
        """Its forests for a machine, the fastest first. `root`: a rank number, else rank 0.

        Raises UnsupportedError with the reason where it does not serve the machine or collective.
        """
        if collective not in self.serves:
            raise UnsupportedError(
                f"{self.name} is for {', '.join(self.serves)}, not for {collective}"
            )
        used = graph if self.in_switch else graph.plain
        own = list(self.make(Problem.of(used, collective, root)))
        return sorted(own, key=lambda forest: -forest.plain_algbw)  # stable: the first of equals


def _in_switch(problem: Problem) -> Iterator[Forest]:
    from forestcoll.solver import multicast

    root = problem.root if problem.collective.has_root else None
    forest = multicast.forest(problem.graph, problem.collective, root, "in-switch")
    hops = set() if forest is None else {len(p) for tree in forest.trees for p in tree.edges}
    if forest is None or hops != {3} or forest.height != 1:
        raise UnsupportedError("no switch between all GPUs copies and adds what it takes")
    yield forest


def _double(problem: Problem) -> Iterator[Forest]:
    """Over all ranks as they are numbered; and between boxes, as NCCL has it."""
    if len({problem.graph.box(rank) for rank in problem.ranks}) < 2:
        yield from exchange.double(problem)
        return
    refused = None
    try:
        yield from exchange.double(problem)
    except UnsupportedError as error:
        refused = error
    try:
        yield from hierarchy.hierarchical(problem, ("tree",))
    except UnsupportedError:
        if refused is not None:
            raise refused from None


_RECORDS = (
    Baseline("ring", "one ring", BY_TREES, rings.lone),
    Baseline("rings", "rings, one a NIC or as many as the mesh holds", BY_TREES, rings.several),
    Baseline("tree", "the lowest single tree", _WHOLE, exchange.lowest),
    Baseline("double-tree", "double binary trees", _WHOLE, _double),
    Baseline(
        "halving-doubling",
        "recursive halving and doubling",
        _UNROOTED,
        exchange.halving_doubling,
    ),
    Baseline("bruck", "Bruck's rounds", _UNROOTED, exchange.bruck),
    Baseline("hierarchical", "inside boxes, between, inside", BY_TREES, hierarchy.hierarchical),
    Baseline("direct", "everybody to everybody in one round", BY_TREES, exchange.direct),
    Baseline(
        "in-switch", "the switch copies and adds (NVLS)", _EVERYWHERE, _in_switch, in_switch=True
    ),
    Baseline("blink", "trees packed from one root", BY_TREES, blink_multitree.blink, packed=True),
    Baseline(
        "multitree", "trees grown greedily", _UNROOTED, blink_multitree.multitree, packed=True
    ),
)
BASELINES: Final[Mapping[str, Baseline]] = {record.name: record for record in _RECORDS}


def by_name(name: str) -> Baseline:
    """The baseline of that name, or UnsupportedError with the nearest one."""
    if name not in BASELINES:
        raise UnsupportedError(f"unknown baseline {name!r}{did_you_mean(name, BASELINES)}")
    return BASELINES[name]


def forests(
    name: str,
    graph: CapacityGraph,
    collective: Collective = Collective.ALLREDUCE,
    root: int | None = None,
) -> list[Forest]:
    """The forests of the baseline of that name: see `Baseline.forests`."""
    return by_name(name).forests(graph, collective, root)
