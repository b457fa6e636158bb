"""`<system>` files without `<gpu>`, as cloud providers hand them out for `NCCL_TOPO_FILE`.

They give NCCL the PCIe tree that a virtual machine hides, and nothing else: GPUs and network ports
are PCI devices by their class, or by their place alone. The links between the GPUs come from the
machine that the user names, or from `KNOWN`: machines whose dumps leave out what is public. Where
the bus ids are those of a machine there, so are the rates of the network ports; notes say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.topology import Adapter, Topology, slug
from forestcoll.topology.readers.base.boxes import Nearest, put_inside
from forestcoll.topology.readers.base.settings import Values
from forestcoll.topology.source import Element

GPU_CLASSES = ("0x0302", "0x0300", "0x0380", "0x12")
NIC_CLASS = "0x02"


@dataclass(frozen=True, slots=True)
class Known:
    """A virtual machine: `gpus` are bus ids in rank order, or of the bridges above the GPUs where
    the file leaves the GPUs themselves out (`hidden`)."""

    name: str
    machine: str  # of the catalogue
    gpus: tuple[str, ...]
    port: Fraction  # GB/s of a network port
    source: str
    hidden: bool = False


def _buses(text: str) -> tuple[str, ...]:
    return tuple(f"{bus}:00.0" for bus in text.split())


KNOWN = (
    Known(
        "Azure ND96 A100 v4",
        "dgx-a100",
        _buses("0001:00 0002:00 0003:00 0004:00 000b:00 000c:00 000d:00 000e:00"),
        Fraction(25),  # 8 x 200 Gb/s HDR
        "Microsoft, Azure virtual machine sizes, NDasrA100_v4 series",
    ),
    Known(
        "Azure ND96 H100 v5",
        "dgx-h100",
        _buses("0001:00 0002:00 0003:00 0008:00 0009:00 000a:00 000b:00 000c:00"),
        Fraction(50),  # 8 x 400 Gb/s NDR
        "Microsoft, Azure virtual machine sizes, NDsr_H100_v5 series",
    ),
    Known(
        "AWS p5.48xlarge",
        "dgx-h100",
        _buses("0000:45 0000:56 0000:67 0000:78 0000:89 0000:9a 0000:ab 0000:bc"),
        Fraction(25, 2),  # 32 x 100 Gb/s EFA
        "Amazon, EC2 P5 instances: 3,200 Gb/s over 32 network cards",
        hidden=True,
    ),
)


def read_supplement(root: Element, values: Values) -> Topology:
    """Returns the machine; raises `TopologyError` with what the file has and what to add."""
    devices = [element for element in root.walk() if element.tag == "pci"]
    buses = {element.get("busid").lower() for element in devices}
    cloud = next((one for one in KNOWN if buses.issuperset(one.gpus)), None)
    machine = values.text("machine") or (cloud.machine if cloud else "")
    gpus = _find_gpus(devices, cloud)
    if not machine or not gpus:
        raise values.error(_say_what_is_missing(devices, bool(machine)))
    ids = {id(element): f"gpu{i}" for i, element in enumerate(gpus)}
    notes = []
    if cloud:
        notes.append(
            f"recognised as {cloud.name} by its bus ids; what the file lacks is public "
            f"({cloud.source})"
        )
    return put_inside(values, machine, [*ids.values()], _adapters(devices, ids, cloud), notes)


def _find_gpus(devices: list[Element], cloud: Known | None) -> list[Element]:
    """The elements that are GPUs, or stand for one, in rank order: that of the bus ids."""
    by_bus = {element.get("busid").lower(): element for element in devices}
    if cloud:
        return [by_bus[bus] for bus in cloud.gpus]
    gpus = [d for d in devices if d.get("class").lower().startswith(GPU_CLASSES)]
    return sorted(gpus, key=lambda element: element.get("busid").lower())


def _adapters(
    devices: list[Element], ids: dict[int, str], cloud: Known | None
) -> Iterator[Adapter]:
    hidden, rate = cloud is not None and cloud.hidden, cloud.port if cloud else None
    nearest = Nearest(ids)
    seen: dict[str, Element] = {}
    for element in devices:
        bus = element.get("busid").lower()
        other = seen.setdefault(bus, element)
        if bus and other is not element and not element.children:
            raise element.error(
                f"PCI device {bus[:40]} stands in line {other.line} already; leave one"
            )
        what = element.get("class").lower()
        inner = any(element.children_of("pci"))
        if inner or id(element) in ids or not (what.startswith(NIC_CLASS) or (hidden and not what)):
            continue
        yield Adapter(f"nic-{slug(element.get('busid'))}", rate, nearest.find(element))


def _say_what_is_missing(devices: list[Element], named: bool) -> str:
    classes = [element.get("class") for element in devices]
    gpus = sum(c.lower().startswith(GPU_CLASSES) for c in classes)
    has = f"{len(devices)} PCI devices"
    if gpus:
        has += f", of which {gpus} look like GPUs by their class,"
    elif not any(classes):
        has += " without a class"
    cure = (
        "" if named and not gpus else
        "Give the machine whose links its GPUs have (--machine dgx-h100, or --set "
        "machine=dgx-h100; forestcoll topology list), or dump all: "
    )  # fmt: skip
    names = ", ".join(one.name for one in KNOWN)
    return (
        f"no <gpu> in it. It has {has} and says nothing of NVLink: such a file is a supplement "
        f"for NCCL_TOPO_FILE, not a dump, and its bus ids are those of none of {names}. "
        f"{cure}run any NCCL program on the machine with NCCL_TOPO_DUMP_FILE=FILE set and give "
        "that file"
    )
