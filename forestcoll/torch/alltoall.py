"""`torch.distributed`'s all-to-all by a plan, blocks of any size: ragged, empty, odd.

The plan says which way each part of each block goes; how large the blocks are is known at run time.
Relays have to know it too, so the ranks tell each other their splits first. Round r then moves what
is there after round r - 1, all of it in one message for each peer. Blocks of one size need none of
this: they go slice by slice through the rounds (`engine`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from forestcoll.errors import ExecutionError, UnsupportedError
from forestcoll.program import Collective
from forestcoll.torch import collectives
from forestcoll.torch.collectives import AnyPlan
from forestcoll.torch.engine import BATCH, TAG
from forestcoll.torch.plan import Plan, plan_of
from forestcoll.torch.work import Work, submit

Splits = Sequence[int] | None
Matrix = list[list[int]]


@dataclass(frozen=True, slots=True)
class Piece:
    """[low, high) / units of what `source` sends `target`; `value` names it on its way."""

    value: int
    source: int
    target: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """What one rank sends and receives, per round and peer; the peer has the same order."""

    units: int
    sends: tuple[dict[int, list[Piece]], ...]
    receives: tuple[dict[int, list[Piece]], ...]


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
    call = _Call(ready, group, input.detach(), output.detach(), row, splits[0], splits[1])
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
    call = _Call(ready, group, flat, result, 1, [t.numel() for t in input_tensor_list], sizes)

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


_known: WeakKeyDictionary[Plan, dict[int, Rounds]] = WeakKeyDictionary()


def rounds_of(plan: Plan, rank: int) -> Rounds:
    """What `rank` does in each round; made once."""
    known = _known.setdefault(plan, {})
    if rank not in known:
        known[rank] = _rounds(plan, rank)
    return known[rank]


def _rounds(plan: Plan, rank: int) -> Rounds:
    flow, level = plan.flow, plan.levels
    units = flow.units // flow.parts
    sends: list[dict[int, list[Piece]]] = [defaultdict(list) for _ in range(plan.rounds)]
    receives: list[dict[int, list[Piece]]] = [defaultdict(list) for _ in range(plan.rounds)]
    first: list[int] = []  # the value at its source
    for k, value in enumerate(flow.values):
        before = value.made_from[0] if value.made_from else k
        first.append(first[before] if value.made_from else k)
        if not value.made_from:
            continue
        target, low = divmod(value.start, units)
        piece = Piece(first[k], flow.values[first[k]].rank, target, low, low + value.length)
        sender = flow.values[before].rank
        if sender == rank:
            sends[level[k]][value.rank].append(piece)
        if value.rank == rank:
            receives[level[k]][sender].append(piece)
    return Rounds(units, tuple(sends), tuple(receives))


class _Call:
    """One call on one rank, from splits to blocks in their places."""

    def __init__(
        self,
        plan: Plan,
        group: Any,
        input: torch.Tensor,
        output: torch.Tensor,
        row: int,
        in_splits: list[int],
        out_splits: list[int],
    ) -> None:
        self.plan, self.group, self.row = plan, group, row
        self.input, self.output = input, output
        self.in_splits, self.out_splits = in_splits, out_splits
        self.rank = dist.get_rank(group)
        self.peers = [dist.get_global_rank(group, r) for r in range(plan.ranks)]
        self.held: dict[int, torch.Tensor] = {}  # pieces that are on their way, by value

    def __call__(self) -> None:
        """Run all rounds. ExecutionError: a peer failed, or did not answer in time."""
        sizes = [[rows * self.row for rows in line] for line in self._matrix()]
        flat_in = self.input.contiguous().view(-1)
        output = self.output if self.output.is_contiguous() else self.output.contiguous()
        flat_out = output.view(-1)
        blocks_in = flat_in.split(sizes[self.rank])
        blocks_out = flat_out.split([line[self.rank] for line in sizes])
        if flat_in.data_ptr() == flat_out.data_ptr() and flat_in.numel():
            blocks_in = flat_in.clone().split(sizes[self.rank])
        rounds = rounds_of(self.plan, self.rank)
        for number, (sends, receives) in enumerate(zip(rounds.sends, rounds.receives, strict=True)):
            self._round(number, rounds.units, sends, receives, sizes, blocks_in, blocks_out)
        blocks_out[self.rank].copy_(blocks_in[self.rank])
        if output is not self.output:
            self.output.copy_(output)

    def _matrix(self) -> Matrix:
        """Rows that each rank sends to each; UnsupportedError, at all ranks, where two disagree."""
        n = self.plan.ranks
        mine = torch.tensor([*self.in_splits, *self.out_splits], device=self.input.device)
        every = [torch.empty_like(mine) for _ in range(n)]
        try:
            dist.all_gather(every, mine, group=self.group)
        except RuntimeError as error:
            raise self._failure("telling each other the splits", error) from error
        told: Matrix = [line.tolist() for line in every]
        for s in range(n):
            for t in range(n):
                if told[s][t] != told[t][n + s]:
                    raise UnsupportedError(
                        f"rank {s} sends rank {t} {told[s][t]} rows, which expects {told[t][n + s]}"
                    )
        return [line[:n] for line in told]

    def _round(
        self,
        number: int,
        units: int,
        sends: dict[int, list[Piece]],
        receives: dict[int, list[Piece]],
        sizes: Matrix,
        blocks_in: Sequence[torch.Tensor],
        blocks_out: Sequence[torch.Tensor],
    ) -> None:
        """One message for each peer, there and back, and what came put in its place."""

        def span(piece: Piece) -> tuple[int, int]:
            size = sizes[piece.source][piece.target]
            return size * piece.low // units, size * piece.high // units

        def place(piece: Piece) -> torch.Tensor:
            low, high = span(piece)
            if piece.target == self.rank:
                return blocks_out[piece.source][low:high]
            kept = self.held[piece.value] = self.input.new_empty(high - low)
            return kept

        def find(piece: Piece) -> torch.Tensor:
            if piece.source == self.rank:
                low, high = span(piece)
                return blocks_in[piece.target][low:high]
            return self.held.pop(piece.value)

        operations: list[tuple[int, dist.P2POp]] = []
        unpack: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        for peer, pieces in sorted(receives.items()):
            parts = [part for part in map(place, pieces) if part.numel()]
            if parts:
                memory = parts[0]
                if len(parts) > 1:
                    memory = self.input.new_empty(sum(p.numel() for p in parts))
                    unpack.append((parts, memory))
                operations.append(self._operation(dist.irecv, memory, peer))
        for peer, pieces in sorted(sends.items()):
            parts = [part for part in map(find, pieces) if part.numel()]
            if parts:
                memory = torch.cat(parts) if len(parts) > 1 else parts[0]
                operations.append(self._operation(dist.isend, memory, peer))
        self._transfer(number, operations)
        for parts, memory in unpack:
            torch._foreach_copy_(parts, list(memory.split([p.numel() for p in parts])))

    def _operation(self, kind: Any, memory: torch.Tensor, peer: int) -> tuple[int, dist.P2POp]:
        """(batch, operation); a message is in the same batch at both ends."""
        distance = (peer - self.rank if kind is dist.isend else self.rank - peer) % self.plan.ranks
        data = memory.view(torch.uint8)
        return distance // (BATCH // 2), dist.P2POp(kind, data, self.peers[peer], self.group, TAG)

    def _transfer(self, number: int, operations: list[tuple[int, dist.P2POp]]) -> None:
        works: list[Any] = []
        words = f"round {number + 1} of {self.plan.rounds}"
        try:
            for batch in sorted({batch for batch, _ in operations}):
                works += dist.batch_isend_irecv([op for b, op in operations if b == batch])
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._failure(words, error) from error

    def _failure(self, words: str, error: Exception) -> ExecutionError:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return ExecutionError(
            f"rank {self.rank}: alltoall with {self.plan.name}: {words} failed: {reason[0]} (a "
            "peer died or did not answer in time; this process group is of no use any more)"
        )
