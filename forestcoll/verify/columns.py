"""A program as columns of numbers, in C++, built once; and what the proof is told besides.

A program never changes, so its columns are kept as long as it is there. columns.hpp says what they
hold; whoever needs more than the wiring has the structure checked before (program/check.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from forestcoll.program import OPERATIONS, Buffer, Pipeline, Program, RankProgram
from forestcoll.program.chunks import ChunkCounts
from forestcoll.program.program import Once, Style
from forestcoll.verify import _machine

if TYPE_CHECKING:
    import numpy as np

BUFFERS: Final = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
"""The buffers by their numbers in columns."""
OPS: Final = tuple(OPERATIONS)
"""The operations likewise."""
_ROOTS: Final = {"none": 0, "source": 1, "target": 2}
_FIELDS: Final = (
    "rank number begin end recv send channel channels channel_count steps",
    "op step at operands sources targets after afters names channels semaphores ident group part "
    "parts loop",
    "rank buffer offset count",
    "peer port index",
    "block step",
)
_WORDS: Final = _machine.Words(OPERATIONS, list(BUFFERS), Pipeline)


@Once
def columns_of(program: Program) -> _machine.Columns:
    """Returns the columns of a program."""
    return read_ranks(program.style, program.ranks)


def read_ranks(style: Style, ranks: Sequence[RankProgram]) -> _machine.Columns:
    """Returns the columns of what ranks do, before it is a program."""
    return _machine.columns(style, ranks, _WORDS)


def rows_of(columns: _machine.Columns) -> tuple[np.ndarray, ...]:
    """Blocks, instructions, operands, channels and dependencies, with the fields of columns.hpp."""
    import numpy as np

    rows = zip(_machine.rows(columns), _FIELDS, strict=True)
    return tuple(
        np.frombuffer(raw, [(name, "i4") for name in names.split()]) for raw, names in rows
    )


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
