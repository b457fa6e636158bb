"""NCCL's own description of a machine (`NCCL_TOPO_DUMP_FILE`) to a `Topology`.

NVLink bandwidths are NCCL's, by compute capability (NVIDIA/nccl 2.30, src/graph/topo.h and
topo.cc). All NVSwitches are one node, as NCCL has it, unless `nvswitches=each`.

Settings (all optional): `nvlink` GB/s of one NVLink, `pcie` auto | always | never, `bridges` raised
| stated, `nvswitches` merged | each, `machine` a catalogue entry whose links stand in for those
that the file lacks. Bridges above a GPU often state a slower link than the GPU below has (5 GT/s
above an H100); "raised" takes the speed of the fastest device below, "stated" the file's word.
"""

from __future__ import annotations

from fractions import Fraction

from forestcoll.topology import Topology
from forestcoll.topology.readers.box_links import Machines
from forestcoll.topology.readers.rates import MOST_NVLINKS, NVLINK
from forestcoll.topology.readers.settings import Values
from forestcoll.topology.readers.system_xml import Dialect, load_system
from forestcoll.topology.readers.xml_tree import Element


def loads(text: str, values: Values, machines: Machines) -> Topology:
    """The machine that the dump `text` describes. Raises as `system_xml.load_system`."""
    return load_system(text, values, NCCL, machines)


def _rate(gpu: Element) -> tuple[Fraction, str]:
    sm = gpu.integer("sm")
    for least, rate in NVLINK:
        if sm >= least:
            return rate, (
                f"NVLink counts {float(rate):g} GB/s per link, as NCCL has it "
                "(--set nvlink= for yours)"
            )
    raise gpu.error(f"sm {sm} has no NVLink that is known; give --set nvlink=GB/s")


NCCL = Dialect("NCCL", "nvlink", "NVLink", MOST_NVLINKS, _rate)
TITLE = "an NCCL dump"
SETTINGS = NCCL.settings
