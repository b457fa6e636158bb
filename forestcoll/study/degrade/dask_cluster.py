"""Failures of a bundle made on a Dask cluster: a given one, or one of this machine's cores.

Workers only compute; files are written by the caller, so a cluster needs no common file system,
only this package, at this version, in the workers' environment (Dask,
https://distributed.dask.org).
"""

from __future__ import annotations

import logging
import pickle
import pydoc
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import forestcoll
from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.common.garbage_collection import collect_rarely
from forestcoll.study.degrade.bundle import Made, Request, make

if TYPE_CHECKING:
    from forestcoll.study.degrade.failures import Failure

CONNECT_SECONDS = 15
"""How long a scheduler is waited for."""

WORKER_SECONDS = 60
"""How long a cluster without any worker is waited for."""

TASK = f'__import__("{__name__}", fromlist=["unpack_and_make"]).unpack_and_make(packed, version)'
"""What a worker evaluates. A function of this package would be unpickled by the scheduler, too, and
a worker without the package would end at it, where this raises."""

GO_ON = "what is made stays, and the same command goes on from there"


def is_installed() -> bool:
    """Whether Dask is there."""
    from importlib.util import find_spec

    return find_spec("distributed") is not None


def spread(
    request: Request, failures: Sequence[Failure], address: str | None = None
) -> Iterator[tuple[Failure, Made]]:
    """Each failure with what was made for it, as they are done.

    `address`: of a scheduler ("tcp://host:8786"); None: workers on this machine, one a core.
    Raises UnsupportedError where Dask is missing, the scheduler does not answer or has no worker,
    and where a worker lacks this package or has another version; ForestCollError where the
    scheduler goes away and, once all others are done, for failures whose workers died.
    """
    if not failures:
        return
    with ExitStack() as stack:
        client = _connect(address, stack)
        import distributed

        # what Dask raises where the connection to the scheduler is gone
        lost = (OSError, TimeoutError, distributed.TimeoutError, distributed.CancelledError)
        try:
            if address is not None:
                _check_package(client, address)
            done: SimpleQueue[Any] = SimpleQueue()
            waiting: dict[Any, Failure] = {}
            for failure in failures:
                names = {"packed": _pack(request, failure), "version": forestcoll.__version__}
                waiting[client.submit(eval, TASK, names, pure=False)] = failure
            for future in waiting:
                future.add_done_callback(done.put)
            killed: list[Failure] = []
            while waiting:
                future = _next(done, client)
                failure = waiting.pop(future)
                try:
                    result = future.result()
                except (distributed.KilledWorker, MemoryError):
                    killed.append(failure)
                    continue
                except ImportError as error:
                    raise UnsupportedError(
                        _other_package([_describe("a worker", error)])
                    ) from error
                future.release()
                yield failure, result
            if killed:
                raise ForestCollError(
                    f"{len(killed)} of {len(failures)} failures were not made, as each of them "
                    f"ended several workers (too little memory?): {killed[0].name}"
                    f"{' and others' if len(killed) > 1 else ''}; {GO_ON}, for instance with "
                    "larger workers or with --dask none"
                )
        except lost as error:
            place = f"at '{address}'" if address else "of this machine's workers"
            raise ForestCollError(
                f"lost the Dask scheduler {place} ({type(error).__name__}); {GO_ON}"
            ) from error


def unpack_and_make(packed: bytes, version: str) -> Made:
    """`make` in a worker, from what `_pack` gave; raises UnsupportedError for another version."""
    if version != forestcoll.__version__:
        raise UnsupportedError(_other_package([f"a worker has {forestcoll.__version__}"]))
    request, failure = pickle.loads(zlib.decompress(packed))
    with collect_rarely():
        return make(request, failure)


def _pack(request: Request, failure: Failure) -> bytes:
    # A few kB: each task has its own, so a worker that dies takes nothing along that others need.
    return zlib.compress(pickle.dumps((request, failure)))


def _next(done: SimpleQueue[Any], client: Any) -> Any:
    """The next future that is done. Raises UnsupportedError where no worker is left to do it."""
    seen = time.monotonic()
    while True:
        try:
            return done.get(timeout=min(5, WORKER_SECONDS))
        except Empty:
            if client.nthreads():
                seen = time.monotonic()
            elif time.monotonic() - seen >= WORKER_SECONDS:
                address = client.scheduler_info().get("address", "")
                raise UnsupportedError(f"{_no_worker(address)}; {GO_ON}") from None


# Who is there


def _check_package(client: Any, address: str) -> None:
    """Raise UnsupportedError unless all workers have this package at this version."""
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError:
        raise UnsupportedError(_no_worker(address)) from None
    # A function of the standard library: it is there to be asked whether ours are.
    versions = client.run(pydoc.locate, "forestcoll.__version__", on_error="return")
    wrong = [entry for entry in sorted(versions.items()) if entry[1] != forestcoll.__version__]
    if wrong:
        raise UnsupportedError(_other_package([_describe(f"worker {w}", has) for w, has in wrong]))


def _describe(who: str, answer: object) -> str:
    if answer is None or getattr(answer, "name", "") == "forestcoll":
        return f"{who} has none"
    if isinstance(answer, str):
        return f"{who} has {answer[:40]}"
    first = next(iter(str(answer).splitlines()), "") or repr(answer)
    return f"{who} cannot import it ({first[:200]})"


def _other_package(where: Sequence[str]) -> str:
    shown = "; ".join(where[:3]) + (f"; and {len(where) - 3} more" if len(where) > 3 else "")
    return (
        f"the Dask workers need this package, forestcoll {forestcoll.__version__}, in their "
        f"environment: {shown}; install it there (pip install '.[dask]' from the clone), start "
        "them again, and give the same command"
    )


def _no_worker(address: str) -> str:
    return (
        f"the Dask scheduler at '{address}' has had no worker for {WORKER_SECONDS} s: start some "
        f"with 'dask worker {address}'"
    )


# Clients


def _connect(address: str | None, stack: ExitStack) -> Any:
    """A client, closed when `stack` is; with workers on this machine where no address is given."""
    try:
        import distributed
    except ModuleNotFoundError:
        raise UnsupportedError(
            "--dask needs Dask: install the extra 'dask' (pip install '.[dask]')"
        ) from None
    stack.enter_context(_silent())
    if address is None:
        return stack.enter_context(
            distributed.Client(stack.enter_context(_local_cluster()), set_as_default=False)
        )
    try:
        return stack.enter_context(
            distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        )
    except (OSError, ValueError, TimeoutError) as error:
        raise UnsupportedError(
            f"no Dask scheduler answers at '{address}': start one with 'dask scheduler' and "
            f"workers with 'dask worker {address}' ({error or type(error).__name__})"
        ) from error


def _local_cluster() -> Any:
    import os

    import dask
    import distributed

    # Nobody looks at the profile, for which the worker stops every 10 ms.
    with dask.config.set({"distributed.worker.profile.enabled": False}):
        return distributed.LocalCluster(
            n_workers=len(os.sched_getaffinity(0)),
            threads_per_worker=1,
            # None takes port 8787 still, and warns where another cluster has it.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Without Dask's own log: what goes wrong is raised."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    loggers = [log for log in map(logging.getLogger, names) if not log.disabled]
    for log in loggers:
        log.disabled = True
    try:
        yield
    finally:
        for log in loggers:
            log.disabled = False
