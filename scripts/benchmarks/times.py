"""Simulated times of plans over the catalogue up to 64 ranks: percent of the optimum.

    python scripts/benchmarks/times.py [--only MACHINE] [--collective C] [--target T] [--jobs N]
                                       [--store FILE] [--stored] [--schedules] [--write]

Every plan is synthesized anew and played at 1 GB and 64 MB; of fair and fifo links the worse
counts, fifo being the least of two draws of who goes first. What is done is kept in `--store`, and
a later call goes on from there; a row says of which commit it is, and lines that have no optimum
are of an older form and measured anew. `--schedules` plays the plans in schedules/ instead.
`--write` puts the table into docs/reference/plan-times.md; that of the catalogue with another of
the plans that are slower than they should be, why, and what they reach. Cases that are not in the
store yet are left out with `--stored`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from frozen import bars_of

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.common.garbage_collection import collect_rarely
from forestcoll.compile.problem import Problem
from forestcoll.compile.search import FINEST
from forestcoll.compile.synthesize import synthesize
from forestcoll.lower import usage
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.program.targets import TARGETS, library_on
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.topology import catalog
from forestcoll.verify import simulate

ROOT = Path(__file__).parents[2]
STORE = ROOT / "build" / "times.jsonl"
SIZES = (10**9, 64 * 10**6)
SUFFIXES = (".msccl.xml", ".mscclpp.json")
SCHEDULED, CATALOGUE, EXCEPTIONS = "times", "catalogue", "exceptions"
"""Places in the page: `<!-- times -->` begins one, `<!-- /times -->` ends it."""
FAR = 0.95
"""Of the optimum: forests below it were taken for the speed of their plans."""
MACHINES: tuple[tuple[str, dict[str, str], str], ...] = (
    ("dgx-a100", {}, ""),
    ("dgx-a100", {"boxes": "2"}, ""),
    ("dgx-a100", {"boxes": "4"}, ""),
    ("dgx-a100", {"boxes": "8"}, ""),
    ("dgx-h100", {}, ""),
    ("dgx-h100", {"boxes": "2"}, ""),
    ("mi250", {}, ""),
    ("mi250", {"boxes": "2"}, ""),
    ("mi300x", {}, ""),
    ("mi300x", {"boxes": "2"}, ""),
    ("dgx1-v100", {}, ""),
    ("dgx2-v100", {}, ""),
    ("torus-2d", {}, ""),
    ("torus-3d", {"x": "3", "y": "3", "z": "3"}, ""),
    ("rail", {"boxes": "4"}, ""),
    ("fat-tree", {}, ""),
    ("fat-tree", {"leaves": "3"}, ""),
    ("fat-tree", {"leaves": "4"}, ""),
    ("gb200-nvl72", {}, "32"),
    ("gb200-nvl72", {}, "64"),
)
"""Name, settings, and how many of its GPUs are ranks ("": all)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan."""

    machine: str
    settings: tuple[tuple[str, str], ...]
    ranks: str
    collective: Collective
    target: str

    @property
    def label(self) -> str:
        """The machine in words."""
        more = [f"{key}={value}" for key, value in self.settings]
        more += [f"{self.ranks} ranks"] if self.ranks else []
        return f"{self.machine} {', '.join(more)}".strip()

    @property
    def n(self) -> int:
        """Number of ranks."""
        return int(self.ranks or len(catalog.load(self.machine, dict(self.settings)).gpus))

    @property
    def key(self) -> str:
        """What tells it apart."""
        return f"{self.label}: {self.collective}, {self.target}"


@dataclass(frozen=True, slots=True)
class Found:
    """What a plan reaches at each of SIZES, percent, and what it takes; or why there is none.

    `algbw`, `optimum`: GB/s that links allow its forest, and the best one. `commit`: of the code.
    """

    key: str
    algbw: float = 0.0
    fair: tuple[float, ...] = ()
    fifo: tuple[float, ...] = ()
    blocks: int = 0
    channels: int = 0
    steps: int = 0
    seconds: float = 0.0
    refused: str = ""
    protocol: str = "Simple"
    optimum: float = 0.0
    commit: str = ""

    @property
    def worse(self) -> tuple[float, ...]:
        """Of both rules."""
        return tuple(map(min, self.fair, self.fifo))


def best_of(forest: Forest) -> float:
    """GB/s of the best forest for the same, whose GPUs copy and add."""
    root = forest.root if forest.collective.has_root else None
    return float(Problem(forest.graph, forest.collective, root).plain.optimum().algbw)


def shares(program: Program, forest: Forest, size: int, best: float) -> tuple[float, float]:
    """Percent of `best` GB/s: (fair, fifo)."""

    def run(rule: simulate.Rule, seed: int) -> float:
        options = simulate.Options(seed=seed, signal=0.0)
        return 100 * simulate.run(program, forest, size, rule=rule, options=options).algbw / best

    return run("fair", 0), min(run("fifo", 0), run("fifo", 1))


def percent(plan: Path, size: int) -> tuple[float, float]:
    """The same of a plan file that stands beside its forest file."""
    name = next(plan.name.removesuffix(s) for s in SUFFIXES if plan.name.endswith(s))
    forest = forest_file.load(plan.with_name(f"{name}.forest.json"))
    return shares(plans.read_plan(plan), forest, size, best_of(forest))


def of_schedules(root: Path = ROOT) -> tuple[list[Case], dict[str, Found]]:
    """The plans in schedules/, MSCCL XML as rccl, and what they reach."""
    wanted, found = [], {}
    for folder in sorted(path for path in (root / "schedules").iterdir() if path.is_dir()):
        for collective in BY_TREES:
            for target, suffix in zip(("rccl", "mscclpp"), SUFFIXES, strict=True):
                case = Case(folder.name, (), "", collective, target)
                plan = folder / f"{collective}{suffix}"
                fair, fifo = zip(*(percent(plan, size) for size in SIZES), strict=True)
                needs = usage(plans.read_plan(plan))
                sizes = (needs.thread_blocks, needs.channels, needs.steps)
                found[case.key] = Found(case.key, 0.0, fair, fifo, *sizes)
                wanted.append(case)
    return wanted, found


def cases() -> Iterator[Case]:
    """All that the table has, in its order."""
    for machine, settings, ranks in MACHINES:
        for collective in BY_TREES:
            for target in TARGETS:
                yield Case(machine, tuple(settings.items()), ranks, collective, target)


def measure(case: Case) -> Found:
    """The case's plan, as the command line makes it, played."""
    with collect_rarely():
        return _measured(case)


def _measured(case: Case) -> Found:
    start = time.process_time()
    form = TARGETS[case.target].format
    topology = catalog.load(case.machine, dict(case.settings))
    ranks = topology.gpus[: int(case.ranks)] if case.ranks else None
    try:
        made = synthesize(
            topology,
            case.collective,
            ranks=ranks,
            target=case.target,  # type: ignore[arg-type]  # a name of TARGETS
            formats=(form,),
        )
    except (PlanError, UnsupportedError) as error:
        return Found(case.key, refused=str(error))
    seconds = time.process_time() - start
    program, needs = made.programs[form], usage(made.programs[form])
    best = best_of(made.forest)
    fair, fifo = zip(*(shares(program, made.forest, size, best) for size in SIZES), strict=True)
    return Found(
        case.key,
        float(made.forest.plain_algbw),
        fair,
        fifo,
        needs.thread_blocks,
        needs.channels,
        needs.steps,
        seconds,
        protocol=program.protocol,
        optimum=best,
        commit=commit_of_code(),
    )


def commit_of_code() -> str:
    """The version of the code, if git knows one."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def stored(store: Path) -> dict[str, Found]:
    """What a store holds."""
    if not store.exists():
        return {}
    rows = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: Found(**row) for row in rows if row.get("optimum") or row["refused"]}


def collect(wanted: Iterable[Case], store: Path, jobs: int) -> dict[str, Found]:
    """All that is wanted: from the store, or measured, several at a time, and put there."""
    found = stored(store)
    store.parent.mkdir(parents=True, exist_ok=True)
    left = sorted(
        (case for case in wanted if case.key not in found), key=lambda c: (c.target == "msccl", c.n)
    )
    with ProcessPoolExecutor(jobs) as pool, store.open("a", encoding="utf-8") as file:
        done = as_completed(pool.submit(measure, case) for case in left)
        for number, future in enumerate(done, 1):
            one = future.result()
            found[one.key] = one
            row = {name: getattr(one, name) for name in Found.__slots__}
            file.write(json.dumps(row) + "\n")
            file.flush()
            cells = cell(one, one.key.split(": ")[1].split(",")[0])
            print(f"[{number}/{len(left)}] {one.key}: {cells}, {one.seconds:.1f} s", flush=True)
    return found


def cell(found: Found | None, collective: str) -> str:
    """`"98.6, 82.4 (17/1)"`: 1 GB, 64 MB (thread blocks/channels); bold: below what it has to."""
    if found is None:
        return ""
    if found.refused:
        return "-"
    figures = [
        f"{share:.1f}" if share >= bar else f"**{share:.1f}**"
        for share, bar in zip(found.worse, bars_of(collective)[::-1], strict=True)
    ]
    return f"{', '.join(figures)} ({found.blocks}/{found.channels})"


def table(wanted: Iterable[Case], found: Mapping[str, Found]) -> str:
    """A row for each machine and collective, a column for each target."""
    wanted = list(wanted)
    names = [name for name in TARGETS if any(case.target == name for case in wanted)]
    lines = [f"| machine | collective | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for label, collective in dict.fromkeys((case.label, case.collective) for case in wanted):
        cells = [cell(found.get(f"{label}: {collective}, {name}"), collective) for name in names]
        lines.append(f"| {label} | {collective} | {' | '.join(cells)} |")
    return "\n".join(lines)


def below(found: Found, collective: str) -> bool:
    """Whether the plan is slower than it should be."""
    if found.refused:
        return True
    return any(a < b for a, b in zip(found.worse, bars_of(collective)[::-1], strict=True))


def reason(found: Found, target: str) -> str:
    """What keeps the plan from being faster, as far as its figures tell."""
    limits = TARGETS[target]
    if found.refused:
        return found.refused
    if found.algbw < FAR * found.optimum:
        share = 100 * found.algbw / found.optimum
        return f"rings or fewer trees, {share:.1f} % of the optimum: plans of it are slower"
    if limits.style == "onesided":
        return f"the shortest slices of {found.blocks} thread blocks are on their way at once"
    if found.protocol != "Simple":
        messages = library_on(found.key.split(":")[0].split()[0]).messages
        share = 100 / float(messages.wire(found.protocol))  # type: ignore[arg-type]  # of a plan
        return f"{found.protocol} has {share:.2f} % data, the rest flags; trees fill and drain"
    if found.steps > limits.steps * 3 // 4:
        return f"lists have {found.steps} of {limits.steps} steps: no room for shorter chunks"
    return f"with shorter chunks, 64 MB have more than {SIZES[1] // FINEST}"


def exceptions(wanted: Iterable[Case], found: Mapping[str, Found]) -> str:
    """The plans that are slower than they should be: what they reach, and why no more."""
    known = [case for case in wanted if case.key in found]
    slow = [case for case in known if below(found[case.key], case.collective)]
    lines = [
        f"{len(slow)} of {len(known)} plans stay below:",
        "",
        "| plan | 1 GB | 64 MB | why |",
        "|---|---|---|---|",
    ]
    for case in slow:
        one = found[case.key]
        rates = [f"{share:.1f} %, {share * one.optimum / 100:.1f} GB/s" for share in one.worse] or [
            "-",
            "-",
        ]
        lines.append(f"| {case.key} | {' | '.join(rates)} | {reason(one, case.target)} |")
    return "\n".join(lines)


def put(page: Path, place: str, text: str) -> None:
    """Puts the text between the marks of its place in the page."""
    begin, end = f"<!-- {place} -->", f"<!-- /{place} -->"
    head, rest = page.read_text(encoding="utf-8").split(begin)
    _, tail = rest.split(end)
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="a machine, as the table has it or by its name alone")
    parser.add_argument("--collective", choices=[*map(str, BY_TREES)])
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--schedules", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    wanted = [
        case
        for case in cases()
        if asked.only in (None, case.label, case.machine)
        and asked.collective in (None, str(case.collective))
        and asked.target in (None, case.target)
    ]
    page = ROOT / "docs" / "reference" / "plan-times.md"
    if asked.schedules:
        texts = {SCHEDULED: table(*of_schedules())}
    else:
        found = stored(asked.store) if asked.stored else collect(wanted, asked.store, asked.jobs)
        wanted = [case for case in wanted if not asked.stored or case.key in found]
        texts = {CATALOGUE: table(wanted, found), EXCEPTIONS: exceptions(wanted, found)}
    for place, text in texts.items():
        print(text, end="\n\n")
        if asked.write:
            put(page, place, text)


if __name__ == "__main__":
    sys.exit(main())
