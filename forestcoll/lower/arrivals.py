"""Where the steps of a list stand: a message is received at once, or when it is there.

In one order of all messages each is received where it is sent. A thread block that sends to one
peer and receives from it then waits for a message of which the other side sends nothing yet, and of
two ranks that send to each other at a time one waits for the other. So where thread blocks have two
connections, a message is received when the schedule has it there.

Still nothing gets stuck. A send waits for what is needed, which is there before it starts, and for
room: what its connection carried before is received before it. A message of several chunks may
need more room than a connection has, so that one is received at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from forestcoll.lower.messages import Message

Event = tuple[int, bool]
"""The number of a message, and whether it is sent (or received)."""


def at_once(count: int) -> Iterator[Event]:
    """Each of so many messages is received where it is sent."""
    for number in range(count):
        yield number, True
        yield number, False


def as_they_arrive(
    messages: Sequence[Message], channels: Sequence[int], arrivals: Sequence[int]
) -> Iterator[Event]:
    """Each message is received when `arrivals` of all have been sent, or earlier where it must.

    Those of a connection's channel one by one, before it sends the next; what opens a sum before
    its other parts.
    """
    queues: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    openers: dict[tuple[int, int], int] = {}
    coming: list[tuple[int, int]] = []
    left: set[int] = set()

    def receive(number: int) -> Iterator[Event]:
        queue = queues[messages[number].src, messages[number].dst, channels[number]]
        while number in left:
            first = queue.popleft()
            opener = openers.get((messages[first].tree, messages[first].dst), first)
            if opener != first:
                yield from receive(opener)
            left.remove(first)
            yield first, False

    for number, message in enumerate(messages):
        while coming and coming[0][0] <= number:
            yield from receive(heappop(coming)[1])
        queue = queues[message.src, message.dst, channels[number]]
        if queue:
            yield from receive(queue[-1])
        yield number, True
        left.add(number)
        queue.append(number)
        if message.land == "open":
            openers[message.tree, message.dst] = number
        if message.count > 1:
            yield from receive(number)
        else:
            heappush(coming, (arrivals[number], number))
    while coming:
        yield from receive(heappop(coming)[1])
