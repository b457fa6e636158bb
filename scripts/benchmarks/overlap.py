"""An allreduce and Adam, in turn and overlapped, by four processes whose links are shaped.

    scripts/bench --overlap [--seconds S] [--rate MBIT] [--share X] [--slices N] [--repeat N]

A ring of four network namespaces (`forestcoll lab`'s), a rank in each, over gloo. Measured are the
allreduce of a flat gradient by its plan; Adam on all of it, with as many passes over each block as
take about X of the allreduce's time; one after the other; and Adam as the allreduce's `on_chunk`,
which gets each part of the gradient as soon as it is final. Hidden is what that saves (of both in
turn, or of their sum where that is less), as a share of the smaller of the two. Weights and both
moments have to be the same bits.

As in the lab ranks go before other processes, and Adam's thread behind transfers. With fewer
processors than ranks both may need more of them than there are: then links have to be slower, or
Adam shorter. Needs root. Exit 1 where less than 70 % is hidden, or a bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import forestcoll.torch as ft
import torch
import torch.distributed as dist

from forestcoll.compile.synthesize import synthesize
from forestcoll.execute.lab.network import Network, inside
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.routes import routes
from forestcoll.topology import catalog

RANKS = 4
FORM = "mscclpp-json"
BLOCK = 1 << 14
"""Elements that Adam steps at a time, whoever calls it: they fit a cache, with moments."""
LEAST = 0.7
"""Of the smaller of both that has to be hidden."""
TRANSFERS, ADAM = 2, 1
"""Priorities of their threads."""
OPTIONS: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0}
OPTIONS |= {"amsgrad": False, "maximize": False}


class Adam:
    """Weights and moments of `count` elements, stepped `passes` times by each gradient."""

    def __init__(self, count: int, passes: int) -> None:
        self.weights, self.passes = torch.linspace(-1, 1, count), passes
        self.m, self.v = torch.zeros(count), torch.zeros(count)

    def __call__(self, gradient: torch.Tensor, offset: int) -> None:
        """Step the elements from `offset` on."""
        beside = threading.current_thread() is not threading.main_thread()
        if beside and os.sched_getscheduler(0) == os.SCHED_RR:  # as the thread of the transfers
            go_first(ADAM)
        for at in range(0, gradient.numel(), BLOCK):
            g = gradient[at : at + BLOCK]
            here = slice(offset + at, offset + at + g.numel())
            state = [[each[here]] for each in (self.weights, self.m, self.v)]
            steps = [torch.zeros(())]
            for _ in range(self.passes):
                steps[0].add_(1)
                torch._fused_adam_(state[0], [g], *state[1:], [], steps, **OPTIONS)


def clock(act: Callable[[], object]) -> float:
    """Seconds until the slowest rank is done."""
    dist.barrier()
    began = time.perf_counter()
    act()
    took = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def measure(rank: int, plan: ft.Plan, count: int, repeat: int, share: float) -> dict[str, Any]:
    """Seconds of each, medians; hidden; whether all bits are alike. The same at all ranks.

    `share`: of the allreduce's time that Adam is to take.
    """
    given = torch.randn(count, generator=torch.Generator().manual_seed(rank))
    gradient = given.clone()
    ft.all_reduce(gradient, plan)  # the ranks agree on it, and it is cut
    wanted, passes = share * clock(lambda: ft.all_reduce(gradient, plan)), 1
    for _ in range(3):  # more passes are each quicker, as the block is in a cache
        tried = Adam(count, passes)
        passes = max(1, round(passes * wanted / clock(lambda: tried(gradient, 0))))  # noqa: B023
    times: dict[str, list[float]] = {"allreduce": [], "adam": [], "in turn": [], "overlapped": []}
    alike = True
    for _ in range(repeat):
        turn, overlap = Adam(count, passes), Adam(count, passes)
        gradient.copy_(given)
        times["allreduce"].append(clock(lambda: ft.all_reduce(gradient, plan)))
        times["adam"].append(clock(lambda: turn(gradient, 0)))  # noqa: B023
        gradient.copy_(given)
        turn = Adam(count, passes)

        def one_after_the_other() -> None:
            ft.all_reduce(gradient, plan)
            turn(gradient, 0)  # noqa: B023

        times["in turn"].append(clock(one_after_the_other))
        gradient.copy_(given)

        def both() -> None:
            ft.all_reduce(gradient, plan, on_chunk=overlap)  # noqa: B023

        times["overlapped"].append(clock(both))
        for name in ("weights", "m", "v"):
            alike &= torch.equal(getattr(turn, name), getattr(overlap, name))
    same = torch.tensor(int(alike))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    told: dict[str, Any] = {name: median(seconds) for name, seconds in times.items()}
    both_alone = told["allreduce"], told["adam"]
    saved = min(told["in turn"], sum(both_alone)) - told["overlapped"]
    told["hidden"] = saved / min(both_alone)
    return told | {"passes": passes, "alike": bool(same)}


def go_first(priority: int) -> None:
    """Let the calling thread, and those that it starts, go before ordinary ones."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


def be_rank(rank: int, store: str, path: str, slices: int, count: int, words: list[str]) -> None:
    """One of the four; rank 0 prints."""
    torch.set_num_threads(1)
    go_first(TRANSFERS)
    where = {"rank": rank, "world_size": RANKS, "timeout": timedelta(seconds=300)}
    dist.init_process_group("gloo", init_method=f"file://{store}", **where)
    with torch.no_grad():
        plan = ft.load_plan(path, slices=slices or None)
        told = measure(rank, plan, count, int(words[0]), float(words[1]))
    if rank == 0:
        print(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def run(words: list[str], network: Network) -> dict[str, Any]:
    """A rank in each namespace; what rank 0 says."""
    processes = []
    for rank in range(RANKS):
        with inside(network.fds[network.graph.ranks[rank]]):
            command = [sys.executable, __file__, "--rank", str(rank), *words]
            given = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}  # where its address is
            processes.append(subprocess.Popen(command, env=given, text=True, stdout=-1, stderr=-1))
    try:
        told = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, told, strict=True):
        if process.returncode:
            sys.exit(error)
    found: dict[str, Any] = json.loads(told[0][0])
    return found


def main() -> int:
    """Make the fabric, and print what was measured there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="that the allreduce should take")
    parser.add_argument("--rate", type=float, default=40.0, help="Mbit/s of each link, each way")
    parser.add_argument("--repeat", type=int, default=3, help="by turns; medians are taken")
    parser.add_argument("--share", type=float, default=0.6, help="of it that Adam should take")
    parser.add_argument("--slices", type=int, default=0, help="of each piece; default: by size")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank >= 0:
        store, path, slices, count, *words = asked.words
        be_rank(asked.rank, store, path, int(slices), int(count), words)
        return 0
    machine = catalog.load("ring", {"gpus": str(RANKS)})
    graph = CapacityGraph.from_topology(machine)
    scale = Fraction(int(asked.rate * 1e6)) / graph.bandwidth(0)
    made = synthesize(machine, "allreduce", target="mscclpp", formats=("forest", FORM))
    assert made.forest is not None
    size = int(made.forest.algbw * scale / 8 * Fraction(asked.seconds))
    with tempfile.TemporaryDirectory() as folder, Network(graph, scale) as network:
        network.route(routes(graph, made.forest))
        path = Path(folder, f"ring.{FORM}")
        path.write_text(made.texts[FORM])
        words = [asked.slices, size // 4, asked.repeat, asked.share]
        told = run([f"{folder}/store", str(path), *map(str, words)], network)
    told |= {"bytes": size // 4 * 4, "mbit": asked.rate}
    if asked.json:
        print(json.dumps(told))
    else:
        print(
            f"{RANKS} ranks in a ring of {asked.rate:g} Mbit/s a link, {size / 1e6:.1f} MB; Adam "
            f"goes {told['passes']} times over each block of {BLOCK:,} elements"
        )
        for name in ("allreduce", "adam", "in turn", "overlapped"):
            print(f"{name:<12}{told[name]:8.2f} s")
        print(f"{'hidden':<12}{told['hidden']:8.0%}   ({LEAST:.0%} wanted)")
        print("bits        " + ("the same" if told["alike"] else "DIFFER"))
    return int(told["hidden"] < LEAST or not told["alike"])


if __name__ == "__main__":
    sys.exit(main())
