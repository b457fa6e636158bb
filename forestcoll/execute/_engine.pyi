from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

REDUCED: int

Stop = tuple[int, int, int, int, int, bool, int, int, int, int]
"""block, instruction, slice, round, piece, finished, kind of wait, object, wanted, present."""

Death = tuple[int, int, int, int]
"""rank, process, signal (0: none), exit code (-1: unknown)."""

def op_names() -> list[str]: ...
def type_names() -> list[str]: ...
def reduction_names() -> list[str]: ...
def element_bytes(type: int) -> int: ...

class Options:
    def __init__(
        self,
        *,
        chunk_bytes: int,
        slice_bytes: int,
        slot_bytes: int,
        slots: int,
        type: int,
        op: int,
        processes: bool = False,
        threads: int,
        patience: float,
    ) -> None: ...

class Engine:
    def __init__(
        self,
        *,
        instructions: npt.NDArray[np.int32],
        operands: npt.NDArray[np.int64],
        dependencies: npt.NDArray[np.int32],
        names: list[int],
        loops: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.int32],
        connections: npt.NDArray[np.int32],
        semaphores: list[int],
        barriers: int,
    ) -> None: ...
    def launch(
        self,
        addresses: Sequence[int],
        options: Options,
        averages: Sequence[tuple[int, int, int]] = (),
        turn: int = 0,
        turns: int = 1,
    ) -> tuple[int, int, list[Stop], list[tuple[int, int, int]], list[Death]]: ...
    def rest(self) -> None: ...

class Pattern:
    def __init__(self, type: int, op: int, reducing: bool, ranks: int) -> None: ...

def fill(
    pattern: Pattern, source: int, first: int, count: int, address: int, threads: int
) -> None: ...
def compare(
    pattern: Pattern,
    source: int,
    first: int,
    count: int,
    addresses: Sequence[int],
    limit: int,
    threads: int,
) -> tuple[list[int], list[tuple[int, int, str, str]]]: ...
