"""What an export depends on besides what is exported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from forestcoll.common.arguments import whole
from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.export import MOST_PIECES
from forestcoll.verify.simulate import Options

Order = Literal["connection", "data"]


@dataclass(frozen=True, slots=True)
class Settings:
    """`size`: bytes as nccl-tests counts them. Every message is sent in so many `pieces`.

    `order`: messages from one rank to another follow each other ("connection"), or only what their
    data asks for ("data"). `reduce_rate`: GB/s of sums, None: they take no time. `tree`: the one
    tree of a forest that is drawn. `options`: of simulated runs.
    """

    size: int = 2**30
    pieces: int = 1
    order: Order = "connection"
    reduce_rate: float | None = None
    tree: int | None = None
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        whole("size", self.size, 1, 2**50)
        whole("pieces", self.pieces, 1, MOST_PIECES)
        if self.reduce_rate is not None and not 0 < self.reduce_rate < 1e9:
            raise UnsupportedError(f"reduce_rate {self.reduce_rate}: GB/s, more than 0")
