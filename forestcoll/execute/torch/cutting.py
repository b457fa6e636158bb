"""From a rank's rounds to steps with element offsets, for one size of the data.

Every piece is cut into `slices`; slice s goes through round r in step s + lead * r, so that a step
holds one slice of every round and all links are busy at once. With a `lead` of 2, two steps are
under way at a time. Sizes that do not divide give pieces of different length: nothing is padded,
and what would be empty is left out, at both ends alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forestcoll.execute.torch.rounds import Local, Memory, RankRounds, Spot, Transfer
from forestcoll.program import Collective

ALIGNMENT = 64
"""Bytes: pieces begin at multiples of this where the data is long enough."""


class Range(NamedTuple):
    """Elements [start, start + length) of a flat tensor."""

    memory: Memory
    start: int
    length: int


class Message(NamedTuple):
    """All that goes from one rank to another in a step, in one piece."""

    peer: int
    ranges: tuple[Range, ...]
    length: int


class Sum(NamedTuple):
    """`target` = `first` op `second`, or a copy; `last`: the sum is now complete."""

    target: Range
    first: Range
    second: Range | None
    last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Messages to other ranks, from them, and what is added and copied when they are there."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    sums: tuple[Sum, ...]

    @property
    def packed(self) -> int:
        """Elements of all messages that lie in several places."""
        both = (*self.sends, *self.receives)
        return sum(m.length for m in both if len(m.ranges) > 1)


@dataclass(frozen=True, slots=True)
class Job:
    """One rank's steps for one size; counts in elements."""

    steps: tuple[Step, ...]
    lead: int
    scratch: int
    packed: int  # most of any step


@dataclass(frozen=True, slots=True)
class Cut:
    """How the data is cut: `part` elements in each of `parts` parts (1, or one a rank)."""

    collective: Collective
    part: int
    parts: int
    units: int  # of dataflow.py, in all
    element: int  # bytes
    slices: int
    lead: int

    @property
    def align(self) -> int:
        """Elements that inner borders are multiples of."""
        return max(1, ALIGNMENT // self.element)

    def piece(self, spot: Spot) -> tuple[int, int, int]:
        """(part, first element in it, end) of a piece."""
        units = self.units // self.parts
        part, low = divmod(spot.start, units)
        return part, self._border(low, units), self._border(low + spot.length, units)

    def _border(self, unit: int, units: int) -> int:
        if unit == units:
            return self.part
        at = self.part * unit // units
        return at - at % self.align

    def borders(self, spot: Spot) -> tuple[int, tuple[int, ...]]:
        """(part, where in it the slices of a piece begin, and the end of the last)."""
        part, low, high = self.piece(spot)
        align, length = self.align, high - low
        inner = (low + length * number // self.slices for number in range(self.slices))
        return part, (*(max(low, at - at % align) for at in inner), high)

    def base(self, memory: Memory, part: int) -> int:
        """Where a part begins in the input or output."""
        is_ = self.collective
        short = is_.input_is_part if memory is Memory.INPUT else is_.output_is_part
        return 0 if short else part * self.part


def job(rounds: RankRounds, cut: Cut) -> Job:
    """The steps of a rank."""
    return _Cutter(rounds, cut).job()


class _Cutter:
    def __init__(self, rounds: RankRounds, cut: Cut) -> None:
        self.rounds, self.cut = rounds, cut
        self.slots: list[tuple[int, int, int]] = []  # (first element, width, slices held)
        self.scratch = 0
        self.borders: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}  # of pieces
        for slot in rounds.slots:
            # Slice s + depth begins with the slot when slice s has left it.
            depth = min(cut.lead * (slot.last - slot.first + 1), cut.slices)
            longest = -(-cut.part * slot.length * cut.parts // cut.units) + cut.align
            width = -(-longest // cut.slices) + cut.align
            width += -width % cut.align
            self.slots.append((self.scratch, width, depth))
            self.scratch += width * depth

    def job(self) -> Job:
        cut, count = self.cut, len(self.rounds.rounds)
        steps = []
        if cut.part:
            steps = [self.step(t) for t in range(cut.slices + cut.lead * (count - 1))]
        packed = max((step.packed for step in steps), default=0)
        return Job(tuple(steps), cut.lead, self.scratch, packed)

    def step(self, number: int) -> Step:
        sends: dict[int, list[Range]] = {}
        receives: dict[int, list[Range]] = {}
        sums: list[Sum] = []
        for r, round_ in enumerate(self.rounds.rounds):
            slice_ = number - self.cut.lead * r
            if not 0 <= slice_ < self.cut.slices:
                continue
            self.collect(sends, round_.sends, slice_)
            self.collect(receives, round_.receives, slice_)
            sums += [s for s in (self.sum(x, slice_) for x in round_.locals) if s.target.length]
        return Step(_messages(sends), _messages(receives), tuple(sums))

    def collect(
        self, found: dict[int, list[Range]], transfers: tuple[Transfer, ...], slice_: int
    ) -> None:
        for peer, spot in transfers:
            piece = self.range(spot, slice_)
            if piece.length:
                found.setdefault(peer, []).append(piece)

    def sum(self, local: Local, slice_: int) -> Sum:
        second = None if local.second is None else self.range(local.second, slice_)
        target, first = self.range(local.target, slice_), self.range(local.first, slice_)
        return Sum(target, first, second, local.last)

    def range(self, spot: Spot, slice_: int) -> Range:
        key = spot.start, spot.length
        if key not in self.borders:
            self.borders[key] = self.cut.borders(spot)
        part, borders = self.borders[key]
        low, high = borders[slice_], borders[slice_ + 1]
        if spot.memory is Memory.SCRATCH:
            first, width, depth = self.slots[spot.slot]
            return Range(spot.memory, first + slice_ % depth * width, high - low)
        return Range(spot.memory, self.cut.base(spot.memory, part) + low, high - low)


def _messages(found: dict[int, list[Range]]) -> tuple[Message, ...]:
    return tuple(
        Message(peer, tuple(ranges), sum(r.length for r in ranges))
        for peer, ranges in sorted(found.items())
    )
