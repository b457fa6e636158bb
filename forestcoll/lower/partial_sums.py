"""Partial sums of reduce trees: where they lie, and how much scratch that takes.

A peer in the same box reads a partial sum where it lies; only what comes from another box through a
port needs a place at its receiver. A rank keeps its own partial sum

    at the root                      in the output: it is the result
    of an allreduce                  in the output: the result goes there later, and in place the
                                     own contribution is used up in the very step that writes it
    of a reduce or reduce-scatter    in scratch: the output is too small, or nobody's but the root's
    without children                 nowhere: it is the input itself
"""

from __future__ import annotations

from collections.abc import Sequence

from forestcoll.lower.layout import Layout, RankTree, from_next
from forestcoll.lower.tree_pieces import Boxes, Pieces, kind_of
from forestcoll.program import Buffer, Ref


class Places:
    """Refs of all partial sums; `scratch` counts the chunks that each rank needs for them."""

    def __init__(self, layout: Layout, pieces: Sequence[Pieces], boxes: Boxes) -> None:
        self._layout = layout
        self.scratch = [0] * layout.n
        self.children = [
            [from_next(found, rank) for rank, found in enumerate(tree.children())]
            for tree in layout.trees
        ]
        self._slots: dict[tuple[int, int], Ref] = {}  # (tree, child in another box): at its parent
        self._totals: dict[tuple[int, int], Ref] = {}
        self._lent: dict[tuple[int, int], int] = {}  # (tree, rank): the child whose place it uses
        for number, tree in enumerate(layout.trees):
            if tree.phase == "reduce":
                self._place(number, tree, pieces[number], boxes)

    def slot(self, number: int, child: int) -> Ref:
        """Where the parent of `child`, in another box, gets its partial sum."""
        return self._slots[number, child]

    def total(self, number: int, rank: int) -> Ref:
        """Where `rank`, which has children, adds up its partial sum."""
        return self._totals[number, rank]

    def partial(self, number: int, rank: int) -> Ref:
        """Where the partial sum of `rank` lies when it is complete."""
        found = self._totals.get((number, rank))
        if found is not None:
            return found
        tree = self._layout.trees[number]
        return self._layout.input(rank, tree.first, tree.count)

    def lent(self, number: int, rank: int) -> bool:
        """Whether the partial sum of `rank` lies where a child of another box put its own."""
        return (number, rank) in self._lent

    def lends(self, number: int, child: int) -> bool:
        """Whether its parent adds up where `child`, of another box, put its partial sum."""
        parent = self._layout.trees[number].parent[child]
        return self._lent.get((number, parent)) == child

    def _place(self, number: int, tree: RankTree, pieces: Pieces, boxes: Boxes) -> None:
        layout, children = self._layout, self.children[number]
        for rank in tree.order:
            far = [c for c in children[rank] if kind_of(rank, c, boxes) == "port"]
            for child in far:
                self._slots[number, child] = self._scratch(rank, tree.count)
            if not children[rank]:
                continue
            if rank == tree.root or layout.collective.two_phases:
                self._totals[number, rank] = layout.output(rank, tree.first, tree.count)
                continue
            # what is added up first may be overwritten by the sum
            first = pieces.children[rank].get(pieces.chain(rank)[0], ())
            lender = next((c for c in first if c in far), None)
            if lender is None:
                self._totals[number, rank] = self._scratch(rank, tree.count)
            else:
                self._totals[number, rank] = self._slots[number, lender]
                self._lent[number, rank] = lender

    def _scratch(self, rank: int, count: int) -> Ref:
        offset = self.scratch[rank]
        self.scratch[rank] += count
        return Ref(Buffer.SCRATCH, offset, count)
