"""Names in files that would spoil pages, pictures and files for other tools: spelled out there too.

Whatever a node or a topology is called, what is written parses, holds no character that hides or
moves a cursor, and lies where it was asked for.
"""

from __future__ import annotations

import base64
import html.parser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from artefacts import Artefacts
from command_line import Run
from google.protobuf.message import Message
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
from test_export_fabric import NAME as DOT_NAME
from test_export_messages import METADATA, NODE, messages, read_goal
from test_hostile_text import NAMES
from test_view_data import unpack

from forestcoll.common.escape import escape, file_name
from forestcoll.ui.export import FORMATS
from forestcoll.ui.report.notebook import html_table

HOSTILE = {
    "text": "".join(NAMES.values()),
    "no XML": "\ufffe\uffff",
    "markup": "</title><script>alert(1)</script>&x;]]>",
    "quotes": '"\']; \\" }',
    "backslash": "a\\",
    "path": "../../x/../y",
    "root": "/etc/x",
    "hidden": ".x",
    "empty": "",
    "long": "x" * 5000,
}
KINDS = {"forest": "forest.json", "mscclpp-json": "mscclpp.json", "routes": "routes.json"}


@pytest.fixture
def sources(compiled: Artefacts) -> dict[str, str]:
    """Texts of files with a node called `gpu0`, of the topology `ring-4`."""
    trees = compiled("ring gpus=4", "allgather")
    routes = compiled("ring gpus=4", "alltoall", "--format", "routes")
    return {
        kind: (routes if kind == "routes" else trees).file(f".{end}").read_text()
        for kind, end in KINDS.items()
    }


def written(sources: dict[str, str], kind: str, name: str, folder: Path) -> Path:
    """The file with that name for its topology, and of a node and the box around it."""

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return {"gpu0": f"b{name}/{name}0", "ring-4": name}.get(value, value)
        if isinstance(value, dict):
            return {renamed(key): renamed(inner) for key, inner in value.items()}
        return [*map(renamed, value)] if isinstance(value, list) else value

    folder.mkdir()
    for what in {kind, "forest"} & sources.keys():
        path = folder / f"x.{KINDS[what]}"
        path.write_text(json.dumps(renamed(json.loads(sources[what]))))
    return folder / f"x.{KINDS[kind]}"


def texts_of(value: Any) -> Iterator[str]:
    """All strings in plain values, or in a message of Protocol Buffers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Message):
        for _, inner in value.ListFields():
            yield from texts_of(inner)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from texts_of(pair)
    elif not isinstance(value, bytes | int | float) and value is not None:
        for inner in value:
            yield from texts_of(inner)


def read(path: Path) -> Iterator[str]:
    """The texts that a reader of the file sees; it parses."""
    data = path.read_bytes()
    if path.name.endswith(".et"):
        first, *rest = messages(data)
        yield from texts_of([METADATA.FromString(first), *map(NODE.FromString, rest)])
    elif path.name.endswith(".perfetto-trace"):
        yield from texts_of(perfetto.Trace.FromString(data))
    elif path.suffix == ".json":
        yield from texts_of(json.loads(data))
    elif path.suffix == ".svg":
        root = ElementTree.fromstring(data)
        assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
            *("svg", "style", "defs", "marker", "path", "rect", "ellipse", "text", "title", "g"),
        }
        yield data.decode()
    elif path.suffix == ".dot":
        text = data.decode()
        outside = re.sub(DOT_NAME, "", text)
        assert re.fullmatch(r"[\w\s{}\[\]=,;>-]*", outside), outside
        yield text
    elif path.suffix == ".goal":
        assert read_goal(data.decode())
        yield data.decode()
    else:
        raise AssertionError(path)


def check_shown(text: str) -> None:
    wrong = {c for c in text if escape(c) != c and c not in "\n\t"}
    assert not wrong, f"{wrong} in {text[:200]!r}"


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_exports_of_hostile_names(
    sources: dict[str, str], kind: str, name: str, call: Run, tmp_path: Path
) -> None:
    path, done = written(sources, kind, name, tmp_path / "in"), 0
    forms = [form for form, record in FORMATS.items() if {"plan", "forest"} & {*record.takes}]
    for form in forms:
        folder = tmp_path / "outer" / form
        code, _, err = call("export", str(path), "--to", form, "--size", "1M", "-o", f"{folder}/")
        if code:  # flows are no messages
            assert kind == "routes", err
            continue
        files = [p for p in folder.rglob("*") if p.is_file()]
        assert files
        assert all(p.parent == folder for p in files)
        assert all(re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{,250}", p.name) for p in files)
        for file in files:
            for text in read(file):
                check_shown(text)
        done += 1
    assert done >= (3 if kind == "routes" else len(forms))
    inside = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*")}
    assert inside == {"in", "outer"}


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def tags(text: str) -> list[str]:
    reader = Reader()
    reader.feed(text)
    return reader.tags


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_hostile_names(
    sources: dict[str, str], kind: str, name: str, call: Run, tmp_path: Path
) -> None:
    made = {}
    for word, used in (("plain", "machine"), ("hostile", name)):
        path = written(sources, kind, used, tmp_path / word)
        code, _, err = call("view", str(path), "--size", "1M", "-o", str(path.with_suffix(".html")))
        assert code == 0, err
        made[word] = path.with_suffix(".html").read_bytes().decode()
    check_shown(made["hostile"])
    assert tags(made["hostile"]) == tags(made["plain"])
    (data,) = re.findall(r'id="data">([A-Za-z0-9+/=\s]*)</script>', made["hostile"])
    found = unpack(base64.b64decode(data))
    assert any(escape(name)[:20] in node for node in found["nodes"])
    for text in texts_of({k: v for k, v in found.items() if not hasattr(v, "dtype")}):
        check_shown(text)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_tables_of_notebooks_with_hostile_names(name: str) -> None:
    table = html_table(name, [f"a{name}"], [[name]])
    check_shown(table)
    assert tags(table) == tags(html_table("a", ["a"], [["a"]]))


def test_names_of_files_stay_what_they_are() -> None:
    for name in ("dgx-a100-2.allreduce", "Two_Boxes+1"):
        assert file_name(name) == name
    assert file_name("../../etc/x y") == "etc-x-y"
    assert file_name("\u202e\0") == file_name("") == "unnamed"
