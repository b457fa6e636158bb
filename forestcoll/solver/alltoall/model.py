"""The format of an all-to-all file as pydantic models; `alltoall.schema.json` is their schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forestcoll.schedule.forest_file.model import Exact, Model, SymmetryModel, TopologyModel

Amount = Annotated[int, Field(ge=0, lt=2**62)]


class ProofModel(Model):
    """No all-to-all is faster than `algbw`: a length for each link of `topology.links`."""

    algbw: Exact
    lengths: list[Amount]


class FlowModel(Model):
    """All that `source` sends: GB/s of each of the links (numbers into `topology.links`)."""

    source: str
    links: list[Amount]
    amounts: list[Exact]


class RouteModel(Model):
    """A path by the ids of its nodes, for `units` of what its first rank sends to its last."""

    path: list[str]
    units: Annotated[int, Field(ge=1, lt=2**62)] = 1


class RoutesModel(Model):
    """`units` for every pair; every path stands for its different images under `symmetry`.

    Those symmetries commute. Where one leaves a rank in place it may leave a whole path there,
    which is then one image. `symmetry` left out: all paths are listed.
    """

    units: Annotated[int, Field(ge=1, lt=2**62)]
    symmetry: SymmetryModel | None = None
    paths: list[RouteModel]


class AllToAllModel(Model):
    """An all-to-all file."""

    format: Literal["forestcoll.alltoall/1"]
    collective: Literal["alltoall", "alltoallv"]
    topology: TopologyModel
    ranks: list[str]
    matrix: list[list[Amount]] | None = None  # alltoallv: bytes from each rank to each rank
    groups: list[list[str]] | None = None  # several at once; all ranks, group by group
    closed: bool = False  # a rank passes nothing on for other groups
    algbw: Exact
    theta: Exact  # GB/s between two ranks; of several groups or a matrix: for a unit of demand
    bound: ProofModel
    symmetry: SymmetryModel | None = None  # a flow is that of each image of its source as well
    flows: list[FlowModel] | None = None  # what reaches `algbw`: these, or else `routes`
    routes: RoutesModel | None = None
