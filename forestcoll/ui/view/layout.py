"""Where the nodes of a fabric are drawn: boxes in a grid, switches between boxes in layers above.

`lay_out(graph)` is the one home of positions: the page, the drawings and what others make of them
use the same. The unit is the distance of two neighbouring GPUs; x grows to the right, y downwards.

* In a box, GPUs stand in a grid below its switches; where GPUs are linked with each other, on a
  circle around them.
* GPUs, boxes and the switches of a layer stand in the order of their ranks.
* What stands outside of boxes is a box without a frame (GPUs), or lies in a layer: the first for
  switches that boxes are linked to, the next for those behind them, and so on upwards.
* Columns and rows are chosen so that the whole is about twice as wide as high.

Of boxes and switches that are alike one of each kind is drawn, in place of thousands
(`find_twins`). A box is alike another where its nodes, their links, what these carry and what they
lead to are the same (colour refinement, whole boxes at a time). A switch or a GPU outside of boxes
is a box of its own. What is drawn in their place is the first of each kind; kinds between whose
first ones links are missing that others have stay whole.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from forestcoll.graph.capacity_graph import CapacityGraph

ASPECT = 2.0
"""Width over height that is aimed at."""
ON_CIRCLE = 24
"""GPUs on a circle at most; more stand in a grid, linked or not."""
PADDING, GAP, LAYER, LABEL = 0.75, 0.8, 2.2, 0.3
"""Around the nodes of a box; between boxes; between layers; for a box's name, at its foot."""
SWITCH = 1.3
"""From one switch to the next."""

Point = tuple[float, float]


class Box(NamedTuple):
    """The frame of a box, and the nodes in it."""

    name: str
    left: float
    top: float
    right: float
    bottom: float
    nodes: tuple[int, ...]


class Layout(NamedTuple):
    """`x[v]`, `y[v]`: the middle of node v. Everything lies in [0, width] x [0, height].

    `layers[v]`: 0 in boxes and of GPUs, then 1, 2, ... upwards.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    layers: tuple[int, ...]
    boxes: tuple[Box, ...]
    width: float
    height: float


class _Inside(NamedTuple):
    """Places in a box, from its upper left corner."""

    places: Mapping[int, Point]
    width: float
    height: float


def lay_out(graph: CapacityGraph, among: Iterable[int] | None = None) -> Layout:
    """The positions of all nodes, or of those `among` alone: the others lie at 0, 0.

    Deterministic; linear in links but for sorting.
    """
    chosen = set(range(graph.n) if among is None else among)
    near: list[set[int]] = [set() for _ in range(graph.n)]
    for tail, head in graph.ends:
        if tail in chosen and head in chosen:
            near[tail].add(head)
            near[head].add(tail)
    rank = {node: float(number) for number, node in enumerate(graph.ranks)}
    boxes: dict[str, list[int]] = {}
    for node in sorted(chosen, key=lambda v: (rank.get(v, math.inf), v)):
        boxes.setdefault(graph.box(node), []).append(node)
    for name in [n for n, own in boxes.items() if not any(graph.gpu[v] for v in own)]:
        boxes.setdefault("", []).extend(boxes.pop(name) if name else [])
    loose = boxes.pop("", [])
    outer = [v for v in loose if not graph.gpu[v]]
    lone = [v for v in loose if graph.gpu[v]]
    if lone:
        boxes[""] = lone
    x, y = [0.0] * graph.n, [0.0] * graph.n
    layers = _layers(outer, near, graph.n)
    top = max((layers[v] for v in outer), default=0)
    above = LAYER * top + (0.3 if outer else 0.0)
    frames, width, bottom = _place_boxes(graph, boxes, near, above, x, y)
    wide = max([width, *(SWITCH * k for k in Counter(layers[v] for v in outer).values())])
    if wide > width:  # more switches than there is room for
        aside = (wide - width) / 2
        x = [at + aside for at in x]
        frames = tuple(f._replace(left=f.left + aside, right=f.right + aside) for f in frames)
    for inner in boxes.values():
        ranks_inside = [rank[v] for v in inner if v in rank]
        rank |= {v: fmean(ranks_inside) for v in inner if ranks_inside and v not in rank}
    for layer in range(1, top + 1):  # from left to right by the mean rank below
        nodes = [v for v in outer if layers[v] == layer]
        below = {v: [w for w in near[v] if layers[w] < layer] for v in nodes}
        for v in nodes:
            rank[v] = fmean([rank[w] for w in below[v] if w in rank] or [float(graph.n)])
        nodes.sort(key=lambda v: (round(rank[v], 6), v))
        step = wide / len(nodes)
        for k, v in enumerate(nodes):
            alone = len(nodes) == 1 and below[v]
            x[v] = fmean([x[w] for w in below[v]]) if alone else step * (k + 0.5)
            y[v] = LAYER * (top - layer) + 0.9
    return Layout(tuple(x), tuple(y), tuple(layers), frames, wide, bottom)


# --- boxes ----------------------------------------------------------------------------------------


def _place_boxes(
    graph: CapacityGraph,
    boxes: Mapping[str, Sequence[int]],
    near: Sequence[set[int]],
    above: float,
    x: list[float],
    y: list[float],
) -> tuple[tuple[Box, ...], float, float]:
    """Fills in x and y; the frames, the width and the height of all, the layers included."""
    best: tuple[float, int, int] | None = None
    most = max(sum(graph.gpu[v] for v in nodes) for nodes in boxes.values())
    largest = max(boxes.values(), key=lambda nodes: sum(graph.gpu[v] for v in nodes))
    for columns in sorted({math.ceil(most ** (k / 32)) for k in range(33)}):
        inside = _inside(graph, largest, near, columns)
        ragged = -most % columns / columns
        for across in range(1, len(boxes) + 1):
            rows = math.ceil(len(boxes) / across)
            width = across * (inside.width + GAP)
            height = rows * (inside.height + GAP) + above
            cost = abs(math.log(width / height / ASPECT)) + ragged
            cost += 0.5 * (across * rows - len(boxes)) / across
            cost += 0.15 * math.sqrt(rows - 1) * bool(above)  # links cross boxes
            if best is None or cost < best[0] - 1e-9:
                best = cost, columns, across
    assert best is not None  # there is a GPU
    _, columns, across = best
    insides = {name: _inside(graph, nodes, near, columns) for name, nodes in boxes.items()}
    wide = max(inside.width for inside in insides.values())
    high = max(inside.height for inside in insides.values())
    frames = []
    for number, (name, inside) in enumerate(insides.items()):
        row, column = divmod(number, across)
        left = column * (wide + GAP) + GAP / 2
        top = above + row * (high + GAP) + GAP / 2
        for node, (dx, dy) in inside.places.items():
            x[node], y[node] = left + dx, top + dy
        if name:
            right, bottom = left + inside.width, top + inside.height
            frames.append(Box(name, left, top, right, bottom, tuple(boxes[name])))
    rows = math.ceil(len(boxes) / across)
    return tuple(frames), across * (wide + GAP), above + rows * (high + GAP)


def _inside(
    graph: CapacityGraph, nodes: Sequence[int], near: Sequence[set[int]], columns: int
) -> _Inside:
    gpus = [v for v in nodes if graph.gpu[v]]
    switches = [v for v in nodes if not graph.gpu[v]]
    among = set(gpus)
    linked = any(near[v] & among for v in gpus)
    if not linked or not 3 <= len(gpus) <= ON_CIRCLE:
        return _grid(gpus, switches, min(columns, len(gpus)))
    radius = max(1.0, 1.25 * len(gpus) / (2 * math.pi))
    middle = radius + PADDING
    places = {}
    for k, node in enumerate(gpus):
        angle = 2 * math.pi * k / len(gpus) - math.pi / 2
        places[node] = middle + radius * math.cos(angle), middle + radius * math.sin(angle)
    for k, node in enumerate(switches):
        places[node] = middle + SWITCH * (k - (len(switches) - 1) / 2), middle
    return _Inside(places, 2 * middle, LABEL + 2 * middle)


def _grid(gpus: Sequence[int], switches: Sequence[int], columns: int) -> _Inside:
    """GPUs row by row, the switches in as many columns above them."""
    rows = math.ceil(len(gpus) / columns)
    width = columns - 1 + 2 * PADDING
    across = max(1, math.floor((width - 2 * PADDING) / SWITCH + 1.5))
    shelves = math.ceil(len(switches) / across)
    width = max(width, SWITCH * (min(across, len(switches)) - 1) + 2 * PADDING)
    places = {}
    for k, node in enumerate(switches):
        row, column = divmod(k, across)
        here = min(across, len(switches) - row * across)
        places[node] = width / 2 + SWITCH * (column - (here - 1) / 2), PADDING + row
    top = PADDING + shelves + 0.4 * bool(shelves)
    for k, node in enumerate(gpus):
        row, column = divmod(k, columns)
        places[node] = width / 2 + column - (columns - 1) / 2, top + row
    return _Inside(places, width, top + rows - 1 + PADDING + LABEL)


# --- layers ---------------------------------------------------------------------------------------


def _layers(outer: Sequence[int], near: Sequence[set[int]], n: int) -> list[int]:
    """Per node how many hops of outer switches lead to a box; 0 of what is no outer switch."""
    left = set(outer)
    layers = [0] * n
    reached = [v for v in outer if near[v] - left]
    depth = 1
    while left:
        for v in reached or sorted(left):
            layers[v] = depth
        left -= set(reached or left)
        reached = sorted({w for v in reached for w in near[v] if w in left})
        depth += 1
    return layers


# --- likeness -------------------------------------------------------------------------------------

MOST_DRAWN = 400
"""Nodes that are drawn one by one."""
MOST_ROUNDS = 24
"""Of what takes longer no two are taken as alike: lines of thousands of switches."""


def find_twins(graph: CapacityGraph, kinds: Sequence[int]) -> list[int]:
    """Per node the one that is drawn for it, itself where it is drawn. `kinds`: a number a link.

    Linear in links, times the rounds until no kind splits.
    """
    boxes: dict[Hashable, list[int]] = defaultdict(list)
    full = {graph.box(v) for v in range(graph.n) if graph.gpu[v]} - {""}
    for v in range(graph.n):
        boxes[graph.box(v) if graph.box(v) in full else v].append(v)
    members = list(boxes.values())
    of, name = [0] * graph.n, [""] * graph.n
    for number, nodes in enumerate(members):
        for v in nodes:
            of[v] = number
            name[v] = graph.names[v][len(graph.box(v)) :] if len(nodes) > 1 else ""
    ranks = set(graph.ranks)
    colours = _number([tuple((name[v], graph.gpu[v], v in ranks) for v in m) for m in members])
    for _ in range(MOST_ROUNDS):
        seen: list[Counter[Hashable]] = [Counter() for _ in members]
        for u, v, kind in graph.along(kinds):
            seen[of[u]][name[u], name[v], kind, colours[of[v]], of[u] == of[v]] += 1
            seen[of[v]][name[u], name[v], kind, colours[of[u]]] += 1
        finer = _number([(c, frozenset(s.items())) for c, s in zip(colours, seen, strict=True)])
        if max(finer) == max(colours):
            break
        colours = finer
    else:
        return list(range(graph.n))
    links = set(graph.ends)
    whole: set[int] = set()
    while True:
        first: dict[int, int] = {}
        twin = list(range(graph.n))
        for number, colour in enumerate(colours):
            if colour not in whole:
                own = members[first.setdefault(colour, number)]
                for v, w in zip(members[number], own, strict=True):
                    twin[v] = w
        torn = {
            colours[of[end]]
            for u, v in links
            if (twin[u], twin[v]) not in links or (of[u] != of[v] and of[twin[u]] == of[twin[v]])
            for end in (u, v)
        }
        if torn <= whole:
            return twin
        whole |= torn


def _number(values: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
