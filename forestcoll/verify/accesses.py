"""Who used each atom last, and which events met there: the pairs whose order matters.

Accesses come in the order of the trace. A pair is noted where one of the two writes, and unless
their order is plain to see. Last writers and the readers since then are enough: an order of all
neighbours is an order of all.

Accesses of launches after the first are compared with those of the first only. (Two of them are the
same as two an equal number of launches earlier.) That leaves none unchecked as long as no atom is
used in the first launch after it was used in a later one, which is possible only where ranks are a
launch apart; `mixed` then says that the run has to be repeated with all of them compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from forestcoll.verify.trace import Trace

_FEW = 4  # arrows into an event that are looked at here; order.py knows all


class Accesses:
    """The accesses to all atoms of one mode."""

    __slots__ = ("_lists", "_readers", "_trace", "_used", "collisions", "mixed", "writer")

    def __init__(self, trace: Trace, size: int) -> None:
        self._trace = trace
        self.writer = [-1] * size  # last event that wrote an atom
        self._readers = [0] * size  # who read it since: index into _lists, 0 for nobody
        self._lists: list[tuple[int, int]] = [(-1, 0)]  # (event, index of the rest)
        self._used = bytearray(size)  # in a later launch than the first
        self.collisions: dict[tuple[int, int], int] = {}  # (event, later event) -> atom
        self.mixed = False

    def read(self, event: int, low: int, high: int) -> None:
        """`event` reads atoms [low, high)."""
        lists, readers = self._lists, self._readers
        if high - low == 1:
            if self._used[low]:
                self.mixed = True
            writer = self.writer[low]
            if writer >= 0:
                self._meet(writer, event, low)
            lists.append((event, readers[low]))
            readers[low] = len(lists) - 1
            return
        if any(self._used[low:high]):
            self.mixed = True
        self._meet_writers(event, low, high)
        longer: dict[int, int] = {}
        for x in range(low, high):
            rest = readers[x]
            if rest not in longer:
                longer[rest] = len(lists)
                lists.append((event, rest))
            readers[x] = longer[rest]

    def write(self, event: int, low: int, high: int) -> None:
        """`event` writes atoms [low, high)."""
        if any(self._used[low:high]):
            self.mixed = True
        self._meet_all(event, low, high)
        if high - low == 1:
            self.writer[low], self._readers[low] = event, 0
            return
        self.writer[low:high] = [event] * (high - low)
        self._readers[low:high] = [0] * (high - low)

    def read_later(self, event: int, low: int, high: int) -> None:
        """The same in a later launch than the first."""
        self._meet_writers(event, low, high)
        self._used[low:high] = b"\1" * (high - low)

    def write_later(self, event: int, low: int, high: int) -> None:
        """The same in a later launch than the first: for its own kind, nobody was here."""
        self._meet_all(event, low, high)
        self._used[low:high] = b"\1" * (high - low)
        if high - low == 1:
            self.writer[low], self._readers[low] = -1, 0
            return
        self.writer[low:high] = [-1] * (high - low)
        self._readers[low:high] = [0] * (high - low)

    def _meet_writers(self, event: int, low: int, high: int) -> None:
        if high - low == 1:
            if self.writer[low] >= 0:
                self._meet(self.writer[low], event, low)
            return
        for writer, x in _firsts(self.writer, low, high):
            if writer >= 0:
                self._meet(writer, event, x)

    def _meet_all(self, event: int, low: int, high: int) -> None:
        self._meet_writers(event, low, high)
        if high - low == 1:
            self._meet_readers(event, self._readers[low], low)
            return
        for at, x in _firsts(self._readers, low, high):
            self._meet_readers(event, at, x)

    def _meet_readers(self, event: int, at: int, atom: int) -> None:
        lists = self._lists
        while at:
            reader, at = lists[at]
            self._meet(reader, event, atom)

    def _meet(self, earlier: int, event: int, atom: int) -> None:
        """Note that the order of two events matters, unless it is plain to see."""
        trace = self._trace
        chain, prev = trace.chain, trace.prev
        own = chain[earlier]
        if own == chain[event] and (earlier <= prev[event] or earlier == event):
            return
        for other in trace.cross[event][:_FEW]:
            if own == chain[other] and (earlier == other or earlier <= prev[other]):
                return
        self.collisions.setdefault((earlier, event), atom)


def _firsts(table: list[int], low: int, high: int) -> Iterable[tuple[int, int]]:
    """Each entry of table[low:high] once, with the first index at which it stands."""
    backwards = reversed(range(low, high))  # so that the first index is what stays
    return {table[x]: x for x in backwards}.items()
