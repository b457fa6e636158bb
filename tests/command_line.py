"""What tests of the command line share: the type of the fixture `call`, and its usual outcome."""

from __future__ import annotations

from collections.abc import Callable

Outcome = tuple[int, str, str]
"""Exit code, standard output, standard error."""
Run = Callable[..., Outcome]


def fine(outcome: Outcome) -> str:
    """Standard output of a command that must succeed and say nothing on standard error."""
    code, out, err = outcome
    assert (code, err) == (0, "")
    return out
