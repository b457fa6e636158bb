"""`torch.distributed`'s collectives, carried out by a plan."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.execute.torch.adasum import AdasumRun, check_adasum
from forestcoll.execute.torch.agreement import (
    Agreement,
    Once,
    describe,
    group_of,
    movable,
    refuse,
)
from forestcoll.execute.torch.engine import Buffers, OnChunk, Ready, Run, Watch
from forestcoll.execute.torch.operators import Operator, name_of, operator_of
from forestcoll.execute.torch.plan import Plan, plan_of
from forestcoll.execute.torch.putting import run_of
from forestcoll.execute.torch.work import Work, submit
from forestcoll.program import Collective
from forestcoll.verify.owners import owners

AnyPlan = Plan | str | PathLike[str]


def all_reduce(
    tensor: torch.Tensor,
    plan: AnyPlan,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    layers: Sequence[int] | None = None,
    on_chunk: OnChunk | None = None,
    ready: Ready | None = None,
    epilogue: OnChunk | None = None,
    wire: torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
) -> Work | None:
    """Leave the sum (or `op`) over all ranks in `tensor`, or in `out`, at every rank.

    `op`: a ReduceOp or its name: sum, prod, min, max, avg (of integers: rounded towards zero);
    PREMUL_SUM(factor), which every rank's input is multiplied by first; a function of two tensors
    that returns a third, associative and commutative; or "adasum" of `layers`, each of so many
    elements one after the other (adasum/).
    `epilogue(view, offset)` may change each part of the flat result once, at one rank, when its sum
    is complete and before other ranks get it: all get what it leaves. All ranks give the same.
    `on_chunk(view, offset)` is given each contiguous part of the flat result once, as soon as it is
    final and this rank has sent it on, in this order; it may overwrite the part. `ready`: yields
    (offset, elements) of the flat input as they are finished, or these and something to `wait()`
    on; nothing is read earlier, and what it leaves out is taken as finished at its end. What either
    raises comes out of `wait`, once all transfers are over. Both take contiguous tensors.
    `wire`: the type in which data travel and are added, float32, float16 or bfloat16, where it is
    not the tensor's. `accumulate`: torch.float32, in which a rank adds up all that comes to it,
    and rounds what leaves it. Both as `forestcoll run` has them, and without the three above.
    Returns a Work if `async_op`. Raises PlanError (the plan is not one for this), UnsupportedError
    (type or operation) and ExecutionError (a peer failed or did not answer in time).
    """
    output = tensor if out is None else out
    given = on_chunk, ready, epilogue
    watch = None if given == (None, None, None) else Watch(*given)
    return start(
        plan, Collective.ALLREDUCE, tensor, output, group, async_op,
        op=op, layers=layers, watch=watch, types=(wire, accumulate),
    )  # fmt: skip


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    plan: AnyPlan,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Leave the inputs of all ranks, one after another, in `output_tensor`.

    In place if `input_tensor` is this rank's part of it. Otherwise as `all_reduce`.
    """
    return start(plan, Collective.ALLGATHER, input_tensor, output_tensor, group, async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    plan: AnyPlan,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Leave this rank's part of the sum over all ranks' `input` in `output`.

    In place if `output` is this rank's part of `input`. Otherwise as `all_reduce`.
    """
    return start(plan, Collective.REDUCE_SCATTER, input, output, group, async_op, op=op)


def broadcast(
    tensor: torch.Tensor,
    plan: AnyPlan,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Work | None:
    """Leave the root's `tensor` in every rank's `tensor`, or in `out`.

    `src` must be the plan's root (global rank). Otherwise as `all_reduce`.
    """
    output = tensor if out is None else out
    return start(plan, Collective.BROADCAST, tensor, output, group, async_op, root=src)


def reduce(
    tensor: torch.Tensor,
    plan: AnyPlan,
    dst: int | None = None,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Work | None:
    """Leave the sum over all ranks in the root's `tensor`, or `out`; the others' stay as they are.

    `dst` must be the plan's root (global rank). Otherwise as `all_reduce`.
    """
    output = tensor if out is None else out
    return start(plan, Collective.REDUCE, tensor, output, group, async_op, op=op, root=dst)


def perform(
    plan: AnyPlan,
    input: torch.Tensor,
    output: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Whatever collective the plan is for, from `input` to `output`, which may be the same memory.

    A root is the plan's. Otherwise as `all_reduce`.
    """
    ready = plan_of(plan)
    return start(ready, ready.collective, input, output, group, async_op, op=op)


def refusal(tensor: torch.Tensor, op: Operator | None, group: Any) -> str:
    """Why no plan serves such a tensor, empty if one may. `op`: what adds it up, if anything.

    Said before anything is sent, and alike at all ranks: else the others would wait.
    """
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} has no plain memory; make it dense"
    types = movable(group)
    if types and tensor.device.type not in types:
        reached = " and ".join(sorted(types))
        return f"the tensor is on {tensor.device}, and the group's backend moves only {reached}"
    if op is None:
        return ""
    if tensor.dtype.is_complex or tensor.dtype is torch.bool or not _adds(tensor.dtype, op):
        return f"{tensor.dtype} cannot be added up; view it as another type"
    if op.scale != 1 and not tensor.is_floating_point():
        return f"PREMUL_SUM is for floating-point numbers, not {tensor.dtype}"
    return ""


@functools.lru_cache(64)
def _adds(dtype: torch.dtype, op: Operator) -> bool:
    """Whether PyTorch has the operation for the type, tried where every build has its types."""
    one = torch.ones(1, dtype=dtype)
    try:
        op.combine(one, one, out=one)
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


def check_once(plan: Plan) -> None:
    """UnsupportedError unless each sum is complete at one rank first, from where others get it."""
    try:
        owners(plan.flow)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{plan.name}: {error}; an epilogue takes a plan that makes each once (of a forest: "
            "synthesize)"
        ) from error


def check_alike(input_: torch.Tensor, output: torch.Tensor) -> None:
    """Two tensors of one type on one device; else UnsupportedError."""
    for given in (input_, output):
        if not isinstance(given, torch.Tensor):
            raise UnsupportedError(f"{type(given).__name__} is not a tensor")
    if input_.dtype != output.dtype or input_.device != output.device:
        raise UnsupportedError(
            f"input is {input_.dtype} on {input_.device}, output {output.dtype} on "
            f"{output.device}; they must be alike"
        )


def _check_sizes(
    collective: Collective, n: int, input_: torch.Tensor, output: torch.Tensor
) -> None:
    less, more = collective.input_parts(n), collective.output_parts(n)
    if input_.numel() * more != output.numel() * less:
        raise UnsupportedError(
            f"input has {input_.numel()} elements and output {output.numel()}; the output needs "
            + (f"1 / {less} of the input" if less > more else f"{more // less} times the input")
        )
    if input_.numel() % less:
        raise UnsupportedError(
            f"input and output of {input_.numel()} elements are not dealt out to {n} ranks evenly; "
            "give splits, or pad them"
        )


def start(
    plan: AnyPlan,
    collective: Collective,
    input_: torch.Tensor,
    output: torch.Tensor,
    group: Any,
    async_op: bool,
    op: Any = "sum",
    root: int | None = None,
    sizes: Callable[[int], list[int]] | None = None,
    results: tuple[list[torch.Tensor], Callable[[], None]] | None = None,
    layers: Sequence[int] | None = None,
    watch: Watch | None = None,
    types: tuple[Any, Any] = (None, None),
) -> Work | None:
    """Check what can be checked before anything is sent, then go.

    `sizes`: of blocks that differ, given the plan's ranks: elements sent to each rank, then those
    expected from each. `types`: what travels, and what ranks add up in. `results`: the tensors that
    hold the results, and what leaves them there.
    """
    group = group_of(group)
    try:
        ready, adasum = plan_of(plan), op == "adasum"
        name, operator = operator_of("sum" if adasum else op)
        if layers is not None and not adasum:
            raise UnsupportedError("layers are for op='adasum'")
        check_alike(input_, output)
        if sizes is None:
            _check_sizes(collective, ready.ranks, input_, output)
        whole = input_.is_contiguous() and output.is_contiguous()
        if watch is not None and (watch.on_chunk or watch.producer) and not whole:
            raise UnsupportedError("on_chunk and ready take contiguous tensors")
        if (watch is not None) + adasum + any(types) > 1:
            raise UnsupportedError(
                "of on_chunk, ready or epilogue, Adasum, and wire or accumulate one goes at a time"
            )
        if watch is not None and watch.epilogue is not None:
            check_once(ready)
            name += f", then {name_of(watch.epilogue)}"
        if any(types):
            operator = operator.convert(input_.dtype, *types)
            name += f" as {types}"
        adds = operator if collective.reduces else None
        check_call(ready, collective, (input_, output), group, adds, root)
        if adasum:
            check_adasum(ready, layers, input_)
        blocks = None if sizes is None else sizes(ready.ranks)
    except Exception as error:
        refuse(group, plan, input_, error, splits=sizes is not None)
        raise
    told: Agreement | Once
    if blocks is None:
        what = f"{input_.numel()} elements{', ' + name if adds else ''}"
        if adasum:
            what += f" of layers {zlib.crc32(repr(layers := list(layers or ())).encode()):08x}, ada"
        told = Once(group, describe(ready, what, input_.dtype), input_.device)
    else:
        text = describe(ready, "blocks with splits", input_.dtype)
        told = Agreement(group, text, input_.device, blocks)
    tensors, leave = results or ([output], None)
    call = _Call(
        ready, operator, group, told, input_.detach(), output.detach(), leave, layers, watch
    )
    work = submit(call, group, tensors, wait=not async_op)
    return work if async_op else None


def check_call(
    plan: Plan,
    collective: Collective,
    tensors: tuple[torch.Tensor, torch.Tensor],
    group: Any,
    op: Operator | None = None,
    root: int | None = None,
) -> None:
    """Check all that one rank can before anything is sent.

    `tensors`: input and output. `op`: what adds them up, if anything. `root`: a global rank.
    """
    output, size = tensors[1], dist.get_world_size(group)
    if plan.collective is not collective:
        raise PlanError(f"{plan.name} is a plan for {plan.collective}, not for {collective}")
    if plan.ranks != size:
        raise PlanError(
            f"{plan.name} is for {plan.ranks} ranks, but the process group has {size}; "
            "synthesize one for these GPUs, or pass the group that it was made for"
        )
    if root is not None and dist.get_global_rank(group, plan.root) != root:
        word = "dst" if collective.reduces else "src"
        raise PlanError(
            f"{plan.name} has its root at rank {plan.root} of the group (global rank "
            f"{dist.get_global_rank(group, plan.root)}), but {word} is {root}"
        )
    for tensor in tensors:
        if why := refusal(tensor, op, group):
            raise UnsupportedError(why)
    if any(
        size > 1 and step == 0 for size, step in zip(output.shape, output.stride(), strict=True)
    ):
        raise UnsupportedError("elements of the output share memory (expand); clone it")


@dataclass(slots=True)
class _Call:
    """One call, from the caller's tensors to flat ones and back."""

    plan: Plan
    op: Operator
    group: Any
    told: Agreement | Once
    input: torch.Tensor
    output: torch.Tensor
    leave: Callable[[], None] | None
    layers: Sequence[int] | None
    watch: Watch | None = None

    @property
    def rank(self) -> int:
        return int(dist.get_rank(self.group))

    def __call__(self) -> None:
        sizes = self.told.settle()
        if not sizes and not self.input.numel():
            return
        same = self.input is self.output or _same(self.input, self.output)
        output = self.output if self.output.is_contiguous() else self.output.contiguous()
        input_ = output if same else self.input.contiguous()
        flat_in, flat_out = input_.view(-1), output.view(-1)
        in_place = same or self.overlaps(flat_in, flat_out)
        watch, scale = self.watch or Watch(), self.op.scale
        crossed = in_place and (sizes or not (same or self.matches_nccl(flat_in, flat_out)))
        if crossed or scale != 1:
            watch.wait_for_all()
            flat_in, in_place = flat_in.clone() if scale == 1 else flat_in * scale, False
        result, op = flat_out, self.op
        if op.sums is not None:
            flat_in, in_place = flat_in.to(op.wire).to(op.sums), False
            flat_out = torch.empty_like(flat_out, dtype=op.sums)
        element = flat_out.element_size()
        if sizes:
            job = self.plan.alltoallv_job(self.rank, sizes, element)
        else:
            part = flat_in.numel() // self.plan.collective.input_parts(self.plan.ranks)
            whole = self.layers is not None  # as one slice
            job = self.plan.job(self.rank, part, element, in_place=in_place, slices=whole)
        run: Any = Run if sizes or op.sums else run_of(self.group)
        if self.layers is not None:
            run = functools.partial(AdasumRun, self.layers)
        buffers = Buffers(flat_in, flat_out)
        watch.begin(job, flat_out, in_place)
        try:
            run(self.plan, job, buffers, op, self.group, self.told.tag, watch)()
        finally:
            watch.end()
        if op.sums is not None:
            result.copy_(flat_out.to(op.wire))
            if op.finish is not None:
                op.finish(result, self.plan.ranks)
        if output is not self.output:
            self.output.copy_(output)
        if self.leave is not None:
            self.leave()

    def overlaps(self, input_: torch.Tensor, output: torch.Tensor) -> bool:
        """Whether the two share memory."""
        (a, b), (c, d) = map(_extent, (input_, output))
        return a < d and c < b

    def matches_nccl(self, input_: torch.Tensor, output: torch.Tensor) -> bool:
        """Whether they do so as NCCL's in place: the shorter is this rank's part of the longer."""
        (a, b), (c, d) = map(_extent, (input_, output))
        if self.plan.collective.input_is_part:
            return a == c + self.rank * (b - a)
        if self.plan.collective.output_is_part:
            return c == a + self.rank * (d - c)
        return a == c


def _extent(flat: torch.Tensor) -> tuple[int, int]:
    return flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    layout: Sequence[Any] = (a.data_ptr(), a.shape, a.stride())
    return bool(layout == (b.data_ptr(), b.shape, b.stride()))
