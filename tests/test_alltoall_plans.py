"""Plans of all-to-all: proven, linted, within their runtimes' limits, and run with real bytes.

As many thread blocks between two ranks as keep links busy; times by topology and by the routes;
and the check over the catalogue (scripts/benchmarks/catalogue_alltoall.py) by a sample of it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_line import script
from exchanges import routes, solved, straight_ring
from graphs import dgx_a100, machine

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.compile.alltoall_plans import check, make
from forestcoll.execute import cpu
from forestcoll.lower.alltoall.filling import blocks_for, fill, shares_of
from forestcoll.lower.alltoall.lowering import Flow, Lanes, lower, transfers_of, write_out
from forestcoll.lower.limits import BLOCK
from forestcoll.lower.schedule import read
from forestcoll.plans.lint import lint
from forestcoll.program import Buffer, Collective, Op, Program, Protocol
from forestcoll.program.ops import SIGNALS, WAITS
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, TARGETS, Target
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import spread
from forestcoll.study import predict
from forestcoll.topology import catalog
from forestcoll.verify import simulate

FABRICS = {
    "dgx1": "dgx1-v100",
    "dgx1-2": "dgx1-v100 boxes=2",
    "dgx2": "dgx2-v100",
    "a100": "dgx-a100",
    "a100-2": "dgx-a100 boxes=2",
    "a100-2-nic": "dgx-a100 boxes=2 -box0/gpu0-fabric",
    "mi250": "mi250",
    "torus": "torus-3d x=3 y=3 z=2",
    "rail": "rail",
    "ring": "ring gpus=6",
    "dragonfly": "dragonfly",
}
LONG = "ring gpus=14"
both_targets = pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda target: target.name)


def wrong(program: Program, size: int, **how: Any) -> list[int]:
    """How many elements of a run are wrong, out of place: there is no other."""
    rows = cpu.run(program, size, **how).rows
    assert [row.mode for row in rows] == ["out-of-place"]
    return [row.wrong for row in rows]


def prove(text: str, target: str, protocol: Protocol | None = None) -> Program:
    """The plan of a fabric for a runtime: right, linted without a warning, no element wrong."""
    found, limits = routes(text), TARGETS[target]
    plan = make(found, limits.format, limits, text, protocol)
    report = lint(plan.text, "plan", target, sms=108)
    assert {f.severity for f in report.findings} <= {"note"}
    assert report.verified is not None
    assert plans.loads(plan.text, "plan").ranks == plan.program.ranks
    assert plan.program.collective is Collective.ALLTOALL
    for size, dtype in ((1, "float32"), (100_000, "bfloat16")):
        assert wrong(plan.program, size, dtype=dtype, iterations=2) == [0]
    return plan.program


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *product(FABRICS, ["rccl", "mscclpp"]),
        *((name, "msccl") for name in ("dgx1", "a100-2-nic", "ring")),
    ],
)
def test_plans_are_right(name: str, target: str) -> None:
    """Of the two runtimes of MSCCL XML the wider one has plans of a few of the fabrics."""
    prove(FABRICS[name], target)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "target"), [("torus-3d", "rccl"), ("dgx-a100 boxes=8", "mscclpp")]
)
def test_plans_of_64_ranks_are_right(text: str, target: str) -> None:
    """For one runtime each, as smaller ones of the same kinds are for all above."""
    prove(text, target)


@pytest.mark.parametrize("name", ["dgx1-2", "a100", "a100-2-nic", "mi250", "ring", "dragonfly"])
def test_packets_are_right(name: str) -> None:
    """Nobody signals; packets go over memory inside a box, by proxies between boxes.

    Scratch has two halves, which is enough for any launches in a row, each with other data.
    """
    program = prove(FABRICS[name], "mscclpp", "LL")
    operations = {i.op for *_, i in program.instructions()}
    assert not operations & (SIGNALS | WAITS)
    assert Op.PUT_PACKETS in operations or name == "dragonfly"  # there every GPU is a box
    assert (program.double_scratch, program.max_bytes) == (True, 1 << 20)
    kinds = {c.kind for r in program.ranks for b in r.thread_blocks for c in b.channels}
    assert ("port" in kinds) == (name in ("dgx1-2", "a100-2-nic", "dragonfly"))
    assert wrong(program, 4096, iterations=6) == [0]


def test_in_what_order_scratch_lies() -> None:
    """What a relay sends on together lies together: one message where three units go on."""
    flows = [Flow((s, 3, 4, 5), 0, 1) for s in (0, 1, 2)]
    transfers, scratch = transfers_of(flows, 6, 1, 71)
    assert scratch == [0, 0, 0, 3, 3, 0]
    messages = read(transfers)
    middle = [m for m in messages if (m.src, m.dst) == (3, 4)]
    assert [(m.chunks, m.source.buffer, m.level) for m in middle] == [(3, Buffer.SCRATCH, 1)]
    last = [m for m in messages if m.dst == 5]
    assert [(m.chunks, m.total.buffer) for m in last] == [(3, Buffer.OUTPUT)]


@pytest.mark.parametrize(("target", "most"), [(RCCL, 2), (MSCCLPP, 3)])
def test_scratch_is_used_again(target: Target, most: int) -> None:
    """Blocks go up to seven hops; a relay has the place of so many levels at most."""
    found = routes(LONG)
    program = lower(found, target, "ring")
    check(found, program)
    assert found.hops == 7
    passed_on = sum(flow.count * (len(flow.ranks) - 2) for flow in write_out(found))
    assert program.ranks[0].scratch_chunks <= most * program.ranks[0].input_chunks
    assert sum(rank.scratch_chunks for rank in program.ranks) <= Fraction(4, 5) * passed_on
    assert wrong(program, 14_000, iterations=3) == [0]


@pytest.mark.parametrize(
    ("found", "spoilt", "by"),
    [
        (routes(LONG), "lowering.TURNS", 2),
        (straight_ring(), "onesided._Writer._tell", lambda *_: None),
    ],
    ids=["a level sooner", "without the signal that it is free"],
)
def test_scratch_is_not_used_too_early(
    found: Routes, spoilt: str, by: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(found, lower(found, MSCCLPP, "ring"))
    monkeypatch.setattr(f"forestcoll.lower.alltoall.{spoilt}", by)
    with pytest.raises(PlanError, match="race"):
        check(found, lower(found, MSCCLPP, "ring"))


def test_no_message_is_longer_than_the_runtime_takes() -> None:
    found = route(solve(Demand(dgx_a100(1))), 100)
    program = lower(found, RCCL, "box")
    counts = [ref.count for *_, i in program.instructions() for ref in (*i.src, *i.dst)]
    assert max(counts) == RCCL.count
    check(found, program)


def most_blocks(program: Program) -> int:
    """Thread blocks of the fullest rank."""
    return max(len(rank.thread_blocks) for rank in program.ranks)


def test_steps_spread_over_thread_blocks() -> None:
    """More steps than a thread block holds become more thread blocks to the same peer.

    The one connection between two DGX-2 takes eight thread blocks, others one.
    """
    found = routes("mi250")
    wide = lower(found, replace(MSCCLPP, steps=31), "mi250")
    assert most_blocks(wide) > most_blocks(lower(found, MSCCLPP, "mi250"))
    check(found, wide)
    static = spread(solved("dgx2-v100 boxes=2"))
    assert most_blocks(lower(static, MSCCLPP.on(80), "dgx2")) == 24


@pytest.mark.parametrize(("name", "most"), [("a100-2", 5), ("dgx1-2", 6)])
def test_peers_share_thread_blocks(name: str, most: int) -> None:
    """Where a rank has more peers than thread blocks: the same bytes with fewer of them."""
    found = routes(FABRICS[name])
    program = lower(found, replace(MSCCLPP, thread_blocks=most), name)
    check(found, program)
    blocks = [block for rank in program.ranks for block in rank.thread_blocks]
    assert most_blocks(program) <= most
    assert 1 < max(len(block.channels) for block in blocks) <= 8
    assert {len({c.kind for c in block.channels}) for block in blocks} <= {0, 1}
    report = lint(plans.dumps(program, "mscclpp-json", MSCCLPP), "plan", "mscclpp")
    assert not [f for f in report.findings if f.severity != "note"]
    assert wrong(program, 20_000, iterations=3) == [0]


def test_plans_of_the_same_ways_in_halves_are_right() -> None:
    other = route(solve(Demand(dgx_a100(1))), 2)
    check(routes("dgx-a100"), lower(other, RCCL, "box"))


def test_protocols_of_fifos() -> None:
    assert lower(routes("dgx-a100"), MSCCL, "box", "LL128").protocol == "LL128"


def test_definition() -> None:
    """Part p of rank r's output is part r of rank p's input; busbw = algbw (n - 1) / n."""
    alltoall = Collective.ALLTOALL
    assert alltoall.origin(2, -1, 5) == (5, 2)
    assert alltoall.chunks(4, 12) == (12, 12)
    assert alltoall.bus_factor(4) == Fraction(3, 4)
    assert alltoall.transposes
    assert not Collective.ALLREDUCE.transposes
    assert not alltoall.phases


# --- thread blocks between two ranks --------------------------------------------------------------


def share(program: Program, text: str, found: Routes, **how: Any) -> float:
    """Of the routes' rate, with much data; signals take no time."""
    options = simulate.Options(**how)
    timing = simulate.run(program, machine(text), 1 << 30, rule="fair", options=options)
    return timing.algbw / float(found.algbw)


def test_blocks_that_a_rate_needs() -> None:
    """Links carry four fifths, nine tenths of which suffice; a block moves 24 GB/s."""
    assert [blocks_for(Fraction(rate)) for rate in (0, 1, 33, 34, 66, 67, 133, 134)] == [
        *(1, 1, 1, 2, 2, 4, 4, 8)
    ]


@both_targets
@pytest.mark.parametrize("name", ["mi300x", "dgx-a100", "dgx-h100", "dgx-b200"])
@pytest.mark.usefixtures("links_alone")
def test_links_are_busy(name: str, target: Target) -> None:
    """With one thread block for a peer they are not."""
    found, limits = routes(name, powers=True), target.on(108)
    plan = make(found, target.format, limits, name)
    assert plan.note == ""
    narrow = lower(found, limits, name)
    full, thin = (
        share(program, name, found, block_rate=float(BLOCK)) for program in (plan.program, narrow)
    )
    assert full > 0.7 > thin


@both_targets
@pytest.mark.parametrize(
    ("name", "counts", "stages"),
    [("dgx1-v100", (1, 2, 4), 1), ("mi250", (1, 2, 4), 1), ("dgx-a100", (1, 2, 4), 1),
     ("mi250", (1, 2), 3)],
)  # fmt: skip
def test_parts_are_dealt_out_at_random(
    name: str, counts: tuple[int, ...], stages: int, target: Target
) -> None:
    """Whatever the lanes and stages, also over relays: right, over the routes.

    In a single stage no message is in two lanes.
    """
    found, dice = routes(name, powers=True), random.Random(5)
    of = {pair: dice.choice(counts) for pair in shares_of(found)}
    lanes = Lanes(max(counts), max(counts) // 2, of, stages)
    program = lower(found, target.on(304), name, lanes=lanes)
    check(found, program)
    parts = max(counts) * stages
    assert program.ranks[0].input_chunks == len(found.graph.ranks) * found.units * parts
    assert wrong(program, 100_000) == [0]
    blocks = program.ranks[0].thread_blocks
    peers = Counter(b.send if target is RCCL else b.channels[0].peer for b in blocks if
                    target is RCCL or b.channels)  # fmt: skip
    assert stages > 1 or all(count >= of[0, peer] for peer, count in peers.items() if peer >= 0)


@both_targets
def test_several_copy_what_a_rank_keeps(target: Target) -> None:
    plan = make(routes("dgx-b200", powers=True), target.format, target.on(108), "b200")
    copies = Counter(b for r, b, _, i in plan.program.instructions() if r == 0 and i.op is Op.COPY)
    assert [*copies.values()] == [1, 1, 1, 1]


def test_what_keeps_it_from_more() -> None:
    found = routes("mi300x", powers=True)
    program, note = fill(found, replace(RCCL, thread_blocks=12), "box", None)
    assert len(program.ranks[0].thread_blocks) == 12
    assert note == (
        "msccl-xml: 1 of the 2 thread blocks that 64 GB/s between two ranks take (each moves some "
        "24): with 2 rank 0 (box0/gpu0) needs 15 thread blocks, rccl holds 12"
    )
    program, note = fill(found, RCCL, "box", "LL")
    assert (note, program.ranks[0].input_chunks) == ("", 8)


@pytest.mark.parametrize(("name", "least"), [("mi250", 0.92), ("dgx1-v100", 0.97)])
@pytest.mark.usefixtures("links_alone")
def test_hops_of_onesided_plans_overlap(name: str, least: float) -> None:
    """Parts follow one another through the hops; in a single stage links wait for each other."""
    found, limits = routes(name, powers=True), MSCCLPP.on(104)
    plan, whole = make(found, limits.format, limits, name), lower(found, limits, name)
    assert plan.program.ranks[0].input_chunks > whole.ranks[0].input_chunks
    assert share(plan.program, name, found) > least > share(whole, name, found)
    assert wrong(plan.program, 100_000) == [0]


# --- times ----------------------------------------------------------------------------------------


@both_targets
@pytest.mark.parametrize("name", ["mi300x", "dgx-a100", "hypercube"])
def test_one_hop_or_two_reach_the_bound(name: str, target: Target) -> None:
    """Never faster than the links allow; nearly as fast with much data."""
    found, topology = routes(name), machine(name)
    prediction = predict.by_topology(lower(found, target, name), topology)
    assert prediction.algbw == found.optimum.algbw
    assert prediction.figures.source == f"the optimum of {topology.name}"
    band = prediction.band(1 << 30)
    assert band is not None
    best = float(found.algbw)
    assert max(band.fifo_algbw, band.fair_algbw) <= best * (1 + 1e-9)
    if found.hops == 1:
        # in order, puts of whole blocks that begin at once wait for each other at a switch
        assert band.fair_algbw > 0.99 * best
        assert target is MSCCLPP or band.fifo_algbw > 0.99 * best


def test_by_the_routes_alone() -> None:
    found = routes("mi250")
    prediction = predict.by_routes(lower(found, RCCL, "mi250"), found)
    assert prediction.algbw == found.algbw
    assert prediction.microseconds(1 << 30) >= float((1 << 30) / found.algbw / 1000)


# --- the check over the catalogue -----------------------------------------------------------------

catalogue = script("catalogue_alltoall")
SAMPLE = (
    catalogue.Machine("ring", {"gpus": "4"}),
    catalogue.Machine("rail", {"boxes": "2", "gpus": "2", "rails": "2"}),
    catalogue.Machine("dgx1-v100", {}, ("box0/gpu0-box0/gpu1",)),
)


def test_a_sample_is_right_and_is_kept(tmp_path: Path) -> None:
    """All kinds of three machines; then the same from the file, without any work."""
    state = tmp_path / "state.jsonl"
    first, sizes = catalogue.run_all(list(SAMPLE), catalogue.State(state))
    # the optimum's routes of all, spread ones where there are boxes
    assert len(first) == (len(SAMPLE) + 1) * len(catalogue.KINDS)
    assert {one.cell for one in first} == {"ok"}
    assert sorted(sizes.values()) == [4, 4, 4, 8]
    again = catalogue.State(state)
    assert len(again.known) == len(first)
    assert catalogue.run_all(list(SAMPLE), again)[0] == list(again.known.values())


def test_all_machines_up_to_64_ranks_are_asked_for() -> None:
    chosen = catalogue.machines()
    assert {one.name for one in chosen} == set(catalog.names()) - {"gb200-nvl72"}
    assert max(len(one.load().gpus) for one in chosen) == 64
    assert sum(bool(one.without) for one in chosen) >= 4
    assert {k.target for k in catalogue.KINDS if k.protocol == "Simple"} == set(TARGETS)


def test_wrong_plans_are_faults_and_refusals_are_told() -> None:
    """A plan one of whose messages goes to the wrong place; one that does not fit."""
    limits, found = TARGETS["rccl"], routes("ring gpus=4")
    text = make(found, limits.format, limits, "ring").text
    assert list(catalogue.faults_of_file(found, text, limits)) == []
    other = text.replace('srcbuf="i" srcoff="0"', 'srcbuf="i" srcoff="1"', 1)
    said = list(catalogue.faults_of_file(found, other, limits))
    assert {"routes", "lint"} <= {each.partition(":")[0] for each in said}
    one = catalogue.checked("ring", found, catalogue.KINDS[0], 1)
    assert one.cell == "-"
    assert "thread blocks" in one.refused
