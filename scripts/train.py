"""A small model trained twice: stock data-parallel Adam, and Adam between an allreduce's phases.

    python scripts/train.py --ranks 4                  # processes of this machine, over gloo
    torchrun --nproc-per-node 8 scripts/train.py       # any cluster; NCCL where there are GPUs
    python scripts/train.py --ranks 4 --plan out/ring-4.allreduce.msccl.xml --steps 100

Both begin with the same weights and see the same data: numbers to tell from which of several
clusters they come. The second is `ft.comm_hook(plan, optimizer=...)`: each rank steps the parts of
the weights whose gradients come together at it, and has Adam's state of these alone. Printed are
both losses and what each rank holds of the state. Exit 1 where the weights in the end differ by
more than rounding explains.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import forestcoll.torch as ft
import torch
import torch.distributed as dist
from ranks import start

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.synthesize import synthesize
from forestcoll.topology import catalog

INPUTS, CLASSES = 32, 10
CLOSE = 1e-4
"""How far two weights may be apart: both ways add float32 up in orders of their own."""


def make_plan(ranks: int) -> ft.Plan:
    """An allreduce on a ring."""
    ring = catalog.load("ring", {"gpus": str(ranks)})
    made = synthesize(ring, "allreduce", target="mscclpp", formats=("mscclpp-json",))
    return ft.Plan(made.programs["mscclpp-json"])


def make_model(width: int, device: Any) -> torch.nn.Module:
    """Three layers, at every rank alike."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, width),
        torch.nn.GELU(),
        torch.nn.Linear(width, width),
        torch.nn.GELU(),
        torch.nn.Linear(width, CLASSES),
    ).to(device)


def batch(rank: int, step: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """64 points of a rank, around the centres of their clusters, and the clusters' numbers."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(7))
    dice = torch.Generator().manual_seed(1000 * step + rank)
    classes = torch.randint(CLASSES, (64,), generator=dice)
    points = centres[classes] + 2 * torch.randn(64, INPUTS, generator=dice)
    return points.to(device), classes.to(device)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Losses, the means over all ranks. The loop is the same for both ways."""
    rank, device = dist.get_rank(), next(model.parameters()).device
    losses = []
    for step in range(steps):
        points, classes = batch(rank, step, device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), classes)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def run(options: argparse.Namespace, plan: ft.Plan, device: Any) -> int:
    """Train both ways; rank 0 tells. 1: they do not end at the same weights."""
    models = [make_model(options.width, device) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=options.lr) for model in models]
    wrap = torch.nn.parallel.DistributedDataParallel
    stock, ours = (wrap(model) for model in models)
    hook: Any = ft.comm_hook(plan, optimizer=optimizers[1])
    ours.register_comm_hook(None, hook)
    losses = train(stock, optimizers[0], options.steps), train(ours, optimizers[1], options.steps)
    pairs = zip(*(model.parameters() for model in models), strict=True)
    apart = torch.stack([(a - b).detach().abs().max() for a, b in pairs]).max()
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, hook.elements)
    states = optimizers[0].state.values()
    whole = sum(value.numel() for state in states for value in state.values())
    if dist.get_rank() == 0:
        print(f"plan       {plan.name}: {plan.ranks} ranks; Adam of {whole:,} numbers of state")
        for step in sorted({0, options.steps // 2, options.steps - 1}):
            print(f"step {step + 1:<6}loss {losses[0][step]:.6f} stock, {losses[1][step]:.6f} ours")
        shares = " ".join(f"{100 * each / whole:.1f}" for each in held)
        print(f"state      of each rank: 100 % stock; ours {shares} %")
        alike = "equal" if apart < CLOSE else "DIFFERENT"
        print(f"weights    {alike}: {apart.item():.1e} apart at most")
    return int(not apart < CLOSE)


def plan_for(options: argparse.Namespace, ranks: int) -> ft.Plan:
    """The plan that was given, or one that is made; ForestCollError where it is for others."""
    plan = ft.load_plan(options.plan) if options.plan else make_plan(ranks)
    if plan.collective != "allreduce" or plan.ranks != ranks:
        raise ForestCollError(
            f"{options.plan} is a plan for {plan.collective} of {plan.ranks} ranks; it takes an "
            f"allreduce of {ranks}"
        )
    return plan


def main() -> int:
    """Start the ranks, or be one of torchrun's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, help="processes (4)")
    parser.add_argument("--plan", help="an allreduce plan for so many ranks; else one is made")
    parser.add_argument("--width", type=int, default=128, help="of the model (128)")
    parser.add_argument("--lr", type=float, default=1e-3, help="Adam's (0.001)")
    parser.add_argument("--steps", type=int, default=50, help="batches (50)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of a transfer (60)")
    options = parser.parse_args()
    if min(options.ranks - 1, options.width, options.steps) < 1:
        parser.error("it takes two ranks at least, a width and a step")
    if not (0 < options.lr < 1e6 and 1 <= options.timeout <= 86_400):
        parser.error("it takes a learning rate above 0, and 1 to 86400 seconds of --timeout")
    if "RANK" in os.environ:
        from forestcoll.execute.torch.measure import join

        device = join(options.timeout, "scripts/train.py")
        wrong = run(options, plan_for(options, dist.get_world_size()), device)
        dist.destroy_process_group()
        return wrong
    return start("train.py", run, options, plan_for(options, options.ranks))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ForestCollError as error:
        sys.exit(f"train.py: error: {error}")
