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
from forestcoll.topology.readers.shared import (
    MACHINE,
    MATRIX_SETTINGS,
    XGMI,
    Machine,
    Reader,
    Setting,
    Values,
    strip_escapes,
)

ONE_HOP = 15
"""Weight of a pair that one xGMI link joins."""

_TITLE = re.compile(r"=+\s*(Weight|Hops|Link Type) between two GPUs\s*=+", re.IGNORECASE)
_GPU = re.compile(r"GPU\d{1,4}")
_NUMA = re.compile(r"GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa (?:Node|Affinity):\s*(-?\d{1,4})")

Table = dict[tuple[str, str], str]


class _Machine(Machine):
    def __init__(self, text: str, values: Values) -> None:
        super().__init__(values)
        self.tables: dict[str, Table] = {}  # by title
        self.numa: dict[str, str] = {}  # nodes of GPUs
        self.gpus = self.read(text)
        self.nodes = {name.lower(): Node("gpu") for name in self.gpus}
        self.notes.append("network ports are not in the file")

    def read(self, text: str) -> list[str]:
        """Reads the tables; returns the GPUs."""
        tables, numa = self.tables, self.numa
        gpus: list[str] = []
        title, columns = "", list[str]()
        for number, line in enumerate(text.split("\n"), 1):
            match = _TITLE.search(line)
            words, where = line.split(), self.values.at(number)
            if match or line.startswith("=="):
                title, columns = (match[1].lower() if match else ""), []
            elif title and words and not columns:
                columns = words
                gpus = gpus or columns
                if columns != gpus or not all(map(_GPU.fullmatch, columns)):
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
                table |= {
                    (words[0], two): cell for two, cell in zip(columns, words[1:], strict=True)
                }
            node = _NUMA.search(line)
            if node:
                place = f"GPU{node[1]}"
                other = numa.setdefault(place, node[2])
                if other != node[2]:
                    raise where.error(f"{place} is at NUMA node {node[2]} here and {other} above")
        lost = [gpu for gpu in gpus if gpu not in numa]
        if numa and lost:
            raise self.values.error(f"{lost[0]} has no NUMA node; the others have; was it cut?")
        strange = [gpu for gpu in numa if gpu not in gpus]
        if strange and gpus:
            raise self.values.error(f"{strange[0]} has a NUMA node and stands in no table")
        for needed in ("weight", "link type"):
            if len(tables.get(needed, {})) != len(gpus) ** 2 or not gpus:
                raise self.values.error(
                    f"the table '{needed.capitalize()} between two GPUs' is missing or cut "
                    "off; give the whole output of 'rocm-smi --showtopo' (plain, not --json or "
                    "--csv)"
                )
        return gpus

    def find_direct(self) -> list[tuple[str, str]]:
        """The pairs that xGMI joins in one hop."""
        pairs = []
        for i, two in enumerate(self.gpus):
            for one in self.gpus[:i]:
                ways = (one, two), (two, one)
                kinds = {self.tables["link type"][pair].upper() for pair in ways}
                weights = {self.tables["weight"][pair] for pair in ways}
                if len(kinds) > 1 or len(weights) > 1:
                    raise self.values.error(f"{one} and {two} state different links of each other")
                kind, weight = kinds.pop(), weights.pop()
                if kind not in ("XGMI", "PCIE") or not re.fullmatch(r"\d{1,6}", weight):
                    raise self.values.error(
                        f"{one} to {two}: type '{kind[:20]}', weight '{weight[:20]}'; known "
                        "are XGMI and PCIE, with a number"
                    )
                if kind == "XGMI" and int(weight) <= ONE_HOP:
                    pairs.append((one, two))
        return pairs

    def add_links(self) -> None:
        pairs = self.find_direct()
        if pairs:
            rate = self.find_rate(max(sum(gpu in pair for pair in pairs) for gpu in self.gpus))
            self.notes.append(
                "one xGMI link counts for each pair: the file does not tell how many there are"
            )
            self.links = [Link(one.lower(), two.lower(), rate) for one, two in pairs]
        by_node: dict[str, list[str]] = {}
        for gpu in self.gpus:
            by_node.setdefault(self.numa.get(gpu, "0"), []).append(gpu.lower())
        self.add_pcie_of_matrix(list(by_node.values()), [], None, "xGMI")

    def find_rate(self, most: int) -> Fraction:
        """Returns GB/s of one link of GPUs with so many peers."""
        rate = self.values.rate("xgmi")
        if rate is None:
            if most != 7:
                raise self.values.error(
                    f"{most} xGMI peers a GPU: what one link carries is not in the "
                    "file and must be given: --set xgmi=GB/s (as RCCL counts: MI200 36, MI100 and "
                    "before 24), or the machine (--set machine=mi250)"
                )
            rate = next(rate for names, rate in XGMI if "gfx94" in names)
            self.notes.append(
                f"xGMI counts {float(rate):g} GB/s per link, as RCCL has it for MI300, assumed "
                "from the full mesh of 8 (--set xgmi= for others)"
            )
        return rate


def _loads(text: str, values: Values) -> Topology:
    return _Machine(strip_escapes(text), values).topology(f"amd-{values.name}"[:100])


READER = Reader(
    "a rocm-smi table",
    (
        Setting("xgmi", "GB/s of one xGMI link and direction", rate=True),
        *MATRIX_SETTINGS,
        MACHINE,
    ),
    _loads,
)
