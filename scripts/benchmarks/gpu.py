"""What the GPU engine does on this machine: right or wrong, and how fast beside plain copies.

    scripts/bench --gpu                      all of it, as markdown
    scripts/bench --gpu --memcheck           the small runs once more under compute-sanitizer

Ranks share the first GPU, 2, 4 and 8 of them: every collective and type is compared element by
element, then an allgather, a reduce-scatter and an allreduce of 256 MiB are timed. `of copies` is
what the plan's own copies and sums move, a second, over the card's device-to-device copy rate.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
from pathlib import Path

from forestcoll import load_topology, synthesize
from forestcoll.execute import cpu, gpu
from forestcoll.execute.gpu.compiler import find_platform, library
from forestcoll.execute.gpu.native import Device, Library
from forestcoll.program import Program

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce")
FORMATS = ("mscclpp-json", "msccl-xml")
LARGE = 256 << 20
SMALL = 1 << 20


def program(collective: str, ranks: int, form: str) -> Program:
    """The plan for some GPUs on one switch."""
    topology = load_topology("dgx-a100")
    names = [f"box0/gpu{i}" for i in range(ranks)]
    made = synthesize(topology, collective, ranks=names, formats=(form,))  # type: ignore[arg-type]
    return made.programs[form]  # type: ignore[index]


def moved(collective: str, ranks: int, size: int) -> int:
    """Bytes that the ranks' copies and sums write at the least, all together."""
    each = {"allgather": ranks - 1, "reduce-scatter": ranks - 1, "allreduce": 2 * (ranks - 1)}
    return each[collective] * size


def right(built: Path, size: int) -> int:
    """Runs everything small; returns the number of runs that were wrong."""
    bad = 0
    for ranks in (2, 4, 8):
        for collective in COLLECTIVES:
            for form in FORMATS:
                plan = program(collective, ranks, form)
                for dtype in cpu.DTYPES:
                    ops = cpu.OPS if plan.collective.reduces else ("sum",)
                    for op in ops:
                        found = gpu.run(plan, size, built=built, devices=[0], dtype=dtype, op=op)
                        if found.wrong:
                            bad += 1
                            print(f"WRONG: {ranks} ranks, {collective}, {form}, {dtype}, {op}")
                            print("\n".join(found.mismatches))
        print(f"- {ranks} ranks: all collectives, both formats, all types and operations compared")
    return bad


def speed(built: Path, repeat: int) -> None:
    """The table of large sizes."""
    device = Device(Library(built), 0, 2 * LARGE)
    rate = device.copy_rate(LARGE, 20)
    device.close()
    print(f"\nDevice-to-device copies: {rate:.1f} GB/s (256 MiB each)\n")
    print("| plan | ranks | algbw GB/s | moved GB/s | of copies |")
    print("|---|---|---|---|---|")
    for collective in ("allgather", "reduce-scatter", "allreduce"):
        for form in FORMATS:
            for ranks in (2, 4, 8):
                plan = program(collective, ranks, form)
                found = gpu.run(
                    plan, LARGE, built=built, devices=[0], iterations=repeat, warmup=3, check=True
                )
                row = min(found.rows, key=lambda r: r.time_us)
                bandwidth = moved(collective, ranks, row.size) / row.time_us / 1e3
                words = f"{collective}, {form}" + (" WRONG" if found.wrong else "")
                print(
                    f"| {words} | {ranks} | {row.algbw:.2f} | {bandwidth:.1f} | "
                    f"{bandwidth / rate:.0%} |"
                )


def memcheck() -> int:
    """The small runs under compute-sanitizer; its exit status."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return 1
    command = [tool, "--target-processes", "all", "--error-exitcode", "9"]
    return subprocess.run([*command, sys.executable, __file__, "--small"]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20, help="timed runs of each row")
    parser.add_argument("--memcheck", action="store_true", help="under compute-sanitizer")
    parser.add_argument("--small", action="store_true", help="no large sizes")
    options = parser.parse_args()
    if options.memcheck:
        return memcheck()
    found = find_platform()
    if found is None:
        print("no GPU is seen on this machine", file=sys.stderr)
        return 1
    built = library(*found)
    seen = Library(built).describe(0)
    print(f"{seen.name}, {', '.join(found[1])}, {datetime.date.today().isoformat()}\n")
    bad = right(built, SMALL if not options.small else 64 << 10)
    if not options.small:
        speed(built, options.repeat)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
