"""Single failures of a topology: every cable, adapter, GPU and switch that can go down.

A failure is stated as what `--without` and `--scale` of the command line take, so that any other
command can be run on the topology that is left. One cable of several parallel ones slows their
link; the last one takes the link away. Of nodes that a topology has merged, one fails: the first
that they stand for, by whose name the failure is stated; what is left of their links they share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from os.path import commonprefix
from typing import Literal, NamedTuple, get_args

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.group import DisjointSets
from forestcoll.graph.symmetry.quotient import ALIKE_FROM, find_rotations
from forestcoll.solver.routes.fabric import Fabric
from forestcoll.topology import Link, Topology
from forestcoll.topology.alike import first_names
from forestcoll.topology.edit import Scale, edit
from forestcoll.topology.globs import matcher

Kind = Literal["link", "adapter", "gpu", "switch", "plane"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Arc = tuple[str, str]


class Failure(NamedTuple):
    """One thing that fails.

    `left`: GB/s that each directed link it touches has afterwards, by the ids of its ends.
    `copies`: parallel cables of which any one may be meant.
    """

    kind: Kind
    name: str
    left: tuple[tuple[Arc, Fraction], ...]
    without: tuple[str, ...] = ()
    scale: tuple[Scale, ...] = ()
    node: str | None = None  # the GPU or switch that is gone
    copies: int = 1

    @property
    def options(self) -> str:
        """The options that make any command see this failure: `--without 'a<->b'`."""
        words = [f"--without '{pattern}'" for pattern in self.without]
        words += [f"--scale '{change.pattern}={change.factor}'" for change in self.scale]
        return " ".join(words)

    def apply(self, topology: Topology) -> Topology:
        """`topology` after the failure. Raises TopologyError where no GPU is left."""
        return edit(topology, self.without, self.scale)


def list_failures(topology: Topology, kinds: Iterable[Kind] = KINDS) -> list[Failure]:
    """Every single failure of these kinds, kind by kind, in the order of the topology.

    An adapter is all cables between one node of a box and the world outside the box. A cable that
    is all there is to an adapter is listed as the adapter alone (as a link where adapters are not
    asked for). The last GPU of a topology is no failure: nothing would be left.
    """
    wanted = set(kinds)
    bandwidth = topology.rates()
    failures: dict[Kind, list[Failure]] = {kind: [] for kind in KINDS}
    ports: dict[str, list[Link]] = defaultdict(list)  # by node of a box, of links that leave it
    for link in topology.links:
        ends = [(end, end.rpartition("/")[0]) for end in (link.src, link.dst)]
        if ends[0][1] != ends[1][1]:
            for end, box in ends:
                if box:
                    ports[end].append(link)
    first = (
        {} if topology.merged is None else {v: k for k, v in first_names(topology.nodes).items()}
    )
    sizes = {} if topology.merged is None else topology.merged.sizes()
    if "adapter" in wanted:
        for port, links in ports.items():
            others = dict.fromkeys(link.dst if link.src == port else link.src for link in links)
            gone = dict.fromkeys(arc for link in links for arc in link.directions())
            without = tuple(f"{port}<->{other}" for other in others)
            left = tuple((arc, Fraction(0)) for arc in gone)
            adapter = Failure("adapter", f"{port}'s network adapter", left, without)
            failures["adapter"].append(adapter)
    if "link" in wanted:
        lone = {id(links[0]) for links in ports.values() if len(links) == 1 == links[0].count}
        for link in topology.links:
            if "adapter" not in wanted or id(link) not in lone:
                failures["link"].append(_cable(link, bandwidth, first))
    arcs: dict[str, list[Arc]] = defaultdict(list)
    for arc in bandwidth:
        for end in arc:
            arcs[end].append(arc)
    several = len(topology.gpus) > 1
    for name, node in topology.nodes.items():
        if node.kind in wanted and (node.kind == "switch" or several):
            alike, called = sizes.get(name, 1), first.get(name, name)
            left = tuple((arc, bandwidth[arc] * (alike - 1) / alike) for arc in arcs[name])
            lost = name if alike == 1 else None
            failure = Failure(node.kind, called, left, (called,), node=lost, copies=alike)
            failures[node.kind].append(failure)
    if "plane" in wanted:
        failures["plane"] = [*_planes(topology, bandwidth)]
    merged: dict[object, Failure] = {}  # those that leave the same links are one that counts them
    for failure in (failure for kind in KINDS for failure in failures[kind]):
        key = failure.kind, frozenset(failure.left), failure.node
        if key in merged:
            failure = merged[key]._replace(copies=merged[key].copies + failure.copies)
        merged[key] = failure
    return list(merged.values())


def _planes(topology: Topology, bandwidth: Mapping[Arc, Fraction]) -> Iterator[Failure]:
    """Each of several planes whole, if it is more than a switch."""
    try:
        fabric = Fabric(topology, topology)
    except UnsupportedError:
        return
    of = {node: fabric.planes_of(node) for node in fabric.form}
    switches: dict[int, list[str]] = defaultdict(list)
    for name, (form, values) in fabric.switches.items():
        switches[fabric.plane(form, values)].append(name)
    for plane, names in switches.items() if len(switches) > 1 else ():
        glob = commonprefix(names) + "*"  # noqa: RUF071 (character by character is meant)
        others = [n for p, ns in switches.items() if p != plane for n in ns]
        others += topology.nodes.keys() - of.keys()
        alone = len(glob) > 1 and not any(map(matcher(glob), others))
        left = tuple(
            (arc, rate * (len(planes) - 1) / len(planes))
            for arc, rate in bandwidth.items()
            if plane in (planes := of.get(arc[0]) or of.get(arc[1], []))
        )
        if len(names) > 1:
            yield Failure("plane", f"plane of {names[0]}", left, (glob,) if alone else tuple(names))


def _cable(link: Link, bandwidth: dict[Arc, Fraction], first: Mapping[str, str]) -> Failure:
    """One of the link's cables; `first`: what merged nodes stand for first."""
    left = {arc: bandwidth[arc] - link.bandwidth for arc in link.directions()}
    if link.src in first or link.dst in first:
        ends = [first.get(end, end) for end in (link.src, link.dst)]
        name, without = "-".join(ends), ("<->".join(ends),)
        return Failure("link", name, tuple(left.items()), without, copies=link.count)
    shares = {arc: rest / bandwidth[arc] for arc, rest in left.items()}
    patterns: dict[str, Fraction] = {f"{src}->{dst}": part for (src, dst), part in shares.items()}
    if len(shares) == 2 and len(set(shares.values())) == 1:
        patterns = {f"{link.src}<->{link.dst}": next(iter(shares.values()))}
    arrow = "->" if link.oneway else "-"
    return Failure(
        "link",
        f"{link.src}{arrow}{link.dst}" + (f", one of {link.count}" if link.count > 1 else ""),
        tuple(left.items()),
        tuple(pattern for pattern, part in patterns.items() if not part),
        tuple(Scale(pattern, part) for pattern, part in patterns.items() if part),
        copies=link.count,
    )


def classes(
    graph: CapacityGraph, failures: Sequence[Failure], root: int | None = None
) -> list[int]:
    """Per failure the number of the first one of its class: those that a symmetry maps onto it.

    What is optimal after one failure of a class is as fast after every other, so one member is
    solved for all. Each symmetry is checked link by link; a failure that none moves is a class of
    its own, so a fabric without any is only slower.

    `graph`: the whole fabric before any failure, with the ranks of the collective. `root`: a rank
    number; only symmetries that leave that rank where it is count.
    """
    number = graph.node_of
    keys = []
    for failure in failures:
        arcs = frozenset(
            (number[u], number[v], left)
            for (u, v), left in failure.left
            if u in number and v in number
        )
        keys.append((None if failure.node is None else number.get(failure.node), arcs))
    place = {key: i for i, key in enumerate(keys)}
    union = DisjointSets(len(failures))
    for i, key in enumerate(keys):
        union.join(place[key], i)
    fixed = None if root is None else graph.ranks[root]
    if len(graph.ranks) > ALIKE_FROM:
        images = find_rotations(graph, fixed, tiers=True)
    else:
        images = tuple(s.image for s in find_symmetries(graph) if not s.turned)
    for image in images:
        if fixed is not None and image[fixed] != fixed:
            continue
        for (node, arcs), i in place.items():
            mapped = frozenset((image[u], image[v], left) for u, v, left in arcs)
            other = place.get((None if node is None else image[node], mapped))
            if other is not None:
                union.join(i, other)
    return union.roots()
