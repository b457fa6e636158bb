"""RCCL's own description of a machine (`NCCL_TOPO_DUMP_FILE` on AMD GPUs) to a `Topology`.

The file is NCCL's with `<xgmi>` for the links between GPUs and the architecture in `gcn`. One xGMI
link counts what RCCL counts (ROCm/rccl, src/graph/topo.h): 48 GB/s a direction on gfx94x, 36 on
MI200, 24 before. Peer copies may measure less, and data sheets state more: `--set xgmi=GB/s`.
"""

from __future__ import annotations

from fractions import Fraction

from forestcoll.topology import Topology
from forestcoll.topology.readers.box_links import Machines
from forestcoll.topology.readers.rates import MOST_XGMI, XGMI
from forestcoll.topology.readers.settings import Values
from forestcoll.topology.readers.system_xml import Dialect, load_system
from forestcoll.topology.readers.xml_tree import Element


def loads(text: str, values: Values, machines: Machines) -> Topology:
    """The machine that the dump `text` describes. Raises as `system_xml.load_system`."""
    return load_system(text, values, RCCL, machines)


def _rate(gpu: Element) -> tuple[Fraction, str]:
    gcn = gpu.text("gcn").lower()
    for names, rate in XGMI:
        if gcn.startswith(names):
            return rate, (
                f"xGMI counts {float(rate):g} GB/s per link, as RCCL has it (--set xgmi= for yours)"
            )
    raise gpu.error(f"gcn '{gcn[:20]}' has no xGMI that is known; give --set xgmi=GB/s")


RCCL = Dialect("RCCL", "xgmi", "xGMI", MOST_XGMI, _rate)
TITLE = "an RCCL dump"
SETTINGS = RCCL.settings
