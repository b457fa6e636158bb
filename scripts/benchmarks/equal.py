"""Whether K equal trees per root reach 99 % on machines with measured links, with proof where not.

    python scripts/benchmarks/equal.py dgx-a100|mi250 BOXES cable|direction SEEDS

With k trees per root, all alike, a schedule of algbw a moves share 1 / (N k) over every tree, so
link e carries whole trees, at most floor(b(e) N k / a) of them. Every tree rooted in a node set S
that lacks a rank leaves S: where the links that leave S carry fewer than k trees for each rank in
S, no choice of trees reaches a. Such a set is looked for at a = 99 % of the optimum for each k from
1 to 8 and counted again here in plain fractions. One line of JSON.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction

from fabrics import perturbed

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.solver.front import Front

MOST = 8
"""Trees a root."""
ENOUGH = Fraction(99, 100)


def refuted(graph: CapacityGraph, k: int, algbw: Fraction) -> bool:
    """Whether some node set proves that `k` equal trees per root are slower than `algbw` (GB/s)."""
    n, ranks = len(graph.ranks), set(graph.ranks)
    room = [int(c * graph.unit * n * k / algbw) for c in graph.capacity]
    supply = [k if v in ranks else 0 for v in range(graph.n)]
    found = _kernel.violated(graph.n, graph.tail, graph.head, room, supply, graph.ranks)
    if found is None:
        return False
    side = set(found[1])
    leaving = sum(
        graph.bandwidth(e) * n * k // algbw
        for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True))
        if u in side and v not in side
    )
    if ranks <= side or leaving >= k * len(side & ranks):
        raise SystemExit(f"the set that should refute k = {k} does not")
    return True


def main() -> None:
    """Print, for each seed, the best k, what it reaches, and whether every k is refuted."""
    machine, boxes, per, seeds = sys.argv[1:]
    rows = []
    for seed in range(int(seeds)):
        graph = CapacityGraph.from_topology(perturbed(machine, int(boxes), seed, per))
        best = solver.optimum(graph, Collective.ALLGATHER)
        front = Front(graph, Collective.ALLGATHER, None, best)
        points = [front.point(k) for k in range(1, MOST + 1)]
        top = max(points, key=lambda point: point.share)
        goal = best.algbw * ENOUGH
        rows.append(
            {
                "seed": seed,
                "optimum_k": best.trees_per_root,
                "best_k": top.trees,
                "share": str(top.share),
                "reached": top.share >= ENOUGH,
                "refuted": all(refuted(graph, k, goal) for k in range(1, MOST + 1)),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
