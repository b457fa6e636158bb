"""Options of the suite, and what every test can rely on."""

from __future__ import annotations

import gc
import os
import signal
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from artefacts import Artefacts
from command_line import Outcome, Run

from forestcoll.common.garbage_collection import THRESHOLD

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else each of the many programs that the tests start would compile the package's Python anew, and
# each worker of each run the tests with their assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes schedules/ and the pages' transcripts anew in place of comparing."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files in schedules/ and what pages show anew, whatever they hold",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are processors: many tests wait for processes, links, and time limits."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: what is left at the end is short, and no worker waits for others.

    Before them those that fork much, while there is little memory that each fork has to map anew,
    and those whose ranks come from a process with PyTorch in it: one worker starts that, not all.
    """
    first = ("gloo", "forks", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in first])


def pytest_collection_finish() -> None:
    """A lost terminal is for each test to say: what is handled here has its default in programs.

    Under nohup it would be ignored in all that the tests start. The process that hands out tests to
    workers starts none and goes on ignoring it. Cycles are looked for seldom, as the program does,
    and never among what stays to the end.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLD)


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run the command line in an empty directory: (exit code, standard output, standard error)."""
    from forestcoll.ui import cli

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    """What `synthesize` writes, made once: in pytest's cache, without it for this process alone."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    if cache is None:
        return Artefacts.inside(tmp_path_factory.mktemp("artefacts"))
    return Artefacts.inside(cache.mkdir("artefacts"))


@pytest.fixture
def links_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals take no time, as where plans are chosen: links, latencies and messages alone."""
    from forestcoll.verify.simulate import options

    monkeypatch.setattr(options, "SIGNAL", Fraction(0))
    monkeypatch.setattr(options, "HOP", dict.fromkeys(options.HOP, Fraction(0)))
