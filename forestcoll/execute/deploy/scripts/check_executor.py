"""Runs every plan through MSCCL++'s Executor, three times each, and compares every element.

Started by torchrun, one process per GPU. Nothing chooses: the Executor runs the plan it is given.
"""

import os
import sys

import torch
import torch.distributed as dist
from common import (
    DEPLOYED,
    HERE,
    buffers,
    check_whole,
    check_world,
    data,
    gpu_of,
    modes,
    report,
    wrong,
)
from mscclpp import CommGroup, DataType, ExecutionPlan, Executor, RawGpuBuffer

LAUNCHES = 3  # a plan that leaves a signal behind, or a buffer unread, fails in the second


def memory(count):
    """Whole allocations: peers address them by their own offset."""
    raw = RawGpuBuffer(4 * count)
    return torch.utils.dlpack.from_dlpack(raw.to_dlpack(data_type=str(torch.float32)))


def main():
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", gpu_of(rank))
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    check_world(ranks)
    executor = Executor(CommGroup(torch_group=dist.group.WORLD).communicator)
    stream = torch.cuda.current_stream()
    bad = 0
    for entry in DEPLOYED["plans"]:
        plan = ExecutionPlan(str(HERE / entry["file"]), rank)
        source, expected = data(torch, entry, rank, ranks, 4, device, torch.float32)
        for in_place in modes(entry):
            given, result = buffers(entry, in_place, source, expected, rank, memory)
            check_whole(entry, given.data_ptr(), result.data_ptr())
            faults = 0
            for _ in range(LAUNCHES):
                result.fill_(-1)  # nothing of an earlier launch may pass for this one's
                given.copy_(source)
                torch.cuda.synchronize()
                dist.barrier()
                executor.execute(
                    rank,
                    given.data_ptr(),
                    result.data_ptr(),
                    4 * given.numel(),
                    4 * result.numel(),
                    DataType.float32,
                    plan,
                    stream.cuda_stream,
                )
                torch.cuda.synchronize()
                faults += wrong(entry, rank, result, expected)
            bad += faults
            report(rank, entry, in_place, faults)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
