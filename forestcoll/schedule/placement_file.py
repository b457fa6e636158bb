"""layout.json: which GPU is which rank of a job, what its groups reach, and where their plans are.

format         "forestcoll.placement/1"
topology       its name
order, mesh    the dimensions, as in the layout file
gpus           ids by rank; default_gpus: the same in the order that was to be beaten
seconds        of all steps; default_seconds of that order (null: not served), bound_seconds of none
steps          what runs together: its figures, and a row for each row of traffic, with its groups

Rates are exact, GB/s, as strings; sizes in bytes; names of files are relative to the folder. A
group's files by format: its forest, and the plans of its set, from the least bytes to the most.
"""

from __future__ import annotations

from itertools import chain
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from forestcoll.common.errors import ForestError
from forestcoll.schedule.forest_file.model import Exact, Model
from forestcoll.schedule.forest_file.reading import parse_model

FORMAT = "forestcoll.placement/1"
INDEX = "layout.json"

T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]


class GroupModel(Model):
    ranks: Some[int]
    gpus: list[str]
    files: dict[str, list[str]]


class RowModel(Model):
    dim: str
    collective: str
    bytes: int
    times: int
    algbw: Exact
    default_algbw: Exact | None
    alone_at_most: float
    groups: Some[GroupModel]


class StepModel(Model):
    step: int
    seconds: Exact
    algbw: Exact
    bound: Exact
    optimal_placed: bool
    limiting_cut: list[str]
    rows: list[RowModel]


class Placement(Model):
    """A layout.json."""

    format: Literal["forestcoll.placement/1"]
    topology: str
    order: str | None = None
    mesh: str | None = None
    gpus: Some[str]
    default_gpus: list[str]
    seconds: Exact
    default_seconds: Exact | None
    bound_seconds: float
    steps: list[StepModel]

    @property
    def rows(self) -> list[RowModel]:
        """Of all steps."""
        return [row for step in self.steps for row in step.rows]


def loads(text: str, source: str) -> Placement:
    """The placement; ForestError where it is none, or contradicts itself, or leads elsewhere."""
    placement = parse_model(Placement, "layout", text, source)
    known = dict(enumerate(placement.gpus))
    if len({*placement.gpus}) < len(known) or sorted(placement.gpus) != sorted(
        placement.default_gpus
    ):
        raise ForestError(f"{source}: gpus and default_gpus do not have the same GPUs once each")
    for row in placement.rows:
        for group in row.groups:
            if [known.get(rank) for rank in group.ranks] != group.gpus:
                raise ForestError(f"{source}: ranks {group.ranks} are not the GPUs {group.gpus}")
            for file in map(PurePosixPath, chain(*group.files.values())):
                if ".." in file.parts or file.is_absolute():
                    raise ForestError(f"{source}: {str(file)!r} leads out of the folder")
    return placement
