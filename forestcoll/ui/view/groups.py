"""Groups of a placed job as a picture (SVG): GPUs, a colour a group, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from forestcoll.ui.report import words

if TYPE_CHECKING:
    from forestcoll.study.layout import Layout, RowResult

CELL = 22
"""Pixels of a GPU."""
ACROSS = 16
"""GPUs in a line at most."""
GAP = 8


def draw(done: Layout) -> str:
    """Rows of traffic below each other: on the left the topology's order, on the right placed."""
    graph = done.costs.fabric.graph
    boxes: dict[str, list[int]] = {}
    for gpu, node in enumerate(graph.ranks):
        boxes.setdefault(graph.box(node), []).append(gpu)
    default = tuple(range(len(done.placement)))
    width = CELL * min(ACROSS, max(map(len, boxes.values()))) + 90
    out: list[str] = []
    top = GAP
    for result in (result for step in done.steps for result in step.rows):
        before = "not served" if result.default is None else f"{words.rate(result.default)}"
        heads = (f"topology's order: {before}", f"placed: {words.rate(result.algbw)}")
        out.append(_text(GAP, top + 14, result.row.traffic.name, "bold"))
        bottom = top
        for side, (head, placement) in enumerate(
            zip(heads, (default, done.placement), strict=True)
        ):
            left = GAP + side * (width + 3 * GAP)
            out.append(_text(left, top + 32, head))
            bottom = max(bottom, _panel(out, left, top + 42, boxes, _homes(result, placement)))
        top = bottom + 2 * GAP
    size = 2 * width + 6 * GAP, top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'width="{size[0]}" height="{size[1]}" font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n"
    )


def _homes(result: RowResult, placement: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Per GPU (rank, number of its first unit)."""
    of = result.row.of
    return {gpu: (rank, of[rank][0]) for rank, gpu in enumerate(placement) if of[rank]}


def _panel(
    out: list[str],
    left: int,
    top: int,
    boxes: dict[str, list[int]],
    homes: dict[int, tuple[int, int]],
) -> int:
    """Boxes below each other, each with its GPUs; where the panel ends."""
    count = 1 + max(unit for _, unit in homes.values())
    for name, gpus in boxes.items():
        out.append(_text(left, top + 15, name))
        for place, gpu in enumerate(gpus):
            x = left + 80 + CELL * (place % ACROSS)
            y = top + CELL * (place // ACROSS)
            rank, unit = homes.get(gpu, (-1, -1))
            fill = "#ddd" if unit < 0 else f"hsl({360 * unit // count},65%,{60 + 15 * (unit % 2)}%)"
            out.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" '
                f'fill="{fill}"><title>rank {rank}, group {unit}</title></rect>'
            )
            if rank >= 0:
                out.append(_text(x + (CELL - 2) // 2, y + 14, str(rank), anchor="middle"))
        top += CELL * (1 + (len(gpus) - 1) // ACROSS) + GAP // 2
    return top


def _text(x: int, y: int, text: str, weight: str = "normal", anchor: str = "start") -> str:
    about = f'font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {about}>{escape(text)}</text>'
