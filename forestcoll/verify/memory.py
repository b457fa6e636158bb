"""What every atom holds in one mode (in place or not), and what it must hold at the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from forestcoll.common.errors import PlanError
from forestcoll.program import Buffer
from forestcoll.program.chunks import BUFFER_NAMES
from forestcoll.verify.atoms import Atoms, Operands, Span
from forestcoll.verify.layout import Layout, contributors
from forestcoll.verify.trace import Trace

USER = (Buffer.INPUT, Buffer.OUTPUT)


class Memory:
    """The atoms of one mode. In place, those of the shorter user buffer stand for nothing.

    The atoms of the longer one that are the same memory stand in for them: `number[a]` is the atom
    that atom a really is.
    """

    def __init__(self, layout: Layout, atoms: Atoms, *, in_place: bool) -> None:
        self.layout, self.atoms = layout, atoms
        self.in_place = in_place
        self.mode = "in place" if in_place else "out of place"
        self.size = len(atoms.starts) - 1
        self.number: list[int] | range = range(self.size)
        input_longer = layout.sizes.input > layout.sizes.output
        self.longer = Buffer.INPUT if input_longer else Buffer.OUTPUT
        if in_place:
            self.number = list(self.number)
            for rank in range(layout.sizes.ranks):
                input_, output = (atoms.span(*span) for span in layout.shared(rank))
                kept, gone = (input_, output) if input_longer else (output, input_)
                self.number[gone[0] : gone[1]] = range(*kept)

    def operands(self, block: int, line: int) -> Operands:
        """What a line works on, as the memory is in this mode."""
        found = self.atoms.operands[block][line]
        if not self.in_place:
            return found
        found = self.atoms.in_place.get((block, line), found)
        return Operands(self._really(found.src), self._really(found.dst))

    def _really(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        number = self.number
        return tuple([(number[low], number[high - 1] + 1) for low, high in spans])

    def buffer(self, rank: int, buffer: Buffer) -> Span:
        """The atoms of a user buffer."""
        low, high = self.atoms.span(*self.layout.buffer(rank, buffer))
        return self.number[low], self.number[high - 1] + 1

    def user(self, rank: int) -> tuple[Span, ...]:
        """Atoms [from, to) that belong to the caller of `rank` between launches."""
        buffers = (self.longer,) if self.in_place else USER
        return tuple(self.buffer(rank, buffer) for buffer in buffers)

    def name(self, atom: int) -> str:
        """The first chunk of an atom: `chunk 3 of rank 1's output`."""
        return self.layout.name(self.atoms.starts[atom])

    def places(self, rank: int, buffer: Buffer) -> list[int]:
        """Where the atoms of a user buffer begin, in locations from its start."""
        low, high = self.layout.buffer(rank, buffer)
        first, last = self.atoms.span(low, high)
        return [start - low for start in self.atoms.starts[first:last]]

    def initial(self) -> list[int]:
        """Values of all atoms when a launch begins: every rank's input, and nothing else."""
        values = [0] * self.size
        for rank in range(self.layout.sizes.ranks):
            low, high = self.buffer(rank, Buffer.INPUT)
            values[low:high] = self.input_values(rank)
        return values

    def input_values(self, rank: int) -> list[int]:
        """What the caller of `rank` puts into its input."""
        return [self.layout.input_value(rank, p) for p in self.places(rank, Buffer.INPUT)]

    def output_values(self, rank: int, root: int) -> list[int] | None:
        """What the output of `rank` must hold at the end; None where the collective leaves it open.

        `root` is that of a rooted collective.
        """
        values = []
        for place in self.places(rank, Buffer.OUTPUT):
            value = self.layout.output_value(rank, root, place)
            if value is None:
                return None
            values.append(value)
        return values


class Final:
    """What every rank was left with by the first launch."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        self.trace, self.memory = trace, memory
        self._kept: dict[tuple[int, Buffer], tuple[list[int], list[int]]] = {}

    def keep(self, rank: int, values: list[int], writers: list[int]) -> None:
        """Note the user buffers of `rank` as they are now."""
        for buffer in USER:
            low, high = self.memory.buffer(rank, buffer)
            self._kept[rank, buffer] = values[low:high], writers[low:high]

    def root(self, told: int) -> int:
        """The root of a rooted collective (else -1); found from the data where `told` is -1."""
        if not self.memory.layout.collective.rooted:
            return -1
        return self._find_root() if told < 0 else told

    def faults(self, root: int) -> Iterator[PlanError]:
        """For every buffer that is not as the collective defines: its first chunk that is wrong."""
        for rank in range(self.memory.layout.sizes.ranks):
            wanted = self.memory.output_values(rank, root)
            if wanted is not None:
                yield from self._compare(rank, Buffer.OUTPUT, wanted)
            if not self.memory.in_place:
                yield from self._compare(rank, Buffer.INPUT, self.memory.input_values(rank))

    def _find_root(self) -> int:
        n = self.memory.layout.sizes.ranks
        if self.memory.layout.collective.definition.root == "source":
            votes = {v for r in range(n) for v in self._kept[r, Buffer.OUTPUT][0][:1] if v}
            ranks = {contributors(v)[0] for v in votes}
            return min(ranks) if len(ranks) == 1 else 0
        for rank in range(n):
            if self._kept[rank, Buffer.OUTPUT][0] == self.memory.output_values(rank, rank):
                return rank

        def filled(rank: int) -> int:
            places = [*self.memory.places(rank, Buffer.OUTPUT), self._length(rank)]
            values = self._kept[rank, Buffer.OUTPUT][0]
            return sum(
                len(contributors(v)) * (high - low)
                for v, (low, high) in zip(values, pairwise(places), strict=True)
            )

        return max(range(n), key=filled)

    def _length(self, rank: int) -> int:
        low, high = self.memory.layout.buffer(rank, Buffer.OUTPUT)
        return high - low

    def _compare(self, rank: int, buffer: Buffer, wanted: list[int]) -> Iterator[PlanError]:
        values, writers = self._kept[rank, buffer]
        if values == wanted:
            return
        layout = self.memory.layout
        k = next(k for k, (x, y) in enumerate(zip(values, wanted, strict=True)) if x != y)
        chunk = self.memory.places(rank, buffer)[k] // layout.grain
        name = f"chunk {chunk} of rank {rank}'s {BUFFER_NAMES[buffer]}"
        holds, needs = layout.describe(values[k]), layout.describe(wanted[k])
        writer = writers[k]
        by = (
            "nothing writes it"
            if writer < 0 or self.trace.block[writer] < 0
            else f"last written by {self.trace.where(writer)}"
        )
        rule = "it must stay" if buffer is Buffer.INPUT else "it should hold"
        written = writer >= 0 and self.trace.block[writer] >= 0
        yield PlanError(
            f"wrong result: {name} holds {holds} at the end, {rule} {needs}; {by} "
            f"({self.memory.mode})",
            rule="RUN-WRONG-RESULT",
            at=self.trace.at(writer) if written else (rank,),
        )
