"""One process's end of a job: it joins, agrees with the others, and learns what befalls them."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Lock, Thread
from types import TracebackType
from typing import Any, Self

from forestcoll.common.errors import ExecutionError, ForestCollError
from forestcoll.execute import _engine
from forestcoll.execute.cluster import ucx
from forestcoll.execute.cluster.coordinator import BEAT, SILENCE, SILENT, Coordinator
from forestcoll.execute.cluster.hosts import secret_of
from forestcoll.execute.cluster.launchers import ADDRESS, PORT, Place
from forestcoll.execute.cluster.messages import Message, Stream, accept, greet

LOOK = 0.02
"""Seconds between two looks at what a launch does."""

Activity = tuple[bool, bool, int, int, int]
"""Of a launch here: idle, finished, effects sent and received, ticks."""


class Group:
    """The processes of a job, as this one sees them; close it, or use it in a `with`.

    All processes call `gather` equally often, in one order. What fails at one raises ExecutionError
    at all; leaving the `with` by an error tells them that error. `timeout`: seconds without
    progress; `join`: seconds that processes may come apart; `wire`: what carries data, "sockets" or
    "ucx" (`join` raises UnsupportedError where it is not); `word`: what a process is called.
    `port`: where process 0 listens, which may be left to the system (0).
    """

    def __init__(
        self,
        place: Place,
        *,
        timeout: float = 60.0,
        join: float = 60.0,
        wire: str = "sockets",
        word: str = "process",
    ) -> None:
        self.process, self.processes, self.port = place.process, place.processes, place.port
        self.secret, self.timeout = secret_of(place.secret), timeout
        self._wire = wire
        self.name = f"{word} {self.process} on {socket.gethostname()}"
        self.failed = ""
        self.launch = self._round = 0
        self._running = False
        self._speaking = Lock()
        self._coordinator: Coordinator | None = None
        self._watched: tuple[Callable[[], Activity], Callable[[str], None]] | None = None
        self._told: dict[int, list[Any]] = {}
        self._gathers = 0
        self._news = Condition()
        self._closing = False
        until = time.monotonic() + join
        self.address = ""
        self._stream = self._serve(place, until) if self.process == 0 else self._call(place, until)
        self._say({"kind": "name", "name": self.name})
        self._thread = Thread(target=self._listen, name="forestcoll group", daemon=True)
        self._thread.start()

    def _serve(self, place: Place, until: float) -> Stream:
        try:
            listener = socket.create_server(("", place.port), backlog=1024)
        except OSError as error:
            raise ExecutionError(
                f"process 0 cannot listen at port {place.port} ({os.strerror(error.errno or 0)}): "
                f"set {PORT} to a free one in all processes"
            ) from error
        self.port = listener.getsockname()[1]
        own, theirs = socket.socketpair()
        self._coordinator = Coordinator(
            listener, theirs, self.processes, self.secret, self.timeout, until
        )
        self._coordinator.start()
        return Stream(own)

    def _call(self, place: Place, until: float) -> Stream:
        """Connects to process 0, which may not be there yet."""
        where = f"process 0 at {place.address}, port {place.port}"
        why = "nobody listens there"
        while time.monotonic() < until:
            try:
                stream = self._reach((place.address, place.port), "group")
            except PermissionError as error:
                raise ExecutionError(f"{self.name} refuses {where}: {error}") from error
            except (OSError, ValueError) as error:
                why = str(error)
                time.sleep(0.1)
                continue
            self.address = stream.socket.getsockname()[0]
            self._master = stream.socket.getpeername()[0]
            return stream
        raise ExecutionError(f"{self.name} does not reach {where}: {why}")

    def _reach(self, where: tuple[str, int], purpose: str) -> Stream:
        """A stream to who listens there, and knows that this is a process of the job."""
        stream = Stream(socket.create_connection(where, SILENCE))
        greet(stream, self.secret, self.process, purpose, time.monotonic() + SILENCE)
        return stream

    # --- what this process says

    def _say(self, message: Message) -> None:
        try:
            with self._speaking:
                self._stream.send(message)
        except OSError:
            self._lose("the connection to process 0 is gone")

    def gather(self, value: object) -> list[Any]:
        """What every process gives (anything that JSON holds), at every process, by its number."""
        number, self._gathers = self._gathers, self._gathers + 1
        self._say({"kind": "gather", "number": number, "value": value})
        with self._news:
            while number not in self._told and not self.failed:
                self._news.wait(1.0)  # Ctrl-C comes in between
            if number in self._told:
                return self._told.pop(number)
        self.check()
        raise AssertionError

    def fail(self, said: str) -> None:
        """Tells all others what has befallen this process, unless something else has by now."""
        if not self.failed:
            self._say({"kind": "failed", "text": f"{self.name}{said}"})

    def check(self) -> None:
        """ExecutionError if a process has failed."""
        if self.failed:
            raise ExecutionError(self.failed)

    # --- a launch (`_engine.Engine.launch` calls these)

    def watch(
        self, state: Callable[[], Activity] | None, end: Callable[[str], None] = lambda _: None
    ) -> None:
        """What the next launches do, and how they are ended: "stuck", "stalled" or "lost".

        `state` may raise ConnectionError: it has lost another process. None: no more launches.
        """
        self._watched = None if state is None else (state, end)

    def begin(self) -> None:
        """All processes have prepared the launch."""
        self.gather(None)
        self.launch, self._running = self.launch + 1, True

    def end(self, sent: Sequence[int]) -> list[int]:
        """All have ended it. What each has sent to this process; `sent`: by this one, to each.

        Nothing stands for a bad end, and is what all get where it is one's.
        """
        if not sent:  # nor can the others end theirs
            self._say({"kind": "over", "launch": self.launch})
        told = self.gather(list(sent))
        self._running = False
        return [counts[self.process] for counts in told] if all(told) else []

    # --- what this process hears

    def _listen(self) -> None:
        said = heard = looked = time.monotonic()
        last: object = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream.socket, selectors.EVENT_READ)
            while not self._closing:
                if selector.select(LOOK):
                    try:
                        if not self._stream.fill():
                            raise ConnectionError("the connection was closed")
                        while (message := self._stream.take()) is not None:
                            heard = time.monotonic()
                            self._hear(message)
                    except (OSError, ValueError) as error:
                        self._lose(f"process 0 is gone ({error})")
                        return
                now = time.monotonic()
                # While this process slept, nobody was silent.
                heard, looked = heard + max(0.0, now - looked - BEAT), now
                if now - heard > SILENCE:
                    self._lose(SILENT.format("process 0"))
                    return
                state = self._state()
                if state not in (None, last):
                    last, said = state, now
                    self._say({"kind": "state", "state": state})
                elif now - said > BEAT:
                    said = now
                    self._say({"kind": "alive"})

    def _state(self) -> object:
        """None: there is no launch, or what it was told of it ends this process's part in it."""
        watched = self._watched
        if watched is None or not self._running or self.failed:
            return None
        try:
            return [self.launch, self._round, *map(int, watched[0]())]
        except ConnectionError as error:
            self.fail(f": {error}")
            self._running = False
            return None

    def _hear(self, message: Message) -> None:
        match message.get("kind"):
            case "gathered":
                with self._news:
                    self._told[int(message["number"])] = message["values"]
                    self._news.notify_all()
            case "look":
                self._round = int(message["round"])  # the state is told once more
            case "end":
                if self._watched is not None and message["launch"] == self.launch:
                    self._watched[1](str(message["how"]))
            case "failed":
                self._lose(str(message["text"]))

    def _lose(self, why: str) -> None:
        with self._news:
            self.failed = self.failed or why
            self._news.notify_all()
        watched = self._watched
        if watched is not None:
            watched[1]("lost")

    # --- connections with all other processes

    strict = False
    """Whether a plan's own flushes alone keep what is put elsewhere from being overwritten."""

    def join(
        self,
        enter: Callable[[_engine.Way, bool], None],
        arena: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> bool:
        """Has an engine `enter` the way to all other processes, which do the same.

        Whether that reaches the `arena`, memory that is no processor's (wire.hpp); it is told too.
        """
        if self._wire == "sockets":
            enter(_engine.Way(self._connect(time.monotonic() + self.timeout)), False)
            return False
        libraries = ucx.libraries()
        try:
            way = _engine.Way(libraries, self.processes, self.process, arena)
            way.meet([*map(bytes.fromhex, self.gather(way.address().hex()))])
            reaches = way.reaches()
            enter(way, reaches)
            return reaches
        except RuntimeError as error:
            raise ExecutionError(f"the wire over UCX: {error}") from error

    def _connect(self, until: float) -> list[int]:
        """A connected socket with every other process, by its number; -1 for this one."""
        own = os.environ.get(ADDRESS, self.address)
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        with socket.create_server((own, 0), family=family, backlog=1024) as listener:
            port = listener.getsockname()[1]
            places = self.gather([own, port])
            others: dict[int, int] = {}
            try:
                for peer, (address, number) in enumerate(places[: self.process]):
                    others[peer] = _detach(self._reach((address or self._master, number), "wire"))
                listener.settimeout(1.0)
                while len(others) < self.processes - 1:
                    self.check()
                    if time.monotonic() > until:
                        raise TimeoutError("not all processes have connected")
                    self._accept(listener, others)
            except (OSError, ValueError) as error:
                for descriptor in others.values():
                    os.close(descriptor)
                with self._news:  # process 0 may know more
                    self._news.wait_for(lambda: self.failed, 2 * BEAT)
                self.check()
                raise ExecutionError(f"no connection with the other processes: {error}") from error
        return [others.get(process, -1) for process in range(self.processes)]

    def _accept(self, listener: socket.socket, others: dict[int, int]) -> None:
        try:
            stream = Stream(listener.accept()[0])
        except TimeoutError:
            return
        process = -1
        with suppress(OSError, ValueError):  # of a stranger
            process = accept(stream, self.secret, "wire", time.monotonic() + SILENCE)
        if process in others or not self.process < process < self.processes:
            stream.close()
        else:
            others[process] = _detach(stream)

    def close(self, *, wait: bool = True) -> None:
        """Lets the others go on without this process; process 0 may `wait` until all do that."""
        if self._closing:
            return
        self._watched = None
        self._say({"kind": "part"})
        self._closing = True
        self._thread.join()
        if self._coordinator is not None and wait:
            self._coordinator.join()  # until all others have parted, or are lost
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            said = " was interrupted"
            if isinstance(error, ForestCollError):
                said = ": " + "\n".join([str(error), *getattr(error, "__notes__", ())])
            self.fail(said)
        self.close()


def _detach(stream: Stream) -> int:
    stream.socket.setblocking(False)
    return stream.socket.detach()
