"""Random mutations of every kind of file that is read, and what must hold of each mutant.

The command line is run on it, as a user would. It ends with 0 or 1, never with an exception; costs
no more than the limits on input allow; says nothing that a terminal could not show. What it calls
right holds in the symbolic runs too, of two launches.

As a program: `python tests/mutations.py --count 5000 [--seed N] [FORMAT...]`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import resource
import secrets
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import edits
import programs
import test_readings
from graphs import machine

from forestcoll import plans
from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import MEMORY, SECONDS
from forestcoll.common.text_file import seal
from forestcoll.compile import together
from forestcoll.compile.synthesize import synthesize
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule import forest_file
from forestcoll.solver.alltoall import file as alltoall_file
from forestcoll.solver.alltoall.demand import alltoallv, in_groups, uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.topology import catalog
from forestcoll.ui import cli
from forestcoll.verify import verify

# --- what is mutated ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A kind of file: whole ones, and what is made of a mutant.

    `bases`: name -> files by their names; the first is mutated, the others lie beside it.
    """

    bases: Callable[[], dict[str, dict[str, str]]]
    command: tuple[str, ...] = ("verify",)
    more: Callable[[str], list[str]] = lambda base: []  # words of the command for that base
    sealed: bool = False  # half of them are sealed anew, as by whoever wants it believed
    check: Callable[[Path, str], str] = lambda path, said: ""


def _alone(texts: dict[str, str], suffix: str) -> dict[str, dict[str, str]]:
    return {name: {f"x{suffix}": text} for name, text in texts.items()}


COMPACT = """format: forestcoll.topology/1
name: pod-{boxes}
parameters: {boxes: {default: 2, maximum: 9}, rate: {default: 1.5, type: number}}
boxes:
  count: boxes
  nodes:
    gpu{0..3}: {kind: gpu}
    switch: {kind: switch, multicast: box % 2 == 0}
  links:
    - {src: "gpu{0..3}", dst: switch, bandwidth: rate * 2}
nodes:
  spine: {kind: switch, when: boxes > 1}
links:
  - {for: {b: 0..boxes-1, i: 0..3}, src: "box{b}/gpu{i}", dst: spine, bandwidth: 25/2, latency: 2}
  - {src: box0/gpu0, dst: box0/gpu1, bandwidth: "1/3", count: 2, oneway: true, when: boxes < 9}
"""


def topologies() -> dict[str, dict[str, str]]:
    names = ("ring", "dgx-a100", "fat-tree", "dragonfly")
    return _alone({n: catalog.source(n) for n in names} | {"compact": COMPACT}, ".yaml")


def dumps() -> dict[str, dict[str, str]]:
    """All but a list of cables that leaves hosts apart."""
    every = {name: text for name, (_, text, _) in test_readings.dumps().items()}
    return _alone({name: text for name, text in every.items() if "sonic" not in name}, "")


def dump_settings(base: str) -> list[str]:
    """`--set` and the settings that a dump cannot do without."""
    settings = test_readings.dumps()[base][2]
    return [word for pair in settings.items() for word in ("--set", "=".join(pair))]


KINDS = ("a small", "p2p", "sendrecv")


def measurements() -> dict[str, dict[str, str]]:
    every = test_readings.rows("measured").items()
    return _alone({name: text for name, (*_, text) in every if name.startswith(KINDS)}, "")


def forests() -> dict[str, dict[str, str]]:
    ring, star = machine("ring gpus=4"), machine("star gpus=3")
    box = machine("dgx-a100 boxes=1")
    cases = {
        "gather": (ring, "allgather", {}),
        "sum": (star, "allreduce", {}),
        "one": (star, "broadcast", {}),
        "compact": (box, "allgather", {"compact": True}),
        "parts": (ring, "reduce-scatter", {"shares": ["1", "2", "3", "4"]}),
        "degraded": (_degraded(), "allreduce", {}),
    }
    made: dict[str, str] = {}
    for name, (topology, collective, more) in cases.items():
        result = synthesize(topology, collective, formats=("forest",), **more)
        made[name] = result.texts["forest"]
    return _alone(made, ".forest.json")


def _degraded() -> Any:
    return machine("star gpus=3 -gpu0->switch=1/2")


def groups() -> dict[str, dict[str, str]]:
    topology = machine("ring gpus=6")
    cases = {}
    for collective in ("allgather", "broadcast", "allreduce"):
        asked = together.problem(topology, collective, (["gpu[0-2]"], ["gpu[3-5]"]))
        texts = together.synthesize(asked, formats=["forest"]).texts
        cases[collective] = dict(sorted(texts.items(), key=lambda one: "group0" in one[0]))
        first = next(name for name in texts if name.endswith(".groups.json"))
        cases[collective] = {first: texts[first]} | texts
    return cases


def alltoall() -> dict[str, dict[str, str]]:
    ring = machine("ring gpus=4")
    table = [[i + j for i in range(4)] for j in range(4)]
    cases = {
        "even": (uniform(machine("dgx-a100 boxes=1")), "box"),
        "ragged": (alltoallv(ring, table), "ring"),
        "groups": (in_groups(ring, (["gpu0", "gpu1"], ["gpu2", "gpu3"])), "ring"),
    }
    made = {n: alltoall_file.dumps(solve(d), t) for n, (d, t) in cases.items()}
    two = uniform(machine("dgx-a100 boxes=2"))
    made["routes"] = alltoall_file.dumps(route(solve(two)), "boxes")
    return _alone(made, ".json")


def plan_files(style: str) -> dict[str, dict[str, str]]:
    """Plans of all small programs of the style."""
    texts = {
        name: plans.dumps(program, programs.format_of(program))
        for name, program in programs.all_good().items()
        if program.style == style
    }
    return _alone(texts, ".xml" if style == "fifo" else ".json")


def sets() -> dict[str, dict[str, str]]:
    from forestcoll.compile import plan_set

    cases = {}
    for collective in ("allreduce", "broadcast"):
        topology = machine("ring gpus=3")
        made = plan_set.make(topology, collective, 1024, 2**20)
        files = plan_set.files_of(made)
        cases[collective] = {"index.json": files["index.json"]} | files
    return cases


def bundles() -> dict[str, dict[str, str]]:
    """Those of two failures; the index first."""
    from forestcoll.study.degrade import bundle
    from forestcoll.study.degrade.failures import list_failures
    from forestcoll.study.degrade.losses import Workload

    files: dict[str, str] = {}
    work = Workload(machine("ring gpus=3"), Collective.ALLGATHER)
    bundle.make_bundle(
        bundle.Request(work, ("forest",)),
        list_failures(work.topology)[2:4],
        Path(),
        lambda texts: files.update({str(path): text for path, text in texts.items()}),
    )
    return {"ring": {bundle.INDEX: files[bundle.INDEX]} | files}


LAYOUT = """format: forestcoll.layout/1
sizes: {tp: 2, cp: 1, pp: 1, dp: 2}
order: tp-cp-dp-ep-pp
expert: {tp: 1, ep: 2}
traffic:
  - {dim: tp, collective: allreduce, bytes: 64M, times: 2}
  - {dim: dp, collective: reduce-scatter, bytes: 1G, with: tp}
  - {dim: ep, collective: alltoall, bytes: 32M}
placement: fixed
keep: {tp: box}
"""
MESH = """format: forestcoll.layout/1
sizes: {stage: 2, data: 2}
mesh: [stage, data]
traffic:
  - {dim: stage, collective: sendrecv, bytes: 64M}
  - {dim: data, collective: allgather, bytes: 1G, with: "stage:sendrecv"}
placement: fixed
"""


def placements() -> dict[str, dict[str, str]]:
    from forestcoll.schedule import layout_file
    from forestcoll.study.layout import folder, lay_out

    star = machine("star gpus=4")
    done = {
        name: lay_out(star, layout_file.loads(text))
        for name, text in (("megatron", LAYOUT), ("mesh", MESH))
    }
    texts = {name: folder.files_of(each, "any", ("forest",))[0] for name, each in done.items()}
    return _alone({name: own["layout.json"] for name, own in texts.items()}, ".json")


def check_plan(path: Path, said: str) -> str:
    """Why a plan that is called right is not, or ""."""
    if "RUN-DATA-UNFOLLOWED" in said or "RUN-PARTLY-FOLLOWED" in said:
        return ""
    verify(plans.loads(path.read_text(), "x"))
    return ""


def check_forest(path: Path, said: str) -> str:
    """The same of a forest: the program that is made of it is right too."""
    forest = forest_file.loads(path.read_text())
    if len(forest.trees) * forest.images * forest.n > 2000:
        return ""
    try:
        program = lower(forest, MSCCLPP)
    except ForestCollError:
        return ""  # more than the target holds
    verify(program)
    return ""


FORMATS: dict[str, Format] = {
    "topology": Format(topologies, ("topology", "check")),
    "dumps": Format(dumps, ("topology", "check"), more=dump_settings),
    "measured": Format(measurements, ("topology", "calibrate", "dgx-h100", "--measured")),
    "forest": Format(forests, check=check_forest),
    "groups": Format(groups),
    "alltoall": Format(alltoall),
    "msccl-xml": Format(partial(plan_files, "fifo"), check=check_plan),
    "mscclpp-json": Format(partial(plan_files, "onesided"), check=check_plan),
    "plan-set": Format(sets, ("verify", "--json"), sealed=True),
    "layout": Format(
        lambda: _alone({"megatron": LAYOUT, "mesh": MESH}, ".yaml"),
        ("layout", "-t", "star", "--set", "gpus=4"),
    ),
    "placement": Format(placements, ("view",)),
    "bundle": Format(bundles, ("verify", "--json"), sealed=True),
}


@cache
def bases(name: str) -> dict[str, dict[str, str]]:
    """What a format's mutants are made of."""
    return FORMATS[name].bases()


# --- what must hold -------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of all mutants of a format."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in sorted(self.outcomes.items()))
        return f"{counts}; slowest {self.slowest:.2f} s; {len(self.faults)} faults"


def mutant(name: str, seed: int) -> tuple[str, str]:
    """(base, text) of one mutant: the same for the same seed."""
    dice = random.Random(f"{name} {seed}")
    base = dice.choice(sorted(bases(name)))
    whole = next(iter(bases(name)[base].values()))
    text = edits.mutant(whole, dice)
    if FORMATS[name].sealed and dice.random() < 0.5:
        # no JSON, no object, or nested too deep to seal: then as it is
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            text = json.dumps(seal(json.loads(text)))
    return base, text


def try_one(name: str, seed: int, folder: Path, tally: Tally) -> None:
    """Runs the command line on one mutant; notes what came of it, and what should not have."""
    base, text = mutant(name, seed)
    kind, files = FORMATS[name], bases(name)[base]
    for file, whole in files.items():
        path = folder / base / file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(whole)
    path = folder / base / next(iter(files))
    path.write_bytes(text.encode("utf-16" if seed % 20 == 19 else "utf-8", "surrogatepass"))
    target = path.parent if path.name in ("index.json", "bundle.json") else path
    began, before = time.process_time(), memory()
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    fault = ""
    code = -1
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([*kind.command, str(target), *kind.more(base)])
        if code == 0:
            fault = kind.check(path, said_on(out))
    except Exception:
        fault = traceback.format_exc()
    took = time.process_time() - began
    said = said_on(out) + err.getvalue()
    if not fault and code not in (0, 1):
        fault = f"exit {code}: {said[:300]}"
    if not fault and (took > SECONDS or memory() - before > MEMORY):
        fault = f"took {took:.1f} s, {(memory() - before) >> 20} MiB"
    if not fault and (odd := [c for c in said if not c.isprintable() and c != "\n"]):
        fault = f"shows {odd[:5]}"
    if not fault and code == 1 and "\nforestcoll: error: " not in "\n" + err.getvalue():
        fault = f"refused without a word: {said[:300]}"
    tally.outcomes["right" if code == 0 else "refused"] += 1
    tally.slowest = max(tally.slowest, took)
    if fault:
        tally.faults.append(f"{name} seed {seed} ({base}): {fault}")


def said_on(out: io.TextIOWrapper) -> str:
    """What a stream was given, as text or bytes."""
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]


def memory() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def try_many(name: str, seeds: Sequence[int], folder: Path) -> Tally:
    """The same of many mutants."""
    tally = Tally()
    for seed in seeds:
        try_one(name, seed, folder / name, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Random mutants of every kind of file.")
    parser.add_argument("formats", nargs="*", choices=[*FORMATS, []], help="default: all")
    parser.add_argument("--count", type=int, default=5000, help="mutants of a format")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--keep", type=Path, help="write the mutants with a fault there")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    wrong = 0
    for name in options.formats or FORMATS:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            seeds = range(options.seed, options.seed + options.count)
            tally = try_many(name, seeds, Path(folder))
        print(f"{name}: {tally}; {time.process_time() - began:.0f} s in all", flush=True)
        for fault in tally.faults[:20]:
            print(fault, flush=True)
        wrong += len(tally.faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
