"""The fabric lab: ways, tables and links as values; and fabrics really built, where that can be."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, permutations
from multiprocessing import Pipe
from pathlib import Path
from threading import Timer

import pytest
from artefacts import Artefacts
from graphs import machine, named

from forestcoll.common import errors
from forestcoll.common.errors import ExecutionError
from forestcoll.execute import doctor, lab
from forestcoll.program import Collective
from forestcoll.program.targets import Target
from forestcoll.schedule.routes import Routes, routes
from forestcoll.solver import baselines

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'torch')", allow_module_level=True)

from forestcoll.execute.lab import measurement, network, ranks
from forestcoll.ui.cli import main

LACKING = network.lacking()
REQUIRED = os.environ.get("FORESTCOLL_LAB") == "required"
fabric = pytest.mark.skipif(bool(LACKING) and not REQUIRED, reason=LACKING or "it runs")
SETTINGS = {"boxes": "2", "gpus": "2", "rails": "2"}
SET = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
RAIL = "rail boxes=2 gpus=2 rails=2"
MACHINES = (RAIL, "mi250", "ring gpus=5")
TARGET = ("--target", "mscclpp")


# --- ways and tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_every_packet_takes_its_way(machine: str, compiled: Artefacts) -> None:
    """Node by node, by nothing but the node's own table."""
    made = compiled(machine, "allreduce", *TARGET)
    graph = made.forest.graph
    found, ranks = routes(graph, made.forest), graph.ranks
    nodes = network.tables(found)
    links = set(graph.ends)
    for i, j in permutations(range(len(ranks)), 2):
        at, way = ranks[i], [ranks[i]]
        while at != ranks[j] and len(way) <= graph.n:
            table = nodes[at]
            at = table.between.get((i, j), table.to[j])
            way.append(at)
        assert tuple(way) == found.ways[i, j]
        assert set(pairwise(way)) <= links


@pytest.mark.parametrize("machine", MACHINES)
def test_edges_of_trees_use_their_links(machine: str, compiled: Artefacts) -> None:
    """Where no two ranks have several ways, the fabric loses nothing of the forest's bandwidth."""
    made = compiled(machine, "allreduce", *TARGET)
    graph, forest = made.forest.graph, made.forest
    found, number = routes(graph, forest), {node: k for k, node in enumerate(graph.ranks)}
    ways = {path for tree in forest.trees for path in tree.edges}
    taken = {found.ways[number[path[0]], number[path[-1]]] for path in ways}
    assert taken <= ways
    assert not found.split or len(taken) < len(ways)
    entry = measurement.entry_of("plan", made.programs["mscclpp-json"], found)
    if not found.split:
        assert entry.algbw == forest.algbw
    assert entry.algbw <= forest.algbw


def test_what_no_forest_says_goes_the_shortest_way_through_switches() -> None:
    graph = named("rail", **SETTINGS)
    names = {name: node for node, name in enumerate(graph.names)}
    ways = routes(graph).ways
    words = {pair: [graph.names[node] for node in way] for pair, way in ways.items()}
    assert words[0, 1] == ["box0/gpu0", "box0/nvswitch", "box0/gpu1"]
    assert words[0, 2] == ["box0/gpu0", "rail0", "box1/gpu0"]
    assert words[0, 3] == ["box0/gpu0", "rail0", "spine", "rail1", "box1/gpu1"]
    assert names["spine"] not in graph.ranks


def test_ways_over_a_mesh_go_through_ranks() -> None:
    graph = named("ring", gpus=5)
    assert [len(routes(graph).ways[0, k]) for k in range(1, 5)] == [2, 3, 3, 2]


def test_prediction_of_several_ways_counts_what_meets_on_the_one_taken() -> None:
    """Two ways of 10 each between two ranks: the fabric has one, and says so."""
    graph = named("rail", **SETTINGS)
    number = {name: node for node, name in enumerate(graph.names)}
    a, b = number["box0/gpu0"], number["box1/gpu0"]
    found = routes(graph)
    loads = {(0, 2): Fraction(1, 2), (1, 3): Fraction(1, 4)}
    assert found.link_loads(loads)[a, number["rail0"]] == Fraction(1, 2)
    assert found.algbw(loads) == 100  # 50 GB/s for half of the data
    both = Routes(graph, {**found.ways, (1, 3): (graph.ranks[1], a, b)}, ((1, 3),))
    assert both.link_loads(loads)[a, b] == Fraction(1, 4)


def test_theory_of_rings_and_gloo() -> None:
    """Twice (n - 1) / n of the data over the slowest link that the ring crosses."""
    graph = named("rail", **SETTINGS)
    gloo = measurement._other(graph, "gloo", routes(graph), Collective.ALLREDUCE, None)
    assert gloo.algbw == 50 * Fraction(4, 6)
    ring = baselines.forests("ring", graph)[0]
    assert ring.algbw == 50 * Fraction(4, 6)


# --- links ----------------------------------------------------------------------------------------


def test_rates_are_the_bandwidths_scaled() -> None:
    graph = named("rail", **SETTINGS)
    scale = network.scale_of(graph, 40.0)
    assert scale == Fraction(40_000_000, 4 * 500)
    made = network.veth_pairs(graph, scale)
    assert {(w.there, w.back) for w in made} == {(9 * 10**6,) * 2, (10**6,) * 2, (2 * 10**6,) * 2}
    assert len({w.name for w in made}) == len(made) == 4 + 4 + 2
    assert len({w.mac(node) for w in made for node in (w.a, w.b)}) == 2 * len(made)


def test_rate_by_default_grows_with_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = named("rail", **SETTINGS)
    cores = len(os.sched_getaffinity(0))
    usual = int(network.DEFAULT_RATE * cores * 1e6)
    assert network.scale_of(graph, 0.0) * 2000 == usual
    slow = named("star", gpus=4, bandwidth=1)
    for slowest, times in ((usual // 2, 2), (usual * 2, 4)):  # up to four times, where it needs it
        monkeypatch.setattr(network, "SLOWEST", slowest)
        assert network.scale_of(slow, 0.0) * 4 == times * usual
        assert network.scale_of(slow, 50.0) * 4 == 50_000_000


def test_one_way_links_and_links_slowed() -> None:
    graph = named("ring gpus=3 -gpu1->gpu0 -gpu1->gpu2=1/4")
    rates = {(w.a, w.b): (w.there, w.back) for w in network.veth_pairs(graph, Fraction(100))}
    assert rates == {(0, 1): (5000, 0), (0, 2): (5000, 5000), (1, 2): (1250, 5000)}


def test_plan_of_a_sound_fabric_on_one_with_a_slow_link(compiled: Artefacts) -> None:
    """It goes the same ways, and the prediction is what is left there."""
    made = compiled("star gpus=3 bandwidth=40", "allreduce", *TARGET)
    slowed = named("star gpus=3 bandwidth=40 -gpu0-switch=1/4")
    (entry,), _ = measurement.entries_of(slowed, made.programs["mscclpp-json"], made.forest, ())
    assert made.forest.algbw >= Fraction(99, 100) * 30  # its shares are rounded to 2^m parts
    assert entry.algbw == made.forest.algbw / 4


def test_a_machine_that_mscclpp_bars_gets_a_plan_of_msccl(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two MI250 boxes: MSCCL++ takes ports of a node's first eight ranks only."""
    from forestcoll.plans import rules
    from forestcoll.ui.cli.compare import plan_for_lab

    known = machine("star gpus=3")
    assert plan_for_lab(known)[0].style == "onesided"
    assert "is measured" not in capsys.readouterr().err

    def bar(target: Target, *rest: object) -> tuple[str, str, int] | None:
        return ("MPP-NICS", "too many ports", 0) if target.name == "mscclpp" else None

    monkeypatch.setattr(rules, "group_fault", bar)
    program, _ = plan_for_lab(known)
    assert program.style == "fifo"
    said = capsys.readouterr().err
    assert said.startswith("forestcoll: note: star-3: too many ports; what mscclpp asks")
    assert "a plan for msccl is measured" in said


def test_what_an_allgather_is_measured_against(compiled: Artefacts) -> None:
    """Rings of its own; trees and gloo are for allreduce."""
    graph = named("rail", **SETTINGS)
    made = compiled(RAIL, "allgather", *TARGET)
    program = made.programs["mscclpp-json"]
    entries, notes = measurement.entries_of(graph, program, made.forest, measurement.AGAINST)
    assert [entry.name for entry in entries] == ["plan", "ring", "rings"]
    assert "tree and double-tree and gloo: for allreduce, not for allgather" in notes
    _, notes = measurement.entries_of(graph, program, made.forest, ["direct", "ring"])
    assert "direct: for an all-to-all, not for allgather" in notes
    assert entries[0].algbw > entries[2].algbw > entries[1].algbw
    assert entries[1].program is not None
    assert entries[1].program.collective == "allgather"


def test_addresses() -> None:
    assert network.address(0) == "10.77.0.1"
    assert network.address(250) == "10.77.1.1"
    assert len({network.address(rank) for rank in range(1000)}) == 1000


# --- what cannot be done --------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """What else is refused: refusals/lab.txt."""
    assert main(["lab", "-t", "star"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip().splitlines()[-1].removeprefix("forestcoll: error: ")


@pytest.mark.parametrize(
    ("tools", "user", "said"),
    [
        ("ip tc", 1000, "the lab makes network namespaces and links, which takes root: run it with "
         "sudo"),
        ("ip", 0, "the lab needs tc (Debian: iproute2)"),
        ("", 0, "the lab needs ip and tc (Debian: iproute2)"),
        ("ip tc", 0, "the lab cannot make namespaces, veth links and tbf queues here: [Errno 1] "
         "Operation not permitted"),
    ],
)  # fmt: skip
def test_what_is_missing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tools: str,
    user: int,
    said: str,
) -> None:
    """The last one is root in a container without the right."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted", "unshare")

    monkeypatch.setattr(shutil, "which", lambda tool: tool in tools.split() or None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(network, "_ask", refuse)
    assert refused(capsys).startswith(said)


def test_doctor_says_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_works", lambda: "")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert doctor._lab() == ("ok", "root, ip, tc, network namespaces, torch")
    monkeypatch.setattr(network, "_works", lambda: "the lab cannot make namespaces")
    assert doctor._lab() == ("-", "the lab cannot make namespaces")
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert doctor._lab() == (
        "-",
        "the lab needs ip and tc (Debian: iproute2); the lab makes network namespaces and links, "
        "which takes root: run it with sudo; the lab needs PyTorch",
    )


def test_no_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "lacking", lambda: "")
    for name in [
        n for n in sys.modules if n.startswith(("forestcoll.torch", "forestcoll.execute.torch"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    said = refused(capsys)
    assert "PyTorch" in said
    assert "pip install torch" in said


@fabric
@pytest.mark.parametrize("late", [0.0, 0.2])
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_rank_that_died_is_the_reason_of_what_others_say(dead: int, late: float) -> None:
    """Whoever is heard first: those that it left say that its connection is gone, which the system
    may close before its pipe."""
    pairs = [Pipe() for _ in range(3)]
    for rank, (_, theirs) in enumerate(pairs):
        if rank != dead:
            theirs.send("ExecutionError: process 0 is gone")
            theirs.close()
    Timer(late, pairs[dead][1].close).start()
    with pytest.raises(ExecutionError, match=f"^the process of rank {dead} died$"):
        ranks._collect([ours for ours, _ in pairs], 60)


def test_links_too_slow_to_measure() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"^the slowest link would have 0\.1 Mbit/s"):
        network.Network(named("star", gpus=3), Fraction(100_000, 50))


# --- fabrics, really built ------------------------------------------------------------------------


def spaces_of(pid: int) -> set[str]:
    """The network namespaces that a process is in or holds."""
    found = set()
    with suppress(OSError):  # it is gone
        for link in (Path(f"/proc/{pid}/ns/net"), *Path(f"/proc/{pid}/fd").glob("*")):
            with suppress(OSError):  # what it had open is gone
                found.add(os.readlink(link))
    return {target for target in found if target.startswith("net:[")}


def processes() -> dict[int, int]:
    """Every process and its parent; no zombies."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(entry.name)] = int(parent)
    return found


@dataclass
class Lab:
    """A lab as a process, and all that it has made so far."""

    process: subprocess.Popen[str]
    pids: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    spaces: set[str] = field(default_factory=set)

    def watch(self, ranks: int) -> None:
        """Wait until all ranks of a schedule are there."""
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + 90
        while len(self.ranks) < ranks:
            assert time.monotonic() < end, "no ranks"
            assert self.process.poll() is None, self.process.communicate()
            parents = processes()
            mine = {self.process.pid}
            for _ in range(3):
                mine |= {pid for pid, parent in parents.items() if parent in mine}
            self.pids |= mine
            held = {pid: spaces_of(pid) - {own} for pid in mine}
            self.spaces |= set().union(*held.values())
            del held[self.process.pid]
            self.ranks = {pid for pid, spaces in held.items() if spaces}
            time.sleep(0.05)

    def left(self) -> tuple[set[int], set[str]]:
        """Processes and namespaces that are still there, once they had time to go."""
        end = time.monotonic() + 10
        while True:
            alive = self.pids & processes().keys()
            spaces = self.spaces & set().union(*map(spaces_of, processes()))
            if not (alive or spaces) or time.monotonic() > end:
                return alive, spaces
            time.sleep(0.05)


def start(*words: str) -> Lab:
    command = [sys.executable, "-m", "forestcoll", "lab", *words]
    return Lab(subprocess.Popen(command, text=True, stdout=-1, stderr=-1))


@pytest.fixture
def links() -> Iterator[None]:
    """This machine's own network is as it was before."""
    before = sorted(os.listdir("/sys/class/net"))
    yield
    assert sorted(os.listdir("/sys/class/net")) == before


@fabric
@pytest.mark.slow
@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("engine", ["cpu", "torch"])
def test_measured_on_a_fabric(engine: str) -> None:
    """Right data over the right links, at a speed that is theirs."""
    words = ["-t", "rail", *SET, "--rate", "40", "--seconds", "1", "--json", "--engine", engine]
    run = start(*words, "--against", "ring", "--against", "gloo")
    run.watch(4)
    # One for each GPU, box and switch of the fabric, one for the ranks' control, and its own.
    assert len(spaces_of(run.process.pid)) == 4 + 2 + 3 + 1 + 1
    out, err = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, err
    assert run.left() == (set(), set())
    report = json.loads(out)
    plan, ring, gloo = report["rows"]
    assert [row["schedule"] for row in report["rows"]] == ["plan", "ring", "gloo"]
    assert [row["wrong"] for row in report["rows"]] == [0, 0, 0]
    for row in report["rows"]:
        # Every link has carried what theory says, and headers; nothing is faster than its links
        # but for what they make up for. A busy machine may well be slower.
        least, most = row["links"]
        assert 1 <= least <= most < 1.5, row
        assert 0.3 < row["of_predicted"] < 1.15, row
    assert Fraction(plan["algbw"]) / Fraction(ring["algbw"]) == pytest.approx(
        ring["plan_faster_theory"]
    )
    assert gloo["plan_faster_theory"] == ring["plan_faster_theory"] > 1.5
    assert plan["measured"] > gloo["measured"]


def without_notes(text: str) -> str:
    """What a command said besides its notes."""
    return "".join(line for line in text.splitlines(True) if ": note: " not in line)


@fabric
@pytest.mark.slow
@pytest.mark.usefixtures("links")
def test_nothing_is_left_however_it_ends() -> None:
    """Ctrl-C, kill, a lost terminal, kill -9, and a rank that dies: five labs at once."""
    words = ["-t", "ring", "--set", "gpus=3", "--seconds", "300", "--rate", "20"]
    labs = {
        how: start(*words, "--against", "none") for how in ("INT", "TERM", "HUP", "KILL", "rank")
    }
    try:
        for run in labs.values():
            run.watch(3)
        for how, run in labs.items():
            if how == "rank":
                os.kill(min(run.ranks), signal.SIGKILL)
            else:
                run.process.send_signal(signal.Signals[f"SIG{how}"])
        ends = {how: (*run.process.communicate(timeout=60), run.process.returncode)
                for how, run in labs.items()}  # fmt: skip
        for run in labs.values():
            assert run.left() == (set(), set())
    finally:
        for run in labs.values():
            run.process.kill()
    ends = {how: (out, without_notes(err), code) for how, (out, err, code) in ends.items()}
    assert ends["INT"] == ("", "forestcoll: interrupted\n", 130)
    assert ends["TERM"] == ("", "forestcoll: terminated\n", 143)
    assert ends["HUP"] == ("", "forestcoll: hung up\n", 129)
    assert ends["KILL"][2] == -signal.SIGKILL
    out, err, code = ends["rank"]
    assert (out, code) == ("", 1)
    assert err.startswith("forestcoll: error: plan: ")
    assert "died" in err
