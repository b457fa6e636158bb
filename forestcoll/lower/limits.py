"""How much of a target a program takes, the refusal where that is too much, and its protocol.

And the channels of onesided programs, with operations on several of them; and into how many equal
parts trees are cut by default: as many as keep a GPU's links busy. Few trees, as inside one
NVSwitch box, are few thread blocks at work, and a thread block moves only so much. More parts mean
more of them, and more chunks, of which every size must be a multiple: so only powers of two are
taken, as most sizes are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import repeat
from operator import gt
from typing import Literal, TypeVar

from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import INSTRUCTIONS
from forestcoll.program import (
    Instruction,
    Op,
    Pipeline,
    Program,
    Protocol,
    RankProgram,
    ThreadBlock,
)
from forestcoll.program.program import Once
from forestcoll.program.sizes import RARE, Sizes, most_chunks
from forestcoll.program.targets import TREE_RATE, Target, tree_rate_of
from forestcoll.schedule.forest import Forest
from forestcoll.verify import _machine
from forestcoll.verify._machine import Columns
from forestcoll.verify.columns import columns_of, read_ranks

ALONE = "--format forest writes the trees without any"
"""What can be done where a plan cannot be."""

# --- protocols


def bulk_protocol(forest: Forest, target: Target) -> Protocol:
    """That for much data: Simple, but LL128 for a rooted collective that leaves a box in MSCCL XML.

    There the proxies count a Simple broadcast's or reduce's steps by those collectives' own rule,
    one a slice, which the interpreter does not follow (Azure/msccl-executor-nccl c6f6b36,
    msccl_setup.cc): it would stop half-way. Nor would messages for which both counts agree help:
    the interpreter's slices are two steps and it tells the size of the first alone, while the proxy
    waits for that of each (prims_simple.h: waitPeer; net.cc: sendProxyProgress). RCCL 0cbce2a does
    the same.
    """
    if target.style == "onesided" or not forest.collective.has_root:
        return "Simple"
    return "LL128" if len(set(forest.graph.boxes)) > 1 else "Simple"


def choose_protocol(forest: Forest, target: Target, asked: Protocol | None) -> Protocol:
    """What is asked for, else that for much data. PlanError where the target does not have it."""
    bulk = bulk_protocol(forest, target)
    if target.style == "onesided" and asked not in (None, "Simple"):
        raise PlanError(f"protocol {asked}: {target.name} has Simple and LL (packets)")
    if asked == "Simple" != bulk:
        raise PlanError(
            f"protocol Simple: a {forest.collective} that leaves a box would stop half-way in "
            f"{target.name}, whose proxies count its steps otherwise; use LL or LL128 (--protocol)"
        )
    return asked or bulk


# --- limits


@dataclass(frozen=True, slots=True)
class Usage:
    """Largest figures over all ranks."""

    thread_blocks: int  # of a rank
    steps: int  # of a thread block, as the target counts them
    channels: int  # fifo: channel numbers; onesided: channels of one kind in a thread block
    operations: int  # steps of all thread blocks of a rank
    busy: int = 0  # thread blocks of a rank that move data
    scratch: Fraction = Fraction(0)  # of a rank, in sizes of its input
    instances: int = 1  # equal parts into which lowering cut every tree
    total: int = 0  # steps of all thread blocks of all ranks


@Once
def usage(program: Program) -> Usage:
    """What the fullest rank or thread block of the program takes, figure by figure."""
    ranks = _machine.takes(columns_of(program), [])
    lengths = [[block[0] for block in rank] for rank in ranks]
    scratch = [  # a plan that is run in place only may leave a user buffer out
        Fraction(rank.scratch_chunks, max(1, rank.input_chunks or rank.output_chunks))
        for rank in program.ranks
    ]
    return Usage(
        thread_blocks=max(map(len, ranks), default=0),
        steps=max((length for rank in lengths for length in rank), default=0),
        channels=max((block[1] for rank in ranks for block in rank), default=0),
        operations=max(map(sum, lengths), default=0),
        busy=max((sum(block[2] > 0 for block in rank) for rank in ranks), default=0),
        scratch=max(scratch, default=Fraction(0)) * program.scratch_factor,
        instances=int(program.extra.get("instances", "1")),
        total=sum(map(sum, lengths)),
    )


def steps(block: ThreadBlock) -> int:
    """Steps of a block: also a no-op for every dependency but the last, and pipelines' bodies."""
    return sum(
        [1 + len(s.body) if isinstance(s, Pipeline) else len(s.after) or 1 for s in block.steps]
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """A target's limits, and the words that refuse what goes beyond them."""

    target: Target
    title: str  # what is lowered
    names: tuple[str, ...]  # of the ranks
    trees: int  # a root
    way_out: str = ""  # where it is not trees that are lowered

    @property
    def hint(self) -> str:
        """What whoever meets a limit can do."""
        if self.way_out:
            return self.way_out
        fewer = "fewer trees (--trees 1) may fit, " if self.trees > 1 else ""
        return f"{fewer}another runtime (--target) has other limits, {ALONE}"

    @property
    def boxes(self) -> tuple[str, ...]:
        """Per rank the box that holds it."""
        return tuple(name.rpartition("/")[0] for name in self.names)

    def rank(self, rank: int) -> str:
        """The rank in words."""
        return f"rank {rank} ({self.names[rank]})"

    def refuse(self, where: str, what: str, figure: int, limit: int) -> PlanError:
        """The error of a limit: where, which, the figure, the limit, what to do."""
        return PlanError(
            f"{self.title}: {where} needs {figure} {what}, {self.target.name} holds {limit}; "
            f"{self.hint}"
        )


def check_steps(needed: Sequence[int], limits: Limits) -> None:
    """PlanError where the steps of a rank cannot fit, however thread blocks share them."""
    rank = max(range(len(needed)), key=needed.__getitem__)
    most = most_steps(len(needed), limits.target)
    if needed[rank] > most:
        raise limits.refuse(limits.rank(rank), "steps", needed[rank], most)


def most_steps(n: int, target: Target) -> int:
    """Steps of a rank at most, however they are spread over thread blocks."""
    # what is left of the elements once algo, all gpus and one thread block for 64 steps are there
    nodes = (target.nodes - 1 - n) * target.steps // (target.steps + 1)
    return min(target.thread_blocks * target.steps, nodes)


def check_ranks(
    ranks: Sequence[RankProgram], limits: Limits, columns: Columns | None = None
) -> Columns:
    """Returns the columns of what ranks do; PlanError with the first limit that one breaks."""
    target = limits.target
    columns = columns or read_ranks(target.style, ranks)
    what = "channels of one kind" if target.style == "onesided" else "channels"
    words = "steps", what, "chunks in one step", "peers in one operation"
    bounds = target.steps, target.channels, target.count, target.peers
    total = 0
    for number, (rank, blocks) in enumerate(zip(ranks, _machine.takes(columns, []), strict=True)):
        where = limits.rank(number)
        chunks = max(rank.input_chunks, rank.output_chunks, rank.scratch_chunks)
        waited = max((block[4] for block in blocks), default=0)
        elements = len(blocks) + sum(block[0] for block in blocks)
        nodes = 1 + len(ranks) + elements
        checks = [
            (where, "thread blocks", len(blocks), target.thread_blocks),
            (where, "chunks in a buffer", chunks, target.chunks),
            (where, "thread blocks that others wait for", waited, target.dependency_blocks),
            (where, "XML elements (algo, gpus, thread blocks, steps)", nodes, target.nodes),
        ]
        for b, block in enumerate(blocks):
            if any(map(gt, block, bounds)):
                checks += zip(
                    repeat(f"{where}, thread block {b}"), words, block, bounds, strict=False
                )
        for check in checks:
            if check[2] > check[3]:
                raise limits.refuse(*check)
        total += elements
    if total > INSTRUCTIONS:
        raise PlanError(
            f"{limits.title}: all ranks have {total} thread blocks and steps; plans of more than "
            f"{INSTRUCTIONS} cannot be read back {INSTRUCTIONS.note}; {ALONE}"
        )
    return columns


# --- channels of onesided programs

Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it
NOP = Instruction(Op.NOP)
T = TypeVar("T")


def kind_of(rank: int, peer: int, boxes: Boxes) -> Kind:
    """Memory channels inside a box, port channels (a proxy, a network) between boxes."""
    return "memory" if boxes[rank] == boxes[peer] else "port"


def batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in groups of at most `size`."""
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def sync(op: Op, numbers: Iterable[int], near: int, peers: int) -> Iterator[Instruction]:
    """`op` on all these channels, of which those in the set `near`, bits, are memory ones.

    One kind, and `peers` of it, an operation.
    """
    numbers = sorted(numbers)
    for inside in (1, 0) if numbers else ():
        for batch in batches([x for x in numbers if near >> x & 1 == inside], peers):
            yield _plain(op, batch)


@lru_cache(maxsize=4096)
def _plain(op: Op, channels: tuple[int, ...]) -> Instruction:
    """Signals and waits: there are few different ones."""
    return Instruction(op, channels=channels)


BLOCK = TREE_RATE
"""GB/s that a thread block moves, while it sends as much as it receives in fifo style.

So much NCCL gives one that does Simple trees on an Ampere (26.5 on a Volta, 38.7 on a Hopper:
NCCL src/graph/tuning.cc, perChMaxTreeBws), and rings of 25 GB/s and more it halves for twice the
channels (50 from sm_90 on where there are 5 or more: src/graph/search.cc, ncclTopoDupChannels; its
ladder of speeds has 24 on sm_90 and on sm_100). GPUs that do more are idle for it, not slower.
"""
LINK = Fraction(4, 5)
"""What of their bandwidth links carry: of NVLink's 25, 25, 25 and 50 GB/s NCCL counts on 20, 20,
20.6 and 40.1 (src/graph/topo.h: SM70_NVLINK_BW, SM80, SM90, SM100).
"""
ENOUGH = Fraction(9, 10)
"""Share of a rank's bandwidth at which it has enough thread blocks: the rates are known no better,
and twice as many is what comes next.
"""
OPERATIONS = 2**15
"""Operations of all ranks that a program may have for more instances: larger ones take seconds."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the thread blocks of a rank have to move at the schedule's algbw."""

    rate: Fraction  # GB/s of the links' bandwidth
    blocks: int  # thread blocks that share it
    block: Fraction = BLOCK  # GB/s that each moves

    @property
    def ratio(self) -> Fraction:
        """How many times as many thread blocks as there are it takes."""
        return self.rate * LINK * ENOUGH / self.block / self.blocks


IDLE = Work(Fraction(0), 1)


def shortage(work: Work, target: Target, why: str) -> str:
    """The note that too few thread blocks do it to keep the links busy, and why; or ""."""
    if work.ratio <= 1:
        return ""
    enough = math.ceil(work.ratio * work.blocks)
    return (
        f"{target.format}: {work.blocks} of the {enough} thread blocks that "
        f"{float(work.rate):.4g} GB/s of a rank take (each moves some {float(work.block):g}): {why}"
    )


def block_rate(forest: Forest, protocol: Protocol) -> Fraction:
    """GB/s that a thread block is counted for: those of the forest's GPUs in a broadcast.

    In sums leaves send as soon as there is room, and whoever waits for them gets as much of a link
    that they share only with as many thread blocks as an Ampere takes.
    """
    if forest.collective.reduces or not forest.collective.has_root:
        return BLOCK
    return tree_rate_of(forest.name, protocol)


def hardest(forest: Forest, program: Program) -> Work:
    """The work that is too much, or nearest to it, for the thread blocks that do it.

    A count of GB/s at the links' bandwidth, no time: it says how many parts are worth a program;
    between programs `search` decides by simulated times.
    Onesided: all that a rank's thread blocks read from peers in its box and write to them; what
    goes through a port is moved by others. Fifo: what it receives, or what it sends.
    """
    algbw = forest.plain_algbw
    block = block_rate(forest, program.protocol)
    boxes = forest.graph.boxes
    numbers = [boxes.index(box) for box in boxes]
    moved = _machine.takes(columns_of(program), numbers)
    most = (
        Work(algbw * Fraction(sum(chunks), total), len(chunks), block)
        for rank, blocks in zip(program.ranks, moved, strict=True)
        for total in (max(rank.input_chunks, rank.output_chunks),)
        for way in (5, 6)  # in, and out
        if (chunks := [one[way] for one in blocks if one[way]])
    )
    return max(most, key=lambda work: work.ratio, default=IDLE)


def most_instances(
    program: Program, target: Target | None = None, most_operations: int = OPERATIONS
) -> tuple[int, str]:
    """The most equal parts to try, a power of two, and what keeps it from more.

    `target`: whose channels a fifo program takes more of then, if it does.
    """
    served, used = Sizes.of(program), usage(program)
    most = most_chunks(program.n) if served.powers else RARE
    words = f"with more, the plan has more than {most_operations} operations"
    limits = [
        (most // served.chunks, f"with more, sizes are multiples of more than {most} elements"),
        (most_operations // used.total, words),
    ]
    if target is not None and program.style == "fifo":
        words = f"with more, it takes more than the {target.channels} channels of {target.name}"
        limits.append((target.channels // used.channels, words))
    most, why = min(limits)
    return 1 << max(1, most).bit_length() - 1, why
