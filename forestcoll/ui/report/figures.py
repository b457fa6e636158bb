"""Figures of matplotlib, made without its global state: light or dark, any width."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from forestcoll.common.arguments import whole
from forestcoll.common.errors import UnsupportedError
from forestcoll.study.comparison.outcome import OURS
from forestcoll.ui.report import words
from forestcoll.ui.view.layout import Layout, lay_out
from forestcoll.ui.view.svg import HEAT, hops
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.schedule.forest import Forest
    from forestcoll.study.comparison.outcome import Comparison

LIGHT = {"page": "#ffffff", "text": "#1f2328", "faint": "#d0d7de", "ours": "#0550ae"}
DARK = {"page": "#0d1117", "text": "#e6edf3", "faint": "#30363d", "ours": "#79c0ff"}
COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8250df")
"""Told apart by most eyes, on white and on black (after Okabe and Ito)."""
DASHES = ("-", "--", ":")
HEIGHT = 3.1
"""Inches of a row of axes."""


def new_figure(width: float, height: float, dark: bool) -> tuple[Figure, dict[str, str]]:
    """An empty figure and its colours. Raises UnsupportedError where matplotlib is missing.

    Notebooks show it as a picture, whether or not `%matplotlib inline` has been said: matplotlib's
    own has one only with the state of `pyplot`.
    """
    try:
        from matplotlib import figure
    except ImportError:
        raise UnsupportedError("plots need matplotlib: pip install 'forestcoll[plot]'") from None

    class Figure(figure.Figure):
        def _repr_png_(self) -> bytes:
            return save(self, "png", dpi=None)

    colours = DARK if dark else LIGHT
    new = Figure(figsize=(width, height), layout="constrained", facecolor=colours["page"])
    return new, colours


def save(figure: Figure, form: str, dpi: int | None = 150) -> bytes:
    """The figure as a file, "svg" or "png": the same bytes for the same figure."""
    from matplotlib import rc_context

    data = BytesIO()
    plain = {"Date": None} if form == "svg" else None
    with rc_context({"svg.hashsalt": "forestcoll"}):
        figure.savefig(data, format=form, dpi=dpi or "figure", metadata=plain)
    return data.getvalue()


def style(axes: Axes, colours: dict[str, str], title: str, x: str, y: str) -> None:
    """Title, labels with units, and colours of axes."""
    axes.set_facecolor(colours["page"])
    axes.set_title(title, color=colours["text"], fontsize=10, loc="left")
    axes.set_xlabel(x, color=colours["text"])
    axes.set_ylabel(y, color=colours["text"])
    axes.tick_params(colors=colours["text"], which="both")
    axes.grid(True, color=colours["faint"], linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(colours["faint"])


def comparison(result: Comparison, *, dark: bool = False, width: float = 10.0) -> Figure:
    """algbw over size for each rule of links, and below how many times as fast ours is."""
    figure, colours = new_figure(width, 2 * HEIGHT + 1.3, dark)
    title = f"{result.collective} on {result.name}, {result.ranks} ranks, simulated"
    figure.suptitle(title, color=colours["text"], fontsize=12, x=0.01, ha="left")
    columns = len(result.rules)
    grid = figure.subplots(2, columns, sharex=True, sharey="row", squeeze=False)
    for column, rule in enumerate(result.rules):
        above, below = grid[0][column], grid[1][column]
        style(above, colours, f"Links {RULE_WORDS[rule]}: bandwidth", "", "algbw (GB/s)")
        style(
            below,
            colours,
            f"Links {RULE_WORDS[rule]}: speed-up",
            "size (bytes)",
            "times the best baseline",
        )
        bound = float(result.bound)
        above.axhline(bound, color=colours["text"], linestyle="-.", linewidth=1, label="bound")
        others = [entrant.name for entrant in result.present if entrant.name != OURS]
        for number, name in enumerate([*others, OURS]):
            cells = [c for s in result.sizes if (c := result.cell(name, s, rule)) is not None]
            look: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
                "linewidth": 1.3,
            }
            if name == OURS:
                look = {"color": colours["ours"], "linewidth": 2.6, "marker": "o", "markersize": 4}
            above.plot([c.size for c in cells], [c.algbw for c in cells], label=name, **look)
        above.set_xscale("log", base=2)
        above.set_yscale("log")
        below.axhline(1, color=colours["text"], linestyle="-.", linewidth=1)
        shown = [(OURS, colours["ours"], "o")]
        shown += [(e.name, COLOURS[0], "s") for e in result.present if e.kind == "old"]
        for name, colour, marker in shown:
            rates = [(s, result.speedup(s, rule, name)) for s in result.sizes]
            measured = [pair for pair in rates if pair[1] is not None]
            xs, ys = [size for size, _ in measured], [rate for _, rate in measured]
            below.plot(xs, ys, color=colour, marker=marker, markersize=4, linewidth=2)
        below.set_ylim(bottom=0)
        for axes in (above, below):
            _name_sizes(axes, result)
        if column:
            above.set_ylabel("")
            below.set_ylabel("")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(2, int(width / 2.1)),
        frameon=False,
        labelcolor=colours["text"],
        fontsize=9,
    )
    return figure


def _name_sizes(axes: Axes, result: Comparison) -> None:
    """A few sizes in words: labels of all would overlap."""
    step = -(-len(result.sizes) // 4)
    ticks = list(result.sizes[::step])
    axes.set_xticks(ticks, [words.size(size) for size in ticks])
    axes.minorticks_off()


def fabric(
    graph: CapacityGraph,
    forest: Forest | None,
    *,
    tree: int | None = None,
    dark: bool = False,
    width: float = 10.0,
) -> Figure:
    """The fabric; of a forest how busy its links are, or one of its trees, hop by hop."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.ticker import MaxNLocator

    layout = lay_out(graph)
    height = max(2.6, width * min(1.2, (layout.height + 1) / max(layout.width, 1)))
    figure, colours = new_figure(width, height, dark)
    axes = figure.subplots()
    axes.set_axis_off()
    what = f"{len(graph.ranks)} ranks" if forest is None else f"{forest.collective}, {forest.name}"
    lines, values, label = _strokes(graph, layout, forest, tree)
    axes.set_title(f"{what}: {label}", color=colours["text"], fontsize=10, loc="left")
    heat = LinearSegmentedColormap.from_list("heat", HEAT)  # seen on white and on black
    scale = Normalize(0, max([*values, 1e-9]))
    strokes = LineCollection(lines, array=values, cmap=heat, norm=scale, linewidths=2)
    axes.add_collection(strokes)
    size = 9 if graph.n <= 64 else 4
    for switch, marker, colour in ((False, "o", colours["ours"]), (True, "s", COLOURS[3])):
        nodes = [v for v in range(graph.n) if graph.gpu[v] is not switch]
        xs, ys = [layout.x[v] for v in nodes], [layout.y[v] for v in nodes]
        name = "switch" if switch else "GPU"
        axes.plot(xs, ys, marker, color=colour, markersize=size, label=name, zorder=3)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.margins(0.05)
    bar = figure.colorbar(strokes, ax=axes, shrink=0.8, ticks=MaxNLocator(integer=True))
    bar.set_label(label, color=colours["text"])
    bar.ax.tick_params(colors=colours["text"])
    figure.legend(
        loc="outside lower center", ncols=2, frameon=False, labelcolor=colours["text"], fontsize=9
    )
    return figure


def _strokes(
    graph: CapacityGraph, layout: Layout, forest: Forest | None, tree: int | None
) -> tuple[list[list[tuple[float, float]]], list[float], str]:
    """Lines between nodes, a value for each, and what the values are with their unit."""

    def ends(u: int, v: int) -> list[tuple[float, float]]:
        return [(layout.x[u], layout.y[u]), (layout.x[v], layout.y[v])]

    pairs = list(graph.ends)
    if forest is None:
        if tree is not None:
            raise UnsupportedError("a fabric alone has no trees: plot a forest")
        widths = [float(graph.bandwidth(e)) for e in range(len(pairs))]
        return [ends(u, v) for u, v in pairs], widths, "bandwidth of a link (GB/s)"
    if tree is None:
        busy = [float(link.percent) for link in forest.links]
        order = sorted(range(len(pairs)), key=lambda e: busy[e])  # the busiest on top
        label = "how busy a link is (%)"
        return [ends(*pairs[e]) for e in order], [busy[e] for e in order], label
    shown = forest.trees[whole("tree", tree, 0, len(forest.trees) - 1)]
    numbers = hops(shown)
    lines, values = [], []
    for path, hop in zip(shown.edges, numbers, strict=True):
        for u, v in pairwise(path):
            lines.append(ends(u, v))
            values.append(float(hop))
    return lines, values, f"tree {tree}, hops in time"
