"""One GPU's process: allocates, fills, launches, compares, all at its parent's word.

Commands come over a pipe and are answered one by one. When the parent goes away the pipe ends, and
so does the process.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.execute.contents import ADDRESSES, Buffers, allocate, allocations
from forestcoll.execute.gpu.arena import Arenas, Place, lay_out
from forestcoll.execute.gpu.messages import SLOT_BYTES, SLOTS, geometry, slot_of
from forestcoll.execute.gpu.native import Device, Library
from forestcoll.execute.request import Request
from forestcoll.execute.result import Mode
from forestcoll.execute.sizes import Layout
from forestcoll.execute.tables import Tables, build
from forestcoll.program import Program

PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Job:
    """What every process of a run is told. `type`, `op`: numbers of the engine's tables."""

    program: Program
    tables: Tables
    data: Layout
    arenas: Arenas
    geometry: tuple[int, int, int, int, int]
    slots: tuple[int, int]  # bytes of one, how many
    type: int
    op: int
    average: bool  # divide the sums by the ranks
    root: int

    @staticmethod
    def of(
        request: Request, gpu_of: list[int], slots: int = SLOTS, slot_bytes: int = SLOT_BYTES
    ) -> Job:
        """The job of a request. `gpu_of`: position of each rank's GPU among those used."""
        program, data = request.program, request.data
        tables, slot = build(program), slot_of(program, data, slot_bytes)
        return Job(
            program,
            tables,
            data,
            lay_out(program, tables, data, gpu_of, slots, slot),
            geometry(data, slot),
            (slot, slots),
            *request.kind,
            request.average,
            request.root,
        )


def staging(program: Program, data: Layout, mode: Mode, memory: mmap.mmap) -> list[Buffers]:
    """All ranks' buffers in memory of the host that parent and workers share; no scratch."""
    taken = 0

    def take(size: int) -> npt.NDArray[np.uint8]:
        nonlocal taken
        begin = taken
        taken = -(-(begin + size) // PAGE) * PAGE
        return np.frombuffer(memory, np.uint8, size, begin)

    return allocate(program, [0] * program.n, data.chunk_bytes, mode, take)


def staging_bytes(program: Program, data: Layout) -> int:
    """What `staging` takes at most."""
    first = program.ranks[0]
    sizes = (c * data.chunk_bytes for c in (first.input_chunks, first.output_chunks))
    return program.n * sum(-(-size // PAGE) * PAGE for size in sizes) + PAGE


class Worker:
    """The commands. `gpu`: position among the GPUs used; `device`: its number on this machine."""

    def __init__(self, library: str, gpu: int, device: int, job: Job, memory: mmap.mmap) -> None:
        self.job = job
        self.gpu = gpu
        self.memory = memory
        self.bases: list[int] = []
        self.staged: dict[Mode, list[Buffers]] = {}
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
        self.device.set(self.device.base, 0xFF, needed)
        blocks = sum(1 for row in job.tables.blocks if row[0] in set(self.mine))
        held = self.device.fit(blocks)
        if blocks > held:
            self.close()
            raise UnsupportedError(
                f"GPU {device}: {blocks} thread blocks of {len(self.mine)} ranks, and it runs "
                f"{held} at once ({seen.name}, {seen.processors} multiprocessors); they wait for "
                "each other, so all must: spread the ranks over more GPUs"
            )

    def export(self) -> bytes:
        """The arena's handle."""
        return self.device.export()

    def connect(self, handles: list[bytes], devices: list[int]) -> None:
        """Reaches all other arenas, and loads the plan."""
        for gpu, handle in enumerate(handles):
            if gpu == self.gpu:
                self.bases.append(self.device.base)
                continue
            access, atomics = self.device.library.reaches(devices[self.gpu], devices[gpu])
            if not access or not atomics:
                what = "reach" if not access else "atomically change"
                raise UnsupportedError(
                    f"GPU {devices[self.gpu]} cannot {what} the memory of GPU {devices[gpu]}: no "
                    "NVLink, xGMI or peer-to-peer between them; the torch engine needs none"
                )
            self.bases.append(self.device.attach(handle))
        job, arenas, t = self.job, self.job.arenas, self.job.tables
        mine = [b for b, row in enumerate(t.blocks) if row[0] in set(self.mine)]
        pointers = (
            arenas.posted,
            arenas.taken,
            arenas.slots,
            arenas.sizes,
            arenas.semaphores,
            arenas.progress,
            arenas.arrived,
        )
        tables: list[npt.NDArray[Any]] = [
            np.array(t.instructions, np.int32).reshape(-1, 16),
            np.array(t.operands, np.int64).reshape(-1, 4),
            np.array(t.dependencies, np.int32).reshape(-1, 3),
            np.array(t.names, np.int32),
            np.array(t.loops, np.int64).reshape(-1, 4),
            np.array(t.blocks, np.int32).reshape(-1, 8),
            np.array(mine, np.int32),
            np.zeros(ADDRESSES * job.program.n, np.uint64),
            *(np.array([self.at(p) for p in places], np.uint64) for places in pointers),
        ]
        self.device.load(tables, job.geometry, job.slots, (job.type, job.op))

    def at(self, place: Place) -> int:
        """A place as an address of this process."""
        return self.bases[place[0]] + place[1]

    def addresses(self, rank: int, in_place: bool, launch: int) -> tuple[int, ...]:
        """Of a rank's input, output and scratch, and of the allocations that they lie in."""
        user = self.buffers(rank, in_place)
        scratch = self.at(self.job.arenas.scratch[rank])
        half = self.job.arenas.scratch_bytes[rank] // 2
        second = self.job.program.double_scratch and launch % 2
        chunk = self.job.data.chunk_bytes
        sizes = tuple(count * chunk for count in self.chunks(rank))
        begins = allocations(user, (sizes[0], sizes[1]))
        return *user, scratch + half * bool(second), *begins, scratch

    def buffers(self, rank: int, in_place: bool) -> tuple[int, int]:
        """Addresses of a rank's input and output."""
        a, chunk = self.job.arenas, self.job.data.chunk_bytes
        source, target = (self.at(p[rank]) for p in (a.input, a.output))
        if in_place:
            i, o = (c * chunk for c in self.chunks(rank))
            own = rank * min(i, o)
            if i < o:
                source = target + own
            else:
                target = source + (own if i > o else 0)
        return source, target

    def chunks(self, rank: int) -> tuple[int, int]:
        """Chunks of a rank's input and output."""
        found = self.job.program.ranks[rank]
        return found.input_chunks, found.output_chunks

    def upload(self, in_place: bool) -> None:
        """The host's inputs and outputs to the GPU; scratch becomes all ones."""
        for rank in self.mine:
            source, target = self.buffers(rank, in_place)
            host = self.host(rank, in_place)
            self.device.write(target, host.output)
            self.device.write(source, host.input)
            begin, size = self.at(self.job.arenas.scratch[rank]), self.job.arenas.scratch_bytes
            self.device.set(begin, 0xFF, size[rank])

    def download(self, in_place: bool) -> None:
        """The GPU's inputs and outputs to the host."""
        for rank in self.mine:
            source, target = self.buffers(rank, in_place)
            host = self.host(rank, in_place)
            self.device.read(source, host.input)
            self.device.read(target, host.output)

    def host(self, rank: int, in_place: bool) -> Buffers:
        """A rank's memory on the host, which the parent fills and compares."""
        mode: Mode = "in-place" if in_place else "out-of-place"
        if mode not in self.staged:
            self.staged[mode] = staging(self.job.program, self.job.data, mode, self.memory)
        return self.staged[mode][rank]

    def prepare(self, in_place: bool, launch: int) -> None:
        """Flags as before the first launch. All processes do this before any of them starts."""
        begin, _ = self.job.arenas.flags[self.gpu]
        self.device.write(
            self.device.base + begin, self.job.arenas.initial(self.gpu, self.job.tables)
        )
        addresses = [
            address
            for rank in range(self.job.program.n)
            for address in self.addresses(rank, in_place, launch)
        ]
        self.device.prepare(addresses, launch + 1)

    def start(self, in_place: bool) -> None:
        """Starts the kernel; `avg` divides the complete sums behind it."""
        job, sums = self.job, []
        if job.average:
            origin = job.program.collective.origin
            ranks = [rank for rank in self.mine if origin(rank, job.root, 0) is not None]
            sums = [self.buffers(rank, in_place)[1] for rank in ranks]
        size = job.program.ranks[0].output_chunks * job.data.chunk_bytes
        self.device.start(sums, size, job.program.n)

    def poll(self) -> tuple[bool, int]:
        """(running, a number that changes while thread blocks get on)."""
        return self.device.poll()

    def abort(self) -> None:
        """Gives the launch up."""
        self.device.abort()

    def nanoseconds(self) -> int:
        """Time of the kernel."""
        return self.device.nanoseconds()

    def ended(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        """(where each thread block of this GPU stood, the flags of this GPU)."""
        begin, size = self.job.arenas.flags[self.gpu]
        flags = np.zeros(size // 8, np.uint64)
        self.device.read(self.device.base + begin, flags)
        return [tuple(row) for row in self.device.stops().tolist()], flags.tolist()

    def copy_rate(self, bytes_: int, repeat: int) -> float:
        """GB/s of copies within this GPU."""
        return self.device.copy_rate(bytes_, repeat)

    def detach(self) -> None:
        """Lets go of the other arenas. All processes do so before any of them closes."""
        self.device.detach()

    def close(self) -> None:
        """Gives the GPU back."""
        self.device.close()


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
                worker.abort()  # else a kernel that waits may keep this process from ending
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
                answer = getattr(worker, name)(*arguments)
        except ForestCollError as error:
            pipe.send((type(error), str(error)))
            continue
        if name == "close":
            worker = None
        pipe.send((None, answer))
