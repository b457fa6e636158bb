"""The links that limit an all-to-all, in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.ui.report import words

if TYPE_CHECKING:
    from forestcoll.solver.alltoall.flows import Optimum

LINKS_NAMED = 3
"""Links of one kind that are named one by one."""
KINDS_SHOWN = 4
"""Kinds of limiting links that are told before "and 3 kinds more"."""


def limits_of(best: Optimum) -> list[str]:
    """The links that limit it, those of few kinds."""
    limits = list(limiting(best))
    shown = limits[:KINDS_SHOWN]
    if len(limits) > KINDS_SHOWN:
        shown.append(f"and {words.plural(len(limits) - KINDS_SHOWN, 'kind')} of links more")
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
        text = _links(best, links, whole=len(links) == of_look[key[:2]])
        if len(chosen) > 1:
            share = Fraction(100 * weight[key], sum(weight.values()))
            text += f", {words.decimal(share, 1)} % of the weight"
        yield text


def _links(best: Optimum, links: list[int], whole: bool) -> str:
    """`"fabric -> box0/gpu* (7 links of 25 GB/s)"`; `whole`: these are all that look like it."""
    graph = best.demand.graph
    tail = _pattern([graph.names[graph.tail[e]] for e in links])
    head = _pattern([graph.names[graph.head[e]] for e in links])
    each = f"{words.decimal(graph.bandwidth(links[0]))} GB/s"
    if len(links) <= LINKS_NAMED and not whole:
        named = [f"{graph.names[graph.tail[e]]} -> {graph.names[graph.head[e]]}" for e in links]
        return f"{', '.join(named)} ({each}{' each' * (len(links) > 1)})"
    return f"{'every ' * whole}{tail} -> {head} ({len(links)} links of {each})"


def _pattern(names: list[str]) -> str:
    """One text for names that differ in numbers alone: `*` where those differ."""
    pieces = [re.split(r"(\d+)", name) for name in names]
    return "".join(
        column[0] if len(set(column)) == 1 else "*" for column in zip(*pieces, strict=True)
    )
