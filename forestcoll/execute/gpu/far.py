"""Ranks of other nodes, as a rank's GPU and its host see them.

The kernel tells its host what is to go there by rings, and finds what comes from there in memory of
the host (layer.hpp, ring.hpp); the relay carries both over the group's wire (relay.hpp).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_uint64

from forestcoll.common.errors import ExecutionError
from forestcoll.execute import _engine
from forestcoll.execute.cluster.division import mark_drains
from forestcoll.execute.cluster.group import Activity, Group
from forestcoll.execute.deadlock_report import error_of
from forestcoll.execute.gpu.arena import LINE
from forestcoll.execute.gpu.worker import Job, Worker, report_of, watch
from forestcoll.execute.result import Mode

PIECES = 16
"""Pieces of pinned memory through which data goes: 4 MiB."""


class Far:
    """What a rank has to do with ranks of other nodes; close it before its device.

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
