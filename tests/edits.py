"""One engine of mutations: plans and programs as trees, changed by rows of text or at random.

A tree is what JSON holds. XML: an element is an object of its attributes, its tag under `<`, its
children in the list `in`. Programs: see notation.py. A place is a path, `0.1.3.cnt`: a number in an
object stands for a child of it (rank, thread block, step, step of a pipeline), `*` for all.

Edits, one a line:

    PATH = VALUE        set; VALUE is JSON or a word, `<tag .../>` an element, `@PATH` a copy
    PATH -              delete
    PATH + VALUE * 3    insert before that entry of a list, once without the `*`; `#` is its number
    PATH <> PATH        change places
    s|OLD|NEW|          the first OLD in the text, with Python's escapes
    cut 1/2             the first half of the text
    text NEW            another text

In all, `~x*300~` is 300 times x.
"""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

CHILDREN = ("in", "gpus", "threadblocks", "ops", "ranks", "blocks", "steps")
"""Lists that a number in a path goes through by itself."""
ROWS = Path(__file__).parent / "rows"


def spots(tree: Any, path: str) -> list[tuple[Any, Any]]:
    """(container, key) of every place that the path names."""
    holders, keys = [tree], path.split(".")
    for depth, word in enumerate(keys):
        places: list[tuple[Any, Any]] = []
        for holder in holders:
            if isinstance(holder, dict) and (word == "*" or word.lstrip("-").isdigit()):
                holder = next(holder[name] for name in CHILDREN if name in holder)
            if not isinstance(holder, list):
                places.append((holder, word))
            else:
                count = len(holder)
                places += [(holder, k) for k in (range(count) if word == "*" else [int(word)])]
        if depth < len(keys) - 1:
            holders = [holder[key] for holder, key in places]
    return places


def change(tree: Any, edit: str) -> None:
    """Does one edit of a tree."""
    matched = re.fullmatch(r"(\S+) (=|-|\+|<>)(?: (.*?))?(?: \* (\d+))?", repeat(edit))
    assert matched, edit
    path, act, text, times = matched.groups()
    for holder, key in reversed(spots(tree, path)):
        if act == "-":
            del holder[key]
        elif act == "=":
            holder[key] = value_of(tree, text or "")
        elif act == "+":
            count = int(times or 1)
            numbers = range(key, key + count)
            holder[key:key] = [value_of(tree, text.replace("#", str(k))) for k in numbers]
        else:
            ((other, place),) = spots(tree, text)
            holder[key], other[place] = other[place], holder[key]
        if act != "=" and isinstance(holder, list):
            for k, child in enumerate(holder):  # the steps of XML are in order
                if isinstance(child, dict) and child.get("<") == "step":
                    child["s"] = str(k)


def repeat(edit: str) -> str:
    """The edit with what `~x*300~` stands for."""
    return re.sub(r"~(.+?)\*(\d+)~", lambda match: match[1] * int(match[2]), edit)


def value_of(tree: Any, text: str) -> Any:
    """What the text of a row stands for."""
    if text.startswith("@"):
        ((holder, key),) = spots(tree, text[1:])
        return deepcopy(holder[key])
    if text.startswith("<"):
        return xml_tree(ET.fromstring(text))
    try:
        return json.loads(text)
    except ValueError:
        return text


def xml_tree(element: ET.Element) -> dict[str, Any]:
    """An element as a tree."""
    children = {"in": [xml_tree(child) for child in element]} if len(element) else {}
    return {"<": element.tag, **element.attrib, **children}


def write_xml(tree: Any, depth: int = 0) -> str:
    """One line a tag, as the loaders want it."""
    attributes = [f' {key}="{text}"' for key, text in tree.items() if key not in ("<", "in")]
    tag, indent, inside = tree.get("<", "x"), "  " * depth, tree.get("in")
    children = (
        [child for child in inside if isinstance(child, dict)] if isinstance(inside, list) else []
    )
    head = f"{indent}<{tag}{''.join(attributes)}"
    if not children:
        return f"{head}/>\n"
    inner = "".join(write_xml(child, depth + 1) for child in children)
    return f"{head}>\n{inner}{indent}</{tag}>\n"


def read_tree(text: str) -> Any:
    """The tree of a plan file."""
    return xml_tree(ET.fromstring(text)) if text.startswith("<") else json.loads(text)


def write_tree(tree: Any) -> str:
    """The file of a tree."""
    return write_xml(tree) if "<" in tree else json.dumps(tree, indent=1)


def edit_text(text: str, edits: list[str]) -> str:
    """A plan file after the edits."""
    tree: Any = None
    for edit in map(repeat, edits):
        if edit.startswith(("s|", "cut ", "text ")):
            text, tree = text if tree is None else write_tree(tree), None
            if edit.startswith("cut "):
                part, of = edit[4:].split("/")
                text = text[: len(text) * int(part) // int(of)]
                continue
            if edit.startswith("text "):
                text = edit[5:].encode().decode("unicode_escape")
                continue
            old, new = (word.encode().decode("unicode_escape") for word in edit[2:-1].split("|"))
            assert old in text, edit
            text = text.replace(old, new, 1)
            continue
        tree = read_tree(text) if tree is None else tree
        change(tree, edit)
    return text if tree is None else write_tree(tree)


@dataclass
class Row:
    """A base that is spoilt, and what is said of it."""

    name: str
    base: str
    options: list[str]
    edits: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def rows_of(file: str) -> list[Row]:
    """The rows of a file: `NAME: BASE OPTIONS`, edits after `$`, and below what is said."""
    rows: list[Row] = []
    for line in (ROWS / file).read_text().splitlines():
        if line.startswith("$ "):
            rows[-1].edits.append(line[2:])
        elif line.startswith("  "):
            rows[-1].said.append(line[2:])
        elif line and not line.startswith("#"):
            name, _, rest = line.partition(": ")
            base, *options = rest.split()
            rows.append(Row(name, base, options))
    assert len({row.name for row in rows}) == len(rows)
    return rows


def check_rows(
    file: str, say: Callable[[Row], Iterator[str]], request: pytest.FixtureRequest
) -> None:
    """What is said of every row is what stands below it; `--update-golden` writes it anew."""
    path, told = ROWS / file, {}
    for row in rows_of(file):
        told[row.name] = [line.replace("\n", "\\n") for line in say(row)]
        if not request.config.getoption("--update-golden"):
            assert told[row.name] == row.said, f"{row.name}: {row.base} {row.edits}"
    if request.config.getoption("--update-golden"):
        lines: list[str] = []
        last = ""
        for line in [*path.read_text().splitlines(), ""]:
            if line.startswith("  "):
                continue
            if last and not line.startswith("$ "):
                lines += [f"  {each}" for each in told[last]]
                last = ""
            lines.append(line)
            if line and not line.startswith(("$ ", "#")):
                last = line.partition(": ")[0]
        path.write_text("\n".join(lines[:-1]) + "\n")


# --- at random

HUGE = "@huge@"  # stands for a number of 5,000 digits, which Python would not write
VALUES: list[Any] = [
    *(0, 1, -1, 2, 7, 16, 128, 2**31, 2**32, 2**63, 10**30, HUGE, 1.5, 1e400, float("nan")),
    *("", "x", "i", "s", "gpu0", "0", "-1", "1/0", "1/3", "9" * 5000, "1/" + "7" * 390, "nan"),
    *("a\0b", "\ud800", "\u202ex", "\x1b[2K", "a\nb", "..", "/etc/passwd", "a" * 5000, "*", "é"),
    *("{0..9}", "{i}", "0..99999", "i*i", "2**64", "boxes+1", "<", "&amp;", '"', "-", "~"),
    *("31", "71", "72", "32768", "1e9", "0x7fffffff", "010", "null", "&", " ", "memory", "port"),
    *("switch", "pipeline", {"type": "i"}, {"name": "nop"}, [10**9], [-1]),
    *(None, True, False, [], {}, [[]], [0] * 50, {"x": {}}, [None], ["x", "x"]),
]
WORDS = [
    "",
    "<",
    ">",
    '"',
    "{",
    "]",
    "\t",
    "\0",
    "é",
    "\xa0",
    "\ufeff",
    "-1",
    "1e999",
    "&d;",
    "NaN",
]
WORDS += [each * 5000 for each in ("[", "9", '{"a":', "- ", "<pci busid='0:1:0.0'>")]
WORDS += [each * 400_000 for each in ("a", " ", ",")]


def places_of(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a tree."""
    places: list[tuple[Any, Any]] = []
    open_: list[Any] = [tree]
    while open_:
        one = open_.pop()
        keys: Any = range(len(one)) if isinstance(one, list) else ()
        keys = list(one) if isinstance(one, dict) else keys
        places += [(one, key) for key in keys]
        open_ += [one[key] for key in keys]
    return places


def spoil(tree: Any, dice: random.Random) -> None:
    """Changes one to three places of a tree."""
    for _ in range(dice.randint(1, 3)):
        places = places_of(tree)
        if not places:
            return
        where, key = dice.choice(places)
        other, place = dice.choice(places)
        act, number = dice.randrange(8), str(where[key])
        if act == 0:
            where[key] = deepcopy(dice.choice(VALUES))  # which later changes leave as they are
        elif act == 1:
            where.pop(key)
        elif act == 2 and re.fullmatch(r"-?\d{1,18}", number):
            where[key] = type(where[key])(int(number) + dice.choice((-1, 1)))
        elif act == 3:
            where[key] = deepcopy(other[place])
        elif act == 4:
            where[key], other[place] = deepcopy(other[place]), deepcopy(where[key])
        elif act == 5 and isinstance(where, dict):
            where[dice.choice(["x", "", "a\0", *where])] = where.pop(key)
        elif isinstance(where, list):
            one = deepcopy(dice.choice(where))
            where[key:key] = [one] * dice.choice((1, 1, 1, 2, 50))


def spoil_file(text: str, dice: random.Random) -> str:
    """A file of JSON, XML or YAML with places of its tree changed; any other as a text."""
    if text.startswith("<"):
        root = ET.fromstring(text)
        if any((each.text or "").strip() for each in root.iter()):  # not only attributes
            return spoil_text(text, dice)
        tree = xml_tree(root)
        spoil(tree, dice)
        return write_xml(tree).replace(HUGE, "9" * 5000)
    if text.startswith("{"):
        tree = json.loads(text)
        spoil(tree, dice)
        spoilt = json.dumps(tree, ensure_ascii=dice.random() < 0.7)
        spoilt = spoilt.replace(f'"{HUGE}"', "9" * 5000)
        return spoilt.replace("Infinity", "1e999") if dice.random() < 0.5 else spoilt
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict | list):
        return spoil_text(text, dice)
    spoil(tree, dice)
    spoilt = yaml.safe_dump(deepcopy(tree), sort_keys=False, allow_unicode=True, width=10**6)
    return spoilt.replace(f"'{HUGE}'", "9" * 5000)


def spoil_text(text: str, dice: random.Random) -> str:
    """Any text with a piece of it replaced, doubled, or in another's place; or all of it often."""
    if dice.random() < 0.03:
        return text * (3_000_000 // len(text))
    start = dice.randrange(len(text))
    end = min(len(text), start + dice.choice((0, 1, 2, 5, 40, len(text))))
    act, other = dice.randrange(3), dice.randrange(len(text))
    piece = dice.choice(WORDS) if act == 0 else text[other : other + end - start]
    return text[:end] + text[start:] if act == 1 else text[:start] + piece + text[end:]


def mutant(text: str, dice: random.Random) -> str:
    """A file changed as a text or as a tree."""
    return (spoil_text if dice.random() < 0.2 else spoil_file)(text, dice)
