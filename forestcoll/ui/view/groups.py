"""Groups of a placed job as a picture (SVG): GPUs, a colour a group, before and after."""

from __future__ import annotations

from fractions import Fraction

from forestcoll.common.escape import escape_markup as escape
from forestcoll.schedule.placement_file import Placement
from forestcoll.ui.report import words

CELL = 22
"""Pixels of a GPU."""
ACROSS = 16
"""GPUs in a line at most."""
GAP = 8


def page(placement: Placement) -> str:
    """The picture in HTML."""
    title = f"<title>layout on {escape(placement.topology)}</title>"
    return f'<!DOCTYPE html>\n<meta charset="utf-8">\n{title}\n{draw(placement)}'


def draw(placement: Placement) -> str:
    """Rows of traffic below each other: on the left the topology's order, on the right placed."""
    boxes: dict[str, list[str]] = {}
    for gpu in placement.default_gpus:
        boxes.setdefault(gpu.rpartition("/")[0], []).append(gpu)
    width = CELL * min(ACROSS, max(map(len, boxes.values()))) + 90
    out: list[str] = []
    top = GAP
    for row in placement.rows:
        before = "not served" if row.default_algbw is None else _rate(row.default_algbw)
        out.append(_text(GAP, top + 14, f"{row.dim}:{row.collective}", "bold"))
        bottom, left = top, GAP
        for head, gpus in (
            (f"topology's order: {before}", placement.default_gpus),
            (f"placed: {_rate(row.algbw)}", placement.gpus),
        ):
            out.append(_text(left, top + 32, head))
            homes: dict[str, tuple[int, int]] = {}  # per GPU its rank, and that one's first group
            for number, group in enumerate(row.groups):
                for rank in group.ranks:
                    homes.setdefault(gpus[rank], (rank, number))
            count, foot = 1 + max(unit for _, unit in homes.values()), top + 42
            for name, own in boxes.items():
                out.append(_text(left, foot + 15, name))
                for place, gpu in enumerate(own):
                    x = left + 80 + CELL * (place % ACROSS)
                    y = foot + CELL * (place // ACROSS)
                    rank, unit = homes.get(gpu, (-1, -1))
                    fill = f"hsl({360 * unit // count},65%,{60 + 15 * (unit % 2)}%)"
                    fill = "#ddd" if unit < 0 else fill
                    out.append(
                        f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" '
                        f'fill="{fill}"><title>rank {rank}, group {unit}'
                        "</title></rect>"
                    )
                    if rank >= 0:
                        out.append(_text(x + (CELL - 2) // 2, y + 14, str(rank), anchor="middle"))
                foot += CELL * (1 + (len(own) - 1) // ACROSS) + GAP // 2
            bottom = max(bottom, foot)
            left += width + 3 * GAP
        top = bottom + 2 * GAP
    size = 2 * width + 6 * GAP, top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'width="{size[0]}" height="{size[1]}" font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n"
    )


def _rate(algbw: str) -> str:
    return words.rate(Fraction(algbw))


def _text(x: int, y: int, text: str, weight: str = "normal", anchor: str = "start") -> str:
    about = f'font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {about}>{escape(text)}</text>'
