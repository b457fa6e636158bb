"""The symbolic check of what is right, in figures. (rows/programs.txt: what is wrong.)"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from typing import Any

import programs as pg
import pytest
from notation import Tree, build, move_line, parse, tree_of
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.forest import Tree as SpanningTree
from forestcoll.verify import link_loads, verify

GOOD = pg.all_good()


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_pass(name: str) -> None:
    found = verify(GOOD[name])
    claims = (GOOD[name].out_of_place, GOOD[name].in_place)
    assert found.modes == tuple(compress(("out-of-place", "in-place"), claims))
    assert found.ranks == GOOD[name].n
    assert found.root == GOOD[name].root


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_pass_however_much_is_unrolled(name: str) -> None:
    for launches, rounds, queue in ((1, 1, 2), (2, 1, 3), (3, 3, 64)):
        found = verify(GOOD[name], launches=launches, rounds=rounds, queue=queue)
        assert found.loads == verify(GOOD[name]).loads


def test_figures_of_a_ring() -> None:
    found = verify(pg.ring_allreduce(4))
    share = Fraction(2 * 3, 4)  # every link carries 2 (n - 1) / n of the data
    assert found.loads == {(r, (r + 1) % 4): share for r in range(4)}
    assert found.chunks == 4
    assert found.moved == 24
    assert found.steps == 32
    assert found.queue == 2
    assert found.launches == 1


def test_figures_of_parts_and_reads() -> None:
    found = verify(pg.base("exchange_by_barrier", "parts=4"))
    assert found.loads == {(0, 1): Fraction(1), (1, 0): Fraction(1)}
    assert found.moved == 4
    assert found.launches == 2
    assert found.queue is None


@pytest.mark.parametrize("p", [pg.chain_broadcast(4), pg.star_reduce(3), pg.pipelined_broadcast(4)])
def test_the_root_is_found(p: Program) -> None:
    """Also where the ranks have other numbers, so that the root is not the first."""

    def turn(value: Any) -> Any:
        if isinstance(value, dict):
            number = {
                key: (value[key] - 1) % p.n for key in ("recv", "send") if value.get(key, -1) >= 0
            }
            return {key: turn(one) for key, one in value.items()} | number
        if isinstance(value, list):
            return [turn(one) for one in value]
        if isinstance(value, str):  # a peer's operand, or a channel
            value = re.sub(r"(?<=@)\d+", lambda m: str((int(m[0]) - 1) % p.n), value)
            return re.sub(r"(?<=memory:)\d+", lambda m: str((int(m[0]) - 1) % p.n), value)
        return value

    whole: Tree = turn(tree_of(p)) | {"root": -1}
    whole["ranks"] = whole["ranks"][1:] + whole["ranks"][:1]
    moved = build(whole)
    assert verify(moved).root == p.n - 1
    with pytest.raises(PlanError, match="wrong result"):
        verify(replace(moved, root=0))


def test_one_rank_alone() -> None:
    for collective in BY_TREES:
        only = parse(f"{collective.value} fifo\nrank 3 3\nblock\ncopy i0:3 -> o0:3")
        assert verify(only).loads == {}


def test_in_place_plans_may_leave_a_buffer_out() -> None:
    alone = pg.edit(pg.ring_allgather(3), "*.0.0 -", "*.input = 0", "places = in")
    assert verify(alone).modes == ("in-place",)
    with pytest.raises(PlanError, match="needs an output of 3 times the input"):
        verify(replace(alone, out_of_place=True))


def test_slices_and_more_of_them_change_nothing() -> None:
    """Repeating the list on other chunks, as runtimes do for slices, passes as one pass does."""
    whole = tree_of(pg.ring_allreduce(3))
    for rank in whole["ranks"]:
        (block,) = rank["blocks"]
        block["steps"] = [move_line(line, 3 * t) for t in range(4) for line in block["steps"]]
        rank["input"] = rank["output"] = 12
    found, once = verify(build(whole)), verify(pg.ring_allreduce(3))
    assert (found.moved, found.loads) == (4 * once.moved, once.loads)


def test_without_farewell_a_memory_put_is_still_safe() -> None:
    p = pg.edit(pg.pipelined_broadcast(), *["*.0.4 -"] * 3)
    assert verify(p, launches=3).modes == ("out-of-place", "in-place")


def test_scratch_needs_no_handshake_when_the_launch_before_said_farewell() -> None:
    p = pg.edit(pg.base("reduce_to_root", "kind=memory"), *["*.0.0 -"] * 3)
    assert verify(p, launches=3).root == 0


def test_a_large_plan_takes_seconds() -> None:
    p = plans.read_plan(SCHEDULES / "mi250-1" / "allreduce.msccl.xml")
    start = time.process_time()
    found = verify(p, queue=1)
    assert time.process_time() - start < 5
    assert found.moved == 2 * (p.n - 1) * found.chunks
    assert found.steps > 9000


# --- queues, limits


def test_messages_are_cut_as_the_largest_size_demands() -> None:
    p = pg.eager_exchange(3, 3)
    with pytest.raises(PlanError, match="deadlock"):
        verify(p)
    # A slot holds 2 MiB and a connection two: 5 of 10 chunks go in two pieces of at most 3.
    big = pg.eager_exchange(5, 5)
    largest = (2 << 20) // 3 * 10
    assert verify(replace(big, max_bytes=largest)).events == 2 * (1 + 2 * 2)
    with pytest.raises(PlanError, match="deadlock"):
        verify(replace(big, max_bytes=largest + 1))
    assert verify(replace(big, protocol="LL")).queue == 8
    with pytest.raises(PlanError, match="a connection holds 8 messages"):
        verify(replace(pg.eager_exchange(9, 9), protocol="LL128"))


@pytest.mark.parametrize("name", ["chain_broadcast", "star_reduce", "direct_reduce_scatter"])
def test_a_queue_of_one_is_enough_without_fused_rings(name: str) -> None:
    if name == "direct_reduce_scatter":
        with pytest.raises(PlanError, match="deadlock"):  # two pieces before the first receive
            verify(GOOD[name], queue=1)
    else:
        assert verify(GOOD[name], queue=1).queue == 1


def test_a_fused_ring_needs_a_queue_of_two() -> None:
    words = r"deadlock: rank 0, thread block 0, step 2 \(recv_copy_send\) cannot send"
    with pytest.raises(PlanError, match=words):
        verify(pg.ring_allgather(), queue=1)


def test_a_deeper_queue_lets_eager_senders_pass() -> None:
    assert verify(pg.eager_exchange(3), queue=3).queue == 3
    assert verify(pg.eager_exchange(3, 3), queue=3).queue == 3
    assert verify(pg.eager_exchange(2)).queue == 2
    with pytest.raises(PlanError, match="a connection holds 1 message:"):
        verify(pg.eager_exchange(2), queue=1)


def test_a_self_copy_may_run_beside_readers_but_not_beside_writers() -> None:
    p = pg.chain_broadcast(2, 1)  # in place rank 0 copies onto itself while it sends
    assert "in-place" in verify(p).modes
    beside = pg.edit(p, '1.1 + {"steps": ["copy o0 -> o0"]}')
    with pytest.raises(PlanError, match=r"race: .*rank 1, thread block 1, step 0 \(copy\)"):
        verify(beside)


@pytest.mark.parametrize("name", ["launches", "rounds", "queue"])
def test_nothing_is_unrolled_less_than_once(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        verify(pg.star_reduce(), **{name: 0})


# --- loads against the forest


def chain_forest(n: int) -> Forest:
    graph = CapacityGraph(
        names=("switch", *(f"gpu{r}" for r in range(n))),
        gpu=(False, *[True] * n),
        multicast=(False,) * (n + 1),
        aggregation=(False,) * (n + 1),
        ranks=tuple(range(1, n + 1)),
        tail=(),
        head=(),
        capacity=(),
        unit=Fraction(1),
    )
    edges = tuple((r, 0, r + 1) for r in range(1, n))
    trees = tuple(SpanningTree(1, "broadcast", 1, edges) for _ in range(2))
    return Forest("chain", graph, Collective.BROADCAST, 2, trees, root=0)


@pytest.mark.parametrize("p", [pg.chain_broadcast(3, 2), pg.pipelined_broadcast(3, chunks=2)])
def test_loads_equal_the_forests(p: Program) -> None:
    assert link_loads(p, chain_forest(3)) == {(0, 1): Fraction(1), (1, 2): Fraction(1)}


def test_loads_that_differ_from_the_forests() -> None:
    forest = chain_forest(3)
    lighter = replace(forest, trees=forest.trees[:1])
    with pytest.raises(
        PlanError,
        match=r"rank 0 to rank 1: the program moves 1 of the data, the forest's trees 1/2",
    ):
        link_loads(pg.chain_broadcast(3), lighter)
    with pytest.raises(PlanError, match="the program has 4 ranks, the forest 3"):
        link_loads(pg.chain_broadcast(4), forest)
    extra = pg.edit(pg.chain_broadcast(3), "0.1.0 + send i0:2")
    with pytest.raises(PlanError, match=r"rank 0 to rank 1: the program moves 2 of the data"):
        link_loads(extra, forest)
