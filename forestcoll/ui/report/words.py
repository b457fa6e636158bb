"""Words for exact numbers, sizes, and the cuts that bound a collective."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from forestcoll.program import Collective
from forestcoll.program.sizes import is_power
from forestcoll.topology import numbers

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program.sizes import Sizes
    from forestcoll.schedule.forest import Bound, Forest
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.verify.simulate import Band

Units = dict[Hashable, int]
"""Of capacity, by groups of nodes."""

LINKS_NAMED = 3
"""Links of one kind that are named one by one."""
KINDS_SHOWN = 4
"""Kinds of limiting links that are told before "and 3 kinds more"."""
BOUNDED_FROM = 64
"""Ranks above which the least height is told beside the height."""
NAMES_SHOWN = 6
"""Ids listed before "..."."""


def decimal(value: Fraction, digits: int = 3) -> str:
    """`"346.667"`, `"320"`: at most `digits` decimals, correctly rounded, no trailing zeros."""
    scaled = round(value * 10**digits)
    sign, scaled = ("-" if scaled < 0 else ""), abs(scaled)
    whole, rest = divmod(scaled, 10**digits)
    return f"{sign}{whole}" + (f".{rest:0{digits}d}".rstrip("0") if rest else "")


def exact(value: Fraction) -> str:
    """`"1040/3 (346.667)"`, or `"320"` where the fraction is whole."""
    return str(value) if value.denominator == 1 else f"{value} ({decimal(value)})"


def rate(algbw: Fraction) -> str:
    """`"1040/3 (346.667) GB/s"`."""
    return f"{exact(algbw)} GB/s"


def in_switches(algbw: Fraction) -> str:
    """What switches that copy and add could do: for a line of its own, beside what plans do."""
    return f"{rate(algbw)} where they copy and add (NVLS, SHARP)"


def percent(part: Fraction, whole: Fraction) -> str:
    """`"100 %"` only where it is so exactly; a smaller part is rounded down."""
    return numbers.percent(part / whole)


def size(count: int) -> str:
    """`"64 MiB"`, `"832 bytes"`: whole binary units where they come out whole."""
    return _units(count, (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)))


def _units(count: int, units: Iterable[tuple[str, int]]) -> str:
    whole = (f"{count // each} {unit}" for unit, each in units if count and count % each == 0)
    return next(whole, plural(count, "byte"))


def serves(sizes: Sizes) -> str:
    """`"multiples of 4096 bytes: every power of two from 4 KiB on"`."""
    least, per_rank = sizes.multiple(), ""
    if not is_power(sizes.parts):
        least, per_rank = least // sizes.parts, " per rank"
    if not sizes.powers:
        return f"{sizes.words()}, no power of two{per_rank}"
    return f"{sizes.words()}: every power of two from {size(least)}{per_rank} on"


def seconds(value: float) -> str:
    """`"1.24 s"`, `"3.1 ms"`."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def microseconds(value: Fraction) -> str:
    """`"3.4 us"`."""
    return f"{decimal(value, 2)} us"


def in_time(nanoseconds: Fraction) -> str:
    """`"81.6 us"`."""
    for unit, length in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= length:
            return f"{decimal(nanoseconds / length)} {unit}"
    return f"{decimal(nanoseconds)} ns"


def amount(count: int) -> str:
    """`"1 GB"`, `"64 MB"`: whole decimal units where they come out whole, else as `size`."""
    text = _units(count, (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)))
    return size(count) if text.endswith("s") else text


def duration(us: float) -> str:
    """`"3.40 us"`, `"12.3 ms"` of microseconds that are simulated."""
    return f"{us:.2f} us" if us < 1000 else seconds(us / 1e6)


def band(result: Band) -> str:
    """`"168.1 GB/s in order, 170.9 fair, at 1 GB; fill 64 us"`."""
    fill = f"{result.fill:.0f}" if result.fill >= 10 else f"{round(result.fill, 3):.2g}"
    return f"{rates(result)}; fill {fill} us"


def rates(result: Band) -> str:
    """`"168.1 GB/s in order, 170.9 fair, at 1 GB"`."""
    return (
        f"{result.fifo_algbw:.1f} GB/s in order, {result.fair_algbw:.1f} fair, "
        f"at {amount(result.size)}"
    )


def span(result: Band) -> str:
    """`"168.1 - 170.9"`: GB/s over links in order and over fair ones, the least first."""
    return " - ".join(f"{rate:.1f}" for rate in sorted((result.fifo_algbw, result.fair_algbw)))


def shares(bands: Iterable[Band], algbw: Fraction) -> str:
    """`"simulated 95.1 to 99.3 %"`: the least and the most of plans under both rules of links."""
    reached = [rate for each in bands for rate in (each.fifo_algbw, each.fair_algbw)]
    texts = [f"{math.floor(1000 * rate / float(algbw)) / 10:.1f}" for rate in reached]
    texts.sort(key=float)
    least, most = texts[0], texts[-1]
    return f"simulated {least} %" if least == most else f"simulated {least} to {most} %"


def height(forest: Forest, latency: Fraction, least: int | None = None) -> str:
    """`"2 hops, 3.4 us over the links"`; an allreduce goes up and down its trees."""
    ways = " each way" if forest.collective.two_phases else ""
    hops = f"{plural(forest.height, 'hop')}{ways}"
    if least is not None and forest.n > BOUNDED_FROM:
        proof = "the least" if least == forest.height else f"at least {least}"
        hops += f" ({proof} at this rate)"
    return f"{hops}, {microseconds(latency)} over the links"


def plural(count: int, noun: str) -> str:
    """`"1 GPU"`, `"8 GPUs"`, `"2 boxes"`, `"3 switches"`, `"64 symmetries"`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}" + ("es" if noun.endswith(("x", "ch", "s")) else "s")


def bottleneck(graph: CapacityGraph, collective: Collective, bound: Bound) -> str:
    """What limits it: `"every GPU's ingress: 325 GB/s"`, `"box1 (8 GPUs): 200 GB/s in"`."""
    if bound.method == "linear-program":
        return _linear_program(graph, bound)
    if bound.method == "partition":
        return _partition(graph, bound)
    if not bound.parts:
        return "not stated"
    inside = bound.parts[0]
    outside = graph.outside(inside)
    if collective.two_phases:
        part = _smaller(graph, inside, outside)
        into, out = entering(graph, part), graph.leaving(part)
        ways = "in" if into < out else "out" if out < into else "in, and as much out"
        return f"{_every(graph, part, ways)}: {decimal(min(into, out))} GB/s {ways}"
    leaves = not collective.reduces
    part = _smaller(graph, inside, outside)
    way = "out" if leaves == (part == inside) else "in"
    value = entering(graph, part) if way == "in" else graph.leaving(part)
    whose = label(graph, part) if collective.has_root else _every(graph, part, way)
    if len(_ranks(graph, part)) == 1:
        return f"{whose}'s {'ingress' if way == 'in' else 'egress'}: {decimal(value)} GB/s"
    return f"{whose}: {decimal(value)} GB/s {way}"


def entering(graph: CapacityGraph, nodes: frozenset[int]) -> Fraction:
    """GB/s of all links from outside `nodes` to inside, exact."""
    return graph.leaving(graph.outside(nodes))


def _partition(graph: CapacityGraph, bound: Bound) -> str:
    crossing = _crossings(graph, {v: i for i, part in enumerate(bound.parts) for v in part})
    into, out = (sum(way.values()) * graph.unit for way in crossing)
    way = "in" if into <= out else "out"
    m = len(bound.parts)
    if m == len(graph.ranks):
        who = f"all {m} GPUs"
    elif all(_whole_boxes(graph, p) is not None for p in bound.parts):
        who = f"the {m} boxes" if len(_boxes(graph)) == m else f"{m} groups of boxes"
    else:
        shown = "; ".join(
            join_names(graph.names[v] for v in _ranks(graph, p)) for p in bound.parts[:3]
        )
        who = f"{m} groups of GPUs ({shown}{'; ...' if m > 3 else ''})"
    return f"{who} together: {decimal(min(into, out))} GB/s {way}, for {2 * (m - 1)} times the data"


def _linear_program(graph: CapacityGraph, bound: Bound) -> str:
    cuts = plural(len(bound.parts), "cut")
    if not bound.parts:
        return "not stated"
    weights = bound.weights or (Fraction(1),) * len(bound.parts)
    heavy = max(range(len(bound.parts)), key=lambda i: (weights[i], -i))
    part = bound.parts[heavy]
    outside = graph.outside(part)
    shown = label(graph, _smaller(graph, part, outside))
    why = "switches whose directions differ" if bound.potentials else "no single cut is tight"
    if bound.phases:
        why = "reduce and broadcast trees share the links"
    return f"{cuts} together ({why}), the heaviest around {shown}"


def _smaller(graph: CapacityGraph, a: frozenset[int], b: frozenset[int]) -> frozenset[int]:
    """The side with fewer ranks: the one that is easier to name."""
    return a if len(_ranks(graph, a)) <= len(_ranks(graph, b)) else b


@lru_cache(maxsize=2)
def _rank_numbers(graph: CapacityGraph) -> dict[int, int]:
    return graph.rank_of


def _ranks(graph: CapacityGraph, nodes: frozenset[int]) -> list[int]:
    number = _rank_numbers(graph)
    return sorted((v for v in nodes if v in number), key=number.__getitem__)


@lru_cache(maxsize=2)
def _boxes(graph: CapacityGraph) -> Counter[str]:
    """How many ranks are in each."""
    return Counter(graph.boxes)


def _whole_boxes(graph: CapacityGraph, nodes: frozenset[int]) -> list[str] | None:
    """The boxes whose ranks are exactly the ranks in `nodes`; None where a box is cut through."""
    ranks = _ranks(graph, nodes)
    boxes = dict.fromkeys(graph.box(v) for v in ranks)
    if "" in boxes or sum(_boxes(graph)[box] for box in boxes) > len(ranks):
        return None
    return list(boxes)


def _every(graph: CapacityGraph, part: frozenset[int], ways: str) -> str:
    """`label`, or "every GPU" / "every box (8 GPUs)" where all of them are as tight as this one."""

    def alike(home: Mapping[int, str]) -> bool:
        """Whether all groups of nodes are as tight as `part`."""
        tight = _tightness(_crossings(graph, home), ways)
        here = next(home[v] for v in part if v in home)
        if {v for v, group in home.items() if group == here} == part:
            return len(set(tight.values())) == 1
        alone = _tightness(_crossings(graph, dict.fromkeys(part, "")), ways)
        return set(tight.values()) == set(alone.values())

    ranks = _ranks(graph, part)
    if graph.shares:  # what has to cross differs from GPU to GPU, whatever the links
        return label(graph, part)
    if len(ranks) == 1:
        alone = alike({v: graph.names[v] for v in graph.ranks})
        return "every GPU" if alone else label(graph, part)
    boxes = _whole_boxes(graph, part)
    if boxes is None or len(boxes) != 1 or len(_boxes(graph)) == 1:
        return label(graph, part)
    box = [graph.box(v) for v in range(graph.n)]
    sizes = Counter([box[v] for v in graph.ranks])
    home = {v: name for v, name in enumerate(box) if name in sizes}
    if set(sizes.values()) == {len(ranks)} and alike(home):
        return f"every box ({plural(len(ranks), 'GPU')})"
    return label(graph, part)


def _crossings(graph: CapacityGraph, home: Mapping[int, Hashable]) -> tuple[Units, Units]:
    """Units of capacity that enter each group of nodes, and that leave it; one pass for all."""
    into: Units = dict.fromkeys(home.values(), 0)
    out = dict(into)
    group = [home.get(v) for v in range(graph.n)]
    for u, v, units in graph.arcs:
        a, b = group[u], group[v]
        if a is not b and a != b:
            if b is not None:
                into[b] += units
            if a is not None:
                out[a] += units
    return into, out


def _tightness(crossing: tuple[Units, Units], ways: str) -> Units:
    into, out = crossing
    if ways == "in":
        return into
    return out if ways == "out" else {group: min(into[group], out[group]) for group in into}


def label(graph: CapacityGraph, nodes: frozenset[int]) -> str:
    """A name for a set of nodes: `"box1 (8 GPUs)"`, `"box0/gpu0"`, `"box0/gpu0-3 (4 GPUs)"`."""
    ranks = _ranks(graph, nodes)
    if len(ranks) == 1:
        return graph.names[ranks[0]]
    boxes = _whole_boxes(graph, nodes)
    names: Sequence[str] = boxes if boxes else [graph.names[v] for v in ranks]
    return f"{join_names(names)} ({plural(len(ranks), 'GPU')})"


def join_names(names: Iterable[str]) -> str:
    """Names in a row, at most `NAMES_SHOWN`, runs of numbers shortened: `"gpu0-3, gpu6"`."""
    runs: list[tuple[str, int | None, int | None]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if match is None:
            runs.append((name, None, None))
            continue
        stem, number = match[1], int(match[2])
        if runs and runs[-1][0] == stem and runs[-1][2] == number - 1:
            runs[-1] = (stem, runs[-1][1], number)
        else:
            runs.append((stem, number, number))
    words = [
        stem if a is None else f"{stem}{a}" if a == b else f"{stem}{a}-{b}" for stem, a, b in runs
    ]
    return ", ".join(words[:NAMES_SHOWN]) + (", ..." if len(words) > NAMES_SHOWN else "")


# --- links that limit an all-to-all ---------------------------------------------------------------


def limits_of(best: Optimum) -> list[str]:
    """The links that limit it, those of few kinds."""
    limits = list(limiting(best))
    shown = limits[:KINDS_SHOWN]
    if len(limits) > KINDS_SHOWN:
        shown.append(f"and {plural(len(limits) - KINDS_SHOWN, 'kind')} of links more")
    return shown


def limiting(best: Optimum) -> Iterator[str]:
    """The links that limit it, a line for each kind: those with a length, the most share first.

    `"every box*/gpu* -> fabric* (16 links of 25 GB/s)"`.
    """
    graph = best.demand.graph
    looks = [re.sub(r"\d+", "*", name) for name in graph.names]
    chosen: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    of_look: dict[tuple[str, str], int] = defaultdict(int)
    for e, length in enumerate(best.lengths):
        look = looks[graph.tail[e]], looks[graph.head[e]]
        of_look[look] += 1
        if length:
            chosen[(*look, graph.capacity[e], length)].append(e)
    weight = {key: key[2] * key[3] * len(links) for key, links in chosen.items()}
    for key in sorted(chosen, key=lambda key: (-weight[key], key)):
        links = chosen[key]
        tails, heads = ([graph.names[ends[e]] for e in links] for ends in (graph.tail, graph.head))
        each, whole = f"{decimal(graph.bandwidth(links[0]))} GB/s", len(links) == of_look[key[:2]]
        if len(links) <= LINKS_NAMED and not whole:
            named = [f"{tail} -> {head}" for tail, head in zip(tails, heads, strict=True)]
            text = f"{', '.join(named)} ({each}{' each' * (len(links) > 1)})"
        else:  # all that look like it, or too many to name
            both = f"{_pattern(tails)} -> {_pattern(heads)}"
            text = f"{'every ' * whole}{both} ({len(links)} links of {each})"
        if len(chosen) > 1:
            share = Fraction(100 * weight[key], sum(weight.values()))
            text += f", {decimal(share, 1)} % of the weight"
        yield text


def _pattern(names: list[str]) -> str:
    """One text for names that differ in numbers alone: `*` where those differ."""
    pieces = [re.split(r"(\d+)", name) for name in names]
    return "".join(
        column[0] if len(set(column)) == 1 else "*" for column in zip(*pieces, strict=True)
    )
