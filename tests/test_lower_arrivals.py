"""Where messages are received: at once, or when they are there, and what lists gain by it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forestcoll.compile.synthesize import synthesize
from forestcoll.lower import lower, usage
from forestcoll.lower.arrivals import as_they_arrive, at_once
from forestcoll.lower.messages import Message
from forestcoll.program import Buffer, Ref
from forestcoll.program.targets import RCCL
from forestcoll.topology import catalog
from forestcoll.verify import simulate, verify

pytestmark = pytest.mark.usefixtures("links_alone")

NOWHERE = Ref(Buffer.INPUT, 0, 1)


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[Message], list[int], list[int]]:
    """Messages in the order of their starts, their channels, and how many start before each ends.

    Of a sum the first one opens it.
    """
    count = draw(st.integers(1, 12))
    found, opened = [], set()
    for _ in range(count):
        src, dst = draw(st.permutations(range(3)))[:2]
        tree = draw(st.integers(0, 2))
        land = draw(st.sampled_from(("final", "add")))
        if land == "add" and (tree, dst) not in opened:
            opened.add((tree, dst))
            land = "open"
        chunks = draw(st.integers(1, 2))
        found.append(Message(0, land, tree, src, dst, 0, chunks, NOWHERE, NOWHERE))  # type: ignore[arg-type]
    channels = [draw(st.integers(0, 1)) for _ in range(count)]
    arrivals = [draw(st.integers(place + 1, count)) for place in range(count)]
    return found, channels, arrivals


@given(messages())
def test_each_is_sent_and_received_in_an_order_that_needs_no_room(
    given: tuple[list[Message], list[int], list[int]],
) -> None:
    found, channels, arrivals = given
    events = list(as_they_arrive(found, channels, arrivals))
    place = {event: number for number, event in enumerate(events)}
    assert sorted(events) == sorted(at_once(len(found)))
    sends = [number for number, sent in events if sent]
    assert sends == list(range(len(found)))
    under_way: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, sent in events:
        message = found[number]
        queue = under_way[message.src, message.dst, channels[number]]
        if sent:
            assert not queue  # whatever a connection holds
            queue.append(number)
        else:
            assert queue.pop() == number
            if message.land == "add":
                openers = (
                    n
                    for n, other in enumerate(found)
                    if (other.land, other.tree, other.dst) == ("open", message.tree, message.dst)
                )
                assert place[next(openers), False] < place[number, False]
    for number, arrival in enumerate(arrivals):
        if arrival < len(found):  # what needs it starts there or later
            assert place[number, False] < place[arrival, True]
        if found[number].count > 1:
            assert place[number, False] < min(
                (place[n, True] for n in range(number + 1, len(found))), default=len(events)
            )


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
@pytest.mark.parametrize("blocks", [8, 10])
def test_thread_blocks_of_two_connections_keep_links_busy(collective: str, blocks: int) -> None:
    """Received where they are sent, messages of 8 or 10 thread blocks wait: 58 to 83 %."""
    forest = synthesize(catalog.load("star"), collective, trees=1, formats=("forest",)).forest
    program = lower(forest, replace(RCCL, thread_blocks=blocks))
    assert usage(program).thread_blocks == blocks < usage(lower(forest, RCCL)).thread_blocks
    verify(program)
    for size in (64 * 10**6, 10**9):
        assert simulate.band(program, forest, size).share(forest.plain_algbw) > 0.98
