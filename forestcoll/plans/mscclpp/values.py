"""What operations of an MSCCL++ plan refer to, as far as it could be read."""

from __future__ import annotations

from dataclasses import dataclass, field

Remote = tuple[int | None, str | None]  # rank and buffer letter; None where unknown


@dataclass(slots=True)
class Rank:
    """A rank's lists. `channels`: peers by type; `switches`: (buffer letter, ranks) a group."""

    chunks: dict[str, int] = field(default_factory=dict)  # by buffer letter
    channels: dict[str, list[int]] = field(default_factory=lambda: {"memory": [], "port": []})
    switches: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    remotes: list[tuple[int | None, str | None, frozenset[str]]] = field(default_factory=list)
    semaphores: int = 0
    broken: bool = False  # some entry of channels could not be read


@dataclass(slots=True)
class Plan:
    """The head, and all ranks."""

    word: str = ""  # the collective
    packets: bool = False  # protocol LL
    double: bool = False  # use_double_scratch_buffer
    reuse: bool = False  # reuse_resources
    alignment: int = 16
    ranks: list[Rank] = field(default_factory=list)
    pipelines: set[tuple[int, int]] = field(default_factory=set)  # (num_chunks, unit_size) in use


@dataclass(slots=True)
class Block:
    """A thread block's own lists: what its operations count in."""

    channels: dict[str, list[int | None]] = field(
        default_factory=lambda: {"memory": [], "port": [], "switch": []}
    )
    remotes: dict[str, list[Remote]] = field(default_factory=lambda: {"memory": [], "port": []})
    broken: bool = False  # some list could not be read: ids may point into it
