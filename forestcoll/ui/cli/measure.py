"""`forestcoll measure`: what each pair of ranks reaches, one of the processes of torchrun."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ExecutionError
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import WordType
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import put, report, say, show_progress
from forestcoll.ui.cli.options import force_option, output_option, size_option
from forestcoll.ui.cli.value_types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.execute.torch.pairs import Pairs

MOST = 2**34
"""Bytes of a message."""


@click.command(
    epilog=examples(
        "torchrun --nproc-per-node 8 --no-python forestcoll measure -o measured.json",
        "forestcoll topology calibrate dump.xml --measured measured.json -o real.yaml",
    )
)
@size_option("64M", "Bytes of a message.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Timings of each pair; the median counts.",
)
@click.option(
    "--pairs",
    type=WordType(("all", "ring")),
    default="all",
    show_default=True,
    help="All ordered pairs, or of each rank the next one.",
)
@click.option(
    "--timeout",
    type=FiniteRange(1, 86_400),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="A transfer that takes longer fails.",
)
@output_option()
@force_option()
def measure(size: int, repeat: int, pairs: str, timeout: float, output: str, force: bool) -> None:
    """Bandwidth and latency of each pair of ranks by itself, over torch.distributed.

    Runs in the processes that torchrun starts, on NCCL, RCCL or gloo. The file is for 'forestcoll
    topology calibrate'.
    """
    if not 1 <= size <= MOST:
        raise click.UsageError(f"--size {size} is not between 1 byte and {MOST >> 30} GiB")
    from forestcoll.execute.torch import (
        measure as processes,  # which says so where PyTorch is missing
    )
    from forestcoll.execute.torch.pairs import choose_pairs, measure_pairs

    import torch.distributed as dist  # isort: skip

    if output != "-" and os.environ.get("RANK", "0") == "0":
        writing.prepare([Path(output)], force)  # before minutes of measuring
    device = processes.join(timeout, "measure")
    click.get_current_context().call_on_close(dist.destroy_process_group)
    first, ranks = dist.get_rank() == 0, dist.get_world_size()
    if ranks < 2:
        raise click.UsageError("one process: a pair takes two (torchrun --nproc-per-node N)")
    progress: Any = show_progress("measuring") if first else nullcontext(lambda stage, share: None)
    with progress as tell:
        try:
            found = measure_pairs(choose_pairs(ranks, pairs), size, repeat, device, tell)
        except RuntimeError as error:  # PyTorch's own: a process is gone, a transfer timed out
            raise ExecutionError(f"a transfer failed: {str(error).splitlines()[0]}") from error
    if first:
        _write(found, ranks, output, force)


def _write(found: Pairs, ranks: int, output: str, force: bool) -> None:
    from statistics import median

    from forestcoll.topology.calibrate import Measured
    from forestcoll.topology.calibrate.measured import dumps_measured
    from forestcoll.ui.report import table

    measured = Measured("forestcoll measure", ranks, found.rates, found.latencies)
    rows = [
        (name, f"{min(values):.4g}", f"{median(values):.4g}", f"{max(values):.4g}")
        for name, values in (
            ("GB/s", list(found.rates.values())),
            ("us", list(found.latencies.values())),
        )
    ]
    pairs = f"{len(found.rates)} pairs"
    heads = (pairs, "least", "median", "most")
    report(table.columns(heads, rows, right=(1, 2, 3)), err=output == "-")
    if output == "-":
        put(dumps_measured(measured))
    else:
        writing.write_all({Path(output): dumps_measured(measured)}, force)
        say(f"{output}: {ranks} ranks, {pairs}")
