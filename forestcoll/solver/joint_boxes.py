"""The joint optimum of allreduce on boxes, with trees: both phases over the same trees.

Inside boxes links are wide, so what limits an allreduce of many boxes is what joins them: a linear
program with one node for each box says how fast it can be, and how much each box should sum. Sums
are worth most where the links are widest: a root sends its sums to all other boxes itself, so that
trees are low. Then one forest is searched for that serves both phases, broadcast trees as they are
and reduce trees turned round: links between boxes are shared with those in the other direction
(`rehanging.rehang_mirrored`). Its loads prove what it reaches; the bound is another matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.schedule.forest import Bound, Tree, scan
from forestcoll.solver.fixed_trees import floors
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.joint import Joint, joint_model, shares
from forestcoll.solver.flows.model import Model
from forestcoll.solver.shallow.boxes import Boxes, find_boxes
from forestcoll.solver.shallow.height import least_height
from forestcoll.solver.shallow.rehanging import MOST_EDGES, rehang_mirrored, suits
from forestcoll.solver.shares import apportion

VARIABLES = 6_000
"""Links, flows and boxes, alike ones counted once, up to which the program is solved here."""
NEAR = Fraction(9995, 10_000)
"""What whole numbers of trees have to leave of the rate; else the best number is taken."""
SLOWER = tuple(1 + Fraction(p, 1000) for p in (5, 2, 0))
"""Times tried until one fails, as multiples of the least: some room makes low trees possible."""
HIGHER = 3
"""Heights above the lower bound that are tried."""
LEAST = Fraction(97, 100)
"""Of the bound: what is slower is left to the general program."""


@lru_cache(maxsize=4)
def joint_of_boxes(graph: CapacityGraph, bound: Bound) -> Joint | None:
    """A joint allreduce with its trees, at `bound` or near it; None where none is found.

    `bound`: of any allreduce on the graph; it becomes the result's.
    """
    if not suits(graph, None):
        return None
    boxes = find_boxes(graph, graph.capacity, (0,) * graph.n)
    machine = _Machine(graph, boxes)
    shares = machine.shares()
    if shares is None:
        return None
    wanted = machine.supplies(*shares)
    if wanted is None:
        return None
    time, supply = wanted
    bounded = sum(supply) * graph.unit / bound.algbw  # by what is inside boxes, too
    solution = _search(graph, supply, max(time, bounded))
    if solution is None or solution[0] * graph.unit < LEAST * bound.algbw:
        return None
    return Joint(solution[0] * graph.unit, tuple(supply), ((), ()), bound, tuple(solution[1]))


def _search(
    graph: CapacityGraph, supply: Sequence[int], least_time: Fraction
) -> tuple[Fraction, list[Tree]] | None:
    """(trees per unit of time, the trees): the lowest that are found in little more than the least.

    Units of time in which a link of capacity c carries c trees. Heights at which nothing is found
    in the most time are left at once. Of one height between boxes the lowest trees count, then the
    fastest: boxes that are tight inside may add hops.
    """
    total = sum(supply)
    least = least_height(graph, floors(least_time, graph.capacity), supply)
    for height in range(least, least + HIGHER + 1):
        solutions: list[tuple[int, Fraction, list[Tree]]] = []
        for slower in SLOWER:
            u = least_time * slower
            trees = rehang_mirrored(graph, floors(u, graph.capacity), supply, height)
            if trees is None:
                break
            solutions.append((scan(graph, trees)[1], u, trees))
        if solutions:
            _, u, trees = min(solutions, key=lambda entry: entry[:2])
            return total / u, trees
    return None


@dataclass(frozen=True, slots=True)
class _Machine:
    """A graph whose boxes are one node each."""

    graph: CapacityGraph
    boxes: Boxes

    def contract(self) -> CapacityGraph:
        """The graph of boxes: node b is box b, all of them are ranks; then come other switches."""
        graph, box = self.graph, self.boxes.box
        inner = {
            v: number
            for t, h, number in graph.along(self.boxes.inner)
            if number >= 0
            for v in (t, h)
        }
        first = [held[0] for held in self.boxes.members]
        numbers = (inner.get(v, box[v]) for v in range(graph.n))
        at = [v if number < 0 else first[number] for v, number in enumerate(numbers)]
        links: dict[tuple[int, int], int] = defaultdict(int)
        for t, h, c in graph.arcs:
            if at[t] != at[h]:
                links[at[t], at[h]] += c
        contracted = graph.plain.restrict(list(dict.fromkeys([*first, *at])), links)
        return replace(contracted, ranks=tuple(range(len(first))))

    def shares(self) -> tuple[Fraction, list[Fraction]] | None:
        """(data per unit of time, per box the part of it that is summed there).

        Every box sends its sums to all others itself, where that costs nothing. None: one box only,
        or a program that is too large.
        """
        if self.boxes.count < 2:
            return None
        graph = self.contract()
        symmetries = find_symmetries(graph)
        best: tuple[Fraction, list[Fraction]] | None = None
        for direct in (True, False):
            model = joint_model(graph, symmetries, equal=False)
            if model.size > VARIABLES:
                return None
            if direct:
                model.program.rows += _direct_rows(model)
            try:
                solution = model.solve()
            except UnsupportedError:
                continue
            if best is None or solution.value > best[0] / NEAR:
                share = shares(model)
                parts = [solution.primal[share[v]] / solution.value for v in graph.ranks]
                best = solution.value, parts
        return best

    def supplies(
        self, rate: Fraction, parts: Sequence[Fraction]
    ) -> tuple[Fraction, list[int]] | None:
        """(least time, trees per node): whole numbers of trees, near enough to these parts."""
        count = len(self.graph.ranks)
        most = min(2 * count, MOST_EDGES // self.boxes.count)
        best: tuple[Fraction, Fraction, list[int]] | None = None
        for total in range(3 * count // 4, most + 1):
            units = apportion(parts, total)
            time = max(total / rate, self._least_time(units, total))
            if best is None or total / time > best[0]:
                best = total / time, time, units
                if best[0] >= NEAR * rate:
                    break
        return None if best is None else (best[1], self._deal_out(best[2]))

    def _least_time(self, units: Sequence[int], total: int) -> Fraction:
        """At least so long all boxes take to receive every tree and to send their own to all."""
        room = [0] * self.boxes.count
        for _, c, number in self._outside():
            room[number] += c
        others = self.boxes.count - 1
        return max(
            Fraction(total - own + own * others, c) for own, c in zip(units, room, strict=True) if c
        )

    def _outside(self) -> Iterator[tuple[int, int, int]]:
        """(rank, capacity, its box) of every link that leads out of a box."""
        graph, boxes = self.graph, self.boxes
        for (t, h, c), inner in zip(graph.arcs, boxes.inner, strict=True):
            if inner < 0 and boxes.box[t] >= 0 and boxes.box[h] != boxes.box[t]:
                yield t, c, boxes.box[t]

    def _deal_out(self, units: Sequence[int]) -> list[int]:
        """Per node its trees: those of a box to the ranks whose links out have most room."""
        graph, box = self.graph, self.boxes.box
        out: dict[int, int] = defaultdict(int)
        for v, c, _ in self._outside():
            out[v] += c
        ways: dict[int, set[int]] = defaultdict(set)  # per rank where its data leaves the box
        for t, h, inner in graph.along(self.boxes.inner):
            if inner < 0 and t in out and graph.gpu[t]:
                ways[t].add(t)
            elif inner < 0 and h in out and box[t] == box[h]:
                ways[t].add(h)
        sharing = Counter(way for some in ways.values() for way in some)
        supply = [0] * graph.n
        for members, own in zip(self.boxes.members, units, strict=True):
            able = [v for v in members if v in ways] or members
            room = [
                sum((Fraction(out[w], sharing[w]) for w in ways[v]), Fraction(not ways[v]))
                for v in able
            ]
            for v, some in zip(able, apportion(room, own), strict=True):
                supply[v] = some
        return supply


def _direct_rows(model: Model) -> list[exact_lp.Row]:
    """Per box: what leaves it in the broadcast holds what it sums, once for every other box."""
    graph, share = model.machine, shares(model)
    others = len(graph.ranks) - 1
    rows: dict[int, Counter[int]] = {v: Counter() for v in graph.ranks}
    for e, t in enumerate(graph.tail):
        if t in rows:
            rows[t][model.flow[0][e]] += 1
    for v, row in rows.items():
        row[share[v]] = -others
    return [exact_lp.Row(row) for row in {frozenset(r.items()): r for r in rows.values()}.values()]
