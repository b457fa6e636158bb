"""Links down or slowed: what a pattern names, what is left, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll import solver
from forestcoll.common.errors import InfeasibleError, TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.topology import Link, Node, Topology, catalog, dumps_topology, loads_topology
from forestcoll.topology.edit import Scale, edit, parse_scale

GPU, SWITCH = Node("gpu"), Node("switch")


def pair() -> Topology:
    return catalog.load("dgx-a100", {"boxes": "2"})


def dashed(*extra: str) -> Topology:
    """Nodes whose ids hold "-", all linked to "a"."""
    names = ("a", "b-c", "d", *extra)
    links = tuple(Link("a", name, Fraction(10)) for name in names[1:])
    return Topology("dashed", dict.fromkeys(names, GPU), links)


def changed(before: Topology, after: Topology) -> dict[tuple[str, str], Fraction]:
    """The directed bandwidths that differ; 0 where a link is gone."""
    old, new = before.rates(), after.rates()
    assert set(new) <= set(old)
    return {e: new.get(e, Fraction(0)) for e, b in old.items() if new.get(e) != b}


def test_nothing_asked_changes_nothing() -> None:
    topology = pair()
    assert edit(topology) is topology


def test_a_link_goes_both_ways() -> None:
    for pattern in ("box0/gpu3-fabric", "fabric-box0/gpu3", "box0/gpu3<->fabric"):
        gone = changed(pair(), edit(pair(), [pattern]))
        assert gone == {("box0/gpu3", "fabric"): 0, ("fabric", "box0/gpu3"): 0}


def test_a_link_goes_one_way() -> None:
    after = edit(pair(), ["box0/gpu3->fabric"])
    assert changed(pair(), after) == {("box0/gpu3", "fabric"): 0}
    (rest,) = (link for link in after.links if {link.src, link.dst} == {"box0/gpu3", "fabric"})
    assert (rest.src, rest.dst, rest.oneway) == ("fabric", "box0/gpu3", True)
    assert rest.latency == Fraction("0.85")


def test_a_node_goes_with_its_links() -> None:
    after = edit(pair(), ["box1/gpu7"])
    assert "box1/gpu7" not in after.nodes
    assert len(after.gpus) == 15
    assert all(b == 0 for b in changed(pair(), after).values())
    assert len(changed(pair(), after)) == 4


def test_globs_name_many() -> None:
    after = edit(pair(), ["box*/gpu[0-3]-fabric", "box1/gpu?->box1/nvswitch"])
    gone = changed(pair(), after)
    assert len(gone) == 2 * 8 + 8
    assert set(gone.values()) == {0}


def test_scaling_is_exact_and_adds_up() -> None:
    halves = [Scale("box0/gpu0-fabric", Fraction(1, 2)), Scale("box0/*->fabric", Fraction(1, 3))]
    got = changed(pair(), edit(pair(), scale=halves))
    assert got[("box0/gpu0", "fabric")] == Fraction(25, 6)
    assert got[("fabric", "box0/gpu0")] == Fraction(25, 2)
    assert got[("box0/gpu5", "fabric")] == Fraction(25, 3)
    assert ("fabric", "box0/gpu5") not in got


def test_scaling_a_node_scales_its_links() -> None:
    got = changed(pair(), edit(pair(), scale=[Scale("fabric", Fraction(3, 5))]))
    assert len(got) == 32
    assert set(got.values()) == {15}


def test_parallel_links_stay_together() -> None:
    links = (Link("a", "b", Fraction(5), count=3), Link("b", "a", Fraction(2), oneway=True))
    topology = Topology("t", {"a": GPU, "b": GPU}, links)
    after = edit(topology, scale=[Scale("a-b", Fraction(2, 3))])
    assert after.rates() == {("a", "b"): 10, ("b", "a"): 10 + Fraction(4, 3)}


@pytest.mark.parametrize(
    ("text", "factor"), [("a-b=0.5", Fraction(1, 2)), ("a->b = 17/18", Fraction(17, 18))]
)
def test_parse_scale(text: str, factor: Fraction) -> None:
    assert parse_scale(text) == Scale(text.split("=")[0].strip(), factor)


def test_ids_that_hold_dashes() -> None:
    assert set(changed(dashed(), edit(dashed(), ["a-b-c"]))) == {("a", "b-c"), ("b-c", "a")}
    assert "b-c" not in edit(dashed(), ["b-c"]).nodes
    # an id that is there is meant, though "a" and "d" are linked as well
    topology = dashed("a-d")
    assert "a-d" not in edit(topology, ["a-d"]).nodes
    assert set(changed(topology, edit(topology, ["a<->d"]))) == {("a", "d"), ("d", "a")}
    with pytest.raises(TopologyError) as error:
        edit(topology, ["a-*d"])
    assert "can be read as nodes 'a-d' or as a<->*d; write a<->b" in str(error.value)


def test_names_tell_results_apart() -> None:
    names = {
        edit(pair(), without, scale).name
        for without, scale in (
            (["box0/gpu0-fabric"], []),
            (["box0/gpu1-fabric"], []),
            (["box0/gpu0->fabric"], []),
            ([], [Scale("fabric", Fraction(1, 2))]),
            ([], [Scale("fabric", Fraction(1, 3))]),
            (["box0/gpu0"], [Scale("fabric", Fraction(1, 3))]),
        )
    }
    assert len(names) == 6
    assert {name[:-6] for name in names} == {
        "dgx-a100-2-without-1-",
        "dgx-a100-2-scaled-1-",
        "dgx-a100-2-without-1-scaled-1-",
    }
    same = [edit(pair(), [p]).name for p in ("box0/gpu0-fabric", "fabric<->box0/gpu0")]
    assert same[0] == same[1]


def test_long_names_stay_names() -> None:
    topology = Topology("n" * 100, {"a": GPU, "b": GPU}, (Link("a", "b", Fraction(1)),))
    name = edit(topology, scale=[Scale("a", Fraction(2))]).name
    assert len(name) == 100
    assert name.startswith("nnn")


def test_edited_topologies_can_be_written_and_read() -> None:
    after = edit(pair(), ["box0/gpu3->fabric"], [Scale("box1/*-fabric", Fraction(1, 3))])
    assert loads_topology(dumps_topology(after), "written") == after
    assert after.notes == (
        "without box0/gpu3->fabric",
        "box1/*-fabric at 1/3 of its bandwidth",
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_only_what_matches_changes(data: st.DataObject) -> None:
    """Against the definition: one pair of patterns, every directed link looked at by itself."""
    from fnmatch import fnmatchcase

    topology = pair()
    ends = st.sampled_from(("box0/*", "box*/gpu0", "fabric", "*", "box1/gpu[2-4]", "box?/nv*"))
    src, dst, oneway = data.draw(ends), data.draw(ends), data.draw(st.booleans())
    factor = data.draw(st.fractions(min_value=Fraction(1, 9), max_value=9))

    def hit(u: str, v: str) -> bool:
        return fnmatchcase(u, src) and fnmatchcase(v, dst)

    want = {
        (u, v): b * factor if hit(u, v) or (not oneway and hit(v, u)) else b
        for (u, v), b in topology.rates().items()
    }
    change = Scale(f"{src}{'->' if oneway else '<->'}{dst}", factor)
    if not any(hit(u, v) or (not oneway and hit(v, u)) for u, v in want):
        with pytest.raises(TopologyError, match="no link"):
            edit(topology, scale=[change])
    else:
        assert edit(topology, scale=[change]).rates() == want


def test_one_failed_link_is_solved_again() -> None:
    """One way down unbalances a switch; one GPU cut off cannot be served at all."""
    after = edit(pair(), ["box0/gpu0->fabric"])
    graph = CapacityGraph.from_topology(after)
    forest = solver.solve(graph, Collective.ALLGATHER, name=after.name)

    assert certificate.check(forest) == (Fraction(345), Fraction(345))
    alone = edit(pair(), ["box0/gpu0-*"])
    with pytest.raises(InfeasibleError, match="box0/gpu0"):
        solver.solve(CapacityGraph.from_topology(alone), Collective.ALLGATHER)
