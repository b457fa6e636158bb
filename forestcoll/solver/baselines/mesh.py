"""Rings in a mesh: as many as its links hold at once, and rings cut open where a box has NICs.

Both are small integer programs (OR-tools CP-SAT), with one worker and a limit in steps, not in
seconds: the same every time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

RANKS = 16
"""Ranks up to which rings are packed together; above, they are sought one by one."""
STEPS = 3.0
"""CP-SAT's deterministic time of one search: some seconds."""

Arcs = Mapping[tuple[int, int], int]
"""(rank, rank) -> units that the link between them carries."""
Ring = tuple[tuple[int, ...], int]
"""Ranks round a ring, and the units that it takes of each of its links."""


def pack_cycles(ranks: Sequence[int], arcs: Arcs) -> list[Ring]:
    """Rings through all ranks that fit on the arcs together, of one width: the most in all.

    Empty where there is none, or the mesh is larger than RANKS.
    """
    best: list[Ring] = []
    if not 3 <= len(ranks) <= RANKS:
        return best
    for width in sorted(set(arcs.values()), reverse=True):
        rooms = {pair: units // width for pair, units in arcs.items() if units >= width}
        most = _most(ranks, rooms)
        while most * width > sum(share for _, share in best):
            found = _cycles(ranks, rooms, most)
            if found:
                best = [(order, width) for order in found]
                break
            most -= 1
    return best


def _most(ranks: Sequence[int], rooms: Arcs) -> int:
    """Rings that could enter and leave every rank."""
    into: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    for (u, v), room in rooms.items():
        out[u] += room
        into[v] += room
    return min(min(into[rank], out[rank]) for rank in ranks)


def _cycles(ranks: Sequence[int], rooms: Arcs, count: int) -> list[tuple[int, ...]]:
    """So many rings, each arc in as many of them as it has room for; empty: none was found."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    number = {rank: i for i, rank in enumerate(ranks)}
    rings = [{pair: model.new_bool_var("") for pair in rooms} for _ in range(count)]
    for used in rings:
        model.add_circuit([(number[u], number[v], used[u, v]) for u, v in rooms])
    for pair, room in rooms.items():
        model.add(sum(used[pair] for used in rings) <= room)
    solver = _solver()
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    orders = []
    for used in rings:
        after = {u: v for (u, v), taken in used.items() if solver.value(taken)}
        order = [ranks[0]]
        while len(order) < len(ranks):
            order.append(after[order[-1]])
        orders.append(tuple(order))
    return orders


def cut_open(rings: Sequence[Ring], rooms: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Paths that begin where a box is entered and end where it is left, each a ring without a link.

    A ring of `k` units is cut open at up to `k` places; a rank begins and ends `rooms` paths at
    most. As many as there can be, those that begin at the first ranks first.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    cuts = {
        (ring, place): model.new_int_var(0, units, "")
        for ring, (order, units) in enumerate(rings)
        for place in range(len(order))
    }
    for ring, (order, units) in enumerate(rings):
        model.add(sum(cuts[ring, place] for place in range(len(order))) <= units)
    for rank, room in rooms.items():
        for shift in (0, 1):  # a path begins here, or the one that begins next ends here
            here = [
                cut for (ring, place), cut in cuts.items() if rings[ring][0][place - shift] == rank
            ]
            model.add(sum(here) <= room)
    model.maximize(sum(cuts.values()))
    solver = _solver()
    if not cuts or solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    found = []
    for (ring, place), cut in cuts.items():
        order = rings[ring][0]
        found += [order[place:] + order[:place]] * solver.value(cut)
    return sorted(found)


def _solver() -> cp_model.CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = STEPS
    return solver
