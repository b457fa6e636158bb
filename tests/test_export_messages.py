"""Chakra and GOAL: read back by other readers, played to their end, held to the plan."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import Run, fine
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.program import Collective
from forestcoll.program.chunks import count_chunks
from forestcoll.schedule import forest_file
from forestcoll.ui.export import Settings, export
from forestcoll.ui.export.actions import CALLS, actions
from forestcoll.ui.view import Subject
from forestcoll.verify.check import rank_loads
from forestcoll.verify.dataflow import dataflow

PLANS = [  # all of a mesh and a switch; of two boxes those that put rather than send
    *sorted(SCHEDULES.glob("dgx*-[av]100-1/*.ms*")),
    *sorted(SCHEDULES.glob("dgx-a100-2/all*.mscclpp.json")),
]
SIZE = 2**30


ET_DEF = """
name: "et_def.proto" package: "c" syntax: "proto3"
message_type {
  name: "AttributeProto" oneof_decl { name: "value" }
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "int32_val" number: 7 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "int64_val" number: 9 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "uint64_val" number: 13 type: TYPE_UINT64 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "bool_val" number: 27 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
}
message_type {
  name: "GlobalMetadata"
  field { name: "version" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "attr" number: 2 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".c.AttributeProto" }
}
message_type {
  name: "Node"
  field { name: "id" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "type" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "ctrl_deps" number: 4 type: TYPE_UINT64 label: LABEL_REPEATED }
  field { name: "data_deps" number: 5 type: TYPE_UINT64 label: LABEL_REPEATED }
  field { name: "duration_micros" number: 7 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "attr" number: 10 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".c.AttributeProto" }
}
"""
"""GlobalMetadata and Node as MLCommons' et_def.proto has them, as far as we write it."""
POOL = descriptor_pool.DescriptorPool()
POOL.Add(text_format.Parse(ET_DEF, descriptor_pb2.FileDescriptorProto()))
METADATA, NODE = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"c.{name}"))
    for name in ("GlobalMetadata", "Node")
)
TYPES = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
    **dict.fromkeys(("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"), "int64_val"),
}
"""Where MLCommons' feeder (src/feeder/et_feeder_node.cpp) looks for each attribute."""
MESSAGE = r"(\w+): (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)"
COMP, SEND, RECV, COLL = 4, 5, 6, 7


@dataclass
class Act:
    """One action of a rank as a reader of the file sees it."""

    kind: str
    size: int
    peer: int = -1
    tag: int = -1
    needs: list[int] = field(default_factory=list)
    time: float = 0


def messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        assert at + length <= len(data)
        yield data[at : at + length]
        at += length


def read_chakra(data: bytes) -> tuple[list[Act], list[dict[str, int]]]:
    first, *rest = messages(data)
    assert METADATA.FromString(first).version == "0.0.4"
    acts, all_attributes = [], []
    for number, text in enumerate(rest, 1):
        node = NODE.FromString(text)
        assert node.SerializeToString()  # nothing unknown was needed to read it
        assert node.id == number
        attributes = {a.name: int(getattr(a, TYPES[a.name])) for a in node.attr}
        assert all(a.HasField(TYPES[a.name]) for a in node.attr)
        all_attributes.append(attributes)
        kind = {SEND: "send", RECV: "recv", COMP: "sum", COLL: "call"}[node.type]
        peer = attributes.get("comm_dst", attributes.get("comm_src", -1))
        needs = [n - 1 for n in (*node.ctrl_deps, *node.data_deps)]
        size = attributes.get("comm_size", attributes.get("num_ops", 0))
        tag = attributes.get("comm_tag", -1)
        acts.append(Act(kind, size, peer, tag, needs, node.duration_micros))
    return acts, all_attributes


def read_goal(text: str) -> list[list[Act]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found: list[list[Act]] = [[] for _ in range(int(lines[0].removeprefix("num_ranks ")))]
    rank, labels = -1, dict[str, int]()
    for line in lines[1:]:
        if (match := re.fullmatch(r"rank (\d+) \{", line)) is not None:
            assert rank == -1
            rank, labels = int(match[1]), {}
        elif line == "}":
            rank = -1
        elif (match := re.fullmatch(MESSAGE, line)) is not None:
            labels[match[1]] = len(found[rank])
            found[rank].append(Act(match[2], int(match[3]), int(match[4]), int(match[5])))
        elif (match := re.fullmatch(r"(\w+): calc (\d+)", line)) is not None:
            labels[match[1]] = len(found[rank])
            found[rank].append(Act("sum", 0, time=int(match[2])))
        else:
            match = re.fullmatch(r"(\w+) requires (\w+)", line)
            assert match is not None, line
            found[rank][labels[match[1]]].needs.append(labels[match[2]])
    return found


def play(ranks: list[list[Act]]) -> int:
    """Does everything whose needs are done, messages matched by tag; how many there were."""
    waiting = {(r, k): len(act.needs) for r, own in enumerate(ranks) for k, act in enumerate(own)}
    later: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for r, own in enumerate(ranks):
        for k, act in enumerate(own):
            for needed in act.needs:
                later[r, needed].append((r, k))
    half: dict[tuple[int, int, int], tuple[int, int]] = {}
    ready = deque(place for place, count in waiting.items() if not count)
    done = met = 0

    def finish(place: tuple[int, int]) -> None:
        nonlocal done
        done += 1
        for other in later[place]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)

    while ready:
        r, k = ready.popleft()
        act = ranks[r][k]
        if act.kind == "sum":
            finish((r, k))
            continue
        ends = (r, act.peer) if act.kind == "send" else (act.peer, r)
        other = half.pop((*ends, act.tag), None)
        if other is None:
            half[*ends, act.tag] = (r, k)
            continue
        assert ranks[other[0]][other[1]].size == act.size
        assert {ranks[other[0]][other[1]].kind, act.kind} == {"send", "recv"}
        met += 1
        finish(other)
        finish((r, k))
    assert not half
    assert done == len(waiting)
    return met


def sent(ranks: list[list[Act]]) -> dict[tuple[int, int], int]:
    total: Counter[tuple[int, int]] = Counter()
    for r, own in enumerate(ranks):
        for act in own:
            if act.kind == "send":
                total[r, act.peer] += act.size
    return dict(total)


def schedule(files: Mapping[str, bytes], stem: str) -> list[list[Act]]:
    n = sum(name.startswith(f"{stem}.") for name in files)
    return [read_chakra(files[f"{stem}.{r}.et"])[0] for r in range(n)]


@pytest.mark.parametrize("path", PLANS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_chakra_has_a_send_for_every_move_of_every_plan(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = plans.read_plan(path)
    flow = dataflow(program)
    monkeypatch.setattr("forestcoll.ui.export.actions.dataflow", lambda _: flow)  # once is enough
    subject = Subject(path.parent.name, "plan", program=program)
    files = export(subject, "chakra", Settings(size=SIZE))
    ranks = schedule(files, f"{subject.name}.{program.collective}")
    assert len(ranks) == program.n
    assert play(ranks) == len(flow.moves()) > 0
    loads = rank_loads(program, count_chunks(program))
    assert {pair: Fraction(size, SIZE) for pair, size in sent(ranks).items()} == loads
    assert sum(act.kind == "sum" for own in ranks for act in own) == sum(
        len(value.made_from) == 2 for value in flow.values
    )


def test_every_collective_has_its_chakra_type() -> None:
    assert set(Collective) <= set(CALLS)


def test_what_astra_sim_needs_beside_the_schedule() -> None:
    program = plans.read_plan(SCHEDULES / "dgx-a100-1" / "allreduce.msccl.xml")
    files = export(Subject("box", "plan", program=program), "chakra", Settings(size=SIZE))
    system = json.loads(files["system.json"])
    assert system["all-reduce-implementation-custom"] == ["box.allreduce"]
    assert system["active-chunks-per-dimension"] == 1
    for rank in range(8):
        (call,), (attributes,) = read_chakra(files[f"workload.{rank}.et"])
        assert (call.kind, call.size) == ("call", SIZE)
        assert attributes["comm_type"] == 0
    _, attributes_of = read_chakra(files["box.allreduce.0.et"])
    moves = [a for a in attributes_of if "comm_tag" in a]
    assert {a["total_chunk_cnt"] for a in moves} == {len(dataflow(program).moves())}
    assert all(a["msg_chunk_idx"] == a["comm_tag"] for a in moves)
    rooted = plans.read_plan(SCHEDULES / "dgx-a100-1" / "broadcast.msccl.xml")
    files = export(Subject("box", "plan", program=rooted), "chakra", Settings())
    assert sorted(files) == [f"box.broadcast.{rank}.et" for rank in range(8)]


FORESTS = sorted(SCHEDULES.glob("*/*.forest.json"))


@pytest.mark.parametrize(
    ("pieces", "path"),
    [(1 + 2 * (number % 2), path) for number, path in enumerate(FORESTS)],
    ids=lambda value: getattr(value, "name", None),
)
def test_goal_of_forests_plays_to_its_end(path: Path, pieces: int) -> None:
    forest = forest_file.load(path)
    subject = Subject(forest.name, "forest", forest=forest)
    size = forest.total * 3 * 64
    (text,) = export(subject, "goal", Settings(size=size, pieces=pieces)).values()
    ranks = read_goal(text.decode())
    met = play(ranks)
    number = {node: rank for rank, node in enumerate(forest.graph.ranks)}
    loads: Counter[tuple[int, int]] = Counter()
    for tree in forest.trees:
        for edge in tree.edges:
            loads[number[edge[0]], number[edge[-1]]] += tree.weight * size // forest.total
    assert sent(ranks) == loads
    edges = sum(len(tree.edges) for tree in forest.trees)
    assert met >= edges * pieces
    assert met % pieces == 0


def test_sums_take_time_where_a_rate_is_given() -> None:
    program = plans.read_plan(SCHEDULES / "mi300x-1" / "reduce-scatter.mscclpp.json")
    subject = Subject("box", "plan", program=program)
    slow = Settings(size=SIZE, reduce_rate=100)
    (text,) = export(subject, "goal", slow).values()
    sums = [act for own in read_goal(text.decode()) for act in own if act.kind == "sum"]
    total = sum(a.bytes for own in actions(subject, slow).ranks for a in own if a.peer < 0)
    assert total == SIZE // 8 * 7 * 8
    assert sum(act.time for act in sums) == pytest.approx(total / 100, abs=len(sums))
    found = schedule(export(subject, "chakra", slow), "box.reduce-scatter")
    micros = sum(act.time for own in found for act in own)
    assert micros == pytest.approx(total / 100e3, abs=len(sums))


def test_order_of_a_connection_is_left_away_where_data_alone_counts() -> None:
    program = plans.read_plan(SCHEDULES / "mi300x-1" / "allgather.mscclpp.json")
    subject = Subject("box", "plan", program=program)
    (free,) = export(subject, "goal", Settings(order="data")).values()
    assert b"requires" not in free  # one box: everything is sent from where it starts
    (ordered,) = export(subject, "goal", Settings()).values()
    ranks = read_goal(ordered.decode())
    for own in ranks:
        for act in own:
            assert all(own[k].peer == act.peer for k in act.needs)
    assert play(ranks) == play(read_goal(free.decode())) == 112


def test_messages_of_a_byte() -> None:
    program = plans.read_plan(SCHEDULES / "mi300x-1" / "allgather.mscclpp.json")
    subject = Subject("box", "plan", program=program)
    (text,) = export(subject, "goal", Settings(size=64, pieces=4)).values()
    assert {act.size for own in read_goal(text.decode()) for act in own} == {1}


def test_what_the_command_writes_can_be_played(call: Run) -> None:
    box = SCHEDULES / "mi300x-1"
    said = fine(call("export", f"{box}/allgather.mscclpp.json", "--to", "chakra", "-o", "traces"))
    assert "17 files in" in said
    files = {p.name: p.read_bytes() for p in Path("traces").iterdir()}
    assert len(files) == 17
    assert play(schedule(files, "mi300x-1.allgather")) > 0
    goal = fine(call("export", f"{box}/broadcast.forest.json", "--to", "goal", "--size", "1M"))
    assert play(read_goal(goal)) > 0
