"""Seconds and memory of a command in a process of its own. Nothing but the standard library.

The parent stays small on purpose: the kernel counts the memory of a forking process for its child
as well, so whoever measures must not import what is measured.

What is measured is the program as pip installs it, with its bytecode: the package beside these
scripts is compiled before the first command, and commands may keep what they compile, whatever
PYTHONDONTWRITEBYTECODE says. Without, each would compile all of its modules anew, which takes half
a second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Used:
    """What one process took, with all that it started and waited for.

    `wall`: seconds on the clock. `processor`: seconds of all cores, user and system. `peak`: bytes
    of memory at the most. `timed_out`: it was stopped at the limit.
    """

    wall: float
    processor: float
    peak: int
    code: int
    out: str
    err: str
    timed_out: bool = False


def python(*words: str) -> list[str]:
    """A command for this interpreter."""
    return [sys.executable, *words]


def forestcoll(*words: str) -> list[str]:
    """A command of the package beside these scripts."""
    return python("-m", "forestcoll", *words)


def script(name: str, *words: str) -> list[str]:
    """A command for a script beside this one."""
    return python(str(HERE / name), *words)


@cache
def environment(source: Path | None = SOURCE) -> dict[str, str]:
    """That of all commands: the package in `source`, whose bytecode is compiled now; None: the one
    that the command finds."""
    found = dict(os.environ)
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    if source is None:
        return found
    known = found.get("PYTHONPATH")
    found["PYTHONPATH"] = str(source) + (os.pathsep + known if known else "")
    compiling = python("-m", "compileall", "-q", str(source / "forestcoll"))
    subprocess.run(compiling, env=found, check=True)
    return found


def run(
    command: Sequence[str], limit: float, source: Path | None = SOURCE, folder: Path | None = None
) -> Used:
    """Runs `command` in `folder` and waits for it; stopped after `limit` seconds."""
    surroundings = environment(source)  # made before the clock starts
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env=surroundings, cwd=folder, start_new_session=True
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Used(
        wall=wall,
        processor=used.ru_utime + used.ru_stime,
        peak=used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        code=process.returncode,
        out=texts[0],
        err=texts[1],
        timed_out=late.is_set(),
    )


def median(runs: Sequence[Used]) -> Used:
    """The middle run by its seconds (the later one of two), with the most memory of all."""
    middle = sorted(runs, key=lambda used: used.wall)[len(runs) // 2]
    worst = max(used.peak for used in runs)
    return Used(middle.wall, middle.processor, worst, middle.code, middle.out, middle.err)


def machine() -> str:
    """Cores, kind of processor, Python, and how busy the machine is, in words."""
    cores = len(os.sched_getaffinity(0))
    name = os.uname().machine
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    if models:
        name = f"{models[0]}, {name}"
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{cores} cores ({name}), CPython {version}, load average {load}"
