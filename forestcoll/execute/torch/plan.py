"""Plans made ready for a process group: checked once, cut once for each size."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from functools import cached_property
from os import PathLike
from threading import Lock

from forestcoll import plans
from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError
from forestcoll.execute.torch import cutting
from forestcoll.execute.torch.rounds import Planner, RankRounds
from forestcoll.program import Collective, Program
from forestcoll.verify.dataflow import Dataflow, dataflow, levels

KEPT = 64
"""Sizes whose steps are kept."""
MOST_SLICES = 256
LEAD = 2
"""Steps under way at a time where the caller does not say."""
STEP_BYTES = 512 * 1024
"""What the busiest rank could have moved in the time that a step costs besides."""


class Plan:
    """A program as a dataflow, proven right, with the steps of each rank and size on demand.

    `slices` and `lead` (see cutting.py): None chooses by size. All ranks must use the same.
    """

    def __init__(
        self, program: Program, *, slices: int | None = None, lead: int | None = None
    ) -> None:
        arguments.instance("program", program, Program, "; a file's path is for load_plan")
        slices = arguments.whole_or_none("slices", slices)
        lead = arguments.whole_or_none("lead", lead)
        self.program = program
        self.flow: Dataflow = dataflow(program)
        self.slices, self.lead = slices, lead or LEAD
        self.levels = levels(self.flow)
        self._rounds: dict[tuple[int, bool], RankRounds] = {}
        self._jobs: OrderedDict[tuple[int, bool, cutting.Cut], cutting.Job] = OrderedDict()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, object]:
        """Plans can be sent to other processes, `torch.multiprocessing.spawn`'s for one."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=Lock())

    @property
    def name(self) -> str:
        """The plan's name, for people."""
        return self.program.name or f"an unnamed {self.collective} plan"

    @property
    def collective(self) -> Collective:
        """What the plan does."""
        return self.flow.collective

    @property
    def ranks(self) -> int:
        """Ranks that take part."""
        return self.flow.ranks

    @property
    def root(self) -> int:
        """The root's rank in the group (broadcast, reduce); else -1."""
        return self.flow.root

    @cached_property
    def digest(self) -> str:
        """Of all that the ranks must have alike: values and their order, slices, lead."""
        flow = self.flow
        values = [(v.rank, v.start, v.length, v.made_from) for v in flow.values]
        alike = flow.units, flow.root, values, flow.outputs, self.slices, self.lead
        return hashlib.sha256(repr(alike).encode()).hexdigest()[:12]

    @property
    def rounds(self) -> int:
        """Transfers that follow one another before the last piece is there."""
        return max(self.levels, default=-1) + 1

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {self.collective}, {self.ranks} ranks, {self.rounds} rounds>"

    def job(
        self, rank: int, part: int, element: int, *, in_place: bool, slices: int = 0
    ) -> cutting.Job:
        """The steps of `rank` for parts of `part` elements of `element` bytes."""
        slices = slices or self.count_slices(part * self.flow.parts * element)
        key = rank, in_place, self._cut(part, element, slices)
        rounds = self.rounds_of(rank, in_place=in_place)
        with self._lock:
            if key not in self._jobs:
                self._jobs[key] = cutting.Cutter(rounds, key[2]).job()
            self._jobs.move_to_end(key)
            if len(self._jobs) > KEPT:
                self._jobs.popitem(last=False)
            return self._jobs[key]

    def roots(self, rank: int, part: int, element: int) -> list[tuple[int, int]]:
        """(first, elements) of the parts whose sums are complete at `rank` first, in place."""
        steps = self.job(rank, part, element, in_place=True).steps
        return [(s.begin, s.target.length) for step in steps for s in step.sums if s.last]

    def alltoallv_job(self, rank: int, sizes: cutting.Matrix, element: int) -> cutting.Job:
        """The same for an all-to-all of blocks of these sizes, which is not kept.

        As many slices as for even blocks of the largest buffer.
        """
        most = max(*map(sum, sizes), *map(sum, zip(*sizes, strict=True)))
        cut = self._cut(most, element, self.count_slices(most * element), sizes)
        return cutting.Cutter(self.rounds_of(rank, in_place=False), cut).job()

    def rounds_of(self, rank: int, *, in_place: bool) -> RankRounds:
        """What `rank` does, whatever the size; made once."""
        with self._lock:
            key = rank, in_place
            if key not in self._rounds:
                self._rounds[key] = Planner(self.flow, self.levels, rank, in_place).plan()
            return self._rounds[key]

    def _cut(
        self, part: int, element: int, slices: int, sizes: cutting.Matrix | None = None
    ) -> cutting.Cut:
        flow = self.flow
        return cutting.Cut(
            flow.collective, part, flow.parts, flow.units, element, slices, self.lead, sizes
        )

    def count_slices(self, size: int) -> int:
        """Slices for data of `size` bytes: as asked, or such as balance two costs.

        They are filling the pipeline, and what every step costs besides. With S slices the time is
        (S + lead (rounds - 1)) (cost + work / S), least at this S.
        """
        if self.slices:
            return self.slices
        work = size * self._busiest / self.flow.units
        best = math.sqrt(self.lead * max(0, self.rounds - 1) * work / STEP_BYTES)
        return max(1, min(MOST_SLICES, round(best)))

    @cached_property
    def _busiest(self) -> int:
        """Units that the busiest rank sends or receives."""
        sent, received = [0] * self.ranks, [0] * self.ranks
        for source, result in self.flow.moves():
            value = self.flow.values[result]
            sent[self.flow.values[source].rank] += value.length
            received[value.rank] += value.length
        return max(*sent, *received, 1)


_loaded: dict[tuple[str, int, int, int | None, int | None], Plan] = {}


def load_plan(
    path: str | PathLike[str], *, slices: int | None = None, lead: int | None = None
) -> Plan:
    """The plan in a file of either format; read and proven only when the file is new or changed.

    Raises PlanError where it cannot be read or is wrong, UnsupportedError where it is too large.
    """
    path = arguments.path("path", path)
    slices = arguments.whole_or_none("slices", slices)
    lead = arguments.whole_or_none("lead", lead)
    try:
        state = path.stat()
    except (OSError, ValueError):
        return Plan(plans.read_plan(path))  # which says what is wrong with it
    key = str(path.resolve()), state.st_mtime_ns, state.st_size, slices, lead
    if key not in _loaded:
        _loaded[key] = Plan(plans.read_plan(path), slices=slices, lead=lead)
    return _loaded[key]


def plan_of(plan: object) -> Plan:
    """What a caller gives for a plan: a Plan, or the path of a plan file, read and proven once."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, str | PathLike):
        return load_plan(plan)
    hint = "; prove it once: Plan(program)" * isinstance(plan, Program)
    raise ArgumentError(
        f"plan must be a Plan or the path of a plan file, not {arguments.quote(plan)}{hint}"
    )
