"""Tiles of a plan's data between who makes them and who goes on with them: bars of a time line.

At every rank a producer finishes tile after tile, the plan sends each on its way as it is finished
(program/tiles.py), and a consumer takes them as they become final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forestcoll.program.tiles import tiles
from forestcoll.ui.view.subject import Subject
from forestcoll.verify.simulate import Span, Timing, produce

PHASES = ("producer", "in the plan", "consumer")


class Work(NamedTuple):
    """What goes on beside a plan: its `order` of tiles, and microseconds, None: the plan's own."""

    order: Sequence[int]
    producer: float | None = None
    consumer: float | None = None


class Overlap(NamedTuple):
    """The subject with tiles, its run behind the producer, and a bar for each phase of a tile.

    Of a bar `block` is the tile's place in the buffer, `step` its turn. `end`: of the last
    consumer, in microseconds. `said`: what is gained, in words.
    """

    subject: Subject
    timing: Timing
    bars: tuple[Span, ...]
    end: float
    said: str


def overlap(subject: Subject, size: int, work: Work) -> Overlap:
    """How `work` overlaps with a plan for `size` bytes. Raises what `tiles` and `calendar` do."""
    assert subject.program is not None
    order, alone = work.order, subject.simulate(size).time
    producer = alone if work.producer is None else work.producer
    consumer = alone if work.consumer is None else work.consumer
    subject = subject._replace(program=tiles(subject.program, order))
    dates, count = subject.calendar(size, produce(order, size, producer)), len(order)
    bars: list[Span] = []
    for rank, (inputs, outputs) in enumerate(zip(dates.inputs, dates.outputs, strict=True)):
        final = [0.0] * count
        for offset, length, us in outputs:  # in the order of time
            for place in range(offset * count // size, (offset + length - 1) * count // size + 1):
                final[place] = us
        free = 0.0
        starts = {}
        for place in sorted(order, key=final.__getitem__):
            starts[place] = max(free, final[place])
            free = starts[place] + consumer / count
        for turn, place in enumerate(order):
            begin, ready = (producer * (turn + k) / count for k in (0, 1))
            start = starts[place]
            spans = [(begin, ready)] if inputs else []
            spans += [(ready, final[place]), (start, start + consumer / count)] if outputs else []
            bars += [
                Span(rank, place, turn, *span, what)
                for span, what in zip(spans, PHASES if inputs else PHASES[1:], strict=False)
            ]
    end = max(dates.time, *(bar.end for bar in bars))
    said = (
        f"{count} tiles: {end:.6g} us; one after the other {producer + alone + consumer:.6g} "
        f"({producer:.6g} producer, {alone:.6g} plan, {consumer:.6g} consumer)"
    )
    return Overlap(subject, dates.timing, tuple(bars), end, said)
