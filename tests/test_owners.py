"""Where sums are complete first, so that an epilogue goes once to every element."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import as_json
from graphs import named
from notation import parse
from programs import nvls, ring_allreduce
from stored_schedules import SCHEDULES

from forestcoll import plans
from forestcoll.common.errors import UnsupportedError
from forestcoll.lower.rounds import lower_rounds, rounds_of
from forestcoll.program import Program
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule import forest_file
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.owners import owners

TWICE = """
reduce fifo root=0
rank 1 1 2
block recv=1
recv -> s0
copy i0 -> s1
copy i0 -> o0
reduce s0 -> o0
reduce s0 -> s1
rank 1 1
block send=0
send i0
"""


@pytest.mark.parametrize("name", ["dgx-a100-2", "mi250-1", "dgx1-v100-1"])
@pytest.mark.parametrize("end", ["msccl.xml", "mscclpp.json"])
def test_owners_are_the_roots_of_the_trees(name: str, end: str) -> None:
    """By their shares, which the forest's file has; a rooted sum is all at its root."""
    for collective in ("allreduce", "reduce"):
        forest = forest_file.load(SCHEDULES / name / f"{collective}.forest.json").expand()
        shares: Counter[int] = Counter()
        rank = forest.graph.rank_of
        for tree in forest.trees:
            if tree.phase == "reduce":
                shares[rank[tree.root]] += forest.share(tree)  # type: ignore[assignment]
        flow = dataflow(plans.read_plan(SCHEDULES / name / f"{collective}.{end}"))
        assert owners(flow) == dict(sorted(shares.items()))
        assert sum(length for _, _, length in flow.completions) == flow.units
        assert {place[0] for place, _, _ in flow.completions} == set(shares)


def test_instructions_say_which_part_they_complete() -> None:
    """In a fused ring rank r has what begins at r + 1, after one round."""
    n = 4
    flow = dataflow(ring_allreduce(n))
    each = flow.units // n
    assert {(*place, start, length) for place, start, length in flow.completions} == {
        (r, 0, n, 0, (r + 1) % n * each, each) for r in range(n)
    }
    assert owners(flow) == dict.fromkeys(range(n), Fraction(1, n))


def one_step() -> Program:
    graph = named("star gpus=4")
    return lower_rounds(next(rounds_of("one step", graph)), MSCCLPP)


def test_programs_that_make_a_sum_twice_are_refused() -> None:
    for program, text in (
        (one_step(), "the same sums are made at several ranks"),
        (parse(TWICE), "the same sums are made twice at rank 0"),
        (nvls(), "a switch makes sums, and hands them on at once"),
        (ring_allreduce(2), None),
    ):
        flow = dataflow(program)
        if text is None:
            assert set(owners(flow)) == {0, 1}
            continue
        with pytest.raises(UnsupportedError, match=f"^{text}$"):
            owners(flow)


def test_verify_says_where_an_epilogue_goes(tmp_path: Path) -> None:
    path = SCHEDULES / "dgx1-v100-1" / "reduce-scatter.msccl.xml"
    (told,) = as_json("verify", path)
    assert told["figures"]["epilogue"] == {
        "once": True,
        "why": None,
        "owners": [{"rank": rank, "share": "1/8"} for rank in range(8)],
    }
    line = "epilogue: once to each element, before any broadcast: at 8 of 8 ranks, a share of "
    assert f"{line}1/8 each" in told["proven"]
    other = tmp_path / "one.mscclpp.json"
    other.write_text(plans.dumps(one_step(), "mscclpp-json"))
    (told,) = as_json("verify", other)
    why = "the same sums are made at several ranks"
    assert told["figures"]["epilogue"] == {"once": False, "why": why, "owners": []}
    assert f"epilogue: does not go once to each element ({why})" in told["proven"]
