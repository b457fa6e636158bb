"""Whether one event of a trace is certain to come after another."""

from __future__ import annotations

from collections.abc import Iterable

from forestcoll.verify.trace import Trace

_BATCH = 2048

Pair = tuple[int, int]


def unordered(trace: Trace, pairs: Iterable[Pair]) -> list[Pair]:
    """Those of the `pairs` (a, b), a < b, where no chain of arrows leads from a to b."""
    return _search(trace, _Plain(trace).sift(pairs))


class _Chain:
    """What is known of a chain so far.

    `known[c]`: its next events come after all of chain c up to this event. `waits`: its events that
    came after others, but that its next events need not come after yet. `loose`: its last event
    that all before it in the chain lead to, and those since.
    """

    __slots__ = ("known", "loose", "waits")

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.waits: list[int] = []
        self.loose: list[int] = []


class _Plain:
    """Orders that are plain to see: from what a chain has waited for itself.

    One sweep over the trace keeps, for each chain, up to which event of every other chain its next
    events come after. Only what an event waits for directly is handed on, except by a rank's
    caller, who knows all that the rank's thread blocks did. Most pairs are settled so.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.chains: dict[int, _Chain] = {}
        self.top: list[int] = []  # per event: it and its chain's events up to this are before it

    def sift(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that are not plain."""
        firsts: dict[int, list[int]] = {}
        for a, b in pairs:
            firsts.setdefault(b, []).append(a)
        found = []
        for event in range(max(firsts, default=-1) + 1):
            state = self._arrive(event)
            if event in firsts:
                earlier = self._without_known(state, event, firsts[event])
                found += [(a, event) for a in earlier]
        return found

    def _arrive(self, event: int) -> _Chain:
        """The event's chain, with all that the event comes after as a part of it."""
        trace = self.trace
        chain, prev, cross = trace.chain[event], trace.prev[event], trace.cross[event]
        state = self.chains.get(chain)
        if state is None:
            state = self.chains[chain] = _Chain()
        waits, loose = state.waits, state.loose
        while waits and waits[0] <= prev:
            for other in trace.cross[waits.pop(0)]:
                self._learn(state, other)
        if prev >= 0 and trace.chain[prev] != chain:
            self._learn(state, prev)
        while loose and loose[0] <= prev:
            del loose[0]
        if not loose or (len(cross) >= len(loose) and set(loose) <= set(cross)):
            self.top.append(event)
            state.loose = [event]
        else:
            self.top.append(prev)
            loose.append(event)
        if cross:
            if trace.block[event] >= 0:
                waits.append(event)
            else:
                for other in cross:
                    self._inherit(state, self.chains[trace.chain[other]])
        return state

    def _learn(self, state: _Chain, event: int) -> None:
        """From now on, events of the chain come after `event`."""
        trace = self.trace
        self._note(state, event)
        if trace.chain[event] < ~trace.code.program.n:  # a put by somebody else
            for other in (trace.prev[event], *trace.cross[event]):
                if other >= 0:
                    self._note(state, other)

    def _note(self, state: _Chain, event: int) -> None:
        chain, top = self.trace.chain[event], self.top[event]
        if top > state.known.get(chain, -1):
            state.known[chain] = top

    def _inherit(self, caller: _Chain, block: _Chain) -> None:
        """A caller's events come after all that a thread block of the rank has done so far."""
        for event in block.waits:
            for before in self.trace.cross[event]:
                self._learn(block, before)
        block.waits.clear()
        for chain, event in block.known.items():
            if event > caller.known.get(chain, -1):
                caller.known[chain] = event

    def _without_known(self, state: _Chain, event: int, earlier: list[int]) -> list[int]:
        """Those of the `earlier` events that `event` does not plainly come after."""
        trace = self.trace
        prev, cross = trace.prev[event], set(trace.cross[event])
        known = {trace.chain[event]: prev}
        for other in cross:
            chain = trace.chain[other]
            known[chain] = max(self.top[other], known.get(chain, -1))
        return [
            a
            for a in earlier
            if a != prev
            and a not in cross
            and a > known.get(trace.chain[a], -1)
            and a > state.known.get(trace.chain[a], -1)
            and not self._ended(state, a)
        ]

    def _ended(self, state: _Chain, a: int) -> bool:
        """Whether the chain knows of the end of a launch in which a thread block did `a`."""
        trace = self.trace
        if trace.chain[a] < 0:
            return False
        caller = state.known.get(~trace.code.rank[trace.chain[a]], -1)
        return caller >= 0 and trace.line[caller] > trace.launch(a)


def _search(trace: Trace, pairs: Iterable[Pair]) -> list[Pair]:
    """Those of the pairs where no chain of arrows leads from the one to the other.

    Takes the first events of the pairs in batches; one sweep over the trace hands on, for each
    event, the set of those that lead to it (one bit each of an integer).
    """
    by_first: dict[int, list[int]] = {}
    for a, b in pairs:
        by_first.setdefault(a, []).append(b)
    firsts = sorted(by_first)
    found: list[Pair] = []
    for start in range(0, len(firsts), _BATCH):
        batch = firsts[start : start + _BATCH]
        bits = {a: 1 << i for i, a in enumerate(batch)}
        low, high = batch[0], max(max(by_first[a]) for a in batch)
        reach = _sweep(trace, bits, low, high)
        for a in batch:
            found += [(a, b) for b in by_first[a] if not reach[b - low] & bits[a]]
    return found


def _sweep(trace: Trace, bits: dict[int, int], low: int, high: int) -> list[int]:
    """For each event from `low` to `high`: the union of `bits` of it and of all that lead to it."""
    prev, cross = trace.prev, trace.cross
    reach: list[int] = []
    for e in range(low, high + 1):
        p = prev[e]
        mask = reach[p - low] if p >= low else 0
        for c in cross[e]:
            if c >= low:
                mask |= reach[c - low]
        if e in bits:
            mask |= bits[e]
        reach.append(mask)
    return reach
