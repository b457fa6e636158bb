"""`forestcoll run --engine torch`: one of the processes that torchrun started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import PlanError

if TYPE_CHECKING:
    from forestcoll.execute.result import RunResult
    from forestcoll.program import Program

_CPU_ONLY = {"depth": "--depth", "ranks_as": "--ranks-as"}


def join(options: dict[str, Any]) -> bool:
    """Join the other processes; whether this one is the first, who speaks for all."""
    context = click.get_current_context()
    for name, option in _CPU_ONLY.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for --engine cpu")

    from forestcoll.execute.torch import measure  # which says so where PyTorch is missing

    import torch.distributed as dist  # isort: skip

    options["device"] = measure.join(options["timeout"])
    context.call_on_close(dist.destroy_process_group)
    return bool(dist.get_rank() == 0)


def engine(program: Program, options: dict[str, Any]) -> Callable[..., RunResult]:
    """What runs the plan at one size, with the same result at every process."""
    import torch.distributed as dist

    from forestcoll.execute.torch import Plan, measure

    if dist.get_world_size() != program.n:
        raise PlanError(
            f"the plan is for {program.n} ranks, but torchrun started {dist.get_world_size()} "
            f"processes: --nproc-per-node times --nnodes must be {program.n}"
        )
    return partial(measure.measure, Plan(program), device=options["device"])
