"""What every rank sends, receives and adds, in bytes, and what has to be done before.

Made of a plan's dataflow (verify/dataflow.py: every move from rank to rank and every sum that the
result needs, proven right) or of the trees of a forest. Copies inside a rank are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import file_name
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.view import Subject
from forestcoll.verify.dataflow import Value, dataflow

MOST_ACTIONS = 20_000_000


class Action(NamedTuple):
    """One thing that a rank does; actions are numbered by their places in the rank's list.

    `after`: earlier actions of the rank whose data this one needs. `follows`: the earlier send to
    the same rank, which is to be done first; -1: none. `tag`: of a message, the same at both ends
    and of no other; of a sum -1, as is `peer`.
    """

    kind: Literal["send", "recv", "sum"]
    bytes: int
    peer: int = -1
    tag: int = -1
    after: tuple[int, ...] = ()
    follows: int = -1


class Actions(NamedTuple):
    """`ranks[r]` lists what rank r does; `messages`: how many are sent in all."""

    collective: Collective
    ranks: list[list[Action]]
    messages: int


def actions(subject: Subject, settings: Settings) -> Actions:
    """What every rank of a plan or forest does for `settings.size` bytes.

    Raises PlanError or ForestError where it is wrong, UnsupportedError where messages would have
    less than a byte or there would be too many.
    """
    if subject.program is not None:
        flow = dataflow(subject.program)
        collective, n = flow.collective, flow.ranks
        values, units = flow.values, flow.units
    else:
        assert subject.forest is not None
        forest = subject.forest.expand()
        collective, n = forest.collective, forest.n
        values, units = tuple(_forest_values(forest)), forest.total
    count = len(values) * settings.pieces * 2
    if count > MOST_ACTIONS:
        raise UnsupportedError(
            f"{subject.name}: some {count:,} actions, more than {MOST_ACTIONS:,}; take fewer pieces"
        )
    shortest = min((v.length for v in values if v.made_from), default=units)
    if settings.size * shortest < units * settings.pieces:
        least = -(-units * settings.pieces // shortest)
        raise UnsupportedError(
            f"{subject.name}: of {settings.size} bytes, messages would have less than one; take "
            f"--size {least} or more" + ", or fewer --pieces" * (settings.pieces > 1)
        )
    ranks, messages = _act(values, units, n, settings)
    return Actions(collective, ranks, messages)


def _act(
    values: Sequence[Value], units: int, n: int, settings: Settings
) -> tuple[list[list[Action]], int]:
    """What each of n ranks does to make the values; how many messages that takes."""
    ranks: list[list[Action]] = [[] for _ in range(n)]
    last: dict[tuple[int, int], int] = {}  # the last send from one rank to another
    tag = 0

    def add(rank: int, action: Action) -> int:
        ranks[rank].append(action)
        return len(ranks[rank]) - 1

    depth: list[int] = []  # what needs little goes first, so that nothing waits behind it
    for value in values:
        depth.append(1 + max((depth[k] for k in value.made_from), default=0))
    order = sorted(range(len(values)), key=lambda k: (depth[k], k))
    pieces = settings.pieces
    for piece in range(pieces):
        maker = [-1] * len(values)  # the action that makes it, -1: an input
        for k in order:
            value = values[k]
            ends = (value.start * pieces + value.length * (piece + i) for i in (0, 1))
            low, high = (settings.size * end // (units * pieces) for end in ends)
            after = tuple(maker[s] for s in value.made_from if maker[s] >= 0)
            if len(value.made_from) == 1:
                pair = values[value.made_from[0]].rank, value.rank
                follows = last.get(pair, -1) if settings.order == "connection" else -1
                send = Action("send", high - low, pair[1], tag, after, follows)
                last[pair] = add(pair[0], send)
                maker[k] = add(pair[1], Action("recv", high - low, pair[0], tag))
                tag += 1
            elif value.made_from:
                maker[k] = add(value.rank, Action("sum", high - low, after=after))
    return ranks, tag


# --- forests --------------------------------------------------------------------------------------


def _forest_values(forest: Forest) -> Iterator[Value]:
    """The values that the trees make, in units of 1 / forest.total of the data.

    Of an allreduce a root's part is cut wherever a tree of either phase begins or ends, so that
    each piece is reduced by one tree and broadcast by one.
    """
    number = forest.graph.rank_of
    trees: dict[int, dict[str, list[Tree]]] = defaultdict(lambda: {"reduce": [], "broadcast": []})
    for tree in forest.trees:
        trees[number[tree.root]][tree.phase].append(tree)
    value = 0
    base = 0
    for root in sorted(trees):
        ranges = [*_ranges(trees[root]["reduce"], base), *_ranges(trees[root]["broadcast"], base)]
        borders = sorted({border for low, high, _ in ranges for border in (low, high)})
        for low, high in pairwise(borders):
            over = [tree for a, b, tree in ranges if a <= low and high <= b]
            values = list(_tree_values(over, number, low, high - low, value))
            value += len(values)
            yield from values
        base = borders[-1]


def _ranges(trees: Sequence[Tree], base: int) -> Iterator[tuple[int, int, Tree]]:
    for tree in trees:
        yield base, base + tree.weight, tree
        base += tree.weight


def _tree_values(
    trees: Sequence[Tree], number: dict[int, int], start: int, length: int, made: int
) -> Iterator[Value]:
    """The values of one piece, over a reduce tree, a broadcast tree, or one after the other."""
    holds: dict[int, int] = {}  # node: the value that it has
    whole = len(number)
    counted: dict[int, int] = {}  # value: contributions in it

    def value(node: int, made_from: tuple[int, ...], contributions: int) -> Value:
        nonlocal made
        counted[made] = contributions
        made += 1
        return Value(number[node], start, length, made_from, contributions == whole)

    for tree in trees:
        sources = number if tree.phase == "reduce" else () if holds else (tree.root,)
        for node in sources:
            holds[node] = made
            yield value(node, (), 1)
        for path in tree.edges:
            source, target = holds[path[0]], path[-1]
            moved = made
            yield value(target, (source,), counted[source])
            if tree.phase == "reduce":
                own = holds[target]
                total = made
                yield value(target, (own, moved), counted[own] + counted[source])
                moved = total
            holds[target] = moved


def sum_time(action: Action, settings: Settings) -> float:
    """Nanoseconds that a sum takes."""
    return 0.0 if settings.reduce_rate is None else action.bytes / settings.reduce_rate


# --- GOAL -----------------------------------------------------------------------------------------


def goal(subject: Subject, settings: Settings) -> Files:
    """What every rank sends, receives and computes, as text, for LogGOPSim and ATLAHS.

    Format: T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language" (ICPP 2009),
    as LogGOPSim's and ATLAHS' schedule compilers read it.
    """
    done = actions(subject, settings)
    lines = [f"num_ranks {len(done.ranks)}", ""]
    for rank, own in enumerate(done.ranks):
        lines += [f"rank {rank} {{", *_lines(own, settings), "}", ""]
    return {f"{file_name(f'{subject.name}.{done.collective}')}.goal": "\n".join(lines).encode()}


def _lines(own: Sequence[Action], settings: Settings) -> Iterator[str]:
    for index, action in enumerate(own):
        way = "to" if action.kind == "send" else "from"
        what = f"{action.kind} {action.bytes}b {way} {action.peer} tag {action.tag}"
        if action.kind == "sum":
            what = f"calc {round(sum_time(action, settings))}"
        yield f"l{index + 1}: {what}"
        for needed in (*action.after, action.follows):
            if needed >= 0:
                yield f"l{index + 1} requires l{needed + 1}"
