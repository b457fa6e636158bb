"""engine.cu's C interface, as Python calls; errors are ExecutionError with the runtime's words."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p, cast
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forestcoll.common.errors import ExecutionError

TABLES = 16
"""Tables of a plan: engine.cu's tables_of_launch."""

STOP = 11
"""Numbers that say where a thread block stood (layer.hpp, Stop); the last: of a mismatch."""


class Plan(ctypes.Structure):
    """A plan of which a GPU runs so many thread blocks (`blocks`), as engine.cu has it.

    `tables`: addresses, in the order of layer.hpp's Launch, and `bytes` of each. `slots`: bytes of
    one, how many; `kind`: element type, operation; `far`: rings, space of other nodes, packets for
    them, bytes of that space.
    """

    _fields_ = (
        ("tables", c_void_p * TABLES),
        ("geometry", c_int64 * 5),
        ("far", c_uint64 * 4),
        ("own", c_void_p * 4),
        ("slots", c_int64 * 2),
        ("kind", c_int32 * 2),
        ("number", c_int32),
        ("bytes", c_size_t * TABLES),
        ("blocks", c_int64),
    )


class Seen(NamedTuple):
    """A GPU as its runtime describes it. Bytes."""

    name: str
    processors: int
    total: int
    free: int


class Library:
    """The built library. Raises ExecutionError where it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        try:
            self.calls = ctypes.CDLL(str(path))
        except OSError as error:
            raise ExecutionError(f"the GPU engine cannot be loaded: {error}") from None
        self.calls.fc_gpu_error.restype = c_char_p
        self.calls.fc_gpu_arena.restype = c_uint64
        if self.value("stop_bytes") != 8 * STOP:
            raise ExecutionError(f"{path}: built from other sources; delete it")

    def call(self, name: str, *arguments: Any, kinds: Sequence[Any] = ()) -> list[int]:
        """What `fc_gpu_<name>` leaves in its last arguments, of these ctypes kinds.

        ExecutionError if it fails.
        """
        values = [kind() for kind in kinds]
        if self.value(name, *arguments, *map(byref, values)):
            words = self.calls.fc_gpu_error().decode(errors="replace")
            raise ExecutionError(f"GPU: {words}")
        return [value.value for value in values]

    def value(self, name: str, *arguments: Any) -> int:
        """What `fc_gpu_<name>` returns, where that is a number."""
        words = (c_int64(one) if isinstance(one, int) else one for one in arguments)
        return int(getattr(self.calls, f"fc_gpu_{name}")(*words))

    def count(self) -> int:
        """How many GPUs this process sees."""
        return self.call("count", kinds=[c_int])[0]

    def describe(self, number: int) -> Seen:
        """The GPU of that number."""
        text = ctypes.create_string_buffer(512)
        self.call("use", number)
        self.call("describe", number, text, len(text))
        name, processors, total, free = text.value.decode(errors="replace").rsplit("|", 3)
        return Seen(name, int(processors), int(total), int(free))

    def reaches(self, source: int, target: int) -> tuple[bool, bool]:
        """Whether kernels on `source` reach `target`'s memory, and change it atomically."""
        access, atomics = self.call("reaches", source, target, kinds=[c_int, c_int])
        return bool(access), bool(atomics)


class Device:
    """One GPU with its arena of `bytes_` bytes. Close it."""

    def __init__(self, library: Library, number: int, bytes_: int) -> None:
        self.library, self.number = library, number
        self._handle = c_void_p()
        try:
            library.call("open", number, bytes_, byref(self._handle))
        except ExecutionError:
            library.value("close", self._handle)  # what it did get; why it failed is what matters
            raise
        self.base = library.value("arena", self._handle)

    def call(self, name: str, *arguments: Any, kinds: Sequence[Any] = ()) -> list[int]:
        """As the library's, for this GPU; another one may be this thread's at the time."""
        self.library.call("use", self.number)
        return self.library.call(name, self._handle, *arguments, kinds=kinds)

    def close(self) -> None:
        """Gives everything back."""
        handle, self._handle = self._handle, c_void_p()
        self.library.call("use", self.number)
        self.library.call("close", handle)

    def export(self) -> bytes:
        """The arena, for another process to map."""
        handle = ctypes.create_string_buffer(self.library.value("handle_bytes"))
        self.call("export", handle)
        return handle.raw

    def write(self, address: int, data: npt.NDArray[Any]) -> None:
        """Copies an array to the GPU."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            self.call("write", address, data.ctypes.data, data.nbytes)

    def read(self, address: int, target: npt.NDArray[Any]) -> None:
        """Copies from the GPU into a contiguous array."""
        if target.nbytes:
            self.call("read", address, target.ctypes.data, target.nbytes)

    def copies(self) -> tuple[int | None, ...]:
        """The functions that write and read memory of the GPU, and the first argument of both."""
        calls = self.library.calls
        functions = (cast(each, c_void_p).value for each in (calls.fc_gpu_write, calls.fc_gpu_read))
        return *functions, self._handle.value

    def memory(self) -> tuple[int, int]:
        """The kind of its memory, and whether what adapters write there has to be read back."""
        kind = self.library.value("memory", self._handle)
        return kind % 4, kind // 4

    def poll(self) -> tuple[bool, int]:
        """(whether the kernel still runs, a number that changes while thread blocks get on)."""
        running, ticks = self.call("poll", kinds=[c_int, c_uint64])
        return bool(running), ticks

    def abort(self) -> None:
        """Ends the launch: every thread block that waits gives up."""
        self.library.value("abort", self._handle)

    def nanoseconds(self) -> int:
        """How long the kernel ran."""
        return self.call("nanoseconds", kinds=[c_int64])[0]
