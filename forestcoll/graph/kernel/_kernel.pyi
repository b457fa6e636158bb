from collections.abc import Sequence
from typing import Any

class Logical:
    """Links between ranks and the paths that their units run over."""

    @property
    def tail(self) -> list[int]: ...
    @property
    def head(self) -> list[int]: ...
    @property
    def paths(self) -> list[list[int]]: ...
    @property
    def units(self) -> list[list[tuple[int, int]]]: ...

def best_ratio(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    ranks: Sequence[int],
    parts: Sequence[int] = (),
    sinks: Sequence[int] = (),
) -> tuple[int, int, list[int]]: ...
def refine_colours(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    colour: Sequence[int],
) -> list[int]: ...
def components(
    nodes: int, tail: Sequence[int], head: Sequence[int], outside: Sequence[int]
) -> list[int]: ...
def maximum_flow(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    source: int,
    sink: int,
) -> list[int]: ...
def least_flow(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    source: int,
    sinks: Sequence[int],
) -> tuple[int, list[int]]: ...
def violated(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
) -> tuple[int, list[int]] | None: ...
def trim(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
) -> list[int] | None: ...
def remove_relays(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
    group: Sequence[int],
    detours: bool,
) -> Logical: ...
def pack(
    logical: Logical, supply: Sequence[int], sinks: Sequence[int], exact: bool
) -> tuple[int, list[tuple[int, int, list[int]]]] | None: ...
def pack_nested(
    logical: Logical, supply: Sequence[int], sinks: Sequence[int], group: Sequence[int]
) -> tuple[int, list[tuple[int, int, list[int]]]] | None: ...
def pack_lowest(
    logical: Logical,
    supply: Sequence[int],
    sinks: Sequence[int],
    elements: Sequence[Sequence[int]],
    below: int,
) -> tuple[int, list[tuple[int, int, list[int]]]] | None: ...
def longest_ways(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    ranks: Sequence[int],
    times: Sequence[int],
    hop: int,
    roots: Sequence[int],
    reduce: Sequence[bool],
    edges: Sequence[Sequence[Sequence[int]]],
) -> list[int]: ...
def scan_trees(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    ranks: Sequence[int],
    copies: Sequence[bool],
    adds: Sequence[bool],
    roots: Sequence[int],
    reduce: Sequence[bool],
    weights: Sequence[int],
    edges: Sequence[Sequence[Sequence[int]]],
) -> tuple[int, int, list[int] | None]: ...
def rehang(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    box: Sequence[int],
    spread: Sequence[int],
    ranks: Sequence[int],
    entries: Sequence[int],
    units: Sequence[tuple[int, int]],
    height: int,
    grow: bool,
    moves: int,
    seed: int,
    twin: Sequence[int] = ...,
) -> tuple[int, int, list[tuple[int, ...]], list[list[int]]]: ...
def colour_edges(
    nodes: int,
    left: Sequence[int],
    right: Sequence[int],
    colours: int,
) -> list[int]: ...
def schedule(
    lanes: Sequence[int],
    ways: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    kinds: Sequence[int],
    needs: Sequence[Sequence[int]],
    ties: Sequence[int],
) -> tuple[list[int], float]: ...

class FifoBlocks:
    def __init__(
        self,
        transfers: Sequence[Any],
        inputs: Sequence[int],
        outputs: int,
        recycles: bool,
        words: Sequence[Any],
    ) -> None: ...
    @property
    def connections(self) -> list[tuple[int, int, int, int]]: ...
    def add_late(self, most: int) -> None: ...
    def add_apart(self, adders: Sequence[int]) -> None: ...
    def steps_of_connections(self) -> list[tuple[int, int]]: ...
    def steps_of_ranks(self) -> list[int]: ...
    def share_out(self, channels: Sequence[Sequence[int]]) -> list[tuple[int, int]]: ...
    def events(self, arrivals: Sequence[int]) -> list[tuple[int, bool]]: ...
    def clear(self) -> None: ...
    def begin(
        self,
        into: Sequence[tuple[int, int]],
        out: Sequence[tuple[int, int]],
        ports: int,
        local: int,
        adders: int,
        kept: int,
    ) -> None: ...
    def write(
        self,
        copies: Sequence[Sequence[tuple[int, int, int]]],
        early: Sequence[bool],
        arrivals: Sequence[int],
    ) -> list[list[int]]: ...
    def scratch_of(self, rank: int) -> int: ...
    def program(self, rank: int, most: int) -> list[tuple[int, tuple[Any, ...]]]: ...

class OnesidedBlocks:
    def __init__(
        self,
        trees: Sequence[Any],
        apart: Sequence[int],
        inputs: Sequence[int],
        outputs: Sequence[int],
        boxes: Sequence[int],
        reduces: bool,
        both: bool,
        limits: tuple[int, int, int, int, int, int],
        words: Sequence[Any],
    ) -> None: ...
    def groups(self, tree: int, rank: int) -> list[list[int]]: ...
    def deal(
        self, halves: int, busy: int
    ) -> tuple[int, int, tuple[int, int, int, int] | None] | None: ...
    def program(
        self, unit_bytes: int
    ) -> list[tuple[list[tuple[tuple[Any, ...], tuple[Any, ...]]], int, int]]: ...
