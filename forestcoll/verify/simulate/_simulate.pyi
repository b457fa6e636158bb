from collections.abc import Sequence

from typing_extensions import Buffer

def simulate(
    capacity: Sequence[float],
    rules: Sequence[int],
    routes: Sequence[tuple[float, float, Sequence[Sequence[int]]]],
    operations: Buffer,
    sizes: Buffer,
    segments: Buffer,
    counters: Sequence[int],
    threads: int,
    cut_through: bool,
    seed: int,
    timeline: bool,
) -> tuple[
    float,
    list[float],
    list[float],
    list[tuple[int, int, int, float, float]],
    list[tuple[int, int, int]],
    int,
]: ...
