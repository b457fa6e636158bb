"""Doubts: what a dump says of one thing and not of the others of its kind.

A figure that stands once for each of several GPUs, ports or sockets is compared among these: who is
unlike the others is named in a note, since a broken link, a slip and a machine of two kinds look
the same in a dump.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from forestcoll.topology import Adapter, Topology, doubt_port
from forestcoll.topology.readers.base.fabric import Cable, Fabric, list_some

SLOWEST_PORT = Fraction(1, 8)
"""GB/s: what is slower than a port of 1 Gb/s is more likely a figure in other units."""


_NUMBER = re.compile(r"[0-9]+")


def kind_of(name: str) -> str:
    """What names of one kind have in common: all but their numbers."""
    return _NUMBER.sub("#", name)


def note_unlike(
    what: str, values: Mapping[str, str], fewer: bool = False, mixed: bool = False
) -> list[str]:
    """Notes that name those whose value, in words, is not that of most of their kind.

    `fewer`: only those that have less, where all have some or most have more; values are numbers.
    `mixed`: names are of one kind whatever they are.
    """
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in values.items():
        kinds["" if mixed else kind_of(name)][name] = value
    notes = []
    for of_kind in kinds.values():
        counts = Counter(of_kind.values())
        usual = max(counts, key=lambda word: (counts[word], int(word) if fewer else 0))
        often = counts[usual]
        odd = [
            f"{name} {value}"
            for name, value in of_kind.items()
            if value != usual and (not fewer or int(value) < int(usual))
        ]
        if odd and not (fewer and 2 * often <= len(of_kind) and "0" in counts):
            usually = f"{often} of {len(of_kind)} have {usual}"
            notes.append(f"{what} are not alike: {list_some(odd)}; {usually}")
    return notes


def doubt(what: Topology | Fabric, noun: str) -> list[str]:
    """Returns notes on what is unlike the others of its kind, or too slow or fast to be true.

    `noun`: what the ranks of a topology are, GPUs or hosts.
    """
    return _doubt_fabric(what) if isinstance(what, Fabric) else _doubt_topology(what, noun)


def _doubt_topology(topology: Topology, noun: str) -> list[str]:
    """Returns notes on ranks whose links carry more or less than the others', and on ports."""
    sums: dict[str, list[Fraction]] = {gpu: [Fraction(0), Fraction(0)] for gpu in topology.gpus}
    for (src, dst), rate in topology.rates().items():
        for end, way in ((src, 0), (dst, 1)):
            if end in sums:
                sums[end][way] += rate
    totals = {gpu: _both(*rates) for gpu, rates in sums.items()}
    bare = [gpu for gpu, rates in sums.items() if not any(rates)]
    slow = next((link for link in topology.links if link.bandwidth < SLOWEST_PORT), None)
    notes = [] if slow is None else _doubt_rate(f"{slow.src} - {slow.dst}", slow.bandwidth)
    if bare and len(sums) > 1:
        notes.append(f"{len(bare)} {noun} have no link: {list_some(bare)}")
    else:
        notes += note_unlike(f"the links of {noun}", totals)
    return notes + _doubt_adapters(topology)


def _doubt_fabric(fabric: Fabric) -> list[str]:
    """Notes on cables that no port could drive."""
    seen: dict[Fraction, Cable] = {}
    for cable in fabric.cables:
        seen.setdefault(cable.bandwidth, cable)
    return [
        note
        for rate, cable in seen.items()
        for note in _doubt_rate(f"the cable {cable.one} - {cable.two}", rate)
    ]


def _doubt_adapters(topology: Topology) -> list[str]:
    ports: Sequence[Adapter] = topology.adapters
    rates = {port.name: port.bandwidth for port in ports if port.bandwidth is not None}
    notes = note_unlike("network ports", {name: _rate(rate) for name, rate in rates.items()})
    for name, rate in {rate: (name, rate) for name, rate in rates.items()}.values():
        notes += _doubt_rate(f"network port {name}", rate)
    near = {gpu: sum(gpu in port.near for port in ports) for gpu in topology.gpus}
    return notes + note_unlike(
        "the ports near GPUs", {gpu: str(n) for gpu, n in near.items()}, fewer=True
    )


def _doubt_rate(what: str, rate: Fraction) -> list[str]:
    if rate < SLOWEST_PORT:
        return [f"{what} is {_rate(rate)}, less than 1 Gb/s: is its figure in other units?"]
    return doubt_port(what, rate)


def note_gaps(names: Iterable[str]) -> list[str]:
    """Notes where the numbers at the end of names of one kind have a gap: gpu0, gpu1, gpu3."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name)
        if match:
            kinds[match[1]].append(int(match[2]))
    return [
        f"{kind}{min(numbers)} to {kind}{max(numbers)} are {len(numbers)} GPUs: the others between "
        "are not in the file"
        for kind, numbers in kinds.items()
        if len(numbers) > 1 and max(numbers) - min(numbers) != len(numbers) - 1
    ]


def is_run(numbers: Iterable[int]) -> bool:
    """Whether the numbers, sorted, are as far apart each from the next: 4, 5, 6, 7."""
    ordered = sorted(numbers)
    return len({b - a for a, b in pairwise(ordered)}) <= 1


def _rate(rate: Fraction) -> str:
    return f"{float(rate):g} GB/s"


def _both(out: Fraction, back: Fraction) -> str:
    return _rate(out) if out == back else f"{_rate(out)} out and {_rate(back)} in"
