"""Simulated times of all-to-all plans: by topology, and by the routes beside them."""

from __future__ import annotations

import json

import pytest
from command_line import Run

from forestcoll.common.errors import PlanError
from forestcoll.lower.alltoall.lowering import lower
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.study import predict
from forestcoll.topology import catalog
from forestcoll.verify import simulate


def routes(name: str, **settings: object) -> Routes:
    return route(solve(uniform(catalog.load(name, settings))))


@pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda target: target.name)
@pytest.mark.parametrize("name", ["mi300x", "dgx-a100", "hypercube"])
def test_one_hop_or_two_reach_the_bound(name: str, target: Target) -> None:
    """Never faster than the links allow; nearly as fast with much data."""
    found = routes(name)
    prediction = predict.by_topology(lower(found, target, name), catalog.load(name))
    assert prediction.algbw == found.optimum.algbw
    assert prediction.figures.source == f"the optimum of {catalog.load(name).name}"
    band = prediction.band(1 << 30)
    assert band is not None
    for reached in (band.fifo_algbw, band.fair_algbw):
        assert reached <= float(found.algbw) * (1 + 1e-9)
    if found.hops == 1:
        # in order, puts of whole blocks that begin at once wait for each other at a switch
        assert band.fair_algbw > 0.99 * float(found.algbw)
        assert target is MSCCLPP or band.fifo_algbw > 0.99 * float(found.algbw)


def test_by_the_routes_alone() -> None:
    found = routes("mi250")
    prediction = predict.by_routes(lower(found, RCCL, "mi250"), found)
    assert prediction.algbw == found.algbw
    assert prediction.microseconds(1 << 30) >= float((1 << 30) / found.algbw / 1000)
    with pytest.raises(PlanError, match="routes among 8 ranks, not among the plan's 16"):
        predict.by_routes(lower(found, RCCL, "mi250"), routes("dgx-a100"))
    with pytest.raises(PlanError, match="the plan is for 16 ranks, its links join 8"):
        simulate.run(lower(found, RCCL, "mi250"), routes("dgx-a100").graph, 1 << 20)


def test_from_the_command_line(call: Run) -> None:
    made = ("synthesize", "-t", "mi300x", "-c", "alltoall", "-o", "out/")
    assert call(*made)[0] == 0
    plan = "out/mi300x-1.alltoall.msccl.xml"
    for where in ((), ("-t", "mi300x")):
        code, out, err = call("time", plan, "--size", "1G", "--json", *where)
        assert code == 0, err
        assert [row["algbw"] for row in json.loads(out)["timings"]] == [
            pytest.approx(512, rel=0.01)
        ] * 3
    code, out, _ = call("run", plan, "-b", "64K", "-e", "64K")
    assert code == 0
    assert "# Allowed by links     : 512 GB/s, the routes beside it" in out
    assert "# Simulated algbw" in out


def test_what_is_beside_a_plan(call: Run) -> None:
    call("synthesize", "-t", "ring", "--set", "gpus=4", "-c", "alltoall", "-o", "out/")
    from pathlib import Path

    routes_file = Path("out/ring-4.alltoall.routes.json")
    text = routes_file.read_text()
    plan = "out/ring-4.alltoall.mscclpp.json"
    routes_file.write_text(text.replace('"algbw": "100"', '"algbw": "101"'))
    assert routes_file.read_text() != text
    code, _, err = call("time", plan)
    assert code == 1
    assert "no prediction by the routes beside the plan" in err
    routes_file.unlink()
    code, _, err = call("time", plan)
    assert code == 1
    assert "no routes file beside it, so its links are unknown; give the topology with" in err
