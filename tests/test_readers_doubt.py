"""Every fact that a dump says twice is compared: a dump with one slip in it is refused, or read
with a note that names the place, or gives the same topology.

A slip is a figure changed, or a line repeated or lost (dump_mutations.slips). What stands in a dump
once, and has no others of its kind beside it, can be compared with nothing: `ONCE` lists it, format
by format, and nothing else may change a topology in silence.

`python tests/test_readers_doubt.py 3000` takes that many of each and prints what is silent.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from dump_mutations import FIGURE, Slip, slips
from real_files import FOLDER, read_as
from test_readers_damaged import INFRAGRAPH, settings_of
from test_readers_fabric_lists import graph
from test_readers_hwloc_xml import gpu, machine, matrix, package
from test_readers_infragraph import RATES, TEXT
from test_readers_rocm_smi import TWO_PAIRS

from forestcoll.common.errors import ForestCollError
from forestcoll.topology import Topology, catalog, readers
from forestcoll.topology.readers.fabric import Fabric

COUNT = 300
Entries = Callable[[int], list[tuple[str, int, str]]]


def system(tag: str, about: str, entries: Entries) -> str:
    """Four GPUs in NCCL's or RCCL's form: on either socket a PCIe switch, two GPUs, two ports."""
    lines = [f'<system version="{1 if tag == "nvlink" else 2}">']
    for dev in range(4):
        if dev % 2 == 0:
            lines.append(f'  <cpu numaid="{dev // 2}" arch="x86_64" vendor="AuthenticAMD" '
                         'familyid="25" modelid="17">')  # fmt: skip
            lines.append(f'    <pci busid="0000:{dev}0:00.0" class="0x060400" '
                         'link_speed="32.0 GT/s PCIe" link_width="16">')  # fmt: skip
        lines += [
            f'      <pci busid="0000:{dev}1:00.0" class="0x030200" '
            'link_speed="32.0 GT/s PCIe" link_width="16">',
            f'        <gpu dev="{dev}" rank="{dev}" gdr="1" {about}>',
            *(
                f'          <{tag} target="{target}" count="{count}" tclass="{kind}"/>'
                for target, count, kind in entries(dev)
            ),
            "        </gpu>",
            "      </pci>",
            f'      <pci busid="0000:{dev}2:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" '
            'link_width="16">',
            "        <nic>",
            f'          <net name="mlx5_{dev}" dev="{dev}" speed="400000" port="1" gdr="1"/>',
            "        </nic>",
            "      </pci>",
            *(["    </pci>", "  </cpu>"] if dev % 2 else []),
        ]
    return "\n".join([*lines, "</system>", ""])


def through_switches(dev: int) -> list[tuple[str, int, str]]:
    return [(f"0000:f{i}:00.0", 9, "0x068000") for i in range(2)]


def to_each(dev: int) -> list[tuple[str, int, str]]:
    return [(f"0000:{other}1:00.0", 2, "0x030200") for other in range(4) if other != dev]


NCCL = system("nvlink", 'sm="90"', through_switches)
MESH = system("nvlink", 'sm="80"', to_each)
RCCL = system("xgmi", 'sm="304" gcn="gfx942"', to_each)

HWLOC = machine(
    package(2, gpu(3, "0000:03:00.0"), gpu(4, "0000:04:00.0")),
    package(5, gpu(6, "0000:81:00.0"), gpu(7, "0000:82:00.0")),
    after=matrix(
        "NVLinkBandwidth",
        "OSDev:103 OSDev:104 OSDev:106 OSDev:107",
        " ".join("0" if i == j else "50000" for i in range(4) for j in range(4)),
    ),
).replace("><", ">\n<")

SMI = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     PIX     SYS     0-7     0
GPU1    NV4      X      SYS     SYS     PIX     SYS     0-7     0
GPU2    SYS     SYS      X      NV4     SYS     PIX     8-15    1
GPU3    SYS     SYS     NV4      X      SYS     PIX     8-15    1
NIC0    PIX     PIX     SYS     SYS      X      SYS
NIC1    SYS     SYS     PIX     PIX     SYS      X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""

BARE = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     0-7,16-23       0
GPU1    NV4      X      SYS     SYS     0-7,16-23       0
GPU2    SYS     SYS      X      NV4     8-15,24-31      1
GPU3    SYS     SYS     NV4      X      8-15,24-31      1
"""

ROCM = re.sub(r"(GPU\[\d\])(.*) Numa Node: (\d)", r"\g<0>\n\1\2 Numa Affinity: \3", TWO_PAIRS)


def infiniband() -> str:
    """Two leaves, two hosts of two ports at each, two spines, two cables from leaf to spine."""
    ends: dict[str, list[tuple[int, str, int]]] = {}
    names: dict[str, str] = {}

    def cable(one: str, two: str) -> None:
        for end in (one, two):
            ends.setdefault(end, [])
        ports = len(ends[one]) + 1, len(ends[two]) + 1
        ends[one].append((ports[0], two, ports[1]))
        ends[two].append((ports[1], one, ports[0]))

    for leaf in range(2):
        names[f"S-00a{leaf}"] = f"MF0;leaf-{leaf}:MQM9700/U1"
        for host in range(2):
            for port in range(2):
                guid = f"H-00c{4 * leaf + 2 * host + port}"
                names[guid] = f"node{2 * leaf + host} mlx5_{port}"
                cable(guid, f"S-00a{leaf}")
        for spine in range(2):
            names[f"S-00b{spine}"] = f"MF0;spine-{spine}:MQM9700/U1"
            for _ in range(2):
                cable(f"S-00a{leaf}", f"S-00b{spine}")
    lines = []
    for lid, (guid, name) in enumerate(sorted(names.items(), reverse=True), 1):
        kind = "Switch" if guid[0] == "S" else "Ca"
        lines += ["vendid=0x2c9", f'{kind}\t{len(ends[guid])} "{guid}"\t\t# "{name}"']
        lines += [
            f'[{port}]\t"{far}"[{other}]\t\t# "{names[far]}" lid {lid} 4xNDR'
            for port, far, other in ends[guid]
        ]
        lines.append("")
    return "\n".join(lines)


CSV = "src,src_port,dst,dst_port,speed,latency\n" + "".join(
    f"gpu{i},p0,leaf{i // 3},p{i},400000,1.5\n" for i in range(6)
) + "".join(
    f"leaf{leaf},u{2 * spine + i},spine{spine},d{2 * leaf + i},400G,0.5\n"
    for leaf in range(2) for spine in range(2) for i in range(2)
)  # fmt: skip


def turned(text: str) -> str:
    """The same list with every cable from its other end as well."""
    head, *rows = text.strip().split("\n")
    cells = [row.split(",") for row in rows]
    return "\n".join([head, *rows, *(",".join([*c[2:4], *c[:2], *c[4:]]) for c in cells), ""])


NETQ = graph()
for bundle in NETQ[0]["links"]:
    for each in bundle["compounded_links"]:
        each["id"] = "-*-".join(f"{end['node']}:{end['interface']}" for end in each["interfaces"])
NETQ = json.dumps(NETQ, indent=1)

PLAIN = "src,dst,bandwidth,count\n" + "".join(f"gpu{i},sw,50,2\n" for i in range(6))
BACK = "src,dst,bandwidth\n" + "".join(f"gpu{i},sw,50\nsw,gpu{i},50\n" for i in range(6))


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


DUMPS = {
    "nccl": Dump("nccl-xml", NCCL),
    "nccl-each": Dump("nccl-xml", NCCL, {"nvswitches": "each"}),
    "nccl-pcie": Dump("nccl-xml", NCCL, {"pcie": "always"}),
    "nccl-mesh": Dump("nccl-xml", MESH),
    "rccl": Dump("rccl-xml", RCCL),
    "rccl-pcie": Dump("rccl-xml", RCCL, {"pcie": "always"}),
    "hwloc": Dump("hwloc-xml", HWLOC, {"pcie": "always"}),
    "nvidia-smi": Dump("nvidia-smi", SMI, {"nvlink": "20", "pcie_rate": "12", "socket_rate": "10"}),
    "nvidia-smi-affinity": Dump(
        "nvidia-smi", BARE, {"nvlink": "20", "pcie_rate": "12", "socket_rate": "10"}
    ),
    "rocm-smi": Dump("rocm-smi", ROCM, {"xgmi": "36", "pcie_rate": "12", "socket_rate": "10"}),
    "ibnetdiscover": Dump("ibnetdiscover", infiniband()),
    "csv": Dump("csv", CSV, once=(r"^drop gpu[05],",)),
    "csv-both-ends": Dump("csv", turned(CSV)),
    "csv-hosts": Dump(
        "csv", CSV.replace("gpu", "node"), {"hosts": "node*"}, once=(r"^drop node\d",)
    ),
    "csv-plain": Dump("csv", PLAIN, once=(r"^drop gpu[05],",)),
    "csv-plain-back": Dump("csv", BACK),
    "netq": Dump("netq", NETQ, {"rate": "50"}, figure=re.compile(r"\d+")),
    # A pattern that is repeated: counts, slices and rates are its very content, each stated once.
    "infragraph": Dump("infragraph", INFRAGRAPH.decode(), once=TEMPLATE),
    "infragraph-cards": Dump("infragraph", TEXT, {"rates": RATES}, once=TEMPLATE),
}


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
    links = found.directed()
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
