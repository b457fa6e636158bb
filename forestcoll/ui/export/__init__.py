"""Plans, forests and topologies in the formats of other tools.

    actions     what every rank sends, receives and adds, and GOAL for LogGOPSim and ATLAHS
    chakra      execution traces of MLCommons, for ASTRA-sim
    infragraph  topologies of ASTRA-sim and others
    perfetto    time lines of simulated runs
    drawings    SVG, and graphs for Graphviz
    protobuf    the encoding of Chakra and Perfetto

A format is a `Format` in `FORMATS`: nothing else knows which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError

if TYPE_CHECKING:
    from forestcoll.ui.export.settings import Settings
    from forestcoll.ui.view.subject import Kind, Subject

__all__ = ["FORMATS", "MOST_PIECES", "Format", "export"]

MOST_PIECES = 4096
Files = Mapping[str, bytes]
"""File name -> content."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what it is, what is written in it, by which module; `folder`: in several files.

    The function of that module with the format's name makes the files; one where it is no `folder`.
    """

    name: str
    what: str
    module: str
    takes: tuple[Kind, ...] = ("plan", "forest")
    folder: bool = False
    binary: bool = False

    @property
    def writer(self) -> Callable[[Subject, Settings], Files]:
        """What makes the files."""
        module = import_module(f"forestcoll.ui.export.{self.module}")
        write: Callable[[Subject, Settings], Files] = getattr(module, self.name)
        return write


FABRICS: tuple[Kind, ...] = ("topology", "forest", "plan", "exchange")
FORMATS = {
    form.name: form
    for form in (
        Format("chakra", "Chakra execution traces (ASTRA-sim)", "chakra", folder=True, binary=True),
        Format("goal", "GOAL (LogGOPSim, ATLAHS)", "actions"),
        Format("infragraph", "InfraGraph", "infragraph", FABRICS),
        Format("perfetto", "Perfetto trace", "perfetto", binary=True),
        Format("dot", "Graphviz graph", "drawings", FABRICS),
        Format("svg", "SVG drawing", "drawings", FABRICS),
    )
}


def export(subject: Subject, format: str, settings: Settings) -> Files:
    """The files of `subject` in `format`, one of `FORMATS`.

    Raises UnsupportedError where the format does not take what the subject is, or cannot say it.
    """
    form = FORMATS[format]
    if subject.kind not in form.takes and subject.kind == "exchange":
        from forestcoll.ui.view.subject import NO_ORDER

        raise UnsupportedError(f"{subject.name}: {NO_ORDER}, and {form.name} is written of those")
    if subject.kind not in form.takes:
        raise UnsupportedError(
            f"{subject.name}: a {subject.kind}; {form.name} is written of a "
            f"{' or a '.join(form.takes)}"
        )
    return form.writer(subject, settings)
