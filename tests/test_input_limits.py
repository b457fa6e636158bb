"""Limits on input: each knows its name, which every refusal states; no small file costs much."""

from __future__ import annotations

import concurrent.futures
import json
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import finished
from graphs import machine
from real_files import read_as

from forestcoll.common import input_limits
from forestcoll.common.errors import (
    ForestCollError,
    ForestError,
    PlanError,
    TopologyError,
    UnsupportedError,
)
from forestcoll.common.input_limits import SECONDS, Limit
from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.plans.lint import lint
from forestcoll.program.targets import PlanFormat
from forestcoll.schedule.forest_file import reading
from forestcoll.topology import compact, loads_topology
from forestcoll.topology.numbers import decimal
from forestcoll.ui import cli
from forestcoll.ui.cli import process


@contextmanager
def ends_soon(seconds: float = SECONDS) -> Iterator[None]:
    """Fails where what is done within takes more processor time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def test_every_limit_is_called_as_the_module_calls_it() -> None:
    limits = {name: v for name, v in vars(input_limits).items() if isinstance(v, Limit)}
    assert len(limits) > 20
    assert {name: limit.name for name, limit in limits.items()} == {name: name for name in limits}


def test_a_limit_is_a_number_with_a_name() -> None:
    limit = Limit(200_000, "NODES")
    assert limit + 1 == 200_001
    assert limit.note == "(input limit NODES: 200,000)"
    again = pickle.loads(pickle.dumps(limit))
    assert (again, again.note) == (limit, limit.note)


# --- bombs: small files that would take minutes or gigabytes --------------------------------------


def loop(count: int, **keys: str) -> str:
    """A topology whose links are looped over; `keys` of the link."""
    link = {"src": "a", "dst": "b", "bandwidth": "1"} | keys
    listed = ", ".join(f"{key}: '{value}'" for key, value in link.items())
    return (
        "format: forestcoll.topology/1\nname: t\nnodes:\n  a: {kind: gpu}\n  b: {kind: gpu}\n"
        "  g{0..9999}: {kind: gpu}\n"
        f"links:\n  - {{for: {{i: 1..{count}}}, {listed}}}\n"
    )


COSTLY = " or ".join(["(i*i*i+i*i-7)//3%5*i==1"] * 6)
TOPOLOGIES = {
    "much to compute each round": (loop(1_999_990, when=COSTLY), "EXPRESSION_STEPS"),
    "powers": (loop(1_999_990, when="i**5+i**5+i**5+i**5<0"), "EXPRESSION_STEPS"),
    "fractions": (loop(1_999_990, when="1/(i+7)+1/(i+9)+1/(i+11)<0"), "EXPRESSION_STEPS"),
    "names of nodes": (loop(1_999_990, src="g{0..9999}", dst="g{1..0}"), "EXPRESSION_STEPS"),
    "rounds": (loop(2_000_001, when="0"), "LOOP_ROUNDS"),
    "parallel links": (
        loop(1000, bandwidth="1/(10**12+i*(i+3)+1)"),
        "COMMON_DIGITS",
    ),
}


@pytest.mark.parametrize(("text", "limit"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_topologies_end_soon(monkeypatch: pytest.MonkeyPatch, text: str, limit: str) -> None:
    if limit != "LOOP_ROUNDS" and "**" not in text:  # the whole limit takes seconds
        monkeypatch.setattr(compact, "EXPRESSION_STEPS", Limit(10**6, "EXPRESSION_STEPS"))
    with ends_soon(), pytest.raises(TopologyError, match=rf"\(input limit {limit}: [0-9,]+\)"):
        CapacityGraph.from_topology(loads_topology(text))


def test_an_unknown_node_among_many_is_named_soon() -> None:
    many = "g" * 90
    text = loop(1, src=many + "x").replace("g{0..9999}", many + "{0..49999}")
    with ends_soon(), pytest.raises(TopologyError, match="unknown node"):
        loads_topology(text)


def ring(n: int) -> dict[str, Any]:
    """The head of a forest file of an allgather on a ring of n GPUs called 0, 1, ... in hex."""
    ids = [f"{v:x}" for v in range(n)]
    links = [{"src": ids[v], "dst": ids[(v + 1) % n], "bandwidth": "1"} for v in range(n)]
    return {
        "format": "forestcoll.forest/1",
        "collective": "allgather",
        "topology": {"name": "r", "nodes": [{"id": v, "kind": "gpu"} for v in ids], "links": links},
        "ranks": ids,
        "algbw": "1",
        "trees": [],
    }


def tree(share: str, edges: list[list[str]], root: str = "0") -> dict[str, Any]:
    return {"root": root, "phase": "broadcast", "share": share, "edges": edges}


def rotation(n: int) -> dict[str, str]:
    return {f"{v:x}": f"{(v + 1) % n:x}" for v in range(n)}


def empty_trees() -> dict[str, Any]:
    """One link, no edge: each of 8,000 trees has 8,000 images, all different."""
    data = ring(8000)
    data["topology"]["links"] = data["topology"]["links"][:1]
    data["trees"] = [tree("1/8000", [], f"{v:x}") for v in range(8000)]
    return data | {"symmetry": {"generators": [rotation(8000)]}}


def long_path() -> dict[str, Any]:
    data = ring(2000)
    data["topology"]["links"] = data["topology"]["links"][:1]
    data["trees"] = [tree("1", [["0", "1"] * 60_000])]
    return data | {"symmetry": {"generators": [rotation(2000)]}}


def many_generators() -> dict[str, Any]:
    return ring(9) | {"trees": [tree("1", [])], "symmetry": {"generators": [{}] * 100_000}}


def dual(n: int, sets: int, **more: object) -> dict[str, Any]:
    bound = {"algbw": "1", "method": "linear-program", "parts": [["0"]] * sets}
    return ring(n) | {"bound": bound | {"weights": ["1"] * sets} | more}


def unrelated_shares() -> dict[str, Any]:
    shares = [f"1/{10**390 + 6 * k + 1}" for k in range(400)]
    return ring(3) | {"trees": [tree(share, [["0", "1"], ["1", "2"]]) for share in shares]}


def unrelated_bandwidths() -> dict[str, Any]:
    data = ring(3)
    data["topology"]["links"] = [
        {"src": "0", "dst": "1", "bandwidth": f"{10**390}/{10**390 + 6 * k + 1}"}
        for k in range(400)
    ]
    return data


def test_a_partition_is_checked_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts share no node: as many boxes as there may be cost what one cut does."""
    topology = machine("dgx-a100 boxes=24")
    graph = CapacityGraph.from_topology(topology)
    made = synthesize(topology, "allreduce", compact=True, formats=("forest",))
    bound, text = made.forest.bound, made.texts["forest"]
    assert bound is not None
    assert (bound.method, len(bound.parts)) == ("partition", 24)
    steps = len(graph.tail) + graph.n
    monkeypatch.setattr(reading, "PROOF_STEPS", Limit(steps, "PROOF_STEPS"))
    verify_text(text, "x")
    monkeypatch.setattr(reading, "PROOF_STEPS", Limit(steps - 1, "PROOF_STEPS"))
    with pytest.raises(ForestError, match=f"bound: {steps:,} steps to check"):
        verify_text(text, "x")


def scaled(bandwidth: str) -> dict[str, Any]:
    """The allgather of two GPUs over links of that bandwidth, an optimal one."""
    data = ring(2)
    for link in data["topology"]["links"]:
        link["bandwidth"] = bandwidth
    algbw = str(2 * Fraction(bandwidth))
    data["trees"] = [tree("1/2", [["0", "1"]]), tree("1/2", [["1", "0"]], "1")]
    return data | {"algbw": algbw, "bound": {"algbw": algbw, "cut": ["0"]}}


FORESTS = {
    "images of empty trees": (empty_trees(), "TREES"),
    "images of a long path": (long_path(), "PATH_NODES"),
    "generators": (many_generators(), "GENERATORS"),
    "node sets": (dual(3000, 30_000), "PROOF_STEPS"),
    "symmetries": (dual(1000, 1, symmetries=[{"image": {}}] * 9000), "IMAGE_NODES"),
    "weights": (
        dual(9, 99) | {"bound": dual(9, 99)["bound"] | {
            "weights": [f"1/{10**390 + 6 * k + 1}" for k in range(99)]}},
        "COMMON_DIGITS",
    ),
    "shares": (unrelated_shares(), "COMMON_DIGITS"),
    "bandwidths": (unrelated_bandwidths(), "COMMON_DIGITS"),
    "huge bandwidths": (scaled("5" + "0" * 398), "DIGITS"),
    "tiny bandwidths": (scaled("1/5" + "0" * 398), "DIGITS"),
    "digits": (ring(3) | {"shares": {"0": 7 * 10**4000}}, "FOREST_DIGITS"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "limit"), FORESTS.values(), ids=FORESTS)
def test_forests_end_soon(data: dict[str, Any], limit: str) -> None:
    text = json.dumps(data, separators=(",", ":"))
    assert len(text) < 10**6
    with ends_soon(), pytest.raises(ForestError, match=rf"\(input limit {limit}: [0-9,]+\)"):
        verify_text(text, "x")


@pytest.mark.parametrize("bandwidth", [str(10**40), f"1/{10**40}", f"{10**399}/{3 * 10**398}"])
def test_the_largest_and_smallest_bandwidths_are_shown(
    bandwidth: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows from them is held by doubles wherever it is said."""
    path = tmp_path / "r.forest.json"
    path.write_text(json.dumps(scaled(bandwidth)))
    for words in (["verify"], ["verify", "--json", "--links"], ["time"], ["time", "--json"]):
        assert cli.main([words[0], str(path), *words[1:]]) == 0
    for words in (["view"], *(["export", "--to", form] for form in ("perfetto", "chakra", "dot"))):
        assert cli.main([words[0], str(path), *words[1:], "-o", str(tmp_path / words[-1])]) == 0
    assert "optimal: the bound (cut) equals it" in capsys.readouterr().out


def test_an_all_to_all_with_huge_bandwidths_is_refused() -> None:
    """It has the topology of a forest file."""
    head = scaled("5" + "0" * 398)
    data = {name: head[name] for name in ("topology", "ranks", "algbw")}
    data |= {"format": "forestcoll.alltoall/1", "collective": "alltoall", "theta": "1"}
    data |= {"bound": {"algbw": "1", "lengths": [1, 1]}, "flows": []}
    with pytest.raises(ForestError, match=r"topology.links\[0\].bandwidth: 5000.*limit DIGITS: 40"):
        verify_text(json.dumps(data), "x")


def test_a_dump_of_many_network_ports_is_read_soon() -> None:
    ports = "".join(f'<net name="mlx{i}" dev="{i}" speed="100000" port="1"/>' for i in range(9000))
    gpus = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">'
        f'<gpu dev="{i}" sm="80" rank="{i}" gdr="1"/></pci>'
        for i in range(4)
    )
    with ends_soon(5):
        found = read_as(
            "nccl-xml",
            '<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" '
            f'familyid="6" modelid="85">{gpus}<nic>{ports}</nic></cpu></system>',
            "x",
        )
    assert len(found.adapters) == 9000
    assert all(len(adapter.near) == 4 for adapter in found.adapters)


PLANS = {
    "heads without a name": "<algo " * 150_000,
    "tags without an end": '<algo a="&"' + "<" * 900_000,
    "comments without an end": "<algo>&" + "<!-- >" * 150_000,
    "quotes without an end": '<algo a="&<"' + '<"' * 400_000,
    "spaces in a tag": '<algo a="x"' + " =" * 400_000 + ">",
    "ampersands": '<algo a="' + "&" * 900_000 + '"/>',
    "names without a value": '{"gpus":' + '"name" ' * 130_000,
}


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_plans_are_refused_soon(text: str) -> None:
    with ends_soon():
        assert not lint(text, "x").ok


def test_a_key_that_stands_twice_among_many_is_found_soon() -> None:
    keys = ",".join(f'"{i}":0' for i in range(80_000))
    with ends_soon(), pytest.raises(ForestError, match="key '79999' stands twice"):
        verify_text(f'{{"format":"forestcoll.forest/1",{keys},"79999":0}}', "x")


def test_a_compact_forest_is_not_written_out_with_paths_without_end() -> None:
    topology = machine("ring gpus=4")
    whole = synthesize(topology, "allgather", compact=True, formats=("forest",)).forest
    assert whole.group is not None
    one = whole.trees[0]
    path = one.edges[0]
    long = replace(one, edges=(path[:1] * 3_000_000 + path[1:], *one.edges[1:]))
    with ends_soon(), pytest.raises(UnsupportedError, match=r"input limit PATH_NODES"):
        replace(whole, trees=(long,)).expand()


def test_huge_numbers_have_words() -> None:
    assert decimal(Fraction(400, 3)) == "133.333"
    assert decimal(Fraction(2, 3), 2) == "0.67"
    assert decimal(4 * Fraction(10) ** 399) == "4.000000e+399"


# --- the guard, for what no count foresaw --------------------------------------------------------


def spin() -> None:
    while True:
        pass


def hoard() -> None:
    held = []
    while len(held) < 2**10:
        held.append(b"\1" * 2**20)
        sum(range(10**5))


@pytest.mark.parametrize(
    ("work", "size", "words"),
    [
        (spin, 10**6 + 1, r"^x: takes more than 2 s of .* \(input limit SECONDS: 1\)$"),
        (hoard, 5, r"^x: takes more than 64 MiB of .* \(input limit MEMORY: 67,108,864\)$"),
    ],
)
def test_the_guard_ends_what_takes_too_much(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], None], size: int, words: str
) -> None:
    monkeypatch.setattr(process, "SECONDS", Limit(1, "SECONDS"))
    monkeypatch.setattr(process, "MEMORY", Limit(2**26, "MEMORY"))
    with ends_soon(), pytest.raises(ForestCollError, match=words), process.guard("x", size):
        work()


def test_the_guard_leaves_nothing_behind() -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError(number, frame)

    first = signal.signal(signal.SIGPROF, handler)
    try:
        with process.guard("x", 5), process.guard("y", 5):
            assert signal.getsignal(signal.SIGPROF) is not handler
        assert signal.getsignal(signal.SIGPROF) is handler
    finally:
        signal.signal(signal.SIGPROF, first)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


LATE = """
import os, signal
from forestcoll.ui.cli import process

assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
with process.guard("x", 5):
    pass
os.kill(os.getpid(), signal.SIGPROF)
print("alive")
"""


def test_a_signal_that_comes_after_the_guard_ends_nothing() -> None:
    """Another thread may take the timer's last one when the main thread has gone on."""
    done = finished(sys.executable, "-c", LATE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_the_guard_lets_other_threads_be() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: process.guard("x", 5).__enter__()).result()


def test_verify_refuses_by_the_guard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "SECONDS", Limit(0, "SECONDS"))
    path = tmp_path / "x.forest.json"
    path.write_text(json.dumps(ring(5000)))
    monkeypatch.setattr(process, "INTERVAL", 0.001)
    assert cli.main(["verify", str(path)]) == 1
    assert "takes more than 0 s of processor time" in capsys.readouterr().err


# --- plans of ours --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "place", "limit", "text"),
    [
        ("msccl-xml", "lower.limits", "INSTRUCTIONS", "all ranks have 168 thread blocks and steps"),
        ("mscclpp-json", "plans.mscclpp.shapes", "PLAN_VALUES", "plan cannot be read back"),
    ],
)
def test_a_plan_too_large_to_be_read_back_is_refused(
    form: PlanFormat, place: str, limit: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert synthesize(machine("ring"), "allgather", formats=form).programs
    monkeypatch.setattr(f"forestcoll.{place}.{limit}", Limit(32, limit))
    said = rf"{text}.* \(input limit {limit}: 32\).*; --format forest writes the trees"
    with pytest.raises(PlanError, match=said):
        synthesize(machine("ring"), "allgather", formats=form)
