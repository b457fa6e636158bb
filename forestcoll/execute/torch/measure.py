"""Rows of nccl-tests' table, measured over a process group: `forestcoll run --engine torch`.

Every process calls this alike; all get the same result. A run lasts until the slowest rank is done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute.result import MODES, Mode, Row, RunResult, repeat
from forestcoll.execute.sizes import layout
from forestcoll.execute.torch import collectives
from forestcoll.execute.torch.agreement import gather
from forestcoll.execute.torch.alltoall import all_to_all_single
from forestcoll.execute.torch.operators import OPERATORS, plain_numbers
from forestcoll.execute.torch.plan import Plan
from forestcoll.program import EVERYONE, Collective

SHOWN = 4
"""Wrong elements of a rank that are described."""

Act = Callable[[torch.Tensor, torch.Tensor], object]
"""Does the collective from an input to an output, which may be the same memory."""


def join(timeout: float, command: str = "run PLAN --engine torch") -> torch.device:
    """Join the processes that torchrun has started; the device that this one is to use.

    NCCL (RCCL) where there are GPUs, else gloo. Transfers fail after `timeout` seconds.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ExecutionError(
            "the torch engine runs one process per rank: start it with torchrun --nproc-per-node "
            f"RANKS --no-python forestcoll {command}"
        )
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available() and dist.is_nccl_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise ExecutionError(f"the processes do not find each other: {error}") from error
    return device


class Measured(NamedTuple):
    """What to run: `act` may be anything that does `collective` (a plan, or torch's own)."""

    collective: Collective
    act: Act
    dtype: str
    op: str
    root: int = -1
    group: Any = None
    device: torch.device | str = "cpu"


def measure(
    plan: Plan,
    size_bytes: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    iterations: int = 1,
    warmup: int = 1,
    modes: Sequence[Mode] = MODES,
    check: bool = True,
    group: Any = None,
    device: torch.device | None = None,
) -> RunResult:
    """The rows of one size (see cpu.run, whose options these are)."""
    element = torch.empty(0, dtype=_dtype(dtype)).element_size()
    data = layout(plan.program, size_bytes, element)
    what = Measured(
        plan.collective,
        partial(collectives.perform, plan, op=op, group=group),
        dtype,
        op,
        plan.root,
        group,
        device or "cpu",
    )
    rows, mismatches = [], []
    for mode in modes:
        microseconds, wrong, texts = time_it(what, data.part, mode, iterations, warmup, check)
        mismatches += texts
        seconds, counted = microseconds / 1e6, wrong if check else None
        rows.append(Row.of(plan.program, data, mode, (dtype, op), plan.root, seconds, counted))
    notes = []
    if data.size != size_bytes:
        notes.append(
            f"{size_bytes} bytes are not a whole number of elements on each rank; "
            f"ran {data.size} bytes"
        )
    return RunResult(tuple(rows), tuple(notes), tuple(mismatches))


def time_it(
    what: Measured, part: int, mode: Mode, iterations: int, warmup: int, check: bool
) -> tuple[float, int, list[str]]:
    """(microseconds a run, wrong elements at all ranks, some of them in words).

    `part`: elements of a rank's part, or of the whole where there are no parts. The data are fresh
    before the first run and before the last; after both every element is compared.
    """
    rank, n = dist.get_rank(what.group), dist.get_world_size(what.group)
    case = _Case(what, part, rank, n, mode)

    def launch(_: int) -> float:
        dist.barrier(group=what.group)
        began = time.perf_counter()
        what.act(case.input, case.output)
        if case.input.device.type == "cuda":
            torch.cuda.synchronize(case.input.device)
        return time.perf_counter() - began

    seconds, wrong = repeat((warmup, iterations), check, case.fill, launch, case.compare)
    told = gather((seconds, wrong, case.texts), what.group)
    slowest = max(entry[0] for entry in told)
    return (
        max(slowest, 1e-9) / iterations * 1e6,
        sum(entry[1] for entry in told),
        [text for entry in told for text in entry[2]],
    )


class _Case:
    """The tensors of one mode at one rank. All data are small whole numbers: sums are exact."""

    def __init__(self, what: Measured, part: int, rank: int, n: int, mode: Mode) -> None:
        self.what, self.part, self.rank, self.n, self.mode = what, part, rank, n, mode
        self.texts: list[str] = []  # wrong elements of the first comparison that saw some
        ins, outs = part * what.collective.input_parts(n), part * what.collective.output_parts(n)
        longer = torch.empty(max(ins, outs), dtype=_dtype(what.dtype), device=what.device)
        own = longer[rank * part : (rank + 1) * part] if ins != outs else longer
        self.input, self.output = (longer, own) if ins > outs else (own, longer)
        if mode == "out-of-place":
            self.output = torch.empty(outs, dtype=longer.dtype, device=what.device)

    def fill(self) -> None:
        if self.mode == "out-of-place" or self.what.collective.input_is_part:
            self.output.fill_(-1 if self.output.dtype.is_signed else 255)
        self.input.copy_(self.data(self.rank, 0, self.input.numel()))

    def data(self, rank: int, first: int, count: int) -> torch.Tensor:
        """Elements first, first + 1, ... of a rank's input."""
        k = torch.arange(first, first + count, dtype=torch.int32, device=self.what.device)
        reduces = self.what.collective.reduces
        make = OPERATORS[self.what.op].numbers if reduces else plain_numbers
        numbers = make(k, rank, self.n)
        return numbers.to(self.input.dtype)

    def expect(self, source: int, first: int, count: int) -> torch.Tensor:
        """A rank's data, or EVERYONE's combined."""
        if source != EVERYONE:
            return self.data(source, first, count)
        total = self.data(0, first, count)
        for rank in range(1, self.n):
            each = self.data(rank, first, count)
            OPERATORS[self.what.op].combine(total, each, out=total)
        return total // self.n if self.what.op == "avg" else total

    def compare(self) -> int:
        part, compared = self.part, list[tuple[torch.Tensor, torch.Tensor, str, int]]()
        collective = self.what.collective
        for p in range(collective.output_parts(self.n)):
            origin = collective.origin(self.rank, self.what.root, p)
            if origin is not None:
                piece = self.output[p * part : (p + 1) * part]
                wanted = self.expect(origin[0], origin[1] * part, part)
                compared.append((piece, wanted, "output", p * part))
        if self.mode == "out-of-place":
            mine = self.data(self.rank, 0, self.input.numel())
            compared.append((self.input, mine, "input", 0))
        wrong, texts = 0, list[str]()
        for got, wanted, buffer, start in compared:
            where = f"rank {self.rank}, {buffer}"
            count, words = compare(where, got, wanted, start, SHOWN - len(texts))
            wrong += count
            texts += words
        self.texts = self.texts or texts
        return wrong


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"unknown data type {name!r}")
    return dtype


def compare(
    where: str, got: torch.Tensor, wanted: torch.Tensor, start: int, most: int
) -> tuple[int, list[str]]:
    """Returns how many elements differ, and the first `most` in words; they begin at `start`."""
    places = (got != wanted).nonzero().flatten()
    texts = [
        f"{where} element {start + k}: expected {wanted[k].item()}, got {got[k].item()}"
        for k in places[:most].tolist()
    ]
    return places.numel(), texts


# --- blocks of any size ---------------------------------------------------------------------------

Blocks = Sequence[Sequence[int]]
"""Elements that each rank sends to each."""


def by_splits(plan: Plan | None, blocks: Blocks, rank: int) -> Act:
    """The exchange of these blocks at `rank`, by a plan or (None) by torch.distributed's own."""
    send, receive = list(blocks[rank]), [row[rank] for row in blocks]

    def act(input_: torch.Tensor, output: torch.Tensor) -> None:
        if plan is None:
            dist.all_to_all_single(output, input_, receive, send)
        else:
            all_to_all_single(output, input_, plan, receive, send)

    return act


def run_alltoallv(act: Act, blocks: Blocks) -> tuple[int, list[str]]:
    """(wrong elements at all ranks, some of them in words), after one run. float32."""
    rank, n = dist.get_rank(), dist.get_world_size()
    given = torch.cat([_numbers(rank, t, blocks[rank][t]) for t in range(n)])
    wanted = torch.cat([_numbers(s, rank, blocks[s][rank]) for s in range(n)])
    output = torch.full_like(wanted, -1.0)
    act(given, output)
    wrong, texts = compare(f"rank {rank}, output", output, wanted, 0, SHOWN)
    told = gather((wrong, texts))
    return sum(count for count, _ in told), [text for _, each in told for text in each]


def _numbers(source: int, target: int, count: int) -> torch.Tensor:
    """What `source` sends `target`: whole numbers that say whose they are, exact in float32."""
    first = (source * 7919 + target * 104_729) % (1 << 22)
    return ((torch.arange(count) + first) % (1 << 24)).float()
