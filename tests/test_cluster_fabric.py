"""Ranks in processes of several network namespaces: right data for all that a plan may be asked."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from graphs import named

from forestcoll import plans
from forestcoll.common.errors import ForestCollError
from forestcoll.execute import cpu
from forestcoll.execute.cluster.group import Group
from forestcoll.execute.cluster.launchers import FIRST_PORT, Place
from forestcoll.execute.lab import network
from forestcoll.execute.lab.fork_server import ForkServer
from forestcoll.execute.request import Request
from forestcoll.program import Collective, Program
from forestcoll.schedule.routes import routes

LACKING = network.lacking()
REQUIRED = os.environ.get("FORESTCOLL_LAB") == "required"
pytestmark = pytest.mark.skipif(bool(LACKING) and not REQUIRED, reason=LACKING or "it runs")

HERE = Path(__file__).parent
SPACES = 4
FOUR_BOXES = "rail boxes=4 gpus=2 rails=2"
FORMATS = {"msccl-xml": "rccl", "mscclpp-json": "mscclpp"}
SIZES = (4096, 100_000, 1 << 18)
KINDS = list(itertools.product(cpu.DTYPES, cpu.OPS))
"""Every type with every operation: 40, dealt out to the plans that add."""


@dataclass(frozen=True)
class Case:
    """What all processes run together."""

    plan: str
    size: int
    dtype: str
    op: str


@pytest.fixture(scope="module")
def fabric() -> Iterator[network.Network]:
    """Four namespaces, each with a link of 2 Gbit/s to one switch."""
    graph = named("star", gpus=SPACES)
    with network.Network(graph, Fraction(2_000_000_000) / graph.bandwidth(0)) as made:
        made.route(routes(graph))
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    made = ForkServer("test_cluster_fabric")
    yield made
    made.end()
    made.close()
    patch.undo()


@cache
def program_of(path: str) -> Program:
    return plans.read_plan(Path(path))


def live(process: int, spaces: Sequence[str], cases: Sequence[Case], pipe: Connection) -> None:
    """A process in the namespace spaces[process]; it sends what came of each case, or an error."""
    space = os.open(spaces[process], os.O_RDONLY)
    network.enter(space)
    os.close(space)
    place = Place(process, len(spaces), network.address(0), FIRST_PORT, "secret")
    done: list[Any] = []
    try:
        with Group(place, timeout=30) as group:
            for case in cases:
                result = cpu.run(
                    program_of(case.plan),
                    case.size,
                    group=group,  # type: ignore[arg-type]
                    threads=1,
                    dtype=case.dtype,
                    op=case.op,
                    iterations=2,
                )
                done.append([result.wrong, [row.mode for row in result.rows]])
                if len(done) == 1:
                    pipe.send("begun")
    except ForestCollError as error:
        pipe.send(str(error))
    pipe.send(done)


def start(
    server: ForkServer, fabric: network.Network, processes: int, spaces: int, cases: Sequence[Case]
) -> list[Connection]:
    """Processes, neighbours in one namespace, all of which have run the first case."""
    places = [fabric.space(p * spaces // processes) for p in range(processes)]
    pipes = [server.fork(live, p, places, cases) for p in range(processes)]
    for pipe in pipes:
        assert pipe.poll(60), "a process does not begin"
        assert pipe.recv() == "begun"
    return pipes


def plans_of(compiled: Artefacts) -> Iterator[tuple[str, Program]]:
    for collective in Collective:
        for form, target in FORMATS.items():
            made = compiled(FOUR_BOXES, collective.value, "--target", target)
            yield str(made.file(plans.FORMATS[form].suffix)), made.programs[form]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "spaces", "begin", "each"), [(2, 2, 0, 3), (4, 4, 18, 2), (8, 3, 30, 2)]
)
def test_every_collective_type_and_operation_between_namespaces(
    fabric: network.Network,
    server: ForkServer,
    compiled: Artefacts,
    processes: int,
    spaces: int,
    begin: int,
    each: int,
) -> None:
    """All collectives, both formats, in and out of place, three launches of each.

    Plans that add take the types and operations from number `begin` on, `each` so many: in the
    three tests together all.
    """
    numbers, cases, modes = itertools.count(processes), list[Case](), list[list[str]]()
    kinds = itertools.islice(itertools.cycle(KINDS), begin, None)
    types = itertools.cycle(cpu.DTYPES)
    for path, program in plans_of(compiled):
        for _ in range(each if program.collective.reduces else 1):
            dtype, op = next(kinds) if program.collective.reduces else (next(types), "sum")
            cases.append(Case(path, SIZES[next(numbers) % len(SIZES)], dtype, op))
            modes.append(list(Request.of(program, cases[-1].size).modes))
    adding = sum(program_of(case.plan).collective.reduces for case in cases)
    assert adding == 6 * each  # 18 + 12 + 12: more than all KINDS
    told = [pipe.recv() for pipe in start(server, fabric, processes, spaces, cases)]
    assert told == [[[0, mode] for mode in modes]] * processes


@pytest.mark.slow
def test_a_link_that_goes_down_ends_all_within_ten_seconds(
    fabric: network.Network, server: ForkServer, compiled: Artefacts
) -> None:
    made = compiled(FOUR_BOXES, "allreduce", "--target", "mscclpp")
    path = str(made.file(".mscclpp.json"))
    cases = [Case(path, 1 << 20, "float32", "sum")] * 2000
    pipes = start(server, fabric, 4, 4, cases)
    graph = fabric.graph
    wire = next(w for w in fabric.wires if graph.ranks[2] in (w.a, w.b))
    with network.inside(fabric.fds[graph.ranks[2]]):
        network.batch("ip", [f"link set {wire.name} down"])
    began = time.monotonic()
    try:
        said = {number: pipe.recv() for number, pipe in enumerate(pipes) if wait([pipe], 12)}
        assert time.monotonic() - began < 12
    finally:
        with network.inside(fabric.fds[graph.ranks[2]]):
            network.batch("ip", [f"link set {wire.name} up"])
        fabric.route(routes(graph))
    assert sorted(said) == [0, 1, 2, 3]
    lost = [text for number, text in sorted(said.items()) if number != 2]
    assert len(set(lost)) == 1, said
    assert lost[0].startswith("process 2 on ")
    assert "has not been heard of for 5 s" in lost[0]
    silent = "process 0 has not been heard of for 5 s"
    cut_off = "no connection with the other processes: [Errno 101]"  # its own kernel knows at once
    assert said[2].startswith((silent, cut_off))
