"""Schedulers and workers of Dask, forked from a process that has imported Dask and little else."""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path


def be(part: str, words: list[str], before: str, place: Path, pipe: Connection) -> None:
    """Be `dask PART WORDS` in a folder, silently, after the code `before`; say its number first."""
    pipe.send(os.getpid())
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(place)
    exec(before, {})
    sys.argv[1:] = words
    importlib.import_module(f"distributed.cli.dask_{part}").main()
