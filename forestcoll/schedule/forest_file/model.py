"""The format of a forest file as pydantic models; `forest.schema.json` is their JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from forestcoll.common.input_limits import FOREST_DIGITS
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Phase

_WHOLE = f"[0-9]{{1,{FOREST_DIGITS}}}"


def _check_number(text: str) -> str:
    if not f"{text}/1".split("/")[1].strip("0"):
        raise ValueError(f"{text}: division by zero")
    return text


Exact = Annotated[str, Field(pattern=f"^-?{_WHOLE}(/{_WHOLE})?$"), AfterValidator(_check_number)]


class Model(BaseModel):
    """What every file of this project is: nothing else in it, and nothing to be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeModel(Model):
    id: str
    kind: Literal["gpu", "switch"]
    multicast: bool = False
    aggregation: bool = False


class LinkModel(Model):
    src: str
    dst: str
    bandwidth: Exact


class TopologyModel(Model):
    name: str
    nodes: list[NodeModel]
    links: list[LinkModel]


class AlikeModel(Model):
    """A permutation of the nodes under which the graph stays the same; ids left out stay."""

    image: dict[str, str]
    turned: bool = False  # links are turned round, phases trade places


class BoundModel(Model):
    algbw: Exact
    cut: list[str] | None = None
    method: Literal["cut", "partition", "linear-program"] = "cut"
    optimum: Exact | None = None  # of the linear program, where `algbw` and `cut` are a plain cut
    parts: list[list[str]] | None = None
    weights: list[Exact] | None = None
    potentials: dict[str, Exact] | None = None
    phases: list[Phase] | None = None  # of the parts; this and below: allreduce only
    reduce_potentials: dict[str, Exact] | None = None
    symmetries: list[AlikeModel] | None = None


class TreeModel(Model):
    root: str
    phase: Literal["broadcast", "reduce"]
    share: Exact
    edges: list[list[str]]


class SymmetryModel(Model):
    generators: list[dict[str, str]]


def _check_carried(collective: Collective) -> Collective:
    if collective not in BY_TREES:
        raise ValueError(f"no trees carry an {collective}")
    return collective


Carried = Annotated[
    Collective,
    AfterValidator(_check_carried),
    WithJsonSchema({"enum": [c.value for c in BY_TREES], "title": "Collective", "type": "string"}),
]


class ForestModel(Model):
    """A forest file."""

    format: Literal["forestcoll.forest/1"]
    collective: Carried
    topology: TopologyModel
    ranks: list[str]
    shares: dict[str, Annotated[int, Field(ge=0, le=2**62)]] | None = None  # parts that differ
    algbw: Exact
    bound: BoundModel | None = None
    trees: list[TreeModel]
    symmetry: SymmetryModel | None = None
    sums: Annotated[str, Field(pattern=r"^[0-9+()]+$")] | None = None
