"""Plans of the catalogue, each checked in every way: a selection of what the script checks.

All machines of the catalogue, up to 16 ranks: the plans that `synthesize` writes run, all elements
checked, where it is hardest for them (queues of 1, short rounds), and have their forest's link
loads: for every collective where fabrics differ in kind, for one elsewhere. On three machines all
targets' plans, on one of them every kind, run the usual way too, and are linted.
scripts/benchmarks/catalogue.py checks every kind on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from artefacts import Artefacts
from command_line import script
from graphs import machine
from stored_schedules import stored

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.execute.cpu import MOST_PROCESSES
from forestcoll.program import BY_TREES, Collective, Pipeline
from forestcoll.program.targets import TARGETS
from forestcoll.topology import catalog
from forestcoll.verify import link_loads

EVERY = "dgx-h100"  # four of its GPUs: with every kind of plan
SIMPLE = (
    "dgx1-v100",
    "ring",
)  # five GPUs of a mesh, a ring of four: every target's for much data
ALL_OF = ("dgx-a100", "dgx1-v100", "ring gpus=5", "rail gpus=3 rails=3")
"""With every collective: a switch, a mesh, and small ones without and with boxes."""
ONE_OF = {  # of the others, and of two boxes
    "dgx-a100": Collective.REDUCE_SCATTER,
    "dgx-b200": Collective.ALLGATHER,
    "dgx-h100": Collective.REDUCE,
    "dgx1-v100": Collective.BROADCAST,
    "dgx2-v100": Collective.ALLGATHER,
    "dragonfly": Collective.BROADCAST,
    "fat-tree": Collective.ALLGATHER,
    "hypercube": Collective.REDUCE_SCATTER,
    "mi250": Collective.ALLREDUCE,
    "mi300x": Collective.BROADCAST,
    "multi-plane-clos": Collective.ALLREDUCE,
    "star": Collective.REDUCE,
    "torus-2d": Collective.BROADCAST,
    "torus-3d": Collective.ALLGATHER,
}
SIDES = {  # odd, and fewer GPUs than usual
    "star": "gpus=5",
    "hypercube": "dimension=2",
    "ring": "gpus=5",
    "torus-2d": "x=3 y=3",
    "torus-3d": "x=3 y=2 z=2",
    "fat-tree": "gpus=3",
    "rail": "gpus=3 rails=3",
    "multi-plane-clos": "hosts=1 gpus=3",
}
IN_SWITCH = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST)


catalogue = script("catalogue")
BOXES = ("dgx-a100", "dgx1-v100")  # machines of which two are tried; see end to end
ALL = [
    *(f"{name} {SIDES.get(name, '')}".strip() for name in catalog.names()),
    *(f"{name} boxes=2" for name in BOXES),
]
SIZES = {text: len(machine(text).gpus) for text in ALL}
CASES = [
    pytest.param(text, collective, id=f"{text.split()[0]}-{n}-{collective}")
    for text, n in SIZES.items()
    if n <= 16
    for collective in (BY_TREES if text in ALL_OF else [ONE_OF[text.split()[0]]])
]


@pytest.mark.parametrize(("text", "collective"), CASES)
def test_plans_of_the_catalogue_run(text: str, collective: Collective, compiled: Artefacts) -> None:
    name, *settings = text.split()
    known = stored(name, dict(each.split("=") for each in settings), collective)
    if known is None:
        made = compiled(text, collective)
        known = made.forest, made.programs
    forest, programs = known
    assert set(programs) == {"msccl-xml", "mscclpp-json"}
    for program in programs.values():
        link_loads(program, forest)
        assert program.n <= MOST_PROCESSES
        assert list(catalogue.faults_of_run(program, usual=False)) == []


def test_the_catalogue_has_what_it_had() -> None:
    """So that nothing drops out of the test above, or out of the script, unseen."""
    names = {str(case.values[0]).split()[0] for case in CASES}
    assert names == set(catalog.names()) - {"gb200-nvl72"}
    assert {name for name, _ in catalogue.machines()} == set(catalog.names())
    twice = {name for name, settings in catalogue.machines() if settings.get("boxes") == "2"}
    assert twice >= {"dgx1-v100", "dgx2-v100", "dgx-a100", "dgx-h100", "dgx-b200", "mi250", *BOXES}
    assert {kind.target for kind in catalogue.KINDS} == set(TARGETS)


def kinds(name: str) -> list[Any]:
    """Each target, protocol and place but LL of XML, which is Simple's plan of lower trees."""
    if name in SIMPLE:
        return [kind for kind in catalogue.KINDS if kind.protocol == "Simple"]
    return [k for k in catalogue.KINDS if k.target == "mscclpp" or k.protocol != "LL"]


@pytest.mark.parametrize("collective", BY_TREES)
@pytest.mark.parametrize("name", [EVERY, *SIMPLE])
def test_every_kind_of_plan_is_right(name: str, collective: Collective) -> None:
    less = {EVERY: "-box0/gpu[4-7]", "dgx1-v100": "-box0/gpu[567]", "ring": "gpus=4"}
    topology = machine(f"{name} {less[name]}")
    for kind in kinds(name):
        found = catalogue.checked(topology, collective, kind)
        assert found.faults == ()
        if kind.nvls is not None and (name != EVERY or collective not in IN_SWITCH):
            assert found.refused
        elif kind.nvls is not None and collective is Collective.ALLREDUCE:
            assert found.places == (kind.nvls,)
        else:
            assert found.places == ("in-place", "out-of-place")


# --- the checks themselves: what they say of wrong plans


@pytest.mark.parametrize("target", ["rccl", "mscclpp"])
def test_wrong_plans_are_faults(target: str, compiled: Artefacts) -> None:
    form, limits = TARGETS[target].format, TARGETS[target]
    made = compiled("ring gpus=4", "allreduce")
    program, forest = made.programs[form], made.forest
    text = plans.dumps(program, form)
    assert list(catalogue.faults_of_file(program, text, limits, forest)) == []

    def wrong(*arguments: Any) -> str:
        return "\n".join(catalogue.faults_of_file(*arguments))

    assert wrong(replace(program, min_bytes=64), text, limits, forest) == "does not read back equal"
    heavier = replace(forest.trees[0], weight=2 * forest.trees[0].weight)
    other = replace(forest, trees=(heavier, *forest.trees[1:]))
    assert "link loads: rank" in wrong(program, text, limits, other)
    few = replace(limits, thread_blocks=1)
    assert "lint: error" in wrong(program, text, few, forest)


@pytest.mark.parametrize("target", ["rccl", "mscclpp"])
def test_wrong_runs_are_faults(target: str, compiled: Artefacts) -> None:
    program = compiled("ring gpus=4", "allreduce").programs[TARGETS[target].format]
    first = program.ranks[0]
    cut = replace(first, thread_blocks=(replace(first.thread_blocks[0], steps=()),))
    rest = first.thread_blocks[1:]
    spoilt = replace(
        program,
        ranks=(replace(cut, thread_blocks=cut.thread_blocks + rest), *program.ranks[1:]),
    )
    assert all(text.startswith("run ") for text in catalogue.faults_of_run(spoilt))
    assert len(list(catalogue.faults_of_run(spoilt))) == 2


def test_pipelines_are_cut_into_rounds(compiled: Artefacts) -> None:
    program = compiled("ring gpus=4", "allreduce").programs["mscclpp-json"]
    loops = [
        step
        for rank in catalogue.in_rounds(program).ranks
        for block in rank.thread_blocks
        for step in block.steps
        if isinstance(step, Pipeline)
    ]
    assert loops
    assert {loop.unit_bytes for loop in loops} == {16}


def test_what_is_no_refusal_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise PlanError("does not read back")

    monkeypatch.setattr(plans, "dumps", broken)
    kind = catalogue.Kind("rccl", "Simple")
    found = catalogue.checked(machine("ring"), Collective.ALLREDUCE, kind)
    assert found.faults == ("PlanError: does not read back",)
    assert found.cell == "FAULT"


def test_the_table_lists_refusals_and_faults() -> None:
    def one(kind: Any, **fields: Any) -> Any:
        return catalogue.Outcome("ring-8", Collective.REDUCE, kind, **fields)

    first, second, third, *_, last = catalogue.KINDS
    both = ("in-place", "out-of-place")
    found = [
        one(first, places=both),
        one(second, refused="too long"),
        one(third, refused="too long"),
        one(last, places=both[:1], faults=("a", "b")),
    ]
    lines = list(catalogue.table(found, {"ring-8": 8}))
    assert lines[2] == "| ring-8 | 8 | reduce | ok | - | - |  |  |  |  |  |  | FAULT |"
    assert lines[4] == (
        "1 of 2 plans are right (3 with each place counted), 2 do not fit, or the runtime has none."
    )
    assert "- ring-8 reduce msccl LL, msccl LL128: too long" in lines
    assert f"- ring-8 reduce {last}: b" in lines
