"""What the GPU engine does on this machine: right or wrong, and how fast beside plain copies.

    scripts/bench --gpu                      all of it, as markdown
    scripts/bench --gpu --memcheck           the small runs once more under compute-sanitizer

Ranks share the first GPU, 2, 4 and 8 of them: every collective, format, type and operation is
compared element by element, then an allgather, a reduce-scatter and an allreduce of 256 MiB are
timed. `of copies` is what the plan's own copies and sums move, a second, over the card's
device-to-device copy rate. Every line says how far the clock is; --seconds ends it in time.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from forestcoll import load_topology, synthesize
from forestcoll.execute import cpu, gpu
from forestcoll.execute.gpu.compiler import find_platform, library
from forestcoll.execute.gpu.native import Device, Library
from forestcoll.program import Program

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce")
TIMED = ("allgather", "reduce-scatter", "allreduce")
FORMATS = ("mscclpp-json", "msccl-xml")
LARGE = 256 << 20
SMALL = 1 << 20
TINY = (64 << 10) - 40
"""Bytes for the memory checker: a size that the plans' chunks do not divide."""


def program(collective: str, ranks: int, form: str, protocol: str | None = None) -> Program:
    """The plan for some GPUs on one switch."""
    topology = load_topology("dgx-a100")
    names = [f"box0/gpu{i}" for i in range(ranks)]
    made = synthesize(
        topology,
        collective,  # type: ignore[arg-type]
        ranks=names,
        formats=(form,),  # type: ignore[arg-type]
        protocol=protocol,
    )
    return made.programs[form]  # type: ignore[index]


def moved(collective: str, ranks: int, size: int) -> int:
    """Bytes that the ranks' copies and sums write at the least, all together."""
    each = {"allgather": ranks - 1, "reduce-scatter": ranks - 1, "allreduce": 2 * (ranks - 1)}
    return each[collective] * size


def copy_rate(device: Device, bytes_: int, repeat: int) -> float:
    """GB/s of copies within the GPU, from the arena's second `bytes_` bytes to the first."""
    seconds = 0.0
    for _ in range(2):  # the first time does not count
        began = time.perf_counter()
        for k in range(repeat):
            device.call("copy", device.base, device.base + bytes_, bytes_, k == repeat - 1)
        seconds = time.perf_counter() - began
    return bytes_ * repeat / seconds / 1e9


@dataclass(slots=True)
class Bench:
    """The runs, on the first GPU, by processes that are kept from one to the next."""

    built: Path
    processes: gpu.Processes
    ranks: tuple[int, ...]
    until: float  # time.monotonic()
    begun: float
    runs: int = 0
    wrong: int = 0

    def say(self, text: str) -> None:
        """A line, at once, and what the clock says."""
        print(f"{text} ({time.monotonic() - self.begun:.0f} s)", flush=True)

    def right(self, size: int, every: bool) -> bool:
        """Runs everything small. `every`: all operations of each type, else one by turns.

        False: there was no time for all of it.
        """
        for ranks in self.ranks:
            for collective in COLLECTIVES:
                for form in FORMATS:
                    plan = program(collective, ranks, form)
                    for number, dtype in enumerate(cpu.DTYPES):
                        ops = cpu.OPS if every else (cpu.OPS[number % len(cpu.OPS)],)
                        for op in ops if plan.collective.reduces else ("sum",):
                            if time.monotonic() > self.until:
                                self.say(f"- no time for the rest, from {ranks} ranks, {form} on")
                                return False
                            self.one(plan, size, (collective, form, dtype, op))
            plan = program("allreduce", ranks, "mscclpp-json", "LL")
            self.one(plan, min(size, TINY), ("allreduce", "packets", "float32", "sum"))
            self.say(f"- {ranks} ranks: {self.runs} runs so far, {self.wrong} of them wrong")
        return True

    def one(self, plan: Program, size: int, what: tuple[str, str, str, str]) -> None:
        """One small run, compared in place and out of place."""
        *_, dtype, op = what
        self.runs += 1
        ways = {"built": self.built, "devices": [0], "processes": self.processes}
        found = gpu.run(plan, size, dtype=dtype, op=op, timeout=120, **ways)  # type: ignore[arg-type]
        if found.wrong:
            self.wrong += 1
            print(f"WRONG: {plan.n} ranks, {', '.join(what)}")
            print("\n".join(found.mismatches), flush=True)

    def speed(self, size: int, repeat: int) -> None:
        """The table of large sizes."""
        device = Device(Library(self.built), 0, 2 * size)
        rate = copy_rate(device, size, 20)
        device.close()
        print(f"\nDevice-to-device copies: {rate:.1f} GB/s ({size >> 20} MiB each)\n")
        print("| plan | ranks | slots | algbw GB/s | moved GB/s | of copies |")
        print("|---|---|---|---|---|---|", flush=True)
        for collective in TIMED:
            for form in FORMATS:
                # Small slots stay in the second cache, large ones need fewer signals.
                slots = (1 << 20, 128 << 10) if form == "msccl-xml" else (1 << 20,)
                for ranks in self.ranks:
                    for slot in slots:
                        if time.monotonic() < self.until:
                            self.row(collective, form, ranks, slot, (size, repeat, rate))

    def row(
        self, collective: str, form: str, ranks: int, slot: int, how: tuple[int, int, float]
    ) -> None:
        """One line of that table: the faster of out of place and in place."""
        size, repeat, rate = how
        found = gpu.run(
            program(collective, ranks, form),
            size,
            built=self.built,
            devices=[0],
            iterations=repeat,
            warmup=3,
            slot_bytes=slot,
            processes=self.processes,
        )
        row = min(found.rows, key=lambda r: r.time_us)
        bandwidth = moved(collective, ranks, row.size) / row.time_us / 1e3
        words = f"{collective}, {form}" + (" WRONG" if found.wrong else "")
        self.wrong += found.wrong > 0
        held = f"{slot >> 10} KiB" if form == "msccl-xml" else ""
        print(
            f"| {words} | {ranks} | {held} | {row.algbw:.2f} | {bandwidth:.1f} | "
            f"{bandwidth / rate:.0%} |",
            flush=True,
        )


def memcheck(arguments: list[str]) -> int:
    """The small runs under compute-sanitizer: 0 if it watched kernels and found no fault."""
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if tool is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        logs = ["--log-file", f"{folder}/%p.log"]  # one a process: the kernels run in children
        command = [tool, "--target-processes", "all", "--error-exitcode", "9", *logs]
        done = subprocess.run([*command, sys.executable, __file__, "--tiny", *arguments])
        texts = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    return judged(texts, done.returncode)


def judged(logs: list[str], status: int) -> int:
    """The exit status by the sanitizer's own words, one text a process."""
    counts = [int(n) for text in logs for n in re.findall(r"ERROR SUMMARY: (\d+) error", text)]
    print(f"compute-sanitizer: {len(counts)} processes, {sum(counts)} errors")
    if not counts:
        print("it said nothing of any process: this is no proof", file=sys.stderr)
        return 1
    for text in logs:
        if "ERROR SUMMARY: 0 errors" not in text:
            print(text[:20_000])
    return 1 if sum(counts) or status else 0


def main(arguments: list[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20, help="timed runs of each row")
    parser.add_argument("--memcheck", action="store_true", help="under compute-sanitizer")
    parser.add_argument("--small", action="store_true", help="no large sizes")
    parser.add_argument("--tiny", action="store_true", help="nor all operations")
    parser.add_argument("--ranks", default="2,4,8", help="on one GPU: 2,4,8")
    parser.add_argument("--seconds", type=float, default=540, help="begins nothing after these")
    parser.add_argument("--size", type=int, default=LARGE, help="bytes of the large runs")
    parser.add_argument("--library", type=Path, help="engine.cu as somebody else compiled it")
    options = parser.parse_args(arguments)
    if options.memcheck:
        return memcheck([a for a in arguments if a not in ("--memcheck", "--tiny")])
    begun = time.monotonic()
    found = find_platform()
    if options.library is None and found is None:
        print("no GPU is seen on this machine", file=sys.stderr)
        return 1
    built = options.library or library(*found)  # type: ignore[misc]
    seen = Library(built).describe(0)
    kind = ", ".join(found[1]) if found else built.name
    with gpu.Processes() as processes:
        ranks = tuple(int(n) for n in options.ranks.split(","))
        bench = Bench(built, processes, ranks, begun + options.seconds, begun)
        bench.say(f"{seen.name}, {kind}, {datetime.date.today().isoformat()}; compiled\n")
        if not options.small and not options.tiny:  # first: it is soon done, and asked for most
            bench.speed(options.size, options.repeat)
            print(flush=True)
        whole = bench.right(TINY if options.tiny else SMALL, not options.tiny)
    return 0 if whole and not bench.wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
