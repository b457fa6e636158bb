"""Tiles: a program that does its data part by part, in the order in which somebody makes them.

A program cuts its data into chunks that all go at once: each thread block has its own, and slices
of all are on their way together. Here a tile of the data is as the whole was, and every thread
block does tile after tile: what is made first goes first, over all trees.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from forestcoll.common.errors import UnsupportedError
from forestcoll.program.ops import Op
from forestcoll.program.program import Buffer, Pipeline, Program, RankProgram, Ref, Step

MOST = 256
"""Tiles of a program."""
HANDSHAKES = (Op.RELAXED_SIGNAL, Op.RELAXED_WAIT)
"""What tells that memory may be written: once will do, for no two tiles share any."""


def read_order(text: str, source: str) -> tuple[int, ...]:
    """Equal tiles by their place in the buffer, in the order in which a producer finishes them.

    `text`: lines "offset bytes", or a JSON list of such pairs; they cover all of the buffer once.
    Raises UnsupportedError where they do not, or need more than MOST tiles.
    """
    try:
        pairs = json.loads(text) if text.lstrip()[:1] == "[" else map(str.split, text.splitlines())
        parts = [(int(offset), int(count)) for offset, count in filter(None, pairs)]
    except (ValueError, TypeError, RecursionError):
        raise UnsupportedError(
            f"{source}: is neither lines 'offset bytes' nor a JSON list of such pairs"
        ) from None
    end = 0
    for offset, count in sorted(parts):
        if offset != end or count < 1:
            raise UnsupportedError(
                f"{source}: {count} bytes at {offset}, where {end} was to come: the parts cover "
                "the buffer from 0 on, each byte once"
            )
        end += count
    tile = math.gcd(*(number for part in parts for number in part))
    if not 0 < end <= MOST * tile:
        raise UnsupportedError(
            f"{source}: {end} bytes in tiles of {tile}, for which parts differ in size: "
            f"from 1 to {MOST} tiles"
        )
    return tuple(
        at for offset, count in parts for at in range(offset // tile, (offset + count) // tile)
    )


def tiles(program: Program, order: Sequence[int]) -> Program:
    """The program on as many equal tiles of the data, each done by itself as the whole was.

    `order`: the tiles by their place in the buffers, the first to be done first.

    Raises UnsupportedError where input or output are dealt out to ranks, or `order` is no order.
    """
    definition = program.collective.definition
    if (definition.inputs, definition.outputs) != ("one", "one"):
        raise UnsupportedError(
            f"{program.collective}: its input or output is dealt out to ranks, so what is made "
            "first cannot go first; allreduce, broadcast and reduce have tiles"
        )
    if not 1 <= len(order) <= MOST or sorted(order) != list(range(len(order))):
        raise UnsupportedError(f"order: each of 1 to {MOST} tiles stands in it once, from 0 on")
    count = len(order)
    return replace(
        program,
        ranks=tuple(_rank(program, rank, order) for rank in range(program.n)),
        min_bytes=program.min_bytes * count,
        max_bytes=program.max_bytes * count,
    )


def _rank(program: Program, number: int, order: Sequence[int]) -> RankProgram:
    rank, count = program.ranks[number], len(order)
    blocks = rank.thread_blocks

    def shift(ref: Ref, tile: int) -> Ref:
        owner = program.ranks[number if ref.rank is None else ref.rank]
        if ref.buffer is Buffer.SCRATCH:  # each tile has its own, in the order of work
            return replace(ref, offset=ref.offset + tile * owner.scratch_chunks)
        return replace(ref, offset=ref.offset + order[tile] * owner.input_chunks)

    def repeat(step: Step, tile: int) -> Step:
        if isinstance(step, Pipeline):
            body = tuple([repeat(each, tile) for each in step.body])
            return replace(step, body=body)  # type: ignore[arg-type]
        return replace(
            step,
            src=tuple([shift(ref, tile) for ref in step.src]),
            dst=tuple([shift(ref, tile) for ref in step.dst]),
            after=tuple([(b, s + tile * len(blocks[b].steps)) for b, s in step.after]),
        )

    return replace(
        rank,
        input_chunks=rank.input_chunks * count,
        output_chunks=rank.output_chunks * count,
        scratch_chunks=rank.scratch_chunks * count,
        thread_blocks=tuple(
            replace(
                block,
                steps=tuple(
                    repeat(step, k)
                    for k in range(count)
                    for step in block.steps
                    if k == 0 or isinstance(step, Pipeline) or step.op not in HANDSHAKES
                ),
            )
            for block in blocks
        ),
    )
