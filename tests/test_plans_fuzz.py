"""Bytes of all kinds as plan files: a Program or a clear error, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lint_mutations_json
import lint_mutations_xml
import plan_programs as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutant, spots

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.plans import msccl, mscclpp
from forestcoll.plans.lint import lint
from forestcoll.program import Program
from forestcoll.program.check import check

TEXTS = [msccl.dumps(p) for p in made.FIFO] + [mscclpp.dumps(p) for p in made.ONESIDED]
NASTY = ["", "0", "-1", "1", "31", "71", "72", "128", "32768", "2147483648", "1e9", "4294967296",
         "99999999999999999999", "9" * 400, "0x7fffffff", "010", "true", "null", "i", "x", "&", "é",
         "nan", " ", "a" * 300]  # fmt: skip
VALUES: list[Any] = [None, True, False, 0, -1, 1, 2, 9, 64, 2**31, 2**32, 10**9, 2**64, 10**30, 1.5,
                     "", "i", "x", "memory", "port", "switch", "pipeline", [], [0], [[]], {}, [-1],
                     [10**9], {"type": "i"}, {"name": "nop"}]  # fmt: skip


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


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_truncated_texts(text: str) -> None:
    end = len(text.rstrip()) - 1
    assert read(text[: end + 1]) is not None
    for cut in range(0, end, 1 + len(text) // 250):
        assert read(text[:cut]) is None


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_flipped_bytes(text: str, tmp_path: Path) -> None:
    dice = random.Random(1)
    file = tmp_path / "plan"
    survived = 0
    for _ in range(250):
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
    assert survived < 250


@pytest.mark.parametrize("text", TEXTS[:3], ids=range(3))
def test_swapped_xml_values(text: str) -> None:
    dice = random.Random(2)
    spots = [m.span(1) for m in re.finditer(r'="([^"]*)"', text)]
    lines = text.splitlines()
    results = set()
    for _ in range(400):
        a, b = dice.choice(spots)
        other = dice.choice(spots)
        value = dice.choice((dice.choice(NASTY), text[slice(*other)]))
        results.add(read(text[:a] + value + text[b:]) is None)
        moved = lines.copy()
        moved.insert(dice.randrange(len(lines)), moved.pop(dice.randrange(len(lines))))
        again(read("\n".join(moved)))
    assert results == {True, False}


@pytest.mark.parametrize("text", TEXTS[3:], ids=range(len(TEXTS) - 3))
def test_swapped_json_values(text: str) -> None:
    dice = random.Random(3)
    results = set()
    for _ in range(600):
        plan = json.loads(text)
        places = spots(plan)
        holder, key = dice.choice(places)
        if dice.random() < 0.2:
            del holder[key]
        elif dice.random() < 0.5:
            holder[key] = dice.choice(VALUES)
        else:
            source, place = dice.choice(places)
            holder[key] = json.loads(json.dumps(source[place]))
        program = read(json.dumps(plan))
        results.add(program is None)
        again(program)
    assert results == {True, False}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.sampled_from(["msccl-xml", "mscclpp-json", None]))
def test_random_texts(text: str, format: plans.Format | None) -> None:
    assert read(text, format) is None


@settings(max_examples=100, deadline=None, derandomize=True)
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


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.fixed_dictionaries({"gpus": json_values, "name": json_values, "inplace": json_values}))
def test_random_documents(plan: dict[str, Any]) -> None:
    assert read(json.dumps({**plan, "collective": "allreduce", "protocol": "Simple"})) is None


HUGE = {
    "ranks": TEXTS[0].replace('ngpus="3"', 'ngpus="1000000000"'),
    "chunks": TEXTS[0].replace('nchunksperloop="3"', 'nchunksperloop="999999999"'),
    "scratch": TEXTS[0].replace('s_chunks="0"', 's_chunks="2000000000"'),
    "thread block ids": TEXTS[0].replace('<tb id="0"', '<tb id="1000000000"'),
    "elements": "<algo>" + "<a/>" * 300000,
    "open elements": "<a>" * 300000,
    "attribute": f'<algo a="{"x" * 10**7}"/>',
    "attributes": "<algo " + " ".join(f'a{k}=""' for k in range(50000)) + "/>",
    "digits": TEXTS[0].replace('ngpus="3"', f'ngpus="{"3" * 10**6}"'),
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


def test_files_that_cannot_be_plans(tmp_path: Path) -> None:
    cases = {
        "missing": "cannot be read: No such file or directory",
        "folder": "not a regular file",
        "binary": r"not text in UTF-8 \(byte 0\)",
        "empty": "the file is empty",
        "yaml": "starts with 'n', so it is neither MSCCL XML",
    }
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "yaml").write_text("name: x\n")
    for name, message in cases.items():
        with pytest.raises(PlanError, match=message) as caught:
            plans.read_plan(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
    with pytest.raises(PlanError, match="not a regular file"):
        plans.read_plan("/dev/zero")
    with pytest.raises(PlanError, match="cannot be the name of a file"):
        plans.read_plan("a\0b")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(PlanError, match="larger than 256 MiB"):
        plans.read_plan(tmp_path / "big")
    with pytest.raises(PlanError, match="larger than 256 MiB"):
        plans.loads("<" * (256 * 2**20 + 1), "t")


def test_formats_are_told_apart_by_content(tmp_path: Path) -> None:
    for text in TEXTS:
        file = tmp_path / "plan.txt"
        file.write_text("\n" + text, encoding="utf-8")
        assert plans.read_plan(file) == plans.loads(text, "t") == plans.read_plan(str(file))
    assert plans.detect(TEXTS[0], "t") == "msccl-xml"
    assert plans.detect(TEXTS[-1], "t") == "mscclpp-json"
    assert plans.dumps(made.FIFO[0], "msccl-xml") == TEXTS[0]
    assert plans.dumps(made.ONESIDED[0], "mscclpp-json") == TEXTS[3]


# --- one reading: what `loads` and the linter say of one text -------------------------------------

RING = lint_mutations_xml.base_text("ring")
BARRIER = lint_mutations_json.base_text("barrier")


def edit_first(change: Callable[[dict[str, Any]], object]) -> str:
    """A good plan with a change of its first thread block."""
    plan = json.loads(BARRIER)
    change(plan["gpus"][0]["threadblocks"][0])
    return json.dumps(plan)


SETTLED = [
    # msccl_parser.cc:490-497 of msccl-executor-nccl looks at s, but nothing goes by it
    (RING.replace('s="7"', 's="-1"', 1), "XML-STEP-NUMBER", True),
    # msccl_parser.cc:567: what is waited for counts where depid is at least 0
    (RING.replace('deps="-1"', 'deps="-2"', 1), "", True),
    # msccl_parser.h:82-88: strtol passes over white space in front, as it takes octal
    (RING.replace('s="1"', 's=" 1"', 1), "", True),
    (RING.replace('s="1"', 's="\xa01"', 1), "XML-NUMBER", False),
    # msccl_parser.cc:270-288: offsets of a side that is not used are not looked at
    (RING.replace('type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0"',
                  'type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="-5"', 1), "", True),
    # msccl_parser.cc:608: nor is the count of a nop
    (RING.replace('<step s="0"', '<step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="o" '
                  'dstoff="0" cnt="-1" depid="-1" deps="-1" hasdep="0"/>\n<step s="0"', 1),
     "XML-NOP-EMPTY", True),
    # msccl_parser.cc:255-266, 560-563: no name is no buffer, and no operation
    (RING.replace('srcbuf="i"', 'srcbuf=""', 1), "XML-BUFFER", False),
    (RING.replace('type="cpy"', 'type=""', 1), "XML-STEP-TYPE", False),
    (RING.replace("<algo ", '<algo root="9" ').replace("allreduce", "broadcast"),
     "RUN-REFUSED", False),
    (RING.replace('nchunksperloop="4"', 'nchunksperloop="40000"'), "RUN-REFUSED", False),
    # execution_kernel.hpp: signal and nop look at no buffer, nop at no channel
    (edit_first(lambda b: b["ops"][0].update(src_buff=[{"type": "i", "index": 0, "size": 1}])),
     "", True),
    (edit_first(lambda b: b["ops"][2].update(channel_ids=[0])), "", True),
    # execution_plan.cc:520-577: but the loader follows what is there
    (edit_first(lambda b: b["ops"][0].update(src_buff=[{"type": "i", "index": 0}])),
     "MPP-MISSING", False),
    # execution_plan.cc: fields that it asks for abort the loading, used or not
    (edit_first(lambda b: b["channels"][0].update(buff=None)), "MPP-TYPE", False),
    (edit_first(lambda b: b["ops"][2].update(iter_context={"num_chunks": 1, "unit_size": 0})),
     "MPP-PIPE-UNIT", False),
    (edit_first(lambda b: b["ops"][4].pop("barrier_id")), "MPP-OP-INCOMPLETE", False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "reads"), SETTLED, ids=range(len(SETTLED)))
def test_differences_between_two_readings_stay_settled(text: str, rule: str, reads: bool) -> None:
    """The readings that stood here before said one thing each; the runtimes' sources decide."""
    report = lint(text, "t")
    breaches = {f.rule for f in report.findings if f.severity == "error"}
    assert not rule or rule in breaches | {f.rule for f in report.findings}
    if reads:
        assert plans.loads(text, "t").n > 1
        assert rule or report.ok, report.findings
    else:
        with pytest.raises(PlanError) as caught:
            plans.loads(text, "t")
        assert caught.value.rule == rule


@pytest.mark.parametrize("format", ["msccl-xml", "mscclpp-json"])
def test_what_loads_refuses_the_linter_lists_and_what_it_finds_right_loads(format: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(150):
        _, text = mutant(format, seed)
        try:
            program = plans.loads(text, "t")
        except UnsupportedError:
            continue
        except PlanError as error:
            rule = error.rule
            outcomes["refused"] += 1
        else:
            check(program)
            outcomes["read"] += 1
            continue
        with contextlib.suppress(PlanError):  # no plan at all
            report = lint(text, "t")
            errors = {f.rule for f in report.findings if f.severity == "error"}
            assert errors, seed
            assert not rule or rule in errors, seed
    assert min(outcomes["refused"], outcomes["read"]) > 10
