"""One GPU's process: allocates, fills, launches, compares, all at its parent's word.

Commands come over a pipe and are answered one by one. When the parent goes away the pipe ends, and
so does the process.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_uint64
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.contents import Buffers, place
from forestcoll.execute.deadlock_report import Report, Stop, error_of
from forestcoll.execute.gpu.arena import (
    ALIGNMENT,
    SLOT_BYTES,
    SLOTS,
    Arenas,
    Place,
    lay_out,
    slot_of,
)
from forestcoll.execute.gpu.native import STOP, Device, Library, Plan
from forestcoll.execute.request import Request
from forestcoll.execute.result import Mode
from forestcoll.execute.sizes import Geometry, geometry
from forestcoll.execute.tables import Tables, build

PAGE = mmap.PAGESIZE
GRACE = 10.0  # seconds for what was given up to end by itself


class Job(NamedTuple):
    """What every process of a run is told."""

    request: Request
    tables: Tables
    arenas: Arenas
    geometry: Geometry
    slots: tuple[int, int]  # bytes of one, how many
    nodes: list[int]  # of each rank

    @staticmethod
    def of(
        request: Request,
        gpu_of: list[int],
        slots: int = SLOTS,
        slot_bytes: int = SLOT_BYTES,
        nodes: Sequence[int] = (),
        tables: Tables | None = None,
    ) -> Job:
        """The job of a request. `gpu_of`: position of each rank's GPU among those used.

        `nodes`: the node of each rank; without, all are in one.
        """
        program, data = request.program, request.data
        nodes = list(nodes) or [0] * program.n
        if len(set(nodes)) > 1:
            slot_bytes = min(slot_bytes, _engine.RING[2])
        tables, slot = tables or build(program), slot_of(program, data, slot_bytes)
        return Job(
            request,
            tables,
            lay_out(program, tables, data, gpu_of, slots, slot, nodes),
            geometry(data, slot),
            (slot, slots),
            nodes,
        )


def staging(request: Request, mode: Mode, begin: int) -> tuple[list[Buffers], int]:
    """All ranks' buffers in memory of the host, from the address `begin` on; no scratch.

    And the bytes that they take. Parent and workers share that memory.
    """
    program, chunk = request.program, request.data.chunk_bytes
    none = [0] * program.n
    buffers, (end,) = place(program, none, chunk, mode, none, [begin], PAGE)
    return buffers, end


class Worker:
    """The commands; its `device` answers others. `gpu`: position among the GPUs used; `device`: its
    number on this machine."""

    def __init__(self, library: str, gpu: int, device: int, job: Job, memory: mmap.mmap) -> None:
        self.job = job
        self.gpu = gpu
        self.memory = np.frombuffer(memory, np.uint8)
        self.bases: list[int] = []
        self.placed: dict[Mode, list[Buffers]] = {}
        self.mine = [r for r, where in enumerate(job.arenas.gpu_of) if where == gpu]
        native = Library(Path(library))
        if device >= native.count():
            raise UnsupportedError(f"there is no GPU {device}: {native.count()} are seen")
        seen = native.describe(device)
        needed = job.arenas.bytes[gpu]
        if needed > seen.free * 9 // 10:
            raise UnsupportedError(
                f"GPU {device}: {len(self.mine)} ranks need {needed / 2**30:.1f} GiB, "
                f"{seen.free / 2**30:.1f} are free; choose a smaller size"
            )
        self.device = Device(native, device, needed)
        # Packets are told by their launch's number, and memory may hold those of another plan.
        self.device.call("set", self.device.base, 0xFF, needed)
        owners = enumerate(row[0] for row in job.tables.blocks)
        self.blocks = [b for b, rank in owners if rank in set(self.mine)]
        blocks = len(self.blocks)
        # It takes so few threads a block that as many as can be run at the same time.
        (held,) = self.device.call("fit", blocks, kinds=[c_int])
        if blocks > held:
            self.device.close()
            raise UnsupportedError(
                f"GPU {device}: {blocks} thread blocks of {len(self.mine)} ranks, and it runs "
                f"{held} at once ({seen.name}, {seen.processors} multiprocessors); they wait for "
                "each other, so all must: spread the ranks over more GPUs"
            )

    def connect(
        self, handles: list[bytes], devices: list[int], space: _engine.Space | None = None
    ) -> None:
        """Maps all other arenas; those of other nodes are addresses in `space`."""
        for gpu, handle in enumerate(handles):
            if gpu == self.gpu:
                self.bases.append(self.device.base)
                continue
            if space is not None and self.job.nodes[gpu] != self.job.nodes[self.gpu]:
                self.bases.append(space.arena(gpu))
                continue
            access, atomics = self.device.library.reaches(devices[self.gpu], devices[gpu])
            if not access or not atomics:
                what = "reach" if not access else "atomically change"
                raise UnsupportedError(
                    f"GPU {devices[self.gpu]} cannot {what} the memory of GPU {devices[gpu]}: no "
                    "NVLink, xGMI or peer-to-peer between them; the torch engine needs none"
                )
            self.bases += self.device.call("import", handle, kinds=[c_uint64])

    def load(
        self,
        t: Tables | None = None,
        given: dict[str, list[int]] | None = None,
        far: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Loads the plan: where there are other nodes, with other tables (`t`), and other
        addresses (`given`: layer.hpp, Launch), than else. `far`: as `Plan` has it."""
        job, arenas, t = self.job, self.job.arenas, t or self.job.tables
        order = ["posted", "taken", "slots", "sizes", "semaphores", "raised", "progress", "arrived"]
        tables: list[npt.NDArray[Any]] = [
            np.array(t.instructions, np.int32),
            np.array(t.operands, np.int64),
            np.array(t.dependencies, np.int32),
            np.array(t.names, np.int32),
            np.array(t.loops, np.int64),
            np.array(t.blocks, np.int32),
            np.array(self.blocks, np.int32),
            np.zeros(6 * job.request.program.n, np.uint64),  # addresses: `prepare` gives them
            *(
                np.array((given or {}).get(p) or [*map(self.at, getattr(arenas, p, ()))], np.uint64)
                for p in order
            ),
        ]
        plan = Plan(
            tables=tuple(table.ctypes.data for table in tables),
            geometry=job.geometry,
            far=far,
            slots=job.slots,
            kind=job.request.kind,
            bytes=tuple(table.nbytes for table in tables),
            blocks=len(self.blocks),
        )
        self.device.call("load", byref(plan))

    def at(self, place: Place) -> int:
        """A place as an address of this process."""
        return self.bases[place[0]] + place[1]

    def buffers(self, mode: Mode) -> list[Buffers]:
        """Of all ranks, as addresses of this process, behind which their data is not."""
        if mode not in self.placed:
            job, request = self.job, self.job.request
            where = job.arenas.gpu_of, self.bases, ALIGNMENT
            what = request.program, job.tables.scratch, request.data.chunk_bytes, mode
            self.placed[mode], _ = place(*what, *where)
        return self.placed[mode]

    def addresses(self, mode: Mode, launch: int) -> list[tuple[int, ...]]:
        """Of each rank's input, output and scratch, and of the allocations that they lie in."""
        turns = 2 if self.job.request.program.double_scratch else 1
        return [each.addresses(launch % turns, turns) for each in self.buffers(mode)]

    def move(self, mode: Mode, inwards: bool) -> None:
        """Inputs and outputs from the host to the GPU, where scratch becomes all ones; or back."""
        there, move = self.buffers(mode), self.device.write if inwards else self.device.read
        host, _ = staging(self.job.request, mode, self.memory.ctypes.data)
        for rank in self.mine:
            # in place the input is the last to be written: it is a part of the output, or the whole
            move(there[rank].output.ctypes.data, host[rank].output)
            move(there[rank].input.ctypes.data, host[rank].input)
            if inwards:
                scratch = there[rank].scratch
                self.device.call("set", scratch.ctypes.data, 0xFF, scratch.nbytes)

    def prepare(self, mode: Mode, launch: int) -> None:
        """Flags as before the first launch. All processes do this before any of them starts."""
        begin, _ = self.job.arenas.flags[self.gpu]
        self.device.write(
            self.device.base + begin, self.job.arenas.initial(self.gpu, self.job.tables)
        )
        addresses = np.array(self.addresses(mode, launch), np.uint64)  # six of every rank
        self.device.call("prepare", addresses.ctypes.data, addresses.size, launch + 1)

    def start(self, mode: Mode) -> None:
        """Starts the kernel; `avg` divides the complete sums behind it."""
        request, buffers, sums = self.job.request, self.buffers(mode), []
        if request.average:
            origin = request.program.collective.origin
            ranks = [rank for rank in self.mine if origin(rank, request.root, 0) is not None]
            sums = [buffers[rank].output.ctypes.data for rank in ranks]
        divided, size = np.array(sums, np.uint64), buffers[0].output.nbytes
        self.device.call("start", divided.ctypes.data, divided.size, size, request.program.n)

    def end_state(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        """(where each thread block of this GPU stood, the flags of this GPU)."""
        begin, size = self.job.arenas.flags[self.gpu]
        flags = np.zeros(size // 8, np.uint64)
        self.device.read(self.device.base + begin, flags)
        return [tuple(row) for row in self.stops().tolist()], flags.tolist()

    def stops(self) -> npt.NDArray[Any]:
        """Where the thread blocks of this GPU stood at the end: a row of each (layer.hpp, Stop)."""
        positions = np.zeros((len(self.blocks), STOP), np.int64)
        self.device.call("stops", positions.ctypes.data)
        return positions


Ended = tuple[list[tuple[Any, ...]], list[int]]
"""`Worker.ended` of a GPU: where its thread blocks stood, and its flags."""


def report_of(tables: Tables, rows: Sequence[tuple[Any, ...]]) -> Report:
    """Where all thread blocks were: `rows` of those that waited long; others go on, or are done."""
    positions = {row[0]: row for row in rows if row[0] >= 0 and not row[5]}
    done = [Stop(b, block[2], finished=True) for b, block in enumerate(tables.blocks)]
    return Report(tables, [positions.get(stop.block, stop)[: len(stop)] for stop in done])


def explain(job: Job, ended: Sequence[Ended], gave_up: float | None) -> None:
    """ExecutionError unless all is well. `gave_up`: seconds in which nothing moved, or None."""
    tables, arenas = job.tables, job.arenas
    rows = [row for rows, _ in ended for row in rows]
    report = report_of(tables, rows)
    for row in rows:
        if row[-1]:
            raise ExecutionError(report.say_mismatch(report.stops[row[0]]))
    if gave_up is not None:
        first, *others = report.describe_deadlock()
        raise error_of([f"nothing moved for {gave_up:g} s; {first}", *others])

    def value(place: Place) -> int:
        gpu, offset = place
        return ended[gpu][1][(offset - arenas.flags[gpu][0]) // 8]

    pairs = zip(arenas.posted, arenas.taken, strict=True)
    starts = zip(arenas.semaphores, tables.semaphores, strict=True)
    amounts = [
        *((0, number, value(sent) - value(read)) for number, (sent, read) in enumerate(pairs)),
        *((1, number, value(place) - start) for number, (place, start) in enumerate(starts)),
    ]
    left = [row for row in amounts if row[2]]
    if left:
        raise ExecutionError(report.say_leftovers(left))


def watch(
    poll: Callable[[], list[tuple[bool, int]]],
    abort: Callable[[], object],
    patience: float,
    ended: Callable[[], object] = lambda: False,
) -> bool:
    """Waits until no kernel runs. False: nothing moved for `patience` seconds, they were given up.

    `poll`: of every GPU whether its kernel runs, and a number that changes while it gets on;
    `ended`: whether it is given up by others.
    """
    seen, since, pause, given_up = -1, time.monotonic(), 2e-5, False
    while True:
        running, counts = zip(*poll(), strict=True)
        if not any(running):
            return not given_up
        ticks, now = sum(counts), time.monotonic()
        if ticks != seen:
            seen, since = ticks, now
        elif now - since > (GRACE if given_up else patience) or (ended() and not given_up):
            if given_up:
                raise ExecutionError("the GPUs do not end a launch that was given up")
            abort()
            given_up, since = True, now
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def main(commands: int, shared: int) -> None:
    """Answers commands until the parent is gone or wants no more. Descriptors: pipe, host memory.

    One job after another: `open` begins one, `close` ends it.
    """
    pipe = Connection(commands)
    worker: Worker | None = None
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            if worker is not None:
                worker.device.abort()  # else a kernel that waits may keep this process from ending
            return
        try:
            answer: Any = None
            if name == "count":
                answer = Library(Path(*arguments)).count()
            elif name == "open":
                library, gpu, device, job = arguments
                worker = Worker(library, gpu, device, job, mmap.mmap(shared, 0))
            else:
                assert worker is not None
                owner = worker if hasattr(worker, name) else worker.device
                answer = getattr(owner, name)(*arguments)
        except ForestCollError as error:
            pipe.send((type(error), str(error)))
            continue
        if name == "close":
            worker = None
        pipe.send((None, answer))
