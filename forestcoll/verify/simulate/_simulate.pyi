from collections.abc import Callable, Sequence

from forestcoll.verify._machine import Columns

At = tuple[int, int, bool, int, int, int]
"""Where an operation comes from: rank, thread block, whether a proxy's, step, operation, peer."""

class Thread:
    def begin(self, step: int, op: int, peer: int, /) -> None: ...
    def loop(self, rounds: int, /) -> None: ...
    def reach(self, counter: int, amount: int, stride: int, /) -> None: ...
    def post(self, counter: int, /) -> None: ...
    def transfer(self, waits: bool, route: int, bytes: float, post: int, /) -> None: ...

class Threads:
    def thread(self, rank: int, block: int, proxy: bool, /) -> Thread: ...
    def counter(self) -> int: ...

class Rates:
    def __init__(self, block: float, sum: float, adds_slowly: bool, /) -> None: ...

class Fabric:
    def __init__(
        self,
        ways: Callable[[int, int, bool, float], list[tuple[int, int]]],
        latency: Callable[[int, int], float],
        round_trip: Callable[[int, int], float],
        bytes: Callable[[int, int], float],
        loop: Callable[[int, int], tuple[int, float, float]],
        in_switch: Callable[[int, bool, list[int]], list[int]],
        /,
    ) -> None: ...

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
) -> tuple[float, list[float], list[tuple[At, float, float, int, float]], list[At], int]: ...
