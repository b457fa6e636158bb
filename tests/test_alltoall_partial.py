"""Routes under groups that keep some ranks in place: equal boxes beside broken ones."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, dgx_a100, ring
from stranger_alltoall import judge

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry import group as symmetry_groups
from forestcoll.graph.symmetry.group import (
    AbelianGroup,
    SymmetryGroup,
    abelian_group,
    commuting_group,
)
from forestcoll.lower.alltoall.lowering import write_out
from forestcoll.solver.alltoall import file, rounding
from forestcoll.solver.alltoall.demand import Demand, uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.fold import fold
from forestcoll.solver.alltoall.rounding import partial_group, restrict
from forestcoll.solver.alltoall.routes import Route, Routes, check
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit


def broken(name: str, boxes: int, *out: str) -> Optimum:
    topology = edit(catalog.load(name, {"boxes": boxes}), out, [])
    return solve(uniform(topology))


def compact(best: Optimum, units: int) -> Routes:
    """The routes as they are made where listing every path is out of reach."""
    group = partial_group(best.demand.graph, best.folding)
    assert group is not None
    net = rounding._Net(best, group)
    found = net.round(net.solve(), units)
    check(found)
    return found


@pytest.mark.parametrize(
    ("name", "boxes", "out", "units", "size"),
    [
        ("dgx-a100", 4, ("box0/gpu0-fabric",), 7, 24),
        ("dgx-a100", 6, ("box0/gpu0-fabric", "box1/gpu0-fabric"), 4, 64),
        ("dgx-a100", 4, ("box2/gpu3-box2/nvswitch",), 1, 24),
        ("mi250", 4, ("box0/gpu0-fabric",), 2, 6),
    ],
)
def test_every_pair_has_its_units(
    name: str, boxes: int, out: tuple[str, ...], units: int, size: int
) -> None:
    """A stranger writes all images out; so do plans."""
    best = broken(name, boxes, *out)
    found = compact(best, units)
    assert found.images == size
    assert len(found.routes) < found.total
    text = file.dumps(found, "x")
    assert judge(json.loads(text)) == (found.algbw, best.algbw)
    again = file.loads(text)[0]
    assert isinstance(again, Routes)
    assert (again.routes, again.algbw) == (found.routes, found.algbw)
    assert file.dumps(again, "x") == text
    sent: dict[tuple[int, int], list[int]] = {}
    for flow in write_out(found):
        pair = flow.ranks[0], flow.ranks[-1]
        sent.setdefault(pair, []).extend(range(flow.first, flow.first + flow.count))
    ranks = len(best.demand.graph.ranks)
    assert len(sent) == ranks * (ranks - 1)
    assert all(sorted(numbers) == list(range(units)) for numbers in sent.values())


def test_a_nic_out_of_1024_gpus() -> None:
    """Seven units, one for each NIC that is left, are the optimum; about a path a pair."""
    best = broken("dgx-a100", 128, "box0/gpu0-fabric")
    found = rounding.route(best)
    assert found.algbw == best.algbw == Fraction(2800, 127)
    assert (found.units, found.images) == (7, 1016)
    assert len(found.routes) < 1200
    text = file.dumps(found, "x")
    assert len(text) < 600_000
    read, _, proven = file.loads(text)
    assert read.algbw == proven == best.algbw


@pytest.mark.slow
def test_three_nics_out_of_1024_gpus() -> None:
    best = broken("dgx-a100", 128, *(f"box{b}/gpu0-fabric" for b in range(3)))
    found = rounding.route(best)
    assert found.algbw >= Fraction(99, 100) * best.algbw
    assert (found.images, len(found.routes) < 1500) == (3000, True)
    assert file.loads(file.dumps(found, "x"))[0].algbw == found.algbw


def test_small_fabrics_are_listed_as_before() -> None:
    found = rounding.route(broken("dgx-a100", 4, "box0/gpu0-fabric"))
    assert found.group is None


# --- groups ---------------------------------------------------------------------------------------


def star(leaves: int) -> CapacityGraph:
    return build([("hub", f"leaf{i}", 1) for i in range(leaves)])


def turn(graph: CapacityGraph, names: list[str]) -> tuple[int, ...]:
    """The symmetry that takes each of the names to the next."""
    image = list(range(graph.n))
    for a, b in zip(names, names[1:] + names[:1], strict=True):
        image[graph.names.index(a)] = graph.names.index(b)
    return tuple(image)


def test_images_of_paths_and_pairs() -> None:
    graph = star(5)
    hub, a, b, c, d, e = (graph.names.index(n) for n in ("hub", *(f"leaf{i}" for i in range(5))))
    group = abelian_group(
        graph, [turn(graph, ["leaf0", "leaf1", "leaf2"]), turn(graph, ["leaf3", "leaf4"])]
    )
    assert group.size == 6
    assert [group.images_of(nodes) for nodes in ([hub], [a], [d], [a, hub, d])] == [1, 3, 2, 6]
    assert sorted(group.images((a, hub, b))) == sorted([(a, hub, b), (b, hub, c), (c, hub, a)])
    assert group.least_images(a)[d] == group.least_images(a)[e] == min(d, e)
    assert group.least_images(hub)[c] == min(a, b, c)
    assert sorted(group.fixed_nodes((d,))) == sorted((hub, d, e))
    assert set(group.elements()) == {tuple(row) for row in group.table.tolist()}


def test_groups_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = star(4)
    first, second = turn(graph, ["leaf0", "leaf1"]), turn(graph, ["leaf1", "leaf2"])
    with pytest.raises(ForestError, match="generators 0 and 1 do not commute"):
        abelian_group(graph, [first, second])
    with pytest.raises(
        ForestError, match="generator 0 maps hub to leaf0, which is of another kind"
    ):
        abelian_group(
            replace(graph, ranks=graph.ranks[1:], gpu=(False, *graph.gpu[1:])),
            [turn(graph, ["hub", "leaf0"])],
        )
    limit = symmetry_groups.GROUP_STEPS.__class__(8, "GROUP_STEPS")
    monkeypatch.setattr(symmetry_groups, "GROUP_STEPS", limit)
    with pytest.raises(ForestError, match=r"over 1 elements on 5 nodes \(input limit GROUP_STEPS"):
        abelian_group(graph, [first])


def test_groups_that_move_every_rank_stay_what_they_are() -> None:
    graph = ring(4)
    around = tuple((v + 1) % 4 for v in range(4))
    assert isinstance(commuting_group(graph, [around]), SymmetryGroup)
    assert isinstance(commuting_group(star(3), [turn(star(3), ["leaf0", "leaf1"])]), AbelianGroup)


def test_the_part_without_the_others() -> None:
    graph = dgx_a100(3)
    ranks = [v for v in graph.ranks if graph.box(v) != "box1"]
    kept, part = restrict(graph, ranks)
    assert len(part.ranks) == 16
    assert all(graph.box(v) != "box1" for v in kept)
    assert [graph.names[v] for v in kept] == list(part.names)
    assert partial_group(ring(4), fold(Demand(ring(4)))) is not None


# --- files that are wrong -------------------------------------------------------------------------


def written() -> dict[str, object]:
    found = compact(broken("dgx-a100", 4, "box0/gpu0-fabric"), 7)
    data: dict[str, object] = json.loads(file.dumps(found, "x"))
    return data


def test_a_missing_path_is_found() -> None:
    data = written()
    paths = data["routes"]["paths"]  # type: ignore[index]
    last = paths.pop()
    with pytest.raises(ForestError, match=r"routes: \d units from .* not 7"):
        file.loads(json.dumps(data))
    with pytest.raises(AssertionError):
        judge(data)
    paths += [last, last]
    with pytest.raises(ForestError, match=r"routes: \d+ units from .* not 7"):
        file.loads(json.dumps(data))


def test_images_of_one_pair_are_counted() -> None:
    """A pair that stays in place, over a rank that moves: each image is one more path of it."""
    graph = build([(u, v, 1) for u in ("a", "b") for v in ("y", "z")])
    a, b, y, z = (graph.names.index(name) for name in "abyz")
    group = abelian_group(graph, [turn(graph, ["y", "z"])])
    ways = [(a, y, b), (b, y, a), (a, y), (y, a), (b, y), (y, b), (y, a, z), (y, b, z)]
    units = [1, 1, 2, 2, 2, 2, 1, 1]
    routes = tuple(Route(path, count) for path, count in zip(ways, units, strict=True))
    found = Routes(solve(Demand(graph)), group, 2, routes)
    assert check(found) == found.algbw == found.optimum.algbw
    assert judge(json.loads(file.dumps(found, "x"))) == (found.algbw, found.algbw)
    twice = replace(found, routes=(Route((a, y, b), 2), *routes[1:]))
    with pytest.raises(ForestError, match="routes: 4 units from a to b, not 2"):
        check(twice)
