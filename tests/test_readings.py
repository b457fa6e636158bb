"""What files of machines and fabrics say, read or refused: the rows of readings/*.txt.

A row begins with `= FACT`, and then has settings (`set NAME=VALUE`) and the file: lines after `|`,
or `like FACT`, the file of a row above with other lines (`-` the old ones, `+` the new ones), or an
expression after `~`, for what no line shows. A setting `@NAME` is a file of real machines. Below
stands what the file is read as, or the error after `!`. Which reader is asked says the name of the
file of rows: a format, `topology` for our own files, `measured` for what tools measured,
`catalogue` for names of topologies; `real` has files of real machines (`file NAME`), which may be
absent. `--update-golden` writes them.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from real_files import FOLDER, read_as

from forestcoll.common.errors import ForestCollError, TopologyError
from forestcoll.common.text_file import digest
from forestcoll.topology import (
    Topology,
    catalog,
    compose,
    dumps_topology,
    loads_topology,
    readers,
)
from forestcoll.topology.calibrate import Measured, load_measurement
from forestcoll.topology.readers.shared import Fabric

ROWS = Path(__file__).parent / "readings"
FORMS = {form.name for form in readers.FORMATS}
SECONDS = 20
MANY = 40
"""Lines beyond which those are told together that differ in numbers alone."""


def change(text: str, edits: str) -> str:
    """`text` with other lines: those after `-`, run by run, gone, and those after `+` there."""
    lines, at = text.split("\n"), 0
    for hunk in re.findall(r"(?:^-.*\n)+(?:^\+.*\n)*", edits, re.MULTILINE):
        old, new = ([line[2:] for line in hunk.splitlines() if line[0] == sign] for sign in "-+")
        at = next(i for i in range(at, len(lines)) if lines[i : i + len(old)] == old)
        lines[at : at + len(old)] = new
        at += len(new)
    return "\n".join(lines)


@cache
def rows(form: str) -> dict[str, tuple[list[str], dict[str, str], str]]:
    """By fact: the lines that ask, the settings, and the file's text (or name, of a real one)."""
    found: dict[str, tuple[list[str], dict[str, str], str]] = {}
    file = ROWS / f"{form}.txt"
    assert file.exists(), f"the format {form} has no rows: write tests/readings/{form}.txt"
    for block in file.read_text().strip("\n").split("\n\n"):
        asks = [line for line in block.splitlines() if not line.startswith(("  ", "! "))]
        parts: dict[str, list[str]] = {}
        for line in asks:
            parts.setdefault(line.partition(" ")[0], []).append(line.partition(" ")[2])
        text = "".join(f"{line}\n" for line in parts.get("|", []))
        if "~" in parts:
            text = eval(parts["~"][0])
        elif "file" in parts:
            text = str(FOLDER / parts["file"][0])
        elif "like" in parts:
            edits = "".join(f"{line}\n" for line in asks if line[0] in "-+")
            text = change(found[parts["like"][0]][2], edits)
        asked = (line.split("=", 1) for line in parts.get("set", []))
        settings = {name: re.sub("^@", f"{FOLDER}/", value) for name, value in asked}
        assert parts["="][0] not in found, parts["="]
        found[parts["="][0]] = asks, settings, text
    return found


def text_of(form: str, fact: str) -> str:
    """The file of that row."""
    return rows(form)[fact][2]


@cache
def dumps() -> dict[str, tuple[str, str, dict[str, str]]]:
    """(format, text, settings) of the rows that are called slips, and of real machines' files where
    they are at hand and can be read."""
    found: dict[str, tuple[str, str, dict[str, str]]] = {}
    for form in sorted(FORMS - {"model"}):
        for fact, (_, settings, text) in rows(form).items():
            if fact.startswith("slips"):
                found[fact] = form, text, settings
    for _, settings, name in rows("real").values():
        try:
            catalog.load(name, settings)
        except ForestCollError:  # devices, a model of racks, one host; or it is not there
            continue
        text = Path(name).read_text("utf-8", "replace")
        known = readers.format_of(text)
        assert known is not None
        found.setdefault(str(Path(name).relative_to(FOLDER)), (known.name, text, settings))
    return found


def number(value: object) -> str:
    return f"{float(value):.12g}" if isinstance(value, Fraction | float) else str(value)


def told(found: Topology | Fabric | Measured) -> Iterator[str]:
    """All that was read, a line each."""
    if isinstance(found, Measured):
        yield f"{found.tool}: {found.ranks} ranks{', all at once' * found.together}"
        for unit, values in (("GB/s", found.rates), ("us", found.latencies)):
            yield from (f"{i} -> {j} {value:g} {unit}" for (i, j), value in values.items())
        return
    yield f"name {found.name}"
    if isinstance(found, Fabric):
        yield from (f"switch {name}" for name in found.switches)
        yield from (f"host {name}" for name in found.hosts)
        yield from (f"{c.one} - {c.two} {number(c.bandwidth)}" for c in found.cables)
    else:
        for name, node in found.nodes.items():
            yield f"{node.kind} {name}{' multicast' * node.multicast}{' adds' * node.aggregation}"
        for link in found.links:
            more = f" x{link.count}" * (link.count > 1) + f" {link.rule}" * bool(link.rule)
            more += "" if link.latency is None else f" {number(link.latency)} us"
            way = "->" if link.oneway else "-"
            yield f"{link.src} {way} {link.dst} {number(link.bandwidth)}{more}"
        for port in found.adapters:
            near, rate = ", ".join(port.near), port.bandwidth
            yield f"port {port.name} {number(rate)} near {near} {port.attributes or ''}".rstrip()
    yield from (f"note: {note}" for note in found.notes)


def kind_of_line(line: str) -> str:
    """What a line says, whatever the numbers in names: those of a link's rate stay."""
    words = line.split(" ")
    names = 3 if words[1] in ("-", "->") else len(words)
    return " ".join([*(re.sub("[0-9]+", "*", word) for word in words[:names]), *words[names:]])


def read(form: str, settings: dict[str, str], text: str) -> Topology | Fabric | Measured:
    """What the reader makes of it; a topology outlives being written."""
    if form == "measured":
        return load_measurement(text, "f")
    if form == "topology":
        found: Topology | Fabric = loads_topology(text, "f", settings)
    elif form in ("real", "catalogue"):
        found = catalog.load(text, settings)
    else:
        own, network = compose.split_settings(settings)
        found = read_as(form, text, "f", own)
        if network:
            found = compose.compose_boxes(found, network)
    if isinstance(found, Topology):
        assert loads_topology(dumps_topology(found)) == found
    return found


def say(form: str, settings: dict[str, str], text: str) -> list[str]:
    """What is said of a file: what it is read as, or the error."""
    began = time.process_time()
    try:
        lines = list(told(read(form, settings, text)))
    except TopologyError as error:
        lines = [f"! {error}".replace(f"{FOLDER}/", "")]
        assert "\n" not in lines[0]
    else:
        if len(lines) > MANY:
            kinds = Counter(map(kind_of_line, lines))
            whole = f"digest of all {digest(chr(10).join(lines))[:16]}"
            lines = [*(f"{count} of {kind}" for kind, count in kinds.items()), whole]
        recognised = readers.format_of(text)
        if form in FORMS and (recognised is None or recognised.name != form):
            lines.append(f"recognised as {recognised and recognised.name}")
        lines = [f"  {line}" for line in lines]
    assert time.process_time() - began < SECONDS
    return lines


@pytest.mark.parametrize("form", sorted(path.stem for path in ROWS.glob("*.txt")))
def test_readings(form: str, request: pytest.FixtureRequest) -> None:
    if form == "real" and not FOLDER.exists():
        pytest.skip(f"{FOLDER} is not there")
    blocks = ["\n".join([*asks, *say(form, *given)]) for asks, *given in rows(form).values()]
    path, said = ROWS / f"{form}.txt", "\n\n".join(blocks) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(said)
    assert said.split("\n\n") == path.read_text().split("\n\n")


def test_every_format_and_every_real_file_has_a_row() -> None:
    assert {path.stem for path in ROWS.glob("*.txt")} | {"model"} >= FORMS  # refused: among `real`
    if FOLDER.exists():
        files = {str(path) for path in FOLDER.rglob("*") if path.is_file()}
        assert files - {str(FOLDER / "SOURCES.md")} == {text for *_, text in rows("real").values()}


@pytest.mark.parametrize("fact", sorted(fact for fact in dumps() if fact.startswith("slips")))
def test_a_dump_from_another_system_reads_the_same(fact: str) -> None:
    """With a byte-order mark, and lines that end in CR and LF."""
    form, text, settings = dumps()[fact]
    asked = say(form, settings, text)
    assert not any("recognised" in line for line in asked)
    assert say(form, settings, "\ufeff" + text.replace("\n", "\r\n")) == asked
