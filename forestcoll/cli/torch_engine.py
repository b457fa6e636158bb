"""`forestcoll run --engine torch`: one of the processes that torchrun started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forestcoll.errors import PlanError

if TYPE_CHECKING:
    from forestcoll.execute.result import RunResult
    from forestcoll.predict import Prediction
    from forestcoll.program import Program

_CPU_ONLY = {"depth": "--depth", "ranks_as": "--ranks-as"}


def join(options: dict[str, Any]) -> bool:
    """Join the other processes; whether this one is the first, who speaks for all."""
    context = click.get_current_context()
    for name, option in _CPU_ONLY.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for --engine cpu")

    from forestcoll.torch import measure  # which says so where PyTorch is missing

    import torch.distributed as dist  # isort: skip

    options["device"] = measure.join(options["timeout"])
    context.call_on_close(dist.destroy_process_group)
    return bool(dist.get_rank() == 0)


def measure(
    program: Program,
    sizes: list[int],
    prediction: Prediction | None,
    options: dict[str, Any],
    results: list[RunResult],
) -> None:
    """A result for each size, the same at every process, added to `results`."""
    import torch.distributed as dist

    from forestcoll.torch import Plan, measure

    if dist.get_world_size() != program.n:
        raise PlanError(
            f"the plan is for {program.n} ranks, but torchrun started {dist.get_world_size()} "
            f"processes: --nproc-per-node times --nnodes must be {program.n}"
        )
    plan = Plan(program)
    for size in sizes:
        result = measure.measure(
            plan,
            size,
            dtype=options["dtype"],
            op=options["op"],
            iterations=options["iterations"],
            warmup=options["warmup"],
            check=bool(options["check"]),
            device=options["device"],
        )
        results.append(result.predicted(prediction.microseconds) if prediction else result)
