"""Every fact that a dump says twice is compared: a dump with one slip in it is refused, or read
with a note that names the place, or gives the same topology.

A slip is a figure changed, or a line repeated or lost (`slips`). What stands in a dump
once, and has no others of its kind beside it, can be compared with nothing: `ONCE` lists it, format
by format, and nothing else may change a topology in silence.

`python tests/test_readers_doubt.py 3000` takes that many of each and prints what is silent.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from real_files import read_as
from test_readings import dumps

from forestcoll.common.errors import ForestCollError
from forestcoll.topology import Topology, readers
from forestcoll.topology.readers.shared import Fabric

COUNT = 120
CELL = re.compile(r"(?<=,)\d+(?:\.\d+)?(?=[GM]?(?:,|$))")
"""A figure of a CSV list: a cell, not part of a name."""

FIGURE = re.compile(
    r"(?<=\bNV)\d+|(?<=\[)\d+(?=[:\]])|(?<=\d:)\d+(?=\])"
    r"|(?<![\w.:])(?<![A-Za-z]-)\d+(?:\.\d+)?(?=x[A-Z]{3}|[GM]\b|(?![\w:.]))"
)
"""A number that stands for itself: `count="4"`, NV4, 4xNDR, 400G, xpu[0:2], and not gpu4, 0x1c, a
bus id or part of a name."""


@dataclass(frozen=True)
class Slip:
    """A copy with one figure changed, or one line repeated or gone; `before` and `after` are what
    stands around the figure in its line."""

    what: str  # "figure", "repeat", "drop"
    line: int
    before: str
    old: str
    new: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.what} line {self.line}: {self.before}[{self.old} -> {self.new}]{self.after}"


def slips(text: str, seed: str, count: int, figure: re.Pattern[str] = FIGURE) -> Iterator[Slip]:
    """`count` such copies, by `seed` alone: a third change lines and the others a figure."""
    rng = random.Random(seed)
    lines = text.split("\n")
    found = [(i, match) for i, line in enumerate(lines) for match in figure.finditer(line)]
    for number in range(count):
        if number % 3 == 0 or not found:
            at = rng.randrange(len(lines))
            what = rng.choice(("repeat", "drop"))
            changed = lines[:at] + lines[at : at + 1] * (2 if what == "repeat" else 0)
            yield Slip(what, at + 1, "", lines[at].strip()[:120], "", "",
                       "\n".join(changed + lines[at + 1 :]))  # fmt: skip
            continue
        at, match = rng.choice(found)
        old, line = match[0], lines[at]
        new = rng.choice([each for each in _other_figures(old, found, rng) if each != old])
        before, after = line[: match.start()], line[match.end() :]
        made = [*lines[:at], before + new + after, *lines[at + 1 :]]
        yield Slip("figure", at + 1, before, old, new, after, "\n".join(made))


def _other_figures(
    old: str, found: list[tuple[int, re.Match[str]]], rng: random.Random
) -> list[str]:
    """Twice and half of it, one more or less, a unit off, a negative, and another of the file."""
    if "." in old:
        value = float(old)
        made = [f"{value * factor:.6g}" for factor in (2, 0.5, 10, 0.001)]
    else:
        number = int(old)
        made = [
            str(n) for n in (number * 2, number // 2, number + 1, abs(number - 1), number * 1000)
        ]
    return [*made, "0", f"-{old}", rng.choice(found)[1][0]]


ONE_PORT = (r'<net .*speed="\|',)
REAL_ONCE = {
    "nc48v4-topo.xml": ONE_PORT,
    "topo_3p_pcie.xml": ONE_PORT,
    "topo_8p_90a.xml": ONE_PORT,
    "topo_8p_rome_n2.xml": ONE_PORT,
    "sonic_lab_links.csv": (r"^drop ",),  # every cable once, and hardly two devices are alike
}
DIGITS = re.compile(r"\d+")
TEMPLATE = (r"^drop - \{ep1", r"count: \|", r"per_second: \|", r"\[-?\d*:?\|")


@dataclass(frozen=True)
class Dump:
    """What is changed: `once` are patterns of what stands before (or LINE and the line) each figure
    that can be compared with nothing."""

    form: str
    text: str
    settings: Mapping[str, str] = field(default_factory=dict)
    once: tuple[str, ...] = ()
    figure: re.Pattern[str] = FIGURE

    @property
    def guids(self) -> set[str]:
        return set(re.findall(r'"([SH]-[0-9a-f]+)"', self.text))


ONCE = {
    "csv": (r"^drop gpu[05],",),
    "csv-hosts": (r"^drop node\d",),
    "csv-plain": (r"^drop gpu[05],",),
    # A pattern that is repeated: counts, slices and rates are its very content, each stated once.
    "infragraph": TEMPLATE,
    "infragraph-cards": TEMPLATE,
}


def of(name: str, form: str, text: str, settings: Mapping[str, str]) -> Dump:
    if name.startswith("slips "):
        figure = DIGITS if form == "netq" else FIGURE
        return Dump(form, text, settings, ONCE.get(name.removeprefix("slips "), ()), figure)
    once = REAL_ONCE.get(name.rpartition("/")[2], ())
    return Dump(form, text, settings, once, CELL if form == "csv" else FIGURE)


EVERY = {name: of(name, *found) for name, found in dumps().items()}
DUMPS = {name: dump for name, dump in EVERY.items() if name.startswith("slips ")}
REAL = {name: dump for name, dump in EVERY.items() if name not in DUMPS}


def look(found: Topology | Fabric) -> tuple[object, tuple[str, ...], set[str]]:
    """(what it is, whatever its switches are called, its notes, its names)."""
    if isinstance(found, Fabric):
        notes = readers.ranks_of(found).notes
        cables = Counter((frozenset({str(c.one), str(c.two)}), c.bandwidth) for c in found.cables)
        names = {
            *found.hosts,
            *found.switches,
            *(str(p) for ps in found.ports().values() for p in ps),
        }
        return (set(found.hosts), cables), notes, names
    switches = [name for name, node in found.nodes.items() if node.kind == "switch"]
    short = {name: f"switch {i}" for i, name in enumerate(switches)}
    links = found.rates()
    latencies = found.latencies()
    known = {
        (short.get(a, a), short.get(b, b)): (rate, latencies[a, b])
        for (a, b), rate in links.items()
    }
    ports = Counter((port.name, port.bandwidth, port.near) for port in found.adapters)
    names = {*found.nodes, *(port.name for port in found.adapters)}
    return (found.gpus, known, ports), found.notes, names


def judge(dump: Dump, slip: Slip, sound: tuple[object, tuple[str, ...], set[str]]) -> str:
    """`refused`, `same`, `noted`, `unnamed` (a note that names nothing) or `silent`."""
    try:
        found = read_as(dump.form, slip.text, "dump", dump.settings)
        what, notes, names = look(found)
    except ForestCollError:
        return "refused"
    if what == sound[0]:
        return "same"
    new = [note for note in notes if note not in sound[1]]
    lines = range(slip.line - 2, slip.line + 3)
    words = {*names, *sound[2], *(f"line {line}" for line in lines), *dump.guids}
    words |= {slip.new, f"dev {slip.new}"} if len(slip.new) > 2 else {f"dev {slip.new}"}
    if any(word.lower() in note.lower() for note in new for word in words):
        return "noted"
    return "unnamed" if new else "silent"


def stands_once(dump: Dump, slip: Slip) -> bool:
    where = slip.before + "|" + slip.after if slip.what == "figure" else f"{slip.what} {slip.old}"
    return any(re.search(pattern, where) for pattern in dump.once)


def run(dump: Dump, seed: str, count: int) -> tuple[Counter[str], list[str]]:
    """How many of each, and those that are silent and do not stand once."""
    sound = look(read_as(dump.form, dump.text, "dump", dump.settings))
    found: Counter[str] = Counter()
    wrong = []
    for slip in slips(dump.text, seed, count, dump.figure):
        verdict = judge(dump, slip, sound)
        if verdict in ("silent", "unnamed"):
            if stands_once(dump, slip):
                verdict = "once"
            else:
                wrong.append(f"{verdict}: {slip}")
        found[verdict] += 1
    return found, wrong


def test_every_format_is_here() -> None:
    """And is recognised by what stands in it."""
    assert {dump.form for dump in DUMPS.values()} == {f.name for f in readers.FORMATS if f.command}
    for name, dump in EVERY.items():
        form = readers.format_of(dump.text)
        assert form is not None, name
        assert form.name == dump.form, name


@pytest.mark.parametrize("name", DUMPS)
def test_no_slip_is_taken_in_silence(name: str) -> None:
    found, wrong = run(DUMPS[name], f"slips {name}", COUNT)
    assert not wrong, "compare what is read with its like (readers/shared.py), or name it ONCE"
    assert found["refused"] + found["noted"] >= COUNT // 20


@pytest.mark.parametrize("name", REAL or ["none"])
def test_no_slip_in_a_real_dump_is_taken_in_silence(name: str) -> None:
    if name not in REAL:
        pytest.skip("no real machines' files are at hand")
    count = COUNT // 2 if len(REAL[name].text) < 100_000 else COUNT // 6
    found, wrong = run(REAL[name], f"slips {name}", count)
    assert not wrong
    assert found.total() == count


if __name__ == "__main__":
    for name, dump in EVERY.items():
        found, wrong = run(dump, f"all {name}", int(sys.argv[1]))
        print(name, dict(found))
        for text in sorted(set(wrong))[: int(sys.argv[2]) if len(sys.argv) > 2 else 12]:
            print("   ", text)
