"""Plans of all-to-all: proven, linted, within their runtimes' limits, and run with real bytes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from graphs import build, dgx_a100

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.compile.alltoall_plans import check, make, targets_of
from forestcoll.execute import cpu
from forestcoll.lower.alltoall.lowering import Flow, lower, transfers_of, write_out
from forestcoll.plans.lint import lint
from forestcoll.program import Buffer, Collective, Op, Program, Protocol
from forestcoll.program.ops import SIGNALS, WAITS
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, TARGETS, Target
from forestcoll.solver.alltoall.demand import Demand, uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import spread
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit
from forestcoll.verify import verify

FABRICS: dict[str, tuple[str, dict[str, object], str]] = {
    "dgx1": ("dgx1-v100", {}, ""),
    "dgx1-2": ("dgx1-v100", {"boxes": 2}, ""),
    "dgx2": ("dgx2-v100", {}, ""),
    "a100": ("dgx-a100", {}, ""),
    "a100-2": ("dgx-a100", {"boxes": 2}, ""),
    "a100-2-nic": ("dgx-a100", {"boxes": 2}, "box0/gpu0-fabric"),
    "h100-2": ("dgx-h100", {"boxes": 2}, ""),
    "mi250": ("mi250", {}, ""),
    "mi250-2": ("mi250", {"boxes": 2}, ""),
    "mi300x-2": ("mi300x", {"boxes": 2}, ""),
    "torus": ("torus-3d", {"x": 3, "y": 3, "z": 2}, ""),
    "rail": ("rail", {}, ""),
    "ring": ("ring", {"gpus": 6}, ""),
    "hypercube": ("hypercube", {"dimension": 4}, ""),
    "dragonfly": ("dragonfly", {}, ""),
}
LONG = {"ring-14": ("ring", {"gpus": 14}, "")}
LARGE: dict[str, tuple[str, dict[str, object], str]] = {
    "torus-4": ("torus-3d", {}, ""),
    "a100-8": ("dgx-a100", {"boxes": 8}, ""),
}


@cache
def routes(name: str) -> Routes:
    topology, settings, without = (FABRICS | LARGE | LONG)[name]
    found = catalog.load(topology, settings)
    return route(solve(uniform(edit(found, (without,), []) if without else found)))


def prove(name: str, target: str, protocol: Protocol | None = None) -> Program:
    """The plan of a fabric for a runtime: right, linted without a warning, no element wrong.

    Of 16 ranks a node MSCCL++ takes none, and nothing else is wrong with it.
    """
    found, limits = routes(name), TARGETS[target]
    refused = {"MPP-NICS"} if (name, target) == ("mi250-2", "mscclpp") else set()
    plan = make(
        found, limits.format, replace(limits, nics=0) if refused else limits, name, protocol
    )
    report = lint(plan.text, "plan", target, sms=108)
    assert {f.rule for f in report.findings if f.severity != "note"} == refused
    assert report.verified is not None
    for size, dtype in ((1, "float32"), (100_000, "bfloat16")):
        done = cpu.run(plan.program, size, dtype=dtype, iterations=2)
        assert [(row.mode, row.wrong) for row in done.rows] == [("out-of-place", 0)]
    return plan.program


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *product(FABRICS, ["rccl", "mscclpp"]),
        *((name, "msccl") for name in ("dgx1", "a100-2-nic", "mi250", "torus", "ring")),
    ],
)
def test_plans_are_right(name: str, target: str) -> None:
    """Of the two runtimes of MSCCL XML the wider one has plans of a few of the fabrics."""
    prove(name, target)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "target"), [("torus-4", "rccl"), ("a100-8", "mscclpp")])
def test_plans_of_64_ranks_are_right(name: str, target: str) -> None:
    """For one runtime each, as smaller ones of the same kinds are for all above.

    All machines, runtimes and protocols: `scripts/benchmarks/catalogue_alltoall.py`.
    """
    prove(name, target)


@pytest.mark.parametrize("name", ["dgx1-2", "a100", "a100-2-nic", "mi250", "ring", "dragonfly"])
def test_packets_are_right(name: str) -> None:
    """Nobody signals; packets go over memory inside a box, by proxies between boxes."""
    program = prove(name, "mscclpp", "LL")
    operations = {i.op for *_, i in program.instructions()}
    assert not operations & (SIGNALS | WAITS)
    assert Op.PUT_PACKETS in operations or name == "dragonfly"  # there every GPU is a box
    assert (program.double_scratch, program.max_bytes) == (True, 1 << 20)
    kinds = {(c.kind, r) for r in program.ranks for b in r.thread_blocks for c in b.channels}
    far = {kind for kind, _ in kinds}
    assert ("port" in far) == (name in ("dgx1-2", "a100-2-nic", "dragonfly"))


def test_launches_of_packets_in_a_row() -> None:
    """Scratch has two halves, which is enough: six launches, each with other data."""
    found = routes("mi250")
    plan = make(found, "mscclpp-json", MSCCLPP, "mi250", "LL")
    done = cpu.run(plan.program, 4096, iterations=6)
    assert [row.wrong for row in done.rows] == [0]
    with pytest.raises(PlanError, match="of the next launch both use chunk"):
        verify(replace(plan.program, double_scratch=False), launches=3)


def test_packets_are_for_few_bytes() -> None:
    with pytest.raises(PlanError, match="packets are for up to 1048576; fewer units"):
        lower(route(solve(Demand(dgx_a100(2))), 5000), MSCCLPP, "boxes", "LL")


def test_in_what_order_scratch_lies() -> None:
    """What a relay sends on together lies together: one message where three units go on."""
    flows = [Flow((s, 3, 4, t), 0, 1) for s in (0, 1, 2) for t in (5,)]
    transfers, scratch = transfers_of(flows, 6, 1, 71)
    assert scratch == [0, 0, 0, 3, 3, 0]
    middle = [m for m in transfers if (m.src, m.dst) == (3, 4)]
    assert [(m.count, m.source.buffer, m.level) for m in middle] == [(3, Buffer.SCRATCH, 1)]
    last = [m for m in transfers if m.dst == 5]
    assert [(m.count, m.total.buffer) for m in last] == [(3, Buffer.OUTPUT)]


@pytest.mark.parametrize(("target", "most"), [(RCCL, 2), (MSCCLPP, 3)])
def test_scratch_is_used_again(target: Target, most: int) -> None:
    """Blocks go up to seven hops; a relay has the place of so many levels at most."""
    found = routes("ring-14")
    program = lower(found, target, "ring")
    check(found, program)
    assert found.hops == 7
    passed_on = sum(flow.count * (len(flow.ranks) - 2) for flow in write_out(found))
    assert program.ranks[0].scratch_chunks <= most * program.ranks[0].input_chunks
    assert sum(rank.scratch_chunks for rank in program.ranks) <= Fraction(4, 5) * passed_on
    assert [row.wrong for row in cpu.run(program, 14_000, iterations=3).rows] == [0]


def test_scratch_is_not_used_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """One level sooner, or without the signal that it is free, others would write too soon."""
    found = routes("ring-14")
    with monkeypatch.context() as patch:
        patch.setattr("forestcoll.lower.alltoall.lowering.TURNS", 2)
        with pytest.raises(PlanError, match="race"):
            check(found, lower(found, MSCCLPP, "ring"))
    one_way = straight_ring()
    check(one_way, lower(one_way, MSCCLPP, "ring"))
    with monkeypatch.context() as patch:
        patch.setattr("forestcoll.lower.alltoall.onesided._Writer._tell", lambda *_: None)
        with pytest.raises(PlanError, match="race"):
            check(one_way, lower(one_way, MSCCLPP, "ring"))


def test_no_message_is_longer_than_the_runtime_takes() -> None:
    found = route(solve(Demand(dgx_a100(1))), 100)
    program = lower(found, RCCL, "box")
    counts = [ref.count for *_, i in program.instructions() for ref in (*i.src, *i.dst)]
    assert max(counts) == RCCL.count
    check(found, program)


def test_every_pair_has_its_units() -> None:
    found = routes("mi250")
    have: dict[tuple[int, int], set[int]] = {}
    for flow in write_out(found):
        units = set(range(flow.first, flow.first + flow.count))
        assert not units & have.setdefault((flow.ranks[0], flow.ranks[-1]), set())
        have[flow.ranks[0], flow.ranks[-1]] |= units
    assert len(have) == 16 * 15
    assert all(units == set(range(found.units)) for units in have.values())


def test_steps_spread_over_thread_blocks() -> None:
    """More steps than a thread block holds become more thread blocks to the same peer."""
    found = routes("mi250")
    narrow = lower(found, MSCCLPP, "mi250")
    wide = lower(found, replace(MSCCLPP, steps=31), "mi250")
    blocks = [max(len(rank.thread_blocks) for rank in p.ranks) for p in (narrow, wide)]
    assert blocks[1] > blocks[0]
    check(found, wide)


def test_peers_share_thread_blocks() -> None:
    """Where a rank has more peers than thread blocks: the same bytes with fewer of them."""
    for name, most in (("a100-2", 5), ("dgx1-2", 6)):
        found = routes(name)
        program = lower(found, replace(MSCCLPP, thread_blocks=most), name)
        check(found, program)
        blocks = [block for rank in program.ranks for block in rank.thread_blocks]
        assert max(len(rank.thread_blocks) for rank in program.ranks) <= most
        assert 1 < max(len(block.channels) for block in blocks) <= 8
        assert {len({c.kind for c in block.channels}) for block in blocks} <= {0, 1}
        report = lint(plans.dumps(program, "mscclpp-json", MSCCLPP), "plan", "mscclpp")
        assert not [f for f in report.findings if f.severity != "note"]
        assert [row.wrong for row in cpu.run(program, 20_000, iterations=3).rows] == [0]


def test_static_routes_of_two_dgx2_fit() -> None:
    """The one connection between the boxes takes eight thread blocks, others one."""
    found = spread(solve(uniform(catalog.load("dgx2-v100", {"boxes": 2}))))
    program = lower(found, MSCCLPP.on(80), "dgx2")
    assert max(len(rank.thread_blocks) for rank in program.ranks) == 24


def test_protocols() -> None:
    assert lower(routes("a100"), MSCCL, "box", "LL128").protocol == "LL128"
    with pytest.raises(PlanError, match=r"mscclpp has Simple and LL \(packets\)"):
        lower(routes("a100"), MSCCLPP, "box", "LL128")


def test_a_program_that_is_not_the_routes_is_found() -> None:
    found = routes("a100")
    other = route(solve(Demand(dgx_a100(1))), 2)
    with pytest.raises(PlanError, match="of the data from rank 0 to rank"):
        check(routes("ring"), lower(straight_ring(), RCCL, "ring"))
    check(found, lower(other, RCCL, "box"))  # the same ways, in halves


def straight_ring() -> Routes:
    """The ring's routes, all clockwise."""
    found = routes("ring")
    graph = found.graph
    order = [graph.names.index(f"gpu{i}") for i in range(6)]
    paths = tuple(
        replace(found.routes[0], path=tuple(order[: k + 1]), units=found.units) for k in range(1, 6)
    )
    return replace(found, routes=paths)


def test_a_wrong_plan_is_found() -> None:
    found = routes("a100")
    program = lower(found, RCCL, "box")
    first = program.ranks[0]
    block = next(b for b, t in enumerate(first.thread_blocks) if t.send >= 0)
    step = first.thread_blocks[block].steps[0]
    wrong = replace(step, src=(replace(step.src[0], offset=0),))  # type: ignore[union-attr]
    blocks = list(first.thread_blocks)
    blocks[block] = replace(blocks[block], steps=(wrong,))
    ranks = (replace(first, thread_blocks=tuple(blocks)), *program.ranks[1:])
    with pytest.raises(PlanError):
        check(found, replace(program, ranks=ranks))


def test_relays_that_run_no_plan_are_refused() -> None:
    graph = build([("a", "idle", 1), ("idle", "b", 1)], ranks=["a", "b"])
    with pytest.raises(PlanError, match="through idle, which is no rank and runs no plan"):
        lower(route(solve(Demand(graph))), RCCL, "relayed")


def test_limits_are_refused_with_figures() -> None:
    found = routes("a100-8")
    with pytest.raises(PlanError, match=r"needs \d+ thread blocks, rccl holds 32; fewer units"):
        lower(found, replace(RCCL, thread_blocks=32), "boxes")
    with pytest.raises(PlanError, match="64 chunks in a buffer, rccl holds 63"):
        lower(found, replace(RCCL, chunks=63), "boxes")


def test_targets() -> None:
    assert [limits.name for limits in targets_of("any", "mi250-1").values()] == ["rccl", "mscclpp"]
    assert targets_of("msccl", "dgx-h100-1")["msccl-xml"].thread_blocks == 132


def test_definition() -> None:
    """Part p of rank r's output is part r of rank p's input; busbw = algbw (n - 1) / n."""
    alltoall = Collective.ALLTOALL
    assert alltoall.origin(2, -1, 5) == (5, 2)
    assert alltoall.chunks(4, 12) == (12, 12)
    assert alltoall.bus_factor(4) == Fraction(3, 4)
    assert alltoall.transposes
    assert not Collective.ALLREDUCE.transposes
    assert not alltoall.phases


def test_plans_are_read_back() -> None:
    for target in (RCCL, MSCCLPP):
        plan = make(routes("dgx1"), target.format, target, "dgx1")
        again = plans.loads(plan.text, "plan")
        assert again.collective is Collective.ALLTOALL
        assert again.ranks == plan.program.ranks
        assert any(i.op in (Op.SEND, Op.PUT) for *_, i in again.instructions())
