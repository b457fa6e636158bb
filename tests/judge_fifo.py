"""A play (judge_plays.py) on links that serve one transfer after the other, in plain Python.

A transfer asks for its links one after the other, the next as soon as this one serves it (switches
cut through). A link takes bytes / rate; the transfer is over when its last byte is through the last
link, and no link is done with it before the one in front of it is. (Links that are much wider than
those that lead to them interleave in the model; here there are none.)
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable

from judge_plays import Line, Play


class Fifo:
    def __init__(self, play: Play, seed: int = 0) -> None:
        self.play, self.random = play, random.Random(seed)
        self.seed, self.delays = seed, play.delays
        self.now = self.last = 0.0  # `last`: when something was done, or data arrived
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.queues: list[deque[Callable[[], None]]] = [deque() for _ in play.links]
        self.busy = [False] * len(play.links)
        self.counters = list(play.counters)
        self.takers: dict[int, int] = {}
        self.line = [0] * len(play.actors)
        self.open: dict[int, int] = defaultdict(int)  # transfers that an actor has started
        self.joins: set[int] = set()

    def run(self) -> float:
        order = list(range(len(self.play.actors)))
        if self.seed:
            self.random.shuffle(order)
        for actor in order:
            self.at(0.0, lambda actor=actor: self.act(actor))  # type: ignore[misc]
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()
        for actor, lines in enumerate(self.play.actors):
            assert self.line[actor] == len(lines), f"actor {actor} is stuck at {self.line[actor]}"
        return self.last

    def at(self, time: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what))

    def act(self, actor: int) -> None:
        lines = self.play.actors[actor]
        while self.line[actor] < len(lines):
            line = lines[self.line[actor]]
            if line[0] == "take":
                if not self.counters[line[1]]:
                    self.takers[line[1]] = actor
                    return
                self.counters[line[1]] -= 1
            elif line[0] == "give":
                self.give(line[1], line[2])
            elif line[0] == "send":
                self.line[actor] += 1
                self.transfer(line[1], line[2], lambda line=line: self.sent(actor, line))  # type: ignore[misc]
                return
            elif line[0] == "start":
                self.open[actor] += 1
                self.at(self.now + line[3], lambda line=line: self.begin(actor, line))  # type: ignore[misc]
            elif self.open[actor]:
                self.joins.add(actor)
                return
            self.line[actor] += 1
        self.last = max(self.last, self.now)

    def give(self, counter: int, after: float = 0.0) -> None:
        if after:
            self.at(self.now + after, lambda: self.give(counter))
            return
        self.counters[counter] += 1
        if counter in self.takers:
            actor = self.takers.pop(counter)
            self.at(self.now, lambda: self.act(actor))

    def sent(self, actor: int, line: Line) -> None:
        self.last = max(self.last, self.now + self.delays[line[1]])
        if line[3] >= 0:
            self.give(line[3], self.delays[line[1]])
        self.act(actor)

    def begin(self, actor: int, line: Line) -> None:
        def done() -> None:
            self.at(self.now + line[4], lambda: self.over(actor))

        self.transfer(line[1], line[2], done)

    def over(self, actor: int) -> None:
        self.open[actor] -= 1
        if not self.open[actor] and actor in self.joins:
            self.joins.remove(actor)
            self.act(actor)

    def transfer(self, route: int, size: float, done: Callable[[], None]) -> None:
        links = self.play.routes[route]
        through = [False] * len(links)

        def ask(place: int) -> None:
            link = links[place]
            self.queues[link].append(lambda: serve(place))
            if not self.busy[link]:
                self.queues[link].popleft()()

        def serve(place: int) -> None:
            link = links[place]
            self.busy[link] = True
            self.at(self.now + size / self.play.links[link][0], lambda: leave(place))
            if place + 1 < len(links):
                ask(place + 1)

        def leave(place: int) -> None:
            link = links[place]
            self.busy[link] = False
            if self.queues[link]:
                self.queues[link].popleft()()
            through[place] = True
            if all(through):
                done()

        ask(0)
