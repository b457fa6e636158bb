"""What each link carries, from rates between pairs of GPUs.

A pair's data takes the shortest ways through switches. The layers of these ways (all links at one
distance from the sender) are cuts; the narrowest at nominal rates is what limits the pair, and what
was measured over that is a ratio for each link in it. A link's ratio is the median over the pairs
that it limits, so that single slow pairs change nothing; a slow GPU or cable is slow for all pairs
that use it. Links of one class (names that differ in numbers alone, one nominal rate) within
`tolerance` of the class's median get the median: noise would cost the fabric its symmetry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Topology
from forestcoll.topology.calibrate.calls import Measured, Pair

Arc = tuple[str, str]
Class = tuple[str, str, Fraction]

ODD = 0.15
"""A pair that is off by more than this part of what its links explain is told of."""


class ClassFit(NamedTuple):
    """Links of one class, each direction by itself: GB/s, nominal and measured (the median)."""

    name: str  # "gpu* -> nvswitch"
    links: int
    measured_links: int
    nominal: Fraction
    measured: Fraction
    latency: Fraction | None  # us
    slow: tuple[tuple[Arc, Fraction], ...]  # links off the median, with theirs


class Odd(NamedTuple):
    """A pair of GPUs whose rate its links do not explain."""

    src: str
    dst: str
    measured: float
    expected: float


@dataclass(slots=True)
class Calibration:
    """The topology at measured rates, and how it came about."""

    topology: Topology
    classes: list[ClassFit]
    odd: list[Odd] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def calibrate(topology: Topology, measured: Measured, tolerance: float = 0.05) -> Calibration:
    """`topology` with links at what `measured` shows; links without a sample take their class's.

    Measured rank i is the topology's rank i; fewer ranks than GPUs are the first ones. Raises
    `TopologyError` where there are more, or where no measured pair has a way over the links.
    """
    if measured.ranks > len(topology.gpus):
        raise TopologyError(
            f"{measured.tool} measured {measured.ranks} GPUs, topology '{topology.name}' has "
            f"{len(topology.gpus)}"
        )
    return _Fit(topology, measured, tolerance).run()


class _Fit:
    def __init__(self, topology: Topology, measured: Measured, tolerance: float) -> None:
        self.topology, self.measured, self.tolerance = topology, measured, tolerance
        self.nominal = topology.rates()
        self.late = topology.latencies()
        self.class_of: dict[Arc, Class] = {a: _class(a, rate) for a, rate in self.nominal.items()}

    def run(self) -> Calibration:
        measured, gpus, ways = self.measured, self.topology.gpus, _Ways(self.topology)
        self.layers = {
            pair: ways.layers(gpus[pair[0]], gpus[pair[1]])
            for pair in {**measured.rates, **measured.latencies}
        }
        lost = [pair for pair in measured.rates if not self.layers[pair]]
        if len(lost) == len(measured.rates):
            raise TopologyError(
                f"no measured pair has a way over the links of '{self.topology.name}' without "
                "other GPUs between: is it the same machine?"
            )
        self.ratios = self.find_ratios()
        by_class: dict[Class, list[float]] = defaultdict(list)
        for arc, ratio in self.ratios.items():
            by_class[self.class_of[arc]].append(ratio)
        self.medians = {name: median(values) for name, values in by_class.items()}
        self.rates = {arc: self.settle(arc) for arc in self.nominal}
        self.latencies = self.find_latencies()
        classes, odd = list(self.describe()), list(self.find_odd())
        return Calibration(self.rebuild(), classes, odd, self.notes(lost))

    def find_ratios(self) -> dict[Arc, float]:
        """Measured over nominal of each link that limits some pair: the median over the pairs."""
        ratios: dict[Arc, list[float]] = defaultdict(list)
        for pair, rate in self.measured.rates.items():
            sums = [sum(self.nominal[arc] for arc in layer) for layer in self.layers[pair]]
            for layer, total in zip(self.layers[pair], sums, strict=True):
                if total == min(sums):
                    for arc in layer:
                        ratios[arc].append(rate / float(total))
        return {arc: median(values) for arc, values in ratios.items()}

    def settle(self, arc: Arc) -> Fraction:
        """GB/s of a link: its class's, or its own where that is further off than the tolerance."""
        usual = self.medians.get(self.class_of[arc])
        if usual is None:
            return self.nominal[arc]
        own = self.ratios.get(arc, usual)
        ratio = usual if abs(own - usual) <= self.tolerance * usual else own
        return _round(float(self.nominal[arc]) * ratio, 3)

    def find_latencies(self) -> dict[Class, Fraction]:
        """Microseconds of each class: the pairs' times, shared out as the nominal ones are."""
        shares: dict[Class, list[float]] = defaultdict(list)
        for pair, time in self.measured.latencies.items():
            hops = [layer[0] for layer in self.layers[pair]]
            total = float(sum(self.late[arc] for arc in hops))
            for arc in hops:
                share = float(self.late[arc]) / total if total else 1 / len(hops)
                shares[self.class_of[arc]].append(time * share)
        return {name: _round(median(times), 2) for name, times in shares.items()}

    def rebuild(self) -> Topology:
        links: list[Link] = []
        for link in self.topology.links:
            ends = list(link.directions())
            scaled = [
                replace(
                    link,
                    src=arc[0],
                    dst=arc[1],
                    bandwidth=link.bandwidth * self.rates[arc] / self.nominal[arc],
                    latency=self.latencies.get(self.class_of[arc], link.latency),
                )
                for arc in ends
            ]
            there, back = scaled[0], scaled[-1]
            same = (there.bandwidth, there.latency) == (back.bandwidth, back.latency)
            links += [there] if same else [replace(one, oneway=True) for one in scaled]
        name = f"{self.topology.name[:88]}-calibrated"
        return replace(self.topology, name=name, links=tuple(links), merged=None)

    def describe(self) -> Iterator[ClassFit]:
        members: dict[Class, list[Arc]] = defaultdict(list)
        for arc, name in self.class_of.items():
            members[name].append(arc)
        for name, ratio in self.medians.items():
            src, dst, nominal = name
            usual = _round(float(nominal) * ratio, 3)
            slow = tuple(
                (arc, self.rates[arc]) for arc in members[name] if self.rates[arc] != usual
            )
            seen = sum(arc in self.ratios for arc in members[name])
            late = self.latencies.get(name)
            yield ClassFit(f"{src} -> {dst}", len(members[name]), seen, nominal, usual, late, slow)

    def find_odd(self) -> Iterator[Odd]:
        gpus = self.topology.gpus
        for pair, rate in self.measured.rates.items():
            sums = [float(sum(self.rates[arc] for arc in layer)) for layer in self.layers[pair]]
            if sums and abs(rate - min(sums)) > ODD * min(sums):
                yield Odd(gpus[pair[0]], gpus[pair[1]], rate, min(sums))

    def notes(self, lost: list[Pair]) -> list[str]:
        notes = []
        if lost:
            notes.append(
                f"{len(lost)} pair{'s have' if len(lost) > 1 else ' has'} no way over the links "
                "without other GPUs between"
            )
        filled = sum(
            arc not in self.ratios and name in self.medians for arc, name in self.class_of.items()
        )
        if filled:
            notes.append(f"{filled} links were not measured themselves and take their class's rate")
        never = sorted(
            {f"{c[0]} -> {c[1]}" for c in self.class_of.values() if c not in self.medians}
        )
        if never:
            notes.append(f"not limiting any measured pair, at nominal: {', '.join(never[:6])}")
        if self.measured.together:
            notes.append("all pairs were measured at once: shared links show what is left of them")
        return notes


class _Ways:
    """Shortest ways between GPUs through switches alone."""

    def __init__(self, topology: Topology) -> None:
        self.gpus = set(topology.gpus)
        self.rates = topology.rates()
        self.ahead: dict[str, list[str]] = defaultdict(list)
        self.behind: dict[str, list[str]] = defaultdict(list)
        for src, dst in self.rates:
            self.ahead[src].append(dst)
            self.behind[dst].append(src)
        self.known: dict[tuple[str, bool], dict[str, int]] = {}

    def layers(self, src: str, dst: str) -> list[list[Arc]]:
        """The links at distance 0, 1, ... from `src` on the shortest ways to `dst`; [] if none.

        Of each distance only those at least half as wide as the widest: data that could go by a
        switch of the network as by NVLink goes by NVLink.
        """
        out, back = self.distances(src, False), self.distances(dst, True)
        if dst not in out:
            return []
        length = out[dst]
        layers: list[list[Arc]] = [[] for _ in range(length)]
        level = {src}
        for step in range(length):
            links_between = [
                (node, other)
                for node in sorted(level)
                for other in self.ahead[node]
                if back.get(other) == length - step - 1 and (other not in self.gpus or other == dst)
            ]
            widest = max(self.rates[arc] for arc in links_between)
            layers[step] = [arc for arc in links_between if 2 * self.rates[arc] >= widest]
            level = {other for _, other in layers[step]}
        return layers

    def distances(self, start: str, back: bool) -> dict[str, int]:
        """Links from `start` (or to it) by node, going on from switches alone."""
        distances = self.known.get((start, back))
        if distances is not None:
            return distances
        near = self.behind if back else self.ahead
        distances, level = {start: 0}, [start]
        while level:
            after = []
            for node in level:
                if node != start and node in self.gpus:
                    continue
                for other in near[node]:
                    if other not in distances:
                        distances[other] = distances[node] + 1
                        after.append(other)
            level = after
        self.known[start, back] = distances
        return distances


def _class(arc: Arc, rate: Fraction) -> Class:
    src, dst = (re.sub(r"\d+", "*", end) for end in arc)
    return src, dst, rate


def _round(value: float, digits: int) -> Fraction:
    """To that many significant digits: a measurement has no more."""
    return Fraction(f"{value:.{digits}g}")
