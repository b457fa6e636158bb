"""Processes that are the ranks of a process group, for the tests of forestcoll.torch.

Every process is forked from one that has imported all already: PyTorch's import takes seconds.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts

from forestcoll.common.garbage_collection import THRESHOLD
from forestcoll.program import Collective

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'torch')", allow_module_level=True)


class Late:
    """A module that is imported when something of it is first asked for.

    Most workers of a session never need PyTorch, whose import takes seconds and much memory.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, what: str) -> Any:
        if what.startswith("_"):  # pytest looks at all that a module of tests holds
            raise AttributeError(what)
        return getattr(importlib.import_module(self._name), what)


torch, ft, dist = map(Late, ("torch", "forestcoll.torch", "torch.distributed"))
needs_gloo = pytest.mark.gloo
PATIENCE = 120.0
NAMED = {"two": ("ring gpus=2", "alltoall"), "pair": ("ring gpus=2", "allreduce")}
NAMED |= {"star": ("star gpus=4", "alltoall")}


def plan_files(compiled: Artefacts) -> dict[str, Path]:
    """Plans of a ring of four by collective (roots: rank 2), and some of others by name."""
    asked = {str(collective): ("ring gpus=4", str(collective)) for collective in Collective}
    found = {}
    for name, words in (asked | NAMED).items():
        root = ("--root", "2") if words[1] in ("broadcast", "reduce") else ()
        found[name.replace("-", "_")] = compiled(*words, *root).file(".msccl.xml")
    return found


# Ranks come from a process that imports this after PyTorch, whose objects stay to the end; for
# cycles among what they make themselves they look as seldom as the program does.
gc.freeze()
gc.set_threshold(*THRESHOLD)


@contextmanager
def _forked(n: int, work: Callable[..., None], *arguments: object) -> Iterator[list[Connection]]:
    """Pipes from `n` processes that call `work(rank, n, pipe, *arguments)`, killed at the end."""
    if not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    context = multiprocessing.get_context("forkserver")
    preload = ["forestcoll.torch", "torch._dynamo", "test_torch_agreement", "test_torch_gpu"]
    context.set_forkserver_preload(preload)  # optimizers import the second, for seconds
    with pytest.MonkeyPatch.context() as patch:  # where modules lie, the server is not told
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    pipes = [context.Pipe(duplex=False) for _ in range(n)]
    processes = [
        context.Process(target=work, args=(r, n, pipes[r][1], *arguments), daemon=True)
        for r in range(n)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        yield [ours for ours, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *arguments: Any,
    answer_within: float = 60.0,
    may_die: tuple[int, ...] = (),
) -> list[Any]:
    """What `function(rank, *arguments)` returns at each of `n` ranks of a gloo group.

    `answer_within`: seconds after which transfers fail. Ranks that `may_die` may end without a
    result (None). Raises AssertionError with the traceback of a rank that failed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _forked(n, _rank, f"{folder}/store", answer_within, function, arguments) as pipes,
    ):
        return _collect(pipes, may_die)


def launch(n: int, *words: str) -> list[tuple[str, str, int]]:
    """`forestcoll WORDS` in n processes as torchrun would start it; what each came to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, _forked(n, _program, port, folder, words) as them:
        return _collect(them, ())


def _program(
    rank: int, n: int, pipe: Connection, port: int, folder: str, words: tuple[str, ...]
) -> None:
    """The program with these words: what it wrote to either stream, and its exit code."""
    from forestcoll.__main__ import main

    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_PORT": port}
    os.environ |= {**{k: str(v) for k, v in places.items()}, "MASTER_ADDR": "127.0.0.1"}
    written = [Path(folder, f"{rank}.{stream}") for stream in ("out", "err")]
    for stream, path in enumerate(written, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), stream)
    sys.argv[1:] = words
    code = main()
    sys.stdout.flush()
    pipe.send((True, (*(path.read_text() for path in written), code)))


def _collect(pipes: list[Connection], may_die: tuple[int, ...]) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    open_ = {pipe: r for r, pipe in enumerate(pipes) if r not in may_die}
    end = time.monotonic() + PATIENCE
    while open_:
        ready = wait(list(open_), max(0.0, end - time.monotonic()))
        assert ready, f"ranks {sorted(open_.values())} gave no result within {PATIENCE} s"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_.pop(pipe)
            try:
                fine, results[rank] = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} ended without a result") from None
            assert fine, f"rank {rank} failed:\n{results[rank]}"
    return results


def _rank(
    rank: int,
    n: int,
    pipe: Connection,
    store: str,
    answer_within: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=n,
            timeout=timedelta(seconds=answer_within),
        )
        result = True, function(rank, *arguments)
    except BaseException:
        result = False, traceback.format_exc()
    pipe.send(result)
    if result[0]:
        try:
            dist.barrier()  # whoever goes first would be a peer that died
        except RuntimeError:
            return  # in tests in which somebody did
        dist.destroy_process_group()
