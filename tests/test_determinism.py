"""The same question has the same answer, to the byte.

A process writes everything, and some of it again; another one (other hash seed, one core instead of
all) writes it from the last to the first: forests, compact forests, plans of both formats, groups,
fronts. Nothing may depend on the order of a set, on an address, on what was solved before, on time,
or on which thread is quicker.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import finished
from random_problems import feasible, random_problem

from forestcoll import solver
from forestcoll.common.garbage_collection import THRESHOLD
from forestcoll.compile import together
from forestcoll.compile.front import front
from forestcoll.compile.synthesize import synthesize
from forestcoll.lower import lower
from forestcoll.program.targets import MSCCL
from forestcoll.schedule import forest_file
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit, parse_scale
from forestcoll.verify import _machine, simulate
from forestcoll.verify.columns import columns_of

ALL = ("forest", "msccl-xml", "mscclpp-json")
FOREST = ("forest",)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of `synthesize`; `without` and `scale` as on the command line."""

    topology: str
    collective: str
    settings: dict[str, str] = field(default_factory=dict)
    formats: tuple[str, ...] = ALL
    without: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        words = [self.topology, *self.settings.values(), self.collective, *self.without]
        return " ".join([*words, *self.scale, *map(str, self.more.values())])

    def texts(self) -> Iterator[tuple[str, str]]:
        """(name, text) of every file."""
        topology = edit(
            catalog.load(self.topology, self.settings),
            self.without,
            [*map(parse_scale, self.scale)],
        )
        made = synthesize(
            topology,
            self.collective,
            formats=self.formats,  # type: ignore[arg-type]
            **self.more,
        )
        for form, text in made.texts.items():
            yield f"{self.name}: {form}", text
        yield f"{self.name}: notes", "\n".join(made.notes)


def boxes(count: int) -> dict[str, str]:
    return {"boxes": str(count)}


CASES = (  # without those of schedules/, which every process that runs test_golden.py writes anew
    Case("mi250", "reduce-scatter", {}, FOREST),
    Case(
        "dgx1-v100", "allreduce", {}, ("forest", "mscclpp-json"), more={"ranks": ["box0/gpu[0-4]"]}
    ),
    Case("dgx1-v100", "broadcast", more={"root": 3}),
    Case("torus-2d", "reduce", {"x": "3", "y": "2"}),
    Case("fat-tree", "allgather", {"leaves": "2", "hosts": "1", "gpus": "3"}),
    # other ways of the solver: a broken link, joint allreduce, parts, copies, compact forests
    Case("dgx-a100", "allgather", boxes(2), FOREST, ("box0/gpu3->fabric",)),
    Case("dgx1-v100", "allgather", {}, ALL, ("box0/gpu0->box0/gpu3",)),
    Case("dgx-a100", "allreduce", boxes(2), FOREST, scale=("box0/gpu1-fabric=0.37",)),
    Case("mi250", "allreduce", boxes(2), FOREST, more={"ranks": ["box*/gpu[0-7]"]}),
    Case("mi250", "allgather", boxes(2), FOREST, more={"shares": ["*=1", "box0/gpu3=4"]}),
    Case("dgx-h100", "allreduce", boxes(2), FOREST),
    Case("dgx-a100", "allgather", boxes(64), FOREST, more={"compact": True}),
    # large enough for threads: layers, boxes, the exact rule
    Case("dgx-a100", "allgather", boxes(20), FOREST),
    Case("mi250", "allgather", boxes(8), FOREST),
    Case("dgx-a100", "allgather", boxes(13), FOREST, ("box0/gpu3<->fabric",)),
)


def groups() -> Iterator[tuple[str, str]]:
    topology = catalog.load("dgx-a100", boxes(2))
    asked = together.problem(topology, "allreduce", (("box*/gpu[0-3]",), ("box*/gpu[4-7]",)))
    made = together.synthesize(asked, formats=("forest", "mscclpp-json"))
    yield from ((f"groups: {name}", text) for name, text in made.texts.items())


def fronts() -> Iterator[tuple[str, str]]:
    for name in ("mi250", "dgx1-v100"):
        found = front(catalog.load(name, {}), "allgather", plans=name == "dgx1-v100")
        rows = [(row.point, row.height, row.different, sorted(row.needs)) for row in found.rows]
        yield f"front of {name}", repr(rows)


def random_forests() -> Iterator[tuple[str, str]]:
    for seed in range(30):
        problem = random_problem(seed)
        if feasible(problem):
            made = solver.solve(problem.graph, problem.collective, problem.root, name="random")
            yield f"random {seed}", forest_file.dumps(made)


SOURCES = (*(case.texts for case in CASES), groups, fronts, random_forests)
AGAIN = (*(case.texts for case in CASES[3:9:2]), random_forests)


def written(sources: Iterable[Callable[[], Iterator[tuple[str, str]]]]) -> dict[str, str]:
    """Name of each text -> its digest."""
    found: dict[str, str] = {}
    for source in sources:
        for name, text in source():
            assert name not in found, f"{name} is there twice"
            found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def written_elsewhere(seed: str, cores: int, order: str) -> list[dict[str, str]]:
    """All that is `written`, then some of it again, by a process with this hash seed and cores."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    package, here = Path(solver.__file__).parents[2], Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(package), str(here)])
    done = finished(sys.executable, __file__, cores, order, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    runs: list[dict[str, str]] = json.loads(done.stdout)
    return runs


@pytest.mark.slow
def test_two_processes_write_the_same_bytes() -> None:
    """One with all cores from the first to the last, one with a single core from the last."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(written_elsewhere, "0", cores, "forwards")
        other = pool.submit(written_elsewhere, "4242", 1, "backwards")
    (first, again), (last,) = one.result(), other.result()
    assert len(first) > 60
    assert len(again) > 25
    assert {name for name in again if first[name] != again[name]} == set()
    assert first.keys() == last.keys()
    assert {name for name in first if first[name] != last[name]} == set()


def test_threads_get_what_one_alone_gets() -> None:
    """They share what is kept of a forest from lowering to lowering, and from play to play."""
    topology = catalog.load("dgx-a100", {"boxes": 2})
    forest = synthesize(topology, "allreduce", formats=FOREST).forest

    def lower_and_play(size: int) -> tuple[object, list[float]]:
        program = lower(forest, MSCCL, instances=2)
        timings = simulate.run_each(program, forest, size, links=topology)
        return _machine.rows(columns_of(program)), [timing.time for timing in timings]

    sizes = [2**20, 2**24] * 8
    alone = [lower_and_play(size) for size in sizes[:2]] * 8
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            at_once = [*pool.map(lower_and_play, sizes)]
    finally:
        sys.setswitchinterval(interval)
    assert at_once == alone


if __name__ == "__main__":
    gc.set_threshold(*THRESHOLD)  # as the program does
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
    forwards = sys.argv[2] == "forwards"
    print(json.dumps([written(SOURCES), written(AGAIN)] if forwards else [written(SOURCES[::-1])]))
