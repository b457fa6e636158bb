"""What every rank sends, receives and adds, in bytes, and what has to be done before.

Made of a plan's dataflow (verify/dataflow.py: every move from rank to rank and every sum that the
result needs, proven right) or of the trees of a forest. Copies inside a rank are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import file_name
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.export.protobuf import data, number, text, varint
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

    return Actions(collective, ranks, tag)


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
        lines.append(f"rank {rank} {{")
        for index, action in enumerate(own):
            way = "to" if action.kind == "send" else "from"
            what = f"{action.kind} {action.bytes}b {way} {action.peer} tag {action.tag}"
            if action.kind == "sum":
                what = f"calc {round(sum_time(action, settings))}"
            lines.append(f"l{index + 1}: {what}")
            needed = (k for k in (*action.after, action.follows) if k >= 0)
            lines += [f"l{index + 1} requires l{k + 1}" for k in needed]
        lines += ["}", ""]
    return {f"{file_name(f'{subject.name}.{done.collective}')}.goal": "\n".join(lines).encode()}


# --- Chakra ---------------------------------------------------------------------------------------


SCHEMA = "0.0.4"
COMP, SEND, RECV, COLL = 4, 5, 6, 7
"""NodeType."""
CALLS = {
    "allreduce": (0, "all-reduce"),
    "reduce": (1, None),
    "allgather": (2, "all-gather"),
    "broadcast": (5, None),
    "alltoall": (6, "all-to-all"),
    "reduce-scatter": (7, "reduce-scatter"),
}
"""CollectiveCommType, and what ASTRA-sim's settings call those that take a schedule; else None."""
INT32, INT64, UINT64, BOOL = 7, 9, 13, 27
"""Fields of AttributeProto, by type: readers look for each attribute in one of them."""


def chakra(subject: Subject, settings: Settings) -> Files:
    """Execution traces: a file a rank of sends, receives and sums, and what ASTRA-sim needs.

        <name>.<rank>.et     the schedule: the implementation of a custom collective of ASTRA-sim,
                             or a workload by itself
        workload.<rank>.et   a workload that is one call of the collective
        system.json          settings of ASTRA-sim that name the schedule

    A file is a sequence of messages, each after its length as a varint: GlobalMetadata, then Nodes.
    Format: mlcommons/chakra, schema/protobuf/et_def.proto (version 0.0.4); what ASTRA-sim reads of
    it: its Chakra feeder (astra-sim 518bd51). msg_chunk_idx, msg_chunk_cnt and total_chunk_cnt are
    what Chakra's own converter of MSCCL XML writes since 2025 in place of comm_size; both are here.
    """
    listed = actions(subject, settings)
    stem = file_name(f"{subject.name}.{listed.collective}")
    kind, name = CALLS[listed.collective]
    files: dict[str, bytes] = {}
    for rank, own in enumerate(listed.ranks):
        nodes = (
            _node(index, action, listed.messages, settings) for index, action in enumerate(own)
        )
        files[f"{stem}.{rank}.et"] = _file(nodes)
        if name is not None:
            call = number(1, 1) + text(2, str(listed.collective)) + number(3, COLL)
            call += _attribute("is_cpu_op", BOOL, 0)
            call += _attribute("comm_type", INT64, kind)
            call += _attribute("comm_size", INT64, settings.size)
            files[f"workload.{rank}.et"] = _file([call])
    if name is not None:
        used = [other for _, other in CALLS.values() if other]
        usual = {other: ["direct" if other == "all-to-all" else "ring"] for other in used}
        system = {
            "scheduling-policy": "FIFO",
            "endpoint-delay": 0,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            "local-mem-bw": 50,
            **{f"{other}-implementation": ways for other, ways in usual.items()},
            f"{name}-implementation-custom": [stem],
        }
        files["system.json"] = (json.dumps(system, indent=2) + "\n").encode()
    return files


def _file(nodes: Iterable[bytes]) -> bytes:
    out = bytearray()
    for message in [text(1, SCHEMA), *nodes]:
        out += varint(len(message)) + message
    return bytes(out)


def _node(index: int, action: Action, total: int, settings: Settings) -> bytes:
    """Numbers of nodes are those of the actions, from 1 on: some readers take 0 for none."""
    way = {"send": " to rank", "recv": " from rank", "sum": ""}[action.kind]
    out = number(1, index + 1) + text(2, f"{action.kind}{way} {action.peer if way else index}")
    out += number(3, {"send": SEND, "recv": RECV, "sum": COMP}[action.kind])
    if action.follows >= 0:
        out += _numbers(4, (action.follows + 1,))
    if action.after:
        out += _numbers(5, tuple(a + 1 for a in action.after))
    attributes = [("is_cpu_op", BOOL, 0)]
    if action.kind == "sum":
        out += number(7, round(sum_time(action, settings) / 1000))
        attributes += [("num_ops", INT64, action.bytes), ("tensor_size", UINT64, action.bytes)]
    else:
        attributes += [
            ("comm_dst" if action.kind == "send" else "comm_src", INT32, action.peer),
            ("comm_size", INT64, action.bytes),
            ("comm_tag", INT32, action.tag),
            ("msg_chunk_idx", INT64, action.tag),
            ("msg_chunk_cnt", INT64, 1),
            ("total_chunk_cnt", INT64, total),
        ]
    return out + b"".join(_attribute(*each) for each in attributes)


def _numbers(field: int, values: tuple[int, ...]) -> bytes:
    """A repeated field of numbers, packed."""
    return data(field, b"".join(map(varint, values)))


def _attribute(name: str, kind: int, value: int) -> bytes:
    return data(10, text(1, name) + number(kind, value))
