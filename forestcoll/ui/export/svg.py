"""SVG: the drawing of ui/view/svg.py as a file."""

from __future__ import annotations

from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.export.settings import Settings
from forestcoll.ui.view import Subject
from forestcoll.ui.view.svg import draw


def write(subject: Subject, settings: Settings) -> dict[str, bytes]:
    """The one file."""
    if settings.tree is not None and subject.forest is None:
        raise UnsupportedError(f"{subject.name}: no forest is known, so no tree can be drawn")
    text = draw(
        subject.graph(),
        forest=subject.forest,
        tree=settings.tree,
        title=subject.title,
        links=subject.links,
    )
    return {f"{subject.stem}.svg": text.encode()}
