"""Plans on any `torch.distributed` process group: gloo, NCCL, RCCL, on any number of nodes.

    import forestcoll.torch as ft

    plan = ft.load_plan("dgx-a100-2.allreduce.msccl.xml")     # read and proven once
    ft.all_reduce(tensor, plan)                               # like torch.distributed.all_reduce
    ft.install([plan])                                        # dist.all_reduce itself, where served

The plan's rank i is the group's rank i. Needs PyTorch 2.1 or newer (extra `torch`).
"""

from __future__ import annotations

from forestcoll.common.errors import UnsupportedError

try:
    import torch as _torch
except ImportError as error:
    raise UnsupportedError(
        "forestcoll.torch needs PyTorch, which is not installed: pip install torch (the build for "
        "your GPUs is on pytorch.org), or pip install '.[torch]' in the clone of forestcoll"
    ) from error
if not _torch.distributed.is_available():
    raise UnsupportedError("forestcoll.torch: this build of PyTorch lacks torch.distributed")

from forestcoll.execute.torch import gpu
from forestcoll.execute.torch.alltoall import (
    all_to_all,
    all_to_all_single,
    all_to_all_single_autograd,
)
from forestcoll.execute.torch.collectives import (
    all_gather_into_tensor,
    all_reduce,
    broadcast,
    reduce,
    reduce_scatter_tensor,
)
from forestcoll.execute.torch.hooks import OptimizerHook, comm_hook
from forestcoll.execute.torch.installing import Installation, Rule, install, uninstall
from forestcoll.execute.torch.plan import Plan, load_plan
from forestcoll.execute.torch.putting import PutSignal
from forestcoll.execute.torch.work import Work

__all__ = [
    "Installation",
    "OptimizerHook",
    "Plan",
    "PutSignal",
    "Rule",
    "Work",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "broadcast",
    "comm_hook",
    "gpu",
    "install",
    "load_plan",
    "reduce",
    "reduce_scatter_tensor",
    "uninstall",
]
