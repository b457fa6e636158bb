"""Calls every plan's collective through NCCL (RCCL) and compares every element.

Started by torchrun, one process a GPU. Whether the plans answered, the log tells (run.sh).
"""

import os
import sys

import torch
import torch.distributed as dist
from common import DEPLOYED, buffers, check_world, data, gpu_of, modes, report, wrong


def call(plan, given, result):
    """The collective, as frameworks call it."""
    match plan["collective"]:
        case "allreduce":
            if given.data_ptr() != result.data_ptr():
                return False  # torch reduces in place only
            dist.all_reduce(result)
        case "allgather":
            dist.all_gather_into_tensor(result, given)
        case "reduce-scatter":
            dist.reduce_scatter_tensor(result, given)
        case "broadcast":
            dist.broadcast(result, plan["root"])
        case "reduce":
            dist.reduce(result, plan["root"])
    return True


def main():
    rank = int(os.environ["RANK"])
    backend = os.environ.get("BACKEND", "nccl")
    device = torch.device("cpu")
    if backend != "gloo":
        device = torch.device("cuda", gpu_of(rank))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    ranks = dist.get_world_size()
    check_world(ranks)
    bad = 0
    for plan in DEPLOYED["plans"]:
        source, expected = data(torch, plan, rank, ranks, 4, device, torch.float32)
        for in_place in modes(plan):
            if not in_place and plan["collective"] in ("broadcast", "reduce"):
                continue  # torch has these in place only
            given, result = buffers(
                plan, in_place, source, expected, rank, lambda n: torch.zeros(n, device=device)
            )
            if call(plan, given, result):
                found = wrong(plan, rank, result, expected)
                report(rank, plan, in_place, found)
                bad += found
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
