"""An allgather over boxes has two MSCCL++ plans, whose ports read the input or the output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graphs import machine
from hand_forests import chain, of_shape, star

from forestcoll.compile.formats import Place, serve_place
from forestcoll.compile.synthesize import synthesize
from forestcoll.execute import cpu
from forestcoll.lower import lower, serve
from forestcoll.lower.limits import usage
from forestcoll.plans import read_plan
from forestcoll.program import BY_TREES, Buffer, Collective, Op, Program
from forestcoll.program.targets import MSCCL, MSCCLPP
from forestcoll.ui import cli
from forestcoll.verify import verify


def read_by_ports(program: Program) -> set[Buffer]:
    return {
        ref.buffer
        for r, b, _, i in program.instructions()
        if program.ranks[r].thread_blocks[b].reads_by_port(i)
        for ref in i.src
    }


@pytest.mark.parametrize("shape", [star, chain])
def test_each_kind_of_calls_has_its_own(shape: object) -> None:
    made = of_shape(Collective.ALLGATHER, 4, shape, 2)
    program = lower(made, MSCCLPP)
    assert (program.in_place, program.out_of_place) == (False, True)
    assert Buffer.INPUT in read_by_ports(program)
    assert serve(program, in_place=False) is program
    inner = serve(program, in_place=True)
    assert (inner.in_place, inner.out_of_place) == (True, False)
    assert read_by_ports(inner) == {Buffer.OUTPUT}
    assert all(i.op is not Op.COPY for *_, i in inner.instructions())
    assert usage(inner).steps <= usage(program).steps
    for plan in (program, inner):
        verify(plan)
        assert cpu.run(plan, 100_000, iterations=3).wrong == 0


@pytest.mark.parametrize("collective", BY_TREES)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_all_others_serve_both(collective: Collective, protocol: str) -> None:
    """Without ports, with packets, or where a user buffer is no part of the other."""
    boxes = 1 if (collective, protocol) == (Collective.ALLGATHER, "Simple") else 2
    made = of_shape(collective, 4, star, boxes)
    program = lower(made, MSCCLPP, protocol=protocol)  # type: ignore[arg-type]
    assert (program.in_place, program.out_of_place) == (True, True)
    for in_place in (False, True):
        assert serve(program, in_place=in_place) is program


def test_msccl_xml_serves_both() -> None:
    program = lower(of_shape(Collective.ALLGATHER, 4, star, 2), MSCCL)
    assert (program.in_place, program.out_of_place) == (True, True)
    assert serve_place(program, "in-place") is program


# --- the pipeline, plan sets and the command line


HALVES = "box*/gpu[0-3]"


@pytest.mark.parametrize(
    ("place", "wanted"), [(None, False), ("out-of-place", False), ("in-place", True)]
)
def test_synthesize_makes_the_one_that_is_asked_for(place: Place | None, wanted: bool) -> None:
    topology, both = machine("dgx-a100 boxes=2"), ["mscclpp-json", "msccl-xml"]
    made = synthesize(topology, "allgather", ranks=HALVES, trees=1, place=place, formats=both)  # type: ignore[arg-type]
    program = made.programs["mscclpp-json"]
    assert (program.in_place, program.out_of_place) == (wanted, not wanted)
    assert json.loads(made.texts["mscclpp-json"])["inplace"] == wanted
    xml = made.programs["msccl-xml"]
    assert (xml.in_place, xml.out_of_place) == (True, True)
    other = "--place out-of-place" if wanted else "--place in-place"
    assert any("the MSCCL++ plan serves calls" in n and other in n for n in made.notes)


def test_a_plan_for_both_is_written_for_the_calls_that_are_asked_for() -> None:
    topology = machine("dgx-a100")
    for place in ("in-place", "out-of-place"):
        made = synthesize(topology, "allreduce", trees=1, place=place, formats=["mscclpp-json"])
        program = made.programs["mscclpp-json"]
        assert (program.in_place, program.out_of_place) == (True, True)
        assert json.loads(made.texts["mscclpp-json"])["inplace"] == (place == "in-place")


@pytest.mark.parametrize("place", ["in-place", "out-of-place"])
def test_a_plan_set_is_for_one_kind_of_calls(place: str, tmp_path: Path) -> None:
    command = ["synthesize", "-t", "dgx-a100", "--set", "boxes=2", "--ranks", HALVES]
    command += ["-c", "allgather", "--sizes", "64K:64M", "--target", "mscclpp", "--place", place]
    assert cli.main([*command, "-o", str(tmp_path)]) == 0
    assert cli.main(["verify", str(tmp_path)]) == 0
    index = json.loads((tmp_path / "index.json").read_text())
    runtime = index["runtimes"][0]
    assert runtime["in_place"] == (place == "in-place")
    assert runtime["out_of_place"] == (place != "in-place")
    for plan in runtime["plans"]:
        program = read_plan(tmp_path / plan["file"])
        assert program.in_place if place == "in-place" else program.out_of_place
        assert cpu.run(program, 200_000).wrong == 0
