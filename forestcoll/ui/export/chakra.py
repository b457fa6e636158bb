"""Chakra execution traces: a file a rank of sends, receives and sums, and what ASTRA-sim needs.

    <name>.<rank>.et     the schedule: the implementation of a custom collective of ASTRA-sim, or a
                         workload by itself
    workload.<rank>.et   a workload that is one call of the collective
    system.json          settings of ASTRA-sim that name the schedule

A file is a sequence of messages, each after its length as a varint: GlobalMetadata, then Nodes.
Format: mlcommons/chakra, schema/protobuf/et_def.proto (version 0.0.4); what ASTRA-sim reads of it:
its Chakra feeder (astra-sim 518bd51). msg_chunk_idx, msg_chunk_cnt and total_chunk_cnt are what
Chakra's own converter of MSCCL XML writes since 2025 in place of comm_size; both are here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from forestcoll.common.escape import file_name
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.export.actions import Action, actions, sum_time
from forestcoll.ui.export.protobuf import data, number, text, varint
from forestcoll.ui.view import Subject

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
    """File name -> content."""
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
        files["system.json"] = _system(name, stem)
    return files


def _system(name: str, stem: str) -> bytes:
    every = {
        f"{other}-implementation": ["direct" if other == "all-to-all" else "ring"]
        for _, other in CALLS.values()
        if other
    }
    system = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 0,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "local-mem-bw": 50,
        **every,
        f"{name}-implementation-custom": [stem],
    }
    return (json.dumps(system, indent=2) + "\n").encode()


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
