"""What asynchronous calls return, and the order of calls on one process group.

On GPUs everything is put into a stream of its own by the caller's thread: nothing blocks but what
the ranks tell each other first (agreement.py). On the processor a thread waits for the transfers.
Calls on one group run one after another, in the order in which they were made, as every rank must
make them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import Any
from weakref import WeakKeyDictionary

import torch

from forestcoll.common.errors import ExecutionError

Tensors = list[torch.Tensor]


class Work:
    """A call under way, with the methods of `torch.distributed.Work`."""

    def __init__(self, results: Tensors) -> None:
        self._results = results
        self._done = Event()
        self._error: BaseException | None = None
        self._mark: Any = None  # of a stream
        device = results[0].device
        devices = [device] if device.type == "cuda" else []
        self._future: torch.futures.Future[Tensors] = torch.futures.Future(devices=devices)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True when it is done; on GPUs, when the current stream will wait for it.

        Raises what the call raised; ExecutionError after `timeout`.
        """
        seconds = None if timeout is None else timeout.total_seconds()
        if not self._done.wait(seconds):
            raise ExecutionError(f"not done after {seconds} s; it is still under way")
        if self._error is not None:
            raise self._error
        if self._mark is not None:
            torch.cuda.current_stream(self._results[0].device).wait_event(self._mark)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set() and (self._mark is None or bool(self._mark.query()))

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What it failed with, if it has."""
        return self._error

    def result(self) -> Tensors:
        """The tensors that hold the result."""
        return self._results

    def get_future(self) -> torch.futures.Future[Tensors]:
        """A future of the result."""
        return self._future

    def _end(self, error: BaseException | None, mark: Any = None) -> None:
        self._error, self._mark = error, mark
        self._done.set()
        if error is None:
            self._future.set_result(self._results)
        elif isinstance(error, Exception):
            self._future.set_exception(error)


_last: WeakKeyDictionary[Any, Work] = WeakKeyDictionary()
_streams: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_lock = Lock()


def submit(call: Callable[[], None], group: Any, results: Tensors, *, wait: bool) -> Work:
    """Make `call` after all calls on `group` before; its Work, done if `wait`."""
    if results[0].device.type == "cuda":
        return _submit_stream(call, group, results, wait)
    work = Work(results)
    with _lock:
        before = _last.get(group)
        _last[group] = work
    arguments = (call, group, before, work)
    if wait:
        _carry_out(*arguments)
        work.wait()
    else:
        Thread(target=_carry_out, args=arguments, name="forestcoll", daemon=True).start()
    return work


def _carry_out(call: Callable[[], None], group: Any, before: Work | None, work: Work) -> None:
    if before is not None:
        before._done.wait()
    try:
        with torch.no_grad():
            call()
        with _lock:
            if _last.get(group) is work:
                del _last[group]  # which would keep the tensors
    except BaseException as error:
        work._end(error)  # which `wait` raises
        if not isinstance(error, Exception):  # Ctrl-C, in the caller's own thread
            raise
    else:
        work._end(None)


def _submit_stream(call: Callable[[], None], group: Any, results: Tensors, wait: bool) -> Work:
    work, device = Work(results), results[0].device
    if wait:
        with torch.no_grad():
            call()
        work._end(None)
        return work
    with _lock:
        stream = _streams.setdefault(group, torch.cuda.Stream(device))
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.no_grad():
        call()
        for tensor in results:
            tensor.record_stream(stream)
        mark = torch.cuda.Event()
        mark.record(stream)
        work._end(None, mark)
    return work
