"""Reduction operators on tensors: what each is to torch, and data on which it is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from forestcoll.common.errors import UnsupportedError, did_you_mean

FLOATS = {torch.float32, torch.float16, torch.bfloat16}
Numbers = Callable[[torch.Tensor, int, int], torch.Tensor]
"""(positions, rank, ranks) -> whole numbers whose reduction is exact in every type."""


class Operator(NamedTuple):
    """`combine` adds two tensors in the operator's sense.

    `finish`: what is done to each complete sum, given how many ranks have added to it. `scale`:
    what every rank's input is multiplied by first. `wire`, `sums`: the types in which data travel
    and lie where they are added up, None: the tensor's.
    """

    torchs: Any  # a ReduceOp
    combine: Callable[..., Any]
    numbers: Numbers
    finish: Callable[[torch.Tensor, int], Any] | None = None
    scale: float = 1.0
    wire: torch.dtype | None = None
    sums: torch.dtype | None = None

    def convert(self, dtype: torch.dtype, wire: Any, sums: Any) -> Operator:
        """The same on tensors of `dtype` in other types; UnsupportedError: it does not go."""
        wire = wire or dtype
        if not {dtype, wire} <= FLOATS or sums not in (None, torch.float32):
            raise UnsupportedError(
                f"wire {wire}, accumulate {sums} of {dtype}: all are torch.float32, float16 or "
                "bfloat16, accumulate float32 (fp8: 'forestcoll run --engine cpu' has it)"
            )
        return self._replace(wire=wire, sums=sums or wire)


def _ones_and_twos(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return 1 + ((k + rank) % ranks == 0).to(torch.int32)


def _small(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    del ranks
    return (k * 7 + rank * 2 + k // 5) % 3


def _one_in_all(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    most = 1 if ranks > 42 else 3  # so that a byte holds the sum
    return ranks * (1 + k // ranks % most) * ((k + rank) % ranks == 0)


def _divide(total: torch.Tensor, ranks: int) -> None:
    total.div_(ranks, rounding_mode=None if total.is_floating_point() else "trunc")


def plain_numbers(k: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Data of which nothing is combined, or only the least or largest is taken."""
    del ranks
    return (k * 7 + rank * 13 + k // 5) % 101


OPERATORS: Final = {
    "sum": Operator(dist.ReduceOp.SUM, torch.add, _small),
    "prod": Operator(dist.ReduceOp.PRODUCT, torch.mul, _ones_and_twos),
    "min": Operator(dist.ReduceOp.MIN, torch.minimum, plain_numbers),
    "max": Operator(dist.ReduceOp.MAX, torch.maximum, plain_numbers),
    "avg": Operator(dist.ReduceOp.AVG, torch.add, _one_in_all, _divide),
}


def operator_of(op: Any) -> tuple[str, Operator]:
    """The name and the operator of a ReduceOp (PREMUL_SUM has its factor), its name or a function.

    A function is given two tensors and returns another like them; whose tensor comes first is the
    plan's affair, so it has to be commutative. Raises UnsupportedError for others.
    """
    bare = isinstance(op, dist.ReduceOp.RedOpType)  # which torch counts among ReduceOps
    if isinstance(op, dist.ReduceOp) and not bare and op == dist.ReduceOp.PREMUL_SUM:
        factor = float(op.__getstate__()[1])
        return f"sum of {factor:.17g} times", OPERATORS["sum"]._replace(scale=factor)
    if isinstance(op, str):
        name = op.lower()
    elif callable(op) and not bare:

        def combine(first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor) -> None:
            out.copy_(op(first, second))

        return name_of(op), Operator(None, combine, plain_numbers)
    else:
        word = str(op).rpartition(".")[2].lower()  # `band` of RedOpType.BAND
        name = next((n for n, operator in OPERATORS.items() if op == operator.torchs), word)
    if name not in OPERATORS:
        hint = did_you_mean(name, OPERATORS) or f"; there are {', '.join(OPERATORS)}"
        raise UnsupportedError(f"unknown operation {name!r}{hint}")
    return name, OPERATORS[name]


def name_of(function: Any) -> str:
    """What a function is called, at every rank alike."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
