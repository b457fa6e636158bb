"""The ways out inside the compiled kernel, taken for certain: a coverage build counts its lines.

Python records what the solver asks of the kernel while it solves a graph, and proves the forest
that comes out. The same questions then go to a build of the same sources that counts how often a
line runs (`kernel_probe.cpp`, gcc and gcov). Lines are named by their text: if one is gone, the
test says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from artefacts import ROOT, Artefacts
from command_line import finished
from graphs import mi250
from random_graphs import judge as recount
from random_problems import Problem, feasible, random_problem

from forestcoll import solver
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule import certificate

KERNEL = Path(_kernel.__file__).parent
if not (KERNEL / "relays").exists():  # an installed package has no sources beside it
    KERNEL = ROOT / "forestcoll" / "graph" / "kernel"
PROBE = Path(__file__).parent / "kernel_probe.cpp"
ELSEWHERE = {"module", "tree_paths", "rehanging", "local_search", "edge_colouring"}
ELSEWHERE |= {"list_scheduling", "transfers", "fifo_blocks", "onesided_blocks"}
"""Files that need Python, or that the probe does not ask."""

FLAGS = (
    *("-std=c++20", "-O0", "-pthread", f"-I{KERNEL}"),
    *("--coverage", "-fprofile-exclude-files=/usr/.*"),  # no lines of the standard library
)

Line = tuple[str, str]
"""File and text of a line."""

REFUSED: Line = ("edge_splitting", "broken.push_back(std::move(violation->inside));")
OTHERWISE: Line = ("edge_splitting", "if (grade != kLoop && pair.costs(inside)) grade = kBroken;")
BY_PAIRS: Line = ("edge_splitting", "splitter.apply(one, broken);")
DETOURS: Line = ("edge_splitting", "if (!loops.empty()) splitter.apply(loops, broken);")
TRIMMED: Line = ("edge_splitting", "progress |= done > 0;")
TIGHTENED: Line = ("box_packing", "tighten(lowered, demand, box);")
BOXES_LEFT: Line = ("box_packing", "const Boxes boxes = number_boxes(box);")
BOX_EXACT: Line = ("box_packing", "batches = pack_exact(inside.graph, inside.supply);")
ARC_BY_ARC: Line = ("exact", "take(i, e, units);  // what is left of the batch goes its own way")
ARC_REFUSED: Line = ("exact", "continue;  // no set that holds y can spare it")
BATCH_SPLIT: Line = ("exact", "batches_.push_back(batches_[i]);")
LAYERS_FAIL: Line = ("layers", "if (!possible) return std::nullopt;")


def source_of(stem: str) -> Path:
    """The kernel's file of that name, in whichever folder."""
    (path,) = KERNEL.rglob(f"{stem}.cpp")
    return path


# --------------------------------------------------------------- what the solver asks the kernel


@dataclass(slots=True)
class Asked:
    """Questions in the words of the probe, and the kernel's answers."""

    steps: list[str] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)

    def add(self, step: str, numbers: Iterable[int], answer: bool) -> None:
        self.steps.append(" ".join([step, *map(str, numbers)]))
        self.answers.append(answer)


def _words(
    tail: Any, head: Any, capacity: Any, supply: Any, sinks: Any, group: Any
) -> Iterator[int]:
    """A problem as the probe reads it: arcs, supply, sinks, groups."""
    yield from (len(supply), len(tail))
    for arc in zip(tail, head, capacity, strict=True):
        yield from arc
    yield from (*supply, len(sinks), *sinks, *group)


def _relays(asked: Asked, work: Callable[..., Any]) -> Callable[..., Any]:
    def remove(n: int, *given: Any) -> Any:
        came = work(n, *given)
        *problem, detours = given
        asked.add("split" if detours else "split-plain", _words(*problem), bool(came.tail))
        return came

    return remove


def _trim(asked: Asked, work: Callable[..., Any]) -> Callable[..., Any]:
    def trim(n: int, *problem: Any) -> Any:
        came = work(n, *problem)
        asked.add("trim", _words(*problem, [-1] * n), came is not None)
        return came

    return trim


def _packing(
    asked: Asked, work: Callable[..., Any], nested: bool
) -> Callable[[Any, Any, Any, Any], Any]:
    def pack(logical: Any, supply: Any, sinks: Any, more: Any) -> Any:
        came = work(logical, supply, sinks, more)
        place = {v: i for i, v in enumerate(sinks)}
        units = [sum(count for _, count in link) for link in logical.units]
        tail, head = ([place[v] for v in ends] for ends in (logical.tail, logical.head))
        group = [more[v] for v in sinks] if nested else [-1] * len(sinks)
        weights = [supply[v] for v in sinks]
        numbers = _words(tail, head, units, weights, range(len(sinks)), group)
        step = "nested" if nested else "exact" if more else "layered"
        asked.add(step, numbers, came is not None)
        return came

    return pack


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Collects all questions from here on; the kernel answers them as ever."""
    record = Asked()
    watched = {
        "remove_relays": _relays(record, _kernel.remove_relays),
        "trim": _trim(record, _kernel.trim),
        "pack": _packing(record, _kernel.pack, nested=False),
        "pack_nested": _packing(record, _kernel.pack_nested, nested=True),
    }
    for name, work in watched.items():
        monkeypatch.setattr(_kernel, name, work)
    return record


def proven(problem: Problem) -> None:
    """Solves it; trees and bound are counted anew, and agree unless a switch could copy."""
    forest = solver.solve(problem.graph, problem.collective, problem.root)
    reached, bound = certificate.check(forest)
    assert recount(forest) == reached
    assert reached == bound or "able" in problem.has


@dataclass(frozen=True, slots=True)
class Given:
    """A question, read back: capacities by link, what starts where, who wants it all."""

    nodes: int
    room: dict[tuple[int, int], int]
    supply: list[int]
    sinks: list[int]

    @staticmethod
    def read(step: str) -> Given:
        numbers = list(map(int, step.split()[1:]))
        nodes, arcs = numbers[:2]
        links = iter(numbers[2 : 2 + 3 * arcs])
        room = {(u, v): c for u, v, c in zip(links, links, links, strict=True)}
        rest = numbers[2 + 3 * arcs :]
        return Given(nodes, room, rest[:nodes], rest[nodes + 1 :][: rest[nodes]])


def check_trees(step: str, line: str) -> None:
    """What a packing step has packed: spanning trees, as many as asked, within the capacities."""
    given = Given.read(step)
    numbers = list(map(int, line.split()[:-1]))
    rooted = [0] * given.nodes
    for start in range(0, len(numbers), given.nodes + 2):
        root, weight, *parent = numbers[start : start + given.nodes + 2]
        assert weight > 0
        rooted[root] += weight
        for v in range(given.nodes):
            at, steps = v, 0
            while at != root:
                at, steps = parent[at], steps + 1
                assert 0 <= at < given.nodes
                assert steps < given.nodes, "a tree with a circle"
            if v != root:
                given.room[parent[v], v] -= weight
    assert rooted == given.supply
    assert min(given.room.values()) >= 0


def check_split(step: str, line: str) -> None:
    """What relays became: paths between sinks within the capacities that still meet the demand."""
    given = Given.read(step)
    numbers = list(map(int, line.split()[:-1]))
    left: dict[tuple[int, int], int] = defaultdict(int)
    while numbers:
        units, hops = numbers[:2]
        path, numbers = numbers[2 : 2 + hops], numbers[2 + hops :]
        for pair in pairwise(path):
            given.room[pair] -= units
        assert {v for v in path if v in given.sinks} == {path[0], path[-1]}
        left[path[0], path[-1]] += units
    assert min(given.room.values()) >= 0
    tail, head = [u for u, _ in left], [v for _, v in left]
    links = (given.nodes, tail, head, list(left.values()))
    assert _kernel.violated(*links, given.supply, given.sinks) is None


CHECKS: dict[str, Callable[[str, str], None]] = {
    "split": check_split,
    "split-plain": check_split,
    "layered": check_trees,
    "exact": check_trees,
    "nested": check_trees,
    "trim": lambda _, __: None,  # what is left is split and packed next, and checked there
}


# ------------------------------------------------------------------------- the coverage build


@dataclass(frozen=True, slots=True)
class Probe:
    """The coverage build in a folder of its own."""

    folder: Path

    @staticmethod
    def build(folder: Path, compiler: str) -> None:
        """All sources as one, which takes a third of the time; two of them with a net's line."""
        folder.mkdir()
        changed = {stem: lines for stem, *lines in (net[:3] for net in NETS.values())}
        unit = ["#include <cstdlib>", 'const bool in_net = std::getenv("IN_NET") != nullptr;']
        for source in (*sorted(KERNEL.rglob("*.cpp")), PROBE):
            if source.stem in ELSEWHERE:
                continue
            if source.stem in changed:
                old, new = changed[source.stem]
                text = source.read_text()
                assert text.count(old) == 1, f"{source.name} has no line '{old}': adapt this test"
                source = folder / source.name
                source.write_text(text.replace(old, new))
            unit.append(f'#include "{source}"')
        (folder / "unit.cpp").write_text("\n".join(unit))
        run([compiler, *FLAGS, "-c", "unit.cpp"], folder)
        run([compiler, "--coverage", "-pthread", "unit.o", "-o", "probe"], folder)

    def answers(self, steps: Sequence[str], **variables: str) -> list[bool]:
        """What the steps come to; counts start anew."""
        (self.folder / "unit.gcda").unlink(missing_ok=True)
        given = "\n".join(steps)
        lines = run([str(self.folder / "probe")], self.folder, given, **variables).splitlines()
        for step, line in zip(steps, lines, strict=True):
            if line.endswith("yes"):
                CHECKS[step.split()[0]](step, line)
        return [line.endswith("yes") for line in lines]

    def counts(self, lines: Sequence[Line]) -> dict[Line, int]:
        """How often each line ran since the last `answers`."""
        told = json.loads(run(["gcov", "--json-format", "--stdout", "unit.gcda"], self.folder))
        ran: dict[tuple[str, int], int] = defaultdict(int)
        for file in told["files"]:
            for line in file["lines"]:
                at = Path(file["file"]).name, line["line_number"]
                ran[at] = max(ran[at], line["count"])
        found: dict[Line, int] = {}
        for stem, wanted in lines:
            text = source_of(stem).read_text().splitlines()
            places = [i for i, line in enumerate(text, 1) if line.strip() == wanted]
            assert places, f"{stem}.cpp has no line '{wanted}' any more: adapt this test"
            found[stem, wanted] = sum(ran[f"{stem}.cpp", place] for place in places)
        return found


def run(command: Sequence[str], folder: Path, given: str = "", **variables: str) -> str:
    # counts go beside the program, wherever it was compiled
    places = os.environ | {"GCOV_PREFIX": str(folder), "GCOV_PREFIX_STRIP": "99"} | variables
    done = finished(*command, cwd=folder, input=given, env=places)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory, compiled: Artefacts) -> Probe:
    """One of our own, as it counts; it is compiled as seldom as its sources change."""
    compiler = shutil.which("g++")
    if compiler is None or shutil.which("gcov") is None:
        pytest.skip("counting lines takes g++ and gcov")
    sources = [path for path in KERNEL.rglob("*") if path.suffix in (".cpp", ".hpp")]
    made_of = (PROBE, Path(__file__), *sources)
    built = compiled.once("probe", lambda folder: Probe.build(folder, compiler), *made_of)
    return Probe(shutil.copytree(built, tmp_path_factory.mktemp("kernel") / "probe"))


# ------------------------------------------------------------------------------------ the ways

WAYS: dict[str, tuple[Line, ...]] = {
    "a whole-switch proposal fails at a cut: it is taken back in part, the next one avoids the cut":
        (REFUSED, OTHERWISE),
    "links between switches lead astray: what they could send back and forth goes first":
        (DETOURS,),
    "switches receive more than they send: link by link is trimmed": (TRIMMED,),
    "layers fail: nothing is packed so": (LAYERS_FAIL,),
    "layers fail: boxes are tightened, then packed one by one": (TIGHTENED, BOXES_LEFT),
    "a box alone has no layers: it is packed exactly": (BOX_EXACT,),
    "a batch cannot go one way whole: it is split": (BATCH_SPLIT,),
}  # fmt: skip
REFUSALS = ("layered", "nested", "trim")
"""Steps that say no now and then, and leave it to another one."""
NETS: dict[str, tuple[str, str, str, tuple[str, ...], tuple[Line, ...]]] = {
    "whole-switch proposals come to an end: pair by pair finishes what is left": (
        "edge_splitting",
        "for (bool progress = true; progress;) {",
        "for (bool progress = !in_net; progress;) {",
        ("split", "split-plain"),
        (BY_PAIRS,),
    ),
    "crowds get stuck: one arc of one batch at a time finds a way": (
        "exact",
        "if (!progress)",
        "if (!progress || in_net)",
        ("exact",),
        (ARC_BY_ARC, ARC_REFUSED),
    ),
}
"""Nets below what nearly always does: few of thousands of random graphs fall into the first, none
of 24,000 tight ones into the second. So proposals are given up before they begin, and batches go
arc by arc whether or not they got on: file, line, other line, steps, what runs."""
PROBLEMS = 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ways_out_of_the_kernel(probe: Probe, asked: Asked) -> None:
    """One test for all: the build takes longer than the ways."""
    for boxes in (1, 2):
        proven(Problem(0, mi250(boxes), Collective.ALLGATHER, None, frozenset()))
    for seed in range(PROBLEMS):
        problem = random_problem(seed)
        if problem.collective is not Collective.ALLREDUCE and feasible(problem):
            proven(problem)
    assert probe.answers(asked.steps) == asked.answers
    lines = [line for lines in WAYS.values() for line in lines]
    counts = probe.counts(lines)
    taken = {name: min(counts[line] for line in lines) for name, lines in WAYS.items()}
    assert {name for name, count in taken.items() if not count} == set()
    assert counts[TIGHTENED] > counts[BOXES_LEFT]  # or no box could be tightened: refused
    said = {(words.split()[0], yes) for words, yes in zip(asked.steps, asked.answers, strict=True)}
    assert {(step, yes) for step in REFUSALS for yes in (False, True)} <= said
    for name, (*_, kinds, below) in NETS.items():
        steps = [words for words in asked.steps if words.split()[0] in kinds][:80]
        assert len(steps) > 50
        assert all(probe.answers(steps, IN_NET="1")), name
        assert min(probe.counts(below).values()) > 0, name
