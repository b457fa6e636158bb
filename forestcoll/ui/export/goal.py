"""GOAL: what every rank sends, receives and computes, as text, for LogGOPSim and ATLAHS.

Format: T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language" (ICPP 2009), as
LogGOPSim's and ATLAHS' schedule compilers read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.escape import file_name
from forestcoll.ui.export.actions import Action, Kind, actions, sum_time
from forestcoll.ui.export.settings import Settings
from forestcoll.ui.view import Subject


def write(subject: Subject, settings: Settings) -> dict[str, bytes]:
    """The one file."""
    found = actions(subject, settings)
    lines = [f"num_ranks {len(found.ranks)}", ""]
    for rank, own in enumerate(found.ranks):
        lines += [f"rank {rank} {{", *_lines(own, settings), "}", ""]
    return {f"{file_name(f'{subject.name}.{found.collective}')}.goal": "\n".join(lines).encode()}


def _lines(own: tuple[Action, ...], settings: Settings) -> Iterator[str]:
    for index, action in enumerate(own):
        if action.kind is Kind.SEND:
            what = f"send {action.bytes}b to {action.peer} tag {action.tag}"
        elif action.kind is Kind.RECV:
            what = f"recv {action.bytes}b from {action.peer} tag {action.tag}"
        else:
            what = f"calc {round(sum_time(action, settings))}"
        yield f"l{index + 1}: {what}"
        for needed in action.after:
            yield f"l{index + 1} requires l{needed + 1}"
        if action.follows >= 0:
            yield f"l{index + 1} requires l{action.follows + 1}"
