"""Groups of a parallel plan: a job's ranks are a grid, and a group differs in some dimensions only.

A rank's number is its place in the grid, written as digits of mixed base: the dimension that is
named first varies fastest. A group of the dimensions D holds the ranks that agree in all others;
in it they count by the digits of D, the first fastest, and groups count by the others' digits.

Jobs with experts have two grids over the same ranks (Megatron-LM): the dense one with tp, cp, dp,
pp, and the experts' with tensor, expert and data parallelism of their own (etp, ep, edp) and the
same pp. `mesh` of torch's DeviceMesh names the dimension that varies fastest last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from forestcoll.common.errors import UnsupportedError

DENSE = ("tp", "cp", "ep", "dp", "pp")
"""Megatron's words for dimensions."""
EXPERT = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
"""What is meant by them in the experts' grid; it has no cp, as the dense one has no ep."""


class Grid(NamedTuple):
    """Names and sizes of dimensions, the one that varies fastest first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes)

    def groups(self, dims: Collection[str]) -> list[tuple[int, ...]]:
        """The groups of ranks that differ in `dims` only: every rank is in one of them."""
        return [
            tuple(start + step for step in self._steps(dims, True))
            for start in self._steps(dims, False)
        ]

    def _steps(self, dims: Collection[str], among: bool) -> list[int]:
        """What combinations of the dimensions (not) `among` dims add to a rank's number."""
        steps, stride = [0], 1
        for name, size in zip(self.names, self.sizes, strict=True):
            if (name in dims) is among:
                steps = [more * stride + step for more in range(size) for step in steps]
            stride *= size
        return steps


class Parallelism(NamedTuple):
    """The grids of a job over the same ranks; `order` as the framework is told it."""

    grids: tuple[Grid, ...]
    order: str
    mesh: bool = False

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.grids[0].world

    def names(self) -> tuple[str, ...]:
        """Every dimension, with those of one rank."""
        return tuple(dict.fromkeys(name for grid in self.grids for name in grid.names))

    def groups(self, token: str) -> list[tuple[int, ...]]:
        """Groups of ranks of one dimension, or of several: "tp-dp".

        Raises UnsupportedError for dimensions that no grid has all of, and for one named twice.
        """
        dims = token.split("-")
        for name in dims:
            if name not in self.names():
                named = ", ".join(self.names())
                raise UnsupportedError(f"no dimension is called '{name[:40]}': there are {named}")
        for grid in self.grids:
            if len({*dims} & {*grid.names}) == len(dims):
                return grid.groups(dims)
        raise UnsupportedError(f"'{token[:60]}': no grid has all of these dimensions, each once")


def megatron(
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    dp: int = 1,
    order: str = "tp-cp-ep-dp-pp",
    expert: tuple[int, int] | None = None,
) -> Parallelism:
    """The grids of Megatron-LM. `expert`: tensor and expert parallelism of the experts.

    Raises UnsupportedError where the order leaves out a dimension, where experts do not divide the
    ranks, and where pipeline stages of the two grids would differ.
    """
    words = order.lower().split("-")
    if not set(words) <= set(DENSE) or len(set(words)) < len(words):
        raise UnsupportedError(f"order '{order[:60]}': it has each of {', '.join(DENSE)} once")
    dense = _grid(words, {"tp": tp, "cp": cp, "dp": dp, "pp": pp})
    if expert is None:
        return Parallelism((dense,), order)
    etp, ep = expert
    edp, rest = divmod(dense.world, etp * ep * pp)
    if rest:
        raise UnsupportedError(
            f"expert: {dense.world} ranks are no multiple of etp {etp} x ep {ep} x pp {pp}"
        )
    own = _grid(words, {"tp": etp, "ep": ep, "dp": edp, "pp": pp})
    early = words[-1] != "pp" and pp > 1 and edp != dp
    if early or own.groups({"pp"}) != dense.groups({"pp"}):
        raise UnsupportedError(
            f"order '{order}': the stages of experts (edp {edp}) would be others than those of "
            f"the rest (dp {dp}); an order that ends with pp keeps them the same"
        )
    return Parallelism((dense, Grid(tuple(EXPERT[name] for name in own.names), own.sizes)), order)


def _grid(words: Sequence[str], sizes: dict[str, int]) -> Grid:
    """The dimensions in the order of `words`; those of one rank may be left out there."""
    for name, size in sizes.items():
        if name not in words and size > 1:
            raise UnsupportedError(f"order '{'-'.join(words)}' leaves out {name}, of size {size}")
    names = tuple(dict.fromkeys(name for name in (*words, *sizes) if name in sizes))
    return Grid(names, tuple(sizes[name] for name in names))


def device_mesh(names: Sequence[str], sizes: Sequence[int]) -> Parallelism:
    """The grid of torch's `init_device_mesh`: the dimension named last varies fastest."""
    grid = Grid(tuple(reversed(names)), tuple(reversed(sizes)))
    return Parallelism((grid,), "-".join(names), True)
