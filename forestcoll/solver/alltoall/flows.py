"""Concurrent flow: the fastest all-to-all, a flow from each source, exact and proven.

Maximise theta over flows f_s >= 0, one commodity a source (a flow from s splits into paths that
give every pair its part): inflow minus outflow at v is theta * d(s, v), and on a link all flows
together stay within its capacity. Folded (`fold`), and solved exactly (`exact_lp`). The dual
of the capacity rows are the lengths of `fold`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.solver.alltoall.columns import mix, sparse_cut
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import (
    Folding,
    Quotient,
    bound,
    distances,
    fold,
    quotient,
    whole,
)
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.walks import links_out

LARGE = 10_000
"""Variables of the program from which on a cut is looked for first."""
MIXED = 60_000
"""Variables from which on flows near the optimum, with a bound, stand for it where no cut is it."""
WORTH = 100
"""Links a unit of demand that the rate outweighs."""
Flow = dict[int, Fraction]
"""Per link that carries something, how much, in units of capacity."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fastest all-to-all.

    `rate`: units of capacity for a unit of demand; `theta` the same in GB/s. `flows`: one for each
    source of the folding. `lengths`: per link, whole numbers that prove it.
    `proven`: what the lengths prove, where that is a little more than the flows reach.
    """

    demand: Demand
    folding: Folding
    rate: Fraction
    flows: tuple[Flow, ...]
    lengths: tuple[int, ...]
    proven: Fraction | None = None

    def __repr__(self) -> str:
        return f"<all-to-all Optimum {self.algbw} GB/s, {len(self.flows)} flows>"

    @property
    def theta(self) -> Fraction:
        """GB/s for each unit of demand: of an all-to-all, between any two ranks."""
        return self.rate * self.demand.graph.unit

    @property
    def algbw(self) -> Fraction:
        """GB/s: the largest send buffer, the rank's own block included, over the time."""
        return self.theta * self.demand.scale

    @property
    def bound(self) -> Fraction:
        """GB/s of algbw that nothing exceeds, by the lengths."""
        rate = self.rate if self.proven is None else self.proven
        return rate * self.demand.graph.unit * self.demand.scale


def solve(demand: Demand) -> Optimum:
    """The optimum, with flows that reach it and lengths that prove it.

    Raises UnsupportedError where the program is out of reach of exact solution.
    """
    folding = fold(demand)
    best = _uniform_lengths(demand, folding)
    if best is None:
        best = _program(demand, folding)
    check(best)
    return best


def check(best: Optimum) -> None:
    """ForestError unless flows and lengths prove the rate, both recomputed."""
    rate, _ = reach_rate(best.demand, best.folding, best.flows, best.rate)
    proven = bound(best.demand, best.folding, best.lengths)
    if rate < best.rate or proven != (best.rate if best.proven is None else best.proven):
        raise ForestError(
            f"the flows reach {rate} and the lengths prove {proven}; the rate is {best.rate}"
        )


def reach_rate(
    demand: Demand, folding: Folding, flows: Sequence[Flow], rate: Fraction
) -> tuple[Fraction, dict[int, Fraction]]:
    """(rate at which the flows fit the links, load of each orbit's links at that of the flows).

    Each flow must give every node `rate` times what is sent there; ForestError where one does not.
    """
    graph = demand.graph
    loads: dict[int, Fraction] = defaultdict(Fraction)
    for source, images, flow in zip(folding.sources, folding.images, flows, strict=True):
        barred = demand.nodes_to_avoid(source)
        surplus: dict[int, Fraction] = defaultdict(Fraction)
        for e, amount in flow.items():
            u, v = graph.tail[e], graph.head[e]
            if amount <= 0 or u in barred or v in barred:
                raise ForestError(
                    f"the flow of {graph.names[source]} on {graph.names[u]} -> {graph.names[v]} is "
                    f"{amount}" + " over a GPU of another group" * (u in barred or v in barred)
                )
            surplus[u] -= amount
            surplus[v] += amount
            loads[int(folding.link[e])] += images * amount
        for v, wanted in enumerate(demand.amounts(source).tolist()):
            if v != source and surplus.get(v, 0) != rate * wanted:
                raise ForestError(
                    f"the flow of {graph.names[source]} leaves {surplus.get(v, Fraction(0))} at "
                    f"{graph.names[v]}, not {rate * wanted}"
                )
    capacity = {int(o): c for o, c in zip(folding.link, graph.capacity, strict=True)}
    fits = rate
    for orbit, amount in loads.items():
        loads[orbit] = amount / folding.sizes[orbit]
        if loads[orbit] > capacity[orbit]:
            fits = min(fits, rate * capacity[orbit] / loads[orbit])
    return fits, loads


def _uniform_lengths(demand: Demand, folding: Folding) -> Optimum | None:
    """Shortest ways from a source where all ranks and all links are alike: they need no program."""
    graph = demand.graph
    if not (demand.even and len(folding.sizes) == len(folding.sources) == 1):
        return None
    lengths = (1,) * len(graph.tail)
    rate = bound(demand, folding, lengths)
    into = graph.numbers
    near = links_out(graph.n, graph.along(lengths))
    source = folding.sources[0]
    far = distances(near, source)
    parent = {v: u for u in far for v, _ in near[u] if far[v] == far[u] + 1}
    held = demand.amounts(source).tolist()
    flow: Flow = {}
    for v in sorted(far, key=far.__getitem__, reverse=True):
        if v != source and held[v]:
            flow[into[parent[v], v]] = held[v] * rate
            held[parent[v]] += held[v]
    return Optimum(demand, folding, rate, (flow,), lengths)


def _program(demand: Demand, folding: Folding) -> Optimum:
    views = [quotient(demand, folding, source) for source in folding.sources]
    program, starts = _rows(demand, folding, views)
    cut = sparse_cut(demand, folding) if len(program.upper) > LARGE else None
    if cut is None and len(program.upper) > MIXED and not demand.closed:
        mixed = mix(demand, folding)
        if mixed is not None:
            rate, proven = mixed.rate, mixed.proven
            return Optimum(demand, folding, rate, mixed.flows, mixed.lengths, proven)
    basis = None
    if cut is not None:
        rate, spread = cut
        basis = _propose_below(program, rate, starts[0])
        primal = _reach(program, basis, rate)
        if primal is not None:
            return Optimum(demand, folding, rate, _flows(primal, starts, views), spread)
    solution = None if basis is None or 0 in basis[1] else exact_lp.prove(program, basis)
    if solution is None:
        solution = exact_lp.solve(program, _scale(program))
    lengths = whole(solution.dual[: len(folding.sizes)])
    spread = tuple(lengths[orbit] for orbit in folding.link.tolist())
    flows = _flows(solution.primal, starts, views)
    return Optimum(demand, folding, solution.primal[0], flows, spread)


def _flows(
    primal: Sequence[Fraction], starts: Sequence[int], views: Sequence[Quotient]
) -> tuple[Flow, ...]:
    """Per source what each link carries: the links of a class alike."""
    flows = []
    for start, view in zip(starts, views, strict=True):
        amounts = [primal[start + k] / count for k, count in enumerate(view.count)]
        label = view.label.tolist()
        flows.append({e: amounts[k] for e, k in enumerate(label) if k >= 0 and amounts[k]})
    return tuple(flows)


def _scale(program: exact_lp.Program) -> float:
    return float(max(u or 1 for u in program.upper))


def _propose_below(program: exact_lp.Program, rate: Fraction, start: int) -> exact_lp.Basis:
    """A basis for the program with the rate held at `rate` at most.

    Among equal rates the flows with the fewest links are asked for: so shortest ways at the bound
    are where the dual simplex starts, and what it mends is the links that these overload. The rate
    counts more than any number of links it could save.
    """
    amount = sum(-row.coefficients.get(0, 0) for row in program.rows)
    gain = [0.0] * start + [-1.0] * (len(program.upper) - start)
    gain[0] = float(WORTH * amount)
    limited = _limit(program, rate)
    return exact_lp.propose(limited, _scale(limited), "use_dual_simplex: true", gain)


def _limit(program: exact_lp.Program, rate: Fraction) -> exact_lp.Program:
    """The program with the rate held at `rate` at most, in units in which that is whole."""
    unit = rate.denominator
    upper = [None if u is None else u * unit for u in program.upper]
    return exact_lp.Program([rate.numerator, *upper[1:]], program.cost, program.rows)


def _reach(
    program: exact_lp.Program, basis: exact_lp.Basis, rate: Fraction
) -> list[Fraction] | None:
    """The variables at `basis` where they reach the rate and are right, exactly; else None."""
    if 0 not in basis[1]:
        return None
    limited = _limit(program, rate)
    primal = exact_lp.vertex(limited, basis)
    if primal is None or not exact_lp.is_feasible(limited, primal):
        return None
    return [amount / rate.denominator for amount in primal]


def _rows(
    demand: Demand, folding: Folding, views: Sequence[Quotient]
) -> tuple[exact_lp.Program, list[int]]:
    """The program, and where each source's variables start.

    Variables: the rate; what each orbit carries; per source, what each class of links carries.
    Rows: an orbit carries all of its flows; then each source's balance at each colour.
    """
    count = len(folding.sizes)
    room = [0] * count
    for orbit, c in zip(folding.link.tolist(), demand.graph.capacity, strict=True):
        room[orbit] += c
    program = exact_lp.Program([None, *room], [1] + [0] * count)
    carried: list[dict[int, int]] = [{1 + orbit: 1} for orbit in range(count)]
    balances: list[exact_lp.Row] = []
    starts = []
    for view, images in zip(views, folding.images, strict=True):
        starts.append(len(program.upper))
        rows: dict[int, dict[int, int]] = defaultdict(dict)
        for k, ((u, v), orbit) in enumerate(zip(view.ends, view.orbit, strict=True)):
            variable = starts[-1] + k
            carried[orbit][variable] = -images
            rows[u][variable], rows[v][variable] = -1, 1
        program.upper += [None] * len(view.ends)
        program.cost += [0] * len(view.ends)
        wanted: dict[int, int] = defaultdict(int)
        for colour, amount in zip(
            view.colour.tolist(), demand.amounts(view.source).tolist(), strict=True
        ):
            wanted[colour] += amount
        rows.pop(int(view.colour[view.source]), None)
        for colour in sorted(rows.keys() | {c for c, amount in wanted.items() if amount}):
            row = rows[colour]
            if wanted[colour]:
                row[0] = -wanted[colour]
            balances.append(exact_lp.Row(row, equality=True))
    program.rows = [exact_lp.Row(row) for row in carried] + balances
    return program, starts
