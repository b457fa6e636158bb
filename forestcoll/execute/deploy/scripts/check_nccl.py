"""Calls every plan's collective through torch.distributed and compares every element.

Started by torchrun, one process per GPU. Whether the plans answered, the log tells (run.sh).
"""

import os
import sys

import torch
import torch.distributed as dist
from common import DEPLOYED, buffers, check_world, data, gpu_of, in_calls, report, wrong


def start(instead=""):
    """Joins the group; returns this process's rank and device.

    `instead`: the backend where there is no GPU; without, such a machine ends the program.
    """
    rank = int(os.environ["RANK"])
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    here = torch.cuda.device_count()
    backend = os.environ.get("BACKEND") or ("nccl" if here or not instead else instead)
    device = torch.device("cpu")
    if backend != "gloo":
        if gpu_of(rank) >= here:
            wanted = (
                f"no GPU {gpu_of(rank)} on this machine, which has {here}; rank {rank} needs it"
            )
            sys.exit(wanted if here or first else 1)
        device = torch.device("cuda", gpu_of(rank))
        torch.cuda.set_device(device)
    elif first and not here:
        print("forestcoll: no GPU on this machine: over gloo, by its processors", flush=True)
    dist.init_process_group(backend)
    check_world(dist.get_world_size())
    return rank, device


def call(plan, given, result):
    """The collective, as frameworks call it."""
    tensors = (result, given) if plan["apart"] else (result,)
    root = () if plan["root_is"] == "none" else (plan["root"],)
    getattr(dist, plan["torch"])(*tensors, *root)


def check(plan, rank, device):
    """Elements of this rank that came out wrong, in all the ways in which torch calls the plan."""
    bad = 0
    if rank == 0 and not in_calls(plan):
        print(f"{plan['file']}: not checked: torch calls {plan['collective']} in place only")
    source, expected = data(torch, plan, rank, dist.get_world_size(), 4, device, torch.float32)
    for in_place in in_calls(plan):
        given, result = buffers(
            plan, in_place, source, expected, rank, lambda n: torch.zeros(n, device=device)
        )
        call(plan, given, result)
        wrong_elements = wrong(plan, rank, result, expected)
        report(rank, plan, in_place, wrong_elements)
        bad += wrong_elements
    return bad


def main():
    rank, device = start()
    bad = sum(check(plan, rank, device) for plan in DEPLOYED["plans"])
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
