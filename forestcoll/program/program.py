"""What every rank does: thread blocks of instructions, independent of any device or file format.

Two styles of communication exist, and one instruction set holds both:

* **fifo** (MSCCL XML): a thread block owns at most one incoming and one outgoing connection on one
  channel. `send` hands a message over, the n-th `recv` of a connection takes the n-th `send`; a
  connection holds a bounded number of messages. The whole instruction list of every thread block is
  repeated for slice after slice of every chunk: that loop is the pipelining.
* **onesided** (MSCCL++): `put` writes into a peer's buffer, `signal` and `wait` count semaphores of
  a channel. Loops are explicit (`Pipeline`): its body is repeated for slice after slice of its
  chunks.

Buffers are counted in chunks. One chunk is `input bytes / input_chunks` (the same for all buffers);
how input and output compare is said in collective.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from forestcoll.common.display import Shown
from forestcoll.program.collective import Collective
from forestcoll.program.ops import FABRIC, OPERATIONS, PUTS, SENDS, Kind, Op

if TYPE_CHECKING:
    import networkx as nx

Style = Literal["fifo", "onesided"]
Protocol = Literal["Simple", "LL", "LL128"]


class Buffer(StrEnum):
    """A rank's three buffers; the values are the letters that both plan formats use."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


@dataclass(frozen=True, slots=True)
class Ref:
    """`count` chunks at chunk `offset` of a buffer of rank `rank`; None: of the own rank."""

    buffer: Buffer
    offset: int
    count: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation of one thread block. Fields that an operation does not use stay empty."""

    op: Op
    src: tuple[Ref, ...] = ()
    dst: tuple[Ref, ...] = ()
    after: tuple[tuple[int, int], ...] = ()  # (thread block, step) of this rank, must be done
    channels: tuple[int, ...] = ()  # onesided: indices into this thread block's `channels`
    semaphores: tuple[int, ...] = ()  # indices into the rank's `semaphores`
    ident: int = 0  # barrier id
    group: int = 0  # thread blocks at the barrier
    part: tuple[int, int] = (0, 1)  # (index, size): does this slice of every operand's whole range
    switches: tuple[int, ...] = ()  # onesided: indices into this thread block's `switches`

    @property
    def body(self) -> tuple[Instruction, ...]:
        """The instructions of a step that is no loop: it alone."""
        return (self,)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop in a onesided thread block: `body` runs for each `unit_bytes` slice of the chunks.

    Every data instruction of the body covers exactly `chunks` chunks and no `part`. The number of
    rounds is ceil(chunks * chunk bytes / unit_bytes), the same at both ends of a channel.
    """

    body: tuple[Instruction, ...]
    chunks: int
    unit_bytes: int


Step = Instruction | Pipeline


@dataclass(frozen=True, slots=True)
class Channel:
    """One end of a onesided channel: this thread block's `index`-th ... to `peer`.

    `index` numbers the channels of one kind from this rank to `peer` (0, 1, ...): the n-th channel
    from i to j pairs with the n-th from j to i.
    """

    peer: int
    kind: Kind
    index: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A way through a switch that copies and adds to one buffer of all `ranks`, its group.

    Every rank of the group has it: the same switch in any of them is the same way.
    """

    ranks: tuple[int, ...]
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """One thread block of one rank. fifo style: `recv`, `send`, `channel`; onesided: the others."""

    steps: tuple[Step, ...]
    recv: int = -1  # peer rank, -1: none
    send: int = -1
    channel: int = 0
    channels: tuple[Channel, ...] = ()
    switches: tuple[Switch, ...] = ()

    def __repr__(self) -> str:
        peers = {p for p in (self.recv, self.send) if p >= 0} | {c.peer for c in self.channels}
        listed = ", ".join(map(str, sorted(peers)[:8]))
        more = f" and {len(peers) - 8} more" if len(peers) > 8 else ""
        with_ = f" with ranks {listed}{more}" if peers else ""
        return f"<ThreadBlock: {len(self.steps)} steps{with_}>"

    def instructions(self) -> list[tuple[int, Instruction]]:
        """(step, instruction) of all; bodies of pipelines have their step."""
        return [(s, i) for s, step in enumerate(self.steps) for i in step.body]

    def operands(self, rank: int, i: Instruction) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
        """What an instruction of this block of `rank` reads and writes, behind switches too."""
        if not i.switches:
            return i.src, i.dst
        both = OPERATIONS[i.op].switched == "both"
        on_switches = (*i.src, *i.dst) if both else i.dst
        behind = [
            tuple([replace(ref, rank=None if r == rank else r) for r in self.switches[s].ranks])
            for s, ref in zip(i.switches, on_switches, strict=True)
        ]
        return (behind[0] if both else i.src), behind[-1]

    def reads_by_port(self, i: Instruction) -> bool:
        """Whether it is a port that reads the instruction's sources, not the block's threads.

        Channels that the block does not have are passed over: others refuse them.
        """
        channels = range(len(self.channels))
        return i.op in PUTS and any(
            self.channels[c].kind == "port" for c in i.channels if c in channels
        )


_slot: Any = vars(ThreadBlock)["steps"]


def _steps(block: ThreadBlock) -> Any:
    """The steps, made when they are first asked for where a function that makes them was given."""
    steps = _slot.__get__(block)
    if callable(steps):
        steps = steps()
        _slot.__set__(block, steps)
    return steps


type.__setattr__(ThreadBlock, "steps", property(_steps, _slot.__set__))


@dataclass(frozen=True, slots=True)
class RankProgram:
    """All that one rank does. Chunk counts: sizes of its buffers; `semaphores`: initial values."""

    thread_blocks: tuple[ThreadBlock, ...]
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    semaphores: tuple[int, ...] = ()

    def __repr__(self) -> str:
        chunks = f"{self.input_chunks} in, {self.output_chunks} out, {self.scratch_chunks} scratch"
        return f"<RankProgram: {len(self.thread_blocks)} thread blocks; chunks: {chunks}>"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program(Shown):
    """A collective for all ranks. `ranks[i]` is what rank i does; `names[i]` its node id or ''."""

    name: str
    collective: Collective
    style: Style
    ranks: tuple[RankProgram, ...]
    in_place: bool  # right when input and output are the same memory (as NCCL defines it)
    out_of_place: bool  # right when they are not; the input is then left unchanged
    root: int = -1  # broadcast, reduce
    protocol: Protocol = "Simple"
    names: tuple[str, ...] = ()
    min_bytes: int = 0  # sizes served, nccl-tests' size, both inclusive; max 0: no limit
    max_bytes: int = 0
    double_scratch: bool = False  # LL: scratch is there twice, launches take the two by turns
    extra: dict[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        blocks = max((len(rank.thread_blocks) for rank in self.ranks), default=0)
        return (
            f"<Program {self.name or 'without a name'}: {self.collective}, {self.n} ranks, "
            f"{self.style}, {self.protocol}, at most {blocks} thread blocks per rank>"
        )

    @property
    def n(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def scratch_factor(self) -> int:
        """Scratch in sizes of its chunks: packets take twice their data, two halves twice that."""
        packets = self.style == "onesided" and self.protocol == "LL"
        return (2 if packets else 1) * (2 if self.double_scratch else 1)

    def lead(self, rank: int, ref: Ref) -> int:
        """Chunks by which packets of `rank` miss the half of scratch that their reader looks at.

        Above 0: beyond it. In every other launch a rank addresses packets at peers where its own
        scratch has its second half (microsoft/mscclpp 1f5f065d, executor.cc: launchKernelHelper;
        execution_kernel.hpp: scratchOffset_), and everybody reads where his own has it.
        """
        if not self.double_scratch or ref.rank is None or ref.buffer is not Buffer.SCRATCH:
            return 0
        return self.ranks[rank].scratch_chunks - self.ranks[ref.rank].scratch_chunks

    def part_of(self, rank: int, ref: Ref, *, by_port: bool) -> int:
        """In place: whose part of the longer user buffer an operand of `rank` is.

        Of the shorter one the runtime knows where it lies only for the threads of its own rank.
        Ports read from where the allocation begins, which is rank 0's part, and at peers all are
        as far from their allocation's begin as at the own rank (microsoft/mscclpp 1f5f065d,
        executor.cc: setupRegisteredMemories; execution_plan.cc: getConstOffset).
        """
        if ref.rank in (None, rank) and by_port:
            return 0
        return rank

    @property
    def shorter(self) -> Buffer | None:
        """The user buffer that in place is one rank's part of the other, if one is."""
        if self.collective.input_is_part:
            return Buffer.INPUT
        return Buffer.OUTPUT if self.collective.output_is_part else None

    def misplacements(self) -> Iterator[tuple[int, int, int, Instruction, Ref]]:
        """(rank, thread block, step, instruction, operand): what in place is not where it says."""
        if self.style == "fifo" or self.shorter is None:
            return
        for r, b, s, i in self.instructions():
            block = self.ranks[r].thread_blocks[b]
            src, dst = block.operands(r, i)
            by_port = block.reads_by_port(i)
            for k, ref in enumerate((*src, *dst)):
                owner = r if ref.rank is None else ref.rank
                port = by_port and k < len(src)
                if ref.buffer is self.shorter and self.part_of(r, ref, by_port=port) != owner:
                    yield r, b, s, i, ref

    def to_networkx(self) -> nx.DiGraph[int]:
        """Ranks, and an edge from each to those that its data go to.

        Node attribute `name`; edge attribute `chunks`: how many, of `input_chunks` or, where that
        is more, `output_chunks` of a rank. Through switches that copy and add: to all behind them.
        """
        import networkx as nx

        traffic: nx.DiGraph[int] = nx.DiGraph()
        traffic.add_nodes_from(
            (r, {"name": self.names[r] if self.names else ""}) for r in range(self.n)
        )
        for r, b, _, i in self.instructions():
            block = self.ranks[r].thread_blocks[b]
            src, dst = block.operands(r, i)
            moves = [(ref.rank, r, ref.count) for ref in src if ref.rank not in (None, r)]
            moves += [(r, ref.rank, ref.count) for ref in dst if ref.rank not in (None, r)]
            if i.op in SENDS:
                moves.append((r, block.send, (*src, *dst)[0].count))
            for a, z, count in moves:
                assert a is not None
                assert z is not None
                before = traffic.edges[a, z]["chunks"] if traffic.has_edge(a, z) else 0
                traffic.add_edge(a, z, chunks=before + Fraction(count, i.part[1]))
        return traffic

    @property
    def in_switches(self) -> bool:
        """Whether switches copy or add."""
        return self.style == "onesided" and any(i.op in FABRIC for *_, i in self.instructions())

    def blocks(self) -> Iterator[tuple[int, int, ThreadBlock]]:
        """(rank, number in it, thread block) of all."""
        for r, rank in enumerate(self.ranks):
            for b, block in enumerate(rank.thread_blocks):
                yield r, b, block

    def instructions(self) -> Iterator[tuple[int, int, int, Instruction]]:
        """(rank, thread block, step, instruction) of all; bodies of pipelines have their step."""
        for r, b, block in self.blocks():
            for s, i in block.instructions():
                yield r, b, s, i

    def edit(self, change: Callable[[int, Instruction], Instruction | None]) -> Program:
        """The program with what `change` makes of each rank's instructions; None leaves one out.

        A pipeline without any is left out, too.
        """

        def edit_steps(rank: int, steps: tuple[Step, ...]) -> Iterator[Step]:
            for step in steps:
                kept = [i for part in step.body if (i := change(rank, part)) is not None]
                if kept:
                    yield (
                        replace(step, body=tuple(kept)) if isinstance(step, Pipeline) else kept[0]
                    )

        ranks = []
        for r, rank in enumerate(self.ranks):
            blocks = [replace(b, steps=tuple(edit_steps(r, b.steps))) for b in rank.thread_blocks]
            ranks.append(replace(rank, thread_blocks=tuple(blocks)))
        return replace(self, ranks=tuple(ranks))


T = TypeVar("T")


class Once(Generic[T]):
    """A function of a program that is computed once as long as the program is there.

    A program never changes. It is known by `id`: a hash would go through the whole of it.
    """

    def __init__(self, function: Callable[[Program], T]) -> None:
        self.__doc__, self._function = function.__doc__, function
        self._values: dict[int, tuple[weakref.ref[Program], T]] = {}

    def __call__(self, program: Program) -> T:
        """The value, computed unless it is kept."""
        entry = self._values.get(id(program))
        if entry is not None and entry[0]() is program:
            return entry[1]
        return self.keep(program, self._function(program))

    def keep(self, program: Program, value: T) -> T:
        """Keeps and returns a value that is known from elsewhere."""
        number = id(program)
        forget = lambda _: self._values.pop(number, None)  # noqa: E731
        self._values[number] = weakref.ref(program, forget), value
        return value


def where(*at: Any) -> str:
    """`rank 0, thread block 1, step 2 (recv)`, as far as it is given: numbers, and an operation."""
    words = zip(("rank", "thread block", "step"), at, strict=False)
    operation = [f" ({op.value})" for op in at[3:]]
    return ", ".join(f"{word} {number}" for word, number in words) + "".join(operation)
