"""MSCCL XML: what is written is what the runtimes read. (rows/msccl-xml.txt: what is read.)"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

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


class Strict:
    """Reads as the runtimes' hand-written parser does, and refuses what it cannot read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tree = self.element()
        assert self.tree is not None
        while self.at < len(text):
            assert text[self.at] in " \n\r"
            self.at += 1

    def element(self) -> tuple[str, dict[str, str], list[Any]] | None:
        """The next element, or None at a closing tag."""
        while self.text[self.at] in " \n\r":
            self.at += 1
        assert self.text[self.at] == "<", "only tags, and no tab between them"
        end = self.at
        while not (self.text[end] == ">" and self.text.count('"', self.at, end) % 2 == 0):
            end += 1
        tag = self.text[self.at + 1 : end]
        self.at = end + 1
        assert "\n" not in tag
        assert "\t" not in tag
        if tag.startswith("/"):
            return None
        single = tag.endswith("/")
        name, *rest = re.split(r' (?=[A-Za-z_]+=")', tag.removesuffix("/"))
        attributes = {}
        for piece in rest:
            key, value = re.fullmatch(r'([A-Za-z_]+)="([^"]*)"', piece).groups()  # type: ignore[union-attr]
            assert len(value) <= 255
            attributes[key] = value
        assert len(rest) == len(attributes) <= 16
        children = []
        while not single:
            child = self.element()
            if child is None:
                break
            children.append(child)
        return name, attributes, children


def check_safe_subset(text: str, program: Program) -> None:
    """The rules that make a file read the same way by every current parser."""
    assert text.startswith("<algo ")
    assert text.endswith("</algo>\n")
    assert text.isascii()
    name, algo, gpus = Strict(text).tree  # type: ignore[misc]
    assert name == "algo"
    required = "nchunksperloop nchannels ngpus proto coll minBytes maxBytes inplace outofplace name"
    assert set(required.split()) | {"redop"} <= set(algo)
    assert len(algo["name"]) < 100
    assert algo["coll"] in ("reduce", "broadcast", "allreduce", "reducescatter", "allgather")
    assert [int(gpu[1]["id"]) for gpu in gpus] == list(range(int(algo["ngpus"])))
    total = int(algo["nchunksperloop"])
    n = int(algo["ngpus"])
    shares = {"allgather": (total // n, total), "reducescatter": (total, total // n)}
    for _, gpu, blocks in gpus:
        chunks = {key: int(gpu[f"{key}_chunks"]) for key in "ios"}
        assert (chunks["i"], chunks["o"]) == shares.get(algo["coll"], (total, total))
        assert [int(block[1]["id"]) for block in blocks] == list(range(len(blocks)))
        used = [
            (direction, block[1][direction], block[1]["chan"])
            for block in blocks
            for direction in ("send", "recv")
            if block[1][direction] != "-1"
        ]
        assert len(used) == len(set(used))
        flags, waits = set(), set()
        for b, (_, block, steps) in enumerate(blocks):
            assert 0 <= int(block["chan"]) < int(algo["nchannels"]) <= 32
            assert [int(step[1]["s"]) for step in steps] == list(range(len(steps)))
            assert len(steps) <= 64
            before = None
            for s, (_, step, inner) in enumerate(steps):
                assert not inner
                assert 1 <= int(step["cnt"]) <= 71
                for side in ("src", "dst"):
                    offset = int(step[f"{side}off"])
                    assert 0 <= offset < 2**15
                    assert offset + int(step["cnt"]) <= chunks[step[f"{side}buf"]]
                waits.add((int(step["depid"]), int(step["deps"])))
                flags |= {(b, s)} if step["hasdep"] == "1" else set()
                if step["type"] == "nop":
                    assert int(step["depid"]) >= 0
                    assert step["hasdep"] == "0"
                elif before is not None and before["type"] == "nop":
                    assert int(step["depid"]) >= 0
                before = step
            assert before is None or before["type"] != "nop"
        waits.discard((-1, -1))
        assert waits <= flags
        for b, s in flags - waits:  # only to keep two reduces apart
            pair = [blocks[b][2][s][1], blocks[b][2][s + 1][1]]
            assert [step["type"] for step in pair] == ["re", "re"]
    assert program.n == n


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
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


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
