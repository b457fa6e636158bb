"""What a plan set is before it is written: candidates, plans with the sizes that they serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from forestcoll.compile.plan_set.estimate import Line
from forestcoll.compile.plan_set.others import Other
from forestcoll.lower.rounds import Rounds
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import PlanFormat, Target
from forestcoll.schedule.forest import Forest
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify.simulate import Band

if TYPE_CHECKING:
    from forestcoll.verify.simulate.options import Kind

LARGEST: Final = 2**50
"""Bytes that a set reaches up to at most."""
Source = Forest | Routes | Rounds | Other
"""What plans are made from."""
Ends = tuple[Band, Band]
"""Of a plan at the least of its bytes, and at the most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What programs of a style and protocol are made from, with the estimate of its plan.

    `times`: as many instances and slices, or pieces of a block, as its plainest programs have; it
    is looked at `above` so many bytes.
    """

    origin: Source
    kind: Kind
    line: Line
    times: int = 1
    above: int = 0

    @property
    def protocol(self) -> Protocol:
        """How messages are sent."""
        return self.kind[1]

    @property
    def parts(self) -> int:
        """Trees of a root, or units of a block: in how many parts data goes different ways."""
        return getattr(self.origin, "trees_per_root", 0) or getattr(self.origin, "units", 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One plan of the set, and what it was made from. Sizes in bytes, both inclusive.

    `ends`: simulated at the least and at the most of its bytes (64 MiB at most), if at all.
    """

    low: int
    high: int
    candidate: Candidate
    program: Program
    text: str
    ends: Ends | None = None

    @property
    def origin(self) -> Forest | Routes | None:
        """The forest or routes that it was made from, if it was."""
        origin = self.candidate.origin
        return origin if isinstance(origin, Forest | Routes) else None


@dataclass(frozen=True, slots=True)
class Unserved:
    """What no plan of the set serves: sizes `low` to `high` (None: and all above), and why."""

    low: int
    high: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Plans:
    """All plans of one format, sizes ascending, and the sizes that none of them serves."""

    format: PlanFormat
    target: Target
    entries: tuple[Entry, ...]
    unserved: tuple[Unserved, ...]


@dataclass(frozen=True, slots=True)
class PlanSet:
    """What `make` made: plans by format, for sizes from `low` to `high` bytes."""

    name: str  # of the expanded topology
    collective: Collective
    root: str | None  # node id
    sms: int  # multiprocessors of a GPU
    low: int
    high: int
    bound: Fraction  # GB/s of algbw that no schedule exceeds whose GPUs copy and add
    plans: tuple[Plans, ...]
    first: Forest | Routes  # says the machine where no plan is made from any
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    in_switches: Fraction | None = None  # GB/s where switches copy and add, if that is more

    @property
    def sources(self) -> list[Forest | Routes]:
        """Each forest, or an all-to-all's routes, that a plan was made from, once; or `first`."""
        sources: list[Forest | Routes] = []
        for plans in self.plans:
            for entry in plans.entries:
                origin = entry.origin
                if origin is not None and all(origin is not source for source in sources):
                    sources.append(origin)
        return sources or [self.first]
