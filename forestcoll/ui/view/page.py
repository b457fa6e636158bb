"""The page: one HTML file with its data, style and program in it; it asks for nothing else."""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files

from forestcoll.common.escape import escape_markup as escape

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
        "TITLE": escape(title),
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
