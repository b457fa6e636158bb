"""`torch.distributed`'s all-to-all by a plan, blocks of any size: ragged, empty, odd.

The plan says which way each part of each block goes; how large blocks are is known at run time, and
so is whether every rank can make the call (`agreement`). Then they are cut into steps as the data
of any other collective (`cutting`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.torch import collectives
from forestcoll.execute.torch.agreement import group_of, refuse
from forestcoll.execute.torch.collectives import AnyPlan
from forestcoll.execute.torch.plan import Plan, plan_of
from forestcoll.execute.torch.work import Work
from forestcoll.program import Collective

Splits = Sequence[int] | None


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    plan: AnyPlan,
    output_split_sizes: Splits = None,
    input_split_sizes: Splits = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Send block i of `input` to rank i; leave what rank i sends here in block i of `output`.

    Splits are sizes along the first dimension, one a rank; None: equal ones. All ranks must give
    splits, or none. Returns a Work if `async_op`. Raises PlanError (the plan is not one for this),
    UnsupportedError (splits that do not fit) and ExecutionError (a peer failed or did not answer in
    time); where there are splits, at all ranks what is wrong at one.
    """

    def sizes(ranks: int) -> list[int]:
        return [
            *_sizes("input_split_sizes", input_split_sizes, input, ranks),
            *_sizes("output_split_sizes", output_split_sizes, output, ranks),
        ]

    given = sizes if has_sizes(output_split_sizes) or has_sizes(input_split_sizes) else None
    return collectives.start(plan, Collective.ALLTOALL, input, output, group, async_op, sizes=given)


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    plan: AnyPlan,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Send `input_tensor_list[i]` to rank i; leave what rank i sends in `output_tensor_list[i]`.

    Tensors of one type, of any sizes. Otherwise as `all_to_all_single`.
    """
    group = group_of(group)
    try:
        ready = plan_of(plan)
        for name, given in (("output", output_tensor_list), ("input", input_tensor_list)):
            if len(given) != ready.ranks:
                raise UnsupportedError(
                    f"{len(given)} {name} tensors; the plan has {ready.ranks} ranks"
                )
        for pair in zip(input_tensor_list, output_tensor_list, strict=True):
            collectives.check_alike(*pair)
            collectives.check_call(ready, Collective.ALLTOALL, pair, group)
        kinds = sorted({f"{t.dtype} on {t.device}" for t in input_tensor_list})
        if len(kinds) > 1:
            raise UnsupportedError(f"tensors of {' and '.join(kinds)}; they must be alike")
    except Exception as error:
        refuse(group, plan, next(iter(input_tensor_list), None), error, splits=True)
        raise
    flat = torch.cat([t.detach().reshape(-1) for t in input_tensor_list])
    get = [t.numel() for t in output_tensor_list]
    output = flat.new_empty(sum(get))

    def leave() -> None:
        for tensor, part in zip(output_tensor_list, output.split(get), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    return collectives.start(
        ready,
        Collective.ALLTOALL,
        flat,
        output,
        group,
        async_op,
        sizes=lambda _: [*(t.numel() for t in input_tensor_list), *get],
        results=(list(output_tensor_list), leave),
    )


def all_to_all_single_autograd(
    input: torch.Tensor,
    plan: AnyPlan,
    output_split_sizes: Splits = None,
    input_split_sizes: Splits = None,
    group: Any = None,
) -> torch.Tensor:
    """The output of `all_to_all_single`, through which gradients flow back, by the same plan."""
    ready = plan_of(plan)
    rows = sum(output_split_sizes) if output_split_sizes else input.shape[0]
    output: torch.Tensor = _Exchange.apply(
        input, ready, rows, output_split_sizes, input_split_sizes, group
    )
    return output


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Forward: all-to-all. Backward: the same with input and output splits traded."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        plan: Plan,
        rows: int,
        output_splits: Splits,
        input_splits: Splits,
        group: Any,
    ) -> torch.Tensor:
        ctx.given = plan, output_splits, input_splits, group
        ctx.shape = input.shape
        output = input.new_empty((rows, *input.shape[1:]))
        all_to_all_single(output, input.contiguous(), plan, output_splits, input_splits, group)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan, output_splits, input_splits, group = ctx.given
        back = grads[0].new_empty(ctx.shape)
        all_to_all_single(back, grads[0].contiguous(), plan, input_splits, output_splits, group)
        return back, None, None, None, None, None


def has_sizes(splits: Splits) -> bool:
    """Whether splits are given: to torch, too, none are None."""
    return splits is not None and len(splits) > 0


def _sizes(name: str, given: Splits, tensor: torch.Tensor, n: int) -> list[int]:
    """Elements of each rank's block, of rows that add up to the first dimension."""
    if not tensor.dim():
        raise UnsupportedError(f"{name}: a tensor without dimensions has no rows")
    rows, row = tensor.shape[0], math.prod(tensor.shape[1:])
    if given is None or not has_sizes(given):
        if rows % n:
            raise UnsupportedError(f"{name}: {rows} rows are not dealt out to {n} ranks evenly")
        return [rows // n * row] * n
    sizes = [int(size) for size in given]
    if len(sizes) != n or min(sizes) < 0 or sum(sizes) != rows:
        raise UnsupportedError(
            f"{name}: {len(sizes)} sizes that add up to {sum(sizes)}; it takes {n}, none below 0, "
            f"that add up to {rows} rows"
        )
    return [size * row for size in sizes]
