"""What a program does to its data, without buffers, thread blocks or channels.

`dataflow` replays a verified program symbolically (replay.cpp) and writes down every move from rank
to rank and every sum. Two values of one rank that hold the same ranks' contributions to the same
part of the data are one value: copies, scratch and what nobody reads in the end vanish. This is all
that an engine needs that has a transport of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forestcoll.program import Collective, Program
from forestcoll.program.chunks import count_chunks
from forestcoll.verify import _machine
from forestcoll.verify.check import Verified, scale_of, verify
from forestcoll.verify.columns import columns_of, shape_of


@dataclass(frozen=True, slots=True)
class Value:
    """A part of the data as rank `rank` has it at some time, added up over some ranks.

    `start` and `length` in units of 1 / `Dataflow.units` of the collective's whole data. What it is
    made from, as indices of earlier values: nothing (the rank's own input), one (the same value at
    another rank, moved here), or two (of this rank, added).
    """

    rank: int
    start: int
    length: int
    made_from: tuple[int, ...] = ()
    complete: bool = False  # the sum over all ranks


@dataclass(frozen=True, slots=True)
class Dataflow:
    """All values that the result needs, each after those that it is made from.

    `outputs[r]` lists the values that make up rank r's output; none where the collective leaves it
    open. `parts`: of the data, equal ones; no value crosses from part to part. `reordered`: some
    value came to be twice at its rank, added up in two orders, of which it has the first.
    `in_switches`: a switch adds up. `completions`: instructions that add up what is then the sum
    over all ranks: place, start and length, of each in the order of its operands. `grain`:
    units of a chunk.
    """

    collective: Collective
    ranks: int
    root: int
    units: int
    parts: int
    values: tuple[Value, ...]
    outputs: tuple[tuple[int, ...], ...]
    verified: Verified
    reordered: bool
    in_switches: bool
    completions: Sequence[tuple[_machine.Place, int, int]]
    grain: int

    def moves(self) -> list[tuple[int, int]]:
        """(value at the sender, value at the receiver) of every transfer between ranks."""
        return [(v.made_from[0], k) for k, v in enumerate(self.values) if len(v.made_from) == 1]


def dataflow(program: Program, verified: Verified | None = None) -> Dataflow:
    """The dataflow of `program`, which is verified first, unless `verified` says what was proven.

    PlanError says where it is wrong.

    Raises UnsupportedError where the program is larger than `verify` handles.
    """
    verified = verified or verify(program)
    sizes = count_chunks(program)
    # One round stands for all rounds of a pipeline, and one launch for all: they do the same.
    grain, _ = scale_of(program, sizes, rounds=1, launches=1)
    shape = shape_of(program, sizes, grain)
    run = _machine.note_values(columns_of(program), shape, not program.out_of_place, verified.root)
    noted, outputs = run["values"], run["outputs"]
    used = bytearray(len(noted))
    for k in (k for output in outputs for k in output):
        used[k] = 1
    for k in reversed(range(len(noted))):
        if used[k]:
            for source in _sources(noted[k]):
                used[source] = 1
    number: dict[int, int] = {}
    values = []
    for k, entry in enumerate(noted):
        if used[k]:
            number[k] = len(number)
            rank, start, length, _, _, complete = entry
            made_from = tuple([number[source] for source in _sources(entry)])
            values.append(Value(rank, start, length, made_from, complete))
    return Dataflow(
        collective=program.collective,
        ranks=sizes.ranks,
        root=verified.root,
        units=sizes.total * grain,
        parts=sizes.parts,
        values=tuple(values),
        outputs=tuple(tuple([number[k] for k in output]) for output in outputs),
        verified=verified,
        reordered=run["reordered"],
        in_switches=program.in_switches,
        completions=run["completed"],
        grain=grain,
    )


def _sources(entry: tuple[int, int, int, int, int, bool]) -> tuple[int, ...]:
    return tuple([source for source in entry[3:5] if source >= 0])


def levels(flow: Dataflow) -> list[int]:
    """For each value the round (from 0) whose transfers or sums make it; -1: it is an input."""
    rounds: list[int] = []
    for value in flow.values:
        latest = max((rounds[k] for k in value.made_from), default=-1)
        rounds.append(latest + 1 if len(value.made_from) == 1 else latest)
    return rounds
