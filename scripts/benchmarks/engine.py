"""How fast the CPU engine moves data, beside a plain parallel memcpy of the same bytes.

The same bytes: what a plan's instructions must read and write out of place, every operand once; a
message is read where it is sent and written where it is received. A memcpy of B bytes reads B and
writes B, so the memcpy's time is that of half of these bytes, copied by as many threads as there
are processors, from and to memory that is too large for any cache and that is there already.

The last column is harsher and asks what a plan could spare as well: beside a memcpy of no more
than what has to get from rank to rank, once the data for every other rank, twice for an allreduce.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from forestcoll.compile.choose import PlanFormat
from forestcoll.compile.synthesize import synthesize
from forestcoll.execute.cpu import RanksAs, run
from forestcoll.execute.sizes import layout
from forestcoll.program import Op, Program
from forestcoll.topology import catalog
from forestcoll.ui.report import words

COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "broadcast", "reduce")
FORMATS: tuple[PlanFormat, ...] = ("msccl-xml", "mscclpp-json")
WAYS: tuple[RanksAs, ...] = ("threads", "processes")
MEMORY = 256 << 20
READS_TARGET = (Op.REDUCE,)
"""What adds to its target reads that besides its sources."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan to be run."""

    machine: str
    collective: str
    format: str
    program: Program


def cases(machine: str, boxes: int, collectives: Sequence[str]) -> Iterator[Case]:
    """These collectives in both formats."""
    topology = catalog.load(machine, {"boxes": str(boxes)})
    for collective in collectives:
        found = synthesize(topology, collective)
        for name in FORMATS:
            yield Case(topology.name, collective, name, found.programs[name])


def traffic(program: Program, size: int, element: int) -> int:
    """Bytes that the instructions read and write in one launch."""
    chunks = Fraction(0)
    for *_, i in program.instructions():
        refs = [*i.src, *i.dst]
        if i.op in READS_TARGET:
            refs.append(i.dst[0])
        chunks += Fraction(sum(ref.count for ref in refs), i.part[1])
    return int(chunks * layout(program, size, element).chunk_bytes)


def crossing(case: Case, size: int) -> int:
    """Bytes that have to get from rank to rank: what a spanning tree carries, or two of them."""
    return size * (case.program.n - 1) * (2 if case.collective == "allreduce" else 1)


class Memcpy:
    """Copies with all processors at once."""

    def __init__(self) -> None:
        self.threads = len(os.sched_getaffinity(0))
        self.source = np.ones(MEMORY, np.uint8)
        self.target = np.ones(MEMORY, np.uint8)

    def rate(self) -> float:
        """Bytes copied a second, once."""
        share = MEMORY // self.threads
        ready = threading.Barrier(self.threads + 1)

        def copy(k: int) -> None:
            ready.wait()
            ctypes.memmove(
                self.target.ctypes.data + k * share, self.source.ctypes.data + k * share, share
            )

        workers = [threading.Thread(target=copy, args=(k,)) for k in range(self.threads)]
        for worker in workers:
            worker.start()
        ready.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        return share * self.threads / (time.perf_counter() - begin)


def measure(case: Case, size: int, way: RanksAs, repeat: int, memcpy: Memcpy) -> tuple[float, ...]:
    """(engine's seconds, a memcpy's bytes a second, the engine's share): medians, taken by turns.

    The share is that of neighbours in time: what else the machine does slows both.
    """
    moved = traffic(case.program, size, 4) / 2
    ours, theirs, shares = [], [], []
    for _ in range(repeat):
        before = memcpy.rate()
        result = run(
            case.program,
            size,
            modes=["out-of-place"],
            warmup=1,
            iterations=3,
            check=False,
            ranks_as=way,
        )
        ours.append(result.rows[0].time_us / 1e6)
        theirs.append((before + memcpy.rate()) / 2)
        shares.append(moved / ours[-1] / theirs[-1])
    return statistics.median(ours), statistics.median(theirs), statistics.median(shares)


def main() -> int:
    """Print the table; 1 if a row is below half of the memcpy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--machine", default="dgx-a100", help="of the catalogue")
    parser.add_argument("--boxes", type=int, default=1)
    parser.add_argument("--size", type=int, default=64, help="MiB")
    parser.add_argument("--collective", action="append", choices=COLLECTIVES, help="default: all")
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the median counts")
    chosen = parser.parse_args()
    memcpy = Memcpy()
    print("| plan | ranks as | time | moved | engine GB/s | memcpy GB/s | share | of the least |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 1e9
    for case in cases(chosen.machine, chosen.boxes, chosen.collective or COLLECTIVES):
        for way in WAYS:
            size = chosen.size << 20
            ours, theirs, share = measure(case, size, way, chosen.repeat, memcpy)
            moved = traffic(case.program, size, 4) / 2
            worst = min(worst, share)
            print(
                f"| {case.collective}, {case.format} | {way} | {words.seconds(ours)} | "
                f"{moved / 1e9:.2f} GB | {moved / ours / 1e9:.2f} | {theirs / 1e9:.2f} | "
                f"{100 * share:.0f} % | {100 * share * crossing(case, size) / moved:.0f} % |",
                flush=True,
            )
    return 0 if worst >= 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
