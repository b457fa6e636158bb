"""The catalogue's plans as data: what they were, and what another version makes of them.

    python scripts/benchmarks/frozen.py measure [--python PYTHON] [--quick] [--only TEXT]
                                        [--shard 1/4] [--jobs N] [--store FILE]
    python scripts/benchmarks/frozen.py write   [--store FILE] [--frozen FILE]
    python scripts/benchmarks/frozen.py compare [--frozen FILE] [--beside PYTHON] [--play]
                                        [--allow RULE ...] and those of `measure`

A row is a command line of `forestcoll synthesize`, run in a process of its own by PYTHON (the one
that runs this script, if not said), whose package it measures. So nothing here depends on how the
package is made inside. Rows that a store holds are not measured again; a store belongs to one state
of the package's sources, and another state begins a new one.

`compare` holds each row against the frozen one: its times at most 1 % longer, over links alone and
as reports print them, no more thread blocks, the same forest to the byte, its bars still reached in
printed times, the same refusal. The exit code is 1 where one of these is broken and not allowed.
Plans that are the frozen ones to the byte are not played again where their times are known;
`--play` plays them too, for changes to the simulator. Seconds are of processors; those frozen are
of one machine, so `--beside` runs another version's PYTHON next to each row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import measure

FROZEN = Path(__file__).with_name("frozen.json")
COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "broadcast", "reduce")
TARGETS = {"msccl": "msccl-xml", "rccl": "msccl-xml", "mscclpp": "mscclpp-json"}
BARS = {"allgather": 95, "reduce-scatter": 92, "allreduce": 90, "broadcast": 90, "reduce": 90}
"""Percent of the optimum that a plan has to reach at 1 GB, ..."""
BAR_SHORT = 85
"""... and at 64 MB of its bound: the way of the first byte to the last rank, then all bytes at the
optimum. No plan takes less that hands each tree on at an even rate, however short its slices are:
the last one leaves the root when the bytes are over, and has the longest way before it. Over links
alone, where nothing takes time but bytes, that is the optimum again."""
SHORT, LONG = 64 * 10**6, 10**9
SIZES = ("64 MB", "1 GB")
LIMIT = 1800.0
"""Seconds after which a command is stopped."""
SLOWER = Fraction(101, 100)
"""Times of before that a plan may take."""
RULES = {
    "times": "rows slower than 99 % of before over links alone",
    "shown": "rows slower than that as reports print it",
    "blocks": "rows with more thread blocks",
    "forests": "forests that differ",
    "bars": "rows below their bars that were not",
    "refusals": "refusals that are new or differ",
}


def machine(name: str, ranks: int = 0, **settings: int) -> tuple[str, ...]:
    """Arguments of a machine; `ranks`: the first so many of its GPUs."""
    words = ["-t", name]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return (*words, "--ranks", f"box0/gpu[0-{ranks - 1}]") if ranks else tuple(words)


MACHINES: tuple[tuple[str, ...], ...] = (
    machine("dgx-a100"),
    machine("dgx-h100"),
    machine("mi300x"),
    machine("dgx1-v100"),
    machine("torus-2d"),
    machine("mi250"),
    machine("dgx2-v100"),
    machine("dgx-a100", boxes=2),
    machine("dgx-h100", boxes=2),
    machine("mi300x", boxes=2),
    machine("torus-3d", x=3, y=3, z=3),
    machine("fat-tree"),
    machine("gb200-nvl72", 32),
    machine("dgx-a100", boxes=4),
    machine("rail", boxes=4),
    machine("mi250", boxes=2),
    machine("fat-tree", leaves=3),
    machine("fat-tree", leaves=4),
    machine("dgx-a100", boxes=8),
    machine("gb200-nvl72", 64),
)
"""Those of docs/reference/plan-times.md, the small ones first."""


def row(where: tuple[str, ...], collective: str, target: str, *more: str) -> tuple[str, ...]:
    """The arguments of a row."""
    return (*where, "-c", collective, "--target", target, *more)


def _quick() -> Iterator[tuple[str, ...]]:
    """Small rows that cover every way to lower."""
    a100, h100, v100 = machine("dgx-a100"), machine("dgx-h100"), machine("dgx1-v100")
    mi300x, torus, mi250 = machine("mi300x"), machine("torus-2d"), machine("mi250")
    for collective in COLLECTIVES:
        yield row(a100, collective, "mscclpp")
        yield row(a100, collective, "msccl")
        yield row(mi300x, collective, "rccl")
    yield row(v100, "allgather", "msccl")
    yield row(v100, "allreduce", "mscclpp")
    yield row(torus, "allgather", "rccl")
    yield row(torus, "reduce-scatter", "mscclpp")
    yield row(mi250, "allgather", "rccl")
    yield row(mi250, "broadcast", "mscclpp")
    for protocol in ("LL", "LL128"):
        yield row(a100, "allreduce", "msccl", "--protocol", protocol)
        yield row(v100, "broadcast", "msccl", "--protocol", protocol)
        yield row(mi300x, "allgather", "rccl", "--protocol", protocol)
    for collective in ("allgather", "allreduce", "reduce"):
        yield row(a100, collective, "mscclpp", "--protocol", "LL")
    for place in ("in-place", "out-of-place"):
        yield row(h100, "allreduce", "mscclpp", "--nvls", place)
        yield row(a100, "allgather", "mscclpp", "--place", place)
    yield row(h100, "broadcast", "mscclpp", "--nvls", "in-place")
    yield row(a100, "alltoall", "mscclpp")
    yield row(a100, "alltoall", "msccl")
    yield row(v100, "alltoall", "mscclpp")
    yield row(v100, "alltoall", "mscclpp", "--protocol", "LL")
    yield row(torus, "alltoall", "rccl")
    yield row(mi250, "allgather", "mscclpp", "--groups", "box0/gpu[0-7];box0/gpu[89],box0/gpu1*")
    yield row(mi300x, "allreduce", "rccl", "--sizes", "1K:8G")
    yield row(a100, "allreduce", "mscclpp", "--sizes", "1K:1G")
    yield row(a100, "allgather", "msccl", "--instances", "2")
    yield row(v100, "allreduce", "mscclpp", "--trees", "1")
    yield row(v100, "allgather", "msccl", "--budget", "trees=2,blocks=16")
    yield row(a100, "reduce-scatter", "mscclpp", "--without", "box0/gpu3", "--min-percent", "90")
    for height in ("2", "3"):
        yield row(v100, "broadcast", "msccl", "--max-height", height, "--root", "3")


def rows(quick: bool = False) -> list[tuple[str, ...]]:
    """All rows: those of every day, then the catalogue's, then its all-to-alls."""
    found = dict.fromkeys(_quick())
    if quick:
        return list(found)
    for where in MACHINES:
        for collective in COLLECTIVES:
            found |= dict.fromkeys(row(where, collective, target) for target in TARGETS)
    for where in MACHINES[:12]:
        found |= dict.fromkeys(row(where, "alltoall", target) for target in TARGETS)
    return list(found)


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a row.

    `algbw`: GB/s that links allow the plan, a fraction; `best`: the most that any forest reaches
    whose GPUs copy and add. `us`: microseconds at SHORT and LONG, the worse of fair links and of
    two draws of links in order, without what a runtime adds. `shown`: those with it, as reports
    print them, the worse rule; empty of a frozen row that has not been played so. `blocks`: most
    thread blocks of a rank, and of all ranks together. `lead`: microseconds of one byte over the
    longest way of the forest, whose hops take what the plan's do. `share`: percent of the bound at
    both sizes, of `shown` (BARS). `low`: whether that is below. `forest`, `plan`: hashes of the
    files.
    """

    key: str
    algbw: str = ""
    best: str = ""
    us: tuple[float, ...] = ()
    shown: tuple[float, ...] = ()
    blocks: tuple[int, ...] = ()
    share: tuple[float, ...] = ()
    low: bool = False
    forest: str = ""
    plan: str = ""
    seconds: float = 0.0
    refused: str = ""
    lead: float = 0.0


def bars_of(collective: str) -> tuple[int, int]:
    """Percent that a plan has to reach at SHORT and at LONG."""
    return BAR_SHORT, BARS[collective]


def reached(size: int, us: float, best: Fraction | float, lead: float = 0.0) -> float:
    """Percent of its bound that a call reaches which takes so long: GB/s, and microseconds."""
    return round(100 * (lead + size / 1e3 / float(best)) / us, 2)


def key_of(words: Sequence[str]) -> str:
    """A row's name: its arguments in words."""
    return " ".join(words)


def forestcoll(python: str, folder: Path, *words: str) -> measure.Used:
    """A command of the package that `python` finds, run in `folder`."""
    command = [python, "-m", "forestcoll", *words]
    return measure.run(command, LIMIT, source=None, folder=folder)


def digest(files: Iterable[Path]) -> str:
    """One hash of all that the files hold."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def blocks_of(plan: Path) -> tuple[int, int]:
    """(most thread blocks of a rank, those of all ranks)."""
    text = plan.read_text(encoding="utf-8")
    if plan.suffix == ".json":
        counts = [len(gpu["threadblocks"]) for gpu in json.loads(text)["gpus"]]
    else:
        counts = [len(re.findall("<tb ", gpu)) for gpu in text.split("<gpu ")[1:]]
    return max(counts), sum(counts)


def measured(words: tuple[str, ...], python: str, known: Row | None) -> Row:
    """The row, played unless its plan is `known`'s."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = forestcoll(python, folder, "synthesize", *words, "-o", "out/", "--json")
        key, seconds = key_of(words), round(made.processor, 2)
        if made.timed_out:
            return Row(key, seconds=seconds, refused=f"stopped after {LIMIT:.0f} s")
        if made.code not in (0, 1):
            raise SystemExit(f"{key}: exit {made.code}\n{made.err}")
        if made.code:
            return Row(key, seconds=seconds, refused=made.err.strip().splitlines()[-1])
        files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
        ends = (".msccl.xml", ".mscclpp.json")
        played = [path for path in files if path.name.endswith(ends)]
        plan = digest(played)
        forest = digest(p for p in files if p.name.endswith((".forest.json", ".routes.json")))
        figures = json.loads(made.out)
        counts = [blocks_of(path) for path in played]
        blocks = (max(most for most, _ in counts), sum(total for _, total in counts))
        algbw = figures.get("plain_algbw") or figures.get("algbw") or ""
        if "index" in figures:
            algbw = max(figures["index"]["forests"], key=lambda f: Fraction(f["algbw"]))["algbw"]
        best = figures.get("plain_bound") or figures["bound"]
        lead = _lead(python, folder, words, figures)
        if known and known.shown and (known.plan, known.forest) == (plan, forest):
            times, shown = known.us, known.shown
        else:
            times, shown = _played(python, folder, words, played, figures)
    share = tuple(
        reached(size, us, Fraction(best), way)
        for size, us, way in zip((SHORT, LONG), shown, (lead, 0), strict=False)
    )
    collective = words[words.index("-c") + 1]
    plain = words[-1] in TARGETS and collective in BARS
    low = plain and any(a < b for a, b in zip(share, bars_of(collective), strict=True))
    files = (forest, plan)
    return Row(key, algbw, best, times, shown, blocks, share, low, *files, seconds, lead=lead)


Times = tuple[float, ...]
BARE = ("--signal", "0", "--latency", "0")
DRAWN = ("--rule", "in-order", "--seed", "1")


def _played(
    python: str, folder: Path, words: tuple[str, ...], files: list[Path], figures: dict[str, Any]
) -> tuple[Times, Times]:
    """`us` and `shown`: of the plan, of the slowest group, of a set's right plans."""
    where = _where(words)
    by_size: list[tuple[int, Path]] = []
    if "index" in figures:
        plans = [plan for runtime in figures["index"]["runtimes"] for plan in runtime["plans"]]
        for size in (SHORT, LONG):
            (plan,) = [p for p in plans if p["min_bytes"] <= size <= p["max_bytes"]]
            by_size.append((size, folder / "out" / plan["file"]))

    def times(*runs: Sequence[str]) -> Times:
        if by_size:
            each = [_times(python, folder, file, (size,), runs) for size, file in by_size]
            return tuple(time for (time,) in each)
        return _slowest(_times(python, folder, file, (SHORT, LONG), runs) for file in files)

    bare = (*where, *BARE)
    return times(bare, (*bare, *DRAWN)), times(where)


def _where(words: tuple[str, ...]) -> tuple[str, ...]:
    """The machine that a plan is played on.

    One on some of a machine's GPUs has that machine's latencies nowhere but in its report: there
    they count as 0.
    """
    partial = any(word in words for word in ("--without", "--ranks", "--groups"))
    return () if partial else words[: words.index("-c")]


def _lead(python: str, folder: Path, words: tuple[str, ...], figures: dict[str, Any]) -> float:
    """`Row.lead`; 0 where there is no forest, or a plan states no hop."""
    forest = figures.get("files", {}).get("forest")
    hop = re.search(r"([0-9.]+) us per", str(figures.get("plans")))
    if not forest or not hop:
        return 0.0
    runs = [(*_where(words), "--signal", hop[1])]
    return _times(python, folder, folder / forest, (1,), runs)[0]


def _slowest(each: Iterable[Times]) -> Times:
    return tuple(map(max, zip(*each, strict=True)))


def _times(
    python: str, folder: Path, plan: Path, sizes: Sequence[int], runs: Iterable[Sequence[str]]
) -> Times:
    """Microseconds at each size, the worst of fair links, and of links in order, of all `runs`."""
    each = []
    for options in runs:
        more = (word for size in sizes for word in ("--size", str(size)))
        used = forestcoll(
            python, folder, "time", str(plan), *more, "--links", "0", "--json", *options
        )
        if used.code:
            raise SystemExit(f"time {plan.name}: exit {used.code}\n{used.err}")
        timings = [t for t in json.loads(used.out)["timings"] if t["rule"] != "by link"]
        each.append(
            tuple(max(t["time_us"] for t in timings if t["size"] == size) for size in sizes)
        )
    return tuple(round(time, 3) for time in _slowest(each))


def store_of(python: str) -> Path:
    """Where rows are kept of the package that `python` finds: a file for each state of it."""
    code = "import forestcoll; print(forestcoll.__file__)"
    words = [python, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    folder = Path(done.stdout.strip()).parent
    ends = {".py", ".cpp", ".hpp", ".yaml", ".json"}
    files = [p for p in folder.rglob("*") if p.suffix in ends]
    files += (folder.parent / "topologies").rglob("*.yaml")
    return folder.parent / "build" / "frozen" / f"{digest(sorted(files))}.jsonl"


def read(store: Path) -> dict[str, Row]:
    """The rows of a store or of frozen ones: a line each."""
    if not store.exists():
        return {}
    lines = [line.rstrip(",") for line in store.read_text(encoding="utf-8").splitlines()]
    values = [json.loads(line) for line in lines if line.startswith("{")]
    tuples = {"us", "shown", "blocks", "share"}
    return {
        one["key"]: Row(**{k: tuple(v) if k in tuples else v for k, v in one.items()})
        for one in values
    }


def line_of(one: Row) -> str:
    """A row as a line of JSON, without what is empty."""
    blank = {field.name: field.default for field in fields(Row)}
    values = {name: value for name, value in asdict(one).items() if value != blank[name]}
    return json.dumps(values, separators=(",", ":"))


def write(store: Path, frozen: Path) -> None:
    """The store's rows as the frozen ones, in order: those that were there and are not in the
    store stay."""
    found = read(frozen) | read(store)
    kept = [found[key] for key in map(key_of, rows()) if key in found]
    frozen.write_text("[\n" + ",\n".join(line_of(one) for one in kept) + "\n]\n", encoding="utf-8")
    print(f"{len(kept)} of {len(rows())} rows in {frozen}")


def collect(
    wanted: Sequence[tuple[str, ...]], asked: argparse.Namespace, known: dict[str, Row]
) -> dict[str, Row]:
    """All that is wanted: from the store, or measured, and put there."""
    store = asked.store or store_of(asked.python)
    found = read(store)
    left = [words for words in wanted if key_of(words) not in found]
    store.parent.mkdir(parents=True, exist_ok=True)
    print(f"{len(wanted) - len(left)} rows in {store}, {len(left)} to measure", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool, store.open("a", encoding="utf-8") as file:
        asking = [pool.submit(measured, w, asked.python, known.get(key_of(w))) for w in left]
        for number, future in enumerate(as_completed(asking), 1):
            one = future.result()
            found[one.key] = one
            print(line_of(one), file=file, flush=True)
            figures = one.refused or f"{', '.join(map(str, one.share))} %, {one.blocks[0]} blocks"
            low = ", LOW" if one.low else ""
            said = f"[{number}/{len(left)}] {one.key}: {figures}{low}, {one.seconds} s"
            print(said, flush=True)
    return found


def broken(before: Row, after: Row) -> Iterator[tuple[str, str]]:
    """(rule, what of it) of all that is worse than before."""
    if before.refused != after.refused:
        if after.refused or not before.refused:
            yield "refusals", f"{before.refused or 'a plan'} -> {after.refused or 'a plan'}"
        return
    for rule, was, now in (("times", before.us, after.us), ("shown", before.shown, after.shown)):
        for size, old, new in zip(SIZES, was, now, strict=False):
            if new > float(SLOWER) * old:
                yield rule, f"{size}: {old} -> {new} us, {100 * old / new:.1f} %"
    if any(new > old for old, new in zip(before.blocks, after.blocks, strict=False)):
        yield "blocks", f"{before.blocks} -> {after.blocks}"
    if before.forest != after.forest:
        yield "forests", f"{before.algbw} -> {after.algbw} GB/s"
    if after.low and before.share and not before.low:
        yield "bars", f"{before.share} -> {after.share} %"


def compare(wanted: Sequence[tuple[str, ...]], asked: argparse.Namespace) -> int:
    """Prints what differs; 1 where a rule is broken that was not allowed."""
    frozen = read(asked.frozen)
    known = {} if asked.play else frozen
    keys = [key_of(words) for words in wanted if key_of(words) in frozen]
    missing = len(wanted) - len(keys)
    found = collect([words for words in wanted if key_of(words) in frozen], asked, known)
    pairs = [(frozen[key], found[key]) for key in keys]
    faults: dict[str, list[str]] = {rule: [] for rule in RULES}
    for old, new in pairs:
        for rule, what in broken(old, new):
            faults[rule].append(f"  {old.key}: {what}")
    print()
    for rule, title in RULES.items():
        allowed = " (allowed)" if rule in asked.allow else ""
        print(f"{len(faults[rule])} {title}{allowed}", *faults[rule], sep="\n")
    _sums(pairs, asked)
    print(f"{len(keys)} rows compared" + (f", {missing} are not frozen" if missing else ""))
    return any(faults[rule] for rule in RULES if rule not in asked.allow)


def _sums(pairs: list[tuple[Row, Row]], asked: argparse.Namespace) -> None:
    """Prints what all rows together gain or lose."""
    both = [(old, new) for old, new in pairs if not old.refused and not new.refused]
    same = sum(old.plan == new.plan for old, new in both)
    print(f"plans that are the same to the byte: {same} of {len(both)}")
    gained = [new.key for old, new in pairs if old.refused and not new.refused]
    if gained:
        print("plans where there was none:", *gained, sep="\n  ")
    for times, words in (("us", "over links alone"), ("shown", "as printed")):
        for k, size in enumerate(SIZES):
            sides = [(getattr(old, times), getattr(new, times)) for old, new in both]
            ratios = [old[k] / new[k] for old, new in sides if old and new]
            if ratios:
                print(
                    f"sum of time before / after at {size} {words}: {sum(ratios):.3f} of "
                    f"{len(ratios)}, least {min(ratios):.3f}, most {max(ratios):.3f}"
                )
    blocks = [sum(one.blocks[1] for one in side) for side in zip(*both, strict=True)]
    print(f"thread blocks in all: {' -> '.join(map(str, blocks))}")
    low = [sum(one.low for one in side) for side in zip(*pairs, strict=True)]
    print(f"rows below their bars: {' -> '.join(map(str, low))}")
    old_seconds = sum(old.seconds for old, _ in pairs)
    print(f"processor seconds: {old_seconds:.1f} -> {sum(new.seconds for _, new in pairs):.1f}")
    if asked.beside:
        _beside([old.key for old, _ in pairs], asked)


def _beside(keys: Sequence[str], asked: argparse.Namespace) -> None:
    """Prints the processor seconds of both versions, run in turn."""
    sums = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as name:
        for key in keys:
            words = next(words for words in rows() if key_of(words) == key)
            for k, python in enumerate((asked.beside, asked.python)):
                out = ("-o", f"{k}/", "--force", "--json")
                sums[k] += forestcoll(python, Path(name), "synthesize", *words, *out).processor
    ratio = sums[0] / sums[1]
    print(f"processor seconds side by side: {sums[0]:.1f} -> {sums[1]:.1f}, {ratio:.2f} x")


def main() -> int:
    title, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=title, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "write", "compare"))
    parser.add_argument("--python", default=sys.executable, help="whose package is measured")
    parser.add_argument("--quick", action="store_true", help="some rows of every kind: minutes")
    parser.add_argument("--only", default="", help="rows whose name has this: mi250, '-c reduce '")
    parser.add_argument("--shard", default="1/1", help="a part of the rows: 1/4")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", type=Path, help="where rows are kept")
    parser.add_argument("--frozen", type=Path, default=FROZEN)
    parser.add_argument("--beside", metavar="PYTHON", help="another version, for its seconds")
    parser.add_argument("--play", action="store_true", help="play plans that are the same, too")
    parser.add_argument("--allow", action="append", default=[], choices=RULES)
    asked = parser.parse_args()
    part, parts = map(int, asked.shard.split("/"))
    wanted = [words for words in rows(asked.quick) if asked.only in f"{key_of(words)} "]
    wanted = wanted[part - 1 :: parts]
    if asked.what == "write":
        write(asked.store or store_of(asked.python), asked.frozen)
        return 0
    if asked.what == "measure":
        collect(wanted, asked, {})
        return 0
    return compare(wanted, asked)


if __name__ == "__main__":
    sys.exit(main())
