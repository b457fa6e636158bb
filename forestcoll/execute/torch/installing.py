"""`torch.distributed`'s own functions, with plans behind them for what plans serve.

`install` puts functions into the modules `torch.distributed` and
`torch.distributed.distributed_c10d` that choose, call by call, between a plan and what was there.
Code that calls `dist.all_reduce(...)` is served; what goes round these names is not: functions
that were imported by name before, `DistributedDataParallel` (see `comm_hook`), compiled graphs.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, PlanError, UnsupportedError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.execute.torch import alltoall, collectives
from forestcoll.execute.torch.operators import operator_of
from forestcoll.execute.torch.plan import Plan, plan_of
from forestcoll.program import Collective
from forestcoll.schedule.placement_file import INDEX, loads

LOG = logging.getLogger("forestcoll.torch")

SERVED = {name: collective for collective in Collective for name in collective.definition.torch}
"""Functions of `torch.distributed`, as far as the installed version has them."""
SPLITS = ("output_split_sizes", "input_split_sizes")
"""Arguments of its all-to-all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a plan is used: sizes in bytes as nccl-tests counts them, both inclusive.

    `min_bytes`, `max_bytes`: None is what the plan says of itself (0: no limit). `dtypes`, `ops`
    (names, or torch's): empty means all.
    """

    plan: Plan | str | PathLike[str]
    min_bytes: int | None = None
    max_bytes: int | None = None
    dtypes: Sequence[Any] = ()
    ops: Sequence[Any] = ()


class _Ready(NamedTuple):
    plan: Plan
    min_bytes: int
    max_bytes: int
    dtypes: frozenset[Any]
    ops: frozenset[str]

    def refuses(
        self, size: int, tensor: torch.Tensor, op: Any, root: int | None, group: Any
    ) -> str:
        """Why the plan does not serve a call; empty if it does."""
        if size < self.min_bytes or (self.max_bytes and size > self.max_bytes):
            return f"{size} bytes are not among {self.min_bytes} to {self.max_bytes or 'any'}"
        if self.dtypes and tensor.dtype not in self.dtypes:
            return f"{tensor.dtype} is not among its types"
        if root is not None and root != self.plan.root:
            return f"its root is {self.plan.root}, not {root}"
        operator = None
        if op is not None:
            try:
                name, operator = operator_of(op)
            except UnsupportedError as error:
                return str(error)
            if self.ops and name not in self.ops:
                return f"{name} is not among its operations"
        return collectives.refusal(tensor, operator, group)


Rules = dict[Collective, list[_Ready]]


Members = dict[tuple[int, ...], Rules]
"""Rules of process groups, by their ranks."""


class Installation:
    """Plans behind `torch.distributed`'s functions, from `install` to `uninstall`.

    `rules`: for one process group; or a layout's folder, for every group that is one of its groups.
    `used` counts calls by plan name, `fallbacks` the others by (function, reason). As a context
    manager, it uninstalls itself at the end.
    """

    def __init__(
        self, rules: Iterable[Rule | Plan | str | PathLike[str]] | Path, group: Any
    ) -> None:
        self.used: Counter[str] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self._group = dist.group.WORLD if group is None else group
        size = dist.get_world_size(self._group)
        self._members: Members = {}
        if isinstance(rules, Path):
            self._members = _of_layout(rules, dist.get_rank(), size)
            self._group = None  # none by itself: each by its members
        else:
            own: Rules = {}
            for rule in rules:
                _add(own, _ready(rule if isinstance(rule, Rule) else Rule(rule)), size)
            self._members[tuple(dist.get_process_group_ranks(self._group))] = own
        self._originals: dict[tuple[Any, str], Callable[..., Any]] = {}
        for name, collective in SERVED.items():
            for module in (dist, c10d):
                served = any(collective in rules for rules in self._members.values())
                if served and hasattr(module, name):
                    original = getattr(module, name)
                    self._originals[module, name] = original
                    setattr(module, name, self._wrap(name, collective, original))
        _installed.append(self)

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def uninstall(self) -> None:
        """Put back what was there. Installations end in the opposite order of their beginning."""
        if self in _installed and _installed[-1] is not self:
            raise UnsupportedError("another installation came after this one: uninstall that first")
        for (module, name), original in self._originals.items():
            setattr(module, name, original)
        self._originals.clear()
        if self in _installed:
            _installed.remove(self)

    def _wrap(
        self, name: str, collective: Collective, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def serve(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a graph is made, which knows the original alone
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            plan, why = self._choose(collective, bound.arguments)
            if plan is None:
                self.fallbacks[name, why] += 1
                LOG.debug("%s: not by a plan: %s", name, why)
                return original(*args, **kwargs)
            self.used[plan.name] += 1
            LOG.debug("%s: by %s", name, plan.name)
            return _call(collective, plan, bound.arguments)

        return serve

    def _choose(self, collective: Collective, given: dict[str, Any]) -> tuple[Plan | None, str]:
        """The first plan that serves the call, or None and why not."""
        group = dist.group.WORLD if given.get("group") is None else given["group"]
        if self._group is not None and group is not self._group:
            return None, "another process group"
        rules = self._members.get(tuple(dist.get_process_group_ranks(group)), {})
        if not rules.get(collective):
            return None, "another process group"
        if group in getattr(c10d._world, "pg_coalesce_state", ()):
            return None, "coalesced with others"
        tensors = _tensors(collective, given)
        if not all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
            return None, "not a plain tensor"
        size = max(t.numel() * t.element_size() for t in tensors)
        ragged = any(alltoall.has_sizes(given.get(word)) for word in SPLITS)
        op = given["op"] if collective.reduces else None
        root = _root_of(given, group) if collective.has_root else None
        why = ""
        for ready in rules[collective]:
            if ragged and (ready.min_bytes or ready.max_bytes):
                why = "splits, and the rule asks for sizes, of which each rank has its own"
                continue
            why = ready.refuses(size, tensors[0], op, root, group)
            if not why:
                return ready.plan, ""
        return None, why


_installed: list[Installation] = []


def install(
    plans: Rule | Plan | str | PathLike[str] | Iterable[Rule | Plan | str | PathLike[str]],
    group: Any = None,
) -> Installation:
    """Let `torch.distributed`'s functions use the plans for the calls that they serve.

    Everything else goes where it went before. Must be called alike on all ranks of `group` (all
    processes if None), after `init_process_group`. The folder of a layout (`forestcoll layout`)
    serves every process group whose ranks are one of the layout's groups. The Installation counts
    what was used; also, the logger "forestcoll.torch" says so at level DEBUG, call by call.
    """
    if not isinstance(plans, Rule | Plan | str | PathLike | Iterable):
        raise ArgumentError(f"plans must be plans, rules or paths, not {arguments.quote(plans)}")
    if isinstance(plans, str | PathLike) and Path(plans).is_dir():
        if group is not None:
            raise ArgumentError("a layout serves the groups that it has: leave group away")
        return Installation(Path(plans), None)
    several = [plans] if isinstance(plans, Rule | Plan | str | PathLike) else list(plans)
    return Installation(several, group)


def uninstall() -> None:
    """End the installation that was made last; nothing if there is none."""
    if _installed:
        _installed[-1].uninstall()


def _add(rules: Rules, ready: _Ready, size: int) -> None:
    if ready.plan.ranks != size:
        raise PlanError(
            f"{ready.plan.name} is for {ready.plan.ranks} ranks, but the process group "
            f"has {size}; synthesize one for these GPUs"
        )
    rules.setdefault(ready.plan.collective, []).append(ready)


def _of_layout(folder: Path, rank: int, world: int) -> Members:
    """The plans of the layout's groups that hold this rank, by the groups' ranks."""
    path = folder / INDEX
    placement = loads(read_text(str(path), PLAN_BYTES, PlanError), str(path))
    count = len(placement.gpus)
    if count != world:
        raise PlanError(f"{path}: places {count} ranks, and there are {world} processes")
    out: Members = {}
    for group in (group for row in placement.rows for group in row.groups if rank in group.ranks):
        plans = [files for form, files in group.files.items() if form != "forest"]
        for file in plans[0] if plans else ():
            own = out.setdefault(tuple(group.ranks), {})
            _add(own, _ready(Rule(folder / file)), len(group.ranks))
    return out


def _ready(rule: Rule) -> _Ready:
    plan = plan_of(rule.plan)
    low = arguments.whole_or_none("min_bytes", rule.min_bytes, 0)
    high = arguments.whole_or_none("max_bytes", rule.max_bytes, 0)
    ops = [rule.ops] if isinstance(rule.ops, str) else rule.ops
    dtypes = [rule.dtypes] if isinstance(rule.dtypes, str | torch.dtype) else rule.dtypes
    return _Ready(
        plan,
        plan.program.min_bytes if low is None else low,
        plan.program.max_bytes if high is None else high,
        frozenset(map(_dtype, dtypes)),
        frozenset(operator_of(op)[0] for op in ops),
    )


def _dtype(value: object) -> torch.dtype:
    """One of torch's types, by itself or by its name."""
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtypes has {arguments.quote(value)}, which is no type of torch's")
    return dtype


def _tensors(collective: Collective, given: dict[str, Any]) -> tuple[Any, ...]:
    """The call's tensors, input first."""
    if not collective.definition.apart:
        return (given["tensor"],)
    ending = "_tensor" if "input_tensor" in given else ""
    return given["input" + ending], given["output" + ending]


def _root_of(given: dict[str, Any], group: Any) -> int | None:
    """The root's rank in the group; None where the call does not say."""
    for word in ("src", "dst"):
        if given.get(f"group_{word}") is not None:
            return int(given[f"group_{word}"])
        if given.get(word) is not None:
            return int(dist.get_group_rank(group, given[word]))
    return None


def _call(collective: Collective, plan: Plan, given: dict[str, Any]) -> Any:
    tensors = _tensors(collective, given)
    if collective is Collective.ALLTOALL:
        options = (given[name] for name in (*SPLITS, "group", "async_op"))
        return alltoall.all_to_all_single(tensors[1], tensors[0], plan, *options)
    op = given["op"] if collective.reduces else "sum"
    return collectives.perform(plan, tensors[0], tensors[-1], op, given["group"], given["async_op"])
