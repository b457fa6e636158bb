"""The matrix of `nvidia-smi topo -m` to a `Topology`.

`NV<n>` says that two GPUs have n NVLinks, or that each has n to a switch that both are on: where
the sum over all peers is more than a GPU has (18), they are on a switch. What a link carries is not
in the file; it follows from the number of links of a GPU where one generation has that number, and
is `nvlink` GB/s else. `PIX` and `PXB` are PCIe switches, `PHB` and `NODE` a socket, `SYS` (old:
`SOC`) what lies between sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.input_limits import MATRIX_DEVICES
from forestcoll.topology import Adapter, Link, Node, Topology
from forestcoll.topology.readers.shared import (
    LINKS_OF,
    MACHINE,
    MATRIX_SETTINGS,
    MOST_NVLINKS,
    NVLINK,
    PCIE_OF,
    PORT_RATE,
    Groups,
    Machine,
    Reader,
    Setting,
    Values,
    list_some,
    note_ports,
    strip_escapes,
)

LEVELS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_RELATION = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_GPU = re.compile(r"GPU(\d{1,4})")
_RUN_TOGETHER = re.compile(r"(?:(?:GPU|NIC)\d+|mlx\d+_\d+){2,}")
_PART = re.compile(r"(?:GPU|NIC)\d+|mlx\d+_\d+")
_LEGEND = re.compile(r"\s*(NIC\d{1,4}):\s*(\S{1,100})\s*")
_AFTER = ("CPU", "NUMA", "GPU", "Affinity", "ID")


@dataclass(slots=True)
class Matrix:
    """Devices in the order of the header, what stands in each row, and the affinity behind it."""

    values: Values
    columns: list[str]
    rows: dict[str, list[str]] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)

    place: dict[str, int] = field(default_factory=dict)  # column of each device
    gpus: list[str] = field(default_factory=list)  # by number

    def __post_init__(self) -> None:
        self.place = {name: i for i, name in enumerate(self.columns)}
        gpus = [name for name in self.columns if _GPU.fullmatch(name)]
        self.gpus = sorted(gpus, key=lambda name: int(name[3:]))

    def relation(self, one: str, two: str) -> str:
        """What the matrix says of two devices; either may have the row."""
        if one in self.rows:
            return self.rows[one][self.place[two]]
        return self.rows[two][self.place[one]]


class _Machine(Machine):
    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix.values)
        self.matrix = matrix
        self.nodes = {name.lower(): Node("gpu") for name in matrix.gpus}
        self.ports = tuple(self.adapters())
        self.notes += note_ports(self.ports, self.values)

    def add_links(self) -> None:
        matrix, generation = self.matrix, self.add_nvlinks()
        sockets, switches = _pcie_groups(matrix)
        nameless = [p.name for p in self.ports if matrix.legend and p.name in matrix.columns]
        if nameless:
            self.notes.append(f"{list_some(nameless)} do not stand in the legend of the others")
        if self.add_pcie_of_matrix(sockets, switches, PCIE_OF.get(generation), "NVLink"):
            self.notes += _doubt_affinity(matrix)

    def add_nvlinks(self) -> int:
        """Adds NVLinks and their switches; returns the GPUs' compute capability, or 0."""
        matrix = self.matrix
        counts = {
            (one, two): int(relation[2:])
            for i, two in enumerate(matrix.gpus)
            for one in matrix.gpus[:i]
            if (relation := matrix.relation(one, two)).startswith("NV")
        }
        groups = Groups(matrix.gpus)
        for one, two in counts:
            groups.join(one, two)
        most = 0
        switched: list[tuple[str, list[str], int]] = []
        meshed: list[tuple[str, str, int]] = []
        for group in groups.groups():
            inside = {pair: n for pair, n in counts.items() if pair[0] in group and n > 0}
            total = {g: sum(n for pair, n in inside.items() if g in pair) for g in group}
            if max(total.values()) <= MOST_NVLINKS:
                most = max(most, *total.values())
                meshed += [(one, two, n) for (one, two), n in inside.items()]
                continue
            every = {inside.get((one, two), 0) for i, two in enumerate(group) for one in group[:i]}
            if len(every) != 1:
                raise self.values.error(
                    f"{group[0]} would have {total[group[0]]} NVLinks, more than the "
                    f"{MOST_NVLINKS} that a GPU has, and not the same number to all peers, as with "
                    "a switch; give the machine (--set machine=NAME)"
                )
            name = f"nvswitch{len(switched)}" if switched else "nvswitch"
            switched.append((name, group, every.pop()))
            most = max(most, switched[-1][2])
        if not counts:
            return 0
        rate, generation = self.find_rate(most)
        self.nodes |= {name: Node("switch") for name, _, _ in switched}
        meshed += [(g, name, n) for name, group, n in switched for g in group]
        self.links = [Link(one.lower(), two.lower(), rate, None, n) for one, two, n in meshed]
        return generation

    def find_rate(self, most: int) -> tuple[Fraction, int]:
        """Returns GB/s of one of so many NVLinks a GPU, and the compute capability of that."""
        generation = LINKS_OF.get(most, 0)
        asked = self.values.rate("nvlink")
        if asked is not None:
            return asked, generation
        if not generation:
            raise self.values.error(
                f"{most} NVLink{'s' * (most > 1)} a GPU: no known GPU has this number, so what one "
                "carries must be given: --set nvlink=GB/s (V100 and A100 20, H100 20.6, B200 40.1, "
                "as NCCL counts)"
            )
        rate = next(rate for least, rate in NVLINK if generation >= least)
        self.notes.append(
            f"NVLink counts {float(rate):g} GB/s per link, as NCCL has it for GPUs of compute "
            f"capability {generation / 10:g}, assumed from {most} links a GPU (--set nvlink= for "
            "others)"
        )
        return rate, generation

    def adapters(self) -> Iterator[Adapter]:
        matrix = self.matrix
        for name in matrix.columns:
            if name in matrix.gpus:
                continue
            level = {
                gpu: LEVELS.get(matrix.relation(gpu, name), 9)
                for gpu in matrix.gpus
                if gpu in matrix.rows or name in matrix.rows
            }
            least = min(level.values(), default=9)
            near = tuple(gpu.lower() for gpu in matrix.gpus if level.get(gpu) == least)
            yield Adapter(matrix.legend.get(name, name), self.values.rate("port_rate"), near)


def _loads(text: str, values: Values) -> Topology:
    return _Machine(_read(strip_escapes(text), values)).topology()


READER = Reader(
    "an nvidia-smi matrix",
    (
        Setting("nvlink", "GB/s of one NVLink and direction", rate=True),
        *MATRIX_SETTINGS,
        PORT_RATE,
        MACHINE,
    ),
    _loads,
)


def _read(text: str, values: Values) -> Matrix:
    lines = text.split("\n")
    columns, start = _header(lines, values)
    matrix = Matrix(values, columns)
    for number, line in enumerate(lines[start:], start + 1):
        words = line.split()
        if not words:
            if len(matrix.rows) == len(columns):
                break
            continue
        if words[0] not in columns:
            if matrix.rows:
                break
            continue
        _take_row(matrix, words, number)
    for line in lines:
        match = _LEGEND.fullmatch(line)
        if match:
            matrix.legend[match[1]] = match[2]
    _check(matrix)
    return matrix


def _header(lines: list[str], values: Values) -> tuple[list[str], int]:
    """The devices of the columns, and the index of the first line after the header."""
    columns: list[str] = []
    for index, line in enumerate(lines):
        words = line.split()
        is_row = len(words) > 1 and _RELATION.fullmatch(words[1]) is not None
        if not columns and ("GPU0" not in line or is_row):
            continue
        if is_row or not words:
            return columns, index
        for word in words:
            if word in _AFTER:
                continue
            run = _RUN_TOGETHER.fullmatch(word)
            columns.extend(_PART.findall(word) if run else [word])
        if len(columns) > MATRIX_DEVICES:
            raise values.at(index + 1).error(
                f"more than {MATRIX_DEVICES:,} devices {MATRIX_DEVICES.note}"
            )
        if len(set(columns)) < len(columns):
            raise values.at(index + 1).error("a device stands twice in the header")
    if columns:
        raise values.error("a header and no row below it; was the file cut off?")
    raise values.error("no header with GPU0 in it: not the output of 'nvidia-smi topo -m'")


def _take_row(matrix: Matrix, words: list[str], number: int) -> None:
    where, name, width = matrix.values.at(number), words[0], len(matrix.columns)
    if name in matrix.rows:
        raise where.error(f"a second row of {name}")
    cells = words[1 : 1 + width]
    if len(cells) < width:
        raise where.error(
            f"the row of {name} has {len(cells)} entries, the header {width} devices; was "
            "the line cut off?"
        )
    for cell in cells:
        if not _RELATION.fullmatch(cell):
            raise where.error(
                f"'{cell[:20]}' in the row of {name} is none of X, NV1.., PIX, PXB, PHB, NODE, SYS"
            )
    matrix.rows[name] = cells
    matrix.affinity[name] = " ".join(words[1 + width :])


def _check(matrix: Matrix) -> None:
    """Every GPU has a row, and both ends say the same."""
    missing = [name for name in matrix.gpus if name not in matrix.rows]
    if missing:
        raise matrix.values.error(f"{missing[0]} has no row; was the file cut off?")
    for i, one in enumerate(matrix.columns):
        for two in matrix.columns[:i]:
            if one not in matrix.rows or two not in matrix.rows:
                continue
            pair = matrix.relation(one, two), matrix.relation(two, one)
            if pair[0] != pair[1]:
                raise matrix.values.error(
                    f"{one} has {pair[0]} to {two}, and {two} has {pair[1]} back"
                )
            if pair[0] == "X":
                raise matrix.values.error(f"{one} and {two} stand as one device (X)")


def _pcie_groups(matrix: Matrix) -> tuple[list[list[str]], list[list[str]]]:
    """GPUs by socket, and by PCIe switch; what NVLink hides, NICs and affinity tell."""
    sockets, switches = Groups(matrix.columns), Groups(matrix.columns)
    first: dict[str, str] = {}
    for name in matrix.gpus:
        affinity = matrix.affinity.get(name, "")
        if affinity:
            sockets.join(first.setdefault(affinity, name), name)
    for i, two in enumerate(matrix.columns):
        for one in matrix.columns[:i]:
            if one in matrix.rows or two in matrix.rows:
                level = LEVELS.get(matrix.relation(one, two), 9)
                if level <= 2:
                    switches.join(one, two)
                if level <= 4:
                    sockets.join(one, two)
    gpus = set(matrix.gpus)
    listed = []
    for groups in (sockets, switches):
        kept = [[n.lower() for n in group if n in gpus] for group in groups.groups()]
        listed.append([group for group in kept if group])
    return listed[0], listed[1]


def _doubt_affinity(matrix: Matrix) -> list[str]:
    """Notes on GPUs that share some processors and not all, or have them at two NUMA nodes."""
    first: dict[str, str] = {}
    for name in matrix.gpus:
        first.setdefault(matrix.affinity.get(name, ""), name)
    spans = {text: _processors(text.partition(" ")[0]) for text in first}
    odd = [f"{first[text]} '{text[:40]}'" for text, ranges in spans.items() if not ranges]
    ordered = sorted((low, high, text) for text, ranges in spans.items() for low, high in ranges)
    shared = [
        f"{first[one[2]]} '{one[2][:40]}' and {first[two[2]]} '{two[2][:40]}'"
        for one, two in pairwise(ordered)
        if two[0] <= one[1]
    ]
    notes = []
    if shared:
        notes.append(
            f"affinities differ and share processors, and count as two sockets unless the GPUs' "
            f"relations say otherwise: {list_some(shared)}"
        )
    if odd and any(spans.values()):
        notes.append(f"affinities that are no lists of processors: {list_some(odd)}")
    return notes


def _processors(text: str) -> list[tuple[int, int]]:
    """ "0-23,48" -> (0, 23), (48, 48); nothing for other text, and for a range that runs back."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        return []
    pairs = [part.partition("-") for part in text.split(",")]
    ranges = [(int(low), int(high or low)) for low, _, high in pairs]
    return ranges if all(low <= high for low, high in ranges) else []
