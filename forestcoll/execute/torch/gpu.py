"""Plans on tensors by the GPU engine: one kernel a rank, no NCCL.

    with ft.gpu.Communicator("dgx-h100-1.allreduce.mscclpp.json", tensor.numel()) as allreduce:
        allreduce(tensor)                       # in place; or allreduce(input, output)

Every process of the group makes one, for one size, type and operation. A launch begins and ends
with a word between all processes over gloo, and copies the tensors to memory that the others
reach and back: for large data and for trying plans on real links, not for the lowest latency.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from forestcoll.common import arguments
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.execute.gpu import communicator
from forestcoll.execute.request import program_of
from forestcoll.execute.torch.agreement import gather
from forestcoll.execute.torch.plan import Plan
from forestcoll.program import Program
from forestcoll.verify import verify


class Communicator(communicator.Communicator):
    """A plan for tensors of one size, on this process's GPU. Close it, or use it in a `with`.

    `numel`: elements of a rank's input. `op`: sum, prod, min, max, avg. `group`: whose rank i is
    the plan's rank i. `device`: this process's GPU, by default torch's current one; all GPUs of a
    node must be visible to its processes. `wire`: what carries data between nodes, sockets or ucx;
    `notes` says what a user should know about it. Raises at all ranks what goes wrong at one:
    PlanError (a wrong plan, or one for other ranks), UnsupportedError (GPUs of a node without peer
    access, no memory, a type or operation, a plan that reads memory of another node),
    ExecutionError.
    """

    def __init__(
        self,
        plan: Plan | Program | str | Path,
        numel: int,
        dtype: torch.dtype = torch.float32,
        op: str = "sum",
        group: Any = None,
        *,
        device: torch.device | None = None,
        timeout: float = 60.0,
        built: Path | None = None,
        wire: str = "sockets",
    ) -> None:
        program = _program(plan)
        numel = arguments.whole("numel", numel)
        arguments.instance("dtype", dtype, torch.dtype, ", such as torch.float32")
        n: int = dist.get_world_size(group)
        rank: int = dist.get_rank(group)
        if n != program.n:
            raise PlanError(f"the plan is for {program.n} ranks, the group has {n}")
        self.collective, self.n, self.dtype, self.numel = program.collective, n, dtype, numel
        if numel % self.collective.input_parts(n):
            raise UnsupportedError(f"{numel} elements are not divided among {n} ranks")
        self.device = device or torch.device("cuda")
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        whole = self._part * self.collective.parts(n)
        super().__init__(
            program,
            whole * dtype.itemsize,
            rank,
            self.device.index or 0,
            partial(gather, group=_by_gloo(group)),
            dtype=str(dtype).removeprefix("torch."),
            op=op,
            timeout=timeout,
            built=built,
            wire=wire,
        )

    def __call__(self, input: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """The collective; the output, which is the input where none is given and sizes allow."""
        if output is None:
            apart = self.collective.definition.apart
            output = input.new_empty(self._outputs()) if apart else input
        for name, tensor, wanted in (
            ("input", input, self.numel),
            ("output", output, self._outputs()),
        ):
            self._check(name, tensor, wanted)
        source, target = input.contiguous(), output.contiguous()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self.run(source.data_ptr(), target.data_ptr())
        if target.data_ptr() != output.data_ptr():
            output.copy_(target)
        return output

    def _outputs(self) -> int:
        return self._part * self.collective.output_parts(self.n)

    @property
    def _part(self) -> int:
        return self.numel // self.collective.input_parts(self.n)

    def _check(self, name: str, tensor: torch.Tensor, wanted: int) -> None:
        there, here = tensor.device, self.device
        if there.type != here.type or (there.type == "cuda" and there.index != here.index):
            raise UnsupportedError(f"the {name} is on {there}, the plan on {self.device}")
        if tensor.dtype != self.dtype or tensor.numel() != wanted:
            raise UnsupportedError(
                f"the {name} has {tensor.numel()} elements of {tensor.dtype}; this communicator is "
                f"for {wanted} of {self.dtype}"
            )


def _program(plan: Plan | Program | str | Path) -> Program:
    if isinstance(plan, Plan):
        return plan.program  # proven when it was made
    program = program_of(plan)
    verify(program)
    return program


def _by_gloo(group: Any) -> Any:
    """A group of the same processes that needs no GPU to speak."""
    if dist.get_backend(group) == "gloo":
        return group
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
