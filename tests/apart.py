"""Groups of processes within this one, by threads, over sockets or the wire of tests."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from forestcoll.common.errors import ExecutionError
from forestcoll.execute import _engine, builds, cpu
from forestcoll.execute.cluster import ucx
from forestcoll.execute.result import RunResult
from forestcoll.program import Program

Activity = tuple[bool, bool, int, int, int]
UNKIND = Path(__file__).with_name("unkind.cpp")
built: list[str] = []
"""An engine that was built with the unkind wire in it (`native.engine`)."""


@cache
def unkind() -> str:
    """The library of the unkind wire; of an engine that has it, that."""
    if built:
        return built[0]
    folders = [word for folder in (ucx.HERE, ucx.NATIVE) for word in ("-I", str(folder))]
    compiler = str(shutil.which("c++") or shutil.which("g++"))
    flags = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", *folders]
    return str(
        builds.build(
            "the unkind wire",
            "",
            lambda target: [*flags, "-o", str(target), str(UNKIND)],
            (UNKIND, *ucx.SOURCES[1:]),
            builds.cache_folder(),
        )
    )


class Exchange:
    """What lies between the ends of the unkind wire (unkind.cpp)."""

    def __init__(self, processes: int, seed: int, lazy: bool) -> None:
        self.library = ctypes.CDLL(unkind())
        self.library.unkind_exchange.restype = ctypes.c_void_p
        self.processes = processes
        self.address = self.library.unkind_exchange(processes, ctypes.c_uint64(seed), lazy)

    def way(self, process: int) -> Any:
        """That of a process to the others."""
        return _engine.Way([unkind()], self.processes, process, (self.address, 0, 0, 0))

    def __del__(self) -> None:
        self.library.unkind_close(ctypes.c_void_p(self.address))


class Together:
    """What the members of a group share."""

    def __init__(self, processes: int, seed: int, *, lazy: bool, strict: bool, wire: str) -> None:
        self.wire = wire
        self.libraries = ucx.libraries() if wire == "ucx" else []
        self.barrier = threading.Barrier(processes, timeout=60)
        self.exchange = Exchange(processes, seed, lazy)
        self.descriptors: list[list[int]] = []
        self.values: list[Any] = [None] * processes
        self.members = [Member(self, process, strict) for process in range(processes)]
        self.ended = False

    def end(self, how: str) -> None:
        """Ends a launch at all; the first who says so is the one that counts."""
        if self.ended:
            return
        self.ended = True
        for member in self.members:
            if member.watched:
                member.watched[1](how)

    def connect(self) -> None:
        """A socket for each two processes, for one mode of a run."""
        numbers = range(len(self.values))
        self.descriptors = [[-1] * len(numbers) for _ in numbers]
        for a, b in itertools.combinations(numbers, 2):
            for one, other, end in zip((a, b), (b, a), socket.socketpair(), strict=True):
                end.setblocking(False)
                self.descriptors[one][other] = end.detach()


class Member:
    """A process of the group: what `group.Group` is between real ones."""

    def __init__(self, together: Together, process: int, strict: bool) -> None:
        self.together, self.process, self.strict = together, process, strict
        self.processes = len(together.values)
        self.watched: tuple[Callable[[], Activity], Callable[[str], None]] | None = None
        self.running = False

    def gather(self, value: object) -> list[Any]:
        self.together.values[self.process] = value
        self.together.barrier.wait()
        values = list(self.together.values)
        self.together.barrier.wait()
        return values

    def check(self) -> None:
        """Nobody dies here."""

    def join(self, enter: Callable[[Any, bool], None]) -> None:
        if self.together.wire == "ucx":
            way = _engine.Way(self.together.libraries, self.processes, self.process, (0, 0, 0, 0))
            way.meet(self.gather(way.address()))
        elif self.together.wire == "sockets":
            if self.process == 0:
                self.together.connect()
            self.gather(None)
            way = _engine.Way(self.together.descriptors[self.process])
        else:
            way = self.together.exchange.way(self.process)
        enter(way, False)
        self.gather(None)

    def watch(self, state: Any, end: Any = None) -> None:
        self.watched = None if state is None else (state, end)

    def begin(self) -> None:
        self.together.ended = False
        self.gather(None)
        self.running = True

    def end(self, sent: Sequence[int]) -> list[int]:
        if not sent:
            self.together.end("stalled")
        counts = self.gather(list(sent))
        self.running = False
        return [own[self.process] for own in counts] if all(counts) else []


def watch(together: Together, over: threading.Event) -> None:
    """Ends launches in which all are idle and nothing is on its way, twice in a row."""
    last: object = None
    while not over.wait(0.02):
        states = [m.watched[0]() for m in together.members if m.running and m.watched]
        quiet = (
            len(states) == len(together.members)
            and all(state[0] for state in states)
            and not all(state[1] for state in states)
            and sum(state[2] for state in states) == sum(state[3] for state in states)
        )
        if quiet and states == last:
            together.end("stuck")
        last = states if quiet else None


def run_apart(
    program: Program,
    size: int,
    processes: int,
    *,
    seed: int = 0,
    lazy: bool = False,
    strict: bool = False,
    wire: str = "unkind",
    wire_dtype: str | None = None,
    **asked: Any,
) -> RunResult:
    """`cpu.run` by so many processes; what it raises at one of them.

    Over the unkind wire, whose order `seed` and `lazy` decide, over "sockets" or "ucx".
    """
    together = Together(processes, seed, lazy=lazy, strict=strict, wire=wire)
    answers: list[RunResult | BaseException | None] = [None] * processes

    def live(member: Member) -> None:
        try:
            answers[member.process] = cpu.run(
                program,
                size,
                group=member,  # type: ignore[arg-type]
                threads=1,
                wire=wire_dtype,
                **asked,
            )
        except BaseException as error:
            answers[member.process] = error
            together.barrier.abort()

    over = threading.Event()
    threads = [threading.Thread(target=live, args=(member,)) for member in together.members]
    threads.append(threading.Thread(target=watch, args=(together, over)))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    over.set()
    threads[-1].join()
    together.members.clear()  # which refer to it: the exchange ends with this function
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda e: not isinstance(e, ExecutionError)):
        raise error
    first = answers[0]
    assert isinstance(first, RunResult)
    return first
