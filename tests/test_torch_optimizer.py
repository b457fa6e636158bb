"""Optimizers between the phases of an allreduce, against stock data-parallel training."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from artefacts import ROOT, Artefacts
from command_line import finished
from graphs import machine
from torch_ranks import ft, needs_gloo, plan_files, run_ranks, torch

from forestcoll import plans
from forestcoll.common.errors import UnsupportedError
from forestcoll.compile.problem import Problem
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.lower.rounds import lower_rounds, rounds_of
from forestcoll.program.targets import MSCCL, MSCCLPP
from forestcoll.schedule import certificate
from forestcoll.solver import solve
from forestcoll.topology import Topology, catalog

pytestmark = needs_gloo
RANKS, STEPS = 4, 6
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
"""Sums are made in another order than gloo's; both in float32."""


def a_model() -> Any:
    """Small, with what is unlike other parameters: no dimension, another order in memory."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 40),
        torch.nn.Tanh(),
        torch.nn.Linear(40, 3),
    ).to(memory_format=torch.channels_last)
    net.scale = torch.nn.Parameter(torch.tensor(1.5))
    net.register_forward_hook(lambda module, given, output: output * module.scale)
    return net


def wrapped(model: Any) -> Any:
    parallel = torch.nn.parallel.DistributedDataParallel
    return parallel(model, bucket_cap_mb=0.004)  # several, which are others after the first step


def steps_of(model: Any, optimizer: Any, steps: range, rank: int) -> list[float]:
    """Losses. The learning rate changes on the way, and the hook's optimizer is stepped too."""
    losses = []
    for number in steps:
        dice = torch.Generator().manual_seed(1000 * number + rank)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        loss = (model(torch.randn(6, 3, 6, 6, generator=dice)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        optimizer.zero_grad()
    return losses


def make(kind: str, model: Any, **options: Any) -> Any:
    """An optimizer of two groups."""
    wide = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": wide}, {"params": others, "lr": 2e-3, "weight_decay": 0.0}]
    return getattr(torch.optim, kind)(groups, **{"lr": 1e-3} | options)


def elements(*states: Any) -> int:
    """All numbers of the states of parameters."""
    values = [value for state in states for value in state.values()]
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def held(hook: Any) -> int:
    """Elements of the optimizer's state at this rank."""
    every = [piece for parts in hook.parts.values() for part in parts.values() for piece in part]
    steppers = {id(piece.stepper): piece.stepper for piece in every}
    return elements(*(state for s in steppers.values() for state in s.state.values()))


def same(models: Any, optimizers: Any) -> bool:
    """Whether weights and states are close."""
    ends = [
        torch.allclose(a, b, **CLOSE)
        for a, b in zip(*(m.parameters() for m in models), strict=True)
    ]
    stock, ours = (o.state_dict()["state"] for o in optimizers)
    for key, state in stock.items():
        for name, value in state.items():
            ends.append(value.shape == ours[key][name].shape)
            ends.append(torch.allclose(value, ours[key][name], **CLOSE))
    names = [{key: set(state) for key, state in each.items()} for each in (stock, ours)]
    return all(ends) and names[0] == names[1]


def both(rank: int, path: Path, kind: str, options: dict[str, Any], steps: int) -> Any:
    """What is as it should be; elements of the state, here and in all."""
    models = a_model(), a_model()
    optimizers = [make(kind, model, **options) for model in models]
    pairs = list(zip(map(wrapped, models), optimizers, strict=True))
    hook = ft.comm_hook(path, optimizer=optimizers[1])
    pairs[1][0].register_comm_hook(None, hook)
    losses, found = (steps_of(*pair, range(steps), rank) for pair in pairs)
    right = [max(abs(a - b) for a, b in zip(losses, found, strict=True)) < 1e-5]
    right += [steps < STEPS or losses[-1] < losses[0]]
    right += [all(p.grad is None for p in models[1].parameters()), not optimizers[1].state]
    count = held(hook)
    right += [hook.elements == count]
    hook.gather()
    right += [same(models, optimizers), held(hook) == 0]
    saved = [copy.deepcopy(o.state_dict()) for o in optimizers]
    for optimizer, state in zip(optimizers, saved[::-1], strict=True):
        optimizer.load_state_dict(state)  # each goes on with the other's
    for pair in pairs:
        steps_of(*pair, range(steps, steps + 2), rank)
    right += [not optimizers[1].state, held(hook) == count]
    hook.gather()
    return [*right, same(models, optimizers)], count, elements(*optimizers[0].state.values())


def all_cases(rank: int, paths: dict[str, Path]) -> tuple[list[Any], str]:
    """Of each case; and why no optimizer steps what several ranks have."""
    told = [both(rank, paths[where], *case) for where, *case in CASES]
    try:
        ft.comm_hook(paths["once"], torch.optim.Adam(a_model().parameters()))
    except UnsupportedError as error:
        return told, str(error)
    return told, ""


CASES = [
    ("ring", "Adam", {}, STEPS),
    ("path", "Adam", {}, 3),
    ("ring", "AdamW", {"weight_decay": 0.1, "amsgrad": True, "foreach": True}, 3),
    ("even", "Adam", {"weight_decay": 0.1, "maximize": True}, 3),
    ("ring", "SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True}, 3),
    ("ring", "SGD", {"lr": 0.01}, 3),
]


def path_of_four() -> Topology:
    """Of four in a line no allreduce within the bound begins at either end."""
    graph = nx.path_graph(list("abcd"))
    nx.set_edge_attributes(graph, 50, "bandwidth")
    return Topology.from_networkx(graph, name="path")


def test_steps_are_those_of_stock_training(compiled: Artefacts, tmp_path: Path) -> None:
    """Weights, states and losses, also after each has loaded what the other saved.

    A rank holds a quarter of the state, with 10 % at most, where roots are dealt out evenly, as on
    the path where `shares` ask for it; else its roots are its inner two, which have a half each.
    """
    paths = {"ring": plan_files(compiled)["allreduce"]}
    asked = {"target": "msccl", "formats": ("msccl-xml",)}
    made = synthesize(path_of_four(), "allreduce", **asked)
    even = synthesize(path_of_four(), "allreduce", shares=["*=1"], **asked)
    assert (even.forest.algbw, even.optimum.algbw) == (made.forest.algbw, 50)
    star = CapacityGraph.from_topology(catalog.load("star", {"gpus": str(RANKS)}))
    several = plans.dumps(lower_rounds(next(rounds_of("one step", star)), MSCCLPP), MSCCLPP.format)
    texts = made.texts["msccl-xml"], even.texts["msccl-xml"], several
    for name, text in zip(("path", "even", "once"), texts, strict=True):
        paths[name] = tmp_path / name
        paths[name].write_text(text)
    told = run_ranks(RANKS, all_cases, paths)
    for (where, *_), *each in zip(CASES, *(cases for cases, _ in told), strict=True):
        for right, *_ in each:
            assert right == [True] * len(right)
        shares = [held / max(1, whole) for _, held, whole in each]
        if where == "path":
            assert shares == [0, pytest.approx(0.5, rel=0.1), pytest.approx(0.5, rel=0.1), 0]
        else:
            assert max(shares) <= 1.1 / RANKS
    assert all(
        "the same sums are made at several ranks; an epilogue takes" in why for _, why in told
    )


def most_of_a_rank(plan: Any, count: int) -> float:
    """The largest share of the optimizer's state for so many numbers of float32."""
    of_ranks = [sum(n for _, n in plan.roots(rank, count, 4)) for rank in range(plan.ranks)]
    assert sum(of_ranks) == count
    return max(of_ranks) / count


def test_state_of_a_rank_of_16() -> None:
    """MI250 with a link between two dies out: one rank has a third, or all as much, or one none."""
    topology = machine("mi250 -box0/gpu0-box0/gpu1")
    most = []
    for shares in (None, ["*=1"], ["*=1", "box0/gpu0=0"]):
        asked = Problem.of(topology, "allreduce", shares=shares)
        forest = solve(asked.graph, asked.collective)
        assert certificate.check(forest) == (150, 150)
        most.append(most_of_a_rank(ft.Plan(lower(forest, MSCCL)), 10**6))
    assert most[0] > 0.33
    assert most[1] <= 1.1 / 16
    assert most[2] <= 1.1 / 15


SCRIPTS = ROOT / "scripts"


def test_the_example_trains_both_ways(tmp_path: Path) -> None:
    words = ["--ranks", "2", "--steps", "3", "--width", "16"]
    command = [sys.executable, str(SCRIPTS / "train.py"), *words]
    done = finished(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Adam of 1,946 numbers of state" in done.stdout  # two of each weight, and six counts
    (line,) = re.findall(r"^step 3 .*", done.stdout, re.MULTILINE)
    stock, ours = map(float, re.findall(r"\d\.\d+", line))
    assert stock == pytest.approx(ours, abs=1e-5)
    assert re.search(r"ours (50|49)\.\d (50|49)\.\d %", done.stdout)
    assert "weights    equal" in done.stdout


def test_the_example_says_whose_plan_it_is(
    compiled: Artefacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    train: Any = __import__("train")
    given = str(plan_files(compiled)["allgather"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--plan", given])
    with pytest.raises(train.ForestCollError, match="allgather of 4 ranks; it takes an allreduce"):
        train.main()
    for words in (["--lr", "nan"], ["--timeout", "-1"], ["--steps", "0"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        with pytest.raises(SystemExit, match="2"):
            train.main()
