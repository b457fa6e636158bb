"""Communication hooks of `DistributedDataParallel`: gradients by a plan, optimizers between phases.

An allreduce brings every part of the gradient together at one rank before it goes to all. There the
optimizer steps that part, and what goes to all are the new weights: each rank has the optimizer's
state of its own parts alone. They are as large as the trees' shares of roots, on irregular fabrics
not alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, UnsupportedError
from forestcoll.execute.torch.agreement import gather, group_of
from forestcoll.execute.torch.collectives import all_reduce, check_once, refusal
from forestcoll.execute.torch.plan import Plan, plan_of

ELEMENTWISE = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
"""Those of `torch.optim` that step each element by itself, whatever their options."""


def comm_hook(
    plan: Plan | str | PathLike[str], optimizer: torch.optim.Optimizer | None = None
) -> Callable[[Any, Any], Any]:
    """A communication hook for `DistributedDataParallel.register_comm_hook(group, hook)`.

    `group`, the hook's state, may be None: all processes. Averages the gradients with `plan`; with
    an `optimizer`, of all parameters, it is an OptimizerHook.
    """
    ready = plan_of(plan)
    if optimizer is not None:
        return OptimizerHook(ready, optimizer)

    def hook(group: Any, bucket: Any) -> Any:
        work = all_reduce(bucket.buffer(), ready, "avg", group, async_op=True)
        assert work is not None  # as async_op asks
        return work.get_future().then(lambda future: future.value()[0])

    hook.__annotations__.clear()  # the trainer compares them with its own types
    return hook


class _Piece(NamedTuple):
    """Elements of a parameter from `low` on, the first of them at `at` in a part of the bucket."""

    low: int
    at: int
    weights: torch.Tensor  # flat, of the parameter's own memory
    stepper: torch.optim.Optimizer

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.stepper.state.get(self.weights, {}))


class OptimizerHook:
    """Steps `optimizer` within the backward pass, each element at one rank, by its own class.

    When the pass is over, all ranks have the new weights, and gradients are None: the training
    loop's `optimizer.step()` finds nothing to do. Learning rates and all other options are those
    of `optimizer.param_groups` at each step. Its own `state` is empty but for what is loaded or
    gathered, which the next step deals out.
    """

    def __init__(self, plan: Plan, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                f"optimizer must be one of torch.optim's, not {arguments.quote(optimizer)}"
            )
        kind = type(optimizer)
        if kind not in (getattr(torch.optim, name, None) for name in ELEMENTWISE):
            raise UnsupportedError(
                f"{kind.__name__} may need more than one element at a time, and a rank has a part "
                f"of the gradient; there are {', '.join(ELEMENTWISE)}"
            )
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise UnsupportedError("differentiable: weights are stepped without a graph")
        check_once(plan)
        self.__name__ = self.__qualname__ = "OptimizerHook"  # which the trainer asks for
        self.plan, self.optimizer, self.group = plan, optimizer, None
        self.pieces: dict[torch.Tensor, list[_Piece]] = {}  # of all parameters dealt so far
        self.parts: dict[tuple[int, ...], dict[int, list[_Piece]]] = {}  # by bucket, first element

    def __call__(self, group: Any, bucket: Any) -> Any:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        self.group = group_of(group)
        key = tuple(map(id, parameters))
        if key not in self.parts or any(p in self.optimizer.state for p in parameters):
            self._check(buffer, parameters)
            self.parts[key] = self._deal(buffer, parameters)
        parts = self.parts[key]

        def step(view: torch.Tensor, offset: int) -> None:
            self._step(parts[offset], view)

        def put(future: Any) -> torch.Tensor:
            (flat,) = future.value()
            sizes = [p.numel() for p in parameters]
            torch._foreach_copy_([_flat(p) for p in parameters], list(flat.split(sizes)))
            return flat

        def clear() -> None:
            for parameter in parameters:
                parameter.grad = None

        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(clear))  # behind the trainer's own, which fills gradients
        work = all_reduce(buffer, self.plan, "avg", group, async_op=True, epilogue=step)
        assert work is not None
        return work.get_future().then(put)

    @property
    def elements(self) -> int:
        """Numbers that this rank has of the optimizer's state."""
        pieces = [piece for each in self.pieces.values() for piece in each]
        values = [value for piece in pieces for value in piece.state.values()]
        return sum(value.numel() for value in values if isinstance(value, torch.Tensor))

    def gather(self) -> None:
        """Leave the whole state in the optimizer at every rank: `state_dict()` is as without us.

        Every rank has to call it, between two steps.
        """
        self._gather([p for p in self.pieces if p not in self.optimizer.state])

    def _check(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        if why := refusal(buffer, None, self.group):
            raise UnsupportedError(why)
        ours = {p for group in self.optimizer.param_groups for p in group["params"]}
        for parameter in parameters:
            what = f"a parameter of shape {tuple(parameter.shape)}"
            if parameter not in ours:
                raise UnsupportedError(
                    f"{what} is not the optimizer's; give it to that, or freeze it "
                    "(requires_grad_(False)) before the model is wrapped"
                )
            if parameter.dtype != buffer.dtype:
                raise UnsupportedError(
                    f"{what} is {parameter.dtype}, its gradient {buffer.dtype}; they must be alike"
                )
            ends = zip(parameter.shape, parameter.stride(), strict=True)
            if parameter.numel() != 1 + sum((size - 1) * stride for size, stride in ends):
                raise UnsupportedError(f"{what} has gaps in memory; clone it")

    def _deal(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> dict[int, list[_Piece]]:
        """This rank's pieces of a bucket, by the first elements of its parts."""
        state, parts = self.optimizer.state, dict[int, list[_Piece]]()
        self._gather([p for p in parameters if p in self.pieces and p not in state])
        ours = set(map(id, parameters))
        self.parts = {key: old for key, old in self.parts.items() if not ours & set(key)}
        self.pieces |= {p: [] for p in parameters}  # at all ranks, whether they get any or not
        rank = dist.get_rank(self.group)
        for begin, count in self.plan.roots(rank, buffer.numel(), buffer.element_size()):
            first, within = -begin, dict[torch.Tensor, tuple[int, int, torch.Tensor]]()
            for parameter in parameters:
                low, high = max(-first, 0), min(count - first, parameter.numel())
                if low < high:
                    within[parameter] = low, first + low, _flat(parameter)[low:high]
                first += parameter.numel()
            parts[begin] = self._pieces(within)
        for parameter in parameters:
            state.pop(parameter, None)
        return parts

    def _pieces(self, within: dict[torch.Tensor, tuple[int, int, torch.Tensor]]) -> list[_Piece]:
        """Those of one part, with an optimizer of their own and their state."""
        groups = [
            {"params": [within[p][2] for p in group["params"] if p in within]}
            | {option: group[option] for option in self.optimizer.defaults}
            for group in self.optimizer.param_groups
        ]
        stepper = type(self.optimizer)(groups)
        for parameter, (low, at, weights) in within.items():
            for name, value in self.optimizer.state.get(parameter, {}).items():
                mine = value
                if isinstance(value, torch.Tensor):
                    mine = value.clone()
                    if value.shape == parameter.shape:
                        whole = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
                        mine = _flat(whole)[low : low + weights.numel()].clone()
                stepper.state[weights][name] = mine
            self.pieces[parameter].append(_Piece(low, at, weights, stepper))
        return [self.pieces[p][-1] for p in within]

    def _step(self, pieces: list[_Piece], view: torch.Tensor) -> None:
        stepper = pieces[0].stepper
        for ours, group in zip(stepper.param_groups, self.optimizer.param_groups, strict=True):
            ours |= {option: group[option] for option in self.optimizer.defaults}
        gradients = [view[piece.at : piece.at + piece.weights.numel()] for piece in pieces]
        for piece, gradient in zip(pieces, gradients, strict=True):
            piece.weights.grad = gradient
        stepper.step()
        for piece, gradient in zip(pieces, gradients, strict=True):
            piece.weights.grad = None
            gradient.copy_(piece.weights)

    def _gather(self, parameters: Sequence[torch.Tensor]) -> None:
        """Bring the state of some together, each tensor of it added up by the plan."""
        if not parameters:
            return
        mine = [dict(_kinds(self.pieces[p])) for p in parameters]
        for parameter, *kinds in zip(parameters, *gather(mine, self.group), strict=True):
            entries = {name: kind for each in kinds for name, kind in each.items()}
            for name in sorted(entries):
                state = self.optimizer.state[parameter]
                state[name] = entries[name]
                if isinstance(entries[name], torch.dtype):
                    state[name] = torch.zeros_like(parameter, dtype=entries[name])
                    flat = _flat(state[name])
                    for piece in self.pieces[parameter]:
                        flat[piece.low : piece.low + piece.weights.numel()] = piece.state[name]
                    all_reduce(flat, self.plan, group=self.group)
            for piece in self.pieces[parameter]:
                piece.stepper.state.pop(piece.weights, None)


OptimizerHook.__call__.__annotations__.clear()


def _kinds(pieces: Iterable[_Piece]) -> Iterable[tuple[str, Any]]:
    """Names of a state's entries; the type of tensors with a number an element, else the value."""
    for piece in pieces:
        for name, value in piece.state.items():
            each = isinstance(value, torch.Tensor) and value.shape == piece.weights.shape
            yield name, value.dtype if each else value


def _flat(dense: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory, which is how the trainer puts gradients into buckets."""
    return dense.detach().as_strided((dense.numel(),), (1,))
