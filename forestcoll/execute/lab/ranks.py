"""The ranks of a lab: a process in each GPU's namespace, which reach each other over the fabric.

A plan is run by the CPU engine, whose processes write to each other's memory as the plan says, or
in rounds by the torch engine over gloo. Processes are forked from one that has imported PyTorch,
which ends with the last of them; they end with the lab.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from forestcoll.common.errors import ExecutionError
from forestcoll.execute.cluster.group import Group
from forestcoll.execute.cluster.launchers import ADDRESS, FIRST_PORT, LOCAL, Place
from forestcoll.execute.lab.fork_server import ForkServer
from forestcoll.execute.lab.network import address, enter
from forestcoll.program import Collective, Program

if TYPE_CHECKING:
    from forestcoll.execute.torch.measure import Act

Mode = Literal["in-place", "out-of-place"]
GRACE = 1.0
"""Seconds in which a process that has died shows as that, after others have lost it."""

FORK_SERVER = ForkServer(
    "forestcoll.execute.lab.ranks",
    "forestcoll.execute.cpu",
    "forestcoll.execute.torch.measure",
)


class Trial(NamedTuple):
    """What the ranks are to do: `program`, or (None) gloo's own allreduce or all-to-all."""

    program: Program | None
    collective: Collective
    size: int  # bytes, as nccl-tests counts them
    slices: int | None
    lead: int | None
    iterations: int
    timeout: float  # seconds after which a transfer fails
    blocks: tuple[tuple[int, ...], ...] | None = None  # elements from rank to rank, if they differ
    slice_bytes: int | None = None  # at a time, by the CPU engine; None: by the torch engine

    @property
    def mode(self) -> Mode:
        return "out-of-place" if self.collective.transposes else "in-place"


class Outcome(NamedTuple):
    """What one rank, or all together (the slowest counts), took; and wrong elements."""

    each: tuple[float, ...]  # seconds of each run
    size: int  # bytes that were really run
    processor: float  # seconds of processor time in all runs
    wrong: int
    texts: tuple[str, ...]


def run(trial: Trial, spaces: Sequence[str], control: str, patience: float) -> Outcome:
    """Carry out a trial with a rank in each of these namespaces.

    `control`: the namespace in which ranks of the CPU engine tell each other how they are: on the
    fabric's links that would wait behind seconds of data.

    Raises ExecutionError with what a rank said, or where `patience` seconds were not enough.
    """
    # Where the ranks find each other: a file that is gone with this process, whatever ends it.
    memory = os.memfd_create("forestcoll-lab")
    store = f"/proc/{os.getpid()}/fd/{memory}"
    pipes: list[Connection] = []
    try:
        for rank in range(len(spaces)):
            pipes.append(FORK_SERVER.fork(_rank, rank, spaces, control, store, trial))
        return _collect(pipes, patience)
    finally:
        FORK_SERVER.end()
        for pipe in pipes:
            pipe.close()
        os.close(memory)


def _collect(pipes: list[Connection], patience: float) -> Outcome:
    """The outcome of all ranks together; of failures a death is the reason.

    A system closes the files of a process one by one, so others may lose their connection to it and
    say so before its pipe has ended: after a failure all have GRACE seconds more.
    """
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    end = time.monotonic() + patience
    outcomes: list[Outcome] = []
    failures: list[str] = []
    while waiting and (ready := wait(list(waiting), max(0.0, end - time.monotonic()))):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                said = pipe.recv()
            except EOFError:
                raise ExecutionError(f"the process of rank {rank} died") from None
            if isinstance(said, str):
                failures.append(said if said.startswith("rank ") else f"rank {rank}: {said}")
                end = min(end, time.monotonic() + GRACE)
            else:
                outcomes.append(said)
    if failures:
        raise ExecutionError(failures[0])
    if waiting:
        raise ExecutionError(f"ranks {sorted(waiting.values())} took more than {patience} s")
    return outcomes[0]._replace(  # there is a rank
        each=tuple(max(times) for times in zip(*(o.each for o in outcomes), strict=True)),
        processor=sum(o.processor for o in outcomes),
    )


def _rank(
    rank: int, spaces: Sequence[str], control: str, store: str, trial: Trial, pipe: Connection
) -> None:
    # Ctrl-C is for the lab itself, which ends its ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_die_with, args=(pipe,), daemon=True).start()
    # What else runs on the machine should not show in the figures; gloo's threads inherit this.
    _urgent(True)
    try:
        if trial.slice_bytes is not None:
            said: Any = _measure_writes(rank, spaces, control, store, trial)
        else:
            _move(spaces[rank])
            said = _measure_rounds(rank, len(spaces), store, trial)
    except BaseException as error:
        # Its words go to the lab; a traceback on everybody's terminal would only hide them.
        pipe.send(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        raise SystemExit(1) from None
    pipe.send(said)


def _move(space: str) -> None:
    """Takes this thread, and those that it starts, to a namespace."""
    file = os.open(space, os.O_RDONLY)
    enter(file)
    os.close(file)


def _die_with(lab: Connection) -> None:
    """End this process when the lab's own is gone, however that came about.

    Its parent is not the lab but the process that forks ranks, which lives as long as they do.
    """
    wait([lab])  # it never says anything
    os.kill(os.getpid(), signal.SIGKILL)


class _Rank(Group):
    """A rank's place among the others. `processor`: seconds of processor time in launches."""

    processor = 0.0

    def join(self, *what: Any) -> bool:
        _urgent(True)  # the wire's thread, which begins here, stays so
        reaches = super().join(*what)
        _urgent(False)
        return reaches

    def begin(self) -> None:
        _urgent(True)
        super().begin()
        self.processor -= time.process_time()

    def end(self, sent: Sequence[int]) -> list[int]:
        self.processor += time.process_time()
        _urgent(False)
        return super().end(sent)


def _measure_writes(
    rank: int, spaces: Sequence[str], control: str, store: str, trial: Trial
) -> Outcome:
    """By the CPU engine."""
    from forestcoll.execute import cpu

    assert trial.program is not None
    _urgent(False)
    os.environ[ADDRESS] = address(rank)
    place = Place(rank, len(spaces), LOCAL, FIRST_PORT, store)
    _move(control)
    with _Rank(place, timeout=trial.timeout) as group:
        _move(spaces[rank])
        results = [
            cpu.run(
                trial.program,
                trial.size,
                threads=1,
                slice_bytes=trial.slice_bytes,
                group=group,
                warmup=0,
                modes=(trial.mode,),
                timeout=trial.timeout,
            )
            for _ in range(trial.iterations)
        ]
    rows = [result.rows[0] for result in results]
    texts = next((result.mismatches for result in results if result.wrong), ())
    seconds = tuple(row.time_us / 1e6 for row in rows)
    wrong = max(row.wrong or 0 for row in rows)
    return Outcome(seconds, rows[0].size, group.processor, wrong, texts[:4])


def _measure_rounds(rank: int, n: int, store: str, trial: Trial) -> Outcome:
    """By the torch engine over gloo, or gloo by itself."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from forestcoll.execute.torch.measure import Measured, run_alltoallv, time_it

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # where the rank's address is
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=trial.timeout),
    )
    parts = trial.collective.parts(n)
    part = max(1, trial.size // 4 // parts)
    act, root = _act(trial, rank, part)
    seconds, processor = list[float](), 0.0

    def time_call(input_: torch.Tensor, output: torch.Tensor) -> None:
        nonlocal processor
        _urgent(True)
        dist.barrier()
        began, used = time.perf_counter(), time.process_time()
        act(input_, output)
        seconds.append(time.perf_counter() - began)
        processor += time.process_time() - used
        _urgent(False)

    _urgent(False)
    what = Measured(trial.collective, time_call, "float32", "sum", root)
    wrong, texts = 0, list[str]()
    for _ in range(trial.iterations):
        if trial.blocks is not None:
            timing, words = run_alltoallv(time_call, trial.blocks)
        else:
            _, timing, words = time_it(what, part, trial.mode, 1, 0, True)
        wrong, texts = max(wrong, timing), texts or words
    dist.barrier()
    dist.destroy_process_group()
    size = part * parts * 4
    if trial.blocks is not None:
        size = 4 * max(map(sum, trial.blocks))
    return Outcome(tuple(seconds), size, processor, wrong, tuple(texts[:4]))


def _act(trial: Trial, rank: int, part: int) -> tuple[Act, int]:
    """What does the collective, and the root's rank (-1: none)."""
    import torch
    import torch.distributed as dist

    from forestcoll.execute.torch import Plan, collectives
    from forestcoll.execute.torch.measure import by_splits

    def gloos(input_: torch.Tensor, output: torch.Tensor) -> None:
        if trial.collective.transposes:
            dist.all_to_all_single(output, input_)
        else:
            dist.all_reduce(output)

    plan = None
    if trial.program is not None:
        plan = Plan(trial.program, slices=trial.slices, lead=trial.lead)
    if trial.blocks is not None:
        return by_splits(plan, trial.blocks, rank), -1
    if plan is None:
        return gloos, -1
    plan.job(rank, part, 4, in_place=trial.mode == "in-place")  # before the clock runs: it is kept
    return partial(collectives.perform, plan), plan.root


def _urgent(wanted: bool) -> None:
    """Let the calling thread go before ordinary ones, or no longer: a rank mostly waits, but what
    it takes to prepare and compare data is no reason to keep others waiting."""
    policy, priority = (os.SCHED_RR, 1) if wanted else (os.SCHED_OTHER, 0)
    os.sched_setscheduler(0, policy, os.sched_param(priority))
