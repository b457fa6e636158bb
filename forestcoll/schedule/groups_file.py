"""Several groups at once as a file: what their forests have in common, and the proof (exact).

The forests lie beside it, one file a group, each on the bandwidth that is reserved for it. This
file holds the machine that they share, names them, and says what no common algbw exceeds:

    format      "forestcoll.groups/1"
    collective  as in forest files: that of the first group, and of all that state none
    relays      "none", "idle" or "all": which GPUs a group may pass data through
    topology    the whole machine, as in forest files
    groups      [{"ranks": [id, ...], "root": id (rooted collectives), "forest": file name,
                 "collective": another than the file's, "weight": "1"}, ...]
    algbw       GB/s that every group reaches, times its weight, while all of them run
    bound       {"algbw", "cuts": [{"group", "phase", "nodes", "weight"}, ...],
                 "potentials": [{"group", "phase", "node", "potential"}, ...],
                 "symmetries": [{"image": {id: id}, "groups": [number, ...], "turned"}, ...]};
                 `schedule.dual` says what that proves, and why

Numbers are exact, as strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import Field

from forestcoll.common.errors import ForestError, TopologyError, UnsupportedError
from forestcoll.common.text_file import Block, Rows, dump_block
from forestcoll.graph.capacity_graph import Relays
from forestcoll.program import Collective
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.forest import Forest, Phase, Symmetry
from forestcoll.schedule.forest_file.model import Carried, Exact, Model, TopologyModel
from forestcoll.schedule.forest_file.reading import (
    check_cost,
    graph_of,
    node_finder,
    parse_model,
)
from forestcoll.schedule.group import (
    Group,
    GroupsBound,
    Together,
    WeighedCut,
    check_together,
    view_groups,
)
from forestcoll.topology.numbers import common_denominator

FORMAT = "forestcoll.groups/1"
SUFFIX = ".groups.json"


class GroupModel(Model):
    ranks: list[str]
    root: str | None = None
    forest: str
    collective: Carried | None = None
    weight: Exact = "1"


class CutModel(Model):
    group: int
    phase: Phase
    nodes: list[str]
    weight: Exact


class PotentialModel(Model):
    group: int
    phase: Phase
    node: str
    potential: Exact


class SymmetryModel(Model):
    """A map of the nodes (ids left out stay) and groups: group g becomes group groups[g]."""

    image: dict[str, str]
    groups: list[int]
    turned: bool = False  # links are turned round, phases trade places


class BoundModel(Model):
    algbw: Exact
    cuts: list[CutModel]
    potentials: list[PotentialModel] = Field(default_factory=list)
    symmetries: list[SymmetryModel] = Field(default_factory=list)


class GroupsModel(Model):
    """A groups file."""

    format: Literal["forestcoll.groups/1"]
    collective: Carried
    relays: Relays
    topology: TopologyModel
    groups: list[GroupModel]
    algbw: Exact
    bound: BoundModel


@dataclass(frozen=True, slots=True)
class Proof:
    """What `verify` found: the common algbw and its bound in GB/s, and the forests."""

    together: Together
    algbw: Fraction
    bound: Fraction


def dumps(done: Together, name: str, files: Sequence[str]) -> str:
    """The file: the same groups give the same bytes. `files[g]` holds group g's forest."""
    names, n, first = done.machine.names, done.machine.n, done.collectives[0]
    groups: list[object] = []
    for group, file in zip(done.groups, files, strict=True):
        ranks = group.graph.rank_names
        rooted = {"root": ranks[group.root]} if group.collective.has_root else {}
        other = {"collective": group.collective.value} if group.collective is not first else {}
        more = {"weight": str(group.weight)} if group.weight != 1 else {}
        groups.append({"ranks": ranks, **rooted, "forest": file, **other, **more})
    cuts = [
        {
            "group": cut.group,
            "phase": cut.phase,
            "nodes": [names[v] for v in sorted(cut.side)],
            "weight": str(cut.weight),
        }
        for cut in done.bound.cuts
    ]
    potentials = [
        {"group": g, "phase": phase, "node": names[v], "potential": str(p)}
        for g, phase, v, p in done.bound.potentials
    ]
    symmetries = [
        {
            "image": forest_file.moves(names, s.image[:n]),
            "groups": [to - n for to in s.image[n:]],
            "turned": s.turned,
        }
        for s in done.bound.symmetries
    ]
    bound = Block(
        algbw=str(done.bound.algbw),
        cuts=_rows(cuts),
        potentials=_rows(potentials),
        symmetries=_rows(symmetries),
    )
    block = Block(
        format=FORMAT,
        collective=first.value,
        relays=done.relays,
        topology=forest_file.topology_block(name, done.machine),
        groups=_rows(groups),
        algbw=str(done.algbw),
        bound=bound,
    )
    return dump_block(block)


def _rows(items: Iterable[object]) -> Rows:
    return Rows(map(json.dumps, items), 3)


def verify(text: str, source: str) -> Proof:
    """What a groups file and the forests beside it prove, everything recomputed from the links.

    Every forest is checked by itself, then that all of them fit the machine at the algbw that the
    file states, then the bound. Raises ForestError with the reason.
    """
    model = parse_model(GroupsModel, "groups", text, source)
    try:
        files = {name: _forest(name, source) for name in {g.forest: None for g in model.groups}}
        done = _together(model, [files[group.forest] for group in model.groups])
        for forest in files.values():
            certificate.check(forest)
        check_together(done)
        proven = check_groups_bound(done.machine, done.groups, done.bound)
        if proven != done.bound.algbw:
            raise ForestError(f"states bound {done.bound.algbw}, its cuts give {proven}")
        if done.algbw > proven:
            raise ForestError(f"algbw {done.algbw} is above the bound {proven}: one is wrong")
    except (ForestError, TopologyError, UnsupportedError) as error:
        message = str(error)
        raise ForestError(message if source in message else f"{source}: {message}") from None
    return Proof(done, done.algbw, proven)


def _forest(name: str, source: str) -> Forest:
    """The forest beside the groups file `source`; names that lead elsewhere are refused."""
    if Path(name).name != name or name in (".", ".."):
        raise ForestError(f"forest {name!r} is not the name of a file in the same directory")
    path = Path(source).parent / name
    return forest_file.load(path)


def _together(model: GroupsModel, forests: Sequence[Forest]) -> Together:
    gpus = [node.id for node in model.topology.nodes if node.kind == "gpu"]
    machine = graph_of(model.topology, gpus)
    if not model.groups:
        raise ForestError("groups: there is none")
    node = node_finder(machine)
    for g, group in enumerate(model.groups):
        if not set(group.ranks) <= set(gpus):
            odd = min(set(group.ranks) - set(gpus))
            raise ForestError(f"groups[{g}]: {odd!r} is no GPU of the topology")
    groups = [[node(name) for name in group.ranks] for group in model.groups]
    kinds = [group.collective or model.collective for group in model.groups]
    roots = [_root(*each, g) for g, each in enumerate(zip(kinds, model.groups, strict=True))]
    shares = [Fraction(group.weight) for group in model.groups]
    if min(shares) <= 0:
        raise ForestError(f"groups[{shares.index(min(shares))}]: its weight is not above 0")
    common_denominator(shares)
    check_cost(machine, len(groups), 0, "groups")
    views = view_groups(machine, groups, roots, model.relays, kinds, shares)
    _check_forests(views, forests)
    cuts, potentials = model.bound.cuts, model.bound.potentials
    check_cost(machine, len(cuts), 2 * len(views) * len(model.bound.symmetries), "bound")
    weights = [*(cut.weight for cut in cuts), *(p.potential for p in potentials)]
    common_denominator(map(Fraction, weights))
    bound = GroupsBound(
        algbw=Fraction(model.bound.algbw),
        cuts=tuple(
            WeighedCut(c.group, c.phase, frozenset(map(node, c.nodes)), Fraction(c.weight))
            for c in model.bound.cuts
        ),
        potentials=tuple(
            (p.group, p.phase, node(p.node), Fraction(p.potential)) for p in model.bound.potentials
        ),
        symmetries=tuple(_symmetry(s, machine.n, node) for s in model.bound.symmetries),
    )
    algbw = Fraction(model.algbw)
    return Together(machine, tuple(views), model.relays, algbw, tuple(forests), bound)


def _symmetry(model: SymmetryModel, n: int, node: Callable[[str], int]) -> Symmetry:
    """The map of nodes and groups; that it is one is checked with the bound."""
    image = list(range(n))
    for v, to in model.image.items():
        image[node(v)] = node(to)
    return Symmetry((*image, *(n + g for g in model.groups)), model.turned)


def _root(collective: Collective, group: GroupModel, g: int) -> int:
    """The root's rank number; 0 where the collective has none."""
    if not collective.has_root:
        if group.root is not None:
            raise ForestError(f"groups[{g}]: {collective} has no root")
        return 0
    if group.root not in group.ranks:
        raise ForestError(f"groups[{g}].root: {group.root!r} is none of its ranks")
    return group.ranks.index(group.root)


def _check_forests(views: Sequence[Group], forests: Sequence[Forest]) -> None:
    """The forests are of this collective and these roots, and keep to what their groups may use."""
    for g, (group, forest) in enumerate(zip(views, forests, strict=True)):
        if forest.collective is not group.collective:
            raise ForestError(f"groups[{g}]: its forest is of {forest.collective}")
        if group.collective.has_root and forest.root != group.root:
            raise ForestError(f"groups[{g}]: its forest has another root")
        names = group.graph.names
        ends = group.graph.ends
        allowed = {(names[u], names[v]) for u, v in ends}
        own = forest.graph.names
        for u, v in forest.graph.ends:
            if (own[u], own[v]) not in allowed:
                raise ForestError(
                    f"groups[{g}]: its forest uses {own[u]} -> {own[v]}, which the group has not"
                )
