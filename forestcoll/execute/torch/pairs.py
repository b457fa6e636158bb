"""What each pair of ranks reaches alone: bandwidth and latency, over any process group.

Every process calls this alike and gets the same result. One pair at a time sends, so that nothing
shares its links; times are the sender's, from the first message to the answer to the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from forestcoll.execute.torch.agreement import gather

MESSAGES = 4
"""Messages of one timing, so that what starts and ends it counts little."""
TRIPS = 20
"""Trips there and back of 8 bytes of one timing of the latency."""

Pair = tuple[int, int]


class Pairs(NamedTuple):
    """GB/s and microseconds one way, by (sender, receiver)."""

    rates: dict[Pair, float]
    latencies: dict[Pair, float]


def choose_pairs(ranks: int, which: str) -> list[Pair]:
    """All ordered pairs, or of each rank the next one alone ("ring")."""
    if which == "ring":
        return [(i, (i + 1) % ranks) for i in range(ranks)] if ranks > 1 else []
    return [(i, j) for i in range(ranks) for j in range(ranks) if i != j]


def measure_pairs(
    pairs: Sequence[Pair],
    size: int,
    repeats: int,
    device: torch.device | str = "cpu",
    tell: Callable[[str, float], None] = lambda stage, share: None,
) -> Pairs:
    """Median of `repeats` timings of every pair, with messages of `size` bytes."""
    rank = dist.get_rank()
    buffer = torch.zeros(size, dtype=torch.uint8, device=device)
    small = torch.zeros(8, dtype=torch.uint8, device=device)
    mine: list[tuple[Pair, float, float]] = []
    for done, (src, dst) in enumerate(pairs):
        tell(f"rank {src} to rank {dst}", done / len(pairs))
        dist.barrier()
        if rank not in (src, dst):
            continue
        other = dst if rank == src else src
        act = partial(_exchange, rank == src, small, other)
        times = [act(buffer, MESSAGES) for _ in range(repeats + 1)][1:]
        trips = [act(small, 1) for _ in range(repeats * TRIPS)]
        if rank == src:
            rate = MESSAGES * size / median(times) / 1e9
            mine.append(((src, dst), rate, median(trips) / 2 * 1e6))
    entries = [entry for part in gather(mine) for entry in part]
    return Pairs({pair: r for pair, r, _ in entries}, {pair: late for pair, _, late in entries})


def _exchange(
    sends: bool, small: torch.Tensor, other: int, buffer: torch.Tensor, count: int
) -> float:
    """Seconds until the answer to the last of `count` messages is at who sends them."""
    _wait(buffer)
    first, second = (dist.send, dist.recv) if sends else (dist.recv, dist.send)
    start = time.perf_counter()
    for _ in range(count):
        first(buffer, other)
    second(small, other)
    _wait(buffer)
    return time.perf_counter() - start


def _wait(tensor: torch.Tensor) -> None:
    """GPUs do what they are told later: until all is done."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
