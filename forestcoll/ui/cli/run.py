"""The commands that measure: `run` of plans, `measure` of pairs of ranks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import click

from forestcoll.common.errors import ExecutionError
from forestcoll.ui.cli.files import Sink, sink_option
from forestcoll.ui.cli.messages import report, show_progress
from forestcoll.ui.cli.options import (
    BYTES,
    HOLDS,
    Machine,
    command,
    each,
    flag,
    machine_option,
    option,
    place,
)
from forestcoll.ui.cli.types import FiniteRange

MOST_BYTES = 2**34
"""Bytes of a message of `measure`."""
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
WIRES = ("float32", "float16", "bfloat16", "fp8")
LAUNCHES = 1_000_000


@command(
    "forestcoll run out/dgx-a100-2.allreduce.mscclpp.json --size 64M",
    "forestcoll run PLAN -b 8 -e 1G -f 2 --dtype bfloat16 --csv rows.csv",
    "forestcoll run set/ -b 1K -e 1G -f 4 --format mscclpp-json",
    "forestcoll run PLAN --engine gpu -b 1M -e 1G -f 4",
    "torchrun --nproc-per-node 8 --no-python forestcoll run PLAN --engine torch",
    "forestcoll run PLAN --hosts node1,node2",
    "srun --ntasks-per-node 1 forestcoll run PLAN",
)
def run(
    plan: str = place("file", "PLAN|DIR"),
    size: tuple[int, ...] = each("size", f"{BYTES} Repeatable. Default: 64M."),
    low: int | None = option("size", "Sizes from this one ...", names="--minbytes -b"),
    high: int | None = option("size", "... to this one ...", names="--maxbytes -e"),
    factor: int | None = option(
        click.IntRange(2), "... times this. Default: 2.", names="--stepfactor -f"
    ),
    step: int | None = option("size", "... or plus this.", names="--stepbytes -i"),
    dtype: str = option(DTYPES, None, "float32", names="--dtype -d"),
    op: str = option(
        "operator",
        "Or with --engine cpu LIBRARY.so:SYMBOL, an associative function of the user's: void "
        "op(void *acc, const void *in, size_t n), which makes acc op in of n elements.",
        "sum",
        names="--op -o",
    ),
    iterations: int = option(
        range(1, LAUNCHES + 1), "Timed runs of each row.", 1, names="--iterations --iters -n"
    ),
    warmup: int = option(
        range(LAUNCHES + 1),
        "Runs before them that are not timed.",
        1,
        names="--warmup --warmup-iters -w",
    ),
    check: int = option(
        range(2),
        "1: compare every element of the first and the last run; 0: do not.",
        1,
        names="--check -c",
    ),
    engine: str = option(
        ("cpu", "gpu", "torch"),
        "cpu: all ranks on this machine, or dealt out to the processes that torchrun, mpirun, srun "
        "or --hosts started. gpu: on its GPUs, by CUDA or HIP. torch: this process is one of those "
        "that torchrun started, on any number of machines; over NCCL or RCCL where there are GPUs, "
        "else gloo.",
        "cpu",
    ),
    ranks_as: str = option(
        ("processes", "threads", "auto"),
        "A process for each rank, over shared memory, or threads of one process. auto: processes "
        "for at most 64 ranks.",
        "auto",
    ),
    hosts: str | None = option(
        None,
        "Machines that ssh reaches: a process on each, with its share of the ranks, for --engine "
        "cpu. They find this folder and this command.",
        None,
        "HOST[:PROCESSES],...",
    ),
    wire: str = option(
        ("sockets", "ucx"),
        "What carries data between the processes of --engine cpu. ucx: RDMA, shared memory or TCP, "
        "as UCX finds them; compiled on first use.",
        "sockets",
    ),
    wire_dtype: str | None = option(
        WIRES,
        "The type in which --engine cpu moves the data and adds them up, where it is not --dtype. "
        "fp8: blocks of 32 values of 8 bits with one scale, 33 bytes.",
    ),
    accumulate: str | None = option(
        ("float32",),
        "With --engine cpu a rank adds up in float32 all that comes to it, and rounds once what "
        "leaves it. Default: every addition rounds, as the runtimes do it.",
    ),
    epilogue: str | None = option(
        None,
        "What --engine cpu does once to each complete sum, in float32, before other ranks get it, "
        "one after the other: scale=NUMBER, avg, cast=TYPE (rounded to float16 or bfloat16), bias, "
        "dropout=SHARE, adam=RATE (the sum is a gradient, the result the new weights).",
        None,
        "STEP,...",
    ),
    gpus: list[int] | None = option(
        "gpus",
        "GPUs that the ranks are dealt out to; several ranks may share one. Default: the GPU that "
        "a rank's name ends in.",
        None,
        "N,N,...",
    ),
    depth: int | None = option(
        range(1, 4097),
        "Messages that a fifo connection holds. Default: as much as the plan's runtime holds.",
    ),
    timeout: float = option(
        FiniteRange(0.1, 86_400), "Seconds without any progress before the run is given up.", 60.0
    ),
    machine: Machine = machine_option(
        "What the plan is for: adds what its links allow the plan (without its forest file beside "
        "it, the best plan), what it reaches there in simulated time and, but for --engine cpu, "
        "the percentage of that. Default: by the forest file beside the plan, if there is one, "
        "with the catalogue's latencies where the links are its.",
        required=False,
    ),
    forest: str | None = option("file", "The plan's forest: the same by its algbw."),
    csv: str | None = option("file", "Write the rows there as well."),
    force: bool = flag("Overwrite that file."),
    form: str | None = option(
        click.Choice(sorted(set(HOLDS.values()))),
        "Whose plans of a plan set run. Default: those that its index has first.",
        names="--format",
    ),
) -> int:
    """Run a plan and check every element, on this machine or on several.

    Every rank has real buffers; the table and its options are those of nccl-tests: -b 8 -e 1G -f 2.
    Of a plan set (the folder that synthesize --sizes wrote) each size runs the plan that serves it.
    """
    options = locals()
    from forestcoll.ui.cli.work.run import run

    return run(options)


@command(
    "torchrun --nproc-per-node 8 --no-python forestcoll measure -o measured.json",
    "forestcoll topology calibrate dump.xml --measured measured.json -o real.yaml",
    json=False,
)
def measure(
    size: int = option("size", "Bytes of a message.", "64M"),
    repeat: int = option(range(1, 1001), "Timings of each pair; the median counts.", 5, "N"),
    pairs: str = option(("all", "ring"), "All ordered pairs, or of each rank the next one.", "all"),
    timeout: float = option(
        FiniteRange(1, 86_400), "A transfer that takes longer fails.", 300.0, "SECONDS"
    ),
    sink: Sink = sink_option(),
) -> None:
    """Bandwidth and latency of each pair of ranks by itself, over torch.distributed.

    Runs in the processes that torchrun starts, on NCCL, RCCL or gloo. The file is for 'forestcoll
    topology calibrate'.
    """
    if size > MOST_BYTES:
        raise click.UsageError(f"--size {size} is not between 1 byte and {MOST_BYTES >> 30} GiB")
    from forestcoll.execute.torch import measure as torch  # which says so where there is none
    from forestcoll.execute.torch.pairs import choose_pairs, measure_pairs

    import torch.distributed as dist  # isort: skip

    speaks = os.environ.get("RANK", "0") == "0"
    sink = (sink if speaks else Sink(None, False)).prepare()  # before minutes of measuring
    device = torch.join(timeout, "measure")
    click.get_current_context().call_on_close(dist.destroy_process_group)
    first, ranks = dist.get_rank() == 0, dist.get_world_size()
    if ranks < 2:
        raise click.UsageError("one process: a pair takes two (torchrun --nproc-per-node N)")
    progress: Any = show_progress("measuring") if first else nullcontext(lambda stage, share: None)
    with progress as tell:
        try:
            measured = measure_pairs(choose_pairs(ranks, pairs), size, repeat, device, tell)
        except RuntimeError as error:  # PyTorch's own: a process is gone, a transfer timed out
            raise ExecutionError(f"a transfer failed: {str(error).splitlines()[0]}") from error
    if not first:
        return
    from statistics import median

    from forestcoll.topology.calibrate.calls import Measured, dump_measurement
    from forestcoll.ui.report.facts import grid

    rows = [
        (name, *(f"{of(values.values()):.4g}" for of in (min, median, max)))
        for name, values in (("GB/s", measured.rates), ("us", measured.latencies))
    ]
    count = f"{len(measured.rates)} pairs"
    report(grid((count, "least", "median", "most"), rows), err=sink.path is None)
    text = dump_measurement(
        Measured("forestcoll measure", ranks, measured.rates, measured.latencies)
    )
    sink.write(text, lambda: f"{ranks} ranks, {count}")
