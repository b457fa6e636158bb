"""Places of a JSON value, and how one of them is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, value) of all that is no list or object, and of every empty list."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


def put(value: Any, path: tuple[Any, ...], new: object) -> None:
    """Replace what stands at the path."""
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new
