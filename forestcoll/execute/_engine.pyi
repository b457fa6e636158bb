from collections.abc import Sequence
from typing import Protocol, overload

from forestcoll.execute.sizes import Geometry
from forestcoll.execute.tables import Tables

REDUCED: int

Stop = tuple[int, int, int, int, int, bool, int, int, int, int]
"""block, instruction, slice, round, piece, finished, kind of wait, object, wanted, present."""

Death = tuple[int, int, int, int]
"""rank, process, signal (0: none), exit code (-1: unknown)."""

Pattern = tuple[int, int, bool, int, int]
"""Element type, operation, whether that is applied, over how many ranks, and the wire's type."""

Passage = tuple[int, int, int, bool]
"""Addresses of the caller's data and the wire's, values, whether they are divided on the way."""

SLOT_HEAD: int
"""Bytes in front of a message in its slot."""

class Together(Protocol):
    """What brings all processes of a launch together: `cluster.group.Group`."""

    def begin(self) -> None: ...
    def end(self, sent: Sequence[int]) -> list[int]: ...

def op_names() -> list[str]: ...
def type_names() -> list[str]: ...
def reduction_names() -> list[str]: ...
def element_bytes(type: int) -> int: ...
def element_values(type: int) -> int: ...

class Epilogue:
    """What is done to complete sums (engine.hpp)."""

    def __init__(
        self,
        steps: Sequence[tuple[int, float]],
        parts: tuple[int, int],
        state: int,
        count: int,
        completes: Sequence[int],
    ) -> None:
        """`parts`: elements of one, and to the next one's begin. `state`: its address."""

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
        data: int,
        passages: tuple[Sequence[Passage], Sequence[Passage]],
        exact: Sequence[tuple[int, int]],
        user: int,
        *epilogue: Epilogue,
    ) -> None: ...
    def launch(
        self, turn: int, *group: Together
    ) -> tuple[int, int, list[Stop], list[tuple[int, int, int]], list[Death]]: ...
    def rest(self) -> None: ...
    def join(
        self,
        space: Space,
        homes: Sequence[int],
        owners: Sequence[int],
        slots: Sequence[int],
        way: Way,
    ) -> None:
        """`homes`: of each rank its process; `owners`: of each semaphore the rank that takes from
        it; `slots`: of each connection where its slots lie in its reader's arena (far.hpp)."""

    def activity(self) -> tuple[bool, bool, int, int, int]: ...
    def end(self, status: int) -> None: ...
    def failure(self) -> tuple[int, str]: ...

class Way:
    """A wire to other processes, by which an engine or a relay joins them; once.

    Over sockets, one for each (-1: this process), which belong to it from now on; or a library's,
    loaded after those that it needs, which has an address and `meet`s those of all processes.
    """

    @overload
    def __init__(self, descriptors: Sequence[int]) -> None: ...
    @overload
    def __init__(
        self,
        libraries: Sequence[str],
        processes: int,
        process: int,
        arena: tuple[int, int, int, int],
    ) -> None:
        """`arena`: address, bytes, kind of memory, whether it is read back (wire.hpp)."""

    def address(self) -> bytes: ...
    def reaches(self) -> bool:
        """Whether it reads and writes the arena's kind of memory."""

    def meet(self, addresses: Sequence[bytes]) -> None: ...

class Space:
    def __init__(self, processes: int, process: int, stride: int, readable: bool) -> None: ...
    def arena(self, process: int) -> int: ...

RING: tuple[int, int, int]
"""Bytes: of a ring, of a thread block's own memory for packets, of an entry at most (ring.hpp)."""

class Relay:
    def __init__(
        self,
        space: Space,
        layout: Sequence[int | None],
        peers: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """`layout`: relay.hpp's."""

    def join(self, way: Way, reaches: bool) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def give_up(self) -> None: ...
    def close(self) -> None: ...
    def failure(self) -> tuple[int, str]: ...
    def counts(self) -> tuple[int, list[int], list[int]]:
        """Effects that have not left; those sent to each process and received from it."""

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
    *epilogue: Epilogue,
) -> tuple[list[int], list[tuple[int, int, str, str]]]: ...
