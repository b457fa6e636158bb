"""What one rank sends, receives and adds, round by round, and where it keeps it.

Round r holds the transfers whose data is there after round r - 1. Transfers of a round need
nothing of each other, so a process group can do them all at once; sums and copies come after them.
Any piece of the data goes through the rounds by itself: the engine cuts pieces into slices and lets
slice after slice follow (engine.py).

Values live in the caller's input and output where they can, else in scratch slots that are given to
one value after another. Nothing here knows sizes in bytes, or torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from forestcoll.verify.dataflow import Dataflow, Value


class Memory(IntEnum):
    """Where a rank keeps a value."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Spot(NamedTuple):
    """Where a rank keeps a piece [start, start + length) of the data.

    `slot`: of SCRATCH. There, `source` says at which rank an all-to-all's piece began; in the
    output `start` does.
    """

    memory: Memory
    start: int
    length: int
    slot: int = -1
    source: int = -1


class Transfer(NamedTuple):
    """One piece to or from `peer`."""

    peer: int
    spot: Spot


class Local(NamedTuple):
    """`target` = `first` op `second`, or a copy of `first`; `last`: the sum is now complete.

    `came`: `first` has just been received.
    """

    target: Spot
    first: Spot
    second: Spot | None = None
    last: bool = False
    came: bool = False


class Round(NamedTuple):
    """Transfers between two ranks are in the same order at both."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]
    locals: tuple[Local, ...]


class Slot(NamedTuple):
    """Scratch for one piece at a time, in use from round `first` to round `last`."""

    first: int
    last: int


class RankRounds(NamedTuple):
    """All that one rank does; every rank of a plan has the same number of rounds."""

    rank: int
    rounds: tuple[Round, ...]
    slots: tuple[Slot, ...]


_Time = tuple[int, int]  # (round, moment); transfers last from moment 0 to 1, sums, copies follow
_SENT = 1
_FIRST_SUM = 2


@dataclass(slots=True)
class _Life:
    """A value at this rank: from when to when it is needed, and where it is."""

    born: _Time
    dies: _Time
    spot: Spot | None = None


class Planner:
    """Plans the rounds of `rank`. In place, input and output overlap as NCCL defines it."""

    def __init__(self, flow: Dataflow, level: list[int], rank: int, in_place: bool) -> None:
        self.flow, self.level, self.rank, self.in_place = flow, level, rank, in_place
        self.count = max(1, 1 + max(level, default=-1))
        self.sends: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (peer, value), by round
        self.receives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.sums: dict[int, list[int]] = defaultdict(list)
        self.copies: dict[int, list[int]] = defaultdict(list)
        self.lives: dict[int, _Life] = {}
        self.sources: list[int] = []  # of an all-to-all's values: the ranks where they began
        self.slots: list[Slot] = []
        self.places: dict[int, int] = {}  # of the output's values: where they begin in it

    def plan(self) -> RankRounds:
        for k, value in enumerate(self.flow.values):
            if self.flow.collective.transposes:
                made_from = value.made_from
                self.sources.append(self.sources[made_from[0]] if made_from else value.rank)
            if value.rank == self.rank:
                self._note(k, value)
            elif len(value.made_from) == 1 and value.made_from[0] in self.lives:
                source, number = value.made_from[0], self.level[k]
                self.sends[number].append((value.rank, source))
                self._use(source, (number, _SENT))
        for number, sums in self.sums.items():
            for i, k in enumerate(sums):
                for source in self.flow.values[k].made_from:
                    self._use(source, (number, _FIRST_SUM + i))
        self._settle_outputs()
        self._give_slots()
        rounds = tuple(map(self._round, range(self.count)))
        return RankRounds(self.rank, rounds, tuple(self.slots))

    def _note(self, k: int, value: Value) -> None:
        number, born = self.level[k], (-1, 0)
        spot = Spot(Memory.INPUT, value.start, value.length)
        if len(value.made_from) == 1:
            born = (number, 0)
            self.receives[number].append((self.flow.values[value.made_from[0]].rank, k))
        elif value.made_from:
            born = (number, _FIRST_SUM + len(self.sums[number]))
            self.sums[number].append(k)
        self.lives[k] = _Life(born, born, None if value.made_from else spot)

    def _use(self, k: int, when: _Time) -> None:
        life = self.lives[k]
        life.dies = max(life.dies, when)

    def _settle_outputs(self) -> None:
        """Make values where the caller wants them, or copy them there as soon as it is free."""
        values = self.flow.values
        inputs = {values[k].start: x for k, x in self.lives.items() if not values[k].made_from}
        end = 0
        for k in self.flow.outputs[self.rank]:
            life, value = self.lives[k], values[k]
            self.places[k] = end if self.flow.collective.transposes else value.start
            end += value.length
            if not value.made_from:
                if not self.in_place:
                    self.copies[0].append(k)
                continue
            before = inputs.get(self.places[k]) if self.in_place else None
            if before is None or before.dies <= life.born:
                life.spot = Spot(Memory.OUTPUT, self.places[k], value.length)
                continue
            number = max(before.dies[0], life.born[0])
            self.copies[number].append(k)
            self._use(k, (number, _FIRST_SUM + len(self.sums[number])))

    def _give_slots(self) -> None:
        """Scratch for all that has no place yet; values of one length may follow each other."""
        free: dict[int, list[tuple[_Time, int]]] = {}  # by length: since when, slot
        homeless = [(x.born, k) for k, x in self.lives.items() if x.spot is None]
        for born, k in sorted(homeless):
            life, value = self.lives[k], self.flow.values[k]
            slots = free.setdefault(value.length, [])
            fitting = [entry for entry in slots if entry[0] <= born]
            if fitting:
                entry = max(fitting)  # the one that is still in the caches
                slots.remove(entry)
                slot = entry[1]
                self.slots[slot] = self.slots[slot]._replace(last=life.dies[0])
            else:
                slot = len(self.slots)
                self.slots.append(Slot(born[0], life.dies[0]))
            slots.append((life.dies, slot))
            source = self.sources[k] if self.sources else -1
            life.spot = Spot(Memory.SCRATCH, value.start, value.length, slot, source)

    def _spot(self, k: int) -> Spot:
        spot = self.lives[k].spot
        assert spot is not None  # _give_slots left none without
        return spot

    def _round(self, number: int) -> Round:
        values = self.flow.values
        locals_ = []
        for k in self.sums[number]:
            first, second = map(self._spot, values[k].made_from)
            came = len(values[values[k].made_from[0]].made_from) == 1
            locals_.append(Local(self._spot(k), first, second, values[k].complete, came))
        for k in self.copies[number]:
            target = Spot(Memory.OUTPUT, self.places[k], values[k].length)
            locals_.append(Local(target, self._spot(k)))
        return Round(
            tuple(Transfer(peer, self._spot(k)) for peer, k in self.sends[number]),
            tuple(Transfer(peer, self._spot(k)) for peer, k in self.receives[number]),
            tuple(locals_),
        )
