"""How values show themselves in notebooks: what draws them is looked up by name when it is needed.

So topologies, forests, programs and comparisons depend on nothing that draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DRAWS = "forestcoll.ui.report.notebook"
"""The module whose `bundle`, `frame` and `figure` know the values."""


class Shown:
    """A value that notebooks show as HTML or SVG, without a kernel."""

    __slots__ = ()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        bundle: dict[str, str] = import_module(DRAWS).bundle(self)
        return bundle

    def to_pandas(self) -> pd.DataFrame:
        """Its rows as a table of pandas (`pip install 'forestcoll[pandas]'`).

        A topology's and a forest's links, a program's instructions, a comparison's cells.
        """
        return import_module(DRAWS).frame(self)

    def plot(self, *, dark: bool = False, width: float = 10.0, **options: Any) -> Figure:
        """A figure of matplotlib (`pip install 'forestcoll[plot]'`), `width` inches wide.

        A topology and a forest: the fabric, of a forest with its loads or, with `tree=0`, one of
        its trees. A comparison: algbw and speed-up by size.
        """
        figure: Figure = import_module(DRAWS).figure(self, dark=dark, width=width, **options)
        return figure
