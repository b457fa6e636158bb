"""Plans, forests and topologies in the formats of other tools.

    actions     what every rank sends, receives and adds: GOAL for LogGOPSim and ATLAHS, and
                execution traces of MLCommons (Chakra), for ASTRA-sim
    infragraph  topologies of ASTRA-sim and others
    perfetto    time lines of simulated runs
    drawings    SVG, and graphs for Graphviz
    protobuf    the encoding of Chakra and Perfetto
    stock       what stock NCCL and RCCL take without a plan, and a table for NCCL's example tuner
                plugin, of measurements

A format is a `Format` in `FORMATS`: nothing else knows which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from forestcoll.common.arguments import whole
from forestcoll.common.errors import UnsupportedError

if TYPE_CHECKING:
    from forestcoll.ui.view.subject import Kind, Subject
    from forestcoll.verify.simulate import Options

MOST_PIECES = 4096
Files = Mapping[str, bytes]
"""File name -> content."""


Order = Literal["connection", "data"]


@dataclass(frozen=True)
class Settings:
    """`size`: bytes as nccl-tests counts them. Every message is sent in so many `pieces`.

    `order`: messages from one rank to another follow each other ("connection"), or only what their
    data asks for ("data"). `reduce_rate`: GB/s of sums, None: they take no time. `tree`: the one
    tree of a forest that is drawn. `options`: of simulated runs. `measured`: (file, text) of tools.
    """

    size: int = 2**30
    pieces: int = 1
    order: Order = "connection"
    reduce_rate: float | None = None
    tree: int | None = None
    options: Options | None = None
    measured: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        whole("size", self.size, 1, 2**50)
        whole("pieces", self.pieces, 1, MOST_PIECES)
        if self.reduce_rate is not None and not 0 < self.reduce_rate < 1e9:
            raise UnsupportedError(f"reduce_rate {self.reduce_rate}: GB/s, more than 0")


class Format(NamedTuple):
    """A format: what it is, what is written in it, by which module; `folder`: in several files.

    The function of that module with the format's name makes the files; one where it is no `folder`.
    """

    name: str
    what: str
    module: str
    takes: tuple[Kind, ...] = ("plan", "forest")
    folder: bool = False
    binary: bool = False


FABRICS: tuple[Kind, ...] = ("topology", "forest", "plan", "exchange")
FORMATS = {
    form.name: form
    for form in (
        Format(
            "chakra", "Chakra execution traces (ASTRA-sim)", "actions", folder=True, binary=True
        ),
        Format("goal", "GOAL (LogGOPSim, ATLAHS)", "actions"),
        Format("infragraph", "InfraGraph", "infragraph", FABRICS),
        Format("perfetto", "Perfetto trace", "perfetto", binary=True),
        Format("dot", "Graphviz graph", "drawings", FABRICS),
        Format("svg", "SVG drawing", "drawings", FABRICS),
        Format("nccl-graph", "NCCL_GRAPH_FILE for stock NCCL", "stock", ("topology",), folder=True),
        Format("nccl-tuner", "table for NCCL's example tuner plugin", "stock", ("topology",)),
        Format("rccl-trees", "RCCL_TREES for stock RCCL", "stock", ("topology",)),
    )
}


def export(subject: Subject, format: str, settings: Settings) -> Files:
    """The files of `subject` in `format`, one of `FORMATS`.

    Raises UnsupportedError where the format does not take what the subject is, or cannot say it.
    """
    form = FORMATS[format]
    if subject.kind not in form.takes:
        from forestcoll.ui.view.subject import NO_ORDER

        why = f"a {subject.kind}; {form.name} is written of a {' or a '.join(form.takes)}"
        if subject.kind == "exchange":
            why = f"{NO_ORDER}, and {form.name} is written of those"
        raise UnsupportedError(f"{subject.name}: {why}")
    module = import_module(f"forestcoll.ui.export.{form.module}")
    write: Callable[[Subject, Settings], Files] = getattr(module, form.name.replace("-", "_"))
    return write(subject, settings)
