"""Plans, forests and topologies in the formats of other tools.

    actions     what every rank sends, receives and adds: what traces of messages are written from
    chakra      execution traces of MLCommons, for ASTRA-sim
    goal        programs of LogGOPSim and ATLAHS
    infragraph  topologies of ASTRA-sim and others
    perfetto    time lines of simulated runs
    dot         graphs for Graphviz
    svg         drawings
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

    The module's `write(subject, settings)` gives the files; one where it is no `folder`.
    """

    name: str
    what: str
    takes: tuple[Kind, ...]
    folder: bool = False
    binary: bool = False

    @property
    def writer(self) -> Callable[[Subject, Settings], Files]:
        """What makes the files."""
        found: Callable[[Subject, Settings], Files] = import_module(
            f"forestcoll.ui.export.{self.name}"
        ).write
        return found


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "chakra",
            "Chakra execution traces (ASTRA-sim)",
            ("plan", "forest"),
            folder=True,
            binary=True,
        ),
        Format("goal", "GOAL (LogGOPSim, ATLAHS)", ("plan", "forest")),
        Format("infragraph", "InfraGraph", ("topology", "forest", "plan", "exchange")),
        Format("perfetto", "Perfetto trace", ("plan", "forest"), binary=True),
        Format("dot", "Graphviz graph", ("topology", "forest", "plan", "exchange")),
        Format("svg", "SVG drawing", ("topology", "forest", "plan", "exchange")),
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
