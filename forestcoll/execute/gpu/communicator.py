"""A plan on device pointers: one process per rank, for programs that have GPU memory of their own.

Every process makes a Communicator for one plan, size, type and operation, and then calls `run` as
often as it likes, all of them in the same order. Nothing of PyTorch is needed: processes agree by
`gather`, which the caller brings (forestcoll.torch.gpu does it over a process group).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_uint64
from pathlib import Path
from typing import Any

from forestcoll.common import errors
from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError
from forestcoll.common.text_file import digest
from forestcoll.execute import _engine
from forestcoll.execute.cluster.division import check, mark_drains
from forestcoll.execute.cluster.group import Activity, Group
from forestcoll.execute.cluster.launchers import ADDRESS, LOCAL, Place
from forestcoll.execute.deadlock_report import error_of
from forestcoll.execute.gpu.arena import LINE
from forestcoll.execute.gpu.compiler import find_library
from forestcoll.execute.gpu.worker import Job, Worker, explain, report_of, watch
from forestcoll.execute.request import Request
from forestcoll.execute.result import Mode
from forestcoll.execute.tables import Tables, build
from forestcoll.program import Program

Gather = Callable[[bytes], Sequence[bytes]]
"""What every rank gives, at every rank, in rank order; nobody returns before all have called it."""
NODE = "FORESTCOLL_NODE"
"""Variable: names those processes alike whose GPUs reach each other; else the host's name does."""
PIECES = 16
"""Pieces of pinned memory through which data goes: 4 MiB."""


class Far:
    """What a rank has to do with ranks of other nodes; close it before its device.

    The kernel tells its host what is to go there by rings, and finds what comes from there in
    memory of the host (layer.hpp, ring.hpp); the relay carries both over the group's wire
    (relay.hpp).

    `group`: all ranks, one a process, which all make theirs and then `join`. `handles`, `devices`:
    as `Worker.connect` has them.
    """

    def __init__(
        self,
        job: Job,
        worker: Worker,
        group: Group,
        handles: list[bytes],
        devices: list[int],
        mode: Mode,
    ) -> None:
        self.job, self.worker, self.group, self.device = job, worker, group, worker.device
        self.how, self.activity = "", (False, False, 0, 0, 0)
        tables, nodes, arenas, rank, at = job.tables, job.nodes, job.arenas, worker.gpu, worker.at
        owners, takers = [row[0] for row in tables.blocks], [taker for taker, _ in tables.takers]
        self.space = _engine.Space(len(nodes), rank, max(arenas.bytes), False)
        worker.connect(handles, devices, self.space)
        rings, count = owners.count(rank), len(tables.connections)
        begin = rings * _engine.RING[0]
        pool = begin + (2 * count + len(takers)) * LINE
        bytes_ = pool + PIECES * _engine.RING[2]  # that kernels reach as well, where they see it
        host, seen = self.device.call("pin", bytes_, kinds=[c_uint64] * 2)
        given: dict[str, list[int]] = defaultdict(list)
        peers: list[int] = []

        def number(line: int, mine: bool) -> int:
            """Where the kernel finds what comes here; 0: it goes by the ring."""
            return (seen + begin + line * LINE) * mine

        for c, (writer, reader) in enumerate(tables.connections):
            w, r = owners[writer], owners[reader]
            far = nodes[w] != nodes[r]
            posted, taken = number(c, r == rank), number(count + c, w == rank)
            given["posted"].append(posted if far else at(arenas.posted[c]))
            given["taken"].append(taken if far else at(arenas.taken[c]))
            given["sizes"].append(0 if far else at(arenas.sizes[c]))
            mirrored = far and w == rank
            given["slots"].append(at((arenas.mirrors if mirrored else arenas.slots)[c]))
            peers.append(r if w == rank else w)
        raisers = report_of(tables, []).raisers
        for s, taker in enumerate(takers):
            far = any(nodes[owners[block]] != nodes[taker] for block in raisers[s])
            given["raised"].append(number(2 * count + s, far))
            given["semaphores"].append(at(arenas.semaphores[s]) * (nodes[taker] == nodes[rank]))
        self.arena = self.device.base, arenas.bytes[rank], *self.device.memory()
        queue = count, *job.slots, host + pool, PIECES
        layout = *self.arena[:2], host, rings, host + begin, *queue, *self.device.copies()
        slots = [*(place for _, place in arenas.slots), *[0] * (count + len(takers))]
        self.relay = _engine.Relay(self.space, layout, [*peers, *peers, *takers], slots)
        first, end = self.space.arena(0), self.space.arena(len(nodes))
        worker.load(
            mark_drains(tables, worker.addresses(mode, 0), job.request.data.chunk_bytes, nodes),
            given,
            (seen, first, at(arenas.made[rank]), end - first),
        )

    def join(self) -> tuple[str, ...]:
        """Connects with all other ranks, who do the same; what a user should know of the way."""
        reaches = self.group.join(self.relay.join, self.arena)
        self.group.watch(self.state, self.end)
        through = "data for other nodes goes through the host's memory: the wire reaches no GPU's"
        return (through,) * (not reaches)

    def launch(self, mode: Mode) -> bool:
        """Runs the kernel until all that ranks sent each other is there.

        False: nothing moved for the group's patience, at all ranks alike.
        ExecutionError: a rank is lost, and where this one stood.
        """
        relay, group = self.relay, self.group
        self.how = ""
        try:
            relay.begin()
            group.begin()  # so have all others
            self.worker.start(mode)
            watch(self._poll, self.device.abort, math.inf, lambda: self.how)
            relay.end()
            self._await(lambda: relay.counts()[0] == 0)
            expected = group.end([] if self.how else relay.counts()[1])
            self._await(lambda: all(map(int.__ge__, relay.counts()[2], expected)))
            group.check()
        except BaseException as error:
            group.fail(f": {error}")
            self.end("lost")
            with suppress(ExecutionError):  # once the kernel has ended, or cannot be asked any more
                watch(lambda: [self.device.poll()], self.device.abort, 0.0)
            if not isinstance(error, ExecutionError):
                raise
            rows = report_of(self.job.tables, self.worker.end_state()[0]).open_lines(set())
            own = [row.replace(", which has finished", "") for row in rows]  # others': unknown
            raise error_of([str(error), *["this rank was at"] * bool(own), *own]) from None
        return bool(expected) and not self.how

    def _poll(self) -> list[tuple[bool, int]]:
        running, ticks = self.device.poll()
        sent, received = map(sum, self.relay.counts()[1:])
        self.activity = False, not running, sent, received, ticks + sent + received
        return [(running, ticks)]

    def _await(self, reached: Callable[[], bool]) -> None:
        while not self.how and not reached():
            time.sleep(1e-4)

    def state(self) -> Activity:
        """How far the launch is; ConnectionError: it has lost another rank."""
        peer, why = self.relay.failure()
        if why:
            raise ConnectionError(f"the connection to rank {peer}: {why}" if peer >= 0 else why)
        return self.activity

    def end(self, how: str) -> None:
        """Ends the launch early; by any thread."""
        self.how = how
        self.device.abort()
        self.relay.give_up()


class Communicator:
    """One rank's end of a plan. Close it, or use it in a `with`; all ranks alike.

    `size_bytes`: of the whole collective, as nccl-tests counts it. `device`: number of this rank's
    GPU, no other rank's of its node. `wire`: what carries data between nodes, sockets or ucx;
    `node`: in place of $FORESTCOLL_NODE. `notes`: what a user should know about that. Raises at
    every rank alike: UnsupportedError (GPUs of a node that cannot reach each other, or lack memory,
    a plan that reads memory of another node, an unknown type), PlanError (not a plan for this),
    ExecutionError (a process failed; between nodes the communicator is of no more use then).
    """

    def __init__(
        self,
        program: Program,
        size_bytes: int,
        rank: int,
        device: int,
        gather: Gather,
        *,
        dtype: str = "float32",
        op: str = "sum",
        root: int | None = None,
        timeout: float = 60.0,
        built: Path | None = None,
        wire: str = "sockets",
        node: str | None = None,
    ) -> None:
        request = Request.of(program, size_bytes, dtype=dtype, op=op, timeout=timeout, root=root)
        self._gather, self._timeout, self._launch = gather, request.timeout, 0
        self._worker: Worker | None = None
        self._group: Group | None = None
        self._far: Far | None = None
        self.notes: tuple[str, ...] = ()
        self.rank, self.data = rank, request.data
        if self.data.size != request.wanted:
            raise UnsupportedError(
                f"{size_bytes} bytes of {dtype} are not a whole number of elements on each of "
                f"{program.n} ranks"
            )
        self._mode: Mode = "out-of-place" if program.out_of_place else "in-place"
        try:
            tables = build(request.program)
            nodes = self._meet(request, tables, node or os.environ.get(NODE), wire)
            self.job = Job.of(request, list(range(program.n)), tables=tables, nodes=nodes)
            self._open(device, built)
        except BaseException:
            self.close(together=False)
            raise

    def _meet(self, request: Request, tables: Tables, node: str | None, wire: str) -> list[int]:
        """The node of each rank. Where there are several, all ranks meet in a group."""
        host, what = socket.gethostname(), digest(f"{request}{tables}")
        told = self._together(lambda: (node or host, host, what))
        names, hosts, whats = zip(*told, strict=True)
        if len(set(whats)) > 1:
            raise UnsupportedError("the ranks have different plans, sizes or options")
        nodes = [names.index(name) for name in names]
        check(request.program, nodes, "node", reads=False)
        if len(set(nodes)) == 1:
            return nodes
        own = os.environ.get(ADDRESS) or (LOCAL if len(set(hosts)) == 1 else host)
        place = Place(self.rank, len(nodes), own, 0, secrets.token_hex(16))

        def enter(comes: bool) -> tuple[str, int, str]:
            if comes:
                self._group = Group(place, timeout=self._timeout, wire=wire, word="rank")
            return place.address, self._group.port if self._group else 0, place.secret

        own, port, secret = self._together(lambda: enter(self.rank == 0))[0]  # who opens it
        place = Place(self.rank, len(nodes), own, port, secret)
        self._together(lambda: enter(self.rank > 0))
        return nodes

    def _open(self, device: int, built: Path | None) -> None:
        def own() -> str:
            path = str(built or find_library())
            self._worker = Worker(path, self.rank, device, self.job, mmap.mmap(-1, mmap.PAGESIZE))
            return self._worker.device.export().hex()

        told = self._together(lambda: (device, own()))
        devices, handles = [number for number, _ in told], [bytes.fromhex(text) for _, text in told]
        places = list(zip(self.job.nodes, devices, strict=True))
        for other, place in enumerate(places):
            if place in places[:other]:
                raise UnsupportedError(
                    f"ranks {places.index(place)} and {other} are both on GPU {place[1]}: their "
                    "kernels would wait for each other's turn; give every rank a GPU of its own"
                )
        worker, group = self._worker, self._group
        assert worker is not None

        def connect() -> None:
            if group is None:
                worker.connect(handles, devices)
                worker.load()
            else:
                self._far = Far(self.job, worker, group, handles, devices, self._mode)

        self._together(connect)
        if self._far is not None:
            self.notes = self._far.join()

    def _together(self, act: Callable[[], Any]) -> list[Any]:
        """What `act` gives at every rank; what it raises at one is raised at all."""
        failed: BaseException | None = None
        answer: Any = None
        try:
            answer = act()
        except ForestCollError as error:
            if self._far is not None:
                self._far.group.fail(f": {error}")
                raise
            failed = error
        told = (type(failed).__name__, str(failed)) if failed else None
        all_told = self._tell([told, answer])
        if failed:
            raise failed
        for rank, (wrong, _) in enumerate(all_told):
            if wrong is not None:
                raise getattr(errors, wrong[0])(f"rank {rank}: {wrong[1]}")
        return [given for _, given in all_told]

    def _tell(self, value: Any) -> list[Any]:
        if self._far is not None:  # there it is known when a rank is gone
            return self._far.group.gather(value)
        return [json.loads(text) for text in self._gather(json.dumps(value).encode())]

    def run(self, source: int, target: int) -> int:
        """The collective, from device address `source` to `target`; nanoseconds of the kernel.

        Elements lie densely, as NCCL has them, in place as NCCL defines it or apart; both must be
        this rank's GPU's. What wrote the input must be done; the output is there on return. Raises
        ExecutionError, at every rank, if the launch hangs or fails.
        """
        worker = self._worker
        if worker is None:
            raise ExecutionError("the communicator is closed")
        device, far = worker.device, self._far
        number, self._launch = self._launch, self._launch + 1
        mine = worker.buffers(self._mode)[self.rank]
        self._move(worker, source, mine.input.ctypes.data, inwards=True)
        self._together(lambda: worker.prepare(self._mode, number))

        def launch() -> tuple[bool, bool]:
            if far is None:
                worker.start(self._mode)
                done = watch(lambda: [device.poll()], device.abort, self._timeout)
            else:
                done = far.launch(self._mode)
            return done, bool(worker.stops()[:, -1].any())

        states = self._together(launch)
        if not all(done for done, _ in states) or any(wrong for _, wrong in states):
            explain(self.job, self._together(worker.end_state), self._timeout)
        self._move(worker, target, mine.output.ctypes.data, inwards=False)
        return device.nanoseconds()

    def _move(self, worker: Worker, user: int, mine: int, *, inwards: bool) -> None:
        """Between the caller's dense parts and the arena's, which are padded to whole chunks."""
        request, data = self.job.request, self.data
        collective, n = request.program.collective, request.program.n
        parts = collective.input_parts(n) if inwards else collective.output_parts(n)
        bytes_ = data.part * data.element
        if not inwards and collective.origin(self.rank, request.root, 0) is None:
            parts = 0  # only the root has a result
        for part in range(parts):
            there, here = user + part * bytes_, mine + part * data.stride
            to, from_ = (here, there) if inwards else (there, here)
            worker.device.call("copy", to, from_, bytes_, part == parts - 1)  # waits for the last

    def close(self, *, together: bool = True) -> None:
        """Gives the GPU's memory back, once all ranks have let go of it: they all close.

        Not `together`: at once, where others may never come to this; for the way out of an error.
        """
        worker, far, group = self._worker, self._far, self._group
        self._worker = self._far = self._group = None
        try:
            if worker is not None:
                worker.device.call("detach")
                if together:
                    self._gather(b"")
        finally:
            if group is not None:
                if not together:
                    group.fail(" has given up")
                group.close(wait=together)
            if far is not None:
                far.relay.close()
            if worker is not None:
                worker.device.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(together=kind is None)
