"""Dealing pieces of trees out to classes: class j is what one thread block does at every rank.

What shares a thread block is a unit: a piece of a tree, or the main pieces of a root's reduce and
broadcast trees over the same chunks, whose order then needs nothing more. Where a thread block
cannot hold all of those, semaphores of the root keep every broadcast behind its sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from forestcoll.errors import PlanError
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Budget
from forestcoll.lower.pieces import KINDS, Boxes, Pieces, kind_of
from forestcoll.lower.pipelines import NOP, Emitter, sync
from forestcoll.program import Buffer, Instruction, Op
from forestcoll.targets import Target

CLASSES = 32
"""Classes to start with, if there are that many units: as many as NCCL has channels."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank does for one piece, and what that takes of a thread block's limits.

    Parts are done in the order of their keys, which is the order in which data flows.
    """

    key: tuple[bool, int, int]  # broadcast after reduce, tree, piece (reduce: from the leaves)
    before: tuple[Instruction, ...]  # the pipeline
    body: tuple[Instruction, ...]
    after: tuple[Instruction, ...]
    chunks: int
    peers: frozenset[int]
    remote: frozenset[tuple[int, Buffer]]

    @property
    def steps(self) -> int:
        """Operations, the pipeline itself included."""
        return len(self.before) + 1 + len(self.body) + len(self.after)


@dataclass(frozen=True, slots=True)
class Unit:
    """Pieces that must share a thread block: per rank that takes part its parts."""

    root: int
    weight: int
    parts: dict[int, tuple[Part, ...]]


class Class:
    """Units that share a thread block at every rank, and what they take there so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight = 0
        self.parts: dict[int, list[Part]] = defaultdict(list)
        self.peers: dict[int, set[int]] = defaultdict(set)
        self.remote: dict[int, set[tuple[int, Buffer]]] = defaultdict(set)
        self.steps: dict[int, int] = defaultdict(int)

    def add(self, unit: Unit) -> None:
        """Takes the unit in."""
        self.weight += unit.weight
        for rank, parts in unit.parts.items():
            for part in parts:
                self.parts[rank].append(part)
                self.peers[rank] |= part.peers
                self.remote[rank] |= part.remote
                self.steps[rank] += part.steps


def units(
    layout: Layout, pieces: Sequence[Pieces], emitter: Emitter, target: Target, boxes: Boxes
) -> Iterator[Unit]:
    """All pieces of all trees, in units, root by root."""
    for together in _overlapping(layout):
        main = _unit(layout, pieces, emitter, [(number, 0) for number in together])
        if len(together) > 1 and _obstacle(main, Class(0), target, boxes):
            emitter.join(together)
            for number in together:
                yield _unit(layout, pieces, emitter, [(number, 0)])
        else:
            yield main
        for number in together:
            for piece in range(1, pieces[number].count):
                yield _unit(layout, pieces, emitter, [(number, piece)])


def deal(wanted: list[Unit], budget: Budget, boxes: Boxes) -> list[Class]:
    """The units dealt out, the lightest class first; more classes where few cannot hold them.

    Raises PlanError where a unit fits no thread block, or all of them too few.
    """
    target = budget.target
    most = min(len(wanted), target.thread_blocks)
    number = min(most, CLASSES)
    while True:
        classes = [Class(j) for j in range(number)]
        stuck = next((u for u in wanted if not _place(u, classes, target, boxes)), None)
        if stuck is None:
            return [c for c in classes if c.parts]
        if number == most:
            _refuse(stuck, wanted, most, budget, boxes)
        number = min(most, number + max(1, number // 4))


def prologue(rank: int, peers: Iterable[int], boxes: Boxes, target: Target) -> list[Instruction]:
    """My launch has begun: my output and scratch may be written. Then the same of every peer."""
    peers = sorted(peers)
    shake = [
        *sync(Op.RELAXED_SIGNAL, rank, peers, boxes, target),
        *sync(Op.RELAXED_WAIT, rank, peers, boxes, target),
    ]
    return [*shake, NOP] if shake else []


def epilogue(rank: int, peers: Iterable[int], boxes: Boxes, target: Target) -> list[Instruction]:
    """What proxies still read is free once the peers have all; other puts are done by now."""
    far = [p for p in sorted(peers) if kind_of(rank, p, boxes) == "port"]
    if not far:
        return []
    # the barrier: every thread has seen its own waits end before one of them says so
    return [
        NOP,
        *sync(Op.SIGNAL, rank, far, boxes, target),
        *sync(Op.WAIT, rank, far, boxes, target),
    ]


def shakes(rank: int, peers: Iterable[int], boxes: Boxes, target: Target) -> int:
    """How many operations prologue and epilogue are together, without writing them."""
    kinds = [kind_of(rank, p, boxes) for p in peers]
    near, far = (-(-kinds.count(kind) // target.peers) for kind in ("memory", "port"))
    return (2 * (near + far) + 1 if kinds else 0) + (2 * far + 1 if far else 0)


def _overlapping(layout: Layout) -> Iterator[list[int]]:
    """Groups of trees with chunks in common, directly or through others."""
    order = sorted(range(len(layout.trees)), key=lambda i: layout.trees[i].first)
    group: list[int] = []
    end = 0
    for number in order:
        tree = layout.trees[number]
        if group and tree.first >= end:
            yield group
            group = []
        group.append(number)
        end = max(end, tree.first + tree.count)
    if group:
        yield group


def _unit(
    layout: Layout, pieces: Sequence[Pieces], emitter: Emitter, members: list[tuple[int, int]]
) -> Unit:
    parts: dict[int, list[Part]] = defaultdict(list)
    for number, piece in members:
        tree = layout.trees[number]
        down = tree.phase == "broadcast"
        for rank in pieces[number].members(piece):
            body = emitter.body(number, piece, rank)
            parts[rank].append(
                Part(
                    key=(down, number, piece if down else -piece),
                    before=emitter.before(number, rank) if piece == 0 else (),
                    body=body,
                    after=emitter.after(number, rank) if piece == 0 else (),
                    chunks=tree.count,
                    peers=frozenset(peer for i in body for peer in i.channels),
                    remote=frozenset(
                        (r.rank, r.buffer) for i in body for r in i.dst if r.rank is not None
                    ),
                )
            )
    return Unit(
        root=layout.trees[members[0][0]].root,
        weight=sum(layout.trees[number].count for number, _ in members),
        parts={rank: tuple(found) for rank, found in parts.items()},
    )


def _place(unit: Unit, classes: list[Class], target: Target, boxes: Boxes) -> bool:
    """Whether some class has room for the unit, which it then holds."""
    for candidate in sorted(classes, key=lambda c: (c.weight, c.number)):
        if _obstacle(unit, candidate, target, boxes) is None:
            candidate.add(unit)
            return True
    return False


def _obstacle(
    unit: Unit, candidate: Class, target: Target, boxes: Boxes
) -> tuple[int, str, int, int] | None:
    """The rank, limit, figure and bound that keep the unit out of the class, or None."""
    for rank, parts in unit.parts.items():
        peers = candidate.peers[rank].union(*(p.peers for p in parts))
        remote = candidate.remote[rank].union(*(p.remote for p in parts))
        steps = candidate.steps[rank] + sum(p.steps for p in parts)
        steps += 1  # one barrier between sums and broadcasts
        steps += shakes(rank, peers, boxes, target)
        if steps > target.steps:
            return rank, "operations in one thread block", steps, target.steps
        for what, held, limit in (
            ("channels of one kind in one thread block", peers, target.channels),
            (
                "remote buffers in one thread block",
                [peer for peer, _ in remote],
                target.remote_buffers,
            ),
        ):
            kinds = [kind_of(rank, peer, boxes) for peer in held]
            figure = max(map(kinds.count, KINDS))
            if figure > limit:
                return rank, what, figure, limit
    return None


def _refuse(stuck: Unit, wanted: list[Unit], most: int, budget: Budget, boxes: Boxes) -> NoReturn:
    target = budget.target
    alone = _obstacle(stuck, Class(0), target, boxes)
    if alone is not None:
        rank, what, figure, limit = alone
        where = f"{budget.rank(rank)} in a tree of root {stuck.root}"
        raise budget.refuse(where, what, figure, limit)
    raise PlanError(
        f"{budget.title}: {len(wanted)} trees need more than {most} thread blocks of "
        f"{target.steps} operations and {target.channels} channels of a kind, all that "
        f"{target.name} holds; {budget.hint}"
    )
