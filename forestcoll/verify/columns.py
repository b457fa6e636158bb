"""A program as columns of numbers, in C++, built once; and what the proof is told besides.

A program never changes, so its columns are kept as long as it is there. columns.hpp says what they
hold; whoever needs more than the wiring has the structure checked before (program/check.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, starmap
from struct import iter_unpack
from typing import Any, Final

from forestcoll.program import OPERATIONS, Buffer, Instruction, Pipeline, Program, RankProgram, Ref
from forestcoll.program.chunks import ChunkCounts
from forestcoll.program.program import Once, Style
from forestcoll.verify import _machine

BUFFERS: Final = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
"""The buffers by their numbers in columns."""
OPS: Final = tuple(OPERATIONS)
"""The operations likewise."""
_ROOTS: Final = {"none": 0, "source": 1, "target": 2}
WORDS: Final = _machine.Words(OPERATIONS, list(BUFFERS), Pipeline)


@Once
def columns_of(program: Program) -> _machine.Columns:
    """Returns the columns of a program."""
    return read_ranks(program.style, program.ranks)


def read_ranks(style: Style, ranks: Sequence[RankProgram]) -> _machine.Columns:
    """Returns the columns of what ranks do, before it is a program."""
    return _machine.columns(style, ranks, WORDS)


def rows_of(columns: _machine.Columns) -> list[Iterator[Any]]:
    """Returns blocks, instructions, operands and dependencies, with the fields of columns.hpp."""
    return [*map(iter_unpack, ("10i", "16i", "4i", "2i"), _machine.rows(columns))]


def instructions_of(columns: _machine.Columns) -> list[tuple[Instruction, ...]]:
    """Returns the steps of the thread blocks that `_kernel.FifoBlocks` has written.

    Operands that are alike are one object.
    """
    blocks, steps, operands, waits = rows_of(columns)
    ref = cache(lambda _, buffer, *chunks: Ref(BUFFERS[buffer], *chunks))
    refs = starmap(ref, operands)

    def take(rows: Iterator[Any], count: int) -> Any:
        return tuple(islice(rows, count))

    return [
        tuple(
            [
                Instruction(OPS[op], take(refs, sources), take(refs, targets), take(waits, count))
                for op, _, _, _, sources, targets, _, count, *_ in islice(steps, length)
            ]
        )
        for *_, length in blocks
    ]


def shape_of(program: Program, sizes: ChunkCounts, grain: int) -> _machine.Shape:
    """Returns the sizes of all buffers, in chunks of `grain` locations, and what the data mean."""
    definition = program.collective.definition
    shorter = program.shorter if program.in_place else None
    return _machine.Shape(
        sizes.input,
        sizes.output,
        sizes.part,
        list(sizes.scratch),
        grain,
        program.double_scratch,
        definition.inputs == "each",
        definition.outputs == "each",
        definition.reduces,
        _ROOTS[definition.root],
        -1 if shorter is None else BUFFERS.index(shorter),
    )
