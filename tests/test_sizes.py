"""What sizes a plan serves: the runtimes' rules, and the words for them."""

from __future__ import annotations

import pytest

from forestcoll.program import BY_TREES
from forestcoll.program.sizes import Sizes, most_chunks
from forestcoll.ui.report import words

MULTIPLES = """
fifo 1 416 4: 1664 multiples of 1664 bytes of float32, no power of two
fifo 1 512 8: 4096 multiples of 2048 bytes of float32: every power of two from 2 KiB on
onesided 1 416 4: 6656 multiples of 6656 bytes, no power of two
onesided 16 512 8: 8192 multiples of 8192 bytes: every power of two from 8 KiB on
onesided 9 72 4: 1152 multiples of 1152 bytes: every power of two from 128 bytes per rank on
onesided 9 27 4: 432 multiples of 432 bytes, no power of two per rank
"""
"""Style, parts, chunks, and bytes of an element; the multiple, and the words."""


@pytest.mark.parametrize("row", MULTIPLES.strip().splitlines())
def test_multiples_and_words(row: str) -> None:
    asked, _, told = row.partition(": ")
    style, *numbers = asked.split()
    parts, chunks, element = map(int, numbers)
    first, _, said = told.partition(" ")
    sizes, multiple = Sizes(style, parts, chunks), int(first)  # type: ignore[arg-type]
    assert sizes.multiple(element) == multiple
    assert words.serves(sizes) == said
    assert sizes.serves(multiple * 3, element)
    assert not sizes.serves(multiple + element, element)
    assert not sizes.serves(0, element)


def test_parts() -> None:
    assert [c.parts(6) for c in BY_TREES] == [6, 6, 1, 1, 1]


@pytest.mark.parametrize("n", [2, 3, 8, 16, 27, 64, 72, 1024])
def test_so_many_chunks_serve_the_smallest_size_of_each_rank_and_a_mebibyte(n: int) -> None:
    chunks = 1 << most_chunks(n).bit_length() - 1
    for style in ("fifo", "onesided"):
        sizes = Sizes(style, 1, chunks)  # type: ignore[arg-type]
        assert sizes.serves(1 << 20, 8)
        least = 1 << (64 * 1024 * n - 1).bit_length()
        assert all(sizes.serves(least << more, 8) for more in range(10))
