"""One truth a file: every command says the same algbw, bound, cut and simulated band of a plan.

Machines of every kind, meshes and switches, one box and several, whole and of some ranks, with and
without switches that copy and add: a plan is made, and all commands are asked about its files.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefact, Artefacts
from command_line import as_json as call
from graphs import machine, named

from forestcoll import plans
from forestcoll.compile.optimum import optimum
from forestcoll.compile.problem import Problem
from forestcoll.compile.synthesize import synthesize
from forestcoll.schedule import forest_file
from forestcoll.study.comparison import play
from forestcoll.study.figures import figures_of
from forestcoll.topology import catalog
from forestcoll.ui import cli
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import as_json, bandwidth_facts
from forestcoll.verify import simulate

SIZE = 64 * 10**6
CASES = [
    (name, settings.strip(), *words.split())
    for name, settings, words in (
        re.fullmatch(r"(\S+)((?: \S+=\S+)*) (\S+ \S+)", line).groups()  # type: ignore[union-attr]
        for line in """
dgx-a100 allgather msccl-xml
dgx-a100 ranks=box0/gpu[0-4] allgather msccl-xml
dgx-a100 ranks=box0/gpu[0-4] alltoall mscclpp-json
dgx-a100 boxes=2 allgather msccl-xml
dgx-a100 boxes=2 alltoall mscclpp-json
dgx-h100 allreduce msccl-xml
dgx-h100 allreduce nvls
dgx1-v100 broadcast mscclpp-json
dragonfly reduce-scatter msccl-xml
fat-tree hosts=1 gpus=4 allreduce mscclpp-json
gb200-nvl72 ranks=box0/gpu[0-7] allgather mscclpp-json
ring allreduce msccl-xml
star alltoall msccl-xml
torus-2d x=2 y=3 allgather mscclpp-json
""".strip().splitlines()
    )
]
"""Machine, settings or ranks, collective, and the plan's format; "nvls": MSCCL++'s that uses the
switch. Of 72 GPUs eight, for plans of more than 64 are not simulated."""
SAID = ("algbw", "bound", "percent", "bottleneck")
Entry = dict[str, Any]
Case = tuple[str, ...]


def rows(*arguments: str) -> dict[str, str]:
    """What a command without JSON says, by name."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert cli.main([*arguments]) == 0
    found = (
        re.fullmatch(r"(\S[\w -]*?) {2,}(\S.*?) *", line) for line in said.getvalue().split("\n")
    )
    return {match[1]: match[2] for match in found if match}


def figures(entry: Mapping[str, Any]) -> Entry:
    """The figures of an answer."""
    return {name: entry[name] for name in SAID}


def in_words(entry: Mapping[str, Any]) -> dict[str, str]:
    """The same as tables have them."""
    algbw, bound = Fraction(entry["algbw"]), Fraction(entry["bound"])
    return {
        "algbw": f"{words.exact(algbw)} GB/s",
        "bound": f"{words.exact(bound)} GB/s",
        "of optimal": words.percent(algbw, bound),
        "bottleneck": entry["bottleneck"],
    }


def timed(entry: Entry) -> Entry:
    """The band that `time` says."""
    by_rule = {timing["rule"]: timing["time_us"] for timing in entry["timings"]}
    return {"in_order": by_rule["fifo"], "fair": by_rule["fair"], "model": entry["model"]}


def band(entry: Entry) -> Entry:
    """The same of a band."""
    times = {name: entry[name]["time_us"] for name in ("in_order", "fair")}
    return {**times, "model": entry["model"]}


def make(case: Case, compiled: Artefacts) -> tuple[Artefact, list[str]]:
    """What `synthesize` writes, and the options that name the machine, unless of some ranks."""
    name, settings, collective, form = case
    pairs = settings.split()
    ranks = [pair.removeprefix("ranks=") for pair in pairs if pair.startswith("ranks=")]
    pairs = [pair for pair in pairs if not pair.startswith("ranks=")]
    machine = ["-t", name, *(word for pair in pairs for word in ("--set", pair))]
    what = ["--format", "mscclpp-json" if form == "nvls" else form]
    what += ["--nvls", "in-place"] if form == "nvls" else []
    what += ["--format", "routes" if collective == "alltoall" else "forest"]
    if collective != "alltoall":  # how fast the plan is is no part of what is said of it
        what += ["--instances", "1"]
    if ranks:
        return compiled(f"{name} {' '.join(pairs)}", collective, *what, "--ranks", *ranks), []
    return compiled(f"{name} {' '.join(pairs)}", collective, *what), machine


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(filter(None, case)))
def test_every_command_says_the_same(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiled: Artefacts,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    artefact, machine = make(case, compiled)
    made = artefact.summary
    (plan,) = (str(p) for p in artefact.folder.iterdir() if "msccl" in p.name)
    (source,) = (str(p) for p in artefact.folder.iterdir() if "msccl" not in p.name)
    (form,) = made["plans"]
    simulated, said = made["plans"][form]["simulated"], figures(made)

    known = machine if case[2] != "alltoall" else []  # of routes, -t leaves no percentage
    for given in ([], machine) if machine else ([],):
        (entry,) = call("verify", plan, *given)
        assert figures(entry["figures"]) == said
        assert entry["simulated"] == simulated
        again = call("time", plan, "--size", str(simulated["size"]), *given)
        assert timed(again) == band(simulated)
        assert figures(again) == said or given != known
    assert made["model"] == simulated["model"]
    short = call("time", plan, "--size", str(SIZE))
    small = str(made["plans"][form].get("multiple_bytes", 15 << 12))
    ran = call("run", plan, "--size", small, "--ranks-as", "threads", "--check", "0", *known)
    assert figures(ran) == said
    assert band(ran["simulated"]) == timed(call("time", plan, "--size", small))
    seen = rows("view", plan, "--size", str(SIZE), "-o", str(tmp_path / "page.html"))
    assert in_words(said).items() <= seen.items()
    assert seen["model"] == short["model"]
    told = re.match(r"([\d.]+) GB/s in order, ([\d.]+) fair", seen["simulated"])
    rates = {t["rule"]: f"{t['algbw']:.1f}" for t in short["timings"]}
    assert told is not None
    assert told.groups() == (rates["fifo"], rates["fair"])
    written = rows("export", plan, "--to", "svg", "-o", str(tmp_path / "a.svg"))
    assert in_words(said).items() <= written.items()
    runtime = "mscclpp" if form == "mscclpp-json" else "msccl"
    (deployed,) = call("deploy", plan, "--runtime", runtime)["plans"]
    assert figures(deployed) == said
    if case[2] == "alltoall":
        return

    (forest,) = call("verify", source, "--no-simulate")
    trees = figures(forest["figures"])
    assert trees["algbw"] == made["forest_algbw"]
    assert trees["bound"] == said["bound"]
    if case[3] != "nvls":
        assert trees == said
    assert figures(call("time", source, "--size", "1M")) == trees
    assert in_words(trees).items() <= rows("view", source, "-o", str(tmp_path / "t.html")).items()
    read, program = forest_file.load(Path(source)), plans.read_plan(plan)
    assert figures(as_json(bandwidth_facts(figures_of(read, program)))) == said
    timing = simulate.run(
        program, read, SIZE, rule="fair", links=catalog.by_name(read.name, read.n)
    )
    if machine:
        assert timing.time == timed(short)["fair"]
        compare(case, machine, plan, made, short, monkeypatch)


def compare(
    case: Case,
    machine: list[str],
    plan: str,
    made: Entry,
    short: Entry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`compare --with` the plan alone, and what the machine allows at best."""
    monkeypatch.setattr(play._Game, "add_ours", lambda *_: None)
    options = ("-c", case[2], "--against", "none", "--with", plan, "--sizes", str(SIZE))
    found = call("compare", *machine, *options)
    best = call("optimum", *machine, "-c", case[2])
    assert found["bound"] == best["bound"]
    assert found["in_switches"] == best["in_switches"]
    assert found["bottleneck"] == best["bottleneck"]
    if case[3] == "nvls":
        assert best["in_switches"] == made["bound"]
    else:
        assert (made["bound"], made["bottleneck"]) == (best["bound"], best["bottleneck"])
        assert made["in_switches"] == best["in_switches"]
    times = {row["links"]: row["time_us"] for row in found["rows"]}
    assert times == {"fifo": timed(short)["in_order"], "fair": timed(short)["fair"]}
    assert set(short["model"].split(", ")[1:]) <= set(found["model"].split(", ")[1:])
    row = found["rows"][0]
    bound = Fraction(best["in_switches"] if case[3] == "nvls" else best["bound"])
    assert row["percent"] == 100 * row["algbw"] / float(bound)


def test_plans_of_a_set_have_the_figures_of_the_set(tmp_path: Path) -> None:
    """`synthesize --sizes`, `verify` of the folder, and of a forest and a plan in it."""
    folder = tmp_path / "set"
    asked = ("-c", "allreduce", "--sizes", "1M:64M", "--format", "mscclpp-json")
    made = call("synthesize", "-t", "dgx-h100", *asked, "-o", str(folder))
    best = optimum("dgx-h100", "allreduce")
    assert best.in_switches is not None
    assert made["bound"] == str(best.bound.algbw)
    assert made["in_switches"] == str(best.in_switches.algbw)
    (entry,) = call("verify", str(folder))
    assert (entry["simulated"], entry["model"]) == (made["simulated"], made["model"])
    for plan, ends in zip(made["index"]["runtimes"][0]["plans"], made["simulated"], strict=True):
        file, forest = folder / plan["file"], folder / plan["forest"]
        (trees,) = call("verify", str(forest), "--no-simulate")
        assert trees["figures"]["bound"] == made["bound"]
        alone = tmp_path / plan["sha256"]  # side by side, as a command finds a plan's forest
        alone.mkdir()
        (alone / "a.forest.json").write_bytes(forest.read_bytes())
        (alone / "a.mscclpp.json").write_bytes(file.read_bytes())
        (found,) = call("verify", str(alone / "a.mscclpp.json"))
        assert figures(found["figures"]) == figures(trees["figures"])
        times = timed(
            call("time", str(alone / "a.mscclpp.json"), "--size", str(ends["to"]["size"]))
        )
        assert times == band(ends["to"])


def test_a_plan_of_trees_that_use_switches_has_its_own_figures(tmp_path: Path) -> None:
    """As older files are: the forest keeps what it says, the plan of GPUs what it reaches."""
    made = synthesize("dgx-h100", "allreduce", target="mscclpp", max_height=1)
    bound = Problem.of(machine("dgx-h100"), "allreduce").optimum().bound
    graph = named("dgx-h100")
    forest = replace(made.forest, graph=graph, bound=bound)
    (tmp_path / "a.forest.json").write_text(forest_file.dumps(forest))
    (tmp_path / "a.mscclpp.json").write_text(made.texts["mscclpp-json"])
    (trees,) = call("verify", str(tmp_path / "a.forest.json"), "--no-simulate")
    assert (trees["figures"]["algbw"], trees["figures"]["bound"]) == ("450", "450")
    found = call("time", str(tmp_path / "a.mscclpp.json"), "--size", "1M")
    said = ("1800/7", "1800/7", 100.0, "all 8 GPUs together: 3600 GB/s in, for 14 times the data")
    assert tuple(figures(found).values()) == said
    assert found["in_switches"] == "450"


def test_the_model_is_said_in_one_line() -> None:
    options = simulate.Options
    kinds = simulate.KINDS
    assert options().words() == "links fair / in order, the links' latencies, trees alone"
    assert options().words([("fifo", "Simple")], ("fair",)) == (
        "links fair, the links' latencies, 3.4 us per Simple hop"
    )
    assert (
        options()
        .words(kinds)
        .endswith(
            "0.5 us per MSCCL++ signal, 0.6 us per LL hop, 1.9 us per LL128 hop, "
            "3.4 us per Simple hop"
        )
    )
    slow = options(latency=1, signal=0, block_rate=20, reduce_rate=10, switching="store")
    assert slow.words(kinds, latencies=False) == (
        "links fair / in order, 1 us a link, 0 us a signal, 20 GB/s a thread block, "
        "sums at 10 GB/s, switches store"
    )
    assert "latencies unknown, taken as 0" in options().words(latencies=False)
