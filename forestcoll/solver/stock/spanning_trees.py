"""Spanning trees for libraries that add up and broadcast over the same tree, in equal shares.

NCCL's and RCCL's trees carry an allreduce up and down at once, so a tree of share s loads each of
its links by s, both ways round: a link holds trees of its bandwidth in sum. What all links hold is
a linear program over spanning trees; its dual prices links such that no spanning tree costs less
than 1, and what all links cost together is the bound. It is solved exactly, by columns: the
cheapest tree at the prices so far joins, until none costs less than 1.

The libraries give every channel the same share, and kernels know few children. So k trees of equal
shares are sought, no rank with more links than `arity`: trees are grown anywhere, and links that
hold too many hand some over, dearer the longer they are too full (negotiated congestion: McMurchie
and Ebeling, "PathFinder", 1995).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import DisjointSets
from forestcoll.solver.baselines.shapes import paths
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.walks import hops, links_out, neighbours

SEEDS = 8
"""Packings of a number of trees and a share that are tried, to take the lowest of them."""
MOVES = 20_000
PATIENCE = 2_000
"""Exchanges of a packing at most, in all and without any gain."""
SLACK = 2
"""Shares that are tried for each link that is to be full."""
DEARER, DEEP, NOISE = 0.02, 0.15, 0.05
"""What a link's cost rises by while it is too full, of a rank one deeper, and what is drawn."""

Tree = tuple[int, ...]
"""Numbers of pairs of a mesh that join all ranks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks, and the links (numbers in the mesh) that join them: one, or through switches."""

    ranks: tuple[int, int]
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Pairs of `n` ranks over links that carry `capacity` units of `unit` GB/s both ways at once.

    `ends`: names of the two nodes of each link.
    """

    n: int
    pairs: tuple[Pair, ...]
    capacity: tuple[int, ...]
    ends: tuple[tuple[str, str], ...]
    unit: Fraction

    @staticmethod
    def of(graph: CapacityGraph) -> Mesh:
        """The mesh of a graph's ranks. UnsupportedError where links join not all of them."""
        rates = graph.links
        both = {(u, v): min(c, rates[v, u]) for (u, v), c in rates.items() if (v, u) in rates}
        links = sorted(link for link in both if link[0] < link[1])
        number = {link: e for e, link in enumerate(links)}
        rank = graph.rank_of
        pairs = []
        for (u, v), way in sorted(paths(graph).items()):
            steps = [(min(step), max(step)) for step in pairwise(way)]
            if rank[u] < rank[v] and all(step in number for step in steps):
                pairs.append(Pair((rank[u], rank[v]), tuple(number[step] for step in steps)))
        ends = tuple((graph.names[u], graph.names[v]) for u, v in links)
        capacity = tuple(both[link] for link in links)
        mesh = Mesh(len(rank), tuple(pairs), capacity, ends, graph.unit)
        if len(mesh.cheapest([Fraction(0)] * len(links))) < mesh.n - 1:
            raise UnsupportedError("links that carry data both ways do not join all ranks")
        return mesh

    def cheapest(self, prices: Sequence[Fraction]) -> Tree:
        """The spanning tree whose links cost least."""
        joined = DisjointSets(self.n)

        def cost(number: int) -> tuple[Fraction, int]:
            return sum((prices[e] for e in self.pairs[number].links), Fraction(0)), number

        pairs = sorted(range(len(self.pairs)), key=cost)
        return tuple(i for i in pairs if joined.join(*self.pairs[i].ranks))

    def loads(self, trees: Sequence[Tree]) -> list[int]:
        """How many of the trees take each link."""
        loads = [0] * len(self.capacity)
        for tree in trees:
            for i in tree:
                for e in self.pairs[i].links:
                    loads[e] += 1
        return loads


@dataclass(frozen=True, slots=True)
class Bound:
    """GB/s that no spanning trees exceed, and the prices a unit of each link that prove it."""

    algbw: Fraction
    prices: tuple[Fraction, ...]


def bound_of(mesh: Mesh) -> Bound:
    """What links allow spanning trees of any shares and any number of children, exactly."""
    count = len(mesh.capacity)
    program = exact_lp.Program([*mesh.capacity], [0] * count)
    program.rows = [exact_lp.Row({e: 1}) for e in range(count)]  # used - sum of trees' loads >= 0
    prices = [Fraction(1, c) for c in mesh.capacity]
    while True:
        tree = mesh.cheapest(prices)
        loads = mesh.loads([tree])
        known = len(program.upper) > count
        if known and sum(p * load for p, load in zip(prices, loads, strict=True)) >= 1:
            value = sum((p * c for p, c in zip(prices, mesh.capacity, strict=True)), Fraction(0))
            return Bound(value * mesh.unit, tuple(prices))
        column = len(program.upper)
        program.upper.append(None)
        program.cost.append(1)
        for e, load in enumerate(loads):
            if load:
                program.rows[e].coefficients[column] = -load
        prices = exact_lp.solve(program, max(mesh.capacity)).dual


@dataclass(frozen=True, slots=True)
class Rooted:
    """A tree with the root that makes it lowest: rank -> its children, the root first."""

    children: dict[int, list[int]]
    depth: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees of `share` GB/s each, the shallow ones first."""

    mesh: Mesh
    trees: tuple[Rooted, ...]
    share: Fraction
    bound: Bound

    @property
    def algbw(self) -> Fraction:
        """GB/s of an allreduce over all trees."""
        return self.share * len(self.trees)


def pack(graph: CapacityGraph, most: int, most_children: int) -> Packing:
    """Up to `most` trees of equal shares: the fastest, of those the fewest, of those the lowest.

    Of what was tried: whether trees with few children exist is a hard question in general. Raises
    UnsupportedError where no spanning tree of `most_children` children a rank comes up.
    """
    mesh = Mesh.of(graph)
    bound = bound_of(mesh)
    for share, count, rooms in _targets(mesh, bound, most):
        tries = (_Growth(mesh, rooms, most_children, seed).trees(count) for seed in range(SEEDS))
        packings = [
            [_root(mesh, tree, most_children) for tree in trees] for trees in tries if trees
        ]
        if packings:
            lowest = min(packings, key=_depths)
            trees = tuple(sorted(lowest, key=lambda tree: tree.depth))
            return Packing(mesh, trees, share * mesh.unit, bound)
    raise UnsupportedError(
        f"the links gave no spanning tree with at most {most_children} children a rank"
    )


def algbw_of(graph: CapacityGraph, trees: Sequence[Mapping[int, Sequence[int]]]) -> Fraction:
    """GB/s of an allreduce over such trees (rank -> children) in equal shares, by the links.

    Raises UnsupportedError where two ranks of a tree have no links both ways.
    """
    mesh = Mesh.of(graph)
    number = {frozenset(pair.ranks): i for i, pair in enumerate(mesh.pairs)}
    edges = []
    for tree in trees:
        ends = [(rank, child) for rank, children in tree.items() for child in children]
        apart = next((pair for pair in ends if frozenset(pair) not in number), None)
        if apart is not None:
            raise UnsupportedError(f"ranks {apart[0]} and {apart[1]} have no links both ways")
        edges.append(tuple(number[frozenset(pair)] for pair in ends))
    loads = zip(mesh.capacity, mesh.loads(edges), strict=True)
    return min(Fraction(c, load) for c, load in loads if load) * len(trees) * mesh.unit


def _targets(mesh: Mesh, bound: Bound, most: int) -> Iterator[tuple[Fraction, int, list[int]]]:
    """(share, number of trees, trees that each link holds), the fastest first, then the fewest.

    Shares are such that some link is full. What the bound's prices exclude is left out.
    """
    total = bound.algbw / mesh.unit
    targets = {
        (Fraction(c, math.ceil(count * c / total) + more), count)
        for count in range(1, most + 1)
        for c in set(mesh.capacity)
        for more in range(SLACK)
    }
    for share, count in sorted(targets, key=lambda one: (-one[0] * one[1], one[1])):
        rooms = [int(c / share) for c in mesh.capacity]
        if sum(p * room for p, room in zip(bound.prices, rooms, strict=True)) >= count:
            yield share, count, rooms


class _Growth:
    """Trees grown over links with `rooms` for so many of them."""

    def __init__(self, mesh: Mesh, rooms: Sequence[int], most_children: int, seed: int) -> None:
        self.n = mesh.n
        self.rooms, self.most_children = rooms, most_children
        self.pairs = [pair for pair in mesh.pairs if all(rooms[e] for e in pair.links)]
        self.numbers = [i for i, pair in enumerate(mesh.pairs) if all(rooms[e] for e in pair.links)]
        joined = enumerate(pair.ranks for pair in self.pairs)
        both = ((*ends, i) for i, (u, v) in joined for ends in ((u, v), (v, u)))
        self.near = links_out(mesh.n, both)
        self.loads = [0] * len(rooms)
        self.dearer = [0.0] * len(rooms)  # links that were too full, the longer the more
        self.random = random.Random(seed)

    def trees(self, count: int) -> tuple[Tree, ...] | None:
        """So many that links have room for; None: none came up."""
        trees = [tree for _ in range(count) if (tree := self._grow()) is not None]
        if len(trees) < count:
            return None
        least, last = math.inf, 0
        for move in range(MOVES):
            full = [e for e, load in enumerate(self.loads) if load > self.rooms[e]]
            if not full:
                return tuple(tuple(sorted(self.numbers[i] for i in tree)) for tree in trees)
            over = sum(self.loads[e] - self.rooms[e] for e in full)
            if over < least:
                least, last = over, move
            elif move - last > PATIENCE:
                break
            link = self.random.choice(full)
            self.dearer[link] += DEARER
            takers = [
                (tree, i) for tree in trees for i in sorted(tree) if link in self.pairs[i].links
            ]
            self._exchange(*self.random.choice(takers))
        return None

    def _cost(self, pair: int) -> float:
        """Of one more tree over the pair: dear where a link would be too full."""
        cost = 0.0
        for e in self.pairs[pair].links:
            over = self.loads[e] + 1 - self.rooms[e]
            share = 1 + 4.0 * over if over > 0 else (self.loads[e] + 1) / self.rooms[e]
            cost += (1 + self.dearer[e]) * share
        return cost

    def _grow(self) -> set[int] | None:
        """A tree from some rank on, over cheap links and not deep."""
        depth, links, tree = {self.random.randrange(self.n): 0}, [0] * self.n, set[int]()
        while len(depth) < self.n:
            offers = [
                (self._cost(i) + DEEP * depth[u] + NOISE * self.random.random(), u, v, i)
                for u in depth
                if links[u] <= self.most_children
                for v, i in self.near[u]
                if v not in depth
            ]
            if not offers:
                return None
            _, u, v, i = min(offers)
            depth[v] = depth[u] + 1
            links[u] += 1
            links[v] += 1
            tree.add(i)
            self._load(i, 1)
        return tree

    def _exchange(self, tree: set[int], pair: int) -> None:
        """Takes the pair out of the tree, and joins both sides by what is cheapest now."""
        tree.discard(pair)
        self._load(pair, -1)
        near = neighbours(self.n, (self.pairs[i].ranks for i in tree), both=True)
        inside = hops(near, [self.pairs[pair].ranks[0]])
        offers = []
        for i, (u, v) in enumerate(one.ranks for one in self.pairs):
            if (u in inside) != (v in inside) and max(
                len(near[u]), len(near[v])
            ) <= self.most_children:
                again = float(i == pair)
                offers.append((self._cost(i) + again + 4 * NOISE * self.random.random(), i))
        _, best = min(offers)
        tree.add(best)
        self._load(best, 1)

    def _load(self, pair: int, by: int) -> None:
        for e in self.pairs[pair].links:
            self.loads[e] += by


def _root(mesh: Mesh, tree: Tree, most_children: int) -> Rooted:
    """The tree with the root that makes it lowest; one of few links, a leaf at worst."""
    near = neighbours(mesh.n, (mesh.pairs[i].ranks for i in sorted(tree)), both=True)
    roots = [rank for rank in range(mesh.n) if len(near[rank]) <= most_children]
    return min((_hang(near, root) for root in roots), key=lambda one: one.depth)


def _hang(near: Sequence[Sequence[int]], root: int) -> Rooted:
    depth, children = {root: 0}, dict[int, list[int]]()
    for rank in (order := [root]):
        children[rank] = [other for other in near[rank] if other not in depth]
        depth |= dict.fromkeys(children[rank], depth[rank] + 1)
        order += children[rank]
    return Rooted(children, max(depth.values()))


def _depths(trees: Sequence[Rooted]) -> tuple[int, int]:
    """The depth of the deepest, and of all together."""
    depths = [tree.depth for tree in trees]
    return max(depths), sum(depths)
