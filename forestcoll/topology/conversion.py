"""What Python callers give in other types than a topology has: pydantic converts or refuses it.

A module of its own: what is read from a file has the right types already, and importing pydantic
takes longer than most commands.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from forestcoll.common.errors import TopologyError


def settle(value: Any) -> None:
    """Gives every field of a dataclass the type that it states; `TopologyError` where it cannot."""
    kind: type = type(value)
    for name, adapter in _adapters(kind).items():
        try:
            settled = adapter.validate_python(getattr(value, name))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"[{part!r}]" for part in first["loc"])
            raise TopologyError(
                f"{kind.__name__}: {name}{place}: {first['msg']}, not {first['input']!r}"
            ) from None
        object.__setattr__(value, name, settled)


@lru_cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(kind)}
