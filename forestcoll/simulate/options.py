"""What a time depends on besides plan and links: rates, latencies, who goes first among equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from forestcoll.errors import UnsupportedError
from forestcoll.targets import Target
from forestcoll.topology import LinkRule

Rule = LinkRule
RULES: tuple[Rule, ...] = get_args(Rule)
Switching = Literal["cut-through", "store"]

PARTS = 2
"""Parts of a message in protocol Simple, each handed over on its own: MSCCL_CHUNKSTEPS /
MSCCL_SLICESTEPS (Azure/msccl-executor-nccl c6f6b36, collectives.h)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Times in microseconds, rates in GB/s; None: no limit, or as the topology states it.

    `latency` of every link in place of the topology's. `signal`: what a signal, a flag or a
    message's announcement takes besides the links' latency. `block_rate`: what a thread block moves
    of a copy, a send or a receive. `reduce_rate`: what it adds up. `switching`: a switch passes a
    transfer on as it arrives ("cut-through") or when it is all there ("store"). `seed`: who goes
    first where several thread blocks could; 0 is the order in which they came to wait. `runtime`:
    whose messages MSCCL XML has; None: `targets.runtime_on` the machine.
    """

    latency: float | None = None
    signal: float = 0.0
    block_rate: float | None = None
    reduce_rate: float | None = None
    switching: Switching = "cut-through"
    parts: int = PARTS
    seed: int = 0
    runtime: Target | None = None

    def __post_init__(self) -> None:
        for name in ("latency", "signal"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e9:
                raise UnsupportedError(f"{name} {value}: microseconds, from 0")
        for name in ("block_rate", "reduce_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise UnsupportedError(f"{name} {value}: GB/s, more than 0")
        if self.switching not in get_args(Switching):
            raise UnsupportedError(f"switching is 'cut-through' or 'store', not {self.switching!r}")
        if not 1 <= self.parts <= 64:
            raise UnsupportedError(f"parts {self.parts}: a message has 1 to 64 parts")
        if not 0 <= self.seed < 2**63:
            raise UnsupportedError(f"seed {self.seed}: from 0, below 2^63")

    def cap(self, sharers: int = 1) -> float:
        """Bytes a microsecond of one of `sharers` transfers of a block at once; 0: no limit."""
        return 0.0 if self.block_rate is None else self.block_rate * 1000 / sharers

    def copy_time(self, size: float) -> float:
        """Microseconds in which a thread block copies so many bytes."""
        return 0.0 if self.block_rate is None else size / self.block_rate / 1000

    def sum_time(self, size: float) -> float:
        """Microseconds in which a thread block adds up so many bytes."""
        slowest = min((r for r in (self.block_rate, self.reduce_rate) if r), default=None)
        return 0.0 if slowest is None else size / slowest / 1000
