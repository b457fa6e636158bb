"""Every fact that a dump says twice is compared: a dump with one slip in it is refused, or read
with a note that names the place, or gives the same topology.

A slip is a figure changed, or a line repeated or lost (dump_mutations.slips). What stands in a dump
once, and has no others of its kind beside it, can be compared with nothing: `ONCE` lists it, format
by format, and nothing else may change a topology in silence.

`python tests/test_readers_doubt.py 3000` takes that many of each and prints what is silent.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from dump_mutations import FIGURE, Slip, slips
from real_files import FOLDER, read_as
from test_readers_damaged import settings_of
from test_readings import FORMS, rows

from forestcoll.common.errors import ForestCollError
from forestcoll.topology import Topology, catalog, readers
from forestcoll.topology.readers.fabric import Fabric

COUNT = 300
CELL = re.compile(r"(?<=,)\d+(?:\.\d+)?(?=[GM]?(?:,|$))")
"""A figure of a CSV list: a cell, not part of a name."""

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
DUMPS = {
    name: Dump(form, text, settings, ONCE.get(name, ()), DIGITS if form == "netq" else FIGURE)
    for form in sorted(FORMS - {"model"})
    for fact, (_, settings, text) in rows(form).items()
    for word, _, name in [fact.partition(" ")]
    if word == "slips"
}
"""Every row of readings/ that is called "slips"."""


def real_dumps() -> dict[str, Dump]:
    """What real machines wrote, where it is at hand."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        name = str(path.relative_to(FOLDER))
        if path.suffix == ".md" or not path.is_file():
            continue
        settings, text = settings_of(name), path.read_text()
        form = readers.format_of(text)
        try:
            catalog.load(path, settings)
        except ForestCollError:  # devices, a model of racks, one host
            continue
        assert form is not None
        figure = CELL if form.name == "csv" else FIGURE
        found[name] = Dump(form.name, text, settings, REAL_ONCE.get(path.name, ()), figure)
    return found


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
        found = read_as(dump.form, slip.text, "dump", dump.settings, catalog.machine)
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
    sound = look(read_as(dump.form, dump.text, "dump", dump.settings, catalog.machine))
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


REAL = real_dumps()


def test_every_format_is_here() -> None:
    """And is recognised by what stands in it."""
    assert {dump.form for dump in DUMPS.values()} == {f.name for f in readers.FORMATS if f.command}
    for name, dump in {**DUMPS, **REAL}.items():
        form = readers.format_of(dump.text)
        assert form is not None, name
        assert form.name == dump.form, name


@pytest.mark.parametrize("name", DUMPS)
def test_no_slip_is_taken_in_silence(name: str) -> None:
    found, wrong = run(DUMPS[name], f"slips {name}", COUNT)
    assert not wrong
    assert found["refused"] + found["noted"] >= COUNT // 20


@pytest.mark.parametrize("name", REAL or ["none"])
def test_no_slip_in_a_real_dump_is_taken_in_silence(name: str) -> None:
    if name not in REAL:
        pytest.skip(f"{FOLDER} is not there")
    count = COUNT if len(REAL[name].text) < 100_000 else COUNT // 6
    found, wrong = run(REAL[name], f"slips {name}", count)
    assert not wrong
    assert found.total() == count


if __name__ == "__main__":
    for name, dump in {**DUMPS, **REAL}.items():
        found, wrong = run(dump, f"all {name}", int(sys.argv[1]))
        print(name, dict(found))
        for text in sorted(set(wrong))[: int(sys.argv[2]) if len(sys.argv) > 2 else 12]:
            print("   ", text)
