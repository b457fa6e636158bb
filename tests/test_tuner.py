"""The table for NCCL's example tuner plugin, read as the plugin reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import forestcoll
from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.ui.export import Settings, export
from forestcoll.ui.view import Subject

Choice = tuple[str, str, int]
KNOWN = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}


def rows_of(text: str) -> list[list[str]]:
    """The fields of each row, as the plugin cuts lines up; what it would misread is an error."""
    rows = []
    for line in text.split("\n"):
        assert len(line) < 255
        if not line or line.startswith("#"):
            continue
        fields = line.split(",")
        assert len(fields) == 8
        assert fields[0] in KNOWN
        assert fields[3] in ALGORITHMS
        assert fields[4] in {"ll", "ll128", "simple"}
        assert int(fields[5]) > 0  # -1 would be one channel
        assert all(0 <= int(fields[k]) < 2**64 for k in (1, 2))
        rows.append(fields)
    return rows


def choices(rows: list[list[str]], name: str, size: int, nodes: int, ranks: int) -> list[Choice]:
    """What fits a call, the one that is taken first."""
    return [
        (row[3], row[4], int(row[5]))
        for row in rows
        if row[0] == name
        and int(row[1]) <= size <= int(row[2])
        and int(row[6]) in (-1, nodes)
        and int(row[7]) in (-1, ranks)
    ]


def sweep(
    choice: Sequence[object], times: dict[int, float], test: str = "all_reduce_perf", **more: Any
) -> tuple[str, str]:
    """A file of nccl-tests on two hosts of eight."""
    names = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
    env = [f"{name}={value}" for name, value in zip(names, [*choice, choice[-1]], strict=True)]
    devices = [{"rank": 8 * k, "hostname": f"node{k}"} for k in range(2)]
    results = [
        {"size": size, "out_of_place": {"time": 2 * us, "bus_bw": 1.0, "nwrong": 0.0},
         "in_place": {"time": us, "bus_bw": 2.0, "nwrong": 0.0}}
        for size, us in times.items()
    ]  # fmt: skip
    value = {
        "args": [f"/opt/{test}", "-g", "8"],
        "env": env,
        "nccl_version": 23007,
        "config": {"nthreads": 1, "ngpus": 8, "devices": devices},
        "results": results,
    }
    return f"{choice[0]}.json", json.dumps(value | more)


def table(*measured: tuple[str, str]) -> str:
    machine = forestcoll.load_topology("dgx-h100", {"boxes": 2})
    subject = Subject(machine.name, "topology", machine)
    files = export(subject, "nccl-tuner", Settings(measured=measured))
    assert [*files] == ["dgx-h100-2.nccl-tuner.csv"]
    return next(iter(files.values())).decode()


SWEEPS = (
    sweep(("Tree", "LL", 8), {1 << 10: 20, 1 << 16: 30, 1 << 24: 900}),
    sweep(("allreduce:ring", "Simple", 16), {1 << 10: 60, 1 << 16: 61, 1 << 24: 100}),
    sweep(("NVLSTree", "Simple", 16), {1 << 16: 29, 1 << 24: 101, 1 << 30: 5000}),
)


def test_every_measured_size_takes_the_fastest_choice() -> None:
    rows = rows_of(table(*SWEEPS))
    best = {
        0: ("tree", "ll", 8),
        1 << 10: ("tree", "ll", 8),
        1 << 16: ("nvls_tree", "simple", 16),
        1 << 24: ("ring", "simple", 16),
        1 << 30: ("nvls_tree", "simple", 16),
        2**64 - 1: ("nvls_tree", "simple", 16),
    }
    for size, choice in best.items():
        assert choices(rows, "allreduce", size, 2, 16)[0] == choice
    # in the middle of two sizes, by their logarithms
    assert choices(rows, "allreduce", 1 << 13, 2, 16)[0] == ("tree", "ll", 8)
    assert choices(rows, "allreduce", (1 << 13) + 1, 2, 16)[0] == ("nvls_tree", "simple", 16)


def test_no_call_is_left_without_a_row() -> None:
    """Of any collective, size, communicator; each has a second one, should it be excluded."""
    rows = rows_of(table(*SWEEPS))
    for name in KNOWN:
        for size in (0, 1, 4095, 1 << 20, 1 << 32, 2**64 - 1):
            for nodes, ranks in ((2, 16), (1, 8), (4, 32)):
                fit = choices(rows, name, size, nodes, ranks)
                assert fit[-1] == ("ring", "simple", 16)
                assert len(fit) == 1 + (name == "allreduce" and ranks == 16)
    text = table(*SWEEPS)
    assert "# not measured, ring and Simple at all sizes: allgather, broadcast, reduce" in text


def test_the_profilers_file_says_what_the_library_took() -> None:
    events = []
    for k, (size, us, algorithm) in enumerate([(1 << 10, 9.0, "TREE"), (1 << 20, 80.0, "RING")]):
        for rank in (0, 15):
            args = {"Rank": rank, "Count": size // 64, "Datatype": "ncclFloat32",
                    "Algorithm": algorithm, "Protocol": "SIMPLE", "nChannels": 4 + k}  # fmt: skip
            head = {"name": "AllGather", "cat": "COLL", "pid": rank, "tid": 1, "id": k}
            events += [
                head | {"ph": "b", "ts": 1.0, "args": args},
                head | {"ph": "e", "ts": 1 + us},
            ]
    rows = rows_of(table(("p.json", json.dumps(events))))
    assert choices(rows, "allgather", 1 << 10, 2, 16)[0] == ("tree", "simple", 4)
    assert choices(rows, "allgather", 1 << 20, 2, 16)[0] == ("ring", "simple", 5)


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        ([], "tables are made of sweeps: give --measured files of nccl-tests' -J"),
        ([("x.txt", "hello")], "x.txt: not the output of nvbandwidth"),
        ([sweep(("^NVLS", "LL", 8), {8: 1})], r"\^nvls, ll, 8; tables"),
        ([sweep(("allreduce:ring;allgather:pat", "LL", 8), {8: 1})], r" \?, ll, 8; tables"),
        ([sweep(("Ring", "LL,LL128", 8), {8: 1})], "ring, ll,ll128, 8; tables"),
        ([sweep(("Ring", "LL", ""), {8: 1})], "ring, ll, \\?; tables"),
        ([sweep(("Rung", "LL", 8), {8: 1})], "rung, ll, 8; tables"),
        ([sweep(("Ring", "LL", 8), {8: 1}, "sendrecv_perf")], "dgx-h100-2: tables are made of"),
        ([sweep(("Ring", "LL", 8), {8: 1}, config={"nthreads": 1, "ngpus": 4, "devices": [{}]})],
         "4 ranks; dgx-h100-2 has 16"),
    ],
)  # fmt: skip
def test_what_no_table_can_be_made_of(measured: list[tuple[str, str]], error: str) -> None:
    with pytest.raises((UnsupportedError, ForestCollError), match=error):
        table(*measured)
