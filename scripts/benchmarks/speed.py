"""The speed tables as markdown: the solver beside its plain Python twin, all stages, `--help`.

    python scripts/benchmarks/speed.py [--cap SECONDS] [--repeat N]

Every row solves an allgather at the exact optimum, from the capacity graph to the checked forest
(optimum, switch removal, packing, check). Everything uses one thread; the times are processor time,
so that a busy machine does not count. The twin runs in a process of its own and is stopped at the
cap.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import check
from forestcoll.topology import catalog
from forestcoll.ui.report import words


@dataclass(frozen=True, slots=True)
class Case:
    """A machine of the catalogue."""

    what: str
    name: str
    boxes: int

    def graph(self) -> CapacityGraph:
        """Its capacity graph."""
        return CapacityGraph.from_topology(catalog.load(self.name, {"boxes": str(self.boxes)}))


CASES = (
    Case("one MI250 box, 16 dies", "mi250", 1),
    Case("two MI250 boxes, 32 dies", "mi250", 2),
    Case("two DGX A100 boxes, 16 GPUs", "dgx-a100", 2),
    Case("eight DGX A100 boxes, 64 GPUs", "dgx-a100", 8),
)


def compiled(case: Case, repeat: int) -> tuple[float, str, int, int]:
    """Median seconds, algbw, k and height of the compiled solver's forest."""
    graph, times = case.graph(), []
    for _ in range(repeat):
        start = time.process_time()
        forest = solver.solve(graph, Collective.ALLGATHER)
        algbw = check(forest)
        times.append(time.process_time() - start)
    return statistics.median(times), words.exact(algbw), forest.trees_per_root, forest.height


def _twin(case: Case, end: Connection) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import reference

    graph = case.graph()
    start = time.process_time()
    forest = reference.forest(graph)
    algbw = check(forest)
    end.send((time.process_time() - start, words.exact(algbw), forest.height))


def twin(case: Case, cap: float) -> tuple[float, str, int] | None:
    """Seconds, algbw and height of the plain Python twin; None where the cap was reached."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_twin, args=(case, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(cap) else None
    except EOFError:
        raise SystemExit(f"the twin failed on {case.what}") from None
    finally:
        process.kill()
        process.join()


def help_seconds(repeat: int) -> float:
    """Median seconds of `forestcoll --help`, a new process each time."""
    times = []
    for _ in range(repeat):
        start = sum(os.times()[2:4])
        subprocess.run(
            [sys.executable, "-m", "forestcoll", "--help"], check=True, capture_output=True
        )
        times.append(sum(os.times()[2:4]) - start)
    return statistics.median(times)


def whole(case: Case, collective: str) -> tuple[float, dict[str, Any]]:
    """Processor seconds of `forestcoll synthesize` in all formats, and its summary."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "forestcoll", "synthesize", "--json", "--output", f"{folder}/",
             "--topology", case.name, "--set", f"boxes={case.boxes}", "--collective", collective],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    return seconds, json.loads(done.stdout)


def print_whole() -> None:
    """The table of all stages, from a name to three proven files."""
    print("| machine | collective | of optimal | trees | height | in all |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        for collective in ("allgather", "allreduce"):
            seconds, found = whole(case, collective)
            share = words.percent(Fraction(found["algbw"]), Fraction(found["bound"]))
            forest = f"{found['trees']} | {found['height']}"
            row = f"| {case.what} | {collective} | {share} | {forest} | {words.seconds(seconds)} |"
            print(row, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cap", type=float, default=600, help="seconds the twin may take a row")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the median counts")
    chosen = parser.parse_args()
    print("| machine | algbw GB/s | k | compiled | height | plain Python | height |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        seconds, algbw, k, height = compiled(case, chosen.repeat)
        other = twin(case, chosen.cap)
        if other is None:
            slow = f"more than {chosen.cap:.0f} s | -"
        elif other[1] != algbw:
            raise SystemExit(f"{case.what}: {algbw} compiled, {other[1]} in plain Python")
        else:
            slow = f"{words.seconds(other[0])} | {other[2]}"
        row = f"| {case.what} | {algbw} | {k} | {words.seconds(seconds)} | {height} | {slow} |"
        print(row, flush=True)
    print()
    print_whole()
    print(f"\n`forestcoll --help`: {words.seconds(help_seconds(max(5, chosen.repeat)))}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{multiprocessing.cpu_count()} cores ({platform.machine()}), {python}")


if __name__ == "__main__":
    main()
