"""Seeded random topologies, small and nasty, and an independent judge of forests."""

from __future__ import annotations

import random
import runpy
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from fractions import Fraction
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest, Tree

CHECKER = Path(__file__).parents[2] / "shared" / "tools" / "check_forest.py"
Links = defaultdict[tuple[int, int], int]

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 9973, 1_000_003)
STEPS = (25, 50, 100, 200, 300, 400)
UNITS = (Fraction(1), Fraction(1, 3), Fraction(25), Fraction(25, 2))


def random_graph(seed: int, kind: str | None = None) -> CapacityGraph:
    """A graph with 2 to 10 ranks, 0 to 4 switches and 0 to 2 idle GPUs; `kind` is one of KINDS.

    Every rank can reach every other, whatever the kind. Nodes and ranks are in random order. All
    kinds but "asymmetric" are balanced at every switch and idle GPU.
    """
    rng = random.Random(seed)
    kind = kind or KINDS[seed % len(KINDS)]
    ranks = list(range(rng.choice((2, 3, 3, 4, 4, 5, 6, 7, 8, 10))))
    relays = list(range(len(ranks), len(ranks) + rng.randint(1, 4)))
    links: Links = defaultdict(int)
    BUILDERS[kind](Draft(rng, _capacities(rng), links, ranks, relays))
    return _shuffled(rng, links, len(ranks), len(ranks) + len(relays))


def _capacities(rng: random.Random) -> Callable[[], int]:
    """Where this graph's capacities come from: small, prime, or bandwidths of real machines."""
    choices = rng.choice((tuple(range(1, 6)), (1,), PRIMES, STEPS))
    return lambda: rng.choice(choices)


class Draft(NamedTuple):
    """What a kind of graph is made of."""

    rng: random.Random
    draw: Callable[[], int]
    links: Links
    ranks: list[int]
    relays: list[int]


def _direct(draft: Draft) -> None:
    """A ring one way round, and any further links, one-way or not."""
    rng, draw, links, ranks, relays = draft
    relays.clear()
    for u, v in pairwise([*ranks, ranks[0]]):
        links[u, v] += draw()
    for _ in range(rng.randint(0, 2 * len(ranks))):
        u, v = rng.sample(ranks, 2)
        links[u, v] += draw()
        if rng.random() < 0.5:
            links[v, u] += draw()


def _switched(draft: Draft) -> None:
    """Switches in layers: ranks below, each node linked both ways to one or two above it."""
    rng, draw, links, ranks, relays = draft
    cut = rng.randint(1, len(relays))
    below = ranks
    for layer in (relays[:cut], relays[cut:]):
        for u in below if layer else ():
            for w in rng.sample(layer, min(len(layer), rng.randint(1, 2))):
                _both(links, u, w, draw())
        below = layer or below
    for u, v in pairwise(below):  # joins what the top layer left apart
        _both(links, u, v, draw())


def _mixed(draft: Draft) -> None:
    """Switches in layers, and direct links, one-way or not, between ranks."""
    rng, draw, links, ranks, _ = draft
    _switched(draft)
    for _ in range(rng.randint(1, 2 * len(ranks))):
        u, v = rng.sample(ranks, 2)
        links[u, v] += draw()


def _cycles(draft: Draft) -> None:
    """One-way cycles through ranks and switches: balanced, though no link has its opposite."""
    rng, draw, links, ranks, relays = draft
    for i in range(rng.randint(2, 5)):
        nodes = rng.sample(relays, rng.randint(0, len(relays)))
        nodes += rng.sample(ranks, len(ranks) if i == 0 else rng.randint(1, len(ranks)))
        rng.shuffle(nodes)
        if len(nodes) > 1:
            units = draw()
            for u, v in pairwise([*nodes, nodes[0]]):
                links[u, v] += units


def _asymmetric(draft: Draft) -> None:
    """Any of the others, then links of switches slowed, sped up or made one-way."""
    rng, draw, links, ranks, relays = draft
    rng.choice((_switched, _mixed, _cycles))(draft)
    for pair in list(links):
        if min(pair) < len(ranks) and rng.random() < 0.4:
            links[pair] = max(1, links[pair] + rng.choice((-1, 1)) * draw())
    for _ in range(rng.randint(1, 3)):
        links[rng.choice(ranks), rng.choice(relays)] += draw()
        links[rng.choice(relays), rng.choice(ranks)] += draw()


def _both(links: Links, u: int, v: int, units: int) -> None:
    links[u, v] += units
    links[v, u] += units


def _shuffled(rng: random.Random, links: Links, n_ranks: int, n: int) -> CapacityGraph:
    """The graph with its nodes and links in random order; relays are switches or idle GPUs."""
    place = rng.sample(range(n), n)
    gpu = [True] * n
    for v in range(n):
        gpu[place[v]] = v < n_ranks or rng.random() < 0.2
    pairs = [pair for pair, units in links.items() if units]
    rng.shuffle(pairs)
    return CapacityGraph(
        names=tuple(f"node{v}" for v in range(n)),
        gpu=tuple(gpu),
        multicast=(False,) * n,
        aggregation=(False,) * n,
        ranks=tuple(rng.sample(place[:n_ranks], n_ranks)),
        tail=tuple(place[u] for u, _ in pairs),
        head=tuple(place[v] for _, v in pairs),
        capacity=tuple(links[pair] for pair in pairs),
        unit=rng.choice(UNITS),
    )


BUILDERS = {
    "direct": _direct,
    "switched": _switched,
    "mixed": _mixed,
    "cycles": _cycles,
    "asymmetric": _asymmetric,
}
KINDS = tuple(BUILDERS)


def starved_graph(seed: int) -> CapacityGraph:
    """A tiny graph (2 to 4 ranks) whose one or two switches send far more than they receive.

    Or, turned round, receive far more than they send. Every rank can reach every other.
    """
    rng = random.Random(seed)
    n = rng.randint(2, 4)
    ranks, relays = list(range(n)), list(range(n, n + rng.randint(1, 2)))
    links: Links = defaultdict(int)
    for w in relays:
        for v in ranks:
            links[v, w] += rng.randint(0, 3)
            links[w, v] += rng.randint(1, 9)
        links[ranks[0], w] += 1
    for u, v in pairwise([*ranks, ranks[0]]):
        links[u, v] += rng.randint(1, 2)
    graph = _shuffled(rng, links, n, n + len(relays))
    return graph.reverse() if rng.random() < 0.3 else graph


def depths(root: int, edges: Iterable[tuple[int, ...]], ranks: set[int]) -> dict[int, int]:
    """How many hops each rank is from the root of a tree, whose paths must span them."""
    depth = {root: 0}
    for path in edges:
        assert path[0] in depth, "a path starts before its first node has the data"
        assert path[-1] not in depth, "a rank is reached twice"
        assert ranks.isdisjoint(path[1:-1]), "a path passes through a rank"
        assert len(set(path)) == len(path), "a path meets itself"
        depth[path[-1]] = depth[path[0]] + 1
    assert depth.keys() == ranks, "a rank is not reached"
    return depth


def judge(forest: Forest) -> Fraction:
    """The forest's algbw in GB/s. AssertionError unless its trees are trees and shares add up.

    Parts of the ranks, switches that copy (one copy in for all that a tree sends out of them) and
    switches that add are taken into account.
    """
    graph, ranks = forest.graph, set(forest.graph.ranks)
    capacity = dict(zip(graph.ends, graph.capacity, strict=True))
    load: dict[tuple[int, int], int] = defaultdict(int)
    share: dict[tuple[str, int], int] = defaultdict(int)
    for tree in forest.trees:
        assert tree.weight > 0
        share[tree.phase, tree.root] += tree.weight
        forward = tree.phase == "broadcast"
        edges = tree.edges if forward else [path[::-1] for path in reversed(tree.edges)]
        depths(tree.root, edges, ranks)
        once: set[tuple[int, int]] = set()
        for path in tree.edges:
            for u, v in pairwise(path):
                if graph.multicast[v] if forward else graph.aggregation[u]:
                    if (u, v) in once:
                        continue
                    once.add((u, v))
                load[u, v] += tree.weight
    _check_shares(forest, share)
    assert set(load) <= set(capacity), "a path needs a link that is not there"
    return min(Fraction(capacity[e], w) for e, w in load.items()) * graph.unit * forest.total


def _check_shares(forest: Forest, share: dict[tuple[str, int], int]) -> None:
    graph, kind, total = forest.graph, forest.collective.value, forest.total
    phase = {"allgather": "broadcast", "reduce-scatter": "reduce"}.get(kind)
    if phase:
        every = sum(graph.parts)
        wanted = {
            (phase, r): Fraction(total * part, every)
            for r, part in zip(graph.ranks, graph.parts, strict=True)
            if part
        }
        assert share == wanted
    elif kind == "allreduce":
        assert sum(share["broadcast", r] for r in graph.ranks) == total
        assert all(share["broadcast", r] == share["reduce", r] for r in graph.ranks)
        for r, part in zip(graph.ranks, graph.shares, strict=False):  # none: they are free
            assert share["reduce", r] * sum(graph.shares) == part * total
    else:
        assert share == {(kind, graph.ranks[forest.root]): total}


def validate(
    graph: CapacityGraph, capacity: Sequence[int], supply: Sequence[int], trees: Sequence[Tree]
) -> int:
    """The height of broadcast trees over real links, `supply[v]` from node v, `capacity[e]` at most
    over link e; AssertionError where they are not that. Shares no code with the package."""
    room = dict(zip(graph.ends, capacity, strict=True))
    assert len(room) == len(capacity)
    ranks, height = set(graph.ranks), 0
    started: Counter[int] = Counter()
    load: Counter[tuple[int, int]] = Counter()
    for tree in trees:
        assert tree.phase == "broadcast"
        assert tree.weight > 0
        started[tree.root] += tree.weight
        height = max(height, *depths(tree.root, tree.edges, ranks).values())
        for path in tree.edges:
            load.update(dict.fromkeys(pairwise(path), tree.weight))
    assert [started[v] for v in range(graph.n)] == list(supply)
    for link, units in load.items():
        assert units <= room[link], [graph.names[v] for v in link]
    return height


def stranger(forest: Forest, folder: Path, *options: object) -> None:
    """The forest contract's own checker agrees, where it is at hand: it lies outside."""
    if CHECKER.exists():
        file = folder / "forest.json"
        file.write_text(forest_file.dumps(forest))
        ask_stranger(file, *options)


def ask_stranger(file: Path, *options: object) -> str:
    """What that checker, which shares nothing with the package, says of a file that is right.

    It runs in this process, as a hundred starts of Python would take longer than all that it
    checks.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(StringIO()) as said,
        suppress(SystemExit),
        warnings.catch_warnings(action="ignore", category=ResourceWarning),  # it leaves files open
    ):
        patch.setattr("sys.argv", [str(CHECKER), str(file), *map(str, options)])
        runpy.run_path(str(CHECKER))
    assert said.getvalue().startswith("OK "), said.getvalue()
    return said.getvalue()


needs_stranger = pytest.mark.skipif(
    not CHECKER.exists(), reason="no independent checker beside the project"
)
