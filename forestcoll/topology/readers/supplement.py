"""`<system>` files without `<gpu>`, as cloud providers hand them out for `NCCL_TOPO_FILE`.

They give NCCL the PCIe tree that a virtual machine hides, and nothing else: GPUs and network ports
are PCI devices by their class, or by their place alone. The links between the GPUs come from the
machine that the user names, or from topology/readers/known_machines.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import PurePath

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Adapter, Node, Topology, slug
from forestcoll.topology.readers.box_links import Machines, put_inside
from forestcoll.topology.readers.known_machines import KNOWN, Known, recognise
from forestcoll.topology.readers.settings import Values
from forestcoll.topology.readers.xml_tree import Element

GPU_CLASSES = ("0x0302", "0x0300", "0x0380", "0x12")
NIC_CLASS = "0x02"


def read_supplement(root: Element, source: str, values: Values, machines: Machines) -> Topology:
    """The machine; raises `TopologyError` with what the file has and what to add."""
    devices = [element for element in root.walk() if element.tag == "pci"]
    known = recognise([element.attributes.get("busid", "") for element in devices])
    machine = values.text("machine") or (known.machine if known else "")
    gpus = _find_gpus(devices, known)
    if not machine or not gpus:
        raise TopologyError(f"{source}: {_say_what_is_missing(devices, bool(machine))}")
    ids = {id(element): f"gpu{i}" for i, element in enumerate(gpus)}
    hidden = known is not None and known.hidden
    adapters = tuple(_adapters(devices, ids, hidden, known.port if known else None))
    notes = []
    if known:
        notes.append(
            f"recognised as {known.name} by its bus ids; what the file lacks is public "
            f"({known.source})"
        )
    nodes = {name: Node("gpu") for name in ids.values()}
    bare = Topology(slug(PurePath(source).stem), nodes, (), adapters, tuple(notes))
    return put_inside(bare, tuple(nodes), machines(machine), machine, source)


def _find_gpus(devices: list[Element], known: Known | None) -> list[Element]:
    """The elements that are GPUs, or stand for one, in rank order: that of the bus ids."""
    by_bus = {element.attributes.get("busid", "").lower(): element for element in devices}
    if known:
        return [by_bus[bus] for bus in known.gpus]
    found = [d for d in devices if d.attributes.get("class", "").lower().startswith(GPU_CLASSES)]
    return sorted(found, key=lambda element: element.attributes.get("busid", "").lower())


def _adapters(
    devices: list[Element], ids: dict[int, str], hidden: bool, rate: Fraction | None
) -> Iterator[Adapter]:
    seen: dict[str, Element] = {}
    for element in devices:
        bus = element.attributes.get("busid", "").lower()
        other = seen.setdefault(bus, element)
        if bus and other is not element and not element.children:
            raise element.error(
                f"PCI device {bus[:40]} stands in line {other.line} already; leave one"
            )
        what = element.attributes.get("class", "").lower()
        inner = any(element.named("pci"))
        if inner or id(element) in ids or not (what.startswith(NIC_CLASS) or (hidden and not what)):
            continue
        above: Element | None = element
        near: tuple[str, ...] = ()
        while above is not None and not near and above.tag != "system":
            near = tuple(ids[id(e)] for e in above.walk() if id(e) in ids)
            above = above.parent
        name = f"nic-{slug(element.attributes.get('busid', ''))}"
        yield Adapter(name, rate, near)


def _say_what_is_missing(devices: list[Element], named: bool) -> str:
    classes = [element.attributes.get("class", "") for element in devices]
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
