"""A plan on device pointers: one process per rank, for programs that have GPU memory of their own.

Every process makes a Communicator for one plan, size, type and operation, and then calls `run` as
often as it likes, all of them in the same order. Nothing of PyTorch is needed: processes agree by
`gather`, which the caller brings (forestcoll.torch.gpu does it over a process group).
"""

from __future__ import annotations

import mmap
import pickle
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forestcoll.common.errors import ExecutionError, ForestCollError, UnsupportedError
from forestcoll.execute.gpu.compiler import find_library
from forestcoll.execute.gpu.worker import Job, Worker, explain, watch
from forestcoll.execute.request import Request
from forestcoll.program import Program

Gather = Callable[[bytes], Sequence[bytes]]
"""What every rank gives, at every rank, in rank order; nobody returns before all have called it."""


class Communicator:
    """One rank's end of a plan. Close it, or use it in a `with`; all ranks alike.

    `size_bytes`: of the whole collective, as nccl-tests counts it. `device`: number of this rank's
    GPU, no other rank's. Raises at every rank alike: UnsupportedError (ranks in different nodes,
    GPUs that cannot reach each other or lack memory, an unknown type), PlanError (not a plan for
    this), ExecutionError (a process failed).
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
    ) -> None:
        request = Request.of(program, size_bytes, dtype=dtype, op=op, timeout=timeout, root=root)
        self._gather, self._timeout, self._launch = gather, request.timeout, 0
        self._worker: Worker | None = None
        self.rank, self.data = rank, request.data
        if self.data.size != request.wanted:
            raise UnsupportedError(
                f"{size_bytes} bytes of {dtype} are not a whole number of elements on each of "
                f"{program.n} ranks"
            )
        self.job = Job.of(request, list(range(program.n)))
        self._in_place = not program.out_of_place
        try:
            self._open(device, built)
        except BaseException:
            self.close(together=False)
            raise

    def _open(self, device: int, built: Path | None) -> None:
        def own() -> bytes:
            path = str(built or find_library())
            self._worker = Worker(path, self.rank, device, self.job, mmap.mmap(-1, mmap.PAGESIZE))
            return self._worker.device.export()

        places = self._together(lambda: (socket.gethostname(), device, own()))
        hosts, devices, handles = (list(column) for column in zip(*places, strict=True))
        if len(set(hosts)) > 1:
            raise UnsupportedError(
                f"the ranks sit in {len(set(hosts))} nodes ({', '.join(sorted(set(hosts))[:3])}), "
                "and this engine reaches one node's GPUs; forestcoll.torch's collectives reach all"
            )
        for other, number in enumerate(devices):
            if number in devices[:other]:
                raise UnsupportedError(
                    f"ranks {devices.index(number)} and {other} are both on GPU {number}: their "
                    "kernels would wait for each other's turn; give every rank a GPU of its own"
                )
        worker = self._worker
        assert worker is not None
        self._together(lambda: worker.connect(handles, devices))

    def _together(self, act: Callable[[], Any]) -> list[Any]:
        """What `act` gives at every rank; what it raises at one is raised at all."""
        failed: BaseException | None = None
        answer: Any = None
        try:
            answer = act()
        except ForestCollError as error:
            failed = error
        told = (type(failed), str(failed)) if failed else None
        all_told = [pickle.loads(text) for text in self._gather(pickle.dumps((told, answer)))]
        if failed:
            raise failed
        for rank, (wrong, _) in enumerate(all_told):
            if wrong is not None:
                raise wrong[0](f"rank {rank}: {wrong[1]}")
        return [given for _, given in all_told]

    def run(self, source: int, target: int) -> int:
        """The collective, from device address `source` to `target`; nanoseconds of the kernel.

        Elements lie densely, as NCCL has them, in place as NCCL defines it or apart; both must be
        this rank's GPU's. What wrote the input must be done; the output is there on return. Raises
        ExecutionError, at every rank, if the launch hangs or fails.
        """
        worker = self._worker
        if worker is None:
            raise ExecutionError("the communicator is closed")
        device = worker.device
        number, self._launch = self._launch, self._launch + 1
        mine = worker.buffers(self.rank, self._in_place)
        self._move(worker, source, mine[0], inwards=True)
        self._together(lambda: worker.prepare(self._in_place, number))

        def launch() -> tuple[bool, bool]:
            worker.start(self._in_place)
            done = watch(lambda: [device.poll()], device.abort, self._timeout)
            return done, bool(device.stops()["mismatch"].any())

        states = self._together(launch)
        if not all(done for done, _ in states) or any(wrong for _, wrong in states):
            explain(self.job, self._together(worker.end_state), self._timeout)
        self._move(worker, target, mine[1], inwards=False)
        return device.nanoseconds()

    def _move(self, worker: Worker, user: int, mine: int, *, inwards: bool) -> None:
        """Between the caller's dense parts and the arena's, which are padded to whole chunks."""
        job, data = self.job, self.data
        collective, n = job.program.collective, job.program.n
        parts = collective.input_parts(n) if inwards else collective.output_parts(n)
        bytes_ = data.part * data.element
        if not inwards and collective.origin(self.rank, job.root, 0) is None:
            parts = 0  # only the root has a result
        for part in range(parts):
            there, here = user + part * bytes_, mine + part * data.stride
            to, from_ = (here, there) if inwards else (there, here)
            worker.device.copy(to, from_, bytes_, wait=part == parts - 1)

    def close(self, *, together: bool = True) -> None:
        """Gives the GPU's memory back, once all ranks have let go of it: they all close.

        Not `together`: at once, where others may never come to this; for the way out of an error.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            worker.device.detach()
            if together:
                self._gather(b"")
        finally:
            worker.device.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(together=kind is None)
