"""`torch.distributed`'s all-to-all by a plan, blocks of any size: ragged, empty, odd.

The plan says which way each part of each block goes; how large the blocks are is known at run time
(`ragged`). Blocks of one size go as those of other collectives (`engine`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from forestcoll.errors import UnsupportedError
from forestcoll.program import Collective
from forestcoll.torch import collectives
from forestcoll.torch.collectives import AnyPlan
from forestcoll.torch.plan import Plan, plan_of
from forestcoll.torch.ragged import Ragged
from forestcoll.torch.work import Work, submit

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
    UnsupportedError (splits that do not fit, at this rank or another) and ExecutionError (a peer
    failed or did not answer in time).
    """
    ready = plan_of(plan)
    if output_split_sizes is None and input_split_sizes is None:
        return collectives.exchange(ready, input, output, group, async_op)
    group = collectives.check_call(ready, Collective.ALLTOALL, (input, output), group)
    whole = [tuple(t.shape[1:]) for t in (input, output)]
    if whole[0] != whole[1]:
        raise UnsupportedError(f"rows of the input are {whole[0]}, of the output {whole[1]}")
    row = math.prod(whole[0])
    splits = [
        _splits(name, given, tensor, ready.ranks)
        for name, given, tensor in (
            ("input_split_sizes", input_split_sizes, input),
            ("output_split_sizes", output_split_sizes, output),
        )
    ]
    call = Ragged(ready, group, input.detach(), output.detach(), row, splits[0], splits[1])
    work = submit(call, group, [output], wait=not async_op)
    return work if async_op else None


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
    ready = plan_of(plan)
    for name, given in (("output", output_tensor_list), ("input", input_tensor_list)):
        if len(given) != ready.ranks:
            raise UnsupportedError(f"{len(given)} {name} tensors; the plan has {ready.ranks} ranks")
    flat = torch.cat([t.detach().reshape(-1) for t in input_tensor_list])
    sizes = [t.numel() for t in output_tensor_list]
    result = torch.empty(sum(sizes), dtype=flat.dtype, device=flat.device)
    group = collectives.check_call(ready, Collective.ALLTOALL, (flat, result), group)
    call = Ragged(ready, group, flat, result, 1, [t.numel() for t in input_tensor_list], sizes)

    def run() -> None:
        call()
        for tensor, part in zip(output_tensor_list, result.split(sizes), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    work = submit(run, group, list(output_tensor_list), wait=not async_op)
    return work if async_op else None


def all_to_all_single_autograd(
    input: torch.Tensor,
    plan: AnyPlan,
    output_split_sizes: Splits = None,
    input_split_sizes: Splits = None,
    group: Any = None,
) -> torch.Tensor:
    """The output of `all_to_all_single`, through which gradients flow back, by the same plan."""
    ready = plan_of(plan)
    rows = input.shape[0] if output_split_sizes is None else sum(output_split_sizes)
    found: torch.Tensor = _Exchange.apply(
        input, ready, rows, output_split_sizes, input_split_sizes, group
    )
    return found


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


def _splits(name: str, given: Splits, tensor: torch.Tensor, n: int) -> list[int]:
    """One size a rank, that add up to the first dimension; UnsupportedError where they do not."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if given is None:
        if rows % n:
            raise UnsupportedError(f"{name}: {rows} rows are not dealt out to {n} ranks evenly")
        return [rows // n] * n
    sizes = [int(size) for size in given]
    if len(sizes) != n or min(sizes) < 0 or sum(sizes) != rows:
        raise UnsupportedError(
            f"{name}: {len(sizes)} sizes that add up to {sum(sizes)}; it takes {n}, none below 0, "
            f"that add up to {rows} rows"
        )
    return sizes
