"""What a time depends on besides plan and links: rates, latencies, who goes first among equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

from forestcoll.common.errors import UnsupportedError
from forestcoll.program import Protocol, Style
from forestcoll.program.targets import Target
from forestcoll.topology import LinkRule

Rule = LinkRule
RULES: tuple[Rule, ...] = get_args(Rule)
Switching = Literal["cut-through", "store"]

RULE_WORDS: Final[Mapping[str, str]] = {
    "fair": "fair",
    "fifo": "in order",
    "weighted": "weighted",
}
"""The rules of links as every report calls them."""
HOP: Final[Mapping[Protocol, Fraction]] = {
    "LL": Fraction("0.6"),
    "LL128": Fraction("1.9"),
    "Simple": Fraction("3.4"),
}
"""Microseconds of a hop besides those of its links. What it costs is the runtime's; measured by
others, it depends on the protocol most: LL sends a flag with every 4 bytes and waits for nothing
else, LL128 one with every 120 (RCCL: 56), Simple waits for the whole message (NCCL
src/graph/tuning.cc: hwLat of rings on NVLink)."""
SIGNAL: Final = Fraction("0.5")
"""Microseconds of a signal of MSCCL++ besides its links: a signal and the wait for it take 1.17 us
one way on an H100 (microsoft/mscclpp 4f3638b6, SignalPingPong), of which links take 0.7. Its
packets are LL's."""
Kind = tuple[Style, Protocol]
"""Whose messages: thread blocks' of one style, in a protocol."""
KINDS: Final[tuple[Kind, ...]] = (
    *(("fifo", protocol) for protocol in HOP),
    ("onesided", "LL"),
    ("onesided", "Simple"),
)
PARTS = 2
"""Parts of a message in protocol Simple, each handed over on its own: MSCCL_CHUNKSTEPS /
MSCCL_SLICESTEPS (Azure/msccl-executor-nccl c6f6b36, collectives.h)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Times in microseconds, rates in GB/s; None: no limit, or as the topology states it.

    `latency` of every link in place of the topology's. `signal`: what a signal, a flag or a
    message's announcement takes besides the links' latency; None: HOP of the program's protocol, of
    MSCCL++'s signals SIGNAL, of trees alone nothing. `block_rate`: what a thread block moves
    of a copy, a send or a receive. `reduce_rate`: what it adds up. `switching`: a switch passes a
    transfer on as it arrives ("cut-through") or when it is all there ("store"). `seed`: who goes
    first where several thread blocks could; 0 is the order in which they came to wait. `runtime`:
    whose messages MSCCL XML has; None: `targets.runtime_on` the machine.
    """

    latency: float | None = None
    signal: float | None = None
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

    def hop(self, kind: Kind | None) -> float:
        """Microseconds of what announces a message of that kind; None: of trees alone."""
        if self.signal is not None:
            return self.signal
        if kind is None:
            return 0.0
        return float(SIGNAL if kind == ("onesided", "Simple") else HOP[kind[1]])

    def words(
        self,
        kinds: Iterable[Kind] = (),
        rules: Iterable[Rule] = ("fair", "fifo"),
        latencies: bool = True,
    ) -> str:
        """The model in one line: what stands wherever a simulated figure does.

        `kinds`: those of the plans' messages, none for trees alone; `latencies`: links' are known.
        """
        parts = ["links " + " / ".join(RULE_WORDS[rule] for rule in rules)]
        if self.latency is not None:
            parts.append(f"{self.latency:g} us a link")
        else:
            parts.append("the links' latencies" if latencies else "latencies unknown, taken as 0")
        names = {k: "MSCCL++ signal" if k == KINDS[-1] else f"{k[1]} hop" for k in kinds}
        hops = sorted({f"{self.hop(kind):g} us per {name}" for kind, name in names.items()})
        if self.signal is not None:
            hops = [f"{self.signal:g} us a signal"]
        parts += hops or ["trees alone"]
        if self.block_rate is not None:
            parts.append(f"{self.block_rate:g} GB/s a thread block")
        if self.reduce_rate is not None:
            parts.append(f"sums at {self.reduce_rate:g} GB/s")
        if self.switching == "store":
            parts.append("switches store")
        return ", ".join(parts)
