"""What sizes a plan serves: one rule for each style of plan, and one way to say it.

A size is nccl-tests' size, the bytes of all of the data: the output of an allgather, the input of
every other collective. A plan divides it into chunks. MSCCL XML asks that the number of elements be
a multiple of the chunks (`nchunksperloop`; otherwise the runtime takes its own algorithm), MSCCL++
that a chunk be a multiple of 16 bytes (otherwise the call fails).

Powers of two are the sizes that people use, of the data or, where ranks deal it out, of a rank's
part: 27 ranks that gather 1 MiB each have 27 MiB in all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.program import Program, Style

SIZE_LIMIT = 2**50
BLOCK = 16
"""Bytes of which MSCCL++ wants every chunk to be a multiple."""
ELEMENT = 4
"""Bytes of the element, a float32, in which sizes are told where nothing says otherwise."""
SMALLEST = 64 * 1024
"""Bytes per rank from which on every power of two should be served."""
RARE = 2048
"""Chunks beyond which sizes without padding are rare, where no power of two is among them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that plans of so many chunks serve without padding.

    `parts`: into how many equal parts the ranks deal the data out (allgather, reduce-scatter: one
    per rank; else one). `chunks`: of all the data.
    """

    style: Style
    parts: int
    chunks: int
    block: int = BLOCK  # bytes that a chunk of MSCCL++ is a multiple of

    @classmethod
    def of(cls, program: Program) -> Sizes:
        """Those of a program."""
        chunks = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
        return cls(program.style, program.collective.parts(program.n), chunks)

    def multiple(self, element: int = ELEMENT) -> int:
        """Bytes that a size is a multiple of; `element`: bytes of one, which XML plans count in."""
        return self.chunks * (element if self.style == "fifo" else self.block)

    def serves(self, size: int, element: int = ELEMENT) -> bool:
        """Whether a call of `size` bytes needs no padding."""
        return size > 0 and size % self.multiple(element) == 0

    @property
    def powers(self) -> bool:
        """Whether all powers of two are served, from the least on."""
        return is_power(self.chunks // self.parts)

    def amount(self, dtype: str = "float32", element: int = ELEMENT) -> str:
        """`"6656 bytes"`; XML: `"1664 bytes of float32"`."""
        of_type = f" of {dtype}" if self.style == "fifo" else ""
        return f"{self.multiple(element)} bytes{of_type}"

    def words(self, dtype: str = "float32", element: int = ELEMENT) -> str:
        """`"multiples of 6656 bytes"`; XML: `"multiples of 1664 bytes of float32"`."""
        return f"multiples of {self.amount(dtype, element)}"


def most_chunks(n: int) -> int:
    """Chunks up to which `n` ranks' plans serve SMALLEST bytes each, and 1 MiB."""
    return min(SMALLEST * n, 2**20) // BLOCK


def is_power(number: int) -> bool:
    """Whether it is a power of two."""
    return number > 0 and number & (number - 1) == 0


def parse_size(text: str) -> int:
    """Returns bytes: `64M`, `1.5G`, `4KiB`, `832`; K, M, G, T are powers of 1024 (nccl-tests)."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?\s*", text, re.I)
    if match is None:
        raise ValueError(f"'{text}' is not a size; write bytes, or a number with K, M, G, T: 64M")
    number = Fraction(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if number.denominator != 1:
        raise ValueError(f"'{text}' is {float(number)} bytes: not a whole number")
    if not 1 <= number <= SIZE_LIMIT:
        raise ValueError(f"'{text}' is out of range; from 1 byte to 1024T")
    return int(number)
