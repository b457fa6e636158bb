"""Why an optimum is what it is, in words: cuts, what crosses them, shares of ranks, wider links."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, line, texts

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.study.explain.exchange import Exchange, Static
    from forestcoll.study.explain.trees import Explanation, Raised

SHOWN = 4
"""Groups of ranks, cuts and waits that are told."""
NO_CUT = "no other cut within 5 % round GPUs, boxes and what wide links join"


def trees(why: Explanation) -> Iterator[Fact]:
    """The facts of `optimum --explain`, of collectives over trees."""
    from forestcoll.study.explain.trees import crossing, inward

    graph, best, more = why.problem.graph, why.bound.algbw, why.one_more

    def name(bound: Any) -> str:
        return words.bottleneck(graph, why.problem.collective, bound)

    links = crossing(graph, why.bound, into=inward(why.problem))
    yield Fact("crossed_by", ends(graph, links), links_in_words(graph, links), "crossed by")
    near: dict[str, Fraction] = {}
    for other in why.near:
        near.setdefault(name(other), other.algbw)
    near.pop(name(why.bound), None)
    yield Fact("nearly", [{"bottleneck": text, "algbw": algbw} for text, algbw in near.items()])
    above = {text: _above(algbw, best, f"{_rate(algbw)}, ") for text, algbw in near.items()}
    yield from texts("nearly", [f"{text} ({more})" for text, more in above.items()] or [NO_CUT])
    yield from _wider(graph, why.raised, best, name, "bottleneck", name)
    if more is None:
        yield Fact("one_more_nic")
        return
    text = f"{_rate(more.algbw)} ({_gain(more.algbw, best)})"
    nics = {"links": ends(graph, more.links), "algbw": more.algbw}
    words_ = f"a box, like {links_in_words(graph, more.links)}: {text}"
    yield Fact("one_more_nic", nics, words_, "one more NIC")


def _wider(
    graph: CapacityGraph,
    raised: Sequence[Raised[Any]],
    best: Fraction,
    name: Callable[[Any], str],
    key: str,
    value: Callable[[Any], object],
) -> Iterator[Fact]:
    """What wider links give, by kind. `name`: what limits then; `value`: of it, under `key`."""
    yield Fact(
        "raise",
        [
            {
                "links": ends(graph, each.links),
                "until": each.until,
                "algbw": each.algbw,
                key: None if each.then is None else value(each.then),
            }
            for each in raised
        ],
    )
    for each in raised:
        links = links_in_words(graph, each.links)
        if each.then is None:
            text = "every GB/s more counts, nothing else takes over"
        elif each.algbw <= best or each.until is None:
            text = f"no gain, as tight is {name(each.then)}"
        else:
            times = f"{words.decimal(each.until)} times their bandwidth"
            text = f"{_rate(each.algbw)} at {times} ({_gain(each.algbw, best)}), "
            text += f"then it is {name(each.then)}"
        yield line("raise", f"{links}: {text}")


def exchange(why: Exchange) -> Iterator[Fact]:
    """The same of an all-to-all."""
    graph, best, twice, static = why.best.demand.graph, why.best, why.twice, why.static

    def limits(then: Optimum) -> list[str]:
        return list(words.limiting(replace(then, demand=best.demand)))

    for key, shares in (("senders", why.senders), ("receivers", why.receivers)):
        told = []
        for share in shares:
            each = " each" * (len(share.ranks) > 1)
            text = f"{_ranks(why, share.ranks)}: {words.decimal(100 * share.of_all, 2)} %{each}"
            text += " of what the limiting links carry"
            if best.demand.matrix is not None:
                text += f", {words.in_time(share.of_all / best.theta)}{each}"
            told += [text] if share.of_all else []
        values = [{"ranks": share.ranks, "share": share.of_all} for share in shares]
        yield Fact(key, values, _few(told, "groups"))
    cuts = [
        {
            "nodes": [graph.names[v] for v in sorted(cut.nodes)],
            "way": "out" if cut.leaves else "in",
            "algbw": cut.algbw,
        }
        for cut in why.near
    ]
    near = dict.fromkeys(
        f"{'out of' if cut.leaves else 'into'} {words.label(graph, cut.nodes)}: "
        f"{_rate(cut.algbw)}, {_above(cut.algbw, best.algbw)}"
        for cut in why.near
    )
    yield Fact("nearly", cuts, _few([*near] or [NO_CUT], "cuts"))
    if not why.small:
        text = "not looked at: little is alike here, and each step would be an optimum"
        yield line("raise", text)
    yield from _wider(graph, why.raised, best.algbw, lambda then: limits(then)[0], "limits", limits)
    if isinstance(static, str):
        yield Fact("static", static, f"none: {static}", "static plan")
    else:
        yield from [Fact("static")] if static is None else _static(why, static)
    if twice is None:
        yield Fact("twice_uniform")
        return
    ratio = words.decimal(twice.nanoseconds * best.theta)
    yield Fact(
        "twice_uniform",
        {"nanoseconds": twice.nanoseconds, "blocks": twice.shares},
        f"at most {words.in_time(twice.nanoseconds)}, {ratio} times the least: spread evenly "
        f"over all ranks ({words.in_time(twice.spreading)}), then delivered",
        "twice uniform",
    )


def _few(lines: Sequence[str], what: str) -> list[str]:
    more = [f"{len(lines) - SHOWN} {what} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def _ranks(exchange: Exchange, ranks: Sequence[int]) -> str:
    graph = exchange.best.demand.graph
    if len(ranks) == len(graph.ranks):
        return f"all {len(ranks)} ranks"
    return words.join_names(graph.names[graph.ranks[number]] for number in ranks)


def _static(why: Exchange, static: Static) -> Iterator[Fact]:
    graph, least = why.best.demand.graph, 1 / why.best.theta
    times = f"{words.decimal(static.nanoseconds / least)} times the least"
    if static.nanoseconds == least:
        times = "the least there is"
    never = f"never over {words.exact(static.boxes.factor)} times"
    groups: dict[tuple[Fraction, int], list[int]] = defaultdict(list)
    for number, wait in enumerate(static.waits):
        groups[wait].append(number)
    ways = {link: ends(graph, [link])[0] if link >= 0 else None for _, link in groups}
    waits = [{"nanoseconds": time, "link": ways[link]} for time, link in static.waits]
    yield Fact(
        "static",
        {"nanoseconds": static.nanoseconds, "factor": static.boxes.factor, "waits": waits},
        f"{words.in_time(static.nanoseconds)} over all NICs of a box: {times} ({never})",
        "static plan",
    )
    waited = [
        f"{_ranks(why, ranks)}: {words.in_time(time)} for {ways[link]}"
        for (time, link), ranks in sorted(groups.items(), reverse=True)
        if link >= 0
    ]
    yield line("waits", _few(waited, "groups"))


def links_in_words(graph: CapacityGraph, links: Iterable[int]) -> str:
    """`"16 links of 25 GB/s between box0/gpu0-7, box1/gpu0-7 and fabric"`, both ways once."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for e in links:
        looks = sorted((graph.names[graph.tail[e]], graph.names[graph.head[e]]))
        groups[graph.capacity[e], re.sub(r"\d+", "*", " ".join(looks))].append(e)
    parts = []
    for (capacity, _), members in groups.items():
        pairs = {frozenset((graph.tail[e], graph.head[e])) for e in members}
        hubs = sorted({hub for e in members if (hub := _hub(graph, e)) >= 0})
        far = sorted({v for pair in pairs for v in pair} - set(hubs))
        count, rate = words.plural(len(pairs), "link"), words.decimal(capacity * graph.unit)
        whose = words.join_names(graph.names[v] for v in far)
        if hubs:
            whose = f"between {whose} and {words.join_names(graph.names[v] for v in hubs)}"
        else:
            whose = f"among {whose}"
        parts.append(f"{count} of {rate} GB/s {whose}")
    more = f"; {len(parts) - 3} kinds more" if len(parts) > 3 else ""
    return "; ".join(parts[:3]) + more


def _hub(graph: CapacityGraph, link: int) -> int:
    """The switch at one end of a link, outside of boxes if it can be; -1: there is none."""
    ends = [v for v in (graph.tail[link], graph.head[link]) if not graph.gpu[v]]
    return min(ends, key=lambda v: (graph.box(v) != "", v), default=-1)


def ends(graph: CapacityGraph, links: Iterable[int]) -> list[str]:
    """`["box0/gpu0 -> fabric", ...]`."""
    return [f"{graph.names[graph.tail[e]]} -> {graph.names[graph.head[e]]}" for e in links]


def _rate(algbw: Fraction) -> str:
    """`"21.333 GB/s"`."""
    return f"{words.decimal(algbw)} GB/s"


def _gain(algbw: Fraction, best: Fraction) -> str:
    return f"{float(100 * (algbw / best - 1)):.1f} % more" if algbw > best else "no gain"


def _above(algbw: Fraction, best: Fraction, before: str = "") -> str:
    share = algbw / best - 1
    return f"{before}{float(100 * share):.1f} % above" if share else "as tight"
