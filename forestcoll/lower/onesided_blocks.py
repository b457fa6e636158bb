"""Thread blocks of onesided programs: which groups of transfers share one.

Groups are dealt out to classes: a class is one or two thread blocks (halves) at every rank.

What goes to a class together is a unit: a group of a tree's transfers, or the main groups of a
reduce and a broadcast tree of a root that the root begins where it ends the other.

Why nothing gets stuck, whoever shares a thread block: each does its pipelines in the order of their
keys, the same at every rank, and data flows along it. The first unfinished tree can always go on.

Where a rank only has handshakes in a class (its memory is read or written by others), it needs no
thread block of its own for that: one that has room does them, so that fewer processors spin.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.lower.handshakes import Boxes, bits_of, kind_of, near_masks
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Limits
from forestcoll.lower.pipelines import Pipelines, Place, Work
from forestcoll.program import Channel
from forestcoll.program.targets import Target

BUSY = 32
"""Thread blocks of a half at work at a rank, where there are as many trees.

So many channels NCCL has at most; more would take processors from computation.
"""
Class = dict[Place, Work]
"""What the units of a class, or one of them, do at every rank and half that takes part."""
Block = tuple[int, int]  # class, half


class Unit(NamedTuple):
    """Groups that must share a class; `weight`: the chunks of their trees."""

    root: int
    weight: int
    works: Class


class Room:
    """A target's limits for thread blocks, over sets of lanes and remote buffers."""

    def __init__(self, boxes: Boxes, target: Target) -> None:
        self.target = target
        self.near = near_masks(boxes)  # per rank the lanes to its own box
        self._buffers = near_masks(boxes, 3)

    def steps(self, rank: int, work: Work) -> int:
        """All operations of a thread block."""
        return work.steps + work.shakes.steps(self.near[rank], self.target.peers)

    def obstacle(self, unit: Class, others: Class) -> tuple[int, str, int, int] | None:
        """The rank, limit, figure and bound that keep the unit out of a class, or None."""
        target = self.target
        for place, own in unit.items():
            rank, work = place[0], own.join(others[place]) if place in others else own
            steps = self.steps(rank, work)
            if steps > target.steps:
                return rank, "operations in one thread block", steps, target.steps
            for mask, near, most, what in (
                (work.lanes, self.near[rank], target.channels, "channels of one kind"),
                (work.remote, self._buffers[rank], target.remote_buffers, "remote buffers"),
            ):
                inside = (mask & near).bit_count()
                figure = max(inside, mask.bit_count() - inside)
                if figure > most:
                    return rank, f"{what} in one thread block", figure, most
        return None


def units(layout: Layout, pipelines: Pipelines, room: Room) -> Iterator[Unit]:
    """Yields all groups of all trees, in units, root by root."""
    trees = layout.trees

    def unit(*members: tuple[int, int]) -> Unit:
        works: Class = {}
        for number, group in members:
            _take(works, pipelines.works(number, group))
        weight = sum(trees[number].count for number, _ in members)
        return Unit(trees[members[0][0]].root, weight, works)

    for together in overlapping([(tree.first, tree.count) for tree in trees]):
        fused = None
        alike = len({(trees[i].first, trees[i].count) for i in together}) == 1
        if len(together) == 2 and alike:
            up, down = sorted(together, key=lambda i: trees[i].phase, reverse=True)
            if pipelines.fuse(up, down):
                fused = unit((up, 0), (down, 0))
                if room.obstacle(fused.works, {}) is not None:
                    pipelines.part_ways(up)
                    fused = None
            if fused is None:
                pipelines.hand_over(up, down)
        elif len(together) > 1:
            pipelines.queue(together)
        yield from [fused] if fused else [unit((number, 0)) for number in together]
        for number in together:
            for group in range(1, 1 + max(pipelines.groups[number].main)):
                yield unit((number, group))


def overlapping(places: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Groups of those whose places (first, count) have chunks in common, if through others."""
    groups: list[list[int]] = []
    end = -1
    for number in sorted(range(len(places)), key=lambda i: places[i][0]):
        first, count = places[number]
        if first >= end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, first + count)
    return groups


def _take(works: Class, more: Iterable[tuple[Place, Work]]) -> None:
    for place, work in more:
        works[place] = works[place].join(work) if place in works else work


# --- classes


def deal(
    wanted: Sequence[Unit], n: int, room: Room, busy: int, limits: Limits
) -> tuple[list[Class], list[list[list[Block]]]]:
    """Returns the units dealt out to classes, the lightest first, and each rank's thread blocks.

    There are as many classes as keep `busy` thread blocks of a half at work at the rank with the
    most to do, more where those cannot hold the units, fewer where some rank then has too many
    thread blocks. Raises PlanError where none of this is enough.
    """
    limit, most = limits.target.thread_blocks, len(wanted)
    load = Counter(place for unit in wanted for place, work in unit.works.items() if work.pipes)
    enough = max(1, most * busy // max(busy, *load.values()))
    number = min(most, enough)
    while True:
        classes: list[Class] = [{} for _ in range(number)]
        order = [(0, j) for j in range(number)]
        stuck = next((u for u in wanted if not _place(u, classes, order, room)), None)
        if stuck is not None:
            if number == most:
                raise _refusal(stuck, len(wanted), limits, room)
            number = min(most, number + max(1, number // 4))
            continue
        classes = [works for works in classes if works]
        blocks = [_thread_blocks(classes, rank, room) for rank in range(n)]
        longest = max(map(len, blocks))
        if longest <= limit:
            return classes, blocks
        if len(classes) == 1:
            raise _refusal(wanted[0], len(wanted), limits, room)
        # few classes have few thread blocks, in proportion
        most = max(1, min(len(classes) - 1, len(classes) * limit // longest))
        number = min(most, enough)


def _place(unit: Unit, classes: list[Class], order: list[tuple[int, int]], room: Room) -> bool:
    """Whether some class has room for the unit, which it then holds.

    `order`: a heap of (weight, number) of all classes, the lightest on top.
    """
    passed: list[tuple[int, int]] = []
    placed = False
    while order and not placed:
        weight, number = heappop(order)
        placed = room.obstacle(unit.works, classes[number]) is None
        if placed:
            _take(classes[number], unit.works.items())
            weight += unit.weight
        passed.append((weight, number))
    for entry in passed:
        heappush(order, entry)
    return placed


def _refusal(stuck: Unit, wanted: int, limits: Limits, room: Room) -> PlanError:
    target = limits.target
    alone = room.obstacle(stuck.works, {})
    if alone is not None:
        rank, what, figure, limit = alone
        where = f"{limits.rank(rank)} in a tree of root {stuck.root}"
        return limits.refuse(where, what, figure, limit)
    return PlanError(
        f"{limits.title}: {wanted} trees need more than {target.thread_blocks} thread blocks "
        f"of {target.steps} operations and {target.channels} channels of a kind, all that "
        f"{target.name} holds; {limits.hint}"
    )


def _thread_blocks(classes: Sequence[Class], rank: int, room: Room) -> list[list[Block]]:
    """The thread blocks of a rank, busy ones first; each class and half is in one of them."""
    target, near = room.target, room.near[rank]
    busy: list[tuple[list[Block], int, int, int]] = []  # what it does, operations, channels
    idle: list[tuple[list[Block], int, int, int]] = []
    for half in (0, 1):
        for number, works in enumerate(classes):
            work = works.get((rank, half))
            if work is not None:
                inside = (work.lanes & near).bit_count()
                outside = work.lanes.bit_count() - inside
                alone = [(number, half)], room.steps(rank, work), inside, outside
                (busy if work.pipes else idle).append(alone)
    for blocks, steps, inside, outside in idle:
        most = target.steps - steps, target.channels - inside, target.channels - outside
        for place, (others, taken, memory, ports) in enumerate(busy):
            if taken <= most[0] and memory <= most[1] and ports <= most[2]:
                both = others + blocks, taken + steps, memory + inside, ports + outside
                busy[place] = both
                break
        else:
            busy.append((blocks, steps, inside, outside))
    return [blocks for blocks, *_ in busy]


Channels = dict[tuple[int, Block, int], Channel]


def channels_of(
    classes: Sequence[Class], blocks: Sequence[Sequence[Sequence[Block]]], boxes: Boxes
) -> Channels:
    """Returns the channel of each (rank, class and half, lane).

    The n-th from i to j is the n-th from j to i.
    """
    host = {  # rank, class, half -> its thread block
        (rank, *block): number
        for rank, own in enumerate(blocks)
        for number, members in enumerate(own)
        for block in members
    }
    # of each lane its two ranks and their thread blocks, the lower rank first
    ends: dict[tuple[int, Block, int], tuple[tuple[int, int], tuple[int, int]]] = {}
    pairs: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
    for number, works in enumerate(classes):
        for (rank, half), work in works.items():
            own, block = host[rank, number, half], (number, half)
            for lane in bits_of(work.lanes):
                peer = lane >> 1
                other = host[peer, number, lane & 1]
                pair, way = (rank, peer), (own, other)
                if peer < rank:
                    pair, way = (peer, rank), (other, own)
                ends[rank, block, lane] = pair, way
                pairs[pair].add(way)
    index = {pair: {way: k for k, way in enumerate(sorted(ways))} for pair, ways in pairs.items()}
    return {
        (rank, block, lane): Channel(lane >> 1, kind_of(rank, lane >> 1, boxes), index[pair][way])
        for (rank, block, lane), (pair, way) in ends.items()
    }
