"""What ranks tell each other of a call before its data move, so that one rank's error is all's.

One small all-gather, begun by the caller's thread in the order of its calls: it keeps its place
among others' collectives on the group, whenever a thread waits for it. Calls with splits need it
each time, as relays have to know all sizes; others only for a plan, size, type and operation that
are new to the group, or all of them under TORCH_DISTRIBUTED_DEBUG=INFO.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute.torch.cutting import Matrix
from forestcoll.execute.torch.engine import TAG
from forestcoll.execute.torch.plan import Plan, plan_of

WORDS = 32
"""Of 8 bytes, for the text."""


def group_of(group: Any) -> Any:
    """The process group, all processes if None. ExecutionError: there is none, or not with us."""
    if not dist.is_initialized():
        raise ExecutionError("no process group: call torch.distributed.init_process_group first")
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) < 0:
        raise ExecutionError("this process is not in the group")
    return group


def gather(value: object, group: Any = None) -> list[Any]:
    """What every rank gives, at every rank, by its number."""
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, value, group=group)
    return told


def movable(group: Any) -> set[str]:
    """Types of the devices whose tensors the group's backend moves; empty: it does not say."""
    return {device.type for device in getattr(group, "_device_types", ())}


def describe(plan: Plan, what: str, dtype: torch.dtype) -> str:
    """What has to be alike at all ranks. The plan's name, which may be long, is last."""
    return f"{plan.collective} of {what}, {dtype}, by the plan {plan.digest} ({plan.name})"


class Agreement:
    """One exchange, under way when it is made: the call in words, sizes sent to and from each rank.

    `refusal`: why this rank cannot make the call, which the others are told.
    """

    tag = TAG

    def __init__(
        self,
        group: Any,
        text: str,
        device: torch.device,
        sizes: Sequence[int] = (),
        refusal: Exception | None = None,
    ) -> None:
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.text, self.refusal = text, refusal
        types = movable(group)
        if types and device.type not in types:
            device = torch.device(min(types))
        said = (str(refusal) if refusal else text).encode(errors="replace")[: 8 * WORDS]
        words = struct.unpack(f"{WORDS}q", said.ljust(8 * WORDS, b"\0"))
        row = [int(refusal is None), *words, *(sizes or [0] * (2 * self.n))]
        mine = torch.tensor(row, device=device)
        self.every = [torch.empty_like(mine) for _ in range(self.n)]
        try:
            self.work = dist.all_gather(self.every, mine, group=group, async_op=True)
        except RuntimeError as error:
            raise self._failure(error) from error

    def settle(self) -> Matrix:
        """Per rank the sizes that it sends to each, once all are known and agree.

        Raises at all ranks what goes wrong at one: this rank's refusal, or UnsupportedError.
        ExecutionError: a peer failed, or did not answer in time.
        """
        try:
            self.work.wait()
        except RuntimeError as error:
            raise (self.refusal or self._failure(error)) from error
        if self.refusal:
            raise self.refusal
        told: list[list[int]] = [each.tolist() for each in self.every]
        texts = [_text(line) for line in told]
        for rank, line in enumerate(told):
            if not line[0]:
                raise UnsupportedError(f"rank {rank} refuses the call: {texts[rank]}")
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise UnsupportedError(
                    f"rank {rank} calls {text}, but rank 0 {texts[0]}; it takes the same at all "
                    "ranks, of plans the same file, slices and lead"
                )
        sizes = [line[1 + WORDS :] for line in told]
        for s in range(self.n):
            for t in range(self.n):
                sent, expected = sizes[s][t], sizes[t][self.n + s]
                if sent != expected:
                    raise UnsupportedError(
                        f"rank {s} sends rank {t} {sent} elements, which expects {expected}"
                    )
        return tuple(tuple(line[: self.n]) for line in sizes)

    def _failure(self, error: Exception) -> ExecutionError:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return ExecutionError(
            f"rank {self.rank}: {self.text}: telling each other of it failed: {reason[0]} (a peer "
            "died or did not answer in time, or made another call; this process group is of no use "
            "any more)"
        )


_known: WeakKeyDictionary[Any, dict[str, Agreement | None]] = WeakKeyDictionary()
"""What each group has agreed on, or (an Agreement) is about to; alike at all its ranks."""


def refuse(group: Any, plan: object, given: Any, error: Exception, *, splits: bool) -> None:
    """Tell the others, where they ask, why this rank cannot make a call; raise it.

    With `splits` they ask at every call, else where nothing is known by the plan yet (that cannot
    be had: nothing at all). `given`: an argument of the call, on the device that is to tell it.
    """
    calls = list(_known.get(group, {}))  # which other threads change
    with suppress(Exception):
        digest = plan_of(plan).digest
        calls = [text for text in calls if digest in text]
    if splits or _always() or not calls:
        there = given.device if isinstance(given, torch.Tensor) else torch.device("cpu")
        Agreement(group, "", there, refusal=error).settle()


class Once:
    """An agreement on a call without splits, made only where the group has not agreed on it yet.

    `tag`: of the call's messages; no other call's can meet them, whatever the ranks have missed.
    """

    def __init__(self, group: Any, text: str, device: torch.device) -> None:
        self.text, self.known = text, _known.setdefault(group, {})
        self.tag = TAG + zlib.crc32(text.encode(errors="replace")) % 0xFFFF
        if text not in self.known or _always():
            self.known[text] = Agreement(group, text, device)
        self.agreement = self.known[text]

    def settle(self) -> None:
        """As Agreement's, without sizes; what failed is asked again at the next call."""
        if self.agreement is None:
            return
        try:
            self.agreement.settle()
        except BaseException:
            self.known.pop(self.text, None)
            raise
        self.known[self.text] = None


def _always() -> bool:
    return bool(dist.get_debug_level() != dist.DebugLevel.OFF)


def _text(line: list[int]) -> str:
    said = struct.pack(f"{WORDS}q", *line[1 : 1 + WORDS])
    return said.rstrip(b"\0").decode(errors="replace")
