"""Why an optimum is what it is, in words: cuts, links that cross them, what more of them give."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.schedule.forest import Bound
    from forestcoll.study.explain import Explanation


def table(found: Explanation) -> RenderableType:
    """Lines for the facts of `optimum --explain`."""
    return tables.facts(list(_rows(found)))


def _rows(found: Explanation) -> Iterator[tuple[str, str]]:
    graph = found.problem.graph
    yield "crossed by", links_in_words(graph, _crossing(found, found.bound))
    near = _cuts(found)
    for text, share, _ in near:
        yield "nearly", f"{text} ({share})"
    if not near:
        yield "nearly", "no other cut within 5 % round GPUs, boxes and what wide links join"
    for raised in found.raised:
        links = links_in_words(graph, raised.links)
        if raised.then is None:
            yield "raise", f"{links}: every GB/s more counts, nothing else takes over"
            continue
        limit = words.bottleneck(graph, found.problem.collective, raised.then)
        if raised.algbw <= found.bound.algbw:
            yield "raise", f"{links}: no gain, as tight is {limit}"
            continue
        assert raised.until is not None
        yield (
            "raise",
            f"{links}: {rate(raised.algbw)} at {words.decimal(raised.until)} times their "
            f"bandwidth ({_gain(raised.algbw, found)}), then it is {limit}",
        )
    more = found.one_more
    if more is not None:
        links = links_in_words(graph, more.links)
        yield (
            "one more NIC",
            f"a box, like {links}: {rate(more.algbw)} ({_gain(more.algbw, found)})",
        )


def _cuts(found: Explanation) -> list[tuple[str, str, Bound]]:
    """(words, how much above the optimum, bound) of other cuts, those of the same words once."""
    graph, collective = found.problem.graph, found.problem.collective
    shown = {words.bottleneck(graph, collective, found.bound)}
    result = []
    for other in found.near:
        text = words.bottleneck(graph, collective, other)
        if text not in shown:
            shown.add(text)
            above = other.algbw / found.bound.algbw - 1
            share = (
                f"{rate(other.algbw)}, {float(100 * above):.1f} % above" if above else "as tight"
            )
            result.append((text, share, other))
    return result


def summary(found: Explanation) -> dict[str, Any]:
    """The same for machines."""
    graph, collective = found.problem.graph, found.problem.collective
    more = found.one_more
    return {
        "crossed_by": ends(graph, _crossing(found, found.bound)),
        "nearly": [
            {"bottleneck": text, "algbw": str(bound.algbw)} for text, _, bound in _cuts(found)
        ],
        "raise": [
            {
                "links": ends(graph, raised.links),
                "until": None if raised.until is None else str(raised.until),
                "algbw": str(raised.algbw),
                "bottleneck": None
                if raised.then is None
                else words.bottleneck(graph, collective, raised.then),
            }
            for raised in found.raised
        ],
        "one_more_nic": None
        if more is None
        else {"links": ends(graph, more.links), "algbw": str(more.algbw)},
    }


def links_in_words(graph: CapacityGraph, links: Iterable[int]) -> str:
    """`"16 links of 25 GB/s between box0/gpu0-7, box1/gpu0-7 and fabric"`, both ways once."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for e in links:
        groups[graph.capacity[e], _kind(graph, e)].append(e)
    parts = []
    for (capacity, _), members in groups.items():
        pairs = {frozenset((graph.tail[e], graph.head[e])) for e in members}
        hubs = sorted({hub for e in members if (hub := _hub(graph, e)) >= 0})
        far = sorted({v for pair in pairs for v in pair} - set(hubs))
        count, rate = words.plural(len(pairs), "link"), words.decimal(capacity * graph.unit)
        whose = words.listed(graph.names[v] for v in far)
        if hubs:
            whose = f"between {whose} and {words.listed(graph.names[v] for v in hubs)}"
        else:
            whose = f"among {whose}"
        parts.append(f"{count} of {rate} GB/s {whose}")
    more = f"; {len(parts) - 3} kinds more" if len(parts) > 3 else ""
    return "; ".join(parts[:3]) + more


def _kind(graph: CapacityGraph, link: int) -> str:
    ends = sorted((graph.names[graph.tail[link]], graph.names[graph.head[link]]))
    return re.sub(r"\d+", "*", " ".join(ends))


def _hub(graph: CapacityGraph, link: int) -> int:
    """The switch at one end of a link, outside of boxes if it can be; -1: there is none."""
    ends = [v for v in (graph.tail[link], graph.head[link]) if not graph.gpu[v]]
    return min(ends, key=lambda v: (graph.box(v) != "", v), default=-1)


def _crossing(found: Explanation, bound: Bound) -> list[int]:
    from forestcoll.study.explain import crossing, inward

    return crossing(found.problem.graph, bound, into=inward(found.problem))


def ends(graph: CapacityGraph, links: Iterable[int]) -> list[str]:
    """`["box0/gpu0 -> fabric", ...]`."""
    return [f"{graph.names[graph.tail[e]]} -> {graph.names[graph.head[e]]}" for e in links]


def rate(algbw: Fraction) -> str:
    """`"21.333 GB/s"`."""
    return f"{words.decimal(algbw)} GB/s"


def _gain(algbw: Fraction, found: Explanation) -> str:
    share = algbw / found.bound.algbw - 1
    return f"{float(100 * share):.1f} % more" if share > 0 else "no gain"
