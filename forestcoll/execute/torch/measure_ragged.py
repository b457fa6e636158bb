"""All-to-all of blocks of any size over a process group: a run, and every element compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from forestcoll.execute.torch.alltoall import all_to_all_single
from forestcoll.execute.torch.measure import SHOWN, Act
from forestcoll.execute.torch.plan import Plan

Blocks = Sequence[Sequence[int]]
"""Elements that each rank sends to each."""


def by_splits(plan: Plan | None, blocks: Blocks, rank: int) -> Act:
    """The exchange of these blocks at `rank`, by a plan or (None) by torch.distributed's own."""
    send, receive = list(blocks[rank]), [row[rank] for row in blocks]

    def act(input_: torch.Tensor, output: torch.Tensor) -> None:
        if plan is None:
            dist.all_to_all_single(output, input_, receive, send)
        else:
            all_to_all_single(output, input_, plan, receive, send)

    return act


def run_ragged(act: Act, blocks: Blocks) -> tuple[int, list[str]]:
    """(wrong elements at all ranks, some of them in words), after one run. float32."""
    rank, n = dist.get_rank(), dist.get_world_size()
    given = torch.cat([_numbers(rank, t, blocks[rank][t]) for t in range(n)])
    wanted = torch.cat([_numbers(s, rank, blocks[s][rank]) for s in range(n)])
    output = torch.full_like(wanted, -1.0)
    act(given, output)
    places = (output != wanted).nonzero().flatten()
    texts = [
        f"rank {rank}, output element {k}: expected {wanted[k].item()}, got {output[k].item()}"
        for k in places[:SHOWN].tolist()
    ]
    told: list[Any] = [None] * n
    dist.all_gather_object(told, (places.numel(), texts))
    return sum(count for count, _ in told), [text for _, each in told for text in each]


def _numbers(source: int, target: int, count: int) -> torch.Tensor:
    """What `source` sends `target`: whole numbers that say whose they are, exact in float32."""
    first = (source * 7919 + target * 104_729) % (1 << 22)
    return ((torch.arange(count) + first) % (1 << 24)).float()
