"""Drawings: the fabric with the loads of a forest, or one of its trees, as SVG and for Graphviz.

In the graph boxes are clusters. Language: https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from itertools import pairwise

from forestcoll.common.arguments import whole
from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape
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
    lines += ["  node [style=filled, fillcolor=white];"]
    rank, names, boxes = graph.rank_of, graph.names, dict[str, list[int]]()
    for node in range(graph.n):
        boxes.setdefault(graph.box(node), []).append(node)
    for number, (box, nodes) in enumerate(boxes.items()):
        if box:
            lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(box)};"]
        for node in nodes:
            label = _quote(names[node].rpartition("/")[2])[:-1]
            label += f'\\nrank {rank[node]}"' if node in rank else '"'
            shape = "box" if graph.gpu[node] else "ellipse"
            text = f"{_quote(names[node])} [shape={shape}, label={label}];"
            lines.append(f"{'    ' if box else '  '}{text}")
        lines += ["  }"] * bool(box)
    if forest is not None and settings.tree is not None:  # its links in the direction of its data
        tree = forest.trees[whole("tree", settings.tree, 0, len(forest.trees) - 1)]
        steps = dict.fromkeys(step for path in tree.edges for step in pairwise(path))
        lines += [f"  {_quote(names[u])} -> {_quote(names[v])};" for u, v in steps]
        return _file(subject, lines)
    looks = {}
    for e, ends in enumerate(graph.ends):
        looks[ends] = f"{float(graph.bandwidth(e)):g} GB/s"
        if subject.links is not None:
            looks[ends] += f"\\n{float(subject.links[e].percent):.4g} %"
    for (u, v), label in looks.items():  # both directions as one edge where they are alike
        alike = looks.get((v, u)) == label
        if not alike or u < v:
            about = f'[label="{label}"{", dir=both" * alike}]'
            lines.append(f"  {_quote(names[u])} -> {_quote(names[v])} {about};")
    return _file(subject, lines)


def _file(subject: Subject, lines: list[str]) -> Files:
    lines += ["}", ""]
    return {f"{subject.stem}.dot": "\n".join(lines).encode()}


def _quote(text: str) -> str:
    return '"' + escape(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
