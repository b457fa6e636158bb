"""Why an all-to-all is no faster, in words: shares of ranks, what comes next, wider links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words
from forestcoll.ui.report.alltoall import in_time
from forestcoll.ui.report.explanation import ends, links_in_words, rate
from forestcoll.ui.report.limits import limiting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.study.explain import Exchange
    from forestcoll.study.explain.exchange import Cut, Share, Static

SHOWN = 4
"""Groups of ranks, cuts and waits that are told."""


def table(found: Exchange) -> RenderableType:
    """Lines for the facts of `optimum -c alltoall --explain`."""
    return tables.facts(list(_rows(found)))


def _rows(found: Exchange) -> Iterator[tuple[str, str]]:
    for name, shares in (("senders", found.senders), ("receivers", found.receivers)):
        texts = [_share(found, share) for share in shares if share.of_all]
        yield from _headed(name, texts, "groups")
    near = [_cut(found, cut) for cut in found.near]
    alike = "no other cut within 5 % round GPUs, boxes and what wide links join"
    yield from _headed("nearly", list(dict.fromkeys(near)) or [alike], "cuts")
    yield from _wider(found)
    if isinstance(found.static, str):
        yield "static plan", f"none: {found.static}"
    elif found.static is not None:
        yield from _static(found, found.static)
    if found.twice is not None:
        ratio = words.decimal(found.twice.nanoseconds * found.best.theta)
        yield (
            "twice uniform",
            f"at most {in_time(found.twice.nanoseconds)}, {ratio} times the least: spread evenly "
            f"over all ranks ({in_time(found.twice.spreading)}), then delivered",
        )


def _headed(name: str, texts: Sequence[str], what: str) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts[:SHOWN]):
        yield name if number == 0 else "", text
    if len(texts) > SHOWN:
        yield "", f"{len(texts) - SHOWN} {what} more"


def _named(found: Exchange, ranks: Sequence[int]) -> str:
    graph = found.best.demand.graph
    if len(ranks) == len(graph.ranks):
        return f"all {len(ranks)} ranks"
    return words.listed(graph.names[graph.ranks[number]] for number in ranks)


def _share(found: Exchange, share: Share) -> str:
    """`"box0/gpu0-7: 6.25 % each of what limits, 1.4 us"`."""
    each = " each" * (len(share.ranks) > 1)
    text = f"{_named(found, share.ranks)}: {words.decimal(100 * share.of_all, 2)} %{each}"
    text += " of what the limiting links carry"
    if found.best.demand.matrix is not None:
        text += f", {in_time(share.of_all / found.best.theta)}{each}"
    return text


def _cut(found: Exchange, cut: Cut) -> str:
    above = cut.algbw / found.best.algbw - 1
    share = f"{float(100 * above):.1f} % above" if above else "as tight"
    way = "out of" if cut.leaves else "into"
    return f"{way} {words.label(found.best.demand.graph, cut.nodes)}: {rate(cut.algbw)}, {share}"


def _wider(found: Exchange) -> Iterator[tuple[str, str]]:
    graph, best = found.best.demand.graph, found.best.algbw
    if not found.small:
        yield "raise", "not looked at: little is alike here, and each step would be an optimum"
    for wider in found.wider:
        links = links_in_words(graph, wider.links)
        if wider.then is None:
            yield "raise", f"{links}: every GB/s more counts, nothing else takes over"
            continue
        then = next(limiting(replace(wider.then, demand=found.best.demand)))
        if wider.algbw <= best or wider.until is None:
            yield "raise", f"{links}: no gain, as tight is {then}"
            continue
        gain = f"{float(100 * (wider.algbw / best - 1)):.1f} % more"
        yield (
            "raise",
            f"{links}: {rate(wider.algbw)} at {words.decimal(wider.until)} times their bandwidth "
            f"({gain}), then it is {then}",
        )


def _static(found: Exchange, static: Static) -> Iterator[tuple[str, str]]:
    least = 1 / found.best.theta
    times = f"{words.decimal(static.nanoseconds / least)} times the least"
    if static.nanoseconds == least:
        times = "the least there is"
    never = f"never over {words.exact(static.boxes.factor)} times"
    yield "static plan", f"{in_time(static.nanoseconds)} over all NICs of a box: {times} ({never})"
    graph = found.best.demand.graph
    groups: dict[tuple[Fraction, int], list[int]] = defaultdict(list)
    for number, wait in enumerate(static.waits):
        groups[wait].append(number)
    texts = []
    for (time, link), ranks in sorted(groups.items(), reverse=True):
        if link < 0:
            continue
        way = f"{graph.names[graph.tail[link]]} -> {graph.names[graph.head[link]]}"
        texts.append(f"{_named(found, ranks)}: {in_time(time)} for {way}")
    yield from _headed("waits", texts, "groups")


def summary(found: Exchange) -> dict[str, Any]:
    """The same for machines: fractions as strings, ranks by number."""
    graph = found.best.demand.graph
    static = found.static
    return {
        "senders": [_entry(share) for share in found.senders],
        "receivers": [_entry(share) for share in found.receivers],
        "nearly": [
            {
                "nodes": [graph.names[v] for v in sorted(cut.nodes)],
                "way": "out" if cut.leaves else "in",
                "algbw": str(cut.algbw),
            }
            for cut in found.near
        ],
        "raise": [
            {
                "links": ends(graph, wider.links),
                "until": None if wider.until is None else str(wider.until),
                "algbw": str(wider.algbw),
                "limits": None
                if wider.then is None
                else list(limiting(replace(wider.then, demand=found.best.demand))),
            }
            for wider in found.wider
        ],
        "twice_uniform": None
        if found.twice is None
        else {
            "nanoseconds": str(found.twice.nanoseconds),
            "blocks": [str(share) for share in found.twice.shares],
        },
        "static": static
        if static is None or isinstance(static, str)
        else {
            "nanoseconds": str(static.nanoseconds),
            "factor": str(static.boxes.factor),
            "waits": [
                {"nanoseconds": str(time), "link": ends(graph, [link])[0] if link >= 0 else None}
                for time, link in static.waits
            ],
        },
    }


def _entry(share: Share) -> dict[str, Any]:
    return {"ranks": list(share.ranks), "share": str(share.of_all)}
