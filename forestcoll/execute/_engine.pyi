from collections.abc import Sequence
from typing import Protocol

from forestcoll.execute.sizes import Geometry
from forestcoll.execute.tables import Tables

REDUCED: int

Stop = tuple[int, int, int, int, int, bool, int, int, int, int]
"""block, instruction, slice, round, piece, finished, kind of wait, object, wanted, present."""

Death = tuple[int, int, int, int]
"""rank, process, signal (0: none), exit code (-1: unknown)."""

Pattern = tuple[int, int, bool, int]
"""Element type, operation, whether that is applied, and over how many ranks (engine.hpp)."""

Division = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Of each rank its process, of each semaphore the rank that takes from it, of each connection where
its slots lie in its reader's arena (far.hpp)."""

FAR_HEAD: int
"""Bytes in front of a message in such a slot."""

class Together(Protocol):
    """What brings all processes of a launch together: `cluster.group.Group`."""

    def begin(self) -> None: ...
    def end(self, sent: Sequence[int]) -> list[int]: ...

def op_names() -> list[str]: ...
def type_names() -> list[str]: ...
def reduction_names() -> list[str]: ...
def element_bytes(type: int) -> int: ...

class Engine:
    def __init__(
        self,
        tables: Tables,
        ranks: int,
        addresses: Sequence[int],
        sums: Sequence[tuple[int, int]],
        geometry: Geometry,
        slots: tuple[int, int],
        kind: tuple[int, int],
        processes: bool,
        threads: int,
        patience: float,
    ) -> None: ...
    def launch(
        self, turn: int, group: Together | None = None
    ) -> tuple[int, int, list[Stop], list[tuple[int, int, int]], list[Death]]: ...
    def rest(self) -> None: ...
    def join(self, space: Space, division: Division, descriptors: Sequence[int]) -> None: ...
    def join_unkind(self, space: Space, division: Division, exchange: Exchange) -> None: ...
    def join_loaded(
        self, space: Space, division: Division, wire: Loaded, addresses: Sequence[bytes]
    ) -> None: ...
    def activity(self) -> tuple[bool, bool, int, int, int]: ...
    def end(self, status: int) -> None: ...
    def failure(self) -> tuple[int, str]: ...

class Space:
    def __init__(self, processes: int, process: int, stride: int) -> None: ...
    def arena(self, process: int) -> int: ...

class Loaded:
    def __init__(self, libraries: Sequence[str], processes: int, process: int) -> None: ...
    def address(self) -> bytes: ...

class Exchange:
    def __init__(self, processes: int, seed: int, lazy: bool) -> None: ...

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
