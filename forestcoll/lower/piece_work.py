"""Work of one rank for one piece of a tree: a pipeline, and the handshakes that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from forestcoll.lower.handshakes import NOP, Shakes, batches, sync
from forestcoll.program import Buffer, Instruction, Op, Ref
from forestcoll.program.targets import Target

BUFFERS = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank does for one piece, and what that takes of a thread block's limits.

    Parts of a thread block are done in the order of their keys, the order in which data flows. A
    part without a body has handshakes only: others read or write its rank's memory. Sets are bits
    of an integer: lanes, and remote buffers (3 * peer + buffer).
    """

    key: tuple[bool, int, int]  # broadcast after reduce; first chunk; piece (a sum's: backwards)
    before: tuple[Instruction, ...]
    body: tuple[Instruction, ...]  # of the pipeline
    after: tuple[Instruction, ...]
    chunks: int
    shakes: Shakes
    lanes: int
    remote: int

    @property
    def steps(self) -> int:
        """Operations, the pipeline itself included; handshakes are shared and not counted."""
        return len(self.before) + len(self.after) + (1 + len(self.body) if self.body else 0)


@dataclass(slots=True)
class Draft:
    """A part in the making."""

    rank: int
    near: int  # the rank's lanes to its own box
    target: Target
    before: list[Instruction] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    after: list[Instruction] = field(default_factory=list)
    shakes: Shakes = field(default_factory=Shakes)

    def shake(
        self, *, ready_to: int = 0, ready_from: int = 0, done_to: int = 0, done_from: int = 0
    ) -> None:
        """Handshakes with these sets of lanes, besides those there are."""
        self.shakes |= Shakes(ready_to, ready_from, done_to, done_from)

    def part(self, key: tuple[bool, int, int], chunks: int) -> Part:
        """The part as it is now."""
        lanes, remote = self.shakes.lanes, 0
        for i in (*self.before, *self.body, *self.after):
            for x in i.channels:
                lanes |= 1 << x
            for ref in (*i.src, *i.dst):
                if ref.rank is not None:
                    remote |= 1 << 3 * ref.rank + BUFFERS.index(ref.buffer)
        steps = (tuple(self.before), tuple(self.body), tuple(self.after))
        return Part(key, *steps, chunks, self.shakes, lanes, remote)

    def sync(self, op: Op, lanes: Iterable[int]) -> Iterator[Instruction]:
        """`op` on all the lanes."""
        return sync(op, lanes, self.near, self.target.peers)

    def semaphores(self, op: Op, semaphores: Sequence[int]) -> Iterator[Instruction]:
        """`op` on all the semaphores."""
        for batch in batches(semaphores, self.target.semaphores):
            yield Instruction(op, semaphores=batch)

    def sums(
        self, total: Ref, base: Ref, local: Sequence[Ref], near: Sequence[Ref]
    ) -> list[Instruction]:
        """total = base + local + near, where near ones are read at peers.

        The kernel takes one local operand beside the remote ones, so local ones are added first.
        An operation takes two operands more than it may have peers.
        """
        most = self.target.peers
        steps: list[Instruction] = []
        if local:
            first, rest = local[: most + 1], local[most + 1 :]
            steps.append(Instruction(Op.REDUCE_TO, (base, *first), (total,)))
            for low in range(0, len(rest), most + 1):
                some = rest[low : low + most + 1]
                steps += [NOP, Instruction(Op.REDUCE_TO, (total, *some), (total,))]
            base = total
        for low in range(0, len(near), most):
            steps += [NOP] * bool(steps)
            steps.append(Instruction(Op.READ_REDUCE, (base, *near[low : low + most]), (total,)))
            base = total
        return steps

    def deliver(
        self, source: Ref, to: dict[int, Ref], quiet: frozenset[int] = frozenset()
    ) -> Iterator[Instruction]:
        """Writes `source` to the place of every lane, in turn, then signals all but `quiet` ones.

        Proxies keep order, so need no barrier before their signal.
        """
        inside = [x for x in to if self.near >> x & 1]
        outside = [x for x in to if not self.near >> x & 1]
        for op, lanes in ((Op.PUT_SIGNAL, outside), (Op.PUT, inside)):
            for some in batches(lanes, self.target.peers):
                yield Instruction(op, (source,), tuple(to[x] for x in some), channels=some)
        if told := [x for x in inside if x not in quiet]:
            yield NOP
            yield from self.sync(Op.SIGNAL, told)
