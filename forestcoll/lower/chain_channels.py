"""Channels of the chains of a fused program, and which of their ends share a thread block.

A thread block has one incoming and one outgoing connection, both on one channel. So a chain can be
handed on at a rank only where the thread block that receives it is the one that sends to the next
rank; where another chain has married one of the two to somebody else, the chain is cut: one thread
block stores what arrives, another sends it. More channels mean fewer cuts and more thread blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from forestcoll.lower.chains import Chain, Need, Place, joined
from forestcoll.lower.writer import Port, Ports
from forestcoll.program.targets import Target


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a chain that is not cut, on its channel."""

    chain: Chain
    channel: int

    @property
    def ports(self) -> Iterator[tuple[Port, Port]]:
        """Sending and receiving end of each connection."""
        for a, b in pairwise(self.chain.stops):
            yield (
                Port(a.rank, True, b.rank, self.channel),
                Port(b.rank, False, a.rank, self.channel),
            )

    def cut(self, at: int) -> tuple[Segment, Segment]:
        """What comes before the stop `at`, which then keeps all, and what comes after."""
        stops = self.chain.stops
        start = replace(stops[at], src=stops[at].keep, keep=None, stored=False, parity=-1)
        first = replace(self.chain, stops=stops[: at + 1])
        rest = replace(self.chain, stops=(start, *stops[at + 1 :]))
        return Segment(first, self.channel), Segment(rest, self.channel)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The segments, each with the chain and the stop it begins with; thread blocks per rank."""

    segments: tuple[Segment, ...]
    starts: tuple[Place, ...]
    blocks: tuple[tuple[Ports, ...], ...]

    @property
    def most(self) -> int:
        """Thread blocks of the rank that has most."""
        return max(map(len, self.blocks))


class Wirer:
    """Gives chains their channels, one after the other.

    `width` channels for each instance; no thread block gets more than `most` steps, as far as they
    are known before dependencies are.
    """

    def __init__(self, n: int, width: int, most: int, target: Target) -> None:
        self.n, self.width, self.most, self.target = n, width, most, target
        self._onward: dict[Port, Port] = {}  # receiving end -> sending end of its thread block
        self._inward: dict[Port, Port] = {}
        self._load: Counter[Port] = Counter()
        self._fused: Counter[Port] = Counter()  # by receiving end
        self._room: Counter[tuple[int, bool, int]] = Counter()  # thread blocks there are
        self._segments: list[tuple[Place, Segment]] = []

    def wire(self, chains: list[Chain]) -> Wiring | None:
        """None where a connection finds no channel with room."""
        for c in _by_use(chains):
            for low, segment in _of_one_parity(chains[c]):
                if not self._place((c, low), segment):
                    return None
        self._segments.sort(key=lambda item: item[0])
        return Wiring(
            tuple(s for _, s in self._segments), tuple(p for p, _ in self._segments), self._blocks()
        )

    def _place(self, start: Place, chain: Chain) -> bool:
        parity = max(s.parity for s in chain.stops[1:])
        first = chain.instance * self.width
        best: tuple[int, int, int] | None = None
        cuts: list[int] = []
        for channel in range(first, first + self.width):
            if parity in (-1, channel % 2):
                judged = self._judge(Segment(chain, channel))
                if judged is not None:
                    price = (len(judged[0]), judged[1], channel)
                    if best is None or price < best:
                        best, cuts = price, judged[0]
        if best is None:
            return False
        rest, done = Segment(chain, best[2]), 0
        for at in cuts:
            head, rest = rest.cut(at - done)
            self._take((start[0], start[1] + done), head)
            done = at
        self._take((start[0], start[1] + done), rest)
        return True

    def _judge(self, segment: Segment) -> tuple[list[int], int] | None:
        """Where the segment would have to be cut, and the longest thread block on its way.

        None where a connection has no room on this channel.
        """
        new: Counter[tuple[int, bool, int]] = Counter()
        extra: Counter[Port] = Counter()
        longest = 0
        ends = list(segment.ports)
        for port in (port for pair in ends for port in pair):
            extra[port] += 1
            if not self._load[port] and extra[port] == 1:
                place = (port.rank, port.sends, port.channel)
                new[place] += 1
                if self._room[place] + new[place] > self.target.channel_blocks:
                    return None
            load = self._length(port) + extra[port]
            if load > self.most:
                return None
            longest = max(longest, load)
        cuts = []
        married: dict[Port, Port] = {}
        for at in range(1, len(ends)):
            into, out = ends[at - 1][1], ends[at][0]
            fits = (
                self._onward.get(into, out) == out
                and self._inward.get(out, into) == into
                and married.get(into, out) == out
                and married.get(out, into) == into
            )
            if fits and into not in self._onward:
                fits = self._load[into] + self._load[out] + 1 <= self.most
            if fits:
                married |= {into: out, out: into}
            else:
                cuts.append(at)
        return cuts, longest

    def _length(self, port: Port) -> int:
        """Steps of the thread block that has the port."""
        into = self._inward.get(port, port) if port.sends else port
        out = self._onward.get(into)
        if out is None:
            return self._load[port]
        return self._load[into] + self._load[out] - self._fused[into]

    def _take(self, start: Place, segment: Segment) -> None:
        ends = list(segment.ports)
        for port in (port for pair in ends for port in pair):
            if not self._load[port]:
                self._room[port.rank, port.sends, port.channel] += 1
            self._load[port] += 1
        for at in range(1, len(ends)):
            into, out = ends[at - 1][1], ends[at][0]
            self._onward[into] = out
            self._inward[out] = into
            self._fused[into] += 1
        self._segments.append((start, segment))

    def _blocks(self) -> tuple[tuple[Ports, ...], ...]:
        """Per rank its thread blocks, those that receive first: they are what others wait for."""
        blocks: list[list[Ports]] = [[] for _ in range(self.n)]
        for port in sorted(self._load):
            if port in self._onward:
                blocks[port.rank].append((port, self._onward[port]))
            elif port not in self._inward:
                blocks[port.rank].append((port,))
        return tuple(map(tuple, blocks))


def _by_use(chains: list[Chain]) -> list[int]:
    """The chains, those first whose ways through ranks are the ones most used."""
    uses: Counter[tuple[int, int, int, int]] = Counter()

    def ways(chain: Chain) -> Iterator[tuple[int, int, int, int]]:
        ranks = [stop.rank for stop in chain.stops]
        for way in zip(ranks, ranks[1:], ranks[2:], strict=False):
            yield (chain.instance, *way)

    for chain in chains:
        uses.update(ways(chain))
    worth = [sum(uses[way] for way in ways(chain)) for chain in chains]
    return sorted(range(len(chains)), key=lambda c: (-worth[c], c))


def _of_one_parity(chain: Chain) -> Iterator[tuple[int, Chain]]:
    """The parts of a chain that one channel can carry, each with the stop that it begins with."""
    rest, done, parity = Segment(chain, 0), 0, -1
    for at, stop in enumerate(chain.stops):
        if stop.parity >= 0 and parity not in (-1, stop.parity):
            head, rest = rest.cut(at - 1 - done)
            yield done, head.chain
            done, parity = at - 1, -1
        parity = max(parity, stop.parity)
    yield done, rest.chain


def without_repeats(wiring: Wiring) -> Wiring:
    """The same with segments cut that come to a thread block twice.

    Such a thread block would have to finish its first step before it takes the message again, and
    could not where the message is cut into more pieces than the connections on the way round hold.
    """
    number = {
        port: (rank, b)
        for rank, blocks in enumerate(wiring.blocks)
        for b, ports in enumerate(blocks)
        for port in ports
    }
    segments: list[Segment] = []
    starts: list[Place] = []
    for (chain, start), segment in zip(wiring.starts, wiring.segments, strict=True):
        done, rest = 0, segment
        while (at := _first_repeat(rest, number)) is not None:
            head, rest = rest.cut(at)
            segments.append(head)
            starts.append((chain, start + done))
            done += at
        segments.append(rest)
        starts.append((chain, start + done))
    return replace(wiring, segments=tuple(segments), starts=tuple(starts))


def _first_repeat(segment: Segment, number: dict[Port, tuple[int, int]]) -> int | None:
    """Where to cut a segment that comes to a thread block twice, or None where none does."""
    ends = list(segment.ports)
    visits = [number[ends[0][0]], *(number[into] for _, into in ends)]
    seen: dict[tuple[int, int], int] = {}
    for at, block in enumerate(visits):
        if block in seen:
            between = range(seen[block] + 1, at)
            stops = segment.chain.stops
            # where a sum is complete it is stored anyway
            return next((i for i in between if stops[i].src is not None), at - 1)
        seen[block] = at
    return None


def joined_segments(
    wiring: Wiring, needs: list[Need], most: int
) -> tuple[list[Segment], list[Need]]:
    """The segments, where cuts have made neighbours alike as one, and what they need."""
    chains, found, channels = joined(
        [segment.chain for segment in wiring.segments],
        _needs_of(wiring, needs),
        most,
        [segment.channel for segment in wiring.segments],
    )
    return [Segment(*pair) for pair in zip(chains, channels, strict=True)], found


def _needs_of(wiring: Wiring, needs: list[Need]) -> list[Need]:
    """The chains' needs as the segments', and every segment's of the one before it."""
    first: dict[int, list[int]] = {}
    for number, (chain, _) in enumerate(wiring.starts):
        first.setdefault(chain, []).append(number)

    def segment(place: Place) -> Place:
        """What arrives at a stop is with the segment that ends there, if one does."""
        chain, stop = place
        numbers = first[chain]
        found = numbers[0]
        for number in numbers:
            if wiring.starts[number][1] < stop:
                found = number
        return found, stop - wiring.starts[found][1]

    result = {(segment(a), segment(b)) for a, b in needs}
    for numbers in first.values():
        for a, b in pairwise(numbers):
            result.add(((a, wiring.segments[a].chain.hops), (b, 0)))
    return sorted(result)
