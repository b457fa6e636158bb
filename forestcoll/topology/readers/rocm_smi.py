"""The tables of `rocm-smi --showtopo` to a `Topology`.

A pair of link type XGMI and weight 15 is one hop of xGMI; more weight is more hops, over others.
The table of hops says 1 for every pair that xGMI reaches, direct or not, and is no help. How many
links two GPUs share, and what one carries, is not in the file: one link a pair, and `xgmi` GB/s.
"""

from __future__ import annotations

import re
from fractions import Fraction

from forestcoll.common.input_limits import MATRIX_DEVICES
from forestcoll.topology import Link, Node, Topology
from forestcoll.topology.readers.base.boxes import (
    MACHINE,
    MATRIX_SETTINGS,
    add_pcie,
    put_inside,
    strip_escapes,
)
from forestcoll.topology.readers.base.rates import XGMI
from forestcoll.topology.readers.base.settings import Reader, Setting, Values

ONE_HOP = 15
"""Weight of a pair that one xGMI link joins."""

_TITLE = re.compile(r"=+\s*(Weight|Hops|Link Type) between two GPUs\s*=+", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa (?:Node|Affinity):\s*(-?\d{1,4})")

Table = dict[tuple[str, str], str]


def _loads(text: str, values: Values) -> Topology:
    tables, gpus, numa = _read(strip_escapes(text), values)
    nodes = {name.lower(): Node("gpu") for name in gpus}
    notes = ["network ports are not in the file"]
    name, machine = f"amd-{values.name}"[:100], values.text("machine")
    if machine:
        return put_inside(values, machine, tuple(nodes), (), notes, name)
    links = _links(_direct(tables, gpus, values), gpus, values, notes)
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        by_node.setdefault(numa.get(gpu, "0"), []).append(gpu.lower())
    notes += add_pcie(nodes, links, list(by_node.values()), [], values, None, "xGMI")
    return values.topology(nodes, links, (), notes, name)


READER = Reader(
    "a rocm-smi table",
    (
        Setting("xgmi", "GB/s of one xGMI link and direction", rate=True),
        *MATRIX_SETTINGS,
        MACHINE,
    ),
    _loads,
)


def _read(text: str, values: Values) -> tuple[dict[str, Table], list[str], dict[str, str]]:
    """Tables by title, the GPUs, and their NUMA nodes."""
    tables: dict[str, Table] = {}
    numa: dict[str, str] = {}
    gpus: list[str] = []
    title, columns = "", list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        match = _TITLE.search(line)
        words, where = line.split(), values.at(number)
        if match or line.startswith("=="):
            title, columns = (match[1].lower() if match else ""), []
        elif title and words and not columns:
            columns = words
            gpus = gpus or columns
            if columns != gpus or not all(re.fullmatch(r"GPU\d{1,4}", word) for word in columns):
                raise where.error(f"'{line.strip()[:60]}' does not name GPUs")
            if len(columns) > MATRIX_DEVICES or len(set(columns)) < len(columns):
                raise where.error(f"a GPU twice, or too many {MATRIX_DEVICES.note}")
        elif title and words:
            table = tables.setdefault(title, {})
            if (words[0], columns[0]) in table:
                raise where.error(f"a second row of {words[0][:20]}")
            if words[0] not in columns or len(words) != len(columns) + 1:
                raise where.error(
                    f"a row of {len(words) - 1} entries for "
                    f"'{words[0][:20]}'; the header names {len(columns)} GPUs"
                )
            table |= {(words[0], two): cell for two, cell in zip(columns, words[1:], strict=True)}
        node = _NUMA.search(line)
        if node:
            place = f"GPU{node[1]}"
            other = numa.setdefault(place, node[2])
            if other != node[2]:
                raise where.error(f"{place} is at NUMA node {node[2]} here and {other} above")
    lost = [gpu for gpu in gpus if gpu not in numa]
    if numa and lost:
        raise values.error(f"{lost[0]} has no NUMA node; the others have; was it cut?")
    strange = [gpu for gpu in numa if gpu not in gpus]
    if strange and gpus:
        raise values.error(f"{strange[0]} has a NUMA node and stands in no table")
    for needed in ("weight", "link type"):
        if len(tables.get(needed, {})) != len(gpus) ** 2 or not gpus:
            raise values.error(
                f"the table '{needed.capitalize()} between two GPUs' is missing or cut "
                "off; give the whole output of 'rocm-smi --showtopo' (plain, not --json or --csv)"
            )
    return tables, gpus, numa


def _direct(tables: dict[str, Table], gpus: list[str], values: Values) -> list[tuple[str, str]]:
    """The pairs that xGMI joins in one hop."""
    pairs = []
    for i, two in enumerate(gpus):
        for one in gpus[:i]:
            kinds = {tables["link type"][pair].upper() for pair in ((one, two), (two, one))}
            weights = {tables["weight"][pair] for pair in ((one, two), (two, one))}
            if len(kinds) > 1 or len(weights) > 1:
                raise values.error(f"{one} and {two} state different links of each other")
            kind, weight = kinds.pop(), weights.pop()
            if kind not in ("XGMI", "PCIE") or not re.fullmatch(r"\d{1,6}", weight):
                raise values.error(
                    f"{one} to {two}: type '{kind[:20]}', weight '{weight[:20]}'; known "
                    "are XGMI and PCIE, with a number"
                )
            if kind == "XGMI" and int(weight) <= ONE_HOP:
                pairs.append((one, two))
    return pairs


def _links(
    pairs: list[tuple[str, str]], gpus: list[str], values: Values, notes: list[str]
) -> list[Link]:
    if not pairs:
        return []
    most = max(sum(gpu in pair for pair in pairs) for gpu in gpus)
    rate = values.rate("xgmi")
    if rate is None:
        if most != 7:
            raise values.error(
                f"{most} xGMI peers a GPU: what one link carries is not in the "
                "file and must be given: --set xgmi=GB/s (as RCCL counts: MI200 36, MI100 and "
                "before 24), or the machine (--set machine=mi250)"
            )
        rate = _of("gfx94")
        notes.append(
            f"xGMI counts {float(rate):g} GB/s per link, as RCCL has it for MI300, assumed from "
            "the full mesh of 8 (--set xgmi= for others)"
        )
    notes.append("one xGMI link counts for each pair: the file does not tell how many there are")
    return [Link(one.lower(), two.lower(), rate) for one, two in pairs]


def _of(architecture: str) -> Fraction:
    return next(rate for names, rate in XGMI if architecture in names)
