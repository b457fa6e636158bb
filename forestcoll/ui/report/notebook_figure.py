"""A figure that notebooks show as a picture, whether or not `%matplotlib inline` has been said."""

from __future__ import annotations

from io import BytesIO

from matplotlib import figure


class Figure(figure.Figure):
    """matplotlib's own, which alone has no picture: that comes with the state of `pyplot`."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
