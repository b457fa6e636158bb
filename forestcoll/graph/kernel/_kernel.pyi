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
    parts: Sequence[int],
    sinks: Sequence[int],
) -> tuple[int, int, list[int]]:
    """(leaving, parts inside, nodes inside) of the cut with the least leaving / parts. `parts`: per
    rank. `sinks`: ranks to one of which every rank is alike.
    """

def refine_colours(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    colour: Sequence[int],
) -> list[int]:
    """Colours by which nodes differ, as far as their surroundings tell."""

def components(
    nodes: int, tail: Sequence[int], head: Sequence[int], outside: Sequence[int]
) -> list[int]:
    """Component of each node when those outside are gone; -1 for those."""

def maximum_flow(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    source: int,
    sink: int,
) -> list[int]:
    """Flow on each arc of a maximum flow."""

def least_flow(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    source: int,
    sinks: Sequence[int],
) -> tuple[int, list[int]]:
    """(flow, nodes inside): the least max-flow from source to a sink, and its cut."""

def violated(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
) -> tuple[int, list[int]] | None:
    """(sink, nodes inside) of a cut that keeps the sink from the supply, or None."""

def trim(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
) -> list[int] | None:
    """Lower capacities, balanced at every relay, that still meet the demand; None if not found."""

def remove_relays(
    nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],
    supply: Sequence[int],
    sinks: Sequence[int],
    group: Sequence[int],
    detours: bool,
) -> Logical:
    """Logical links instead of every node that is no sink."""

def pack(
    logical: Logical, supply: Sequence[int], sinks: Sequence[int], exact: bool
) -> tuple[int, list[tuple[int, int, list[int]]]] | None:
    """(height, [(root, weight, paths)]): spanning trees, supply[r] of them at every r, in growth
    order. Without `exact` only the lowest trees will do, else None.
    """

def pack_nested(
    logical: Logical, supply: Sequence[int], sinks: Sequence[int], group: Sequence[int]
) -> tuple[int, list[tuple[int, int, list[int]]]] | None:
    """As pack, but box by box: `group` names each node's box or is -1. None where no box can be
    made to take in every tree exactly once.
    """

def pack_lowest(
    logical: Logical,
    supply: Sequence[int],
    sinks: Sequence[int],
    elements: Sequence[Sequence[int]],
    below: int,
) -> tuple[int, list[tuple[int, int, list[int]]]] | None:
    """As pack, but lower than `below` or None: a search. `elements`: a group of maps of the nodes
    under which the trees are alike, where the links are.
    """

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
) -> list[int]:
    """Per tree the longest way between its root and a rank, where a path takes `hop` and the
    `times` of its arcs; -1 where the tree does not span or a path needs an arc not there.
    """

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
) -> tuple[int, int, list[int] | None]:
    """(first tree that does not span or -1, height of those that do, units over each arc): the
    units None where they leave 64 bits or a path needs an arc that is not there.
    """

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
    twin: Sequence[int],
) -> tuple[int, int, list[tuple[int, ...]], list[list[int]]]:
    """(overload, moves, paths, trees): where the overload is 0, no arc carries too much, and the
    tree of each unit (its root, how many equal trees it stands for) is a list of depth, path,
    depth, path ... by which its boxes hang, from the root outwards. `spread`: per box the hops
    from where a tree enters it to its ranks. Below 0 some box is out of reach within the height.
    `twin`: per arc the one with which it shares its capacity, or -1; or none at all.
    """

def colour_edges(
    nodes: int,
    left: Sequence[int],
    right: Sequence[int],
    colours: int,
) -> list[int]:
    """Per edge, from a left node to a right one, a colour: no node has more than ceil(degree /
    colours) edges of one. Edges go into that in their order: of alike ones that follow each
    other every colour gets one.
    """

def schedule(
    lanes: Sequence[int],
    ways: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    kinds: Sequence[int],
    needs: Sequence[Sequence[int]],
    ties: Sequence[int],
) -> tuple[list[int], float]:
    """Per transfer when it starts, and how many times as long as its busiest link is busy the
    schedule takes. A transfer takes a lane of each link of its kind's way at once, for its
    length, when all that it needs is there. Of several greedy schedules the shortest; among
    equally urgent transfers the least of `ties` goes first.
    """

class Transfers:
    """Transfers, in an order; lowering/transfers.hpp says what their parts are."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None: ...
    @property
    def connections(self) -> list[tuple[int, int, int, int]]: ...
    @property
    def scratch(self) -> list[int]: ...
    def loads(self) -> list[tuple[int, int]]: ...
    def rows(self) -> list[tuple[int, ...]]: ...
    def join(self, most: int) -> None: ...
    def join_levels(self, most: int) -> None: ...
    def schedule(
        self,
        ways: Sequence[Sequence[int]],
        capacity: Sequence[int],
        channels: Sequence[int],
        exchange: bool,
        back: bool,
        turns: bool,
    ) -> tuple[list[int], float]: ...

def transfers_of(
    trees: Sequence[Any],
    groups: Sequence[int],
    most: int,
    early: Sequence[bool],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Transfers: ...

class FifoBlocks:
    def __init__(
        self,
        transfers: Transfers,
        inputs: Sequence[int],
        outputs: int,
        recycles: bool,
        ops: Sequence[int],
    ) -> None: ...
    def add_late(self, most: int) -> None: ...
    def add_apart(self, steps: int) -> tuple[list[int], list[int]]: ...
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
    def columns(self, most: int) -> Any: ...

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
        self, unit_bytes: int, uneven: bool
    ) -> list[tuple[list[tuple[tuple[Any, ...], tuple[Any, ...]]], int, int]]: ...
