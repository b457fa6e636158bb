"""How values show themselves in notebooks: HTML and SVG, whole in the file, for any reader.

`forestcoll.common.display` finds this module by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape_markup as escape
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import SENDS, Program
from forestcoll.schedule.forest import Forest
from forestcoll.study.comparison.outcome import Comparison
from forestcoll.study.figures import figures_of
from forestcoll.topology import Topology
from forestcoll.ui.report import comparison, figures, words
from forestcoll.ui.report.facts import bandwidth_facts
from forestcoll.ui.view.svg import draw
from forestcoll.verify.simulate import RULE_WORDS

NODES = 400
"""Nodes up to which a fabric is drawn."""
EDGES = 20_000
"""Edges of a forest up to which it is drawn: of a compact one, all its images."""

Bundle = dict[str, str]


def bundle(value: object) -> Bundle:
    """Texts by MIME type."""
    for kind, show in SHOWN:
        if isinstance(value, kind):
            return {"text/plain": repr(value), **show(value)}
    raise TypeError(f"{type(value).__name__} has no picture")


def figure(value: object, **options: Any) -> Any:
    """A figure of matplotlib."""
    if isinstance(value, Comparison):
        return figures.comparison(value, **options)
    if isinstance(value, Forest):
        return figures.fabric(value.graph, value, **options)
    if isinstance(value, Topology):
        return figures.fabric(CapacityGraph.from_topology(value), None, **options)
    raise UnsupportedError(f"there is no figure of a {type(value).__name__}; its forest has one")


def frame(value: object) -> Any:
    """A table of pandas."""
    try:
        import pandas
    except ImportError:
        raise UnsupportedError(
            "tables for pandas need pandas: pip install 'forestcoll[pandas]'"
        ) from None
    return pandas.DataFrame(list(_records(value)))


def _records(value: object) -> Iterator[dict[str, Any]]:
    """Rows of plain values."""
    if isinstance(value, Comparison):
        yield from value.rows()
    elif isinstance(value, Forest):
        for link in value.links:
            numbers = {key: float(getattr(link, key)) for key in ("bandwidth", "load", "percent")}
            yield {"src": link.src, "dst": link.dst, **numbers}
    elif isinstance(value, Topology):
        for src, dst, data in value.to_networkx().edges(data=True):
            latency = None if data["latency"] is None else float(data["latency"])
            rate = float(data["bandwidth"])
            more = {"latency": latency, "count": data["count"]}
            yield {"src": src, "dst": dst, "bandwidth": rate, **more}
    elif isinstance(value, Program):
        for rank, block, step, i in value.instructions():
            peers = [ref.rank for ref in (*i.src, *i.dst) if ref.rank not in (None, rank)]
            owner = value.ranks[rank].thread_blocks[block]
            if i.op in SENDS:
                peers.append(owner.send)
            yield {
                "rank": rank,
                "block": block,
                "step": step,
                "op": i.op.value,
                "chunks": max((ref.count for ref in (*i.src, *i.dst)), default=0),
                "peers": " ".join(map(str, peers)),
            }


def topology_bundle(topology: Topology) -> Bundle:
    """The fabric as a drawing; above NODES nodes as a table."""
    if len(topology.nodes) <= NODES and len(topology.gpus) > 1:
        svg = draw(CapacityGraph.from_topology(topology), title=topology.name)
        return {"image/svg+xml": svg, "text/html": svg}
    rows = [
        ("GPUs", str(len(topology.gpus))),
        ("switches", str(len(topology.nodes) - len(topology.gpus))),
        ("links", str(len(topology.links))),
    ]
    return {"text/html": html_table(topology.name, ("", ""), rows)}


def forest_bundle(forest: Forest) -> Bundle:
    """The fabric with the forest's loads, and its figures."""
    edges = forest.images * sum(len(tree.edges) for tree in forest.trees)
    rows = [
        *(line for fact in bandwidth_facts(figures_of(forest)) for line in fact.lines),
        ("trees", f"{forest.count}, {forest.trees_per_root} per root"),
        ("height", words.plural(forest.height, "hop")),
    ]
    title = f"{forest.collective} on {forest.name}"
    table = html_table(title, ("", ""), rows)
    if forest.graph.n > NODES or edges > EDGES:
        return {"text/html": table}
    svg = draw(forest.graph, forest=forest, title=title)
    return {"image/svg+xml": svg, "text/html": table + svg}


def program_bundle(program: Program) -> Bundle:
    """What every rank does, in numbers."""
    rows = []
    for number, rank in enumerate(program.ranks):
        steps = sum(len(block.steps) for block in rank.thread_blocks)
        name = program.names[number] if program.names else ""
        counts = (len(rank.thread_blocks), steps, rank.scratch_chunks)
        rows.append((str(number), name, *map(str, counts)))
    heads = ("rank", "node", "thread blocks", "steps", "scratch chunks")
    place = "in place" * program.in_place or "out of place"
    both = "in place and out of place" if program.in_place and program.out_of_place else place
    title = f"{program.collective}, {program.n} ranks, {program.style}, {program.protocol}, {both}"
    return {"text/html": html_table(title, heads, rows)}


def comparison_bundle(result: Comparison) -> Bundle:
    """For each rule ours and the best baseline by size, and everybody's algbw."""
    tables = []
    for rule in result.rules:
        title = f"{result.collective} on {result.name}, links {RULE_WORDS[rule]}"
        for rows in (comparison.ours(result, rule), comparison.everybody(result, rule)):
            tables.append(html_table(title, *rows.cells[:2]))
    return {"text/html": "".join(tables)}


SHOWN: tuple[tuple[type, Callable[[Any], Bundle]], ...] = (
    (Topology, topology_bundle),
    (Forest, forest_bundle),
    (Program, program_bundle),
    (Comparison, comparison_bundle),
)


def html_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table with a caption; everything escaped."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f"<table><caption>{escape(title)}</caption>{top}<tbody>{body}</tbody></table>"
