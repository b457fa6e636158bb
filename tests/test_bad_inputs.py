"""Bad options, topologies, forests and plans through the real command line.

Every one ends with exit 1 or 2, one line on standard error that says what is wrong, no traceback,
nothing on standard output, and no file left behind.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Outcome, Run

import forestcoll
from forestcoll.ui import cli

HEAD = "format: forestcoll.topology/1\nname: bad\n"
TWO = "nodes:\n  a: {kind: gpu}\n  b: {kind: gpu}\n"
PAIR = HEAD + TWO + "links:\n  - {src: a, dst: b, bandwidth: 10}\n"


def links(*rows: str) -> str:
    return HEAD + TWO + "links:\n" + "".join(f"  - {{{row}}}\n" for row in rows)


def nest(depth: int) -> str:
    return "[" * depth + "]" * depth


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
XML_BOMB = (
    '<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + ']><system version="1">&j;</system>'
)

OPTIONS: dict[str, tuple[str, list[str]]] = {
    # command line: words that the message must hold
    "frobnicate": ("frobnicate", ["No such command"]),
    "synthesise": ("synthesise -t x", ["Did you mean 'synthesize'"]),
    "unknown-option": (
        "synthesize -t ring -c allreduce --min-percnt 9",
        ["Did you mean '--min-percent'"],
    ),
    "no-topology": ("synthesize -c allreduce -o out", ["Missing option", "--topology"]),
    "no-collective": ("synthesize -t ring -o out", ["Missing option", "--collective"]),
    "collective": ("synthesize -t ring -c allredcue -o out", ["allredcue", "allreduce"]),
    "target": ("synthesize -t ring -c allreduce -o out --target nccl", ["nccl", "mscclpp"]),
    "format": ("synthesize -t ring -c allreduce -o out --format xml", ["xml", "msccl-xml"]),
    "relays": ("synthesize -t ring -c allreduce -o out --relays some", ["some", "idle"]),
    "trees-0": ("synthesize -t ring -c allreduce -o out --trees 0", ["'0'", "auto"]),
    "trees-negative": ("synthesize -t ring -c allreduce -o out --trees -1", ["'-1'"]),
    "trees-word": ("synthesize -t ring -c allreduce -o out --trees many", ["'many'", "auto"]),
    "trees-half": ("synthesize -t ring -c allreduce -o out --trees 1.5", ["'1.5'"]),
    "set-no-value": ("optimum -t ring -c allreduce --set gpus", ["name=value"]),
    "set-no-name": ("optimum -t ring -c allreduce --set =4", ["name=value"]),
    "set-twice": ("optimum -t ring -c allreduce --set gpus=4 --set gpus=5", ["twice", "gpus"]),
    "root-of-allreduce": ("optimum -t ring -c allreduce --root 0", ["--root", "allreduce"]),
    "ranks-empty": ("optimum -t ring -c allreduce --ranks gpu0,,gpu1", ["empty entry"]),
    "stdout-no-format": ("synthesize -t ring -c allreduce -o -", ["one format"]),
    "stdout-two": (
        "synthesize -t ring -c allreduce -o - --format forest --format msccl-xml",
        ["one format"],
    ),
    "stdout-json": (
        "synthesize -t ring -c allreduce -o - --format forest --json",
        ["both want standard output"],
    ),
    "json-suffix": ("synthesize -t ring -c allreduce -o x.json", ["which format", "--format"]),
    "two-in-one": (
        "synthesize -t ring -c allreduce -o x.msccl.xml --format forest --format msccl-xml",
        ["one file", "2 formats"],
    ),
    "suffix-lies": ("synthesize -t ring -c allreduce -o x.xml --format forest", ["msccl-xml"]),
    "target-format": (
        "synthesize -t ring -c allreduce -o out --target rccl --format mscclpp-json",
        ["rccl", "mscclpp-json"],
    ),
    "no-files": ("verify", ["Missing argument", "FILE"]),
    "no-plan": ("run", ["Missing argument", "PLAN"]),
    "size-unit": ("run x.xml --size 1X", ["'1X'", "64M"]),
    "size-zero": ("run x.xml --size 0", ["'0'", "range"]),
    "size-negative": ("run x.xml --size -5", ["'-5'"]),
    "size-fraction": ("run x.xml --size 1.0001K", ["whole number"]),
    "size-huge": ("run x.xml --size 99999T", ["range"]),
    "dtype": ("run x.xml --dtype float8", ["float8", "float16"]),
    "op": ("run x.xml --op average", ["average", "sum"]),
    "iterations": ("run x.xml --iterations 0", ["--iterations", "0"]),
    "iterations-word": ("run x.xml --iterations ten", ["ten", "integer"]),
    "timeout": ("run x.xml --timeout 0", ["--timeout"]),
    "topology-what": ("topology frob", ["No such command"]),
    "topology-show": ("topology show", ["give one topology", "NAME"]),
}

TOPOLOGIES: dict[str, tuple[str, list[str]]] = {
    # file: words that the message must hold, the first of them the place
    "empty": ("", ["empty.yaml"]),
    "not-yaml": (HEAD + "nodes: {a: [\n", ["not-yaml.yaml:4", "not YAML"]),
    "tabs": ("format:\tx\n\tname: y\n", ["tabs.yaml"]),
    "a-list": ("- a\n- b\n", ["a-list.yaml"]),
    "a-number": ("42\n", ["a-number.yaml"]),
    "bomb": (HEAD + BOMB, ["bomb.yaml"]),
    "deep": (HEAD + "nodes: " + nest(5000) + "\n", ["deep.yaml"]),
    "wrong-format": (PAIR.replace("topology/1", "topology/9"), ["wrong-format.yaml", "format"]),
    "no-format": (PAIR.replace("format: forestcoll.topology/1\n", ""), ["format"]),
    "unknown-key": (PAIR.replace("links:", "linsk:"), ["unknown-key.yaml:6", "links"]),
    "unknown-link-key": (links("src: a, dst: b, bandwith: 10"), [":7", "bandwidth"]),
    "unknown-node-key": (PAIR.replace("kind: gpu", "knd: gpu", 1), [":4", "kind"]),
    "unknown-kind": (PAIR.replace("gpu", "gpx", 1), [":4", "gpx"]),
    "unknown-node": (
        PAIR.replace("  a:", "  gpu7:").replace("src: a", "src: gpu9"),
        [":7", "gpu9", "did you mean 'gpu7'?"],
    ),
    "zero": (links("src: a, dst: b, bandwidth: 0"), [":7", "0"]),
    "negative": (links("src: a, dst: b, bandwidth: -3"), [":7", "-3"]),
    "infinite": (links("src: a, dst: b, bandwidth: .inf"), [":7", "inf"]),
    "nan": (links("src: a, dst: b, bandwidth: .nan"), [":7", "nan"]),
    "words": (links("src: a, dst: b, bandwidth: fast"), [":7", "fast"]),
    "no-bandwidth": (links("src: a, dst: b"), [":7", "bandwidth"]),
    "divided-by-zero": (links("src: a, dst: b, bandwidth: 1/0"), [":7", "by zero"]),
    "gigantic": (links("src: a, dst: b, bandwidth: 1e999999999"), [":7", "1e999999999"]),
    "count-half": (links("src: a, dst: b, bandwidth: 1, count: 1.5"), [":7", "1.5"]),
    "count-zero": (links("src: a, dst: b, bandwidth: 1, count: 0"), [":7", "count"]),
    "latency": (links("src: a, dst: b, bandwidth: 1, latency: -1"), [":7", "latency"]),
    "oneway": (links("src: a, dst: b, bandwidth: 1, oneway: maybe"), [":7", "maybe"]),
    "self-loop": (links("src: a, dst: a, bandwidth: 1"), [":7", "a"]),
    "duplicate-node": (PAIR.replace("  b:", "  a:"), [":5", "a"]),
    "duplicate-key": (PAIR + "name: again\n", [":8", "name"]),
    "no-gpu": (PAIR.replace("kind: gpu", "kind: switch"), ["GPU"]),
    "one-gpu": (PAIR.replace("kind: gpu", "kind: switch", 1), ["GPU"]),
    "unreachable": (
        PAIR.replace("links:", "  c: {kind: gpu}\n  d: {kind: gpu}\nlinks:")
        + "  - {src: c, dst: d, bandwidth: 1}\n",
        ["cannot reach"],
    ),
    "one-way": (links("src: a, dst: b, bandwidth: 1, oneway: true"), ["cannot reach"]),
    "overflow": (
        HEAD
        + TWO
        + "  c: {kind: gpu}\nlinks:\n  - {src: a, dst: b, bandwidth: 1000000000000000003}\n"
        + "  - {src: b, dst: c, bandwidth: 1000000000000000009/1000000007}\n",
        ["1000000000000000003"],
    ),
    "nccl-truncated": ('<system version="1">\n  <cpu numaid="0"\n', ["nccl-truncated.yaml"]),
    "nccl-no-gpu": (
        '<system version="1"><cpu numaid="0"></cpu></system>',
        ["no <gpu>", "NCCL_TOPO_DUMP_FILE"],
    ),
    "xml-bomb": (XML_BOMB, ["xml-bomb.yaml"]),
    "other-xml": ("<html><body/></html>", ["other-xml.yaml"]),
}

PROBLEMS: dict[str, tuple[str, list[str]]] = {
    # a good file or catalogue name, but not so
    "name": ("-t dgx-a10 -c allreduce", ["dgx-a10", "did you mean 'dgx-a100'?"]),
    "path": ("-t nosuch/file.yaml -c allreduce", ["nosuch/file.yaml"]),
    "directory": ("-t . -c allreduce", ["."]),
    "set-unknown": ("-t dgx-a100 --set boxs=2 -c allreduce", ["boxs", "did you mean 'boxes'?"]),
    "boxes-0": ("-t dgx-a100 --set boxes=0 -c allreduce", ["boxes", "0"]),
    "boxes-negative": ("-t dgx-a100 --set boxes=-1 -c allreduce", ["boxes", "-1"]),
    "boxes-word": ("-t dgx-a100 --set boxes=two -c allreduce", ["boxes", "two"]),
    "boxes-half": ("-t dgx-a100 --set boxes=1.5 -c allreduce", ["boxes", "1.5"]),
    "boxes-many": (
        "-t dgx-a100 --set boxes=1000000000 -c allreduce",
        ["boxes", "1,000,000,000", "limit"],
    ),
    "torus": ("-t torus-3d --set x=1 --set y=1 --set z=1 -c allgather", ["GPU"]),
    "rank-unknown": ("-t dgx-a100 -c allreduce --ranks box0/gpu0,box0/gpu9", ["box0/gpu9"]),
    "ranks-none": ("-t dgx-a100 -c allreduce --ranks box7/*", ["box7/*"]),
    "ranks-twice": ("-t dgx-a100 -c allreduce --ranks box0/gpu0,box0/gpu0", ["box0/gpu0"]),
    "ranks-one": ("-t dgx-a100 -c allreduce --ranks box0/gpu0", ["1 rank", "two GPUs"]),
    "rank-is-switch": ("-t dgx-a100 -c allreduce --ranks box0/gpu0,box0/nvswitch", ["nvswitch"]),
    "root-unknown": ("-t dgx-a100 -c broadcast --root box0/gpu8", ["box0/gpu8", "did you mean"]),
    "root-range": ("-t dgx-a100 -c broadcast --root 8", ["8", "0 to 7"]),
    "root-idle": (
        "-t dgx-a100 -c reduce --ranks box0/gpu0,box0/gpu1 --root box0/gpu2",
        ["box0/gpu2"],
    ),
    "cut-off": (
        "-t torus-2d --set x=3 --set y=3 -c allgather --ranks 0/0,2/2",
        [],
    ),
}


def refused(outcome: Outcome, code: int, words: list[str], *, listed: bool = False) -> None:
    """One message that says what is wrong, the right exit code, and nothing else.

    One line; a stuck plan lists who waits for whom in indented lines below it. Where all findings
    are `listed` on standard output, the message is the first of them.
    """
    got, out, err = outcome
    first, *more = err.splitlines()
    assert re.match(r"forestcoll: error: \S", first), err
    assert "stuck" in first if more else True, err
    assert all(line.startswith("  ") for line in more), err
    assert got == code, err
    assert out == "" or listed, out
    assert "Traceback" not in err
    assert "Error(" not in err
    assert len(err) < 1000, err
    for word in words:
        assert word in err, err


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str, call: Run, tmp_path: Path) -> None:
    line, words = OPTIONS[case]
    refused(call(*line.split()), 2, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", TOPOLOGIES)
def test_topology_files(case: str, call: Run, tmp_path: Path) -> None:
    text, words = TOPOLOGIES[case]
    file = tmp_path / f"{case}.yaml"
    file.write_text(text, encoding="utf-8")
    refused(call("synthesize", "-t", file.name, "-c", "allgather", "-o", "out/"), 1, words)
    refused(call("topology", "check", file.name), 1, words)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems(case: str, call: Run, tmp_path: Path) -> None:
    line, words = PROBLEMS[case]
    refused(call("synthesize", *line.split(), "-o", "new/dir/"), 1, words)
    refused(call("optimum", *line.split()), 1, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", bytes(range(256)) * 4], ids=["bom", "bytes"])
def test_bytes_are_no_topology_forest_or_plan(data: bytes, call: Run, tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(data)
    refused(call("optimum", "-t", file.name, "-c", "allgather"), 1, ["bytes"])
    refused(call("verify", file.name), 1, ["bytes"])
    refused(call("run", file.name), 1, ["bytes"])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one good schedule of three files."""
    out = tmp_path_factory.mktemp("good")
    arguments = ["-t", "ring", "--set", "gpus=3", "-c", "allreduce", "-o", f"{out}/"]
    assert cli.main(["synthesize", *arguments]) == 0
    return out


def file_of(good: Path, suffix: str) -> Path:
    return next(good.glob(f"*{suffix}"))


def test_nothing_is_overwritten(good: Path, call: Run) -> None:
    before = {p: p.read_bytes() for p in good.iterdir()}
    arguments = ["-t", "ring", "--set", "gpus=3", "-c", "allreduce", "-o", f"{good}/"]
    refused(call("synthesize", *arguments), 1, ["exists already", "--force"])
    assert {p: p.read_bytes() for p in good.iterdir()} == before


def test_output_below_a_file(good: Path, call: Run) -> None:
    below = file_of(good, ".xml") / "x.forest.json"
    arguments = ["-t", "ring", "-c", "allreduce", "-o", str(below)]
    refused(call("synthesize", *arguments), 1, ["is not a directory"])


def test_output_is_a_device(call: Run) -> None:
    arguments = ["-t", "ring", "-c", "allgather", "--format", "forest", "-o", "/dev/full.json"]
    code, _, err = call("synthesize", *arguments[:-1], "/dev/null/")
    assert code == 1
    assert "is not a directory" in err


def test_too_many_trees_for_a_target(call: Run, tmp_path: Path) -> None:
    line = "-t star --set gpus=66 -c allgather --trees 1 --target rccl -o out/"
    refused(call("synthesize", *line.split()), 1, ["66 thread blocks", "rccl holds 64"])
    assert list(tmp_path.iterdir()) == []


Change = Callable[[str], str]


def drop_line(pattern: str) -> Change:
    """The text without its first line that matches."""

    def change(text: str) -> str:
        lines = text.splitlines(keepends=True)
        index = next(i for i, line in enumerate(lines) if re.search(pattern, line))
        return "".join(lines[:index] + lines[index + 1 :])

    return change


def swap(pattern: str, new: str) -> Change:
    """The first match replaced."""

    def change(text: str) -> str:
        assert re.search(pattern, text), pattern
        return re.sub(pattern, new, text, count=1)

    return change


def cut_at(part: float) -> Change:
    return lambda text: text[: int(len(text) * part)]


def edit(change: Callable[[dict], object]) -> Change:  # type: ignore[type-arg]
    """JSON, changed in place."""

    def apply(text: str) -> str:
        value = json.loads(text)
        change(value)
        return json.dumps(value)

    return apply


FORESTS: dict[str, tuple[Change, list[str]]] = {
    "truncated": (cut_at(0.6), ["line"]),
    "share": (swap(r'"share": "\d+/\d+"', '"share": "1/7"'), []),
    "share-zero": (swap(r'"share": "\d+/\d+"', '"share": "0"'), ["share"]),
    "share-word": (swap(r'"share": "\d+/\d+"', '"share": "much"'), ["share"]),
    "share-float": (swap(r'"share": "\d+/\d+"', '"share": 0.25'), ["share"]),
    "algbw": (edit(lambda f: f.update(algbw="1000")), ["algbw", "1000"]),
    "bound": (edit(lambda f: f["bound"].update(algbw="1000")), ["bound"]),
    "phase": (edit(lambda f: f["trees"][0].update(phase="sideways")), ["phase"]),
    "root": (edit(lambda f: f["trees"][0].update(root="gpu99")), ["gpu99"]),
    "tree-gone": (edit(lambda f: f["trees"].pop()), ["share"]),
    "trees-gone": (edit(lambda f: f.update(trees=[])), []),
    "edge-gone": (edit(lambda f: f["trees"][0]["edges"].pop()), ["tree 0"]),
    "edge-twice": (
        edit(lambda f: f["trees"][0]["edges"].append(f["trees"][0]["edges"][0])),
        ["tree 0"],
    ),
    "rank-twice": (edit(lambda f: f["ranks"].append(f["ranks"][0])), ["rank"]),
    "unknown-field": (edit(lambda f: f.update(speed=1)), ["speed"]),
    "no-format": (edit(lambda f: f.pop("format")), ["forest"]),
    "no-topology": (edit(lambda f: f.pop("topology")), ["topology"]),
    "link-gone": (edit(lambda f: f["topology"]["links"].pop(0)), ["link"]),
    "collective": (edit(lambda f: f.update(collective="alltoall")), ["collective"]),
    "duplicate-key": (swap(r'"collective"', '"format": "x", "collective"'), ["format"]),
}

XML_PLANS: dict[str, tuple[Change, list[str]]] = {
    "truncated": (cut_at(0.5), ["not well-formed XML"]),
    "collective": (swap('coll="allreduce"', 'coll="sumall"'), ["sumall"]),
    "protocol": (swap('proto="Simple"', 'proto="Fast"'), ["Fast"]),
    "ranks": (swap(r'ngpus="3"', 'ngpus="4"'), []),
    "ranks-huge": (swap(r'ngpus="3"', 'ngpus="999999999999"'), []),
    "chunks-huge": (swap(r'i_chunks="\d+"', 'i_chunks="99999999999"'), []),
    "chunks-negative": (swap(r'i_chunks="\d+"', 'i_chunks="-3"'), []),
    "peer": (swap(r'send="[12]"', 'send="7"'), ["7"]),
    "peer-self": (swap(r'(<gpu id="0".*\n\s*<tb [^\n]*?)send="-?\d"', r'\1send="0"'), []),
    "offset": (swap(r'(type="s"[^>]*srcoff=)"\d+"', r'\1"5000"'), ["5000"]),
    "type": (swap(r'type="s"', 'type="shout"'), ["shout"]),
    "send-gone": (drop_line(r'type="s"'), ["rank"]),
    "recv-gone": (drop_line(r'type="r"'), ["rank"]),
    "reduce-gone": (drop_line(r'type="re"'), ["rank"]),
    "count": (swap(r'cnt="\d+"', 'cnt="99"'), []),
    "not-a-number": (swap(r'cnt="\d+"', 'cnt="one"'), ["one"]),
    "entities": (lambda _: XML_BOMB, []),
    "other-xml": (lambda _: "<html><body/></html>", []),
}

JSON_PLANS: dict[str, tuple[Change, list[str]]] = {
    "truncated": (cut_at(0.5), ["not well-formed JSON"]),
    "collective": (edit(lambda p: p.update(collective="sumall")), ["sumall"]),
    "no-gpus": (edit(lambda p: p.pop("gpus")), ["gpus"]),
    "gpus-empty": (edit(lambda p: p.update(gpus=[])), []),
    "gpu-gone": (edit(lambda p: p["gpus"].pop()), []),
    "chunks-huge": (edit(lambda p: p["gpus"][0].update(input_chunks=10**12)), []),
    "blocks-gone": (edit(lambda p: p["gpus"][0].update(threadblocks=[])), ["rank"]),
    "op": (swap(r'"name": "signal"', '"name": "shout"'), ["shout"]),
    "signal-gone": (swap(r'"name": "signal"', '"name": "nop"'), ["rank"]),
    "wait-gone": (swap(r'"name": "wait"', '"name": "nop"'), ["rank"]),
    "nan": (swap(r'"input_chunks": \d+', '"input_chunks": NaN'), []),
    "deep": (lambda _: nest(100_000), []),
    "empty-object": (lambda _: "{}", []),
    "a-number": (lambda _: "17", []),
    "duplicate-key": (swap(r'"gpus"', '"gpus": [], "gpus"'), ["gpus"]),
}


@pytest.mark.parametrize("case", FORESTS)
def test_forests(case: str, good: Path, call: Run, tmp_path: Path) -> None:
    change, words = FORESTS[case]
    file = tmp_path / "x.forest.json"
    file.write_text(change(file_of(good, ".forest.json").read_text()))
    plan = case == "no-format"  # what does not call itself a forest is read as a plan
    refused(call("verify", file.name), 1, ["x.forest.json", *words], listed=plan)


@pytest.mark.parametrize("case", XML_PLANS)
def test_xml_plans(case: str, good: Path, call: Run, tmp_path: Path) -> None:
    change, words = XML_PLANS[case]
    file = tmp_path / "x.msccl.xml"
    file.write_text(change(file_of(good, ".msccl.xml").read_text()))
    refused(call("verify", file.name), 1, ["x.msccl.xml", *words], listed=True)


@pytest.mark.parametrize("case", JSON_PLANS)
def test_json_plans(case: str, good: Path, call: Run, tmp_path: Path) -> None:
    change, words = JSON_PLANS[case]
    file = tmp_path / "x.mscclpp.json"
    file.write_text(change(file_of(good, ".mscclpp.json").read_text()))
    refused(call("verify", file.name), 1, ["x.mscclpp.json", *words], listed=True)


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".msccl.xml", XML_PLANS["truncated"][0]),
        (".msccl.xml", XML_PLANS["send-gone"][0]),
        (".msccl.xml", XML_PLANS["offset"][0]),
        (".mscclpp.json", JSON_PLANS["truncated"][0]),
        (".mscclpp.json", JSON_PLANS["signal-gone"][0]),
        (".mscclpp.json", JSON_PLANS["deep"][0]),
    ],
)
def test_run_refuses_or_stops(
    suffix: str, change: Change, good: Path, call: Run, tmp_path: Path
) -> None:
    file = tmp_path / f"x{suffix}"
    file.write_text(change(file_of(good, suffix).read_text()))
    refused(call("run", file.name, "--size", "64K", "--timeout", "2"), 1, [])


def test_run_takes_plans_only(good: Path, call: Run) -> None:
    refused(call("run", str(file_of(good, ".forest.json"))), 1, ["forest"])
    refused(call("run", "nosuch.xml"), 1, ["nosuch.xml"])
    refused(call("run", str(good)), 1, ["not a regular file"])


def test_run_beyond_memory(good: Path, call: Run) -> None:
    refused(
        call("run", str(file_of(good, ".msccl.xml")), "--size", "900T"),
        1,
        ["GiB", "choose a smaller size"],
    )


def test_verify_names_what_it_cannot_read(good: Path, call: Run, tmp_path: Path) -> None:
    refused(call("verify", "nosuch.json"), 1, ["nosuch.json", "No such file"])
    refused(call("verify", str(tmp_path)), 1, ["irectory"])
    (tmp_path / "empty").write_text("")
    refused(call("verify", "empty"), 1, ["empty"])
    (tmp_path / "topology.yaml").write_text(PAIR)
    refused(call("verify", "topology.yaml"), 1, ["topology.yaml"])


def test_verify_goes_on_after_a_bad_file(good: Path, call: Run) -> None:
    right = str(file_of(good, ".msccl.xml"))
    code, out, err = call("verify", "nosuch.json", right)
    assert code == 1
    assert f"{right}: ok" in out
    assert err == "forestcoll: error: nosuch.json: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("synthesize -t nosuch -c allreduce -o out", 1, "nosuch"),
        ("synthesize -t ring -c allredcue -o out", 2, "allredcue"),
        ("run nosuch.msccl.xml", 1, "nosuch.msccl.xml"),
        ("verify .", 1, "irectory"),
        ("topology expand ring -o .", 1, "directory"),
    ],
)
def test_as_a_process(line: str, code: int, word: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forestcoll", *line.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(forestcoll.__file__).parents[1])},
    )  # fmt: skip
    refused((done.returncode, done.stdout, done.stderr), code, [word])
    assert list(tmp_path.iterdir()) == []
