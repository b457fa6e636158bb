"""The order of messages: greedy schedules on links, and what plans in that order reach."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from graphs import machine
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_schedules import SCHEDULES

from forestcoll.common.errors import PlanError
from forestcoll.compile.search import LONG, SHORT, order_equals, search
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.kernel import _kernel
from forestcoll.lower import fifo, lower, schedule, usage
from forestcoll.lower.layout import Layout, RankTree, layout
from forestcoll.lower.schedule import ADD, FINAL, OPEN, Transfer, early_copies
from forestcoll.program import Collective, Program
from forestcoll.program.targets import RCCL
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.verify import simulate, verify

pytestmark = pytest.mark.usefixtures("links_alone")


Problem = tuple[list[int], list[list[int]], list[list[int]], list[list[int]]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Lanes of links; of each message its links, its time on each, and what it needs."""
    lanes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    numbers = st.integers(0, len(lanes) - 1)
    ways = draw(st.lists(st.lists(numbers, max_size=3, unique=True), min_size=1, max_size=12))
    lengths = [draw(st.lists(st.integers(1, 9), min_size=len(w), max_size=len(w))) for w in ways]
    needs = [
        draw(st.lists(st.integers(0, m - 1), max_size=3, unique=True)) if m else []
        for m in range(len(ways))
    ]
    return lanes, ways, lengths, needs


@settings(deadline=None)
@given(problems())
def test_a_schedule_holds_lanes_and_needs(problem: Problem) -> None:
    lanes, ways, lengths, needs = problem
    kinds = list(range(len(ways)))
    starts, _ = _kernel.schedule(lanes, ways, lengths, kinds, needs, [0] * len(ways))
    ends = [start + max(each, default=1) for start, each in zip(starts, lengths, strict=True)]
    assert all(starts[m] >= ends[n] for m, some in enumerate(needs) for n in some)
    for time in range(max(ends)):
        for link, most in enumerate(lanes):
            on = sum(
                starts[m] <= time < starts[m] + length
                for m, way in enumerate(ways)
                for at, length in zip(way, lengths[m], strict=True)
                if at == link
            )
            assert on <= most
    # nobody waits for nothing: somebody is under way at any time
    assert all(any(s <= t < e for s, e in zip(starts, ends, strict=True)) for t in range(max(ends)))


def scheduled(
    chunks: Layout, links: schedule.Links
) -> tuple[list[Transfer], tuple[list[int], float]]:
    """Transfers of one chunk each, and what their schedule says of them."""
    transfers = schedule.transfers_of(chunks, 1, early_copies(chunks), "phases")
    channels = schedule.channels_of(chunks, transfers, links, None)
    order = schedule.schedule(transfers, links, channels)
    return schedule.read(transfers), order


def test_sums_are_scheduled_as_closely_as_broadcasts() -> None:
    """The longest chain of what follows first, by itself, leaves a fifth of the time idle here."""
    forest = forest_file.load(SCHEDULES / "mi250-1" / "reduce-scatter.forest.json")
    chunks = layout(forest)
    _, (_, stretch) = scheduled(chunks, schedule.links_of(forest))
    assert 1 <= stretch <= 1.03


@pytest.mark.parametrize(
    ("partners", "order"),
    [
        ("shift", [3, 4, 0, 1]),
        ("shift-back", [1, 0, 4, 3]),
        ("exchange", [3, 0, 1, 4]),
        ("exchange-back", [4, 1, 0, 3]),
    ],
)
def test_equal_messages_go_to_partner_after_partner(
    partners: schedule.Partners, order: list[int]
) -> None:
    """From rank 2, over links that carry one message at a time: as ranks are numbered, or bits."""
    ways = {(2, dst): (0,) for dst in (0, 1, 3, 4)}
    parents = (2, 2, -1, 2, 2)
    star = RankTree(2, "broadcast", 0, 1, parents, (2, 0, 1, 3, 4), parities=(-1,) * 5)
    chunks = Layout(Collective.BROADCAST, 5, 1, (0, 1, 1, 1, 1, 1), (star,))
    links = schedule.Links(ways, (1,), Fraction(1), Fraction(1), partners)
    messages, (arrivals, _) = scheduled(chunks, links)
    assert [message.dst for message in messages] == order
    assert arrivals == [1, 2, 3, 4]


@pytest.mark.parametrize("partners", ["shift", "turns"])
def test_parts_go_one_after_the_other_in_turns(partners: schedule.Partners) -> None:
    """Along a path whose links are one: all sums, whose chains are longest, or part after part."""
    ways = {(src, dst): (0,) for src in range(3) for dst in range(3) if src != dst}
    parents, parities = (-1, 0, 1), (-1,) * 3
    up = RankTree(0, "reduce", 0, 2, parents, (0, 1, 2), parities=parities)
    down = RankTree(0, "broadcast", 0, 2, parents, (0, 1, 2), parities=parities)
    chunks = Layout(Collective.ALLREDUCE, 3, 2, (0,) * 4, (up, down))
    links = schedule.Links(ways, (1,), Fraction(1), Fraction(1), partners)
    messages, _ = scheduled(chunks, links)
    order = [0, 0, 0, 0, 1, 1, 1, 1] if partners == "turns" else [0, 1] * 4
    assert [message.chunk for message in messages] == order


def test_an_odd_number_of_boxes_reaches_its_links() -> None:
    """Rounded shares are sent in one round, whose sums all come first: 80 and 83 %."""
    topology = machine("dgx-a100 boxes=3")
    made = synthesize(topology, "allreduce", target="msccl")
    program, links = made.programs["msccl-xml"], topology.latencies()
    for size, share in ((SHORT, 0.9), (LONG, 0.95)):
        band = simulate.band(program, made.forest, size, links=links)
        assert band.share(made.optimum.algbw) > share


def below_leaves() -> tuple[Forest, Program]:
    """A forest below three leaves, and its plan in the order of ranks."""
    topology = machine("fat-tree leaves=3 gpus=2")
    forest = synthesize(topology, "allreduce", trees=1, formats=("forest",)).forest
    return forest, lower(forest, RCCL, instances=4)


def test_the_order_of_equal_messages_is_the_fastest_of_four() -> None:
    """Lists in the order of ranks leave links idle between leaves: 79 % in place of 93."""
    forest, first = below_leaves()
    reordered, _ = search(forest, RCCL, first, (order_equals,))
    assert usage(reordered) == usage(first)
    verify(reordered)
    shares = [
        min(simulate.band(p, forest, size).share(forest.plain_algbw) for size in (SHORT, LONG))
        for p in (first, reordered)
    ]
    assert shares[0] < 0.82
    assert shares[1] > 0.92
    mesh = synthesize(machine("torus-2d"), "allgather", formats=("forest",)).forest
    alone = lower(mesh, RCCL)
    assert search(mesh, RCCL, alone, (order_equals,))[0] is alone


def test_orders_that_a_target_cannot_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, first = below_leaves()
    asked = []

    def refuse(*_: object, partners: schedule.Partners, **__: object) -> None:
        asked.append(partners)
        raise PlanError("too long a list")

    monkeypatch.setattr("forestcoll.compile.search.lower", refuse)
    assert search(forest, RCCL, first, (order_equals,))[0] is first
    assert asked == ["exchange"]  # where the plainest program has no other order, none has


@pytest.mark.parametrize(("collective", "least"), [("allgather", 80), ("reduce-scatter", 92)])
def test_parts_of_all_trees_take_turns(collective: str, least: float) -> None:
    """Tree after tree, the adapters' connections deliver what nobody waits for: 65 and 90 %."""
    topology = machine("dgx-a100 boxes=4")
    forest = synthesize(topology, collective, trees=1, formats=("forest",)).forest
    program = lower(forest, RCCL, instances=4)
    found = simulate.run(program, forest, 64 * 10**6, rule="fifo").algbw
    assert 100 * found / float(forest.plain_algbw) >= least


def test_parts_of_a_wide_sum_are_added_by_the_blocks_that_receive_them() -> None:
    """Six parts and a send in one list fill it seven times as fast as the lists of the others."""
    forest = synthesize(machine("dgx-a100"), "reduce", trees=7, formats=("forest",)).forest
    program = lower(forest, RCCL, instances=64)
    needs = usage(program)
    assert (needs.thread_blocks, needs.channels) == (26, 2)
    found = simulate.run(program, forest, 64 * 10**6, rule="fifo").algbw
    assert found >= 0.95 * float(forest.plain_algbw)


def test_a_connection_has_no_more_thread_blocks_than_its_gpus_take() -> None:
    """Of two, which share every link, each message is twice as long on its way: 89 % at 64 MB."""
    topology = machine("rail boxes=2")
    forest = synthesize(topology, "broadcast", formats=("forest",)).forest
    program = lower(forest, RCCL, instances=64)
    assert (program.protocol, usage(program).channels) == ("LL128", 2)
    assert simulate.band(program, forest, 64 * 10**6).share(forest.plain_algbw) > 0.9


def test_a_tree_of_twice_the_rate_has_twice_the_thread_blocks() -> None:
    parents = (-1, 0, 1), (-1, 2, 0)
    even = [
        RankTree(0, "broadcast", 2 * i, 2, parent, (0, 1, 2)) for i, parent in enumerate(parents)
    ]
    odd = [replace(even[0], count=1), replace(even[1], first=1, count=3)]
    links = schedule.Links({}, (1,), Fraction(100), Fraction(40))
    rates = []
    for trees in (even, odd):
        chunks = Layout(Collective.BROADCAST, 3, 4, (0, 4, 4, 4), tuple(trees))
        rates.append(fifo._block_rate(chunks, links))
    assert rates == [50, Fraction(24) / Fraction(18, 25)]  # of 50 and 50, of 25 and 75 GB/s
    everyone = Layout(Collective.ALLGATHER, 3, 4, (0, 4, 4, 4), tuple(even))
    assert fifo._block_rate(everyone, links) == rates[1]


# -- where transfers are received ------------------------------------------------------------------


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[Transfer], list[int]]:
    """Transfers in the order of their starts, and how many start before each ends.

    Of a sum the first one opens it. Each group has channels of its own.
    """
    count = draw(st.integers(1, 12))
    found, opened = [], set()
    for _ in range(count):
        src, dst = draw(st.permutations(range(3)))[:2]
        tree = draw(st.integers(0, 2))
        land = draw(st.sampled_from((FINAL, ADD)))
        if land == ADD and (tree, dst) not in opened:
            opened.add((tree, dst))
            land = OPEN
        chunks, group = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        found.append(Transfer(src, dst, 0, 0, 0, 0, chunks, 0, tree, group=group, land=land))
    arrivals = [draw(st.integers(place + 1, count)) for place in range(count)]
    return found, arrivals


@given(messages())
def test_each_is_sent_and_received_in_an_order_that_needs_no_room(
    given: tuple[list[Transfer], list[int]],
) -> None:
    found, arrivals = given
    transfers = _kernel.Transfers(found)
    blocks = _kernel.FifoBlocks(transfers, [0, 0, 0], 1, False, fifo._OPS)
    blocks.share_out([[0]] * len(transfers.connections))
    events = blocks.events(arrivals)
    place = {event: number for number, event in enumerate(events)}
    assert sorted(events) == sorted(product(range(len(found)), (False, True)))
    sends = [number for number, sent in events if sent]
    assert sends == list(range(len(found)))
    under_way: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, sent in events:
        message = found[number]
        queue = under_way[message.src, message.dst, message.group]
        if sent:
            assert not queue  # whatever a connection holds
            queue.append(number)
        else:
            assert queue.pop() == number
            if message.land == ADD:
                openers = (
                    n
                    for n, other in enumerate(found)
                    if (other.land, other.tree, other.dst) == (OPEN, message.tree, message.dst)
                )
                assert place[next(openers), False] < place[number, False]
    for number, arrival in enumerate(arrivals):
        if arrival < len(found):  # what needs it starts there or later
            assert place[number, False] < place[arrival, True]
        if found[number].chunks > 1:
            assert place[number, False] < min(
                (place[n, True] for n in range(number + 1, len(found))), default=len(events)
            )


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
@pytest.mark.parametrize("blocks", [8, 10])
def test_thread_blocks_of_two_connections_keep_links_busy(collective: str, blocks: int) -> None:
    """Received where they are sent, messages of 8 or 10 thread blocks wait: 58 to 83 %."""
    forest = synthesize(machine("star"), collective, trees=1, formats=("forest",)).forest
    program = lower(forest, replace(RCCL, thread_blocks=blocks))
    assert usage(program).thread_blocks == blocks < usage(lower(forest, RCCL)).thread_blocks
    verify(program)
    for size in (64 * 10**6, 10**9):
        assert simulate.band(program, forest, size).share(forest.plain_algbw) > 0.98
