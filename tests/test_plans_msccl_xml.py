"""MSCCL XML: what is written is what the runtimes read. (rows/msccl-xml.txt: what is read.)"""

from __future__ import annotations

import re
from contextlib import suppress
from xml.etree import ElementTree

import programs
import pytest
from edits import ROWS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from notation import parse

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import Limit
from forestcoll.plans import msccl
from forestcoll.program import Program
from forestcoll.program.targets import MSCCL, RCCL

TAG = re.compile(r' *<(/?\w+(?: [A-Za-z_]+="[^"\n\t]{0,255}"){0,16}/?)>')


def check_safe_subset(text: str, program: Program) -> None:
    """The rules that make a file read the same way by every current parser, hand-written ones too.

    A tag a line and no text, of at most 16 attributes, each of at most 255 bytes.
    """
    assert text.startswith("<algo ")
    assert text.endswith("</algo>\n")
    assert text.isascii()
    assert all(map(TAG.fullmatch, text.splitlines()))
    tree = ElementTree.fromstring(text)
    algo, n, total = tree.attrib, int(tree.get("ngpus", 0)), int(tree.get("nchunksperloop", 0))
    required = "nchunksperloop nchannels ngpus proto coll minBytes maxBytes inplace outofplace name"
    assert set(required.split()) | {"redop"} <= set(algo)
    assert len(algo["name"]) < 100
    assert algo["coll"] in ("reduce", "broadcast", "allreduce", "reducescatter", "allgather")
    assert [int(gpu.get("id", -1)) for gpu in tree] == list(range(n)) == list(range(program.n))
    shares = {"allgather": (total // n, total), "reducescatter": (total, total // n)}
    for gpu in tree:
        chunks = {key: int(gpu.attrib[f"{key}_chunks"]) for key in "ios"}
        assert (chunks["i"], chunks["o"]) == shares.get(algo["coll"], (total, total))
        blocks = [block.attrib for block in gpu]
        assert [int(block["id"]) for block in blocks] == list(range(len(blocks)))
        ends = [(way, block[way], block["chan"]) for block in blocks for way in ("send", "recv")]
        used = [end for end in ends if end[1] != "-1"]
        assert len(used) == len(set(used))
        assert all(0 <= int(block["chan"]) < int(algo["nchannels"]) <= 32 for block in blocks)
        check_steps([[step.attrib for step in block] for block in gpu], chunks)
        assert not any(len(step) for block in gpu for step in block)


def check_steps(blocks: list[list[dict[str, str]]], chunks: dict[str, int]) -> None:
    """Within the limits of a step; who is waited for says so, and only waits stand in nops."""
    flags, waits = set(), {(-1, -1)}
    for b, steps in enumerate(blocks):
        assert [int(step["s"]) for step in steps] == list(range(len(steps)))
        assert len(steps) <= 64
        for s, step in enumerate(steps):
            assert 1 <= int(step["cnt"]) <= 71
            for side in ("src", "dst"):
                offset = int(step[f"{side}off"])
                assert 0 <= offset < 2**15
                assert offset + int(step["cnt"]) <= chunks[step[f"{side}buf"]]
            waits.add((int(step["depid"]), int(step["deps"])))
            flags |= {(b, s)} if step["hasdep"] == "1" else set()
            if step["type"] == "nop":
                assert step["hasdep"] == "0"
                assert min(int(each["depid"]) for each in steps[s : s + 2]) >= 0
        assert not steps or steps[-1]["type"] != "nop"
    waits.discard((-1, -1))
    assert waits <= flags
    for b, s in flags - waits:  # only to keep two reduces apart
        assert [step["type"] for step in blocks[b][s : s + 2]] == ["re", "re"]


@pytest.mark.parametrize("name", ["star", "ring_allgather", "ring_allreduce", "pair"])
def test_written_and_read_back_is_equal(name: str) -> None:
    program = programs.base(name)
    for target in (None, MSCCL):
        text = msccl.dumps(program, target)
        back = plans.loads(text, "t")
        assert back == program
        assert back.extra == {"format": "msccl-xml"}
        check_safe_subset(text, program)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**40))
def test_random_programs_survive_and_stay_in_the_safe_subset(seed: int) -> None:
    made = programs.write_random(seed, "fifo")
    assume(made is not None)
    program, text = made  # type: ignore[misc]
    assert msccl.loads(text, "t") == program
    assert "notes" not in msccl.loads(text, "t").extra
    assert msccl.dumps(msccl.loads(text, "t")) == text
    check_safe_subset(text, program)
    with suppress(PlanError):  # fused, or more than RCCL holds
        assert msccl.loads(msccl.dumps(program, RCCL), "t") == program


@pytest.mark.parametrize("name", ["star", "chain", "sums", "fabric_allreduce", "packet_allreduce"])
def test_the_text_of_a_small_plan(name: str, request: pytest.FixtureRequest) -> None:
    """Also of MSCCL++."""
    program = programs.base(name)
    form = programs.format_of(program)
    file = ROWS / f"text-of-{name}{plans.FORMATS[form].suffix}"
    text = plans.dumps(program, form)
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text()


def test_neighbouring_reduces_are_kept_apart_by_a_flag() -> None:
    program = parse("""
        allreduce fifo name=p
        rank 4 4 8
        block
        reduce s0:2 s2:2 -> o0:2
        reduce s4 -> o0
        reduce s4 -> o0""")
    text = msccl.dumps(program)
    assert re.findall(r'type="re".*hasdep="(\d)"', text) == ["0", "1", "1", "0"]
    assert msccl.loads(text, "t") == program


@pytest.mark.parametrize("extra", ["copy i0 -> o0", "block"])
def test_the_sum_of_elements_is_bounded(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = msccl.dumps(parse("allreduce fifo\nrank 4 4\nblock\ncopy i0 -> o0" + f"\n{extra}" * 8))
    assert msccl.loads(text, "t").n == 1
    monkeypatch.setattr("forestcoll.plans.msccl.text.INSTRUCTIONS", Limit(8, "STEPS"))
    with pytest.raises(PlanError, match="more than 8 tbs and steps"):
        msccl.loads(text, "t")
