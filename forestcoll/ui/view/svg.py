"""A drawing of a fabric as SVG: links by how busy they are, or one tree of a forest.

One file for light and dark pages: its colours follow the reader's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from forestcoll.common.arguments import whole
from forestcoll.common.escape import escape_markup as escape
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.link_table import LinkTable
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.ui.view.layout import Layout, lay_out

UNIT = 46.0
"""Pixels of a layout's unit."""
TOP, BOTTOM, SIDE = 40.0, 58.0, 12.0
LEAST_WIDTH = 620.0
HEAT = ("#a4afbb", "#86aab0", "#5fa3a3", "#2f9590", "#00857a")
"""From idle to always busy; seen on white and on black."""
DEPTH = ("#0969da", "#1a7f64", "#8250df", "#bf3989", "#9a6700")
"""Edges of a tree by their hop, the first to move first."""
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.small{font-size:11px;fill:#57606a}
.page{fill:#fff}.box{fill:#f6f8fa;stroke:#afb8c1}.gpu{fill:#ddf4ff;stroke:#0969da}
.switch{fill:#fff8c5;stroke:#9a6700}.root{stroke-width:3.5}.faint{stroke:#d0d7de}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b1}.page{fill:#0d1117}
.box{fill:#161b22;stroke:#444c56}.gpu{fill:#12304f;stroke:#58a6ff}
.switch{fill:#3b2e0a;stroke:#d4a72c}.faint{stroke:#30363d}}
""".replace("\n", "")


def draw(
    graph: CapacityGraph,
    *,
    forest: Forest | None = None,
    tree: int | None = None,
    title: str = "",
    links: LinkTable | None = None,
) -> str:
    """The fabric; of a `forest` its links' loads, or its tree number `tree` alone.

    `links`: loads of something else than trees.

    Raises ArgumentError where the forest has no such tree.
    """
    layout = lay_out(graph)
    loads = links if forest is None else forest.links
    shown = None
    if forest is not None and tree is not None:
        shown = forest.trees[whole("tree", tree, 0, len(forest.trees) - 1)]
    width = max(LEAST_WIDTH, layout.width * UNIT + 2 * SIDE)
    height = layout.height * UNIT + TOP + BOTTOM
    left = (width - layout.width * UNIT) / 2
    body = [
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="title" x="{SIDE + 4:g}" y="25">{escape(title)}</text>',
        f'<g transform="translate({left:.1f} {TOP:g})">',
        *_boxes(layout),
        *_links(graph, layout, loads, faint=shown is not None),
        *(_tree(layout, shown) if shown is not None else ()),
        *_nodes(graph, layout, None if shown is None else shown.root),
        "</g>",
        *_legend(forest, shown, height, graph, busy=loads is not None),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
    )
    arrows = "".join(
        f'<marker id="a{k}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for k, colour in enumerate(DEPTH)
    )
    defined = f"<style>{STYLE}</style>\n<defs>{arrows}</defs>"
    return "\n".join([head, defined, *body, "</svg>", ""])


def heat(percent: float) -> str:
    """The colour of a link that is busy for so much of the time."""
    return HEAT[max(0, min(len(HEAT) - 1, math.floor(percent / 100 * len(HEAT) - 1e-9)))]


def _boxes(layout: Layout) -> Iterator[str]:
    for box in layout.boxes:
        x, y, foot = box.left * UNIT, box.top * UNIT, box.bottom * UNIT
        size = f'width="{box.right * UNIT - x:.1f}" height="{foot - y:.1f}"'
        yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" {size} rx="6"/>'
        yield f'<text class="small" x="{x + 8:.1f}" y="{foot - 8:.1f}">{escape(box.name)}</text>'


def _links(
    graph: CapacityGraph, layout: Layout, rows: LinkTable | None, *, faint: bool
) -> Iterator[str]:
    """Each pair of nodes once, by the busier of its directions."""
    busy: dict[tuple[int, int], tuple[float, float]] = {}
    for e, (u, v) in enumerate(graph.ends):
        percent = 0.0 if rows is None else float(rows[e].percent)
        pair = min(u, v), max(u, v)
        busiest = busy.get(pair, (0.0, 0.0))
        busy[pair] = max(busiest[0], percent), max(busiest[1], float(graph.bandwidth(e)))
    widest = max(rate for _, rate in busy.values())
    for (u, v), (percent, rate) in busy.items():
        width = 1.2 + 2.2 * math.sqrt(rate / widest)
        look = 'class="faint"' if faint else f'stroke="{heat(percent)}"'
        if rows is None and not faint:
            look = f'stroke="{HEAT[0]}"'
        yield f'<path d="{_line(layout, u, v)}" {look} stroke-width="{width:.1f}" fill="none"/>'


def _line(layout: Layout, u: int, v: int, aside: float = 0.0) -> str:
    """A line between the middles of two nodes, `aside` of the straight way and shorter."""
    (x, y), (p, q) = ((layout.x[n] * UNIT, layout.y[n] * UNIT) for n in (u, v))
    length = math.hypot(p - x, q - y) or 1.0
    if not aside:
        return f"M{x:.1f} {y:.1f}L{p:.1f} {q:.1f}"
    dx, dy = (p - x) / length, (q - y) / length
    cut = 17.0 if length > 40 else length / 3
    mx, my = (x + p) / 2 - dy * aside * length, (y + q) / 2 + dx * aside * length
    return (
        f"M{x + dx * cut:.1f} {y + dy * cut:.1f}Q{mx:.1f} {my:.1f} "
        f"{p - dx * cut:.1f} {q - dy * cut:.1f}"
    )


def _tree(layout: Layout, tree: Tree) -> Iterator[str]:
    """Every link of the tree once, in the colour of its hop from the root."""
    numbers = hops(tree)
    drawn: set[tuple[int, int]] = set()
    for path, hop in zip(tree.edges, numbers, strict=True):
        colour = (hop - 1) % len(DEPTH)
        for step in pairwise(path):
            if step not in drawn:
                drawn.add(step)
                line = _line(layout, *step, aside=0.07)
                look = f'stroke="{DEPTH[colour]}" marker-end="url(#a{colour})"'
                yield f'<path d="{line}" {look} stroke-width="2.2" fill="none"/>'


def hops(tree: Tree) -> list[int]:
    """Per edge of a tree the number of its hop, in time: 1 for those that wait for no other."""
    arrived: dict[int, int] = {}
    numbers = []
    for path in tree.edges:
        numbers.append(1 + arrived.get(path[0], 0))
        arrived[path[-1]] = max(numbers[-1], arrived.get(path[-1], 0))
    return numbers


def _nodes(graph: CapacityGraph, layout: Layout, root: int | None) -> Iterator[str]:
    rank = graph.rank_of
    for node, name in enumerate(graph.names):
        x, y = layout.x[node] * UNIT, layout.y[node] * UNIT
        marked = " root" if node == root else ""
        tip = f"<title>{escape(name)}</title>"
        if graph.gpu[node]:
            shape = f'class="gpu{marked}" x="{x - 14:.1f}" y="{y - 12:.1f}" width="28" height="24"'
            yield f'<g>{tip}<rect {shape} rx="4"/>'
            label = str(rank.get(node, "-"))
        else:
            shape = f'class="switch{marked}" cx="{x:.1f}" cy="{y:.1f}" rx="27" ry="12"'
            yield f"<g>{tip}<ellipse {shape}/>"
            label = short(name)
        size = ' class="small"' if len(label) > 3 else ""
        at = f'x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle"'
        yield f"<text{size} {at}>{escape(label)}</text></g>"


def short(name: str) -> str:
    """At most eight letters of what stands behind the last "/", the number among them."""
    name = name.rpartition("/")[2]
    stem = name.rstrip("0123456789")
    return name if len(name) <= 8 else stem[: 8 - len(name) + len(stem)] + name[len(stem) :]


def _legend(
    forest: Forest | None, tree: Tree | None, height: float, graph: CapacityGraph, *, busy: bool
) -> Iterator[str]:
    y = height - BOTTOM + 22
    yield f'<rect class="gpu" x="16" y="{y - 11:.1f}" width="20" height="16" rx="3"/>'
    yield f'<text x="42" y="{y + 2:.1f}">GPU, with its rank</text>'
    yield f'<ellipse class="switch" cx="186" cy="{y - 3:.1f}" rx="13" ry="8"/>'
    yield f'<text x="206" y="{y + 2:.1f}">switch</text>'
    if tree is not None and forest is not None:
        most = max(hops(tree))
        for k in range(min(most, len(DEPTH))):
            x = 268 + 64 * k
            yield f'<path d="M{x} {y - 3:.1f}h18" stroke="{DEPTH[k]}" stroke-width="2.5"/>'
            yield f'<text x="{x + 23}" y="{y + 2:.1f}">hop {k + 1}</text>'
        share = forest.share(tree)
        way = "from" if tree.phase == "broadcast" else "to"
        text = f"one tree of {forest.count}, {way} root "
        text += f"{graph.names[tree.root]}: {share} of the data"
        yield f'<text class="small" x="16" y="{y + 24:.1f}">{escape(text)}</text>'
        return
    rates = sorted({float(graph.bandwidth(e)) for e in range(len(graph.tail))}, reverse=True)
    listed = ", ".join(f"{rate:g}" for rate in rates[:6])
    listed += f" and {len(rates) - 6} more" if len(rates) > 6 else ""
    if busy:
        for k, colour in enumerate(HEAT):
            at = f'x="{268 + 26 * k}" y="{y - 8:.1f}" width="26" height="10"'
            yield f'<rect {at} fill="{colour}"/>'
        yield f'<text x="{276 + 26 * len(HEAT)}" y="{y + 2:.1f}">0 to 100 % of the time busy</text>'
    yield f'<text class="small" x="16" y="{y + 24:.1f}">links of {listed} GB/s each way</text>'
