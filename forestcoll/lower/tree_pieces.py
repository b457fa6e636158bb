"""Pieces of trees whose nodes have more neighbours than one thread block has channels.

A piece of a tree is some of its edges; every edge is in one. A rank's main piece is the one with
the edge to its parent (the root's is piece 0). Where a rank has too many children for its main
piece, further pieces take them, each in a thread block of its own; semaphores join the pieces at
that rank. Piece numbers grow from the root outwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from forestcoll.lower.layout import RankTree, from_next
from forestcoll.program.targets import Target

Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it
Apart = Literal["no", "inner", "all"]
"""Ranks of which every child is in a piece of its own: none, all but the root, all."""


def kind_of(rank: int, peer: int, boxes: Boxes) -> Kind:
    """Memory channels inside a box, port channels (a proxy, a network) between boxes."""
    return "memory" if boxes[rank] == boxes[peer] else "port"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one tree."""

    count: int
    main: tuple[int, ...]  # per rank
    children: tuple[dict[int, tuple[int, ...]], ...]  # per rank: piece -> its children there

    def members(self, piece: int) -> list[int]:
        """Ranks that have an edge in the piece (or all there is, where the tree has one piece)."""
        return [
            rank
            for rank, main in enumerate(self.main)
            if main == piece or piece in self.children[rank]
        ]

    def further(self, rank: int) -> list[int]:
        """The pieces at `rank` besides its main one."""
        return sorted(p for p in self.children[rank] if p != self.main[rank])

    def chain(self, rank: int) -> list[int]:
        """The pieces at `rank` in the order in which a sum goes through them: the main one last."""
        return [*reversed(self.further(rank)), self.main[rank]]


def cut(tree: RankTree, boxes: Boxes, target: Target, apart: Apart = "no") -> Pieces:
    """One piece, unless a rank has more neighbours of one kind than a thread block has channels.

    Such a rank keeps as many children as one operation serves in its main piece, and as many in
    each further one: the thread blocks then have room for other trees as well. `apart`: whose
    children are in a piece each.
    """
    most = max(1, min(target.peers, target.channels // 2))
    children = tree.children()
    main = [0] * len(children)
    split: list[dict[int, tuple[int, ...]]] = [{} for _ in children]
    count = 1
    for rank in tree.order:
        peers = children[rank] + ([tree.parent[rank]] if rank != tree.root else [])
        kinds = [kind_of(rank, p, boxes) for p in peers]
        wide = max(map(kinds.count, KINDS)) > target.channels
        groups: dict[int, list[int]] = defaultdict(list)
        if apart == "all" or (apart == "inner" and rank != tree.root):
            groups.update((place, [c]) for place, c in enumerate(from_next(children[rank], rank)))
        for kind in () if groups else KINDS:
            left = (c for c in from_next(children[rank], rank) if kind_of(rank, c, boxes) == kind)
            place = 0
            while some := list(islice(left, most if wide else len(peers))):
                groups[place] += some
                place += 1
        for place, group in groups.items():
            piece = main[rank] if place == 0 else count + place - 1
            split[rank][piece] = tuple(from_next(group, rank))
            for child in group:
                main[child] = piece
        count += max(0, len(groups) - 1)
    return Pieces(count, tuple(main), tuple(split))
