"""Bytes of all kinds as plan files: a Program or a clear error, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import programs
import pytest
from edits import spoil_file
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.plans import msccl, mscclpp
from forestcoll.plans.lint import lint
from forestcoll.program import Program
from forestcoll.program.check import check

NAMES = ("ring_allgather", "ring_allreduce", "star", "chain", "sums")
TEXTS = [programs.text_of(name) for name in NAMES]


def read(text: str, format: plans.Format | None = None) -> Program | None:
    """The Program, or None after a deliberate error with a message; anything else comes through."""
    began, message = time.process_time(), "-"
    program = None
    try:
        program = plans.loads(text, "t", format)
    except ForestCollError as error:
        message = str(error)
    assert time.process_time() - began < 5
    assert 0 < len(message) < 500
    assert "\n" not in message
    return program


def again(program: Program | None) -> None:
    """What was read can be written, or is refused deliberately; written, it reads back equal."""
    if program is None:
        return
    module = msccl if program.style == "fifo" else mscclpp
    try:
        text = module.dumps(program)
    except ForestCollError:
        return
    assert module.loads(text, "t") == program


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_truncated_texts(text: str) -> None:
    end = len(text.rstrip()) - 1
    assert read(text[: end + 1]) is not None
    for cut in range(0, end, 1 + len(text) // 250):
        assert read(text[:cut]) is None


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_flipped_bytes(text: str, tmp_path: Path) -> None:
    dice = random.Random(1)
    file = tmp_path / "plan"
    survived = 0
    for _ in range(120):
        data = bytearray(text.encode())
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        file.write_bytes(data)
        try:
            program = plans.read_plan(file)
        except ForestCollError:
            continue
        survived += 1
        again(program)
    assert survived < 120


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_swapped_values_and_lines(text: str) -> None:
    """What is refused is refused by the first error that the linter lists; what is read, checks."""
    dice, outcomes = random.Random(2), Counter[str]()
    for turn in range(120):
        changed = spoil_file(text, dice)
        if turn % 3 == 0:
            lines = text.splitlines()
            lines.insert(dice.randrange(len(lines)), lines.pop(dice.randrange(len(lines))))
            changed = "\n".join(lines)
        program = read(changed)
        outcomes["read" if program else "refused"] += 1
        again(program)
        if program is not None:
            check(program)
        elif turn % 2:
            with contextlib.suppress(PlanError):  # no plan at all
                assert_listed(changed)
    assert min(outcomes["refused"], outcomes["read"]) > 10


def assert_listed(text: str) -> None:
    """The linter lists an error, and that of `loads` among them."""
    errors = {f.rule for f in lint(text, "t").findings if f.severity == "error"}
    assert errors, text
    try:
        plans.loads(text, "t")
    except UnsupportedError:
        return
    except PlanError as error:
        rule = error.rule
    assert not rule or rule in errors


@settings(max_examples=70, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.sampled_from(["msccl-xml", "mscclpp-json", None]))
def test_random_texts(text: str, format: plans.Format | None) -> None:
    assert read(text, format) is None


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from([b"", b"<algo ", b'{"gpus": ', b"\xef\xbb\xbf<"]))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "random-plan"
    file.write_bytes(head + data)
    with pytest.raises(ForestCollError):
        plans.read_plan(file)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=70, deadline=None, derandomize=True)
@given(st.fixed_dictionaries({"gpus": json_values, "name": json_values, "inplace": json_values}))
def test_random_documents(plan: dict[str, Any]) -> None:
    assert read(json.dumps({**plan, "collective": "allreduce", "protocol": "Simple"})) is None


HUGE = {
    "ranks": TEXTS[0].replace('ngpus="4"', 'ngpus="1000000000"'),
    "chunks": TEXTS[0].replace('nchunksperloop="4"', 'nchunksperloop="999999999"'),
    "scratch": TEXTS[0].replace('s_chunks="0"', 's_chunks="2000000000"'),
    "thread block ids": TEXTS[0].replace('<tb id="0"', '<tb id="1000000000"'),
    "elements": "<algo>" + "<a/>" * 300000,
    "open elements": "<a>" * 300000,
    "attribute": f'<algo a="{"x" * 10**7}"/>',
    "attributes": "<algo " + " ".join(f'a{k}=""' for k in range(50000)) + "/>",
    "digits": TEXTS[0].replace('ngpus="4"', f'ngpus="{"3" * 10**6}"'),
    "json ranks": '{"name":"a","collective":"allreduce","gpus":[' + "{}," * 10**6 + "{}]}",
    "json chunks": TEXTS[3].replace('"input_chunks": 2', '"input_chunks": 1000000000'),
    "json lists": '{"gpus":[' + "[]," * 2 * 10**6 + "[]]}",
    "json parts": TEXTS[4].replace('"tbg_size": 2', '"tbg_size": 2000000000000'),
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE.keys())
def test_nonsense_costs_little(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read(text) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 800 * 1024  # KiB


def test_formats_are_told_apart_by_content(tmp_path: Path) -> None:
    for text in TEXTS:
        file = tmp_path / "plan.txt"
        file.write_text("\n" + text)
        assert plans.read_plan(file) == plans.loads(text, "t") == plans.read_plan(str(file))
    assert plans.detect(TEXTS[0], "t") == "msccl-xml"
    assert plans.detect(TEXTS[-1], "t") == "mscclpp-json"
