"""Perfetto traces (TrackEvent) of a simulated run: ui.perfetto.dev opens them.

A process per rank, with a track for each thread block (its proxy, or the trees of a forest alone)
and one of arrivals; an arrow from each transfer to where it arrives; a counter for each of the
busiest links. Format: google/perfetto, protos/perfetto/trace (track_event.proto,
track_descriptor.proto).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from forestcoll.ui.export import Files, Settings
from forestcoll.ui.export.protobuf import data, double, fixed64, number, text
from forestcoll.ui.view import Subject
from forestcoll.ui.view.timeline import Row, assign_rows, name_row, rates
from forestcoll.verify.simulate import Span, Timing

COUNTERS = 256
"""Links that have a counter at most."""
SEQUENCE = 1
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""TrackEvent.Type."""
EXPLICIT = 3
"""TrackDescriptor.ChildTracksOrdering."""
NOTES = ("step", "bytes", "from", "to")
"""What is noted of a slice; interned."""


def perfetto(subject: Subject, settings: Settings) -> Files:
    """The one file."""
    timing = subject.simulate(settings.size, options=settings.options, pieces=settings.pieces)
    writer = _Writer(subject, timing)
    return {f"{subject.stem}.perfetto-trace": b"".join(writer.packets())}


def _packet(body: bytes) -> bytes:
    return data(1, body + number(10, SEQUENCE))


class _Writer:
    def __init__(self, subject: Subject, timing: Timing) -> None:
        self.timing, self.trees = timing, subject.program is None
        graph = subject.graph()
        self.names = [graph.names[node] for node in graph.ranks]
        self.rank = {name: rank for rank, name in enumerate(self.names)}
        words = sorted({span.what for span in timing.timeline})
        self.words = {name: i for i, name in enumerate(words, 1)}
        self.flow = 0
        self.tracks = 0
        self.arrivals: dict[int, list[tuple[Span, int]]] = {}

    def packets(self) -> Iterator[bytes]:
        """Descriptors before the events of their tracks."""
        names = b"".join(data(2, number(1, i) + text(2, name)) for name, i in self.words.items())
        notes = b"".join(data(3, number(1, i) + text(2, n)) for i, n in enumerate(NOTES, 1))
        yield _packet(number(13, 1) + data(12, names + notes))
        for rank, name in enumerate(self.names):  # the processes: their tracks are the first
            body = number(1, rank + 1) + text(6, f"rank {rank} ({name})")
            yield self._descriptor(self._new_track(), data(3, body) + number(11, EXPLICIT))
        for row, entries in groupby(assign_rows(self.timing), key=lambda entry: entry[0]):
            yield from self._row(row, [span for _, span in entries])
        for rank, arrivals in sorted(self.arrivals.items()):
            track = self._new_track()
            yield self._descriptor(track, number(5, 1 + rank) + text(2, "arrivals") + number(12, 0))
            for span, flow in sorted(arrivals, key=lambda entry: (entry[0].end, entry[1])):
                source = self.timing.links[span.links[0]].src
                body = text(23, f"from {source}") + fixed64(48, flow)
                yield self._event(span.end, INSTANT, track, body)
        yield from self._counters()

    def _new_track(self) -> int:
        self.tracks += 1
        return self.tracks

    def _descriptor(self, track: int, body: bytes) -> bytes:
        return _packet(data(60, number(1, track) + body))

    def _event(self, time: float, kind: int, track: int, body: bytes = b"") -> bytes:
        event = number(9, kind) + number(11, track) + body
        return _packet(number(8, round(1000 * time)) + number(13, 2) + data(11, event))

    def _row(self, row: Row, spans: list[Span]) -> Iterator[bytes]:
        track = self._new_track()
        order = 2 * max(0, row.block + 1) + row.proxy
        head = text(2, name_row(row, trees=self.trees)) + number(12, order)
        yield self._descriptor(track, number(5, 1 + row.rank) + head)
        for span in spans:
            body = number(10, self.words[span.what]) + self._notes(span)
            target = self.timing.links[span.links[-1]].dst if span.links else None
            if target in self.rank:
                self.flow += 1
                body += fixed64(47, self.flow)
                self.arrivals.setdefault(self.rank[target], []).append((span, self.flow))
            yield self._event(span.start, BEGIN, track, body)
            yield self._event(span.end, END, track)

    def _notes(self, span: Span) -> bytes:
        notes = data(4, number(1, 1) + number(3, span.step))
        if span.links:
            source, target = (self.timing.links[link] for link in (span.links[0], span.links[-1]))
            notes += data(4, number(1, 2) + double(5, span.bytes))
            notes += data(4, number(1, 3) + text(6, source.src))
            notes += data(4, number(1, 4) + text(6, target.dst))
        return notes

    def _counters(self) -> Iterator[bytes]:
        uses = self.timing.links
        busiest = sorted(range(len(uses)), key=lambda e: (-uses[e].utilisation, e))[:COUNTERS]
        parent = self._new_track()
        yield self._descriptor(parent, text(2, "links"))
        loads = rates(self.timing.timeline, len(uses))
        for link in busiest:
            if not loads[link]:
                continue
            track = self._new_track()
            name = text(2, f"{uses[link].src} -> {uses[link].dst}")
            yield self._descriptor(track, number(5, parent) + name + data(8, text(6, "GB/s")))
            for time, rate in loads[link]:
                yield self._event(time, COUNTER, track, double(44, rate))
