"""What a plan set is before it is written: candidates, plans with the sizes that they serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from forestcoll.compile.plan_set.estimate import Line
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import PlanFormat, Target

if TYPE_CHECKING:
    from forestcoll.compile.plan_set.settle import Ends
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.routes import Routes

LARGEST: Final = 2**50
"""Bytes that a set reaches up to at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A forest with a protocol, its estimate, and how many chunks a plan of it has."""

    forest: Forest
    protocol: Protocol
    line: Line
    chunks: int

    @property
    def origin(self) -> Forest:
        """What its plans are made from."""
        return self.forest


@dataclass(frozen=True, slots=True)
class ExchangeCandidate:
    """Routes of an all-to-all with a protocol, and their estimate."""

    origin: Routes
    protocol: Protocol
    line: Line


@dataclass(frozen=True, slots=True)
class Entry:
    """One plan of the set, and what it was made from. Sizes in bytes, both inclusive.

    `ends`: simulated at the least and at the most of its bytes (64 MiB at most), if at all.
    """

    low: int
    high: int
    candidate: Candidate | ExchangeCandidate
    program: Program
    text: str
    ends: Ends | None = None


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
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    in_switches: Fraction | None = None  # GB/s where switches copy and add, if that is more

    @property
    def sources(self) -> list[Forest | Routes]:
        """Each forest, or an all-to-all's routes, that a plan was made from, once."""
        sources: list[Forest | Routes] = []
        for plans in self.plans:
            for entry in plans.entries:
                if all(entry.candidate.origin is not source for source in sources):
                    sources.append(entry.candidate.origin)
        return sources
