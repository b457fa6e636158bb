"""What a simulation says: time, bandwidths, how busy links and thread blocks were."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forestcoll.verify.simulate.options import Rule


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One direction of a link: GB/s that it has, bytes that crossed it, share of the time used."""

    src: str
    dst: str
    bandwidth: float
    bytes: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Span:
    """A transfer or local work of a thread block, in microseconds from the start.

    `proxy`: something else moved it for the thread block. `what`: the operation; `peer`: the rank
    that it is about, or -1. Of a forest alone `block` and `step` are the tree. `links`: what a
    transfer crosses, as indices of `Timing.links`, in this order; `bytes`: how much of it.
    """

    rank: int
    block: int
    step: int
    start: float
    end: float
    what: str
    peer: int = -1
    proxy: bool = False
    links: tuple[int, ...] = ()
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in microseconds, rates in GB/s, as nccl-tests counts them; `rule` None: per link."""

    rule: Rule | None
    size: int  # bytes
    time: float
    algbw: float
    busbw: float
    transfers: int
    links: tuple[LinkUse, ...] = field(repr=False)
    timeline: tuple[Span, ...] = field(repr=False, default=())

    @property
    def busiest(self) -> list[LinkUse]:
        """The links, the busiest first."""
        return sorted(self.links, key=lambda use: (-use.utilisation, use.src, use.dst))

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rule": self.rule or "by link",
            "size": self.size,
            "time_us": self.time,
            "algbw": self.algbw,
            "busbw": self.busbw,
            "transfers": self.transfers,
            "links": [asdict(use) for use in self.links],
        }
