"""The page: one HTML file with its data, style and program in it; it asks for nothing else.

Its data are one block of bytes: JSON, then typed arrays in planes of bytes, deflated.

    bytes 0-3            length of the JSON, little-endian
    the JSON             texts, exact figures, and `arrays`: name -> [type, elements, offset]
    the arrays           first all lowest bytes, then all second bytes, ...: that deflates well

page/data.js reads it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate, groupby
from typing import Any, TypeVar

import numpy as np

from forestcoll.common.arguments import whole
from forestcoll.common.escape import escape, escape_markup
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.link_table import LinkTable
from forestcoll.schedule.forest import Bound, Forest, Tree
from forestcoll.topology import show
from forestcoll.ui.report.words import plural
from forestcoll.ui.view.layout import MOST_DRAWN, Layout, find_twins, lay_out
from forestcoll.ui.view.subject import NO_ORDER, Subject
from forestcoll.ui.view.svg import hops, short
from forestcoll.ui.view.timeline import (
    LOCAL,
    PHASES,
    WORK,
    Overlap,
    Row,
    Work,
    assign_rows,
    find_phases,
    name_row,
    overlap,
)
from forestcoll.verify.simulate import Timing

H = TypeVar("H", bound=Hashable)

MOST_PATH_NODES = 150_000
"""Of the trees in a page."""
MOST_BARS = 60_000
"""Of the time line in a page."""
AIMED_BARS = 33_000
MOST_PIECES = 8
MOST_CUTS = 12
MOST_KINDS = 6
"""Of links by their bandwidth; the slower ones are one more with the last."""
TICKS = 2**24
"""Steps of the clock, from the start to the end of the run."""


@dataclass
class Block:
    """What is known of a graph: texts and arrays so far."""

    graph: CapacityGraph
    meta: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def put(self, name: str, values: Iterable[float], kind: str = "u") -> None:
        """An array of type u1, u2, u4, i4 or f4; u: the narrowest that holds the values."""
        array = np.asarray(list(values))
        if kind == "u":
            most = int(array.max(initial=0))
            kind = "u1" if most < 1 << 8 else "u2" if most < 1 << 16 else "u4"
        self.arrays[name] = array.astype(f"<{kind}")

    def pack(self) -> bytes:
        """The whole of it, deflated."""
        places, parts, offset = {}, [], 0
        for name, values in self.arrays.items():
            size = values.dtype.itemsize
            parts.append(values.view(np.uint8).reshape(-1, size).T.tobytes())
            places[name] = [f"{values.dtype.kind}{size}", len(values), offset]
            offset += len(parts[-1])
        text = json.dumps({**_escape(self.meta), "arrays": places}, separators=(",", ":")).encode()
        return zlib.compress(len(text).to_bytes(4, "little") + text + b"".join(parts), 9)

    def put_fabric(self, layout: Layout) -> None:
        graph = self.graph
        rank = graph.rank_of
        self.meta |= {
            "nodes": graph.names,
            "short": [short(name) for name in graph.names],
            "size": [layout.width, layout.height],
            "boxes": _frames(layout),
        }
        self.put("x", layout.x, "f4")
        self.put("y", layout.y, "f4")
        self.put("gpu", graph.gpu, "u1")
        self.put("rank", (rank.get(v, -1) for v in range(graph.n)), "i4")
        self.put("tail", graph.tail)
        self.put("head", graph.head)

    def put_small(self, kinds: Sequence[int]) -> None:
        """The same fabric with one box of each kind, where that is much less to look at."""
        graph = self.graph
        twins = find_twins(graph, kinds)
        counts = Counter(twins)
        if 2 * len(counts) > graph.n:
            return
        layout = lay_out(graph, counts)
        names = []
        for box in layout.boxes:
            more = counts[box.nodes[0]] - 1
            names.append(f"{box.name} and {more:,} alike" if more else box.name)
        self.meta["folded"] = {
            "size": [layout.width, layout.height],
            "boxes": [[name, *f[1:]] for name, f in zip(names, _frames(layout), strict=True)],
            "note": f"{len(counts):,} of {graph.n:,} nodes, one of each that are alike; "
            "g shows all",
        }
        self.put("twin", twins)
        self.put("foldedX", layout.x, "f4")
        self.put("foldedY", layout.y, "f4")

    def put_loads(self, loads: LinkTable | None, timing: Timing | None) -> list[int]:
        """Links in classes of the same figures: bandwidth, and where known load and percent, exact.

        The class of each link.
        """
        graph = self.graph
        classes: dict[tuple[str, ...], int] = {}
        numbers = []
        for e in range(len(graph.tail)):
            figures: tuple[str, ...] = (str(graph.bandwidth(e)),)
            if loads is not None:
                figures += (str(loads[e].load), str(loads[e].percent))
            numbers.append(classes.setdefault(figures, len(classes)))
        rates = sorted({graph.bandwidth(e) for e in range(len(graph.tail))}, reverse=True)
        kinds = [f"links of {float(f'{float(rate):.4g}'):g} GB/s" for rate in rates[:MOST_KINDS]]
        kinds[-1] += " or less" * (len(rates) > MOST_KINDS)
        kind = {str(rate): min(k, MOST_KINDS - 1) for k, rate in enumerate(rates)}
        self.meta |= {"classes": list(classes), "kinds": kinds}
        self.put("linkClass", numbers)
        self.put("classKind", (kind[figures[0]] for figures in classes), "u1")
        if timing is not None:
            self.put("linkBytes", (use.bytes for use in timing.links), "f4")
            self.put("linkUse", (100 * use.utilisation for use in timing.links), "f4")
        return numbers

    def put_cuts(self, bound: Bound | None, limit: str) -> None:
        """Of a cut the side with fewer GPUs, of a partition or a linear program its first parts."""
        graph = self.graph
        everything = frozenset(range(graph.n))
        parts = [] if bound is None else list(bound.parts[:MOST_CUTS])
        if bound is not None and bound.method == "cut":
            parts = [
                min((side, everything - side), key=lambda v: _gpus(graph, v)) for side in parts
            ]
        self.meta["limit"] = limit
        several = bound is not None and len(bound.parts) > 1
        self.meta["cuts"] = [
            {
                "name": f"part {number} of {len(bound.parts)}" if bound and several else "one side",
                "text": f"{_gpus(graph, part)} of {sum(graph.gpu)} GPUs, {len(part)} of {graph.n} "
                f"nodes: {float(graph.leaving(everything - part)):.6g} GB/s in, "
                f"{float(graph.leaving(part)):.6g} GB/s out",
            }
            for number, part in enumerate(parts, 1)
        ]
        self.put("cutSizes", (len(part) for part in parts))
        self.put("cutNodes", (v for part in parts for v in sorted(part)))

    def put_trees(self, forest: Forest, wanted: Sequence[int]) -> None:
        numbers = list(wanted) or list(range(len(forest.trees)))
        chosen: list[tuple[int, Tree]] = []
        room = MOST_PATH_NODES
        for number in numbers:
            tree = forest.trees[whole("tree", number, 0, len(forest.trees) - 1)]
            room -= sum(map(len, tree.edges))
            if room < 0 and chosen:
                break
            chosen.append((number, tree))
        many = forest.images > 1
        notes = []
        if len(chosen) < len(forest.trees):
            notes.append(f"{len(chosen)} of {len(forest.trees)} trees are in this page (--tree N)")
        if many:
            notes.append(
                f"each stands for {forest.images} images, one for each symmetry of the fabric"
            )
        self.meta["treesNote"] = "; ".join(notes)
        self.meta["trees"] = [
            [number, tree.root, tree.phase, str(forest.share(tree))] for number, tree in chosen
        ]
        edges = [path for _, tree in chosen for path in tree.edges]
        self.put("treeEdges", (len(tree.edges) for _, tree in chosen))
        self.put("pathSizes", map(len, edges))
        self.put("pathNodes", (v for path in edges for v in path))
        self.put("treeHops", (hop for _, tree in chosen for hop in hops(tree)))

    def put_run(self, subject: Subject, timing: Timing, beside: Overlap | None = None) -> None:
        entries = assign_rows(timing)
        rows = [
            (row, [s for _, s in entries_of_row])
            for row, entries_of_row in groupby(entries, key=lambda e: e[0])
        ]
        ranks = len(self.graph.ranks)
        counted = list(accumulate(len(spans) for _, spans in rows))
        over = (row.rank for (row, _), bars in zip(rows, counted, strict=True) if bars > MOST_BARS)
        last = max((row.rank for row, _ in rows), default=0)
        shown = next(
            (rank for rank in over if rank), last + 1
        )  # the rank before which MOST_BARS end
        kept = [(row, entries_of_row) for row, entries_of_row in rows if row.rank < shown]
        names = [name_row(row, trees=subject.program is None) for row, _ in kept]
        note = f"ranks 0 to {shown - 1} of {ranks}" if shown < ranks else ""
        notes, blocks, end = [note, note], len(kept), timing.time
        if beside is not None:  # their rows come last
            if len(beside.bars) <= AIMED_BARS:
                shown, notes[1] = ranks, ""
            end, bars = beside.end, groupby(beside.bars, key=lambda bar: (bar.rank, bar.block))
            kept += [(Row(*k, 0, 0), [*g]) for k, g in bars if k[0] < shown]
            names += [f"tile {spans[0].block}" for _, spans in kept[blocks:]]
        spans = [span for _, entries_of_row in kept for span in entries_of_row]
        ways = _number(span.links for span in spans)
        words = _number(span.what for span in spans)
        amounts = _number(span.bytes for span in spans)
        phase = find_phases(subject)
        phases = _number((*PHASES, LOCAL, *WORK))
        forest = subject.forest
        self.meta["run"] = {
            "time": end,
            "size": timing.size,
            "ticks": TICKS,
            "words": list(words),
            "phases": list(phases),
            "trees": subject.program is None and forest is not None and forest.images == 1,
            "amounts": list(amounts),
            "names": names,
            "blocks": blocks,
            "notes": notes,
        }
        tick = TICKS / end if end else 0.0
        gaps, lengths = [], []
        for _, entries_of_row in kept:
            before = 0
            for span in entries_of_row:
                start, end = round(span.start * tick), round(span.end * tick)
                gaps.append(max(0, start - before))
                lengths.append(max(0, end - max(start, before)))
                before = max(before, end)
        self.put("rowRank", (row.rank for row, _ in kept))
        self.put("rowBars", (len(entries_of_row) for _, entries_of_row in kept))
        self.put("gap", gaps)
        self.put("length", lengths)
        self.put(
            "phase", (phases[span.what if span.what in WORK else phase(span)] for span in spans)
        )
        self.put("what", (words[span.what] for span in spans))
        self.put("step", (max(0, span.step) for span in spans))
        self.put("amount", (amounts[span.bytes] for span in spans))
        self.put("way", (ways[span.links] for span in spans))
        self.put("waySizes", map(len, ways))
        self.put("wayLinks", (link for way in ways for link in way))
        self.put_link_rows()

    def put_link_rows(self) -> None:
        """A row for each direction of a link: a rank's together, out before in; switches' last."""
        graph = self.graph
        rank = graph.rank_of
        rows = []
        for e, (tail, head) in enumerate(graph.ends):
            out, names = tail in rank, [short(graph.names[v]) for v in (tail, head)]
            owner, far = (tail, head) if out else (head, tail)
            other = f"rank {rank[far]}" if far in rank else names[out]
            name = f"{'to' if out else 'from'} {other}" if owner in rank else " > ".join(names)
            rows.append((rank.get(owner, len(rank)), not out, e, name))
        rows.sort()
        self.meta["linkNames"] = [name for *_, name in rows]
        self.put("linkOrder", (e for _, _, e, _ in rows))
        self.put("linkOwner", (r if r < len(rank) else -1 for r, *_ in rows), "i4")


def _escape(value: Any) -> Any:
    """The value with all its texts, which may hold anybody's names, fit to be shown."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {key: _escape(inner) for key, inner in value.items()}
    return [*map(_escape, value)] if isinstance(value, list | tuple) else value


def collect(
    subject: Subject,
    size: int,
    limit: str,
    trees: Sequence[int] = (),
    work: Work | None = None,
) -> bytes:
    """All that the page shows of a subject. `limit`: what bounds its algbw, in words.

    `trees`: their numbers; none: all, as far as they fit. `work`: what goes on beside a plan, tile
    by tile. Raises what `Subject.simulate` and `tiles.overlap` do.
    """
    graph, forest = subject.graph(), subject.forest
    block, layout = Block(graph), lay_out(graph)
    beside = None if work is None else overlap(subject, size, work)
    timing, why, pieces = None, "", 1
    edges = 0 if forest is None else forest.images * sum(len(tree.edges) for tree in forest.trees)
    if subject.program is None:
        pieces = max(1, min(MOST_PIECES, AIMED_BARS // max(1, edges)))
    if beside is not None:
        timing, subject = beside.timing, beside.subject
    elif subject.kind == "exchange":
        why = f"No time line: {NO_ORDER}."
    elif subject.program is None and edges > MOST_BARS:
        why = (
            f"No time line: the forest's trees have {edges:,} edges, more than the "
            f"{MOST_BARS:,} bars that a page holds. View a plan, or fewer GPUs."
        )
    elif subject.kind != "topology":
        timing = subject.simulate(size, pieces=pieces)
    switches = plural(graph.n - sum(graph.gpu), "switch")
    links = plural(len(graph.tail), "link")
    facts = [["fabric", f"{len(graph.ranks)} ranks, {switches}, {links}"]]
    facts += map(list, subject.said)
    if forest is not None:
        high = plural(forest.height, "hop")
        facts.append(["trees", f"{forest.count}, {high} high at most"])
    if beside is not None:
        facts.append(["overlap", f"{beside.timing.size:,} bytes in {beside.said}"])
    elif timing is not None:
        run = f"{timing.size:,} bytes in {timing.time:.6g} us: {timing.algbw:.5g} GB/s"
        facts.append(["shown run", f"{run}, each link by its own rule"])
    block.meta |= {"title": subject.title, "facts": facts}
    block.put_fabric(layout)
    if subject.kind == "topology":
        facts += _parts(graph, layout)
    kinds = block.put_loads(subject.links, timing)
    if graph.n > MOST_DRAWN:
        block.put_small(kinds)
    if forest is not None:
        block.put_trees(forest, trees)
        block.put_cuts(forest.bound, limit)
    if timing is not None:
        block.put_run(subject, timing, beside)
    block.meta["whyNoRun"] = why
    return block.pack()


# --- the fabric -----------------------------------------------------------------------------------


def _frames(layout: Layout) -> list[list[str | float]]:
    return [
        [box.name, *(round(v, 3) for v in (box.left, box.top, box.right, box.bottom))]
        for box in layout.boxes
    ]


def _gpus(graph: CapacityGraph, nodes: frozenset[int]) -> int:
    return sum(graph.gpu[v] for v in nodes)


# --- trees ----------------------------------------------------------------------------------------


# --- the run --------------------------------------------------------------------------------------


def _number(values: Iterable[H]) -> dict[H, int]:
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


# --- the fabric in words --------------------------------------------------------------------------


def _parts(graph: CapacityGraph, layout: Layout) -> list[list[str]]:
    """What a topology is made of: boxes, switches by where they stand, GB/s of a rank."""
    facts = []
    sizes = Counter(sum(graph.gpu[v] for v in box.nodes) for box in layout.boxes)
    if sizes:
        parts = [f"{count:,} of {size} GPU{'s' * (size > 1)}" for size, count in sizes.items()]
        facts.append(["boxes", ", ".join(parts)])
    tiers = Counter(layout.layers[v] for v in range(graph.n) if not graph.gpu[v])
    if tiers:
        places = [f"{tiers[k]:,} {f'in tier {k}' if k else 'in boxes'}" for k in sorted(tiers)]
        facts.append(["switches", ", ".join(places)])
    words = []
    for ends, name in ((graph.tail, "out"), (graph.head, "in")):
        rates = [0] * graph.n
        for node, capacity in zip(ends, graph.capacity, strict=True):
            rates[node] += capacity
        own = {rates[node] for node in graph.ranks}
        span = [show(rate * graph.unit) for rate in sorted({min(own), max(own)})]
        words.append(f"{' to '.join(span)} GB/s {name}")
    facts.append(["each rank", ", ".join(words)])
    return facts


# --- the page -------------------------------------------------------------------------------------

SCRIPTS = (
    "data.js",
    "palette.js",
    "camera.js",
    "lines.js",
    "fabric.js",
    "run.js",
    "timeline.js",
    "panel.js",
    "hash.js",
    "main.js",
)
"""In the order in which they are run; each is one script, so that all share their names."""


@cache
def _part(name: str) -> str:
    return files("forestcoll.ui.view").joinpath("page", name).read_text(encoding="utf-8")


def page(title: str, data: bytes) -> str:
    """The HTML of a page; `data` as `data.collect` makes it."""
    scripts = "\n".join(_part(name) for name in SCRIPTS)
    values = {
        "TITLE": escape_markup(title),
        "STYLE": _part("style.css"),
        "SCRIPT": scripts,
        "DATA": base64.b64encode(data).decode(),
    }
    before, *rest = _part("page.html").split("{{")
    out = [before]
    for piece in rest:
        name, _, text = piece.partition("}}")
        out += [values[name], text]
    return "".join(out)
