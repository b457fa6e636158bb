"""Plans of routes: lowered for a runtime, written, read back, run symbolically, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forestcoll import plans
from forestcoll.common.clock import Clock
from forestcoll.compile.formats import check_routes, write_plan
from forestcoll.lower import Usage, usage
from forestcoll.lower.alltoall.filling import fill
from forestcoll.program import Program, Protocol
from forestcoll.program.targets import PlanFormat, Target
from forestcoll.solver.alltoall.file import ROUTES_SUFFIX, loads
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify import verify


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was proven: its text, what it does, and how much of the runtime it takes.

    `note`: why it has fewer thread blocks than its links could keep busy, or "".
    """

    format: PlanFormat
    text: str
    program: Program
    needs: Usage
    note: str = ""


def routes_beside(plan: Path) -> Routes | None:
    """The routes in the file that `synthesize` writes beside a plan file, if it is there.

    Raises ForestError where the file does not hold what it claims.
    """
    for about in plans.FORMATS.values():
        for suffix in (about.suffix, Path(about.suffix).suffix):
            path = plan.with_name(plan.name.removesuffix(suffix) + ROUTES_SUFFIX)
            if plan.name.endswith(suffix) and path.is_file():
                routes, _, _ = loads(path.read_text(encoding="utf-8"), str(path))
                return routes if isinstance(routes, Routes) else None
    return None


def make(
    routes: Routes,
    form: PlanFormat,
    target: Target,
    name: str,
    protocol: Protocol | None = None,
) -> Plan:
    """The plan in `form` within the limits of `target`, proven from its text.

    Raises PlanError where the target cannot hold it, with the figure and a way out.
    """
    program, note = fill(routes, target, name, protocol)
    text = write_plan(program, form, target, routes, Clock())
    return Plan(form, text, program, usage(program), note)


def check(routes: Routes, program: Program) -> None:
    """PlanError unless the program delivers every block, over the routes and nothing else."""
    check_routes(routes, verify(program))
