"""Plan sets: for every size the plan that is quickest, found as the runtimes look plans up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from graphs import machine, named
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.common.clock import Clock
from forestcoll.common.input_limits import Limit
from forestcoll.compile import plan_set
from forestcoll.compile.budget import Budget
from forestcoll.compile.plan_set.candidates import WIDE, Made
from forestcoll.compile.plan_set.contest import NEVER, Contest, Range
from forestcoll.compile.plan_set.estimate import Line, line_of
from forestcoll.compile.plan_set.index import chunks_of, files_of, loads
from forestcoll.compile.plan_set.values import Candidate
from forestcoll.compile.rivals import drop_equals
from forestcoll.compile.search import FACTOR, HALVINGS, SURE
from forestcoll.execute import cpu
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program import BY_TREES, Collective, Program, Protocol
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import RCCL
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.forest import check as check_forest
from forestcoll.solver import optimum, solve
from forestcoll.solver.baselines import by_name
from forestcoll.solver.shallow.lowest import pack_lowest
from forestcoll.topology import catalog
from forestcoll.verify import simulate

K, G = 1 << 10, 1 << 30


@cache
def made(name: str, collective: str, low: int = K, high: int = 8 * G, **how: Any) -> Any:
    return plan_set.make(machine(name), collective, low, high, **how)


def written(the_set: Any, directory: Path) -> Path:
    for file, text in files_of(the_set).items():
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text(text)
    return directory


# ---------------------------------------------------------------------------------- estimates


lines = st.builds(
    Line,
    st.fractions(Fraction(1, 10), 100, max_denominator=10),
    st.fractions(Fraction(1, 10), 1000, max_denominator=10),
)


def contest_of(times: Sequence[Callable[[int], float]], until: Sequence[int] = ()) -> Contest:
    """Candidates that take these times for so many bytes, and serve calls up to `until`."""
    topology = machine("ring gpus=2")
    graph = CapacityGraph.from_topology(topology)
    forest = solve(graph, Collective.ALLGATHER)
    program = lower(forest, RCCL)
    ends = dict(enumerate(until or (G,) * len(times)))
    candidates = [
        Candidate(forest, ("fifo", "Simple"), Line(Fraction(i), Fraction(10**9)))
        for i in range(len(times))
    ]

    def make(candidate: Candidate, tuned: bool) -> tuple[Program, str]:
        return replace(program, max_bytes=ends[int(candidate.line.latency)]), ""

    contest = Contest(candidates, make, topology, Clock(), Made())
    contest.least = lambda i, size: 0.0  # type: ignore[method-assign]
    contest._search_above = lambda i: NEVER  # type: ignore[method-assign]

    play(contest, lambda i, size: [times[i](size) if size <= ends[i] else NEVER] * 2)
    return contest


def play(contest: Contest, times: Callable[[int, int], list[float]]) -> None:
    """Candidates take these times for so many bytes, once their plans are there."""

    def times_of(i: int, size: int, *_: object) -> list[float]:
        assert contest.program(i) is not None
        return times(i, size)

    contest.times = times_of  # type: ignore[method-assign]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(lines, min_size=1, max_size=6),
    st.integers(1, 10**6),
    st.integers(0, 10**9),
    st.lists(st.integers(1, 10**9), min_size=6, max_size=6),
)
def test_ranges_leave_no_gap_and_have_nearly_the_fastest(
    some: list[Line], low: int, more: int, ends: list[int]
) -> None:
    high = low + more
    until = [max(low, end) for end in ends[: len(some)]]
    contest = contest_of([lambda size, line=line: float(line.time(size)) for line in some], until)
    ranges = contest.ranges(low, high, high)
    assert [r.low for r in ranges] == [low, *(r.high + 1 for r in ranges[:-1])]
    assert ranges[-1].high == high
    for place in ranges[:-1]:
        assert place.high <= until[place.index]
    size = low
    while size <= high:
        times = [max(contest.times(i, size)) for i in range(len(some))]
        mine = next(times[r.index] for r in ranges if r.low <= size <= r.high)
        if min(times) < NEVER:
            assert mine <= min(times) * SURE * (1 + 1e-9)
        size *= FACTOR


def test_a_plan_that_wins_a_little_is_left_out() -> None:
    few, middle, many = (lambda s: 5 + s / 10, lambda s: 9.8 + s / 19.5, lambda s: 10 + s / 20)
    assert [r.index for r in contest_of([few, middle, many]).ranges(1, 10**6, 10**6)] == [0, 2]


@pytest.mark.parametrize(("behind", "taken"), [(1.009, 1), (1.011, 0)])
def test_of_plans_that_are_good_one_of_fewer_trees_is_taken(behind: float, taken: int) -> None:
    """Two trees per root are a percent faster than one; or nearly."""
    topology = machine("ring")
    graph = CapacityGraph.from_topology(topology)
    forests = [solve(graph, Collective.ALLGATHER, trees=k) for k in (2, 1)]
    line = Line(Fraction(10), Fraction(100))
    candidates = [Candidate(f, ("fifo", "LL"), line) for f in forests]

    def make(candidate: Candidate, tuned: bool) -> tuple[Program, str]:
        assert isinstance(candidate.origin, Forest)
        return lower(candidate.origin, RCCL, protocol="LL"), ""

    contest = Contest(candidates, make, topology, Clock(), Made())

    play(contest, lambda i, size: [size, size * behind**i])
    assert contest.ranges(K, G, G) == [Range(K, G, taken)]


def test_the_latency_is_that_of_the_longest_way() -> None:
    topology = machine("dgx-a100 boxes=2")
    graph = CapacityGraph.from_topology(topology)
    best = optimum(graph, Collective.ALLREDUCE, None)
    star = pack_lowest(graph, Collective.ALLREDUCE, None, best, "star")
    assert star is not None
    line = line_of(star, ("fifo", "LL"), topology.latencies(), topology.name)
    # both ways over the network: 2 x (0.85 + 0.85 of the links + 0.6 of the runtime)
    assert line.latency == 2 * Fraction("2.3")
    assert line.algbw == star.algbw / 2
    simple = line_of(star, ("fifo", "Simple"), topology.latencies(), topology.name)
    assert (simple.latency, simple.algbw) == (2 * Fraction("5.1"), star.algbw)


@pytest.mark.parametrize(
    ("name", "data"), [("dgx-a100", Fraction(15, 16)), ("mi300x", Fraction(7, 8))]
)
def test_flags_take_what_the_simulation_has_them_take(name: str, data: Fraction) -> None:
    """RCCL's lines of LL128 are shorter: what is data there depends on whose GPUs they are."""
    topology = catalog.load(name)
    graph = CapacityGraph.from_topology(topology)
    best = optimum(graph, Collective.ALLGATHER, None)
    star = pack_lowest(graph, Collective.ALLGATHER, None, best, topology.name)
    assert star is not None
    size = 1 << 20
    shares: dict[Protocol, Fraction] = {"LL": Fraction(1, 2), "LL128": data, "Simple": Fraction(1)}
    for protocol, share in shares.items():
        line = line_of(star, ("fifo", protocol), topology.latencies(), topology.name)
        assert line.algbw == star.algbw * share
        program = lower(star, RCCL, protocol=protocol)
        links = simulate.run(program, star, size, links=topology).links
        busy = max(use.bytes / use.bandwidth for use in links) / 1000
        assert busy == pytest.approx(float(line.time(size) - line.latency))


@pytest.mark.parametrize("collective", list(BY_TREES), ids=str)
@pytest.mark.parametrize(("name", "height"), [("dgx-a100", 1), ("dgx1-v100", 2), ("mi250", 4)])
def test_the_lowest_trees_are_the_lowest(name: str, height: int, collective: Collective) -> None:
    graph = named(name)
    root = 0 if collective.has_root else None
    best = optimum(graph, collective, root)
    found = pack_lowest(graph, collective, root, best, name)
    assert found is not None
    check_forest(found)
    assert found.height <= height + (0 if collective.has_root else 1)
    assert found.height <= solve(graph, collective, root, 1, name=name).height
    assert found.algbw <= best.algbw


def test_no_lowest_trees_where_only_strangers_lead_on() -> None:
    topology = machine("ring gpus=4")
    ranks = [topology.gpus[0], topology.gpus[2]]
    graph = CapacityGraph.from_topology(topology, ranks=ranks, relays="all")
    best = optimum(graph, Collective.ALLGATHER, None)
    assert pack_lowest(graph, Collective.ALLGATHER, None, best, "ring") is None


# --------------------------------------------------------------------------------------- sets


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("star gpus=4", Collective.ALLREDUCE),
        *(("ring gpus=5", collective) for collective in (Collective.ALLGATHER, Collective.REDUCE)),
    ],
)
def test_every_size_has_one_plan_and_the_plans_run(
    name: str, collective: Collective, tmp_path: Path
) -> None:
    the_set = made(name, collective)
    verdict = plan_set.check(written(the_set, tmp_path))
    assert len(verdict.lines) > len(the_set.plans)
    for plans in the_set.plans:
        entries = plans.entries
        assert entries[0].low == K
        assert [e.low for e in entries[1:]] == [e.high + 1 for e in entries[:-1]]
        reach = 8 * G if plans.format == "msccl-xml" else entries[-1].high
        assert entries[-1].high == reach
        assert (reach, [g.high for g in plans.unserved]) in ((8 * G, []), (reach, [8 * G]))
        for entry in entries:
            assert (entry.program.min_bytes, entry.program.max_bytes) == (entry.low, entry.high)
            size = min(entry.high, max(entry.low, 1 << 15))
            assert cpu.run(entry.program, size, dtype="int32").wrong == 0


def test_protocols_go_from_little_data_to_much() -> None:
    xml, onesided = made("star gpus=4", "allreduce").plans
    protocols = [e.program.protocol for e in xml.entries]
    assert protocols == sorted(protocols, key=["LL", "LL128", "Simple"].index)
    assert {protocols[0], protocols[-1]} == {"LL", "Simple"}
    assert [e.program.protocol for e in onesided.entries][-1] == "Simple"
    assert onesided.entries[-1].high < 1 << 32
    (gap,) = onesided.unserved
    assert (gap.low, gap.high) == (onesided.entries[-1].high + 1, 8 * G)
    assert gap.why == "mscclpp counts bytes in 32 bits: no plan serves larger buffers"
    assert [xml.entries[0].origin, onesided.entries[0].origin] == [None, None]  # in one round
    heights = [e.origin.height for e in xml.entries if e.origin]
    assert heights == sorted(heights)


def test_borders_between_plans_of_many_ranks_are_simulated() -> None:
    """Past 16 ranks, too, a plan begins where it is faster than the one before it."""
    topology = machine("star gpus=20")
    for plans in made("star gpus=20", "allgather", K, 1 << 24, formats=("mscclpp-json",)).plans:
        assert len(plans.entries) > 1
        assert all(entry.ends for entry in plans.entries)
        for before, after in pairwise(plans.entries):
            earlier, later = (
                simulate.band(entry.program, entry.origin, after.low, links=topology).least
                for entry in (before, after)
            )
            assert later > earlier


@pytest.mark.parametrize("name", ["dgx-a100", "star gpus=7"])
def test_a_plan_begins_where_it_serves_a_size(name: str) -> None:
    """Up to there the plan before goes on, which is in less chunks."""
    for plans in made(name, "allreduce", high=1 << 22).plans:
        assert len(plans.entries) > 1
        assert not any(e.low % Sizes.of(e.program).multiple() for e in plans.entries)


def test_calls_of_several_rounds_have_a_plan_of_their_own() -> None:
    """Above 1 GiB lists go round again: connections that share an adapter then run apart, and the
    fastest plan up to there reaches 449 GB/s."""
    topology = machine("fat-tree")
    both = plan_set.make(topology, "allgather", G // 2, 4 * G, formats=("msccl-xml",))
    (plans,) = both.plans
    one, several = plans.entries
    assert G < several.low < 2 * G

    def reached(entry: Any, size: int) -> float:
        return simulate.band(entry.program, entry.origin, size, links=topology.latencies()).least

    assert reached(one, G) > 1.01 * reached(several, G)
    assert reached(several, 2 * G) > 1.1 * reached(one, 2 * G)


def test_plans_serve_powers_of_two() -> None:
    the_set = made("dgx-a100 boxes=2", "allgather", target="rccl", formats=("msccl-xml",))
    for entry in the_set.plans[0].entries:
        chunks = chunks_of(entry)
        assert chunks & (chunks - 1) == 0
    assert the_set.notes == [
        "345.946 of 346.667 GB/s: what is faster serves no power of two; "
        "synthesize --exact without --sizes makes it"
    ]


def test_sizes_beyond_2_gib_alone_are_for_msccl() -> None:
    xml = made("dgx-a100", "allgather", 3 * G, 4 * G, target="msccl", formats=("msccl-xml",))
    assert [(e.low, e.high) for e in xml.plans[0].entries] == [(3 * G, 4 * G)]


def test_a_late_start_of_the_last_plan_stays_readable() -> None:
    the_set = made("dgx-a100", "allgather", K, 3 * G)
    for plans in the_set.plans:
        assert plans.entries[-1].low < 1 << 31
        assert plans.entries[-1].high == 3 * G


def test_a_set_keeps_budgets() -> None:
    the_set = made(
        "dgx1-v100", "allgather", target="msccl", formats=("msccl-xml",), budget=Budget(trees=2)
    )
    for entry in the_set.plans[0].entries:
        assert entry.origin.trees_per_root <= 2


@pytest.mark.slow
def test_what_rccl_cannot_hold_is_written_for_msccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are too many ranks for rings and other baselines to take part."""
    monkeypatch.setattr("forestcoll.verify.simulate.RANKS", 64)
    the_set = plan_set.make(
        machine("star gpus=66"), "allgather", 1 << 20, 1 << 21, formats=("msccl-xml",)
    )
    assert the_set.plans[0].target.name == "msccl"
    assert any("the MSCCL XML is for msccl only" in note for note in the_set.notes)


def test_what_is_too_large_for_the_proof_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forestcoll.verify.check.LOCATIONS", Limit(400, "LOCATIONS"))
    the_set = plan_set.make(machine("dgx-a100"), "allreduce", 1 << 20, 1 << 26)
    held = [
        sum(rank.input_chunks + rank.output_chunks + rank.scratch_chunks for rank in program.ranks)
        for plans in the_set.plans
        for program in (entry.program for entry in plans.entries)
    ]
    assert max(held) <= 400


# -------------------------------------------------------------------------------------- check


def test_a_first_plan_with_many_chunks_leaves_small_sizes_out() -> None:
    the_set = made("mi250", "allgather", 1, 1 << 20, target="msccl", formats=("msccl-xml",))
    index = loads(files_of(the_set)["index.json"], "index")
    least = index.runtimes[0].plans[0].multiple.count
    (gap, _) = index.runtimes[0].not_served
    assert (gap.min_bytes, gap.max_bytes) == (1, least - 1)
    assert gap.why == f"fewer than the {least} elements that the first plan needs"


# ------------------------------------------------------------------------------- borders


def test_borders_lie_where_simulated_times_cross() -> None:
    """Plans that take 1 + size, 100 + size / 10 and 10,000 + size / 100."""
    times = (lambda s: 1.0 + s, lambda s: 100 + 0.1 * s, lambda s: 10_000 + 0.01 * s)
    for order in ((0, 1, 2), (2, 0, 1)):
        contest = contest_of([times[i] for i in order])
        ranges = contest.ranges(1, 10**8, 10**8)
        assert [order[r.index] for r in ranges] == [0, 1, 2]
        assert (ranges[0].low, ranges[-1].high) == (1, 10**8)
        for before, after, crossing in zip(ranges, ranges[1:], (110, 110_000), strict=False):
            assert before.high + 1 == after.low
            assert crossing <= after.low <= crossing * FACTOR ** (0.5**HALVINGS) + 1
            at = after.low
            assert max(contest.times(after.index, at)) < max(contest.times(before.index, at))


def test_a_plan_is_near_the_fastest_under_each_rule_of_links() -> None:
    """Two plans that are the fastest under one rule alone give way to one that is under none."""
    contest = contest_of([lambda s: 1.0] * 3)
    shared, in_order, both = [1.0, 2.0], [2.1, 1.0], [1.3, 1.25]

    play(contest, lambda i, _: [shared, in_order, both][i])
    assert contest.ranges(1, 1000, 1000) == [Range(1, 1000, 2)]
    assert contest.fastest(100) == (2, True)
    both[:] = [2.05, 1.99]  # no nearer to the fastest than the first is
    assert contest.ranges(1, 1000, 1000) == [Range(1, 1000, 0)]


def test_a_plan_serves_no_more_than_it_can() -> None:
    """The second is slower, but there; the third is nowhere as fast as another."""
    contest = contest_of([lambda s: 1.0, lambda s: 3.0, lambda s: 4.0], (500, 10_000, 10_000))
    assert contest.ranges(1, 10_000, 10_000) == [Range(1, 500, 0), Range(501, 10_000, 1)]


def test_no_plan_is_played_that_does_not_fit_a_call() -> None:
    played = set[int]()

    def time_of(i: int) -> Callable[[int], float]:
        return lambda size: float(played.add(i) or i + 1)

    contest = contest_of([*map(time_of, range(3))], (500, 600, 600))
    assert contest.fastest(100, lambda program, size: program.max_bytes == 600) == (1, True)
    assert played == {1, 2}
    assert contest.fastest(100, lambda program, size: False) is None


def test_the_last_size_of_a_set_is_served_as_fast_as_direct_sending() -> None:
    """Trees in more parts win at 336 KiB, where the estimate is the same as in few."""
    topology = machine("dgx-a100")
    made = plan_set.make(topology, "allreduce", 1024, 336 << 10, formats=("msccl-xml",))
    (plans,) = made.plans
    assert {entry.program.protocol for entry in plans.entries} == {"LL"}
    last = plans.entries[-1]
    assert last.candidate.times == WIDE
    whole = lower(last.origin, RCCL, protocol="LL")
    fast, slow = (
        simulate.band(program, last.origin, 336 << 10, links=topology).least
        for program in (last.program, whole)
    )
    assert fast > 1.4 * slow


def test_few_bytes_of_an_allreduce_go_up_and_down_one_low_tree() -> None:
    """A die of the MI250's middle is three hops from all, others four or five."""
    made = plan_set.make(machine("mi250"), "allreduce", 1 << 10, 1 << 14, formats=("msccl-xml",))
    (entry,) = made.plans[0].entries
    assert entry.origin.height == 3
    assert {tree.root for tree in entry.origin.trees} < set(entry.origin.graph.ranks)


def test_low_latency_plans_are_cut_finer_for_more_bytes() -> None:
    """RCCL's all-pairs in LL, in 4 parts on a schedule, take 4.48 us under both rules of links.

    By levels they take 6.85, in 57 thread blocks 5.25 and 4.48.
    """
    the_set = made("mi300x", "allreduce", 256 * K, 256 * K, formats=("msccl-xml",))
    (entry,) = the_set.plans[0].entries
    fine = entry.program
    assert (fine.protocol, max(len(rank.thread_blocks) for rank in fine.ranks)) == ("LL", 29)
    assert entry.candidate.times == WIDE
    topology = machine("mi300x")
    whole = lower(entry.origin, RCCL, protocol="LL")
    for program, low, high in ((fine, 4.4, 4.5), (whole, 6.8, 6.9)):
        runs = simulate.run_each(program, entry.origin, 256 * K, links=topology)
        assert all(low < run.time < high for run in runs)


def test_no_plan_of_a_set_is_behind_another_of_it() -> None:
    """In more parts trees are faster, by up to 30 %, also where chunks are less than a message."""
    topology = machine("mi250")
    (plans,) = made("mi250", "allreduce", 4 * K, 128 * K, formats=("msccl-xml",)).plans
    programs = [
        (e.low, replace(e.program, min_bytes=0, max_bytes=0), e.origin or topology)
        for e in plans.entries
    ]
    for size in (8 * K, 24 * K, 32 * K, 48 * K, 64 * K, 96 * K):
        times = [
            max(run.time for run in simulate.run_each(program, where, size, links=topology))
            for _, program, where in programs
        ]
        taken = sum(low <= size for low, _, _ in programs) - 1
        assert times[taken] < 1.03 * min(times), size


def test_the_same_trees_in_another_order_are_no_further_candidate() -> None:
    """Direct sending is the lowest forest, and what MultiTree grows behind one switch."""
    graph = named("dgx-a100")
    direct, grown = (by_name(n).forests(graph, Collective.ALLREDUCE)[0]
                     for n in ("direct", "multitree"))  # fmt: skip
    ring = by_name("ring").forests(graph, Collective.ALLREDUCE)[0]
    turned = replace(direct, name="turned", trees=direct.trees[::-1])
    assert list(drop_equals([direct, ring, grown, turned, ring])) == [direct, ring]
