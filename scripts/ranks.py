"""Ranks of an example as processes of this machine, over gloo."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from forestcoll.common.errors import ForestCollError

Run = Callable[[argparse.Namespace, Any, Any], int]
"""What a rank does with options, a plan and a device; not 0: something is wrong."""


def _process(
    rank: int, name: str, run: Run, options: argparse.Namespace, plan: Any, store: str
) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=options.timeout)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks, timeout=patience
    )
    try:
        wrong = run(options, plan, "cpu")
        dist.barrier()
    except ForestCollError as error:  # a peer that died, in words
        sys.exit(f"{name}: error: {error}")
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


def start(name: str, run: Run, options: argparse.Namespace, plan: Any) -> int:
    """Run `options.ranks` processes of the example `name`; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = name, run, options, plan, str(Path(folder) / "store")
        try:
            # Forked from one process that has imported all this already, once.
            torch.multiprocessing.start_processes(
                _process, arguments, nprocs=options.ranks, start_method="forkserver"
            )
        except torch.multiprocessing.ProcessExitedException as error:
            return max(1, error.exit_code)  # it has said what was wrong
    return 0
