"""The solver's answer: which trees carry which share of the data over which links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from forestcoll.common import arguments
from forestcoll.common.display import Shown
from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.common.input_limits import PATH_NODES, TREE_EDGES
from forestcoll.graph.bound import Bound as Bound
from forestcoll.graph.bound import Symmetry as Symmetry
from forestcoll.graph.capacity_graph import CAPACITY_LIMIT, CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.link_table import LinkTable, link_graph
from forestcoll.graph.symmetry.group import Rotation, SymmetryGroup, rotation_group, symmetry_group
from forestcoll.program import Collective
from forestcoll.program import Phase as Phase

if TYPE_CHECKING:
    import networkx as nx

Path = tuple[int, ...]
Scan = tuple[int, int, list[int] | None]
"""Number of the first tree that is wrong or -1, height of the others, load of each link."""


@dataclass(frozen=True, slots=True)
class Tree:
    """`weight` equal spanning trees. Each edge is a path of nodes, in the direction of the data.

    First and last node of a path are ranks (nodes, not rank numbers); between them are switches or
    relaying GPUs. Broadcast: data flows from `root` and the edges are in an order in which each
    path's first node has been reached; reduce: towards `root`, the edges in such an order that a
    node's incoming edges all come before its outgoing one.
    """

    root: int
    phase: Phase
    weight: int
    edges: tuple[Path, ...]

    def __repr__(self) -> str:
        return (
            f"<Tree {self.phase}, root {self.root}, weight {self.weight}: {len(self.edges)} edges>"
        )

    def reverse(self) -> Tree:
        """The same edges with the data flowing the other way: broadcast to reduce, and back."""
        edges = tuple(path[::-1] for path in reversed(self.edges))
        phase: Phase = "reduce" if self.phase == "broadcast" else "broadcast"
        return Tree(self.root, phase, self.weight, edges)


@dataclass(frozen=True, slots=True)
class Forest(Shown):
    """Trees for one collective on one graph. A tree carries weight / total of all data.

    With a `group` the forest is compact: it consists of the images of every tree by all elements of
    the group, which are all different. `trees` then has the representatives only; all that is said
    of the forest holds for the images too, without writing them out. What a `Rotation` has that
    keeps a root in place keeps its trees: they have as many images as the root.
    """

    name: str  # of the topology
    graph: CapacityGraph
    collective: Collective
    total: int
    trees: tuple[Tree, ...]
    bound: Bound | None = None
    root: int = -1  # rank number, for broadcast and reduce
    group: SymmetryGroup | None = None
    sums: str = ""  # how every part is added up, if that is prescribed: "((0+1)+2)", of ranks
    _known: list[Scan] = field(default_factory=list, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        rooted = f" with root {self.root}" if self.collective.has_root else ""
        trees = self.count
        bound = "" if self.bound is None else f", bound {self.bound.algbw} GB/s"
        what = f"{self.collective} on {self.name}{rooted}"
        return f"<Forest {what}: {self.n} ranks, {trees} trees{bound}>"

    def share(self, tree: Tree) -> Fraction:
        """The fraction of the collective's total data that `tree` carries."""
        return Fraction(tree.weight, self.total)

    @property
    def n(self) -> int:
        """Number of ranks."""
        return len(self.graph.ranks)

    @property
    def images(self) -> int:
        """How many trees each of `trees` stands for, but those of roots that stay in place."""
        return 1 if self.group is None else self.group.size

    def images_of(self, root: int) -> int:
        """How many trees each tree of a root (node) stands for."""
        return 1 if self.group is None else self.group.images_of([root])

    @property
    def count(self) -> int:
        """How many trees there are, images included."""
        return sum(self.images_of(tree.root) for tree in self.trees)

    @property
    def trees_per_root(self) -> int:
        """k: units of weight in a root's share (the largest, where shares differ).

        Where the graph gives the ranks parts of their own, per unit of a part.
        """
        weights: dict[tuple[int, Phase], int] = defaultdict(int)
        for tree in self.trees:
            weights[self.orbit(tree.root), tree.phase] += tree.weight
        return max(weights.values(), default=0) // max(self.graph.parts)

    @property
    def height(self) -> int:
        """The largest number of hops, rank to rank, between a root and a rank of its trees."""
        wrong, height, _ = self.scan()
        if wrong >= 0:
            _check_tree(self, wrong, self.trees[wrong])
        return height

    def scan(self) -> Scan:
        """What `scan` says of the trees. Nothing in a forest changes: they are looked at once."""
        if not self._known:
            self._known.append(scan(self.graph, self._with_images()))
        return self._known[0]

    def _with_images(self) -> Sequence[Tree]:
        """The trees, their weights taken once for every image."""
        if self.group is None:
            return self.trees
        return [replace(t, weight=t.weight * self.images_of(t.root)) for t in self.trees]

    def loads(self) -> list[int]:
        """Units of weight that cross each link of the graph, in the order of its links.

        A multicasting switch takes in one copy for all paths of a broadcast tree that fan out of
        it, an aggregating one sends out one sum: such a link counts once per tree.
        """
        counted = self.scan()[2]
        if counted is None:
            counted = self._loads()
        return list(counted) if self.group is None else _spread(counted, self.group)

    @property
    def links(self) -> LinkTable:
        """A row for each link: src, dst, bandwidth, load, percent; by name, exact."""
        return LinkTable.of(self.graph, self.loads(), self.total, self.algbw)

    def to_networkx(self, tree: int | None = None) -> nx.DiGraph[Any]:
        """Nodes by name, the links with their load; or the edges of one tree, rank to rank.

        Node attributes kind, rank; edge attributes bandwidth, load, percent (as in `links`), of a
        tree `path`: the names from rank to rank, in the direction of the data.
        """
        drawn = link_graph(self.graph, self.links)
        if tree is None:
            return drawn
        names = self.graph.names
        wanted = self.trees[arguments.whole("tree", tree, 0, len(self.trees) - 1)]
        drawn.clear_edges()
        drawn.remove_nodes_from([name for name, rank in drawn.nodes(data="rank") if rank is None])
        for path in wanted.edges:
            drawn.add_edge(names[path[0]], names[path[-1]], path=tuple(names[v] for v in path))
        return drawn

    def orbit(self, node: int) -> int:
        """The least node that images of `node` are at: itself where there is no group."""
        return node if self.group is None else self.group.node[node]

    def expand(self, limit: int = TREE_EDGES) -> Forest:
        """The same forest with all of its trees, roots in rank order.

        Raises UnsupportedError where they would have more than `limit` edges.
        """
        if self.group is None:
            return self
        edges = sum(self.images_of(tree.root) * len(tree.edges) for tree in self.trees)
        if edges > limit:
            raise UnsupportedError(
                f"the forest of {self.name} is compact; written out, its trees have {edges:,} "
                f"edges, more than the limit of {limit:,}: take fewer ranks, or keep the forest "
                "(--format forest)"
            )
        nodes = self.group.size * sum(len(path) for tree in self.trees for path in tree.edges)
        if nodes > PATH_NODES:
            raise UnsupportedError(
                f"the forest of {self.name} is compact; written out, its paths have {nodes:,} "
                f"nodes {PATH_NODES.note}"
            )
        trees = all_images(self.graph, self.trees, self.group)
        return replace(self, trees=tuple(trees), group=None)

    def _loads(self) -> list[int]:
        """The same with numbers of any size, and with words for a link that is missing."""
        link = self.graph.numbers
        loads = [0] * len(link)
        for number, tree in enumerate(self._with_images()):
            copies = self.graph.multicast if tree.phase == "broadcast" else self.graph.aggregation
            shared: set[tuple[int, int]] = set()
            for path in tree.edges:
                for u, v in pairwise(path):
                    if (u, v) not in link:
                        names = self.graph.names
                        raise ForestError(
                            f"tree {number}: there is no link {names[u]} -> {names[v]}"
                        )
                    if copies[v if tree.phase == "broadcast" else u]:
                        if (u, v) in shared:
                            continue
                        shared.add((u, v))
                    loads[link[u, v]] += tree.weight
        return loads

    @property
    def algbw(self) -> Fraction:
        """GB/s by nccl-tests' definition: 1 / max over links of (share crossing it / bandwidth)."""
        graph = self.graph
        pairs = set(zip(graph.capacity, self.loads(), strict=True))
        units = min((Fraction(c, load) for c, load in pairs if load), default=None)
        if units is None:
            raise ForestError("the trees cross no link at all")
        return units * graph.unit * self.total

    @property
    def plain_algbw(self) -> Fraction:
        """`algbw` where GPUs do all copying and adding, so that no load is counted once for many.

        What plans reach, but those whose instructions have a switch copy and add.
        """
        graph = self.graph
        return replace(self, graph=graph.plain).algbw if graph.copies else self.algbw


def ranges(forest: Forest) -> list[tuple[int, int]]:
    """Per tree which part of its root's data it carries, from and to in units of weight.

    Trees of a phase come one after the other.
    """
    begun: dict[tuple[int, Phase], int] = defaultdict(int)
    spans = []
    for tree in forest.trees:
        start = begun[tree.root, tree.phase]
        begun[tree.root, tree.phase] = start + tree.weight
        spans.append((start, start + tree.weight))
    return spans


def in_order(root: int, phase: Phase, edges: Sequence[Path]) -> tuple[Path, ...]:
    """The edges from the root outwards (broadcast) or from the leaves inwards (reduce).

    Edges that are in such an order already stay. Those that hang on nothing come last, so that a
    check can name them.
    """
    near, far = (0, -1) if phase == "broadcast" else (-1, 0)
    children: dict[int, list[Path]] = defaultdict(list)
    for path in edges if phase == "broadcast" else reversed(edges):
        if path:
            children[path[near]].append(path)
    order: list[Path] = []
    reached = [root]
    for node in reached:
        if node in children:
            paths = children.pop(node)
            order += paths
            reached += [path[far] for path in paths]
    if phase == "reduce":
        order.reverse()
    order += [path for path in edges if not path or path[near] in children]
    return tuple(order)


def sum_of(tree: Tree, rank_of: Mapping[int, int]) -> str:
    """How a tree of a reduce adds up, in the order of its edges: "((0+1)+2)", of ranks.

    Of two summands that with the least rank comes first.
    """
    texts = {node: (rank, str(rank)) for node, rank in rank_of.items()}
    for path in tree.edges:
        (least, one), (_, other) = sorted((texts[path[-1]], texts[path[0]]))
        texts[path[-1]] = least, f"({one}+{other})"
    return texts[tree.root][1]


def all_images(graph: CapacityGraph, trees: Sequence[Tree], group: SymmetryGroup) -> list[Tree]:
    """Every image of each tree, reduce trees first, roots in rank order; equal paths are one."""
    number, same = graph.rank_of, dict[Path, Path]()
    images: list[Tree] = []
    seen: set[tuple[int, int]] = set()  # (tree, root): what keeps a root keeps its trees
    for element in group.elements():
        for i, tree in enumerate(trees):
            root = element[tree.root]
            if (i, root) not in seen:
                seen.add((i, root))
                paths = [tuple([element[v] for v in path]) for path in tree.edges]
                edges = tuple([same.setdefault(path, path) for path in paths])
                images.append(replace(tree, root=root, edges=edges))
    images.sort(key=lambda tree: (tree.phase != "reduce", number.get(tree.root, -1)))
    return images


def check(forest: Forest) -> Fraction:
    """The forest's algbw in GB/s, once every tree is known to span and the shares to add up.

    Linear in the size of the forest. Raises ForestError with the tree and the rank that is wrong.
    (That `bound` holds is checked apart, by `certificate.check_bound`.)
    """
    if forest.total < 1:
        raise ForestError(f"total weight {forest.total}: must be at least 1")
    wrong, _, _ = forest.scan()
    if wrong >= 0:
        _check_tree(forest, wrong, forest.trees[wrong])
        raise RuntimeError(f"internal error: the kernel refuses tree {wrong}")
    if forest.group is not None:
        _check_group(forest, forest.group)
    _check_shares(forest)
    for number, tree in enumerate(forest.trees if forest.sums else ()):
        if tree.phase == "reduce" and (order := sum_of(tree, forest.graph.rank_of)) != forest.sums:
            raise ForestError(f"tree {number} adds up {order[:200]}, not {forest.sums[:200]}")
    return forest.algbw


def _check_group(forest: Forest, group: SymmetryGroup) -> None:
    """The group is what it says it is, or ForestError."""
    if forest.collective.has_root:
        raise ForestError(f"{forest.collective} has one root, so its trees have no images")
    proven = rotation_group if isinstance(group, Rotation) else symmetry_group
    if proven(forest.graph, group.generators) != group:
        raise ForestError("the group's orders and orbits are not those of its generators")
    if isinstance(group, Rotation) and (moved := trees_moved(group, forest.trees)):
        root = forest.graph.names[forest.trees[moved[0]].root]
        raise ForestError(f"tree {moved[0]}: the group keeps its root {root}, but moves it")


def trees_moved(group: Rotation, trees: Sequence[Tree]) -> list[int]:
    """The numbers of trees that are moved by a generator that keeps their roots."""
    import numpy as np

    number: dict[Path, int] = {}
    rows = [
        np.sort(np.array([number.setdefault(path, len(number)) for path in tree.edges], dtype=int))
        for tree in trees
    ]
    moved = set()
    for image in group.generators:
        to = np.array([number.get(tuple([image[v] for v in path]), -1) for path in number])
        for i, (tree, row) in enumerate(zip(trees, rows, strict=True)):
            if image[tree.root] == tree.root and not np.array_equal(np.sort(to[row]), row):
                moved.add(i)
    return sorted(moved)


def _spread(counted: Sequence[int], group: SymmetryGroup) -> list[int]:
    """Loads of the images too, `counted` once for each: a link carries its share of its orbit's."""
    total: dict[int, int] = defaultdict(int)
    members: dict[int, int] = defaultdict(int)
    for units, orbit in zip(counted, group.link, strict=True):
        total[orbit] += units
        members[orbit] += 1
    each = {orbit: units // members[orbit] for orbit, units in total.items()}
    return [each[orbit] for orbit in group.link]


def scan(graph: CapacityGraph, trees: Sequence[Tree], copying: bool = True) -> Scan:
    """(number of the first tree that is wrong or -1, height of the others, load of each link).

    The loads are None where they leave 64 bits or a path needs a link that is not there. With
    `copying` they count copies and sums in the switches once, as `Forest.loads` says.
    """
    no = (False,) * graph.n
    wrong, height, loads = _kernel.scan_trees(
        *graph.wires,
        graph.ranks,
        graph.multicast if copying else no,
        graph.aggregation if copying else no,
        [tree.root for tree in trees],
        [tree.phase == "reduce" for tree in trees],
        [max(0, min(tree.weight, CAPACITY_LIMIT)) for tree in trees],
        [tree.edges for tree in trees],
    )
    if any(tree.weight >= CAPACITY_LIMIT for tree in trees):
        loads = None
    return wrong, height, loads


def _check_tree(forest: Forest, number: int, tree: Tree) -> None:
    graph, names = forest.graph, forest.graph.names
    ranks = set(graph.ranks)
    where = f"tree {number} (root {names[tree.root]})"
    if tree.root not in ranks:
        raise ForestError(f"{where}: the root is no rank")
    if tree.weight < 1:
        raise ForestError(f"{where}: weight {tree.weight}, must be at least 1")
    for path in tree.edges:
        if len(path) < 2:
            raise ForestError(f"{where}: a path needs two ends, got {[names[v] for v in path]}")
        for end in (path[0], path[-1]):
            if end not in ranks:
                raise ForestError(f"{where}: a path ends at {names[end]}, which is no rank")
        for inner in path[1:-1]:
            if inner in ranks:
                raise ForestError(f"{where}: a path passes through rank {names[inner]}")
    depth = _depths(forest, number, tree)
    if len(depth) < len(ranks):
        lost = next(names[v] for v in graph.ranks if v not in depth)
        raise ForestError(f"{where}: does not reach {lost}")


def _depths(forest: Forest, number: int, tree: Tree) -> dict[int, int]:
    """Hops from the root for every rank reached; ForestError if one is reached twice."""
    children: dict[int, list[int]] = defaultdict(list)
    seen = {tree.root}
    for path in tree.edges:
        src, dst = (path[0], path[-1]) if tree.phase == "broadcast" else (path[-1], path[0])
        if dst in seen:
            names = forest.graph.names
            raise ForestError(
                f"tree {number} (root {names[tree.root]}): {names[dst]} is reached twice"
            )
        seen.add(dst)
        children[src].append(dst)
    depth = {tree.root: 0}
    queue = [tree.root]
    for u in queue:
        for v in children[u]:
            depth[v] = depth[u] + 1
            queue.append(v)
    return depth


def _check_shares(forest: Forest) -> None:
    """The shares add up to what the collective asks for, or ForestError."""
    names, collective = forest.graph.names, forest.collective
    sums: dict[tuple[int, Phase], int] = defaultdict(int)
    for tree in forest.trees:
        sums[forest.orbit(tree.root), tree.phase] += tree.weight

    def share(weight: int) -> Fraction:
        return Fraction(weight, forest.total)

    for _, phase in sums:
        if phase not in collective.phases:
            raise ForestError(f"{collective} has no {phase} trees, the file has some")
    if collective.has_root:
        _check_root(forest, {root for (root, _), weight in sums.items() if weight})
    elif collective.has_parts or forest.graph.shares:
        whole = sum(forest.graph.parts)
        each = zip(forest.graph.ranks, forest.graph.parts, strict=True)
        for (r, part), phase in product(each, collective.phases):
            weight = sums[forest.orbit(r), phase]
            if weight * whole != part * forest.total:
                raise ForestError(
                    f"the shares of root {names[r]} add up to {share(weight)}, "
                    f"not {Fraction(part, whole)}"
                )
        return
    for phase in collective.phases:
        added = share(sum(forest.images_of(v) * w for (v, p), w in sums.items() if p == phase))
        if added != 1:
            raise ForestError(f"the shares of the {phase} trees add up to {added}, not 1")
    if collective.two_phases:
        for r in forest.graph.ranks:
            there, back = (sums[forest.orbit(r), p] for p in ("reduce", "broadcast"))
            if there != back:
                raise ForestError(
                    f"{names[r]} reduces the share {share(there)} but broadcasts {share(back)}"
                )


def _check_root(forest: Forest, roots: set[int]) -> None:
    names, collective = forest.graph.names, forest.collective
    expected = {forest.graph.ranks[forest.root]} if 0 <= forest.root < forest.n else set()
    if roots != expected:
        raise ForestError(
            f"{collective} has one root, {' '.join(names[r] for r in expected) or '?'}; "
            f"the trees have {', '.join(sorted(names[r] for r in roots))}"
        )
