"""Good MSCCL++ plans spoilt in one way each: the change, the rule that is broken, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import programs

from forestcoll import plans
from forestcoll.compile.problem import capacity_graph
from forestcoll.lower.nvls import lower_nvls
from forestcoll.program import Collective, Program
from forestcoll.program.targets import MSCCLPP
from forestcoll.solver import multicast
from forestcoll.topology import loads_topology

BASES: dict[str, Callable[[], Program]] = {
    "chain": programs.pipelined_broadcast,  # pipelines over memory channels
    "port": lambda: programs.pipelined_broadcast(3, "port"),
    "long": lambda: placed(programs.pipelined_broadcast(18, "port"), 18),
    "memory": lambda: placed(programs.pipelined_broadcast(), 3),
    "direct": programs.direct_allgather,  # a thread block a peer
    "direct-port": lambda: programs.direct_allgather(3, "port"),
    "crossed": programs.crossed_reduce_scatter,  # sums put into a peer's output
    "reading": programs.reading_allreduce,  # rre, rres
    "slots": programs.reduce_to_root,  # back-pressure over ports
    "relay": programs.relay_by_semaphore,
    "barrier": programs.exchange_by_barrier,  # get, tbg_info, barriers
    "packets": programs.packet_allreduce,
    "fabric": programs.fabric_allreduce,  # glres, one thread block a rank
    "fabric-out": lambda: programs.fabric_allreduce(in_place=False),  # input to output
    "fabric-gather": programs.fabric_allgather,  # gstore
    "nvls": lambda: nvls(3, 16),  # as lowered: slices of eight thread blocks
    "nvls-wide": lambda: nvls(4, 2),  # of two, which share the peers: barriers
}


def placed(program: Program, a_node: int) -> Program:
    """The program with as many of its ranks on every node."""
    names = tuple(f"node{r // a_node}/gpu{r % a_node}" for r in range(program.n))
    return replace(program, names=names)


def nvls(n: int, channels: int) -> Program:
    """An allreduce in the switch for a runtime of that many channels per thread block."""
    topology = loads_topology(f"""
format: forestcoll.topology/1
name: star
nodes:
  gpu{{0..{n - 1}}}: {{kind: gpu}}
  switch: {{kind: switch, multicast: true, aggregation: true}}
links:
  - {{src: "gpu{{0..{n - 1}}}", dst: switch, bandwidth: 100}}
""")
    forest = multicast.forest(capacity_graph(topology), Collective.ALLREDUCE, None, "star")
    assert forest is not None
    return lower_nvls(forest, replace(MSCCLPP, channels=channels), blocks=min(channels, 8))


Change = Callable[[str], str]
Plan = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    """One way to spoil a plan."""

    name: str
    base: str
    change: Change
    rule: str
    at: tuple[int, ...] = ()


def edit(change: Callable[[Plan], object]) -> Change:
    """A change of the JSON value."""

    def apply(text: str) -> str:
        plan = json.loads(text)
        change(plan)
        return json.dumps(plan, indent=1)

    return apply


def text(old: str, new: str) -> Change:
    """The first `old` in the text becomes `new`."""

    def change(whole: str) -> str:
        assert old in whole, old
        return whole.replace(old, new, 1)

    return change


def top(**values: Any) -> Change:
    """Fields of the plan; None deletes."""
    return edit(lambda plan: put(plan, values))


def in_place() -> Change:
    """The plan is offered for calls in place, alone."""
    own = {"in_place": True, "out_of_place": False}
    return edit(lambda p: [put(p, {"inplace": True}), put(p["forestcoll"], own)])


def put(entry: Plan, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if value is None:
            del entry[key]
        else:
            entry[key] = value


def gpu(r: int, **values: Any) -> Change:
    return edit(lambda plan: put(plan["gpus"][r], values))


def block(r: int, b: int, change: Callable[[Plan], object]) -> Change:
    return edit(lambda plan: change(plan["gpus"][r]["threadblocks"][b]))


def ops(r: int, b: int, change: Callable[[list[Plan]], object]) -> Change:
    """A change of a thread block's list of operations."""
    return block(r, b, lambda entry: change(entry["ops"]))


def op(r: int, b: int, s: int, **values: Any) -> Change:
    return ops(r, b, lambda found: put(found[s], values))


NULL: Plan = {}  # stands for null, since None deletes


def named(name: str, **values: Any) -> Change:
    """Fields of the first operation of that name."""

    def change(plan: Plan) -> None:
        blocks = [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]
        one = next(op for block in blocks for op in block["ops"] if op["name"] == name)
        one |= {key: None if value is NULL else value for key, value in values.items()}

    return edit(change)


def channel(**values: Any) -> Change:
    """Fields of the first entry of channels of a thread block."""

    def change(plan: Plan) -> None:
        blocks = [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]
        next(block["channels"][0] for block in blocks if block["channels"]).update(values)

    return edit(change)


def nop(**values: Any) -> Change:
    return named("nop", **values)


def inner(r: int, b: int, s: int, k: int, **values: Any) -> Change:
    """Fields of an operation of a pipeline."""
    return ops(r, b, lambda found: put(found[s]["ops"][k], values))


def context(r: int, b: int, s: int, **values: Any) -> Change:
    """Fields of a pipeline's iter_context."""
    return ops(r, b, lambda found: put(found[s]["iter_context"], values))


def operand(
    r: int, b: int, s: int, side: str, i: int, k: int | None = None, **values: Any
) -> Change:
    """Fields of an operand of an operation (the k-th of a pipeline)."""

    def change(found: list[Plan]) -> None:
        one = found[s] if k is None else found[s]["ops"][k]
        put(one[side][i], values)

    return ops(r, b, change)


def drop(r: int, b: int, s: int) -> Change:
    return ops(r, b, lambda found: found.pop(s))


def drop_inner(r: int, b: int, s: int, k: int) -> Change:
    return ops(r, b, lambda found: found[s]["ops"].pop(k))


def swap(r: int, b: int, s: int, t: int) -> Change:
    def change(found: list[Plan]) -> None:
        found[s], found[t] = found[t], found[s]

    return ops(r, b, change)


def many(*changes: Change) -> Change:
    """One after the other."""

    def change(whole: str) -> str:
        for one in changes:
            whole = one(whole)
        return whole

    return change


NOP = {"name": "nop"}

HEAD = [
    Mutation("truncated", "chain", lambda t: t[: len(t) // 2], "MPP-SYNTAX"),
    Mutation("comma-gone", "chain", text(",", ""), "MPP-SYNTAX"),
    Mutation("nan", "chain", text('"min_message_size": 0', '"min_message_size": NaN'),
             "MPP-SYNTAX"),
    Mutation("a-list", "chain", lambda t: f"[{t}]", "PlanError"),
    Mutation("key-twice", "chain", text('"protocol"', '"protocol": "LL", "protocol"'),
             "MPP-DUPLICATE-KEY"),
    Mutation("no-gpus", "chain", top(gpus=None), "MPP-MISSING"),
    Mutation("gpus-empty", "chain", top(gpus=[]), "MPP-RANKS"),
    Mutation("gpus-an-object", "chain", top(gpus={}), "MPP-TYPE"),
    Mutation("no-name", "chain", top(name=None), "MPP-MISSING"),
    Mutation("no-protocol", "chain", top(protocol=None), "MPP-MISSING"),
    Mutation("no-inplace", "chain", top(inplace=None), "MPP-MISSING"),
    Mutation("inplace-a-number", "chain", top(inplace=1), "MPP-TYPE"),
    Mutation("reduce_scatter", "chain", top(collective="reduce_scatter"), "MPP-COLLECTIVE"),
    Mutation("collective-misspelt", "chain", top(collective="brodcast"), "MPP-COLLECTIVE"),
    Mutation("other-collective", "barrier", top(collective="broadcast"), "RUN-WRONG-RESULT"),
    Mutation("protocol-LL128", "chain", top(protocol="LL128"), "MPP-PROTOCOL"),
    Mutation("protocol-Simple", "packets", top(protocol="Simple"), "MPP-PACKET-PROTOCOL"),
    Mutation("alignment-0", "chain", top(buffer_alignment=0), "MPP-ALIGNMENT"),
    Mutation("alignment-8", "chain", top(buffer_alignment=8), "MPP-ALIGNMENT"),
    Mutation("alignment-a-word", "chain", top(buffer_alignment="16"), "MPP-TYPE"),
    Mutation("threads-2048", "chain", top(num_threads_per_block=2048), "MPP-THREADS"),
    Mutation("threads-0", "chain", top(num_threads_per_block=0), "MPP-THREADS"),
    Mutation("min-2^32", "chain", top(min_message_size=2**32, max_message_size=2**40),
             "MPP-MIN-SIZE"),
    Mutation("min-3e9", "chain", top(min_message_size=3 * 10**9), "MPP-MIN-SIZE"),
    Mutation("min-over-max", "chain", top(min_message_size=4096, max_message_size=1024),
             "MPP-SIZE-RANGE"),
    Mutation("max-0", "chain", top(max_message_size=0), "MPP-SIZE-RANGE"),
    Mutation("no-size-divides", "chain", top(min_message_size=33, max_message_size=63),
             "MPP-SIZE-RANGE"),
    Mutation("max-8-gib", "barrier", top(max_message_size=8 * 2**30), "MPP-4GIB"),
    Mutation("max-over-65535-rounds", "chain", context(0, 0, 3, unit_size=16), "MPP-4GIB"),
    Mutation("no-max", "barrier", top(max_message_size=None), "MPP-NO-MAX"),
    Mutation("reuse", "chain", top(reuse_resources=True), "MPP-REUSE"),
    Mutation("nop-with-empty-context", "direct", nop(iter_context={}), "MPP-MISSING"),
    Mutation("nop-with-null-context", "direct", nop(iter_context=NULL), "MPP-TYPE"),
    Mutation("nop-with-no-operations", "direct",
             nop(iter_context={"unit_size": 16, "num_chunks": 1}), "MPP-MISSING"),
    Mutation("nop-that-divides-by-zero", "direct",
             nop(iter_context={"unit_size": 0, "num_chunks": 1}, ops=[]), "MPP-PIPE-UNIT"),
    Mutation("nop-with-half-a-part", "direct", nop(tbg_info={"tb_id": 0}), "MPP-MISSING"),
    Mutation("nop-with-many-channels", "direct", nop(channel_ids=[0] * 9), "MPP-OP-CHANNELS"),
    Mutation("nop-with-many-sources", "direct",
             nop(src_buff=[{"type": "i", "index": 0, "size": 1}] * 11), "MPP-OP-REFS"),
    Mutation("nop-with-a-source-of-no-size", "direct",
             nop(src_buff=[{"type": "i", "index": 0}]), "MPP-MISSING"),
    Mutation("nop-with-a-remote-source", "direct",
             nop(src_buff=[{"buffer_id": 99, "index": 0, "size": 1}], channel_type="memory"),
             "MPP-BUFFER-ID"),
    Mutation("nop-over-an-unknown-channel", "direct", nop(channel_type="pipe"),
             "MPP-OP-CHANNEL-TYPE"),
    Mutation("nop-with-a-word-for-a-barrier", "direct", nop(barrier_id="0"), "MPP-TYPE"),
    Mutation("nop-with-many-semaphores", "direct", nop(semaphore_ids=[0] * 17), "MPP-SEMAPHORES"),
    Mutation("signal-with-null-context", "direct",
             named("signal", iter_context=NULL), "MPP-TYPE"),
    Mutation("channel-on-an-unknown-buffer", "direct",
             channel(buff="foo"), "MPP-BUFFER-TYPE"),
    Mutation("channel-on-null", "direct",
             channel(buff=None), "MPP-TYPE"),
    Mutation("double-scratch", "slots", top(use_double_scratch_buffer=True, protocol="LL"),
             "MPP-DOUBLE-SCRATCH", (1, 0, 3)),
    Mutation("port-of-a-part-in-place", "direct-port", in_place(), "MPP-PLACE", (1, 1, 3)),
    Mutation("peer's-part-in-place", "crossed", in_place(), "MPP-PLACE", (0, 0, 5)),
]  # fmt: skip


def nodes(*numbers: int) -> Change:
    """The nodes that hold the ranks."""
    names = [f"node{node}/gpu{rank}" for rank, node in enumerate(numbers)]
    return edit(lambda plan: put(plan["forestcoll"], {"names": names}))


NODES = [
    Mutation("nodes-uneven", "long", nodes(*[0] * 8, *[1] * 10), "MPP-NODES"),
    Mutation("nodes-of-another-size", "long", nodes(*[0] * 8, *[1] * 8, 2, 2), "MPP-NODES"),
    Mutation("nodes-interleaved", "long", nodes(*[0, 1] * 9), "MPP-NODES", (1,)),
    Mutation("ninth-rank-has-a-port", "long", nodes(*[0] * 9, *[1] * 9), "MPP-NICS", (8,)),
    Mutation("memory-between-nodes", "memory", nodes(0, 1, 2), "MPP-MEMORY-FAR", (0,)),
]

RANKS = [
    Mutation("rank-ids-swapped", "chain", edit(lambda p: p["gpus"].reverse()), "MPP-RANKS", (0,)),
    Mutation("rank-without-id", "chain", gpu(1, id=None), "MPP-MISSING", (1,)),
    Mutation("rank-gone", "chain", edit(lambda p: p["gpus"].pop()), "MPP-PEER", (1,)),
    Mutation("input-chunks-0", "chain", gpu(0, input_chunks=0), "MPP-CHUNKS-ZERO", (0,)),
    Mutation("output-chunks-0", "chain", gpu(0, output_chunks=0), "MPP-CHUNKS-ZERO", (0,)),
    Mutation("chunks-negative", "chain", gpu(0, output_chunks=-2), "MPP-CHUNKS-ZERO", (0,)),
    Mutation("scratch-of-rank-0-larger", "packets", gpu(0, scratch_chunks=16),
             "MPP-SCRATCH-UNEQUAL", (0, 0, 0)),
    Mutation("scratch-of-rank-1-larger", "packets", gpu(1, scratch_chunks=16),
             "MPP-SCRATCH-UNEQUAL", (0, 0, 0)),
    Mutation("scratch-negative", "slots", gpu(0, scratch_chunks=-1), "MPP-CHUNKS", (0,)),
    Mutation("chunks-huge", "chain", gpu(0, output_chunks=10**12), "MPP-CHUNKS", (0,)),
    Mutation("chunks-of-one-rank", "chain", gpu(1, input_chunks=4, output_chunks=4), "MPP-CHUNKS",
             (1,)),
    Mutation("chunks-unlike-collective", "direct", edit(lambda p: [
        put(g, {"input_chunks": 2}) for g in p["gpus"]]), "MPP-CHUNKS", (0,)),
    Mutation("scratch-smaller", "slots", gpu(0, scratch_chunks=1), "MPP-BOUNDS"),
    Mutation("chunks-a-word", "chain", gpu(0, input_chunks="2"), "MPP-TYPE", (0,)),
    Mutation("scratch-of-nobody", "chain", edit(lambda p: p["gpus"][0]["remote_buffers"].append(
        {"rank": 1, "type": "s", "access_channel_types": ["memory"]})), "MPP-REMOTE-EMPTY", (0,)),
    Mutation("no-channels", "chain", gpu(0, channels=None), "MPP-MISSING", (0,)),
    Mutation("no-remote-buffers", "chain", gpu(0, remote_buffers=None), "MPP-MISSING", (0,)),
    Mutation("no-threadblocks", "chain", gpu(2, threadblocks=[]), "MPP-TB-NONE", (2,)),
    Mutation("channel-type", "chain", edit(lambda p: put(
        p["gpus"][0]["channels"][0], {"channel_type": "mem"})), "MPP-CHANNEL-TYPE", (0,)),
    Mutation("channel-to-nobody", "chain", edit(lambda p: put(
        p["gpus"][0]["channels"][0], {"connected_to": [3]})), "MPP-PEER", (0,)),
    Mutation("channel-to-itself", "chain", edit(lambda p: put(
        p["gpus"][0]["channels"][0], {"connected_to": [0]})), "MPP-PEER", (0,)),
    Mutation("channel-to-another", "chain", edit(lambda p: put(
        p["gpus"][0]["channels"][0], {"connected_to": [2]})), "MPP-PUT-CHANNEL", (0, 0, 3)),
    Mutation("channel-unpaired", "chain", edit(lambda p:
        p["gpus"][0]["channels"][0]["connected_to"].append(1)), "MPP-IDLE-CHANNEL", (0,)),
    Mutation("remote-of-nobody", "chain", edit(lambda p: put(
        p["gpus"][0]["remote_buffers"][0], {"rank": 7})), "MPP-PEER", (0,)),
    Mutation("remote-type", "chain", edit(lambda p: put(
        p["gpus"][0]["remote_buffers"][0], {"type": "x"})), "MPP-BUFFER-TYPE", (0,)),
    Mutation("remote-access", "chain", edit(lambda p: put(
        p["gpus"][0]["remote_buffers"][0], {"access_channel_types": ["port"]})),
        "MPP-REMOTE-ACCESS", (0, 0)),
    Mutation("remote-input-for-output", "chain", edit(lambda p: put(
        p["gpus"][0]["remote_buffers"][0], {"type": "i"})), "RUN-WRONG-RESULT", (0, 0, 3)),
    Mutation("semaphore-negative", "relay", edit(lambda p: put(
        p["gpus"][1]["semaphores"][0], {"init_value": -1})), "MPP-SEMAPHORE-INIT", (1,)),
    Mutation("semaphore-starts-at-1", "relay", edit(lambda p: put(
        p["gpus"][1]["semaphores"][0], {"init_value": 1})), "RUN-RACE"),
    Mutation("semaphore-without-value", "relay", edit(lambda p: put(
        p["gpus"][1]["semaphores"][0], {"init_value": None})), "MPP-MISSING", (1,)),
    Mutation("109-thread-blocks", "chain", edit(lambda p: p["gpus"][0]["threadblocks"].extend(
        {"id": k, "channels": [], "ops": [NOP]} for k in range(1, 109))), "MPP-TB-SMS", (0,)),
]  # fmt: skip

BLOCKS = [
    Mutation("tb-ids-swapped", "relay", edit(lambda p: p["gpus"][1]["threadblocks"].reverse()),
             "MPP-TB-ID", (1, 0)),
    Mutation("tb-without-id", "chain", block(0, 0, lambda t: put(t, {"id": None})),
             "MPP-MISSING", (0, 0)),
    Mutation("tb-channel-id", "chain", block(0, 0, lambda t: put(
        t["channels"][0], {"channel_ids": [1]})), "MPP-TB-CHANNEL-ID", (0, 0)),
    Mutation("tb-channel-twice", "chain", block(1, 0, lambda t: put(
        t["channels"][0], {"channel_ids": [0, 1, 1]})), "MPP-CHANNEL-TWICE", (1, 0)),
    Mutation("tb-17-channels", "chain", edit(lambda p: [
        p["gpus"][a]["channels"][0]["connected_to"].extend([b] * 16) or
        p["gpus"][a]["threadblocks"][0]["channels"][0]["channel_ids"].extend(range(c, c + 16))
        for a, b, c in ((0, 1, 1), (1, 0, 2))]), "MPP-TB-CHANNELS", (0, 0)),
    Mutation("tb-channels-swapped", "relay", edit(lambda p: [
        put(p["gpus"][1]["threadblocks"][b]["channels"][0], {"channel_ids": [1 - b]})
        for b in (0, 1)]), "MPP-PUT-CHANNEL", (1, 1, 3)),
    Mutation("tb-channel-shared", "relay", edit(lambda p: put(
        p["gpus"][1]["threadblocks"][1]["channels"][0], {"channel_ids": [0]})),
        "MPP-CHANNEL-SHARED", (1, 1, 0)),
    Mutation("two-threads-signal", "chain", ops(1, 0, lambda o: o.insert(1, {
        "name": "signal", "channel_type": "memory", "channel_ids": [1]})),
        "MPP-SIGNAL-THREADS", (1, 0, 1)),
    Mutation("two-threads-signal-round-after-round", "chain", many(drop_inner(1, 0, 3, 1),
        ops(1, 0, lambda o: o[3]["ops"].extend([
            {"name": "signal", "channel_type": "memory", "channel_ids": [0, 1]},
            {"name": "signal", "channel_type": "memory", "channel_ids": [1]}]))),
        "MPP-SIGNAL-THREADS", (1, 0, 3)),
    Mutation("tb-remote-id", "chain", block(0, 0, lambda t: put(
        t["remote_buffer_refs"][0], {"remote_buffer_ids": [4]})), "MPP-REMOTE-ID", (0, 0)),
    Mutation("tb-remotes-gone", "chain", block(0, 0, lambda t: put(
        t, {"remote_buffer_refs": None})), "MPP-BUFFER-ID", (0, 0, 3)),
    Mutation("tb-remotes-of-wrong-type", "chain", block(0, 0, lambda t: put(
        t["remote_buffer_refs"][0], {"access_channel_type": "port"})), "MPP-REMOTE-ACCESS", (0, 0)),
    Mutation("65-operations", "chain", ops(0, 0, lambda o: o.extend([NOP] * 54)),
             "MPP-OPS", (0, 0)),
    Mutation("no-ops", "chain", block(0, 0, lambda t: put(t, {"ops": None})),
             "MPP-MISSING", (0, 0)),
]  # fmt: skip

OPERATIONS = [
    Mutation("unknown-operation", "chain", op(0, 0, 5, name="sginal"), "MPP-OP-NAME", (0, 0, 5)),
    Mutation("glre", "chain", op(0, 0, 5, name="glre"), "MPP-OP-NAME", (0, 0, 5)),
    Mutation("operation-without-name", "chain", op(0, 0, 5, name=None), "MPP-MISSING", (0, 0, 5)),
    Mutation("operation-a-word", "chain", ops(0, 0, lambda o: o.append("nop")), "MPP-TYPE", (0, 0)),
    Mutation("groups-mixed", "relay", op(1, 0, 5, semaphore_ids=[0]), "MPP-UNION", (1, 0, 5)),
    Mutation("barrier-with-channels", "barrier", op(0, 0, 4, channel_ids=[0]),
             "MPP-UNION", (0, 0, 4)),
    Mutation("nop-with-channels", "chain", op(0, 0, 4, channel_ids=[0]),
             "MPP-FIELD-UNUSED", (0, 0, 4)),
    Mutation("signal-without-channels", "chain", op(0, 0, 5, channel_ids=None),
             "MPP-OP-INCOMPLETE", (0, 0, 5)),
    Mutation("signal-without-type", "chain", op(0, 0, 5, channel_type=None),
             "MPP-OP-INCOMPLETE", (0, 0, 5)),
    Mutation("signal-over-switch", "chain", op(0, 0, 5, channel_type="switch"),
             "MPP-OP-CHANNEL-TYPE", (0, 0, 5)),
    Mutation("signal-over-port", "chain", op(0, 0, 5, channel_type="port"),
             "MPP-OP-CHANNEL-ID", (0, 0, 5)),
    Mutation("signal-twice-a-channel", "chain", op(1, 0, 5, channel_ids=[0, 0]),
             "MPP-CHANNEL-TWICE", (1, 0, 5)),
    Mutation("9-channels", "chain", op(0, 0, 5, channel_ids=[0] * 9), "MPP-OP-CHANNELS", (0, 0, 5)),
    Mutation("channel-id-of-the-rank", "relay", op(1, 1, 5, channel_ids=[1]),
             "MPP-OP-CHANNEL-ID", (1, 1, 5)),
    Mutation("channel-id-negative", "chain", op(0, 0, 5, channel_ids=[-1]),
             "MPP-OP-CHANNEL-ID", (0, 0, 5)),
    Mutation("channel-id-a-word", "chain", op(0, 0, 5, channel_ids=["0"]), "MPP-TYPE", (0, 0, 5)),
    Mutation("signal-gone", "chain", drop(0, 0, 5), "MPP-SIGNAL-UNMATCHED", (1, 0, 6)),
    Mutation("wait-gone", "chain", drop(0, 0, 6), "MPP-SIGNAL-UNMATCHED", (1, 0)),
    Mutation("signal-twice", "chain", ops(0, 0, lambda o: o.insert(5, o[5])),
             "MPP-SIGNAL-UNMATCHED", (0, 0)),
    Mutation("wait-in-pipeline-gone", "chain", drop_inner(2, 0, 3, 0),
             "MPP-SIGNAL-UNMATCHED", (1, 0)),
    Mutation("handshake-gone", "chain", many(
        ops(0, 0, lambda o: o.__delitem__(slice(0, 3))),
        ops(1, 0, lambda o: [put(x, {"channel_ids": [1]}) for x in o[:2]])),
        "RUN-RACE-CALLER", (0, 0, 0)),
    Mutation("farewell-gone", "port", many(
        ops(0, 0, lambda o: o.__delitem__(slice(4, 7))),
        ops(1, 0, lambda o: [put(x, {"channel_ids": [1]}) for x in o[5:]])), "RUN-RACE-CALLER"),
    Mutation("waits-first-everywhere", "chain", many(*(swap(r, 0, 0, 1) for r in range(3))),
             "RUN-DEADLOCK"),
    Mutation("nop-after-handshake-gone", "chain", drop(0, 0, 2), "RUN-RACE-NOP", (0, 0, 2)),
    Mutation("nop-after-wait-gone", "chain", drop_inner(1, 0, 3, 1), "RUN-RACE-NOP", (1, 0, 3)),
    Mutation("nop-before-signal-gone", "chain", ops(0, 0, lambda o: o[3]["ops"].pop(2)),
             "RUN-RACE-NOP", (0, 0, 3)),
    Mutation("signal-before-data", "chain", ops(0, 0, lambda o: o[3]["ops"].insert(
        0, o[3]["ops"].pop())), "RUN-RACE"),
    Mutation("relaxed-for-signal", "chain", many(
        inner(0, 0, 3, 3, name="rlxsignal"), inner(1, 0, 3, 0, name="rlxwait")), "RUN-RACE"),
    Mutation("nop-before-port-put-gone", "port", ops(1, 0, lambda o: o[3]["ops"].pop(1)),
             "RUN-RACE-NOP", (1, 0, 3)),
    Mutation("slot-shared", "slots", operand(2, 0, 3, "dst_buff", 0, 0, index=0), "RUN-RACE"),
    Mutation("copy-gone", "chain", drop_inner(0, 0, 3, 0), "RUN-WRONG-RESULT", (0,)),
    Mutation("put-gone", "chain", drop_inner(1, 0, 3, 2), "RUN-WRONG-RESULT", (2,)),
    Mutation("source-of-other-buffer", "chain", operand(1, 0, 3, "src_buff", 0, 2, type="s"),
             "MPP-BOUNDS", (1, 0, 3)),
    Mutation("source-of-wrong-letter", "chain", operand(1, 0, 3, "src_buff", 0, 2, type="x"),
             "MPP-BUFFER-TYPE", (1, 0, 3)),
    Mutation("source-out-of-input", "chain", operand(1, 0, 3, "src_buff", 0, 2, type="i"),
             "RUN-WRONG-RESULT", (1, 0, 3)),
    Mutation("index-plus-1", "chain", operand(0, 0, 3, "src_buff", 0, 1, index=1),
             "MPP-BOUNDS", (0, 0, 3)),
    Mutation("index-negative", "chain", operand(0, 0, 3, "src_buff", 0, 1, index=-1),
             "MPP-BOUNDS", (0, 0, 3)),
    Mutation("index-gone", "chain", operand(0, 0, 3, "src_buff", 0, 1, index=None),
             "MPP-MISSING", (0, 0, 3)),
    Mutation("index-with-point", "chain", operand(0, 0, 3, "src_buff", 0, 1, index=0.0),
             "MPP-TYPE", (0, 0, 3)),
    Mutation("index-huge", "chain", operand(0, 0, 3, "src_buff", 0, 1, index=2**40),
             "MPP-BOUNDS", (0, 0, 3)),
    Mutation("size-0", "reading", operand(0, 0, 3, "src_buff", 0, size=0),
             "MPP-SIZE-ZERO", (0, 0, 3)),
    Mutation("sizes-differ", "barrier", operand(0, 0, 8, "src_buff", 0, size=1),
             "MPP-OP-SIZES", (0, 0, 8)),
    Mutation("remote-for-local", "barrier", ops(0, 0, lambda o: put(
        o[8]["src_buff"][0], {"type": None, "buffer_id": 0})), "MPP-OP-OPERANDS", (0, 0, 8)),
    Mutation("local-for-remote", "chain", ops(0, 0, lambda o: put(
        o[3]["ops"][1]["dst_buff"][0], {"buffer_id": None, "type": "o"})),
        "MPP-OP-OPERANDS", (0, 0, 3)),
    Mutation("buffer-named-twice", "chain", operand(0, 0, 3, "dst_buff", 0, 1, type="o"),
             "MPP-OP-OPERANDS", (0, 0, 3)),
    Mutation("buffer-id-beyond", "chain", operand(0, 0, 3, "dst_buff", 0, 1, buffer_id=1),
             "MPP-BUFFER-ID", (0, 0, 3)),
    Mutation("no-destination", "chain", inner(0, 0, 3, 1, dst_buff=[]),
             "MPP-OP-OPERANDS", (0, 0, 3)),
    Mutation("11-sources", "barrier", ops(0, 0, lambda o: o[8]["src_buff"].extend(
        [o[8]["src_buff"][0]] * 9)), "MPP-OP-REFS", (0, 0, 8)),
    Mutation("put-without-type", "chain", inner(0, 0, 3, 1, channel_type=None),
             "MPP-OP-INCOMPLETE", (0, 0, 3)),
    Mutation("put-over-too-few-channels", "port", inner(1, 0, 3, 2, channel_ids=[]),
             "MPP-PUT-CHANNEL", (1, 0, 3)),
    Mutation("put-over-wrong-channel", "port", inner(1, 0, 3, 2, channel_ids=[0]),
             "MPP-PUT-CHANNEL", (1, 0, 3)),
    Mutation("pws-over-memory", "chain", inner(0, 0, 3, 1, name="pws"),
             "MPP-OP-CHANNEL-TYPE", (0, 0, 3)),
    Mutation("put-of-mixed-sources", "chain", ops(0, 0, lambda o: (
        o[3]["ops"][1]["src_buff"].append({"type": "o", "index": 0, "size": 2}),
        o[3]["ops"][1]["dst_buff"].append(o[3]["ops"][1]["dst_buff"][0]),
        put(o[3]["ops"][1], {"channel_ids": [0, 0]}))), "MPP-PUT-SOURCES", (0, 0, 3)),
    Mutation("get-swaps", "barrier", operand(0, 0, 3, "src_buff", 0, index=1, size=1),
             "MPP-GET-SWAP", (0, 0, 3)),
    Mutation("get-over-port", "barrier", op(0, 0, 3, channel_type="port"),
             "MPP-OP-CHANNEL-TYPE", (0, 0, 3)),
    Mutation("rre-over-port", "reading", ops(0, 0, lambda o: put(
        o[3], {"channel_type": "port"})), "MPP-OP-CHANNEL-TYPE", (0, 0, 3)),
    Mutation("flush-needed", "port", ops(1, 0, lambda o: o[3]["ops"].insert(
        3, {"name": "flush", "channel_type": "port", "channel_ids": [1]})), "MPP-FLUSH", (1, 0, 3)),
]  # fmt: skip


def switch(r: int, k: int = -1, **values: Any) -> Change:
    """Fields of a rank's switch channel, the last one by default."""
    return edit(lambda plan: put(plan["gpus"][r]["channels"][k], values))


def group(r: int, *ranks: int) -> Change:
    """Another group for the rank's switch channel."""
    return switch(r, rank_groups=[{"size": len(ranks), "ranks": list(ranks)}])


def everywhere(change: Callable[[list[Plan]], object]) -> Change:
    """A change of every thread block's list of operations."""
    return edit(lambda plan: [change(b["ops"]) for g in plan["gpus"] for b in g["threadblocks"]])


SWITCHES = [
    Mutation("group-of-others", "fabric", group(0, 1, 2), "MPP-SWITCH-GROUP", (0,)),
    Mutation("group-of-one", "fabric", group(1, 1), "MPP-SWITCH-GROUP", (1,)),
    Mutation("group-beyond", "fabric", group(1, 0, 1, 2, 3), "MPP-SWITCH-GROUP", (1,)),
    Mutation("group-twice-the-same", "fabric", group(1, 0, 1, 1), "MPP-SWITCH-GROUP", (1,)),
    Mutation("group-too-small", "fabric", group(1, 0, 1), "MPP-SWITCH-ORDER", (0,)),
    Mutation("group-too-small-everywhere", "fabric", many(group(0, 0, 1), group(1, 0, 1),
             edit(lambda p: p["gpus"][2]["channels"].pop()), block(2, 0, lambda b: (
                 b["channels"].pop(), b["ops"].__setitem__(3, NOP)))),
             "RUN-WRONG-RESULT", (0,)),
    Mutation("switch-channel-gone", "fabric", edit(lambda p: p["gpus"][2]["channels"].pop()),
             "MPP-SWITCH-ORDER", (0,)),
    Mutation("switch-channels-swapped", "fabric-out", edit(lambda p: p["gpus"][1][
        "channels"].append(p["gpus"][1]["channels"].pop(-2))), "MPP-SWITCH-ORDER", (0,)),
    Mutation("switch-on-other-buffer", "fabric", switch(1, buffer_type="o"),
             "MPP-SWITCH-ORDER", (0,)),
    Mutation("switch-on-scratch", "fabric-gather", many(*(
        switch(r, buffer_type="s") for r in range(3))), "MPP-BOUNDS", (0, 0, 3)),
    Mutation("switch-on-input-for-output", "fabric-out", many(*(
        switch(r, buffer_type="i") for r in range(3))), "RUN-WRONG-RESULT", (0,)),
    Mutation("switch-on-output-for-input", "fabric-out", many(*(
        switch(r, -2, buffer_type="o") for r in range(3))), "RUN-WRONG-SUM"),
    Mutation("switch-buffer-unknown", "fabric", switch(0, buffer_type="x"), "MPP-BUFFER-TYPE",
             (0,)),
    Mutation("switch-without-groups", "fabric", switch(0, rank_groups=None), "MPP-MISSING", (0,)),
    Mutation("switch-channel-beyond", "fabric", block(0, 0, lambda b: put(
        b["channels"][-1], {"channel_ids": [1]})), "MPP-TB-CHANNEL-ID", (0, 0)),
    Mutation("block-without-switch", "fabric", block(0, 0, lambda b: b["channels"].pop()),
             "MPP-SWITCH-ID", (0, 0, 3)),
    Mutation("switch-id-beyond", "fabric", operand(0, 0, 3, "src_buff", 0, switch_channel_id=1),
             "MPP-SWITCH-ID", (0, 0, 3)),
    Mutation("glres-over-memory", "fabric", op(0, 0, 3, channel_type="memory"),
             "MPP-OP-CHANNEL-TYPE", (0, 0, 3)),
    Mutation("glres-of-a-buffer", "fabric", operand(
        0, 0, 3, "src_buff", 0, switch_channel_id=None, type="i"), "MPP-OP-OPERANDS", (0, 0, 3)),
    Mutation("gstore-from-a-switch", "fabric-gather", operand(
        0, 0, 3, "src_buff", 0, type=None, switch_channel_id=0), "MPP-OP-OPERANDS", (0, 0, 3)),
    Mutation("glres-beyond", "fabric", operand(2, 0, 3, "src_buff", 0, index=5), "MPP-BOUNDS",
             (2, 0, 3)),
    Mutation("glres-sizes-differ", "fabric", operand(0, 0, 3, "dst_buff", 0, size=1),
             "MPP-OP-SIZES", (0, 0, 3)),
    Mutation("glres-of-another-share", "fabric-out", operand(0, 0, 3, "src_buff", 0, index=2),
             "RUN-WRONG-RESULT", (0,)),
    Mutation("glres-twice", "fabric", ops(0, 0, lambda o: o.insert(4, o[3])), "RUN-RACE"),
    Mutation("glres-gone", "fabric", op(1, 0, 3, name="nop", src_buff=None, dst_buff=None,
                                        channel_type=None), "RUN-WRONG-RESULT", (0,)),
    Mutation("glre", "fabric", op(1, 0, 3, name="glre"), "MPP-OP-NAME", (1, 0, 3)),
    Mutation("out-of-place-claimed", "fabric", top(inplace=False), "RUN-REFUSED"),
    Mutation("made-for-in-place", "fabric", top(inplace=False, forestcoll=None),
             "RUN-WRONG-RESULT", (0,)),
    Mutation("no-one-asked", "fabric", everywhere(lambda o: (
        o.__setitem__(0, NOP), o.__setitem__(1, NOP))), "RUN-RACE-CALLER"),
    Mutation("no-one-told", "fabric", everywhere(lambda o: (
        o.__setitem__(-2, NOP), o.__setitem__(-1, NOP))), "RUN-RACE-CALLER"),
    Mutation("nop-after-asking-gone", "fabric", drop(1, 0, 2), "RUN-RACE-NOP", (1, 0, 2)),
    Mutation("nop-before-telling-gone", "fabric", drop(1, 0, 4), "RUN-RACE-NOP", (1, 0, 4)),
    Mutation("told-relaxed", "fabric", everywhere(lambda o: (
        put(o[-2], {"name": "rlxsignal"}), put(o[-1], {"name": "rlxwait"}))), "RUN-RACE-CALLER"),
    Mutation("a-slice-too-small", "nvls", ops(0, 0, lambda o: put(
        o[3]["tbg_info"], {"tbg_size": 16})), "RUN-WRONG-RESULT", (0,)),
    Mutation("a-slice-twice", "nvls", ops(0, 1, lambda o: put(o[3]["tbg_info"], {"tb_id": 0})),
             "RUN-RACE"),
    Mutation("a-slice-of-none", "nvls", ops(0, 1, lambda o: put(o[3]["tbg_info"], {"tb_id": 8})),
             "MPP-TBG", (0, 1, 3)),
    Mutation("a-slice-gone", "nvls", ops(2, 7, lambda o: o.__setitem__(3, NOP)),
             "RUN-WRONG-RESULT", (0,)),
    Mutation("barrier-of-blocks-gone", "nvls-wide", everywhere(lambda o: o.__setitem__(
        next(k for k, one in enumerate(o) if one["name"] == "barrier"), NOP)), "RUN-RACE-CALLER"),
    Mutation("barrier-of-a-block-gone", "nvls-wide", ops(0, 0, lambda o: o.__setitem__(
        next(k for k, one in enumerate(o) if one["name"] == "barrier"), NOP)),
        "MPP-BARRIER-UNMATCHED", (0,)),
]  # fmt: skip

LOOPS = [
    Mutation("num-chunks-plus-1", "chain", context(0, 0, 3, num_chunks=3),
             "MPP-PIPE-UNDERFLOW", (0, 0, 3)),
    Mutation("num-chunks-minus-1", "chain", context(0, 0, 3, num_chunks=1),
             "MPP-PIPE-SHORT", (0, 0, 3)),
    Mutation("num-chunks-0", "chain", context(0, 0, 3, num_chunks=0), "MPP-PIPE-CHUNKS", (0, 0, 3)),
    Mutation("num-chunks-gone", "chain", context(0, 0, 3, num_chunks=None),
             "MPP-MISSING", (0, 0, 3)),
    Mutation("inner-operation-smaller", "chain", many(
        operand(0, 0, 3, "src_buff", 0, 0, size=1), operand(0, 0, 3, "dst_buff", 0, 0, size=1)),
        "MPP-PIPE-UNDERFLOW", (0, 0, 3)),
    Mutation("inner-operation-sliced", "chain", inner(
        0, 0, 3, 0, tbg_info={"tb_id": 0, "tbg_size": 2}), "MPP-PIPE-TBG", (0, 0, 3)),
    Mutation("unit-0", "chain", context(0, 0, 3, unit_size=0), "MPP-PIPE-UNIT", (0, 0, 3)),
    Mutation("unit-100", "chain", context(0, 0, 3, unit_size=100), "MPP-PIPE-UNIT", (0, 0, 3)),
    Mutation("unit-2^32", "chain", context(0, 0, 3, unit_size=2**32), "MPP-PIPE-UNIT", (0, 0, 3)),
    Mutation("units-differ", "chain", context(0, 0, 3, unit_size=32768), "MPP-SIGNAL-UNMATCHED",
             (0, 0, 3)),
    Mutation("pipeline-nested", "chain", ops(0, 0, lambda o: o[3]["ops"].append(
        {"name": "pipeline", "iter_context": {"unit_size": 16, "num_chunks": 2}, "ops": [NOP]})),
        "MPP-PIPE-NESTED", (0, 0, 3)),
    Mutation("pipeline-empty", "chain", op(0, 0, 3, ops=[]), "MPP-PIPE-EMPTY", (0, 0, 3)),
    Mutation("pipeline-without-context", "chain", op(0, 0, 3, iter_context=None),
             "MPP-MISSING", (0, 0, 3)),
    Mutation("pipeline-without-ops", "chain", op(0, 0, 3, ops=None), "MPP-MISSING", (0, 0, 3)),
    Mutation("pipeline-undone", "chain", ops(0, 0, lambda o: o.__setitem__(
        slice(3, 4), o[3]["ops"])), "MPP-SIGNAL-UNMATCHED", (0, 0)),
    Mutation("slice-beyond", "barrier", op(0, 0, 3, tbg_info={"tb_id": 2, "tbg_size": 2}),
             "MPP-TBG", (0, 0, 3)),
    Mutation("slices-leave-a-gap", "barrier", op(0, 0, 8, tbg_info={"tb_id": 0, "tbg_size": 2}),
             "RUN-RACE", (0, 1, 8)),
    Mutation("slice-without-size", "barrier", op(0, 0, 3, tbg_info={"tb_id": 0}),
             "MPP-MISSING", (0, 0, 3)),
    Mutation("barrier-16", "barrier", edit(lambda p: [
        put(o, {"barrier_id": 16}) for g in p["gpus"] for t in g["threadblocks"]
        for o in t["ops"] if o["name"] == "barrier"]), "MPP-BARRIER-ID", (0, 0, 4)),
    Mutation("barrier-of-another-id", "barrier", op(0, 0, 4, barrier_id=1),
             "MPP-BARRIER-UNMATCHED", (0,)),
    Mutation("barrier-of-too-many", "barrier", op(0, 0, 4, num_threadblocks=3),
             "MPP-BARRIER-UNMATCHED", (0,)),
    Mutation("barrier-gone", "barrier", drop(0, 1, 7), "MPP-BARRIER-UNMATCHED", (0,)),
    Mutation("barrier-without-count", "barrier", op(0, 0, 4, num_threadblocks=None),
             "MPP-OP-INCOMPLETE", (0, 0, 4)),
    Mutation("semaphore-id", "relay", inner(1, 0, 3, 2, semaphore_ids=[1]),
             "MPP-SEMAPHORE-ID", (1, 0, 3)),
    Mutation("semaphore-ids-gone", "relay", inner(1, 0, 3, 2, semaphore_ids=[]),
             "MPP-OP-INCOMPLETE", (1, 0, 3)),
    Mutation("semaphore-twice", "relay", inner(1, 0, 3, 2, semaphore_ids=[0, 0]),
             "MPP-SEMAPHORES", (1, 0, 3)),
    Mutation("17-semaphores", "relay", inner(1, 0, 3, 2, semaphore_ids=list(range(17))),
             "MPP-SEMAPHORES", (1, 0, 3)),
    Mutation("release-gone", "relay", drop_inner(1, 0, 3, 2), "MPP-SEMAPHORE-UNMATCHED", (1, 1)),
    Mutation("acquire-gone", "relay", drop_inner(1, 1, 3, 0), "MPP-SEMAPHORE-UNMATCHED", (1, 0)),
    Mutation("acquire-for-release", "relay", inner(1, 0, 3, 2, name="sem_acquire"),
             "MPP-SEMAPHORE-SHARED", (1, 1, 3)),
    Mutation("released-before-the-data", "relay", ops(1, 0, lambda o: o[3]["ops"].insert(
        0, o[3]["ops"].pop())), "RUN-RACE"),
]  # fmt: skip

MUTATIONS = HEAD + NODES + RANKS + BLOCKS + OPERATIONS + SWITCHES + LOOPS


def base_text(name: str) -> str:
    """The good plan."""
    return plans.dumps(BASES[name](), "mscclpp-json")
