"""Topologies with links down or slower: only what is meant changes, and names tell them apart."""

from __future__ import annotations

from fnmatch import fnmatchcase
from fractions import Fraction

import pytest
from graphs import machine
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Node, Topology, dumps_topology, loads_topology
from forestcoll.topology.edit import Scale, edit, parse_scale

PAIR = machine("dgx-a100 boxes=2")
GPU = Node("gpu")
Arcs = dict[tuple[str, str], Fraction]


def dashed(*extra: str) -> Topology:
    """Nodes whose ids hold "-", all linked to "a"."""
    names = ("a", "b-c", "d", *extra)
    links = tuple(Link("a", name, Fraction(10)) for name in names[1:])
    return Topology("dashed", dict.fromkeys(names, GPU), links)


def changed(before: Topology, after: Topology) -> Arcs:
    """The directed bandwidths that differ; 0 where a link is gone."""
    old, new = before.rates(), after.rates()
    assert set(new) <= set(old)
    return {e: new.get(e, Fraction(0)) for e, b in old.items() if new.get(e) != b}


def test_what_is_left_of_a_link() -> None:
    assert edit(PAIR) is PAIR
    after = edit(PAIR, ["box0/gpu3->fabric"])
    assert changed(PAIR, after) == {("box0/gpu3", "fabric"): 0}
    (rest,) = (link for link in after.links if {link.src, link.dst} == {"box0/gpu3", "fabric"})
    assert (rest.src, rest.dst, rest.oneway) == ("fabric", "box0/gpu3", True)
    assert rest.latency == Fraction("0.85")


def test_parallel_links_stay_together() -> None:
    links = (Link("a", "b", Fraction(5), count=3), Link("b", "a", Fraction(2), oneway=True))
    topology = Topology("t", {"a": GPU, "b": GPU}, links)
    after = edit(topology, scale=[parse_scale("a-b = 2/3")])
    assert after.rates() == {("a", "b"): 10, ("b", "a"): 10 + Fraction(4, 3)}
    assert parse_scale("a-b=0.5") == Scale("a-b", Fraction(1, 2))


def test_ids_that_hold_dashes() -> None:
    assert set(changed(dashed(), edit(dashed(), ["a-b-c"]))) == {("a", "b-c"), ("b-c", "a")}
    assert "b-c" not in edit(dashed(), ["b-c"]).nodes
    # an id that is there is meant, though "a" and "d" are linked as well
    topology = dashed("a-d")
    assert "a-d" not in edit(topology, ["a-d"]).nodes
    assert set(changed(topology, edit(topology, ["a<->d"]))) == {("a", "d"), ("d", "a")}
    with pytest.raises(
        TopologyError, match=r"can be read as nodes 'a-d' or as a<->\*d; write a<->b"
    ):
        edit(topology, ["a-*d"])


def test_names_tell_results_apart() -> None:
    half, third = (Scale("fabric", Fraction(1, k)) for k in (2, 3))
    asked = [(["box0/gpu0-fabric"], []), (["box0/gpu1-fabric"], []), (["box0/gpu0->fabric"], [])]
    asked += [([], [half]), ([], [third]), (["box0/gpu0"], [third])]
    names = {edit(PAIR, *each).name for each in asked}
    assert len(names) == 6
    ends = ("without-1", "scaled-1", "without-1-scaled-1")
    assert {name[:-6] for name in names} == {f"dgx-a100-2-{end}-" for end in ends}
    one, other = (edit(PAIR, [p]).name for p in ("box0/gpu0-fabric", "fabric<->box0/gpu0"))
    assert one == other
    long = Topology("n" * 100, {"a": GPU, "b": GPU}, (Link("a", "b", Fraction(1)),))
    name = edit(long, scale=[Scale("a", Fraction(2))]).name
    assert (len(name), name[:3]) == (100, "nnn")


ENDS = st.sampled_from(("box0/*", "box*/gpu0", "fabric", "*", "box1/gpu[2-4]", "box?/nv*"))
PATTERNS = st.one_of(ENDS.map(lambda end: (end,)), st.tuples(ENDS, st.sampled_from(
    ("->", "<->")), ENDS))  # fmt: skip


def hits(pattern: tuple[str, ...], u: str, v: str) -> bool:
    """Whether a change means the link from u to v, by its definition."""
    if len(pattern) == 1:
        return any(fnmatchcase(end, pattern[0]) for end in (u, v))
    src, way, dst = pattern
    pairs = ((u, v), (v, u)) if way == "<->" else ((u, v),)
    return any(fnmatchcase(a, src) and fnmatchcase(b, dst) for a, b in pairs)


@settings(max_examples=70, deadline=None)
@given(
    st.none() | PATTERNS,
    st.lists(
        st.tuples(PATTERNS, st.fractions(Fraction(1, 9), 9, max_denominator=10**6)), max_size=2
    ),
)
def test_only_what_matches_changes(
    gone: tuple[str, ...] | None, slower: list[tuple[tuple[str, ...], Fraction]]
) -> None:
    """Every directed link is looked at by itself; what comes out can be written and read."""
    want: Arcs = PAIR.rates()
    fine = gone is None or (gone != ("*",) and any(hits(gone, *arc) for arc in want))
    want = {arc: rate for arc, rate in want.items() if gone is None or not hits(gone, *arc)}
    nodes = {n for n in PAIR.nodes if not (gone and len(gone) == 1 and fnmatchcase(n, gone[0]))}
    for pattern, _ in slower:
        fine &= any(hits(pattern, *arc) for arc in want)
    for pattern, factor in slower:
        want = {arc: rate * (factor if hits(pattern, *arc) else 1) for arc, rate in want.items()}
    without = ["".join(gone)] if gone else []
    scale = [Scale("".join(pattern), factor) for pattern, factor in slower]
    if not fine:
        with pytest.raises(TopologyError, match=r"no link|no node|no GPU"):
            edit(PAIR, without, scale)
        return
    after = edit(PAIR, without, scale)
    assert (after.rates(), set(after.nodes)) == (want, nodes)
    assert loads_topology(dumps_topology(after), "written") == after
    said = [f"without {pattern}" for pattern in without]
    said += [f"{one.pattern} at {one.factor} of its bandwidth" for one in scale]
    assert after.notes == tuple(said)
