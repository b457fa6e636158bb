"""Reduction operators on tensors: what each is to torch, and data on which it is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

Numbers = Callable[[torch.Tensor, int, int], torch.Tensor]
"""(positions, rank, ranks) -> whole numbers whose reduction is exact in every type."""


@dataclass(frozen=True, slots=True)
class Operator:
    """`combine` adds two tensors in the operator's sense; `avg` divides once all is added."""

    torchs: Any  # a ReduceOp
    combine: Callable[..., Any]
    numbers: Numbers


def _ones_and_twos(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return 1 + ((k + rank) % ranks == 0).to(torch.int32)


def _small(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    del ranks
    return (k * 7 + rank * 2 + k // 5) % 3


def _one_in_all(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    most = 1 if ranks > 42 else 3  # so that a byte holds the sum
    return ranks * (1 + k // ranks % most) * ((k + rank) % ranks == 0)


def plain_numbers(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Data of which nothing is combined, or only the least or largest is taken."""
    del ranks
    return (k * 7 + rank * 13 + k // 5) % 101


OPERATORS: Final = {
    "sum": Operator(dist.ReduceOp.SUM, torch.add, _small),
    "prod": Operator(dist.ReduceOp.PRODUCT, torch.mul, _ones_and_twos),
    "min": Operator(dist.ReduceOp.MIN, torch.minimum, plain_numbers),
    "max": Operator(dist.ReduceOp.MAX, torch.maximum, plain_numbers),
    "avg": Operator(dist.ReduceOp.AVG, torch.add, _one_in_all),
}
