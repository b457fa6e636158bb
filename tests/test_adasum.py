"""Adasum against an independent recursion, and the vectors of its authors' formula."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from artefacts import Artefacts
from torch_ranks import ft, needs_gloo, run_ranks, torch

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError

Vector = np.ndarray[Any, np.dtype[Any]]
Case = tuple[list[list[float]], list[int]]
"""What every rank has, and the layers."""

LAYERS = [1000, 1, 37, 4096, 863]
ORDER = ("--reduction-order", "binary")
CODED = [[1, 0, 0], [1, 1, 0], [0, 1, 1], [2, 0, 1]]
TREE = [1.834863083164, 0.842038539554, 1.294396551724]
OTHER_TREE = [1.859748427673, 0.772955974843, 0.976729559748]
CHAIN = [2.062631209569, 0.884830396824, 1.215560494612]
PAIRS: list[tuple[list[float], list[float], list[int], list[float]]] = [
    ([1, 0], [0, 1], [2], [1, 1]),
    ([2, 2], [2, 2], [2], [2, 2]),
    ([1, 0], [3, 0], [2], [2, 0]),
    ([1, 0], [-1, 0], [2], [0, 0]),
    ([0, 0], [3, 4], [2], [3, 4]),
    ([1, 0], [1, 1], [2], [1.25, 0.75]),
    ([1, 2, 3, 4], [4, 3, 2, 1], [4], [10 / 3] * 4),
    ([1, 2, 3, 4], [4, 3, 2, 1], [2, 2], [3.2, 2.4, 2.4, 3.2]),
    ([1e-160, 0], [3, 4], [2], [3, 4]),
]


def recursion(vectors: Sequence[Vector]) -> Vector:
    """Halves first, then the two of them: other than the plan's rounds, and by numpy."""
    if len(vectors) == 1:
        return vectors[0]
    middle = len(vectors) // 2
    a, b = recursion(vectors[:middle]), recursion(vectors[middle:])
    dot, scales = float(np.dot(a, b)), []
    for norm in (float(np.dot(a, a)), float(np.dot(b, b))):
        scales.append(1.0 if norm < 2.0**-511 else 1 - dot / norm / 2)
    result: Vector = scales[0] * a + scales[1] * b
    return result


def by_layers(every: Sequence[Vector], layers: Sequence[int]) -> Vector:
    ends = np.cumsum([0, *layers])
    parts = [[v[a:b] for v in every] for a, b in pairwise(ends)]
    return np.concatenate([recursion(part) for part in parts])


def data(n: int) -> list[Vector]:
    random = np.random.default_rng(n)
    common = random.normal(size=sum(LAYERS))
    return [common + random.normal(size=sum(LAYERS)) for _ in range(n)]


def reduce_all(rank: int, plan: Any, dtype: str, cases: list[Case]) -> list[Vector]:
    found = []
    for every, layers in cases:
        tensor = torch.tensor(every[rank], dtype=getattr(torch, dtype))
        ft.all_reduce(tensor, plan, op="adasum", layers=layers)
        found.append(tensor.double().numpy())
    return found


def chain_and_refusals(rank: int, plan: Any) -> tuple[Vector, list[str]]:
    total = torch.tensor(CODED[0], dtype=torch.float64)
    for more in CODED[1:]:
        total = total if rank == 0 else torch.tensor(more, dtype=torch.float64)
        ft.all_reduce(total, plan, op="adasum", layers=[3])
    said = []
    for words in ({"layers": [3]}, {"op": "adasum"}, {"op": "adasum", "layers": [1, 1]}):
        try:
            ft.all_reduce(total, plan, **words)
        except ForestCollError as error:
            said.append(str(error))
    return total.numpy(), said


def plan_of(compiled: Artefacts, n: int, *words: str) -> Any:
    from forestcoll.execute.torch import Plan

    form = "mscclpp-json" if n == 8 else "msccl-xml"
    made = compiled(f"star gpus={n}", "allreduce", "--format", form, *words)
    return Plan(made.programs[form])


@needs_gloo
def test_pairs_give_the_vectors(compiled: Artefacts) -> None:
    plan = plan_of(compiled, 2, *ORDER)
    cases = [([a, b], layers) for a, b, layers, _ in PAIRS]
    for found in run_ranks(2, reduce_all, plan, "float64", cases):
        for got, (*_, want) in zip(found, PAIRS, strict=True):
            assert np.allclose(got, want, rtol=1e-15, atol=1e-159)
    for got, said in run_ranks(2, chain_and_refusals, plan):
        assert np.allclose(got, CHAIN, rtol=0, atol=1e-12)
        assert said[0].endswith("layers are for op='adasum'")
        assert said[1].endswith("adasum needs layers=[sizes], in elements")
        assert said[2].endswith("the layers have 2 elements in all, the tensor 3")


@needs_gloo
@pytest.mark.parametrize("n", [2, 4, 8])
def test_ranks_agree_with_the_recursion(compiled: Artefacts, n: int) -> None:
    plan, every = plan_of(compiled, n, *ORDER), data(n)
    want = by_layers(every, LAYERS)
    cases: list[Case] = [([v.tolist() for v in every], LAYERS)]
    if n == 4:
        cases += [(CODED, [3]), ([CODED[k] for k in (0, 2, 1, 3)], [3])]
    for found in run_ranks(n, reduce_all, plan, "float64", cases):
        assert np.abs(found[0] - want).max() < 1e-12 * np.abs(want).max()
        for got, vector in zip(found[1:], (TREE, OTHER_TREE), strict=False):
            assert np.allclose(got, vector, rtol=0, atol=1e-12)
    if n == 4:
        low, *others = run_ranks(n, reduce_all, plan, "float32", cases[:1])
        assert np.abs(low[0] - want).max() < 1e-6 * np.abs(want).max()
        assert all((low[0] == other[0]).all() for other in others)


def test_what_adasum_cannot_do_is_refused(compiled: Artefacts) -> None:
    from forestcoll.execute.torch.adasum import check_adasum

    ones = torch.ones(6)
    with pytest.raises(UnsupportedError, match="adasum pairs ranks: 5 are no power of two"):
        check_adasum(plan_of(compiled, 5, *ORDER), [6], ones)
    with pytest.raises(PlanError, match=r"adasum needs a plan of .*--reduction-order binary"):
        check_adasum(plan_of(compiled, 8), [6], ones)
    with pytest.raises(UnsupportedError, match=r"not torch\.int64"):
        check_adasum(plan_of(compiled, 2, *ORDER), [6], ones.long())
