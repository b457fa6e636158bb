"""Links at what was measured: the tools' outputs, and what is found from them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from graphs import machine
from test_readings import text_of

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Node, Topology, catalog
from forestcoll.topology.calibrate import Measured, calibrate, load_measurement

H100 = catalog.machine("dgx-h100")
Pair = tuple[int, int]


def pairs(ranks: int, rate: Callable[[int, int], float]) -> dict[Pair, float]:
    return {(i, j): rate(i, j) for i in range(ranks) for j in range(ranks) if i != j}


P2P = text_of("measured", "p2p bandwidth latency test")
SENDRECV = text_of("measured", "sendrecv of nccl tests")


def test_sendrecv_of_nccl_tests() -> None:
    result = calibrate(H100, load_measurement(SENDRECV, "m"))
    assert set(result.topology.rates().values()) == {Fraction(371)}
    assert any("measured at once" in note for note in result.notes)
    assert any("10 links were not measured themselves" in note for note in result.notes)


LONG = {
    "many matrices": P2P * (3_000_000 // len(P2P)),
    "empty lines after the rows": SENDRECV + "\n" * 60_000,
    "a title that never ends": "memcpy CE " * 30_000,
}


@pytest.mark.parametrize("kind", sorted(LONG))
def test_time_grows_with_the_length_of_the_file(kind: str) -> None:
    """Each takes tens of seconds where every line looks at all the others."""
    began = time.process_time()
    if "never" in kind:
        with pytest.raises(TopologyError, match="not the output of nvbandwidth"):
            load_measurement(LONG[kind], "m")
    else:
        found = load_measurement(LONG[kind], "m")
        assert found.rates == load_measurement(P2P if "many" in kind else SENDRECV, "m").rates
    assert time.process_time() - began < 2.5


def measure(topology: Topology, noise: float, seed: int = 1) -> Measured:
    """Every pair through one switch or a link of its own, with noise."""
    rng = random.Random(seed)
    directed, gpus = topology.rates(), topology.gpus

    def rate(i: int, j: int) -> float:
        own = directed.get((gpus[i], gpus[j]))
        if own is None:
            own = min(directed[gpus[i], "nvswitch"], directed["nvswitch", gpus[j]])
        return float(own) * rng.uniform(1 - noise, 1 + noise)

    return Measured("test", len(gpus), pairs(len(gpus), rate))


def scaled(topology: Topology, factors: dict[tuple[str, str], float], rest: float) -> Topology:
    links = [
        Link(s, d, rate * Fraction(str(factors.get((s, d), rest))), oneway=True)
        for (s, d), rate in topology.rates().items()
    ]
    return Topology(topology.name, topology.nodes, tuple(links))


def test_a_slow_gpu_behind_a_switch_is_found_and_noise_is_not() -> None:
    slow = {("gpu3", "nvswitch"): 0.5, ("nvswitch", "gpu6"): 0.7}
    truth = scaled(H100, slow, 0.85)
    result = calibrate(H100, measure(truth, 0.02))
    found = result.topology.rates()
    usual = [rate for arc, rate in found.items() if arc not in slow]
    assert len(set(usual)) <= 2  # one for each direction's class
    for arc, rate in found.items():
        assert abs(float(rate / truth.rates()[arc]) - 1) < 0.03, arc
    assert [arc for one in result.classes for arc, _ in one.slow] == list(slow)
    assert result.odd == []
    assert result.topology.name == "dgx-h100-calibrated"


def test_single_odd_pairs_change_nothing_and_are_named() -> None:
    measured = measure(scaled(H100, {}, 0.9), 0.0)
    measured.rates[2, 5] = 20.0
    measured.rates[0, 1] = 3000.0
    result = calibrate(H100, measured)
    assert set(result.topology.rates().values()) == {405}
    assert [(o.src, o.dst) for o in result.odd] == [("gpu0", "gpu1"), ("gpu2", "gpu5")]


def test_a_mesh_takes_each_pair_by_itself() -> None:
    mesh = catalog.machine("mi250")
    directed, gpus = mesh.rates(), mesh.gpus
    rates = {
        (i, j): float(directed[gpus[i], gpus[j]]) * (0.4 if {i, j} == {0, 8} else 0.7)
        for i in range(16)
        for j in range(16)
        if (gpus[i], gpus[j]) in directed
    }
    far = pairs(16, lambda i, j: 11.0)
    result = calibrate(mesh, Measured("test", 16, {**far, **rates}))
    found = result.topology.rates()
    assert found["gpu0", "gpu8"] == 20
    assert found["gpu0", "gpu1"] == 140  # four links of 35
    assert all(found[arc] == directed[arc] * Fraction(7, 10) for arc in found if arc not in
               (("gpu0", "gpu8"), ("gpu8", "gpu0")))  # fmt: skip
    assert any("have no way over the links without other GPUs" in note for note in result.notes)


def test_one_box_stands_for_all() -> None:
    two = machine("dgx-h100 boxes=2")
    result = calibrate(two, Measured("test", 8, pairs(8, lambda i, j: 390.0)))
    directed = result.topology.rates()
    assert directed["box0/gpu0", "box0/nvswitch"] == directed["box1/gpu7", "box1/nvswitch"] == 390
    assert directed["box0/gpu0", "fabric"] == 50
    assert any("not limiting any measured pair, at nominal: " in note for note in result.notes)
    cross = {(i, i + 8): 45.0 for i in range(8)}
    both = calibrate(two, Measured("test", 16, {**pairs(8, lambda i, j: 390.0), **cross}))
    assert both.topology.rates()["box1/gpu3", "fabric"] == 45


def test_the_narrowest_link_of_a_way_takes_the_blame() -> None:
    links = (("gpu0", "cpu0", 24), ("cpu0", "cpu1", 16), ("gpu1", "cpu1", 24))
    nodes = {end: Node("gpu" if "gpu" in end else "switch") for a, b, _ in links for end in (a, b)}
    topology = Topology("t", nodes, tuple(Link(a, b, Fraction(rate)) for a, b, rate in links))
    result = calibrate(topology, Measured("m", 2, {(0, 1): 8.0, (1, 0): 8.0}))
    directed = result.topology.rates()
    assert directed["cpu0", "cpu1"] == 8
    assert directed["gpu0", "cpu0"] == 24


def test_latency() -> None:
    measured = Measured("m", 8, pairs(8, lambda i, j: 400.0), pairs(8, lambda i, j: 1.2))
    measured.latencies[0, 1] = 90.0
    result = calibrate(H100, measured)
    assert set(result.topology.latencies().values()) == {Fraction("0.6")}
    without = calibrate(H100, Measured("m", 8, pairs(8, lambda i, j: 400.0)))
    assert without.topology.latencies() == H100.latencies()


def test_a_slow_box_shows_in_the_inspectors_lines() -> None:
    """Each box has a communicator of its own; which box, its processes in the one of all tell."""
    lines = []
    for k in range(16):
        data = {"hostname": f"node{1 - k // 8}", "pid": 100 + k}  # not in the order of their names
        for name, rank, n, nodes, rate in (
            ("0xw", k, 16, 2, 48.0),
            (f"0x{k // 8}", k % 8, 8, 1, 200.0 if k < 8 else 350.0),
        ):
            head = {"id": name, "rank": rank, "n_ranks": n, "nnodes": nodes}
            perf = {"coll": "AllReduce", "coll_busbw_gbs": rate}
            lines.append(json.dumps({"header": head, "metadata": data, "coll_perf": perf}))
    two = machine("dgx-h100 boxes=2")
    result = calibrate(two, load_measurement("\n".join(lines), "m"), 0.05)
    directed = result.topology.rates()
    assert directed["box0/gpu3", "box0/nvswitch"] == 200
    assert directed["box1/gpu3", "box1/nvswitch"] == 350
    assert directed["box1/gpu3", "fabric"] == 50
