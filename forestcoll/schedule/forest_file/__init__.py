"""Forests as files: JSON that carries the whole topology, the trees, and the proof (exact).

    writing   Forest -> text
    model     the format, as pydantic models (`forest.schema.json` beside this folder is theirs)
    reading   text -> Forest

Model and reading are imported when a file is read: importing pydantic takes longer than making most
forests.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from forestcoll.common.errors import ForestError
from forestcoll.common.input_limits import FILE_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.forest_file.writing import FORMAT, dumps, moves, topology_block

__all__ = [
    "FORMAT",
    "SCHEMA_PATH",
    "dumps",
    "load",
    "loads",
    "moves",
    "parse",
    "schema",
    "topology_block",
]

SCHEMA_PATH = Path(__file__).parents[1] / "forest.schema.json"


def schema() -> dict[str, Any]:
    """The JSON Schema of a forest file."""
    from forestcoll.schedule.forest_file.model import ForestModel

    return ForestModel.model_json_schema()


def load(path: Path) -> Forest:
    """The forest in the file `path`; see `loads`."""
    text = read_text(path, FILE_BYTES, ForestError)
    return loads(text, str(path))


def loads(text: str, source: str = "forest") -> Forest:
    """The forest that `text` describes; its trees give the algbw that the file states.

    Raises ForestError with the place in the file. Says nothing yet of spanning, shares and bound:
    `forest.check` and `certificate.check_bound` do.
    """
    forest, stated = parse(text, source)
    if forest.algbw != stated:
        raise ForestError(f"{source}: states algbw {stated}, its trees give {forest.algbw}")
    return forest


def parse(text: str, source: str = "forest") -> tuple[Forest, Fraction]:
    """(forest, the algbw that the file states), without comparing the two."""
    from forestcoll.schedule.forest_file import reading

    return reading.parse(text, source)
