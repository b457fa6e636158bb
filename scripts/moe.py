"""A mixture-of-experts layer whose tokens travel by a plan: router, dispatch, experts, combine.

    python scripts/moe.py --ranks 8                    # processes of this machine, over gloo
    torchrun --nproc-per-node 8 scripts/moe.py         # any cluster; NCCL where there are GPUs
    python scripts/moe.py --ranks 8 --plan out/dgx-a100-1.alltoall.msccl.xml --skew 1.2

Every rank holds tokens and some of the experts. A router sends each token to its `--top` experts;
one all-to-all takes the rows there (dispatch), one brings them home (combine), and both carry the
gradients back. How many rows a rank sends to which rank changes with every batch: the plan's ways
stay. Its results are compared with the whole layer on one process, and its time with that of stock
`torch.distributed.all_to_all_single`. `--matrix FILE` writes the bytes that went from rank to rank,
for `forestcoll optimum` and `forestcoll lab`. Exit 1 where a result differs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forestcoll.torch as ft
import torch
import torch.distributed as dist
from ranks import start

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.alltoall_plans import make
from forestcoll.program.targets import MSCCLPP
from forestcoll.solver.alltoall import flows, rounding
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.spread import spread
from forestcoll.topology import catalog

CLOSE = 1e-9
"""How far a result may be from the reference's, of its largest number: all is in float64."""

Exchange = Callable[[torch.Tensor, Sequence[int], Sequence[int]], torch.Tensor]
"""Rows to send, rows for each rank, rows from each rank -> the rows received; differentiable."""


class Expert(torch.nn.Module):
    """Two layers; what it starts with depends on its number alone."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        dice = torch.Generator().manual_seed(1000 + number)
        with torch.no_grad():
            for weights in self.parameters():
                weights.copy_(torch.randn(weights.shape, generator=dice) / width**0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` (count, width) -> as many."""
        return self.down(torch.nn.functional.gelu(self.up(rows)))


class Router(torch.nn.Module):
    """For each token its `top` experts and their weights; `skew`: how much some are preferred."""

    def __init__(self, width: int, experts: int, top: int, skew: float) -> None:
        super().__init__()
        self.top = top
        dice = torch.Generator().manual_seed(7)
        self.score = torch.nn.Parameter(torch.randn(width, experts, generator=dice) / width**0.5)
        order = torch.randperm(experts, generator=dice)
        self.register_buffer("liking", -skew * torch.log1p(order.float()))  # Zipf's law

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`tokens` (count, width) -> weights and numbers of experts, both (count, top)."""
        chances = torch.softmax(tokens @ self.score + self.liking, dim=-1)
        weights, chosen = chances.topk(self.top, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen


class Layer(torch.nn.Module):
    """One rank's part of the layer: the router, and `experts` / ranks of the experts."""

    def __init__(self, options: argparse.Namespace, rank: int, ranks: int) -> None:
        super().__init__()
        self.ranks, self.here = ranks, options.experts // ranks
        self.router = Router(options.width, options.experts, options.top, options.skew)
        first = rank * self.here
        self.experts = torch.nn.ModuleList(
            Expert(first + i, options.width) for i in range(self.here)
        )
        self.sent: list[int] = [0] * ranks  # rows to each rank, of the last call

    def forward(self, tokens: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        """`tokens` (count, width) -> as many, over all ranks' experts."""
        weights, chosen = self.router(tokens)
        order = torch.argsort(chosen.flatten(), stable=True)  # by expert, so by rank
        home = order // self.router.top
        # How many rows go to each expert, told to the ranks that have them.
        counts = torch.bincount(chosen.flatten(), minlength=self.ranks * self.here)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        by_rank = theirs.view(self.ranks, self.here)
        self.sent = counts.view(self.ranks, self.here).sum(dim=1).tolist()
        got = by_rank.sum(dim=1).tolist()

        rows = exchange(tokens[home], self.sent, got)  # dispatch
        of_expert = torch.arange(self.here, device=rows.device).repeat(self.ranks)
        number = of_expert.repeat_interleave(by_rank.flatten())
        done = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            mine = (number == i).nonzero().flatten()
            done = done.index_copy(0, mine, expert(rows[mine]))
        back = exchange(done, got, self.sent)  # combine

        weighted = back * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(tokens).index_add(0, home, weighted)


def by_plan(plan: ft.Plan) -> Exchange:
    """Rows travel by the plan, gradients back by the same."""

    def exchange(rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> torch.Tensor:
        return ft.all_to_all_single_autograd(rows, plan, receive, send)

    return exchange


class _Stock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, send: Any, receive: Any) -> torch.Tensor:
        ctx.splits = send, receive
        found = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), receive, send)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        send, receive = ctx.splits
        back = grads[0].new_empty(sum(send), *grads[0].shape[1:])
        dist.all_to_all_single(back, grads[0].contiguous(), send, receive)
        return back, None, None


def stock(rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> torch.Tensor:
    """Rows travel as torch.distributed sends them, straight to their ranks."""
    found: torch.Tensor = _Stock.apply(rows, send, receive)
    return found


def make_plan(ranks: int) -> ft.Plan:
    """Static ways for blocks of any size: two boxes with a NIC a GPU, or (few ranks) a ring."""
    if ranks >= 4 and ranks % 2 == 0:
        half = str(ranks // 2)
        topology = catalog.load("rail", {"boxes": "2", "gpus": half, "rails": half})
        found = spread(flows.solve(uniform(topology)))
    else:
        topology = catalog.load("ring", {"gpus": str(ranks)})
        found = rounding.route(flows.solve(uniform(topology)))
    return ft.Plan(make(found, MSCCLPP.format, MSCCLPP, topology.name).program)


@dataclass(frozen=True, slots=True)
class Grads:
    """What a backward pass left: output, and gradients of tokens, router and own experts."""

    output: torch.Tensor
    tokens: torch.Tensor
    router: torch.Tensor
    experts: tuple[torch.Tensor, ...]


def batch(options: argparse.Namespace, rank: int, step: int, device: Any) -> torch.Tensor:
    """The tokens of a rank, some more at every other rank: blocks are not even."""
    dice = torch.Generator().manual_seed(100 * step + rank)
    count = options.tokens + rank % 2 * (options.tokens // 3)
    return torch.randn(count, options.width, generator=dice).to(device)


def train(layer: Layer, tokens: torch.Tensor, exchange: Exchange) -> Grads:
    """One step forward and backward, the router's gradients added up over the ranks."""
    layer.zero_grad()
    tokens = tokens.detach().requires_grad_()
    output = layer(tokens, exchange)
    output.square().sum().backward()
    assert tokens.grad is not None
    router = layer.router.score.grad
    assert router is not None
    router = router.clone()
    dist.all_reduce(router)
    experts = tuple(
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in layer.experts.parameters()
    )
    return Grads(output.detach(), tokens.grad, router, experts)


def reference(options: argparse.Namespace, rank: int, ranks: int, step: int, device: Any) -> Grads:
    """The same without anybody else: all tokens, all experts, nothing sent."""
    router = Router(options.width, options.experts, options.top, options.skew).double().to(device)
    experts = [Expert(i, options.width).double().to(device) for i in range(options.experts)]
    every = [batch(options, r, step, device).double().requires_grad_() for r in range(ranks)]
    outputs = []
    for tokens in every:
        weights, chosen = router(tokens)
        output = torch.zeros_like(tokens)
        for i, expert in enumerate(experts):
            token, place = (chosen == i).nonzero(as_tuple=True)
            weight = weights[token, place].unsqueeze(1)
            output = output.index_add(0, token, weight * expert(tokens[token]))
        outputs.append(output)
    torch.stack([output.square().sum() for output in outputs]).sum().backward()
    here = options.experts // ranks
    mine = [p.grad for e in experts[rank * here : (rank + 1) * here] for p in e.parameters()]
    tokens_grad, router_grad = every[rank].grad, router.score.grad
    assert tokens_grad is not None
    assert router_grad is not None
    return Grads(outputs[rank].detach(), tokens_grad, router_grad, tuple(mine))  # type: ignore[arg-type]


def differences(found: Grads, wanted: Grads) -> list[str]:
    """What is further from the reference than rounding explains, in words."""
    pairs = [
        ("output", found.output, wanted.output),
        ("gradient of the tokens", found.tokens, wanted.tokens),
        ("gradient of the router", found.router, wanted.router),
    ]
    for number, (a, b) in enumerate(zip(found.experts, wanted.experts, strict=True)):
        pairs.append((f"gradient {number} of the experts", a, b))
    told = []
    for name, a, b in pairs:
        off = float((a - b).abs().max()) if a.numel() else 0.0
        if off > CLOSE * max(1.0, float(b.abs().max()) if b.numel() else 0.0):
            told.append(f"{name}: {off:.3g} off")
    return told


def run(options: argparse.Namespace, plan: ft.Plan, device: Any) -> int:
    """All steps on this rank; the report from rank 0. The number of ranks with wrong results."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = Layer(options, rank, ranks).double().to(device)
    seconds: dict[str, list[float]] = {"plan": [], "stock": []}
    wrong: list[str] = []
    sent = torch.zeros(ranks, dtype=torch.int64, device=device)
    for step in range(options.steps):
        tokens = batch(options, rank, step, device).double()
        wanted = reference(options, rank, ranks, step, device)
        ways = [("plan", by_plan(plan)), ("stock", stock)]
        for name, exchange in ways if step % 2 == 0 else reversed(ways):
            dist.barrier()
            began = time.perf_counter()
            found = train(layer, tokens, exchange)
            dist.barrier()
            seconds[name].append(time.perf_counter() - began)
            wrong += [f"rank {rank}, step {step}, {name}: {w}" for w in differences(found, wanted)]
        sent += torch.tensor(layer.sent, device=device)
    every = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(every, sent)
    table = [line.tolist() for line in every]
    said: list[Any] = [None] * ranks
    dist.all_gather_object(said, wrong)
    if rank == 0:
        tell(options, plan, table, seconds, said)
    return sum(map(bool, said))


def tell(
    options: argparse.Namespace,
    plan: ft.Plan,
    table: list[list[int]],
    seconds: dict[str, list[float]],
    said: list[list[str]],
) -> None:
    """What happened: ways, skew, results, times."""
    ranks = len(table)
    out, into = [sum(line) for line in table], [sum(column) for column in zip(*table, strict=True)]
    row = options.width * 8
    print(f"plan       {plan.name}: {ranks} ranks, {plan.rounds} rounds of messages")
    print(
        f"layer      {options.experts} experts, {options.experts // ranks} per rank; each token to "
        f"{options.top}; {options.width} numbers a token"
    )
    mean = sum(out) / ranks
    print(
        f"skew       a rank takes in {min(into) / mean:.2f} to {max(into) / mean:.2f} times the "
        f"mean of {mean / options.steps:.0f} rows a step, sends {min(out) / mean:.2f} to "
        f"{max(out) / mean:.2f}"
    )
    blocks = [rows for line in table for rows in line]
    print(f"blocks     {min(blocks)} to {max(blocks)} rows over {options.steps} steps")
    times = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
    print(
        f"step       {times['plan']:.1f} ms by the plan, {times['stock']:.1f} ms stock (median of "
        f"{options.steps}, forward and backward; a machine's own network decides)"
    )
    lines = [line for each in said for line in each]
    print(
        "results    "
        + (f"{len(lines)} WRONG" if lines else "equal to one process: output and all gradients")
    )
    for line in lines[:8]:
        print(f"           {line}")
    if options.matrix:
        text = "\n".join(" ".join(str(rows * row) for rows in line) for line in table)
        Path(options.matrix).write_text(text + "\n", encoding="utf-8")
        print(f"written    {options.matrix}: bytes from each rank to each, one dispatch a step")


def _under_torchrun(options: argparse.Namespace) -> int:
    from forestcoll.execute.torch.measure import join

    device = join(options.timeout, "scripts/moe.py")
    check(options, dist.get_world_size())
    plan = ft.load_plan(options.plan) if options.plan else make_plan(dist.get_world_size())
    wrong = run(options, plan, device)
    dist.destroy_process_group()
    return 1 if wrong else 0


def check(options: argparse.Namespace, ranks: int) -> None:
    """ForestCollError where the options do not go together."""
    if options.experts % ranks:
        raise ForestCollError(
            f"{options.experts} experts are not dealt out to {ranks} ranks evenly: --experts "
            f"{-(-options.experts // ranks) * ranks}"
        )
    if options.top > options.experts:
        raise ForestCollError(f"--top {options.top}: there are {options.experts} experts")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main() -> int:
    """Start the ranks, or be one of torchrun's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=_positive, default=4, help="processes (4)")
    parser.add_argument("--plan", help="an alltoall plan for so many ranks; else one is made")
    parser.add_argument("--experts", type=_positive, default=16, help="of all ranks together (16)")
    parser.add_argument("--top", type=_positive, default=2, help="experts a token goes to (2)")
    parser.add_argument("--tokens", type=_positive, default=96, help="of a rank, about (96)")
    parser.add_argument("--width", type=_positive, default=32, help="numbers of a token (32)")
    parser.add_argument("--skew", type=float, default=1.0, help="0: experts alike; Zipf's s (1)")
    parser.add_argument("--steps", type=_positive, default=5, help="batches (5)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of a transfer (60)")
    parser.add_argument("--matrix", metavar="FILE", help="write the bytes from rank to rank")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return _under_torchrun(options)
    check(options, options.ranks)
    plan = ft.load_plan(options.plan) if options.plan else make_plan(options.ranks)
    if plan.collective != "alltoall" or plan.ranks != options.ranks:
        raise ForestCollError(
            f"{options.plan} is a plan for {plan.collective} of {plan.ranks} ranks; it takes an "
            f"alltoall of {options.ranks} (--ranks)"
        )
    return start("moe.py", run, options, plan)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ForestCollError as error:
        sys.exit(f"moe.py: error: {error}")
