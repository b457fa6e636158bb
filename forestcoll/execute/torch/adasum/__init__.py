"""Adasum: an allreduce that scales before it adds, by how far two gradients point the same way.

    adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b      of each layer

(Maleki et al., "Scaling distributed training with adaptive summation", 2021; Horovod's op.) It is
neither linear nor associative, so pairs are those of the binary tree over ranks, and a plan of
`--reduction-order binary` has just these: in round l every sum is one of two blocks of 2^l ranks,
cut among the 2^(l+1) that hold slices of it. So the plan's own steps carry the data, and between
what arrives and the sum these ranks exchange three scalars a layer: a.b, |a|^2 and |b|^2 of their
slices, added up in rank order, for the same bits everywhere. However layers lie across slices and
trees, none is cut in meaning.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
import torch.distributed as dist

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.execute.torch.cutting import Sum
from forestcoll.execute.torch.engine import Flight, Run
from forestcoll.execute.torch.plan import Plan

TINY: Final = math.sqrt(sys.float_info.min)
"""Squared norms below are none: the coefficient is 1."""


def check_adasum(plan: Plan, layers: Sequence[int] | None, tensor: torch.Tensor) -> None:
    """UnsupportedError, PlanError where Adasum of these layers cannot be made by the plan."""
    n = plan.ranks
    if n & (n - 1):
        raise UnsupportedError(f"adasum pairs ranks: {n} are no power of two")
    if not tensor.is_floating_point():
        raise UnsupportedError(f"adasum is for floating-point numbers, not {tensor.dtype}")
    if layers is None:
        raise UnsupportedError("adasum needs layers=[sizes], in elements")
    if any(size < 0 for size in layers) or sum(layers) != tensor.numel():
        raise UnsupportedError(
            f"the layers have {sum(layers)} elements in all, the tensor {tensor.numel()}"
        )
    blocks: list[tuple[int, int]] = []  # the first rank of a value's, and how many they are
    for value, level in zip(plan.flow.values, plan.levels, strict=True):
        first, size = (value.rank, 1) if not value.made_from else blocks[value.made_from[0]]
        if len(value.made_from) == 2:
            pair = sorted(blocks[k] for k in value.made_from)
            first = pair[0][0]
            right = pair == [(first, size), (first + size, size)] and first % (2 * size) == 0
            if not right or level != size.bit_length() - 1:
                raise PlanError(
                    f"{plan.name} does not add up pairs, then pairs of pairs, in rounds of their "
                    "own: adasum needs a plan of 'forestcoll synthesize --reduction-order binary'"
                )
            size *= 2
        blocks.append((first, size))


class AdasumRun(Run):
    """One call on one rank. `layers`: elements of each; the job has one slice."""

    def __init__(self, layers: Sequence[int], *about: Any) -> None:
        super().__init__(*about)
        self.borders = list(pairwise(accumulate(layers, initial=0)))

    def add_up(self, number: int) -> None:
        """The sums of a step, once all of a block's ranks know its scalars."""
        level, turn = divmod(number, self.job.lead)
        sums = self.job.steps[number].sums
        if not turn and 1 << level < self.plan.ranks:
            factors = self.factors(level, [each for each in sums if each.second])
            for each in sums:
                for layer, first, second, target in self.parts(each):
                    one, other = (
                        factors[layer] if self.leads(each, level) else factors[layer].flip(0)
                    )
                    target.copy_(first.double() * one + second.double() * other)
        for each in sums:
            if each.second is None:
                self.sum(each)

    def leads(self, each: Sum, level: int) -> bool:
        """Whether the first summand is the lower ranks': what came in is the other side's."""
        return bool(self.rank >> level & 1) == each.came

    def parts(self, each: Sum) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(layer, first summand, second, target) of each layer that a sum has a part of."""
        if each.second is None:
            return
        views = [self.view(piece) for piece in (each.first, each.second, each.target)]
        for layer, border in enumerate(self.borders):
            low, high = (min(max(at - each.begin, 0), each.target.length) for at in border)
            if low < high:
                first, second, target = (view[low:high] for view in views)
                yield layer, first, second, target

    def factors(self, level: int, sums: Sequence[Sum]) -> torch.Tensor:
        """Per layer what the lower ranks' side is multiplied by, and the other's."""
        size = 2 << level
        begin = self.rank // size * size
        shape = (size, len(self.borders), 3)
        every = torch.zeros(shape, dtype=torch.float64, device=self.own.device)
        mine = every[self.rank - begin]
        for each in sums:
            for layer, *sides, _ in self.parts(each):
                a, b = (
                    side.double() for side in (sides if self.leads(each, level) else sides[::-1])
                )
                mine[layer] += torch.stack([a @ b, a @ a, b @ b])
        flight = Flight(level * self.job.lead)
        others = [peer for peer in range(begin, begin + size) if peer != self.rank]
        receives = [(dist.irecv, every[peer - begin], peer) for peer in others]
        self.post_all(flight, [*receives, *((dist.isend, mine, peer) for peer in others)])
        self.settle(flight)
        total = every[0].clone()
        for more in every[1:]:
            total += more
        dot, norms = total[:, :1], total[:, 1:]
        return torch.where(norms < TINY, 1.0, 1 - dot / (2 * norms))
