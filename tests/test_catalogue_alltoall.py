"""The check of all-to-all plans over the catalogue: a sample of it, and that it finds faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from forestcoll.compile.alltoall_plans import make
from forestcoll.program.targets import TARGETS
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.topology import catalog

SCRIPT = Path(__file__).parents[1] / "scripts" / "benchmarks" / "catalogue_alltoall.py"
sys.path.insert(0, str(SCRIPT.parent))

catalogue: Any = pytest.importorskip("catalogue_alltoall")
SAMPLE = (
    catalogue.Machine("ring", {"gpus": "4"}),
    catalogue.Machine("rail", {"boxes": "2", "gpus": "2", "rails": "2"}),
    catalogue.Machine("dgx1-v100", {}, ("box0/gpu0-box0/gpu1",)),
)


def test_a_sample_is_right_and_is_kept(tmp_path: Path) -> None:
    """All kinds of three machines; then the same from the file, without any work."""
    state = tmp_path / "state.jsonl"
    first, sizes = catalogue.run_all(list(SAMPLE), catalogue.State(state))
    # the optimum's routes of all, spread ones where there are boxes
    assert len(first) == (len(SAMPLE) + 1) * len(catalogue.KINDS)
    assert {one.cell for one in first} == {"ok"}
    assert sorted(sizes.values()) == [4, 4, 4, 8]
    again = catalogue.State(state)
    assert len(again.known) == len(first)
    assert catalogue.run_all(list(SAMPLE), again)[0] == list(again.known.values())


def test_all_machines_up_to_64_ranks_are_asked_for() -> None:
    chosen = catalogue.machines()
    assert {one.name for one in chosen} == set(catalog.names()) - {"gb200-nvl72"}
    assert max(len(one.load().gpus) for one in chosen) == 64
    assert sum(bool(one.without) for one in chosen) >= 4
    assert {(k.target, k.protocol) for k in catalogue.KINDS if k.protocol == "Simple"} == {
        (name, "Simple") for name in TARGETS
    }


def routes(gpus: int) -> Routes:
    return route(solve(uniform(catalog.load("ring", {"gpus": gpus}))))


def test_wrong_plans_are_faults() -> None:
    """A plan of other routes, and one whose message goes to the wrong place."""
    limits = TARGETS["rccl"]
    found = routes(4)
    plan = make(found, limits.format, limits, "ring")
    assert list(catalogue.faults_of_file(found, plan.text, limits)) == []
    other = make(routes(4), limits.format, limits, "ring").text.replace(
        'srcbuf="i" srcoff="0"', 'srcbuf="i" srcoff="1"', 1
    )
    assert other != plan.text
    said = list(catalogue.faults_of_file(found, other, limits))
    assert any(text.startswith("routes: ") for text in said)
    assert any(text.startswith("lint: ") for text in said)


def test_what_does_not_fit_is_said() -> None:
    one = catalogue.checked("ring", routes(4), catalogue.KINDS[0], 1)
    assert one.cell == "-"
    assert "thread blocks" in one.refused
