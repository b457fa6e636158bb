from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def simulate(
    capacity: Sequence[float],
    rules: Sequence[int],
    routes: Sequence[tuple[float, Sequence[Sequence[int]]]],
    operations: NDArray[np.int32],
    sizes: NDArray[np.float64],
    segments: NDArray[np.int32],
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
