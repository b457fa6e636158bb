from collections.abc import Sequence

from forestcoll.execute.sizes import Geometry
from forestcoll.execute.tables import Tables

REDUCED: int

Stop = tuple[int, int, int, int, int, bool, int, int, int, int]
"""block, instruction, slice, round, piece, finished, kind of wait, object, wanted, present."""

Death = tuple[int, int, int, int]
"""rank, process, signal (0: none), exit code (-1: unknown)."""

Pattern = tuple[int, int, bool, int]
"""Element type, operation, whether that is applied, and over how many ranks (engine.hpp)."""

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
        self, turn: int
    ) -> tuple[int, int, list[Stop], list[tuple[int, int, int]], list[Death]]: ...
    def rest(self) -> None: ...

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
