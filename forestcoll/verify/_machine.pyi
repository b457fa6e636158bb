from collections.abc import Sequence
from typing import Any, TypedDict

Place = tuple[int, ...]
"""Rank, thread block, step, which instruction of the step; of a rank's caller the rank alone."""
Event = tuple[int, Place]
"""Launch (of a caller the one that follows) and place."""
Location = tuple[int, int, int]
"""Rank, buffer (input, output, scratch) and chunk."""
Value = tuple[int, list[int]] | None
"""Chunk of the data and the ranks that it is added up over; None: nothing defined."""
Stuck = tuple[int, Place, int, Any, int, int]
"""Thread block, place, what it needs, of whom; the block that it waits for, and that one's rank."""

class Words:
    def __init__(self, rows: dict[Any, Any], buffers: list[Any], loop: type) -> None: ...

class Columns: ...

class Shape:
    def __init__(
        self,
        input: int,
        output: int,
        part: int,
        scratch: list[int],
        grain: int,
        double_scratch: bool,
        inputs_each: bool,
        outputs_each: bool,
        reduces: bool,
        rooted: int,
        shorter: int,
        /,
    ) -> None: ...

class Mode(TypedDict, total=False):
    in_place: bool
    overlap: tuple[Place, Location]
    races: list[tuple[Event, Event, Location]]
    sum: tuple[Event, Value, Value, bool, list[int]]
    results: list[tuple[int, int, int, Value, Value, Event | None]]

class Proof(TypedDict, total=False):
    stuck: list[Stuck]
    twice: tuple[Place, Place, Location]
    events: int
    root: int
    modes: list[Mode]
    values: list[tuple[int, int, int, int, int, bool]]
    outputs: list[list[int]]
    completed: list[tuple[Place, int, int]]
    reordered: bool

def columns(style: str, ranks: Any, words: Words, /) -> Columns: ...
def take_columns(made: Any, words: Words, /) -> Columns: ...
def scale(columns: Columns, rounds: int, slices: int, /) -> tuple[int, int, int]: ...
def moves(columns: Columns, /) -> list[tuple[int, int, int, int]]: ...
def takes(columns: Columns, boxes: Sequence[int], /) -> list[list[list[int]]]:
    """Per rank and thread block: steps, channels, chunks and peers of a step, thread blocks up to
    the last that it waits for, chunks in, chunks out."""

def blocks(columns: Columns) -> bytes: ...
def rows(columns: Columns, /) -> tuple[bytes, ...]: ...

Use = tuple[int, int, int, list[tuple[int, int, int, int]]]

def uses(columns: Columns, /) -> list[list[Use]]: ...
def prove(
    columns: Columns,
    shape: Shape,
    rounds: int,
    launches: int,
    piece: int,
    queue: int,
    modes: list[bool],
    root: int,
    most: int,
    finest: bool,
    /,
) -> Proof: ...
def note_values(columns: Columns, shape: Shape, in_place: bool, root: int, /) -> Proof: ...

At = tuple[int, int, bool, int, int, int]
"""Where an operation comes from: rank, thread block, whether a proxy's, step, operation, peer."""

class Threads:
    marks: bool
    produced: list[tuple[float, float]]

ALL_TREES: int
"""The block of a thread that sends for all trees of a rank."""

class TreeCoder:
    def __init__(self, threads: Threads, ranks: int, op: int, pieces: int, /) -> None: ...
    def write(
        self,
        number: int,
        reduces: bool,
        root: int,
        bytes: float,
        edges: Sequence[tuple[int, int, int, bool]],
        gates: Sequence[tuple[int, Sequence[int]]],
        /,
    ) -> int: ...
    def write_posts(self) -> None: ...

class Rates:
    def __init__(self, block: float, sum: float, adds_slowly: bool, /) -> None: ...

class Fabric:
    def __init__(self, coder: Any, /) -> None: ...

def code_fifo(
    columns: Columns,
    rounds: int,
    full: float,
    last: float,
    chunks: int,
    parts: int,
    slots: int,
    wire: float,
    boxes: list[int],
    rates: Rates,
    fabric: Fabric,
    threads: Threads,
    /,
) -> None: ...
def code_onesided(columns: Columns, rates: Rates, fabric: Fabric, threads: Threads, /) -> None: ...
def simulate(
    capacity: Sequence[float],
    rules: Sequence[int],
    routes: Sequence[tuple[float, float, Sequence[Sequence[int]]]],
    threads: Threads,
    cut_through: bool,
    seed: int,
    timeline: bool,
    until: float,
) -> tuple[float, list[float], list[tuple[At, float, float, int, float]], list[At], int, bytes]: ...

Xml = tuple[int, dict[str, str], list[Any]]
"""An element: its line, its attributes, what is below it."""

def scan_xml(text: str, ranks: int, blocks: int, instructions: int, /) -> Xml | None: ...
