"""Into how many equal parts trees are cut by default: as many as keep a GPU's links busy.

Few trees, as inside one NVSwitch box, are few thread blocks at work, and a thread block moves only
so much. More parts mean more of them, and more chunks, of which every size must be a multiple: so
only powers of two are taken, as most sizes are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.lower.limits import takes, usage
from forestcoll.program import Program, Protocol
from forestcoll.program.sizes import RARE, Sizes, most_chunks
from forestcoll.program.targets import TREE_RATE, Target, tree_rate_of
from forestcoll.schedule.forest import Forest
from forestcoll.verify.columns import columns_of

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
    boxes = tuple(forest.graph.box(node) for node in forest.graph.ranks)
    numbers = [boxes.index(box) for box in boxes]
    moved = takes(program.ranks, columns_of(program), numbers)
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
