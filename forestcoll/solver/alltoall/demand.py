"""Demand: how much every rank sends to every other, and over which nodes it may go.

An all-to-all sends the same amount between any two ranks, an all-to-all-v what a matrix says. Where
several groups run at once, each does an all-to-all of its own and all reach the same algbw.

The sizes of an all-to-all-v, from a file: JSON, or numbers in lines.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forestcoll.common.errors import InfeasibleError, TopologyError
from forestcoll.common.input_limits import DIGITS
from forestcoll.graph.capacity_graph import CapacityGraph, Relays, select_ranks
from forestcoll.graph.symmetry.group import Image
from forestcoll.solver.walks import hops, neighbours
from forestcoll.topology import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]

Matrix = tuple[tuple[int, ...], ...]
AMOUNT_LIMIT = 2**50
"""Sums of a matrix stay under this, so that sums of amounts times hops stay in 62 bits."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be sent on `graph`.

    `matrix[i][j]`: the bytes that rank i sends to rank j (the diagonal stays where it is); None:
    the same amount between any two ranks. `groups`: the ranks' numbers, group by group, where
    several run at once. `closed`: ranks pass nothing on for groups other than their own.
    """

    graph: CapacityGraph
    matrix: Matrix | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    closed: bool = False

    @property
    def even(self) -> bool:
        """Whether all ranks send each other the same."""
        return self.matrix is None and not self.groups

    @property
    def scale(self) -> int:
        """How many units of demand a rank's send buffer holds, its own block included.

        The algbw is this times the rate of one unit. Of a matrix: the largest row.
        """
        if self.matrix is not None:
            return max(map(sum, self.matrix))
        return math.lcm(*map(len, self.groups)) if self.groups else len(self.graph.ranks)

    def amounts(self, source: int) -> Array:
        """Per node, how many units the rank at node `source` sends there."""
        import numpy as np

        graph = self.graph
        out = np.zeros(graph.n, dtype=np.int64)
        if self.matrix is not None:
            out[list(graph.ranks)] = self.matrix[graph.ranks.index(source)]
        elif self.groups:
            mates = self._group(source)
            out[[graph.ranks[i] for i in mates]] = self.scale // len(mates)
        else:
            out[list(graph.ranks)] = 1
        out[source] = 0
        return out

    def nodes_to_avoid(self, source: int) -> frozenset[int]:
        """The nodes over which nothing of the rank at node `source` may go."""
        if not self.closed:
            return frozenset()
        ranks = self.graph.ranks
        return frozenset(ranks) - {ranks[i] for i in self._group(source)}

    def keeps(self, image: Image) -> bool:
        """Whether a symmetry of the graph also keeps what is sent."""
        import numpy as np

        ranks = self.graph.ranks
        number = {v: i for i, v in enumerate(ranks)}
        to = [number[image[v]] for v in ranks]
        if self.matrix is not None:
            table = np.asarray(self.matrix)
            np.fill_diagonal(table, 0)
            return bool(np.array_equal(table[np.ix_(to, to)], table))
        groups = {frozenset(group) for group in self.groups}
        return all(frozenset(to[i] for i in group) in groups for group in groups)

    def check_reachable(self) -> None:
        """InfeasibleError, with two ranks, where something cannot get to where it is sent."""
        import numpy as np

        graph = self.graph
        if self.matrix is None and not self.closed:
            graph.check_connected()
            return
        near = neighbours(graph.n, graph.ends)
        for source in graph.ranks:
            open_ = set(range(graph.n)) - self.nodes_to_avoid(source)
            reached = hops(near, [source], open_.__contains__)
            cut_off = set(np.flatnonzero(self.amounts(source)).tolist()).difference(reached)
            if cut_off:
                names = graph.names
                raise InfeasibleError(
                    f"nothing leads from {names[source]} to {names[min(cut_off)]}; add a link, let "
                    "other GPUs pass data on (--relays), or leave one of the two out"
                )

    def _group(self, source: int) -> tuple[int, ...]:
        if not self.groups:
            return tuple(range(len(self.graph.ranks)))
        number = self.graph.ranks.index(source)
        return next(group for group in self.groups if number in group)


def uniform(
    topology: Topology, ranks: Sequence[str] | None = None, relays: Relays = "none"
) -> Demand:
    """An all-to-all among `ranks` (ids or globs; default: every GPU).

    Errors as in `CapacityGraph.from_topology`, and InfeasibleError.
    """
    return _check(Demand(CapacityGraph.from_topology(topology, ranks, relays)))


def alltoallv(
    topology: Topology,
    matrix: Sequence[Sequence[int]],
    ranks: Sequence[str] | None = None,
    relays: Relays = "none",
) -> Demand:
    """An all-to-all-v: `matrix[i][j]` bytes from rank i to rank j, what stays (i = j) included.

    Raises TopologyError where the matrix does not fit the ranks; else errors as in `uniform`.
    """
    graph = CapacityGraph.from_topology(topology, ranks, relays)
    return _check(Demand(graph, check_matrix(matrix, len(graph.ranks))))


def check_matrix(matrix: Sequence[Sequence[int]], count: int) -> Matrix:
    """The matrix of `count` ranks as it is kept; TopologyError where it is none."""
    if len(matrix) != count:
        raise TopologyError(f"the matrix has {len(matrix)} rows; there are {count} ranks")
    for i, row in enumerate(matrix):
        if len(row) != count:
            raise TopologyError(f"row {i} of the matrix has {len(row)} entries, not {count}")
        for j, entry in enumerate(row):
            if not isinstance(entry, int) or entry < 0:
                raise TopologyError(f"row {i}, column {j} of the matrix: {entry} is no byte count")
    rows = tuple(tuple(row) for row in matrix)
    if sum(map(sum, rows)) >= AMOUNT_LIMIT:
        raise TopologyError("the matrix adds up to 2^50 bytes or more; give it in larger units")
    if not any(entry for i, row in enumerate(rows) for j, entry in enumerate(row) if i != j):
        raise TopologyError("the matrix sends nothing from any rank to another")
    return rows


def in_groups(
    topology: Topology, groups: Sequence[Sequence[str]], relays: Relays = "none"
) -> Demand:
    """An all-to-all within each of several groups (ids or globs) at once, at one common algbw.

    `relays`: which GPUs pass on what is not their group's: "none", those in no group ("idle"), or
    "all". Raises TopologyError for a GPU in two groups; else errors as in `uniform`.
    """
    chosen = [select_ranks(topology, group) for group in groups]
    members = [name for group in chosen for name in group]
    if len(set(members)) < len(members):
        twice = next(name for name in members if members.count(name) > 1)
        raise TopologyError(f"{twice} is in two groups")
    for number, group in enumerate(chosen):
        if len(group) < 2:
            raise TopologyError(f"group {number} has {len(group)} GPU; a collective needs two")
    graph = CapacityGraph.from_topology(topology, members, relays)
    starts = [sum(map(len, chosen[:i])) for i in range(len(chosen))]
    numbers = tuple(
        tuple(range(a, a + len(group))) for a, group in zip(starts, chosen, strict=True)
    )
    return _check(Demand(graph, None, numbers, closed=relays != "all"))


def _check(demand: Demand) -> Demand:
    demand.check_reachable()
    return demand


def parse(text: str, source: str) -> Matrix:
    """The matrix in `text`: row i says how many bytes rank i sends to each rank.

    A JSON list of lists, or a line a row with numbers between commas or spaces; `#` starts a
    remark. Raises TopologyError with the line, row or column of what is wrong.
    """
    if text.lstrip()[:1] == "[":
        return _json(text, source)
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[,;\s]+", line.partition("#")[0].strip(" \t,;"))
        if words == [""]:
            continue
        for column, word in enumerate(words, 1):
            if not re.fullmatch(r"[0-9]+", word) or len(word) > DIGITS:
                raise TopologyError(
                    f"{source}: line {number}, entry {column}: '{word[:40]}' is no whole number of "
                    "bytes"
                )
        rows.append(tuple(map(int, words)))
    if not rows:
        raise TopologyError(f"{source}: no numbers; a line a rank, the bytes it sends to each rank")
    return tuple(rows)


def _json(text: str, source: str) -> Matrix:
    try:
        rows = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise TopologyError(f"{source}: nested too deeply for a matrix") from None
    except json.JSONDecodeError as e:
        raise TopologyError(f"{source}: line {e.lineno}: not JSON: {e.msg}") from None
    except ValueError as e:
        raise TopologyError(f"{source}: {e}") from None
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise TopologyError(f"{source}: row {i} is no list")
        for j, entry in enumerate(row):
            if type(entry) is not int or entry < 0:
                raise TopologyError(f"{source}: row {i}, column {j}: no whole number of bytes")
    return tuple(map(tuple, rows))


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"the number {digits[:20]}... has {len(digits)} digits {DIGITS.note}")
    return int(digits)
