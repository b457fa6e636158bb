"""The event model against judges that share no code with it: SimGrid, and one of first-come links.

The judges read the plan files themselves (judge_plays.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import pytest
from artefacts import Artefacts
from command_line import finished
from judge_fifo import Fifo
from judge_plays import Play, read
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.program.targets import TARGETS
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.verify import simulate

pytestmark = pytest.mark.usefixtures("links_alone")

PYTHON = "/usr/bin/python3"  # the one that Debian's packages are for
SIZE = 16_000_000
WITHIN = 0.01
EXACT = 1e-6

MACHINES = ("dgx-a100-1", "dgx1-v100-1", "mi250-1", "dgx-a100-2")
LARGE = ("mi250-1", "dgx-a100-2")
MANY_MESSAGES = ("mi250-1/allgather.msccl.xml",)
"""As many as all others of a machine together: those of two DGX A100 show the same."""
PLANS = [
    f"{machine}/{collective}.{form}"
    for machine in MACHINES
    for collective, form in (
        ("allgather", "msccl.xml"),
        *([] if machine in LARGE else [("allreduce", "msccl.xml")]),
        ("reduce-scatter", "mscclpp.json"),
        ("allreduce", "mscclpp.json"),
        ("broadcast", "mscclpp.json"),
    )
    if f"{machine}/{collective}.{form}" not in MANY_MESSAGES
]
CALLS = [
    *((plan, SIZE) for plan in PLANS),
    *(("dgx-a100-2/reduce.msccl.xml", size) for size in (10**6, SIZE // 2)),
    ("dgx-a100-1/allreduce.msccl.xml", 65_536),
    ("dgx-a100-1/reduce.msccl.xml", 500_000),
    ("mi300x-1/allgather.msccl.xml", 65_536),
    ("mi300x-1/allreduce.mscclpp.json", SIZE),
    ("dgx-a100-2/reduce.mscclpp.json", 65_536),
]
"""Plans and bytes: messages of each protocol that are full, half full, and nearly empty."""
IN_OTHERS = (*(f"{machine}/reduce-scatter" for machine in MACHINES), "mi250-1/broadcast")
"""What the allreduce of the same machine has too: SimGrid takes long."""


def forest_of(plan: str) -> Forest:
    return forest_file.load(SCHEDULES / f"{plan.split('.')[0]}.forest.json")


def star(flows: int, bandwidth: float = 100_000.0) -> Play:
    """Flows of one megabyte over links of their own into one that they share."""
    play = Play({"ranks": [], "topology": {"links": []}, "trees": []})
    play.links = [(bandwidth, False)] * (flows + 1)
    play.routes = [[i, flows] for i in range(flows)]
    play.actors = [[["send", i, 1_000_000, -1]] for i in range(flows)]
    return play


def chain(hops: int, pieces: int) -> Play:
    """Pieces of one megabyte from hop to hop."""
    play = Play({"ranks": [], "topology": {"links": []}, "trees": []})
    play.links = [(100_000.0, False)] * hops
    play.routes = [[i] for i in range(hops)]
    counters = [play.counter() for _ in range(hops)]
    for i in range(hops):
        lines = [["send", i, 1_000_000, counters[i]]]
        if i:
            lines.insert(0, ["take", counters[i - 1]])
        play.actors.append(lines * pieces)
    return play


CLOSED = [
    pytest.param(star(1), 10.0, id="one flow"),
    pytest.param(star(7), 70.0, id="seven flows on a shared link"),
    pytest.param(chain(4, 9), (4 + 9 - 1) * 10.0, id="chain"),
]


# --- one after the other --------------------------------------------------------------------------


@pytest.mark.parametrize(("play", "time"), CLOSED)
def test_closed_forms_by_the_judge_of_queues(play: Play, time: float) -> None:
    assert Fifo(play).run() == pytest.approx(time, rel=EXACT)


@pytest.mark.parametrize(("plan", "size"), CALLS)
def test_fifo(plan: str, size: int) -> None:
    """On links that all differ a little: else chance decides who is first among equals."""
    forest, draw = forest_of(plan), random.Random(1)
    capacity = tuple(c * (10**6 + draw.randrange(-5000, 5000)) for c in forest.graph.capacity)
    graph = replace(forest.graph, capacity=capacity, unit=forest.graph.unit / 10**6)
    play = read(SCHEDULES / plan, size)
    play.links = [
        (float(c * graph.unit) * 1000, far)
        for c, (_, far) in zip(capacity, play.links, strict=True)
    ]
    program = plans.read_plan(SCHEDULES / plan)
    found = simulate.run(program, replace(forest, graph=graph), size, rule="fifo")
    assert found.time == pytest.approx(Fifo(play).run(), rel=WITHIN)
    assert found.transfers == play.transfers


# --- SimGrid: shared links ------------------------------------------------------------------------


@lru_cache
def simgrid_version() -> str:
    """Empty where there is none."""
    if not Path(PYTHON).exists():
        return ""
    command = [PYTHON, "-c", "import simgrid; print(simgrid.simgrid_version)"]
    return finished(*command).stdout


Simgrid = Callable[[Play], float]


@pytest.fixture
def simgrid(compiled: Artefacts) -> Simgrid:
    """Microseconds that SimGrid finds for a play; asked once for each."""
    judge = Path(__file__).with_name("judge_simgrid.py")

    def ask(play: str, target: Path) -> None:
        done = finished(PYTHON, judge, input=play)
        assert done.returncode == 0, done.stderr
        target.write_text(done.stdout)

    def time(play: Play) -> float:
        if not simgrid_version():
            assert os.environ.get("FORESTCOLL_SIMGRID") != "required"
            pytest.skip("SimGrid is not there: Debian's package python3-simgrid")
        text = play.json()
        asked = hashlib.sha256(f"{simgrid_version()}{text}".encode()).hexdigest()[:16]
        told = compiled.once(f"simgrid-{asked}.json", partial(ask, text), judge)
        return float(json.loads(told.read_text())["time"])

    return time


@pytest.mark.parametrize(("play", "time"), CLOSED)
def test_closed_forms_by_simgrid(play: Play, time: float, simgrid: Simgrid) -> None:
    assert simgrid(play) == pytest.approx(time, rel=EXACT)


@pytest.mark.parametrize(("plan", "size"), [c for c in CALLS if not c[0].startswith(IN_OTHERS)])
def test_fair(plan: str, size: int, simgrid: Simgrid) -> None:
    play = read(SCHEDULES / plan, size)
    expected = simgrid(play)
    program = plans.read_plan(SCHEDULES / plan)
    found = simulate.run(program, forest_of(plan), size, rule="fair")
    assert found.time == pytest.approx(expected, rel=WITHIN)
    assert found.transfers == play.transfers


# --- links that take time -------------------------------------------------------------------------

DELAYED = [
    "dgx-a100-1/reduce-scatter.mscclpp.json",  # reads of one peer
    "mi250-1/reduce.mscclpp.json",  # of several at once
    "mi250-1/allreduce.mscclpp.json",
    "dgx-a100-2/allreduce.mscclpp.json",  # and ports
]


def delayed(plan: Path, forest: Forest, rule: simulate.Rule, size: int, simgrid: Simgrid) -> None:
    """A link takes 3 us, a signal 2 more."""
    play = read(plan, size, latency=3.0, signal=2.0)
    program, options = plans.read_plan(plan), simulate.Options(latency=3.0, signal=2.0)
    found = simulate.run(program, forest, size, rule=rule, options=options)
    expected = Fifo(play).run() if rule == "fifo" else simgrid(play)
    assert found.time == pytest.approx(expected, rel=WITHIN)
    assert found.transfers == play.transfers


@pytest.mark.parametrize("rule", ["fifo", "fair"])
@pytest.mark.parametrize("plan", DELAYED)
def test_latencies(plan: str, rule: simulate.Rule, simgrid: Simgrid) -> None:
    """What is read is asked for first, all the way there."""
    delayed(SCHEDULES / plan, forest_of(plan), rule, SIZE // 4, simgrid)


@pytest.mark.parametrize(("machine", "rule"), [("dgx-a100 boxes=2", "fifo"), ("dgx-a100", "fair")])
def test_slots_are_given_back_late(
    machine: str, rule: simulate.Rule, compiled: Artefacts, simgrid: Simgrid
) -> None:
    """Of whole trees: they have more messages than slots, and SimGrid few enough in one box."""
    broadcast = compiled(machine, "broadcast", "--target", "rccl", "--instances", "1")
    delayed(broadcast.file(".msccl.xml"), broadcast.forest, rule, SIZE, simgrid)


# --- messages of the machine's runtime ------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "message", "words"), [("dgx-a100-2", 576_000, 16), ("mi250-2", 50_176, 8)]
)
def test_messages_are_those_of_the_runtime_on_the_machine(
    machine: str, message: int, words: int, tmp_path: Path
) -> None:
    """One LL128 plan under two names: RCCL cuts it into shorter messages, of shorter lines."""
    for part in ("forest.json", "msccl.xml"):
        text = (SCHEDULES / f"dgx-a100-2/broadcast.{part}").read_text()
        (tmp_path / f"plan.{part}").write_text(text.replace('"dgx-a100-2"', f'"{machine}"'))
    plan = tmp_path / "plan.msccl.xml"
    play = read(plan, SIZE)
    program, forest = plans.read_plan(plan), forest_file.load(tmp_path / "plan.forest.json")
    found = simulate.run(program, forest, SIZE, rule="fifo")
    assert found.time == pytest.approx(Fifo(play).run(), rel=WITHIN)
    assert found.transfers == play.transfers
    sent = [line[2] for actor in play.actors for line in actor if line[0] == "send"]
    chunk = SIZE / program.ranks[0].input_chunks
    assert max(sent) == pytest.approx(min(message, chunk) * words / (words - 1))
    other = simulate.Options(runtime=TARGETS["rccl" if machine.startswith("dgx") else "msccl"])
    assert simulate.run(program, forest, SIZE, rule="fifo", options=other).time != found.time
