"""What tests of the command line and of scripts share: the fixture `call`, its usual outcome."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from artefacts import ROOT

Outcome = tuple[int, str, str]
"""Exit code, standard output, standard error."""
Run = Callable[..., Outcome]
Finished = subprocess.CompletedProcess[str]
BENCHMARKS = str(ROOT / "scripts" / "benchmarks")


def script(name: str) -> Any:
    """A program of scripts/benchmarks as a module, which finds those beside it."""
    if BENCHMARKS not in sys.path:
        sys.path.append(BENCHMARKS)
    return importlib.import_module(name)


def finished(*command: object, **how: Any) -> Finished:
    """What a program of its own came to, and the texts that it wrote."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=280, **how)


def fine(outcome: Outcome) -> str:
    """Standard output of a command that must succeed and say nothing on standard error."""
    code, out, err = outcome
    assert (code, err) == (0, "")
    return out


def as_json(*arguments: object) -> Any:
    """What a command that must succeed says with `--json`."""
    from forestcoll.ui import cli

    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.main([*map(str, arguments), "--json"]) == 0
    return json.loads(said.getvalue())


def draw(result: Any, width: int = 200) -> str:
    """What people see of a result's facts where there are so many columns."""
    from forestcoll.ui.report.facts import as_table

    return "\n".join(f"{bold}{text}".rstrip() for bold, text in as_table(result)(width))
