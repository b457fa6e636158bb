"""Calls every plan's collective with the plan behind torch.distributed, and compares every element.

Started by torchrun, one process per rank; over gloo where there is no GPU, unless BACKEND says
otherwise. Says of each plan that it ran, by the counters of `forestcoll.torch.install`.
"""

import sys

import forestcoll.torch as ft
import torch.distributed as dist
from check_nccl import check, start
from common import DEPLOYED, HERE


def main():
    rank, device = start(instead="gloo")
    bad = 0
    for plan in DEPLOYED["plans"]:
        with ft.install([HERE / plan["file"]]) as installed:
            bad += check(plan, rank, device)
        for (function, reason), calls in installed.fallbacks.items():
            print(f"rank {rank}: {plan['file']}: {calls} x {function} fell back: {reason}")
        if rank == 0 and installed.used.total():
            print(f"forestcoll: ran {plan['file']}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
