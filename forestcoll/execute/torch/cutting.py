"""From a rank's rounds to steps with element offsets, for one size of the data.

Every piece is cut into `slices`; slice s goes through round r in step s + lead * r, so that a step
holds one slice of every round and all links are busy at once. With a `lead` of 2, two steps are
under way at a time. Sizes that do not divide give pieces of different length: nothing is padded,
and what would be empty is left out, at both ends alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
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


Ranges = dict[int, list[Range]]
"""By peer."""


class Message(NamedTuple):
    """All that goes from one rank to another in a step, in one piece."""

    peer: int
    ranges: tuple[Range, ...]
    length: int


class Sum(NamedTuple):
    """`target` = `first` op `second`, or a copy; `last`: the sum is now complete.

    `came`: `first` has just been received. `begin`: the target's first element, in its part.
    """

    target: Range
    first: Range
    second: Range | None
    last: bool
    came: bool
    begin: int


class Step(NamedTuple):
    """Messages to other ranks, from them, and what is added and copied when they are there."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    sums: tuple[Sum, ...]

    @property
    def ranges(self) -> Iterator[Range]:
        """All that it reads or writes."""
        for message in (*self.sends, *self.receives):
            yield from message.ranges
        for each in self.sums:
            yield from (r for r in (each.target, each.first, each.second) if r is not None)

    @property
    def elements_to_pack(self) -> int:
        """Elements of all messages that lie in several places."""
        both = (*self.sends, *self.receives)
        return sum(m.length for m in both if len(m.ranges) > 1)


class Job(NamedTuple):
    """One rank's steps for one size; counts in elements."""

    steps: tuple[Step, ...]
    lead: int
    scratch: int
    packed: int  # most of any step


Matrix = tuple[tuple[int, ...], ...]
"""Elements that each rank sends to each."""


class Cut(NamedTuple):
    """How the data is cut: `part` elements in each of `parts` parts (1, or one a rank).

    `sizes`: of an all-to-all whose blocks differ; `part` is then the largest buffer.
    """

    collective: Collective
    part: int
    parts: int
    units: int  # of dataflow.py, in all
    element: int  # bytes
    slices: int
    lead: int
    sizes: Matrix | None = None

    @property
    def align(self) -> int:
        """Elements that inner borders are multiples of."""
        return max(1, ALIGNMENT // self.element)

    def block(self, rank: int, spot: Spot) -> tuple[int, int]:
        """(elements of the part in which a piece at `rank` lies, where that begins in memory)."""
        part = spot.start * self.parts // self.units
        if self.sizes is None:
            is_ = self.collective
            short = is_.input_is_part if spot.memory is Memory.INPUT else is_.output_is_part
            return self.part, 0 if short else part * self.part
        if spot.memory is Memory.SCRATCH:
            return self.sizes[spot.source][part], 0
        line = self.sizes[rank]
        if spot.memory is Memory.OUTPUT:
            line = tuple(row[rank] for row in self.sizes)
        return line[part], sum(line[:part])

    def borders(self, rank: int, spot: Spot) -> tuple[int, ...]:
        """Where in its memory the slices of a piece begin, and the end of the last.

        In scratch from the begin of its part on, which is not kept.
        """
        (size, base), align, units = self.block(rank, spot), self.align, self.units // self.parts
        unit = spot.start % units
        low, high = (
            size if at == units else (at * size // units) // align * align
            for at in (unit, unit + spot.length)
        )
        inner = (low + (high - low) * number // self.slices for number in range(self.slices))
        return (*(base + max(low, at // align * align) for at in inner), base + high)


class Cutter:
    """Cuts a rank's rounds into steps."""

    def __init__(self, rounds: RankRounds, cut: Cut) -> None:
        self.rounds, self.cut = rounds, cut
        self.borders: dict[Spot, tuple[int, ...]] = {}
        self.slots: list[tuple[int, int, int]] = []  # (first element, width, slices held)
        widths = [0] * len(rounds.slots)
        for round_ in rounds.rounds:
            for spot in (*(x.spot for x in round_.receives), *(x.target for x in round_.locals)):
                if spot.memory is Memory.SCRATCH:
                    longest = max(high - low for low, high in pairwise(self.slices(spot)))
                    widths[spot.slot] = max(widths[spot.slot], longest)
        self.scratch = 0
        for slot, width in zip(rounds.slots, widths, strict=True):
            # Slice s + depth begins with the slot when slice s has left it.
            depth = min(cut.lead * (slot.last - slot.first + 1), cut.slices)
            width += -width % cut.align
            self.slots.append((self.scratch, width, depth))
            self.scratch += width * depth

    def slices(self, spot: Spot) -> tuple[int, ...]:
        if spot not in self.borders:
            self.borders[spot] = self.cut.borders(self.rounds.rank, spot)
        return self.borders[spot]

    def job(self) -> Job:
        cut, count = self.cut, len(self.rounds.rounds)
        steps = []
        if cut.part:
            steps = [self.step(t) for t in range(cut.slices + cut.lead * (count - 1))]
        packed = max((step.elements_to_pack for step in steps), default=0)
        return Job(tuple(steps), cut.lead, self.scratch, packed)

    def step(self, number: int) -> Step:
        sends: Ranges = {}
        receives: Ranges = {}
        sums: list[Sum] = []
        for r, round_ in enumerate(self.rounds.rounds):
            slice_ = number - self.cut.lead * r
            if not 0 <= slice_ < self.cut.slices:
                continue
            self.collect(sends, round_.sends, slice_)
            self.collect(receives, round_.receives, slice_)
            sums += [s for s in (self.sum(x, slice_) for x in round_.locals) if s.target.length]
        return Step(_messages(sends), _messages(receives), tuple(sums))

    def collect(self, ranges: Ranges, transfers: tuple[Transfer, ...], slice_: int) -> None:
        for peer, spot in transfers:
            piece = self.range(spot, slice_)
            if piece.length:
                ranges.setdefault(peer, []).append(piece)

    def sum(self, local: Local, slice_: int) -> Sum:
        second = None if local.second is None else self.range(local.second, slice_)
        target, first = self.range(local.target, slice_), self.range(local.first, slice_)
        begin = self.slices(local.target)[slice_]
        return Sum(target, first, second, local.last, local.came, begin)

    def range(self, spot: Spot, slice_: int) -> Range:
        low, high = self.slices(spot)[slice_ : slice_ + 2]
        if spot.memory is Memory.SCRATCH:
            first, width, depth = self.slots[spot.slot]
            low, high = first + slice_ % depth * width, first + slice_ % depth * width + high - low
        return Range(spot.memory, low, high - low)


def _messages(by_peer: Ranges) -> tuple[Message, ...]:
    return tuple(
        Message(peer, tuple(ranges), sum(r.length for r in ranges))
        for peer, ranges in sorted(by_peer.items())
    )
