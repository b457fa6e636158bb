"""Groups files: written, read back with the forests beside them, and refused when wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from damages import damage, rows
from graphs import machine

from forestcoll.common.errors import ForestError
from forestcoll.compile import together
from forestcoll.compile.verdict import verify_text
from forestcoll.program import Collective
from forestcoll.schedule import forest_file, groups_file

HALVES = (["box0/gpu[0-3]", "box1/gpu[0-3]"], ["box0/gpu[4-7]", "box1/gpu[4-7]"])


def asked(collective: str = "allgather", **more: Any) -> together.GroupsProblem:
    topology = machine("dgx-a100 boxes=2")
    return together.problem(topology, collective, HALVES, **more)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return together.synthesize(asked(), formats=["forest"]).texts


def put(texts: dict[str, str], folder: Path) -> Path:
    """The groups file of those, which then lie in the folder."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    (file,) = folder.glob(f"*{groups_file.SUFFIX}")
    return file


@pytest.fixture
def file(tmp_path: Path, texts: dict[str, str]) -> Path:
    return put(texts, tmp_path)


def proof_of(file: Path) -> Any:
    return groups_file.verify(file.read_text(), str(file))


def test_files_of_all_groups(file: Path, texts: dict[str, str]) -> None:
    assert sorted(texts) == [
        "dgx-a100-2-group0.allgather.forest.json",
        "dgx-a100-2-group1.allgather.forest.json",
        "dgx-a100-2.allgather.groups.json",
    ]
    proof = proof_of(file)
    assert proof.algbw == proof.bound == 200
    verdict = verify_text(file.read_text(), str(file))
    assert verdict.kind == "groups"
    assert verdict.figures["groups"] == [8, 8]
    assert "optimal" in verdict.lines[-1]


@pytest.mark.parametrize("collective", ["reduce-scatter", "allreduce", "broadcast", "reduce"])
def test_other_collectives_read_back(tmp_path: Path, collective: str) -> None:
    root = 3 if collective in ("broadcast", "reduce") else None
    result = together.synthesize(asked(collective, root=root), formats=["forest"])
    proof = proof_of(put(result.texts, tmp_path))
    assert proof.algbw == proof.bound == result.done.algbw
    assert proof.together.bound == result.done.bound
    if root is not None:
        assert [forest.root for forest in proof.together.forests] == [3, 3]


def test_rates_and_collectives_of_their_own_read_back(tmp_path: Path) -> None:
    plain = asked()
    mixed = [Collective.ALLREDUCE, Collective.REDUCE_SCATTER]
    problem = replace(plain, collectives=mixed, weights=[Fraction(1), Fraction(1, 3)])
    result = together.synthesize(problem)
    file = put(result.texts, tmp_path)
    assert file.name == "dgx-a100-2.allreduce-reduce-scatter.groups.json"
    proof = proof_of(file)
    assert proof.algbw == proof.bound == result.done.algbw
    rates = [forest.algbw for forest in proof.together.forests]
    assert rates == [proof.algbw, proof.algbw / 3]
    verdict = verify_text(file.read_text(), str(file))
    assert "times its weight (1, 1/3)" in verdict.lines[1]
    for plan in (*tmp_path.glob("*.mscclpp.json"), *tmp_path.glob("*.xml")):
        verify_text(plan.read_text(), str(plan))
    wrong = file.read_text().replace('"weight": "1/3"', '"weight": "2/3"')
    with pytest.raises(ForestError, match="not the common"):
        groups_file.verify(wrong, str(file))
    with pytest.raises(ForestError, match="its weight is not above 0"):
        groups_file.verify(file.read_text().replace('"weight": "1/3"', '"weight": "0"'), str(file))
    with pytest.raises(ForestError, match="groups\\[1\\]: its forest is of reduce-scatter"):
        groups_file.verify(wrong.replace('"collective": "reduce-scatter", ', ""), str(file))


def test_plans_of_all_groups() -> None:
    result = together.synthesize(asked("allreduce"), trees=1)
    assert len(result.texts) == 7
    for name, text in result.texts.items():
        if not name.endswith(".groups.json"):
            assert verify_text(text, name).lines


@pytest.mark.parametrize(("change", "message"), rows("groups"))
def test_wrong_files_are_refused(file: Path, change: str, message: str) -> None:
    model = damage(json.loads(file.read_text()), change)
    with pytest.raises(ForestError, match=message) as error:
        groups_file.verify(json.dumps(model), str(file))
    assert str(file) in str(error.value) or str(file.parent) in str(error.value)


def test_a_forest_that_was_changed_is_noticed(file: Path) -> None:
    (first, _) = sorted(file.parent.glob("*.forest.json"))
    model = json.loads(first.read_text())
    for link in model["topology"]["links"]:
        link["bandwidth"] = str(Fraction(link["bandwidth"]) * 2)
    model["algbw"] = str(Fraction(model["algbw"]) * 2)
    model["bound"]["algbw"] = str(Fraction(model["bound"]["algbw"]) * 2)
    first.write_text(json.dumps(model))
    forest_file.load(first)  # a sound forest of its own
    # as fast as it claims alone; together it is measured at the common rate, and still fits
    assert proof_of(file).algbw == 200
    model["trees"] = model["trees"][1:]
    first.write_text(json.dumps(model))
    with pytest.raises(ForestError):
        proof_of(file)


def test_what_groups_have_alone() -> None:
    common = together.optimum(asked()).algbw
    assert together.alone(asked(), common) == [200, 200]  # four adapters for half of eight parts
    for collective in ("allgather", "allreduce"):
        common = together.optimum(asked(collective)).algbw
        assert all(rate >= common for rate in together.alone(asked(collective), common))


def test_an_allreduce_alone_is_solved_for_both_phases() -> None:
    """Two halves of an MI250 box: the same trees for both phases would give 100 GB/s."""
    dies = [[f"box0/gpu{d}" for d in half] for half in (range(8), range(8, 16))]
    halves = together.problem(machine("mi250"), "allreduce", dies)
    common = together.optimum(halves).algbw
    assert common == 150
    assert together.alone(halves, Fraction(0)) == [150, 150]
