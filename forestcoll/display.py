"""How values show themselves in notebooks: what draws them is looked up by name when it is needed.

So topologies, forests, programs and comparisons depend on nothing that draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

DRAWS = "forestcoll.report.notebook"
"""The module whose `bundle` and `figure` know the values."""


def bundle(value: object) -> dict[str, str]:
    """Texts by MIME type, as Jupyter's `_repr_mimebundle_` wants them."""
    found: dict[str, str] = import_module(DRAWS).bundle(value)
    return found


def figure(value: object, **options: Any) -> Any:
    """A figure of matplotlib."""
    return import_module(DRAWS).figure(value, **options)
