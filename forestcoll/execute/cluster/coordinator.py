"""The one that all processes of a job report to: in process 0, a thread of its own.

It gathers what each gives and tells all; it sees that a process is gone, or silent; and it sees
that a plan is stuck, which no process sees alone: all are idle, and nothing is on its way.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field
from threading import Thread
from typing import NamedTuple

from forestcoll.execute.cluster.messages import Message, Stream, accept, encode

SILENCE = 5.0
"""Seconds without a word of a process after which it counts as lost."""
SILENT = f"{{}} has not been heard of for {SILENCE:g} s: it is stopped, or its network is down"
"""What is said of such a process."""
BEAT = 1.0
"""Seconds between two words of a process that has nothing to say."""
LOOK = 0.05
"""Seconds between two looks at who is silent."""


class State(NamedTuple):
    """What a process says of a launch; `round`: the last one that it was asked in."""

    launch: int
    round: int
    idle: bool
    finished: bool
    sent: int  # effects, in all launches
    received: int
    ticks: int


@dataclass
class Member:
    """A process, as the coordinator sees it."""

    stream: Stream
    name: str = ""  # as errors call it
    heard: float = field(default_factory=time.monotonic)
    parted: bool = False  # it has said that it needs nothing any more
    state: State | None = None


class Coordinator(Thread):
    """Serves `processes` until all have parted, or one has failed and all know.

    `listener`: where processes from 1 on come; process 0 comes by `own`. `timeout`: seconds without
    any progress of a launch, at any process, after which it is given up. `until`: when all must be
    there (time.monotonic).
    """

    def __init__(
        self,
        listener: socket.socket,
        own: socket.socket,
        processes: int,
        secret: str,
        timeout: float,
        until: float,
    ) -> None:
        super().__init__(name="forestcoll coordinator", daemon=True)
        self.listener, self.processes, self.secret = listener, processes, secret
        self.timeout, self.until = timeout, until
        self.members = {0: Member(Stream(own))}
        self.gathers: dict[int, dict[int, object]] = {}
        self.selector = selectors.DefaultSelector()
        self.failed = ""
        self.round = 0
        self.quiet: tuple[int, int] | None = None  # counts of the round before, if all were idle
        self.moved = (time.monotonic(), -1)  # when the sum of all ticks changed last
        self.ended = -1  # the launch that was ended early
        self.said = self.looked = time.monotonic()

    def run(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self._serve(0)
        try:
            with self.selector, self.listener:
                while any(not one.parted for one in self.members.values()):
                    for key, _ in self.selector.select(LOOK):
                        if key.data is None:
                            self._welcome()
                        else:
                            self._read(key.data)
                    self._look()
        finally:  # whatever it was, all learn of it
            for one in self.members.values():
                one.stream.close()

    def _serve(self, process: int) -> None:
        self.selector.register(self.members[process].stream.socket, selectors.EVENT_READ, process)

    def _welcome(self) -> None:
        """Somebody calls: a process of this job, or a stranger, who is sent away."""
        try:
            stream = Stream(self.listener.accept()[0])
        except OSError:
            return
        try:
            process = accept(stream, self.secret, "group", time.monotonic() + BEAT)
        except (OSError, ValueError):
            stream.close()
            return
        if process in self.members or not 0 < process < self.processes:
            stream.close()
            self._fail(f"two processes call themselves process {process} of {self.processes}")
            return
        self.members[process] = Member(stream)
        self._serve(process)

    def _read(self, process: int) -> None:
        one, how = self.members[process], " is gone"
        try:
            more = one.stream.fill()
            while (message := one.stream.take()) is not None:
                one.heard = time.monotonic()
                self._take(process, one, message)
        except OSError:
            more = False
        except ValueError as error:
            more, how = False, f": {error}"
        if not more:
            self.selector.unregister(one.stream.socket)
            if not one.parted:
                one.parted = True
                self._fail(self._who(process) + how)

    def _take(self, process: int, one: Member, message: Message) -> None:
        match message.get("kind"):
            case "name":
                one.name = str(message["name"])
            case "gather":
                number = int(message["number"])
                gathered = self.gathers.setdefault(number, {})
                gathered[process] = message["value"]
                if len(gathered) == self.processes:
                    values = [gathered[p] for p in range(self.processes)]
                    del self.gathers[number]
                    self._tell({"kind": "gathered", "number": number, "values": values})
            case "state":
                one.state = State(*message["state"])
                self._judge()
            case "over":
                self._end(int(message["launch"]), "stalled")
            case "failed":
                self._fail(str(message["text"]))
            case "part":
                one.parted = True

    def _who(self, process: int) -> str:
        return self.members[process].name or f"process {process}"

    def _tell(self, message: Message) -> None:
        data = encode(message)
        for process, one in self.members.items():
            if one.parted:
                continue
            try:
                one.stream.socket.settimeout(SILENCE)
                one.stream.socket.sendall(data)
            except OSError:
                one.parted = True
                if message["kind"] != "failed":
                    self._fail(f"{self._who(process)} is gone")

    def _fail(self, text: str) -> None:
        """The first failure is the one that all are told."""
        if not self.failed:
            self.failed = text
            self._tell({"kind": "failed", "text": text})

    def _look(self) -> None:
        now = time.monotonic()
        asleep = max(0.0, now - self.looked - BEAT)  # on a machine that is busy: nobody's silence
        self.looked = now
        for one in self.members.values():
            one.heard += asleep
        if now - self.said > BEAT:
            self.said = now
            self._tell({"kind": "alive"})
        missing = [p for p in range(self.processes) if p not in self.members]
        if missing and now > self.until:
            self.until = float("inf")
            self._fail(
                f"{len(missing)} of {self.processes} processes have not come: "
                f"{', '.join(map(str, missing[:8]))}{' and others' if missing[8:] else ''}"
            )
        for process, one in list(self.members.items()):
            if not one.parted and now - one.heard > SILENCE:
                one.parted = True
                self._fail(SILENT.format(self._who(process)))
        states = self._states()
        ticks = sum(state.ticks for state in states)
        if ticks != self.moved[1] or all(state.finished for state in states):
            self.moved = now, ticks
        elif now - self.moved[0] > self.timeout:
            self._end(states[0].launch, "stalled")

    def _states(self) -> list[State]:
        return [one.state for one in self.members.values() if one.state is not None]

    def _judge(self) -> None:
        """Ends the launch where all are idle, somebody is not done, and nothing is on its way.

        In two rounds with the same counts: those of one alone are of different moments.
        """
        states = self._states()
        alike = {(state.launch, state.round) for state in states}
        if len(states) < self.processes or alike != {(states[0].launch, self.round)}:
            return
        counts = sum(state.sent for state in states), sum(state.received for state in states)
        idle = all(state.idle for state in states) and counts[0] == counts[1]
        if not idle or all(state.finished for state in states):
            self.quiet = None
        elif self.quiet == counts:
            self._end(states[0].launch, "stuck")
        else:
            self.quiet = counts
            self.round += 1
            self._tell({"kind": "look", "round": self.round})

    def _end(self, launch: int, how: str) -> None:
        if launch != self.ended:
            self.ended = launch
            self._tell({"kind": "end", "launch": launch, "how": how})
