"""What the kernel asks of its callers: refused with the reason, no crash and no endless loop."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from test_kernel import check_packed

from forestcoll.graph.kernel import _kernel

Problem = tuple[int, list[int], list[int], list[int], list[int], list[int]]
"""nodes, tail, head, capacity, supply, sinks."""
LARGE = 2**62


def balanced(seed: int, unit: int = 1) -> Problem:
    """Closed walks, and ways between sinks over relays; supply that every sink can have."""
    rng = random.Random(seed)
    nodes = rng.randint(2, 8)
    sinks = sorted(rng.sample(range(nodes), rng.randint(1, nodes)))
    capacity: Counter[tuple[int, int]] = Counter()
    for _ in range(rng.randint(1, 8)):
        ring = rng.sample(range(nodes), rng.randint(2, min(nodes, 5)))
        width = rng.randint(1, 5) * unit
        for ends in pairwise([*ring, ring[0]]):
            capacity[ends] += width
    for _ in range(rng.randint(0, 6) if len(sinks) > 1 else 0):
        first, last = rng.sample(sinks, 2)
        between = [v for v in range(nodes) if v not in sinks]
        rng.shuffle(between)
        width = rng.randint(1, 5) * unit
        for ends in pairwise([first, *between[: rng.randint(0, len(between))], last]):
            capacity[ends] += width
    if rng.random() < 0.3:
        capacity[rng.choice(sinks), rng.choice(sinks)] += 0
    arcs = [(u, v, c) for (u, v), c in capacity.items() if u != v]
    if rng.random() < 0.3:  # an arc in two
        u, v, c = arcs[0]
        arcs[:1] = [(u, v, c // 2), (u, v, c - c // 2)]
    tail, head, width_of = ([arc[i] for arc in arcs] for i in range(3))
    supply = [0] * nodes
    for _ in range(12):
        more = list(supply)
        more[rng.choice(sinks)] += rng.randint(1, 3) * unit
        if _kernel.violated(nodes, tail, head, width_of, more, sinks) is None:
            supply = more
    return nodes, tail, head, width_of, supply, sinks


@pytest.mark.parametrize("unit", [1, 10**9, 2**52])
def test_every_problem_within_the_contract_has_its_trees(unit: int) -> None:
    packed = 0
    for seed in range(300):
        problem = balanced(seed, unit)
        supply, sinks = problem[4:]
        rng = random.Random(seed)
        group = [rng.randint(-1, 2) for _ in supply]
        for detours in (True, False):
            logical = _kernel.remove_relays(*problem, group, detours)
            exact = _kernel.pack(logical, supply, sinks, True)
            assert exact is not None
            check_packed(logical, supply, tuple(sinks), exact)
            for other in (
                _kernel.pack(logical, supply, sinks, False),
                _kernel.pack_nested(logical, supply, sinks, group),
                _kernel.pack_lowest(logical, supply, sinks, [list(range(len(supply)))], exact[0]),
            ):
                if other is not None:
                    check_packed(logical, supply, tuple(sinks), other)
        packed += sum(supply) > 0
    assert packed > 250


def test_numbers_near_the_limit_end() -> None:
    """Up to 2^62 in all, times the ranks where rates are compared; refusals/graph.txt has more."""
    tail, head = [0, 1], [1, 0]
    half = LARGE // 2 - 1
    assert _kernel.violated(2, tail, head, [half, half], [1, 0], [0, 1]) is None
    assert _kernel.violated(2, tail, head, [half, half], [LARGE - 1, 0], [0, 1]) is not None
    assert _kernel.maximum_flow(2, tail, head, [half, half], 0, 1) == [half, 0]
    assert _kernel.least_flow(2, tail, head, [half, half], 0, [1])[0] == half
    quarter = LARGE // 4 - 1
    assert _kernel.best_ratio(2, tail, head, [quarter, quarter], [0, 1], [1, 1], [0, 1])[:2] == (
        quarter,
        1,
    )


def test_any_numbers_end_in_an_answer_or_a_reason() -> None:
    """Problems out of contract in any way: ValueError or trees that hold, nothing else."""
    reasons: Counter[str] = Counter()
    for seed in range(600):
        rng = random.Random(seed)
        nodes, tail, head, capacity, supply, sinks = balanced(seed)
        for _ in range(rng.randint(1, 3)):
            what = rng.randrange(6)
            if what == 0:
                supply[rng.randrange(nodes)] += rng.choice((1, 3, LARGE))
            elif what == 1:
                capacity[rng.randrange(len(capacity))] += rng.choice((-1, 1, 2**61))
            elif what == 2:
                head[rng.randrange(len(head))] = rng.randrange(nodes)
            elif what == 3:
                sinks.append(rng.randrange(nodes))
            elif what == 4 and len(sinks) > 1:
                sinks.pop(rng.randrange(len(sinks)))
            else:
                tail[rng.randrange(len(tail))] = rng.randrange(-1, nodes + 1)
        group = [rng.randint(-1, 2) for _ in range(nodes)]
        links = (nodes, tail, head, capacity, supply, sinks)
        try:
            logical = _kernel.remove_relays(*links, group, rng.random() < 0.5)
            packed = _kernel.pack(logical, supply, sinks, True)
        except ValueError as error:
            reasons[str(error)] += 1
            continue
        assert packed is not None
        check_packed(logical, supply, tuple(sinks), packed)
        reasons["trees"] += 1
    assert min(reasons.values()) >= 1
    assert len(reasons) >= 8, reasons
