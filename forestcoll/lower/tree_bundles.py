"""Trees that go through their pipelines in step: one loop, one wait and one signal for several.

Trees of one root, phase and number of chunks are bundled where they would share a thread block
anyway. Every rank does all of them slice by slice: waits once for all that it needs, moves all
blocks, up to eight in one operation, then signals every peer once.

Nobody waits in a circle, since there is an order of all ranks in which whoever waits, in any of the
trees, comes after the one it waits for: `orderly` makes sure. Trees that are the same between all
ranks need no bundle: layout.py makes one of them, whose neighbouring chunks are one operand. Other
trees cannot share an operand, be their chunks neighbours: a pipeline moves exactly its chunks, and
where the trees differ, ranks would have to signal in other rounds than their peers wait in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from forestcoll.lower.handshakes import NOP, sync
from forestcoll.lower.layout import RankTree
from forestcoll.lower.piece_work import Part
from forestcoll.lower.tree_pieces import Boxes
from forestcoll.program import Instruction, Op, Ref
from forestcoll.program.targets import Target

T = TypeVar("T")
_JOINED = frozenset({Op.WAIT, Op.SIGNAL, Op.PUT, Op.PUT_SIGNAL, Op.ACQUIRE, Op.RELEASE})


def orderly(trees: Sequence[RankTree], boxes: Boxes) -> bool:
    """Whether no rank waits, over any trees, for one that waits for it."""
    after: dict[int, set[int]] = defaultdict(set)
    for tree in trees:
        inner = set(tree.parent)
        for child, parent in enumerate(tree.parent):
            if parent < 0 or (child not in inner and boxes[child] == boxes[parent]):
                continue  # a leaf of the same box is told at the end
            first, then = (child, parent) if tree.phase == "reduce" else (parent, child)
            after[first].add(then)
    waits = {rank: 0 for ranks in after.values() for rank in ranks}
    for ranks in after.values():
        for rank in ranks:
            waits[rank] += 1
    ready = [rank for rank in after if rank not in waits]
    for rank in ready:
        for then in after.get(rank, ()):
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
    return not any(waits.values())


def merged(parts: Sequence[Part], near: int, target: Target) -> Part:
    """The parts of one rank in the trees of a bundle as one; `near`: its lanes to its own box."""
    if len(parts) == 1:
        return parts[0]
    stages = [_stages(part.body) for part in parts if part.body]
    told: set[int] = set()  # from the last stage backwards: what is said at last counts for all
    body: list[Instruction] = []
    for column in reversed([*zip_longest(*stages, fillvalue=())]):
        stage = [*_joined([i for some in column for i in some], near, told, target.peers)]
        body = [*stage, *([NOP] * bool(body)), *body]
    first = min(parts, key=lambda part: part.key)
    shakes, lanes, remote = first.shakes, first.lanes, first.remote
    for part in parts:
        shakes, lanes, remote = shakes | part.shakes, lanes | part.lanes, remote | part.remote
    return replace(first, body=tuple(body), shakes=shakes, lanes=lanes, remote=remote)


def _stages(body: Iterable[Instruction]) -> list[list[Instruction]]:
    """The body cut at its barriers."""
    stages: list[list[Instruction]] = [[]]
    for i in body:
        if i.op is Op.NOP:
            stages.append([])
        else:
            stages[-1].append(i)
    return stages


def _joined(
    stage: Sequence[Instruction], near: int, told: set[int], most: int
) -> Iterator[Instruction]:
    """What several trees do between two barriers, in as few operations as can be.

    A peer in the same box is signalled once in all (`told` are those that already are, later), and
    waited for once. Through ports each put has its own signal, and each signal its wait.
    """

    def inside(op: Op) -> dict[int, None]:
        return dict.fromkeys(x for i in stage if i.op is op for x in i.channels if near >> x & 1)

    def outside(op: Op) -> list[int]:
        return [x for i in stage if i.op is op for x in i.channels if not near >> x & 1]

    said = [x for x in inside(Op.SIGNAL) if x not in told]
    told.update(said)
    yield from sync(Op.SIGNAL, said, near, most)
    yield from sync(Op.WAIT, inside(Op.WAIT), near, most)
    for lanes in _different(outside(Op.WAIT), lambda x: x):
        yield from sync(Op.WAIT, lanes, near, most)
    puts = [m for i in stage if i.op is Op.PUT_SIGNAL for m in _moves(i)]
    for some in _different(puts, lambda m: m[2]):
        yield from _put(Op.PUT_SIGNAL, some, most)
    written = [m for i in stage if i.op is Op.PUT for m in _moves(i)]
    for buffer in dict.fromkeys(m[0].buffer for m in written):
        yield from _put(Op.PUT, [m for m in written if m[0].buffer == buffer], most)
    yield from (i for i in stage if i.op not in _JOINED)
    for op in (Op.ACQUIRE, Op.RELEASE):
        yield from (i for i in stage if i.op is op)


def _moves(i: Instruction) -> Iterator[tuple[Ref, Ref, int]]:
    """(source, destination, lane) of all that a put moves."""
    sources = i.src if len(i.src) > 1 else i.src * len(i.dst)
    return zip(sources, i.dst, i.channels, strict=True)


def _put(op: Op, moves: Sequence[tuple[Ref, Ref, int]], most: int) -> Iterator[Instruction]:
    for low in range(0, len(moves), most):
        sources, to, lanes = zip(*moves[low : low + most], strict=True)
        yield Instruction(op, sources[:1] if len({*sources}) == 1 else sources, to, channels=lanes)


def _different(items: Iterable[T], key: Callable[[T], int]) -> list[list[T]]:
    """The items in order, dealt out to lists of which none has two with one key."""
    lists: list[list[T]] = []
    seen: dict[int, int] = defaultdict(int)
    for item in items:
        place = seen[key(item)]
        seen[key(item)] += 1
        if place == len(lists):
            lists.append([])
        lists[place].append(item)
    return lists
