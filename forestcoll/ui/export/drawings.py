"""Drawings: the fabric with the loads of a forest, or one of its trees, as SVG and for Graphviz.

In the graph boxes are clusters. Language: https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from forestcoll.common.arguments import whole
from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.link_table import LinkTable
from forestcoll.schedule.forest import Forest
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.view import Subject
from forestcoll.ui.view.svg import draw


def svg(subject: Subject, settings: Settings) -> Files:
    """The drawing of `view/svg.py`."""
    _check_tree(subject, settings)
    text = draw(
        subject.graph(),
        forest=subject.forest,
        tree=settings.tree,
        title=subject.title,
        links=subject.links,
    )
    return {f"{subject.stem}.svg": text.encode()}


def _check_tree(subject: Subject, settings: Settings) -> None:
    if settings.tree is not None and subject.forest is None:
        raise UnsupportedError(f"{subject.name}: no forest is known, so no tree can be drawn")


def dot(subject: Subject, settings: Settings) -> Files:
    """The graph for Graphviz."""
    _check_tree(subject, settings)
    graph, forest = subject.graph(), subject.forest
    lines = [f"digraph {_quote(subject.title)} {{"]
    lines += [f"  graph [label={_quote(subject.title)}, labelloc=t, rankdir=TB];"]
    lines += ["  node [style=filled, fillcolor=white];", *_nodes(graph)]
    if forest is None or settings.tree is None:
        lines += _links(graph, subject.links)
    else:
        lines += _tree(forest, settings.tree)
    lines += ["}", ""]
    return {f"{subject.stem}.dot": "\n".join(lines).encode()}


def _quote(text: str) -> str:
    return '"' + escape(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _nodes(graph: CapacityGraph) -> Iterator[str]:
    rank = graph.rank_of
    boxes: dict[str, list[int]] = {}
    for node in range(graph.n):
        boxes.setdefault(graph.box(node), []).append(node)
    for number, (box, nodes) in enumerate(boxes.items()):
        indent = "    " if box else "  "
        if box:
            yield f"  subgraph cluster_{number} {{"
            yield f"    label={_quote(box)};"
        for node in nodes:
            name = graph.names[node]
            label = _quote(name.rpartition("/")[2])[:-1]
            label += f'\\nrank {rank[node]}"' if node in rank else '"'
            shape = "box" if graph.gpu[node] else "ellipse"
            yield f"{indent}{_quote(name)} [shape={shape}, label={label}];"
        if box:
            yield "  }"


def _links(graph: CapacityGraph, rows: LinkTable | None) -> Iterator[str]:
    """Each direction of a link, both as one edge where they are alike."""
    shares = [None] * len(graph.tail) if rows is None else [row.percent for row in rows]
    looks = {}
    for e, ends in enumerate(graph.ends):
        label = f"{float(graph.bandwidth(e)):g} GB/s"
        share = shares[e]
        looks[ends] = label if share is None else f"{label}\\n{float(share):.4g} %"
    for (u, v), label in looks.items():
        alike = looks.get((v, u)) == label
        if alike and u > v:
            continue
        both = ", dir=both" * alike
        yield f'  {_quote(graph.names[u])} -> {_quote(graph.names[v])} [label="{label}"{both}];'


def _tree(forest: Forest, number: int) -> Iterator[str]:
    """The links of one tree, in the direction of its data; numbers are the hops before."""
    tree = forest.trees[whole("tree", number, 0, len(forest.trees) - 1)]
    names, drawn = forest.graph.names, set()
    for path in tree.edges:
        for u, v in pairwise(path):
            if (u, v) not in drawn:
                drawn.add((u, v))
                yield f"  {_quote(names[u])} -> {_quote(names[v])};"
