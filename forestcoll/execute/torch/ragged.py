"""All-to-all of blocks of any size on one rank: slices of ragged pieces, round by round.

Relays have to know how large others' blocks are: the ranks have told each other (`agreement`).
Every piece is then cut into slices; slice s goes through round r in step s + lead * r, as in
`cutting`: a step has all that goes from one rank to another in one message, and `lead` steps are
under way at once, so that one round's links work while another's data are put in their places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from forestcoll.execute.torch.agreement import Agreement
from forestcoll.execute.torch.engine import Flight, Steps, Transfer
from forestcoll.execute.torch.plan import Plan

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


class _Cut(NamedTuple):
    """How the pieces of one call are cut: elements of each block, units of a block, slices."""

    sizes: Matrix
    units: int
    slices: int

    def span(self, piece: Piece, slice_: int) -> tuple[int, int]:
        """Where a slice of a piece begins and ends in its block."""
        size = self.sizes[piece.source][piece.target]
        low, high = size * piece.low // self.units, size * piece.high // self.units
        length = high - low
        return low + length * slice_ // self.slices, low + length * (slice_ + 1) // self.slices


class Ragged(Steps):
    """One call on one rank, from splits to blocks in their places."""

    def __init__(
        self,
        plan: Plan,
        group: Any,
        input: torch.Tensor,
        output: torch.Tensor,
        told: Agreement,
    ) -> None:
        super().__init__(plan, group)
        self.told, self.input, self.output = told, input, output
        self.rounds = rounds_of(plan, self.rank)
        self.held: dict[tuple[int, int], torch.Tensor] = {}  # by value and slice, on their way

    def __call__(self) -> None:
        """Run all steps. Errors: Agreement's; ExecutionError where a peer fails later."""
        cut = self.cut = self._cut(self.told.settle())
        flat_in = self.input.contiguous().view(-1)
        output = self.output if self.output.is_contiguous() else self.output.contiguous()
        flat_out = output.view(-1)
        if _overlap(flat_in, flat_out):
            flat_in = flat_in.clone()
        self.blocks_in = flat_in.split(cut.sizes[self.rank])
        self.blocks_out = flat_out.split([line[self.rank] for line in cut.sizes])
        lead = self.plan.lead
        self.run(cut.slices + lead * (self.plan.rounds - 1), lead)
        self.blocks_out[self.rank].copy_(self.blocks_in[self.rank])
        if output is not self.output:
            self.output.copy_(output)

    def _cut(self, sizes: Matrix) -> _Cut:
        """The same at all ranks: as many slices as for even blocks of the largest buffer."""
        most = max(*map(sum, sizes), *(sum(column) for column in zip(*sizes, strict=True)))
        slices = self.plan.count_slices(most * self.input.element_size())
        return _Cut(sizes, self.rounds.units, slices)

    def transfers(self, flight: Flight) -> Iterator[Transfer]:
        """Yields one message for each peer, there and back."""
        cut = self.cut
        for peer, pieces in self._pieces(flight.number, cut, self.rounds.receives):
            parts = [part for part in (self._place(cut, *each) for each in pieces) if part.numel()]
            if parts:
                memory = parts[0]
                if len(parts) > 1:
                    memory = self.input.new_empty(sum(p.numel() for p in parts))
                    flight.unpack.append((parts, memory))
                yield dist.irecv, memory, peer
        for peer, pieces in self._pieces(flight.number, cut, self.rounds.sends):
            parts = [part for part in (self._find(cut, *each) for each in pieces) if part.numel()]
            if parts:
                memory = torch.cat(parts) if len(parts) > 1 else parts[0]
                flight.kept.append(memory)
                yield dist.isend, memory, peer

    def _pieces(
        self, number: int, cut: _Cut, rounds: Sequence[dict[int, list[Piece]]]
    ) -> Iterator[tuple[int, list[tuple[Piece, int]]]]:
        """Per peer, the pieces of all rounds in a step, each with its slice."""
        found: dict[int, list[tuple[Piece, int]]] = defaultdict(list)
        for r, by_peer in enumerate(rounds):
            slice_ = number - self.plan.lead * r
            if 0 <= slice_ < cut.slices:
                for peer, pieces in by_peer.items():
                    found[peer] += [(piece, slice_) for piece in pieces]
        yield from sorted(found.items())

    def _place(self, cut: _Cut, piece: Piece, slice_: int) -> torch.Tensor:
        """Where a slice that comes in belongs."""
        low, high = cut.span(piece, slice_)
        if piece.target == self.rank:
            return self.blocks_out[piece.source][low:high]
        kept = self.held[piece.value, slice_] = self.input.new_empty(high - low)
        return kept

    def _find(self, cut: _Cut, piece: Piece, slice_: int) -> torch.Tensor:
        """A slice that goes out, where it lies."""
        if piece.source == self.rank:
            low, high = cut.span(piece, slice_)
            return self.blocks_in[piece.target][low:high]
        return self.held.pop((piece.value, slice_))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two flat tensors share memory."""
    ends = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (a, b)]
    return bool(ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1])
