"""One solve call in a process that is warm, for the rows of the table that take less than a second.

    python scripts/benchmarks/warm.py '{"topology": "dgx-a100", "settings": {"boxes": "8"}, ...}'

Everything is imported and has run once; then what earlier calls have left in caches is dropped and
the call is timed, again and again. From the capacity graph to the checked forest; of a failed link
(`failures`) from the healthy topology to the checked forest, with the caches as the healthy solve
left them. One line of JSON on standard output.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from forestcoll import solver
from forestcoll.compile.budget import different_trees
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Forest
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit

Times = list[tuple[float, float]]  # (seconds on the clock, seconds of processors)


def forget() -> None:
    """Empties every cache of the package that keeps answers."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper):
            home = thing.__module__
            if home.startswith("forestcoll.") and not home.startswith("forestcoll.topology"):
                thing.cache_clear()
    gc.collect()


def timed(work: Callable[[], Forest], times: Times) -> Forest:
    """The forest; how long it took is added to `times`."""
    before = time.perf_counter(), time.process_time()
    forest = work()
    times.append((time.perf_counter() - before[0], time.process_time() - before[1]))
    return forest


def solved(graph: CapacityGraph, wanted: dict[str, Any]) -> Forest:
    """The forest that is asked for, checked by `solve` itself."""
    collective = Collective(wanted["collective"])
    return solver.solve(graph, collective, None, wanted.get("trees", "auto"))


def healthy(wanted: dict[str, Any], times: Times) -> list[Forest]:
    """The same solve `repeat` times after one that does not count."""
    topology = catalog.load(wanted["topology"], wanted.get("settings", {}))
    graph = CapacityGraph.from_topology(topology, wanted.get("ranks"))
    solved(graph, wanted)
    forests = []
    for _ in range(wanted["repeat"]):
        forget()
        forests.append(timed(lambda: solved(graph, wanted), times))
    return forests


def broken(wanted: dict[str, Any], times: Times) -> list[Forest]:
    """A solve after each failure, the healthy machine having been solved before."""
    topology = catalog.load(wanted["topology"], wanted.get("settings", {}))
    forests = []
    for failure in wanted["failures"]:
        forget()
        solved(CapacityGraph.from_topology(topology, wanted.get("ranks")), wanted)

        def again(failure: str = failure) -> Forest:
            left = edit(topology, [failure])
            return solved(CapacityGraph.from_topology(left, wanted.get("ranks")), wanted)

        forests.append(timed(again, times))
    return forests


def main() -> None:
    """Solve, check once more, and print what came out."""
    wanted = json.loads(sys.argv[1])
    times: Times = []
    forests = (broken if wanted.get("failures") else healthy)(wanted, times)
    rates = []
    for forest in forests:
        algbw, bound = certificate.check(forest)
        rates.append((str(algbw), None if bound is None else str(bound)))
    forest = max(forests, key=lambda f: f.height)
    worst = max if wanted.get("failures") else statistics.median
    print(
        json.dumps(
            {
                "wall": worst(wall for wall, _ in times),
                "processor": worst(processor for _, processor in times),
                "rates": rates,
                "height": forest.height,
                "trees_per_root": max(f.trees_per_root for f in forests),
                "trees": max(len(f.trees) * f.images for f in forests),
                "different_trees_per_root": max(map(different_trees, forests)),
            }
        )
    )


if __name__ == "__main__":
    main()
