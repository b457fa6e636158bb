"""Every all-to-all plan of the catalogue, checked in every way, as a table in markdown.

    python scripts/benchmarks/catalogue_alltoall.py [--only MACHINE] [--most RANKS] [--state FILE]

For each machine (its default, two boxes, more boxes, some with a link out), each way (the routes of
the optimum; static ones between boxes), target and protocol: the plan's file reads back equal, it
delivers every block over its routes and nothing else, lint finds neither errors nor warnings and
follows several launches with the runtime's queues, and the engine runs three launches, every
element compared, with one message a queue and with the runtime's. What the runtime's limits leave
no room for is listed with the limit; whatever goes wrong is a fault, and the exit code 1.

`--state FILE` keeps what is done, a line of JSON each: the next run goes on where this one ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import catalogue
from catalogue import Kind, Outcome

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.alltoall_plans import check, make
from forestcoll.plans.lint import lint
from forestcoll.program import Collective
from forestcoll.program.targets import TARGETS, Target, sms_of
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import spread
from forestcoll.topology import Topology, catalog
from forestcoll.topology.edit import edit

MOST_RANKS = 64
WAYS = ("optimal", "spread")
KINDS = tuple(k for k in catalogue.KINDS if k.protocol)
"""As for other collectives, but for switches that copy and add."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A topology of the catalogue, perhaps with links out."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [self.name, *(f"{key}={value}" for key, value in self.settings.items())]
        return " ".join((*said, *(f"without {link}" for link in self.without)))

    def load(self) -> Topology:
        """The topology as it is then."""
        found = catalog.load(self.name, self.settings)
        return edit(found, self.without, []) if self.without else found


MORE = (
    Machine("dgx-a100", {"boxes": "4"}),
    Machine("dgx-h100", {"boxes": "8"}),
    Machine("mi250", {"boxes": "4"}),
    Machine("mi300x", {"boxes": "8"}),
    Machine("hypercube", {"dimension": "6"}),
    Machine("torus-3d", {"x": "3", "y": "3", "z": "3"}),
    Machine("fat-tree", {"leaves": "8", "hosts": "1"}),
    Machine("rail", {"boxes": "8"}),
    Machine("rail", {"boxes": "8", "spine": "0"}),
    Machine("ring", {"gpus": "16"}),
    Machine("dgx-a100", {"boxes": "2"}, ("box0/gpu0-fabric",)),
    Machine("dgx1-v100", {}, ("box0/gpu0-box0/gpu1",)),
    Machine("mi250", {"boxes": "2"}, ("box0/gpu0-fabric",)),
    Machine("torus-3d", {"x": "3", "y": "3", "z": "3"}, ("gpu0-gpu1",)),
)
"""Beside those that other collectives are checked on (`catalogue.machines`)."""


def machines(most: int = MOST_RANKS) -> list[Machine]:
    """All, the smallest first."""
    known = [Machine(name, settings) for name, settings in catalogue.machines(most)]
    sized = [(len(one.load().gpus), k, one) for k, one in enumerate((*known, *MORE))]
    return [one for size, _, one in sorted(sized, key=lambda entry: entry[:2]) if size <= most]


def faults_of_file(found: Routes, text: str, target: Target) -> Iterator[str]:
    """What is wrong with a plan file."""
    program = plans.loads(text, "plan", target.format)
    try:
        check(found, program)
    except PlanError as error:
        yield f"routes: {error}"
    report = lint(text, "plan", target.name, sms=target.thread_blocks)
    yield from (f"lint: {said}" for said in report.findings if said.severity != "note")
    if report.ok and (report.verified is None or report.verified.modes != ("out-of-place",)):
        yield "lint: it was not proven out of place, and only so"
    if report.launches < 2:
        yield f"lint: {report.launches} launch"


def find_routes(best: Optimum, way: str) -> Routes | str:
    """The routes of a way, or why there are none."""
    try:
        return spread(best) if way == "spread" else route(best, powers=True)
    except UnsupportedError as error:
        return str(error)


def checked(name: str, found: Routes, kind: Kind, sms: int | None) -> Outcome:
    """One plan, from its routes to the last element."""
    start = time.process_time()
    target = TARGETS[kind.target].on(sms)
    refused, faults = "", list[str]()
    try:
        plan = make(found, target.format, target, name, kind.protocol)
        if plans.loads(plan.text, "plan", target.format) != plan.program:
            faults.append("does not read back equal")
        faults += faults_of_file(found, plan.text, target)
        faults += catalogue.faults_of_run(plan.program)
    except PlanError as error:
        refused = str(error)
    except Exception as error:  # the other plans are still to be looked at
        faults.append(f"{type(error).__name__}: {error}")
    places = () if refused else ("out-of-place",)
    seconds = time.process_time() - start
    return Outcome(name, Collective.ALLTOALL, kind, places, refused, tuple(faults), seconds, 1)


class State:
    """What is done, in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[tuple[str, str, str], Outcome] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(json.loads(line))

    def _read(self, said: dict[str, object]) -> None:
        kind = next(k for k in KINDS if str(k) == said["kind"])
        one = Outcome(
            str(said["machine"]),
            Collective.ALLTOALL,
            kind,
            tuple(said["places"]),  # type: ignore[arg-type]
            str(said["refused"]),
            tuple(said["faults"]),  # type: ignore[arg-type]
            float(said["seconds"]),  # type: ignore[arg-type]
            1,
        )
        self.known[one.machine, str(kind), str(said["way"])] = one

    def add(self, one: Outcome, way: str) -> None:
        """Keep it."""
        self.known[one.machine, str(one.kind), way] = one
        if self.path is not None:
            line = {"machine": one.machine, "way": way, "kind": str(one.kind)}
            line |= {"places": one.places, "refused": one.refused, "faults": one.faults}
            line["seconds"] = round(one.seconds, 2)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def run_all(chosen: list[Machine], state: State) -> tuple[list[Outcome], dict[str, int]]:
    """Check what is not known yet; all outcomes, and ranks by name."""
    outcomes: list[Outcome] = []
    sizes: dict[str, int] = {}
    for one in chosen:
        topology = one.load()
        best: Optimum | None = None
        for way in WAYS:
            name = f"{one} {way}"  # several have one topology's name
            keys = {kind: (name, str(kind), way) for kind in KINDS}
            found: Routes | str | None = None
            for kind, key in keys.items():
                if key not in state.known:
                    best = best or solve(uniform(topology))
                    found = found or find_routes(best, way)
                    if isinstance(found, str):
                        break  # no boxes: nothing to say of it
                    state.add(checked(name, found, kind, sms_of(topology.name)), way)
                    done = state.known[key]
                    told = f"{name} {kind}: {done.cell} {done.seconds:.1f} s"
                    print(told, *done.faults, sep="\n  ", file=sys.stderr, flush=True)
                outcomes.append(state.known[key])
                sizes[name] = len(topology.gpus)
    return outcomes, sizes


def main() -> int:
    """Print the table; a line for each plan on standard error meanwhile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=catalog.names(), help="a machine")
    parser.add_argument("--most", type=int, default=MOST_RANKS, help="ranks of the largest machine")
    parser.add_argument("--state", type=Path, help="a file that keeps what is done")
    asked = parser.parse_args()
    chosen = [one for one in machines(asked.most) if not asked.only or one.name in asked.only]
    outcomes, sizes = run_all(chosen, State(asked.state))
    print("\n".join(catalogue.table(outcomes, sizes, KINDS)))
    return 1 if any(one.faults for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
