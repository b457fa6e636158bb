"""How finely a program is run, within the limits on time and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.input_limits import CHECK_STEPS, LOCATIONS, SLICES
from forestcoll.program import Pipeline, Program
from forestcoll.program.chunks import ChunkCounts


@dataclass(frozen=True, slots=True)
class Scale:
    """How finely a program is run: locations a chunk, rounds of each pipeline, instructions."""

    grain: int
    rounds: int
    instructions: int


def scale_of(program: Program, sizes: ChunkCounts, *, rounds: int, launches: int) -> Scale:
    """How finely the program has to be run; UnsupportedError where that is beyond the limits.

    Keeps time and memory bounded whatever the program says.
    """
    grain, work, instructions = 1, 0, 0
    for rank in program.ranks:
        for block in rank.thread_blocks:
            for step in block.steps:
                loop = isinstance(step, Pipeline)
                grain = math.lcm(grain, rounds) if loop else grain
                times = rounds if loop else 1
                body = step.body if isinstance(step, Pipeline) else (step,)
                for i in body:
                    instructions += 1
                    work += times * (2 + len(i.channels))
                    if i.src or i.dst:
                        grain = min(math.lcm(grain, i.part[1]), SLICES + 1)
                        work += sum([ref.count for ref in (*i.src, *i.dst)])
    if grain > SLICES:
        raise UnsupportedError(
            f"the instructions' parts cut a chunk into more than {SLICES} slices {SLICES.note}"
        )
    locations = grain * sum(sizes.input + sizes.output + count for count in sizes.scratch)
    if locations > LOCATIONS:
        raise UnsupportedError(
            f"the buffers hold {locations // grain} chunks in all; "
            f"at most {LOCATIONS // grain} can be checked {LOCATIONS.note}"
        )
    work *= grain * launches
    if work > CHECK_STEPS:
        raise UnsupportedError(
            f"the program takes {work} steps on chunks to check; at most {CHECK_STEPS} are done "
            f"{CHECK_STEPS.note}"
        )
    return Scale(grain, rounds, instructions)
