"""Pinned routes: colours of spines, loads, addresses, files, and the walk that proves them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from fractions import Fraction
from ipaddress import IPv6Address
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from graphs import machine

from forestcoll.common.errors import ForestCollError, InfeasibleError, PlanError, UnsupportedError
from forestcoll.compile.problem import Problem
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule import forest_file
from forestcoll.solver import solve
from forestcoll.solver.compact.forests import solve_compact
from forestcoll.solver.routes.edges import Edges, collect
from forestcoll.solver.routes.fabric import Fabric
from forestcoll.solver.routes.repair import repair
from forestcoll.solver.routes.segments import edges_with_ways, segments_of
from forestcoll.solver.routes.spread import hash_flows, loads, spread
from forestcoll.study.routes import Pinned, mend, pin, read
from forestcoll.topology import Topology
from forestcoll.topology.catalog import load
from forestcoll.topology.edit import edit
from forestcoll.topology.file import loads_topology
from forestcoll.ui.export.segments import Book, check_loads, earlier, read_back
from forestcoll.verify.segments import address, read_sonic, walk

ALL = ("json", "sonic", "frr", "ip", "evs")
SMALL = {"planes": "2", "leaves": "3", "spines": "3", "hosts": "3", "gpus": "1"}


def colours_of(edges: list[tuple[int, int]], colours: int) -> list[int]:
    right = 1 + max(left for left, _ in edges)
    ends = [u for u, _ in edges], [right + v for _, v in edges]
    return _kernel.colour_edges(1 + max(ends[1]), *ends, colours)


@pytest.mark.parametrize("seed", range(12))
def test_no_leaf_has_more_of_a_colour_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    colours = rng.choice([1, 2, 3, 5, 8, 13])
    edges = [(rng.randrange(6), rng.randrange(7)) for _ in range(rng.randrange(1, 200))]
    spines = colours_of(edges, colours)
    for side in (0, 1):
        degree = Counter(edge[side] for edge in edges)
        for (node, _), count in Counter(
            (edge[side], c) for edge, c in zip(edges, spines, strict=True)
        ).items():
            assert count <= -(-degree[node] // colours)


def test_131072_flows_have_a_link_of_their_own() -> None:
    rng = random.Random(1)
    sources = [leaf for leaf in range(512) for _ in range(256)]
    targets = sources[:]
    rng.shuffle(targets)
    spines = colours_of(list(zip(sources, targets, strict=True)), 256)
    assert len(set(zip(sources, spines, strict=True))) == 131_072
    assert len(set(zip(targets, spines, strict=True))) == 131_072


def test_colours_of_what_is_no_bipartite_graph_are_refused() -> None:
    for ends, colours, said in (
        (([0, 1], [1, 0]), 2, "both sides"),
        (([0], [2]), 2, "an unknown node"),
        (([0], [1, 1]), 2, "two ends"),
        (([0], [1]), 0, "needs a colour"),
    ):
        with pytest.raises(ValueError, match=said):
            _kernel.colour_edges(2, *ends, colours)


def permutation(topology: Topology, seed: int) -> Edges:
    """Every GPU sends one flow to a GPU at another leaf, over merged switches."""
    graph = CapacityGraph.from_topology(topology)
    number, rng = graph.node_of, random.Random(seed)
    leaf = {u: v for u, v in graph.ends if graph.gpu[u]}
    targets = list(graph.ranks)
    rng.shuffle(targets)
    spine = number["plane0.spine0.." + str(len(targets) // 8 - 1)]
    paths = [
        (((u, leaf[u], spine, leaf[v], v),), 1, False)
        for u, v in zip(graph.ranks, targets, strict=True)
        if leaf[u] != leaf[v]
    ]
    return collect(graph, paths, 1)


@pytest.mark.parametrize(
    ("uplinks", "shares"),
    [(8, {1: 29, 4: 45, 16: 59, 32: 71, 128: 84}), (64, {1: 20, 4: 36, 16: 55, 32: 63})],
)
def test_static_hashing_collides_and_pinned_flows_do_not(
    uplinks: int, shares: dict[int, int]
) -> None:
    """Of the slowest of a permutation over 8 leaves; a few draws, so a few percent to each side."""
    size = str(uplinks)
    shape = {"planes": "1", "leaves": "8", "spines": size, "hosts": size, "gpus": "1"}
    topology = load("multi-plane-clos", shape)
    edges = permutation(topology, 1)
    pinned = spread(Fabric(topology, topology), edges, "flows")
    assert loads(pinned).most_flows == 1
    assert loads(pinned).slowest()[0] == Fraction(25, 2)
    for pairs, share in shares.items():
        draws = [loads(hash_flows(pinned, pairs, k)).slowest()[0] for k in range(6)]
        assert abs(float(sum(draws) / 6 / Fraction(25, 2)) * 100 - share) <= 7


def pinned(by: str = "flows", *without: str, **more: str) -> tuple[Pinned, dict[str, str]]:
    whole = load("multi-plane-clos", SMALL | more)
    left = edit(whole, without)
    problem = Problem.of(left, Collective.ALLGATHER)
    forest = solve(problem.graph, Collective.ALLGATHER, name=left.name)
    sent = read(forest_file.dumps(forest), "x", left)
    routes = pin(sent, whole, left, by, 1)  # type: ignore[arg-type]
    return routes, dict(Book.of(routes).files(ALL))


SHAPES: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    ("flows", (), {}),
    ("shares", (), {}),
    ("flows", ("plane1.spine2",), {}),
    ("shares", ("plane0.leaf1-plane0.spine2", "box0/gpu0-plane1.leaf0"), {}),
    ("flows", (), {"merge": "0"}),
    ("flows", (), {"leaves": "2", "pods": "2", "hosts": "1", "gpus": "2", "cores": "2"}),
    ("flows", ("plane0.pod1.spine1",), {"leaves": "2", "pods": "2", "hosts": "1", "cores": "2"}),
    ("flows", (), {"leaves": "4", "gpus": "2", "hosts": "1", "rails": "1"}),
]


@pytest.mark.parametrize(("by", "without", "more"), SHAPES)
def test_every_address_comes_off_where_it_should(
    by: str, without: tuple[str, ...], more: dict[str, str]
) -> None:
    routes, files = pinned(by, *without, **more)
    fabric = routes.loads.spreading.fabric
    walked, parts = read_back(files, fabric)
    check_loads(walked, parts, routes.loads)
    assert walked.addresses == sum(len(w.planes) for edge in routes.edges for w in edge.ways)
    if by == "shares":  # what the solver gave merged links, exactly
        assert routes.loads.slowest()[0] >= routes.sent.algbw
    by_hand = walk_by_hand(files)
    assert by_hand == walked.hops or parts > 1
    for edge in routes.edges:
        assert sum(way.weight for way in edge.ways) == edge.weight


@pytest.mark.parametrize("shape", [{"spines": "4", "gpus": "2"}, {"pods": "2", "hosts": "1"}])
def test_spare_colourings_serve_whatever_spines_are_gone(shape: dict[str, str]) -> None:
    whole = load("multi-plane-clos", SMALL | {"planes": "1"} | shape)
    graph = CapacityGraph.from_topology(whole)
    forest = solve(graph, Collective.ALLGATHER, name=whole.name)
    sent = read(forest_file.dumps(forest), "x", whole)
    pinned = pin(sent, whole, whole, "flows", 1, 2)
    fabric, book = pinned.loads.spreading.fabric, Book.of(pinned)
    files = dict(book.files(("json", "sonic")))
    tables = {n[9:-11]: read_sonic(text) for n, text in files.items() if n.startswith("switches")}
    stated = json.loads(next(text for name, text in files.items() if name.endswith("routes.json")))
    ways = [path for edge in stated["edges"] for path in edge["paths"]]
    spines, switches = int((SMALL | shape)["spines"]), fabric.switches
    with pytest.raises(UnsupportedError, match=f"more than {spines} equal spines"):
        pin(sent, whole, whole, "flows", 1, spines)
    degree = Counter[tuple[str, str]]()
    for way in ways:
        if "spares" in way:
            degree.update([("up", way["nodes"][1]), ("down", way["nodes"][-2])])
    for gone in [*combinations(range(spines), 1), *combinations(range(spines), 2)]:
        left, flows, addresses = [s for s in range(spines) if s not in gone], Counter[Any](), []
        for way in ways:
            names = [name.format(plane=0) for name in way["nodes"]]
            if "spares" in way:
                values = {"spine": left[way["spares"][0][len(gone) - 1]]}
                if len(way["spares"]) > 1:
                    values["core"] = way["spares"][1][len(gone) - 1]
                forms = [switches.get(name, (name, {})) for name in names]
                names = [form.format(**(own | values)) for form, own in forms]
                flows.update(
                    [
                        ("up", way["nodes"][1], values["spine"]),
                        ("down", way["nodes"][-2], values["spine"]),
                    ]
                )
            addresses.append(address(0, segments_of(fabric, names)))
        count = len(ways)
        paths = [way["nodes"] for way in ways]
        texts = [text.replace(":bb00:", ":bb{plane}:") for text in addresses]
        walked = walk(tables, paths, texts, [(0,)] * count, [1] * count, 0xF000)
        assert walked.addresses == count
        passed = {end for hop in walked.hops for end in hop if "spine" in end}
        assert {switches[name][1]["spine"] for name in passed} <= {*left}
        for (side, leaf, _), most in flows.items():
            assert most <= -(-degree[side, leaf] // len(left))


COMPACT = [
    {"leaves": "4", "spines": "5", "hosts": "4", "gpus": "2", "planes": "2"},
    {"leaves": "4", "spines": "4", "hosts": "6", "gpus": "1", "planes": "2"},
    {"leaves": "4", "spines": "3", "hosts": "2", "gpus": "2", "planes": "2", "rails": "1"},
]


@pytest.mark.parametrize("shape", COMPACT)
def test_templates_say_what_the_whole_file_says(
    shape: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load("multi-plane-clos", shape)
    graph = CapacityGraph.from_topology(whole)
    forest = solve_compact(graph, Collective.ALLGATHER, name=whole.name)
    assert forest is not None
    text = forest_file.dumps(forest)
    full = pin(read(text, "x", whole, True), whole, whole, "group", 1)
    files = dict(Book.of(full).files(("json", "sonic")))
    check_loads(*read_back(files, full.loads.spreading.fabric), full.loads)
    coloured = pin(read(text, "x", whole), whole, whole, "flows", 1)
    assert full.loads.most_flows == coloured.loads.most_flows
    monkeypatch.setattr("forestcoll.solver.routes.edges.MOST_EDGES", 30)
    few = pin(read(text, "x", whole, True), whole, whole, "group", 1)
    assert few.sent.edges.images == len(graph.ranks) == len(full.edges) // len(few.edges)
    assert few.loads.most_flows == full.loads.most_flows
    assert few.loads.slowest()[0] == full.loads.slowest()[0] == coloured.loads.slowest()[0]
    name = f"{whole.name}.allgather.routes.json"
    templates = dict(Book.of(few).files(("json", "sonic"), (0,)))
    walked, _ = read_back(templates, few.loads.spreading.fabric, graph)
    stated = json.loads(templates[name])
    assert walked.addresses == len(few.edges) * (2 + len(stated["symmetry"]))
    assert images_by_hand(stated) == paths_in(files[name])
    first, second = [*stated["ports"]][:2]
    said = {f'"{first}": 0': f'"{first}": 1', f'"{first}": "': f'"{second}": "'}
    for old, new in said.items():
        assert old in templates[name]
        changed = templates | {name: templates[name].replace(old, new, 1)}
        with pytest.raises(ForestCollError, match=r"the path is|permutation|does not come off"):
            read_back(changed, few.loads.spreading.fabric, graph)


def paths_in(text: str) -> set[tuple[object, ...]]:
    return {
        (tuple(path["nodes"]), path["address"], path["weight"])
        for edge in json.loads(text)["edges"]
        for path in edge["paths"]
    }


def images_by_hand(stated: dict[str, Any]) -> set[tuple[object, ...]]:
    """Templates moved by their generators until nothing new comes."""
    spines, ports = [*stated["spines"]], stated["ports"]
    out = set()
    paths = [(tuple(p["nodes"]), p["weight"]) for e in stated["edges"] for p in e["paths"]]
    while paths:
        nodes, weight = paths.pop()
        numbers = [(stated["leaves"] | stated["spines"])[name] for name in nodes[1:-1]]
        words = [*numbers, 0xE000 + ports[nodes[-1]], 0xF000]
        address = "fcbb:bb{plane}:" + ":".join(f"{word:x}" for word in words) + "::"
        if (nodes, address, weight) in out:
            continue
        out.add((nodes, address, weight))
        for moves in stated["symmetry"]:
            turn = ports[moves.get(nodes[0], nodes[0])] - ports[nodes[0]]
            moved = [
                spines[(spines.index(n) + turn) % len(spines)] if n in spines else moves.get(n, n)
                for n in nodes
            ]
            paths.append((tuple(moved), weight))
    return out


def test_only_a_group_that_moves_all_spreads() -> None:
    whole = load("multi-plane-clos", SMALL)
    forest = solve(CapacityGraph.from_topology(whole), Collective.ALLGATHER, name=whole.name)
    with pytest.raises(UnsupportedError, match="moves every GPU"):
        pin(read(forest_file.dumps(forest), "x", whole), whole, whole, "group", 1)


def walk_by_hand(files: dict[str, str]) -> Counter[tuple[str, str]]:
    """Hops of all addresses by the tables of CONFIG_DB alone, one packet after the other."""
    text = next(text for name, text in files.items() if name.endswith("routes.json"))
    tables = {
        name.removeprefix("switches/").removesuffix(".sonic.json"): json.loads(text)
        for name, text in files.items()
        if name.endswith(".sonic.json")
    }
    hops: Counter[tuple[str, str]] = Counter()
    for edge in json.loads(text)["edges"]:
        for path in edge["paths"]:
            for plane in path["planes"]:
                words = int(IPv6Address(path["address"].replace("{plane}", f"{plane:02x}")))
                here = path["nodes"][0]
                block = words >> 96
                there = next(
                    name
                    for name, table in tables.items()
                    if any(n["name"] == here for n in table["DEVICE_NEIGHBOR"].values())
                    and int(IPv6Address(table["SRV6_MY_LOCATORS"]["loc1"]["prefix"])) >> 96 == block
                )
                hops[here, there] += path["weight"]
                for _ in range(12):
                    here, table = there, tables[there]
                    best, act = -1, ("", "")
                    entries = [
                        *((k.split("|")[1], v) for k, v in table["SRV6_MY_SIDS"].items()),
                        *((k.split("|")[1], v) for k, v in table["STATIC_ROUTE"].items()),
                    ]
                    for prefix, entry in entries:
                        address, length = prefix.split("/")
                        shift = 128 - int(length)
                        if (
                            int(IPv6Address(address)) >> shift == words >> shift
                            and int(length) > best
                        ):
                            best = int(length)
                            act = (
                                entry.get("action", "route"),
                                entry.get("interface", entry.get("ifname", "")),
                            )
                    assert best > 0, (here, words)
                    shift = {"uN": 16, "uA": 32, "route": 0}[act[0]]
                    words = block << 96 | (words << shift) & (2**96 - 1)
                    if act[1]:
                        there = table["DEVICE_NEIGHBOR"][act[1]]["name"]
                        hops[here, there] += path["weight"]
                        if there not in tables:
                            break
                assert there == path["nodes"][-1]
                assert words == block << 96 | 0xF000 << 80
    return hops


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("json", '"fcbb:bb{plane}:100:', '"fcbb:bb{plane}:1ff:', "no entry for 1ff"),
        ("json", ":f000::", ":f001::", "does not come off there"),
        ("json", '"fcbb:bb{plane}:100:', '"fcbc:bb{plane}:100:', "not in the blocks"),
        ("json", '"weight": 1,', '"weight": 2,', "addresses load it with"),
        ("plane0.leaf0.sonic.json", "Ethernet0", "Ethernet99", "FRR's file says something else"),
        ("plane0.leaf0.sonic.json", '"uA"', '"uDT46"', "uDT46 is not followed here"),
        ("plane0.leaf0.sonic.json", "|fcbb:bb00:103:", "|fcbb:bb00:100:", "stands for two things"),
        ("plane0.leaf0.frr.conf", "behavior uN", "behavior uM", "FRR's file says something else"),
        ("plane0.spine0.frr.conf", "ipv6 route", "ip route", "FRR's file says something else"),
        ("box0.sh", "encap.red segs fcbb:bb00", "encap.red segs fcbb:bb07", "other addresses"),
        ("box0.sh", "fcbb:bb01:f000::/48", "fcbb:bb00:f000::/48", "has two routes"),
        ("box0.sh", "fcbb:bb01:f000::/48", "fcbb:bb02:f000::/48", "nothing takes headers off"),
        ("box0.evs.json", "fcbb:bb01", "fcbb:bb02", "other addresses than the JSON"),
    ],
)
def test_what_is_changed_is_seen(name: str, old: str, new: str, said: str) -> None:
    routes, files = pinned()
    key = next(key for key in files if key.endswith(f".routes.{name}" if name == "json" else name))
    assert old in files[key]
    if name == "json":  # so that the walk sees it, and not the hosts' files
        files = {name: text for name, text in files.items() if not name.startswith("hosts/")}
    files[key] = files[key].replace(old, new)
    with pytest.raises(PlanError, match=said):
        check_loads(*read_back(files, routes.loads.spreading.fabric), routes.loads)


def test_a_script_sets_every_route_once() -> None:
    """Boxes of two GPUs and leaves by rails: headers come off once a plane, at whatever port."""
    _, files = pinned(gpus="2", rails="1", leaves="4", hosts="2")
    for name, text in files.items():
        if name.endswith(".sh"):
            set_ = re.findall(r"replace (?:local )?(\S+) ", text)
            assert len(set_) == len({*set_}) > 4
            assert text.count("End.DT6") == 2
            assert max(map(len, re.findall(r"dev (\S+)", text))) <= 15


def test_files_of_an_earlier_run_are_told_from_others(tmp_path: Path) -> None:
    _, files = pinned()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "hosts/mine.sh").write_text("echo mine")
    ours = {tmp_path / name for name in files if not name.endswith("routes.json")}
    assert earlier(tmp_path, ALL).keys() == ours
    assert not earlier(tmp_path, ("json",))


def test_numbers_stay_when_a_switch_is_gone() -> None:
    whole = load("multi-plane-clos", SMALL)
    left = edit(whole, ["plane0.leaf0", "plane1.spine1"])
    before, after = Fabric(whole, whole), Fabric(whole, left)
    for form, kind in before.kinds.items():
        assert after.kinds[form] == kind
    assert {p for node in after.form for p in after.planes_of(node)} == {0, 1}


@pytest.mark.parametrize(
    ("failed", "replaced"),
    [
        ("plane1.spine2", True),
        ("plane0.leaf1-plane0.spine0", True),
        ("box0/gpu0-plane0.leaf0", False),
        ("plane0.leaf2", False),
        ("plane1.*", False),
    ],
)
def test_a_failure_retires_its_own_paths_alone(failed: str, replaced: bool) -> None:
    routes, _ = pinned()
    before, total = routes.loads.spreading.fabric, routes.loads.spreading.total
    fabric = Fabric(before.whole, edit(before.left, [failed]))
    repaired = repair(fabric, routes.edges, total)
    walked, parts = read_back(dict(Book.of(routes, repaired).files(ALL)), fabric)
    check_loads(walked, parts, repaired)
    assert {change.replaced is not None for change in repaired.changes} == {replaced}
    gone = {(c.edge.src, c.edge.dst, c.plane): c for c in repaired.changes}
    scale = repaired.total // total
    for old, new in zip(routes.edges, repaired.edges, strict=True):
        paths = {p: w for w in new.ways for p in w.planes}
        assert sum(way.weight for way in new.ways) == old.weight * scale
        for way in old.ways:
            for plane in way.planes:
                over = over_what(way.nodes, plane, failed)
                assert over == ((old.src, old.dst, plane) in gone)
                if not over:
                    assert paths[plane].segments == way.segments
                elif replaced:
                    assert paths[plane].segments != way.segments
    best = solve(CapacityGraph.from_topology(fabric.left), Collective.ALLGATHER).algbw
    assert 0 < repaired.algbw <= best


@pytest.mark.parametrize("failed", ["plane1.spine2", "plane0.leaf0-plane0.spine1", "plane1.*"])
def test_shares_that_stand_are_not_retired(failed: str) -> None:
    """An edge has several paths in a plane here: those over other spines are as they were."""
    routes, _ = pinned("shares")
    spreading = routes.loads.spreading
    fabric = Fabric(spreading.fabric.whole, edit(spreading.fabric.left, [failed]))
    repaired = repair(fabric, routes.edges, spreading.total)
    walked, parts = read_back(dict(Book.of(routes, repaired).files(ALL)), fabric)
    check_loads(walked, parts, repaired)
    paths = [(way, plane) for edge in routes.edges for way in edge.ways for plane in way.planes]
    gone = [way.segments for way, plane in paths if over_what(way.nodes, plane, failed)]
    assert [change.retired.segments for change in repaired.changes] == gone != []
    for old, new in zip(routes.edges, repaired.edges, strict=True):
        after = Counter[tuple[int, tuple[int, ...]]]()
        for way in new.ways:
            assert way.weight % len(way.planes) == 0
            after.update({(p, way.segments): way.weight // len(way.planes) for p in way.planes})
        assert sum(after.values()) * spreading.total == old.weight * repaired.total
        for way in old.ways:
            for plane in way.planes:
                over = over_what(way.nodes, plane, failed)
                assert (after[plane, way.segments] > 0) == (not over)


def over_what(nodes: tuple[str, ...], plane: int, failed: str) -> bool:
    """Whether a path goes over a switch or link of that name."""
    names = [node.format(plane=plane) for node in nodes]
    if failed.endswith("*"):
        return any(name.startswith(failed[:-1]) for name in names)
    return f"-{failed}-" in f"-{'-'.join(names)}-" or f"-{failed}-" in f"-{'-'.join(names[::-1])}-"


def test_a_replacement_takes_the_link_with_the_most_room() -> None:
    """Three single spines, one of a tenth of the bandwidth: a path goes to the idle wide one."""
    text = """
format: forestcoll.topology/1
name: unequal
nodes:
  gpu{0..1}: {kind: gpu}
  leaf{0..1}: {kind: switch}
  spine{0..2}: {kind: switch}
links:
  - {src: "gpu{l}", dst: "leaf{l}", for: {l: 0..1}, bandwidth: 100}
  - {src: "leaf{0..1}", dst: spine0, bandwidth: 100}
  - {src: "leaf{0..1}", dst: spine1, bandwidth: 10}
  - {src: "leaf{0..1}", dst: spine2, bandwidth: 100}
"""
    whole = loads_topology(text)
    graph = CapacityGraph.from_topology(whole)
    number = graph.node_of
    path = tuple(number[n] for n in ("gpu0", "leaf0", "spine0", "leaf1", "gpu1"))
    fabric = Fabric(whole, whole)
    edges = edges_with_ways(spread(fabric, collect(graph, [((path,), 1, False)], 1), "flows"))
    repaired = repair(Fabric(whole, edit(whole, ["spine0"])), edges, 1)
    [change] = repaired.changes
    assert change.replaced is not None
    assert change.replaced.nodes[2] == "spine2"
    assert repaired.algbw == 100
    left = edit(whole, ["spine0", "leaf0-spine2"])
    assert repair(Fabric(whole, left), edges, 1).algbw == 10


def test_boxes_without_a_path_are_said() -> None:
    routes, _ = pinned()
    before = routes.loads.spreading.fabric
    left = edit(before.left, ["box0/gpu0-plane*.leaf0"])
    with pytest.raises(InfeasibleError, match="no path is left from box"):
        repair(Fabric(before.whole, left), routes.edges, routes.loads.spreading.total)


def test_what_no_other_path_mends_is_said() -> None:
    routes, _ = pinned(gpus="2")
    with pytest.raises(UnsupportedError, match="box0/gpu0 to box0/nvswitch is a link inside a box"):
        mend(routes, ["box0/gpu0->box0/nvswitch"])
    fabric = routes.loads.spreading.fabric
    spares = pin(routes.sent, fabric.whole, fabric.left, "flows", 1, 1)
    with pytest.raises(UnsupportedError, match="spare colourings are of a whole fabric"):
        mend(spares, ["plane0.spine0"])


def test_what_cannot_be_routed_is_said() -> None:
    ring = machine("ring gpus=4")
    with pytest.raises(UnsupportedError, match="no switch outside of boxes"):
        Fabric(ring, ring)
    for more, said in (({"planes": "300"}, "300 planes"), ({"spines": "60000"}, "60,003 switches")):
        topology = load("multi-plane-clos", SMALL | more)
        with pytest.raises(UnsupportedError, match=said):
            Fabric(topology, topology)
    whole = load("multi-plane-clos", SMALL)
    forest = solve(CapacityGraph.from_topology(whole), Collective.ALLGATHER, name=whole.name)
    with pytest.raises(ForestCollError, match="made for other links"):
        read(forest_file.dumps(forest), "x", edit(whole, ["plane0.spine0"]))


def test_a_path_of_three_tiers_fits_an_address() -> None:
    """T1 T2 T1 T0, port, decapsulation: the first leaf is left out."""
    topology = load("multi-plane-clos", SMALL | {"pods": "2", "hosts": "1"})
    graph = CapacityGraph.from_topology(topology)
    nodes = ("box0/gpu0", "plane0..1.leaf0", "plane0..1.pod0.spine0..2", "plane0..1.core0..2.0")
    back = ("plane0..1.pod1.spine0..2", "plane0..1.leaf3", "box3/gpu0")
    path = tuple(graph.node_of[name] for name in (*nodes, *back))
    fabric = Fabric(topology, topology)
    edges = collect(graph, [((path,), 1, False)], 1)
    [edge] = edges_with_ways(spread(fabric, edges, "flows"))
    [way] = edge.ways
    assert len(way.segments) == 6
    assert way.segments[-2:] == (0xE000, 0xF000)
    book = Book("x", fabric, [edge], 1, {})
    assert read_back(dict(book.files(ALL)), fabric)[0].addresses == 2
