"""What other tools write of machines and fabrics, as `Topology` or `Fabric`.

One format a module, recognised by content. `read` gives what the file describes, a machine or a
fabric; `loads` a topology in either case. Nothing is guessed in silence: what a file cannot tell
stands in `notes`, and what a topology cannot do without is asked for in the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology import Topology
from forestcoll.topology.file import NO_SETTINGS
from forestcoll.topology.readers.box_links import NO_MACHINES, Machines
from forestcoll.topology.readers.doubts import doubt_fabric, doubt_topology
from forestcoll.topology.readers.fabric import Fabric
from forestcoll.topology.readers.settings import check_settings

__all__ = [
    "FORMATS",
    "NO_MACHINES",
    "Fabric",
    "Format",
    "Machines",
    "find_format",
    "format_of",
    "loads",
    "ranks_of",
    "read",
    "settings_of",
]

SAMPLE = 65_536
"""Characters of a file that are looked at to recognise its format."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name for `--from`, what it is, how to get such a file."""

    name: str
    what: str
    command: str
    module: str
    recognise: Callable[[str], bool]
    machine: bool = False  # links between GPUs may come from a machine of the catalogue
    fabric: bool = False  # of hosts, whose insides are not in it


def _is_xml(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n").startswith("<")


def _is_rccl(text: str) -> bool:
    return _is_xml(text) and re.search(r"<xgmi\b|<gpu\b[^<>]{0,400}\bgcn=", text) is not None


def _is_ibnetdiscover(text: str) -> bool:
    return (
        re.search(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-[0-9A-Fa-f]+"', text, re.MULTILINE) is not None
    )


def _is_nvidia_smi(text: str) -> bool:
    """A header that names GPU0, and a row of relations; escapes may stand between."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    header = re.search(r"^[ \t]*GPU0\b(?:\s|GPU|NIC)", plain, re.MULTILINE)
    return header is not None and (
        re.search(r"^GPU\d+\s+(?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC)\b", plain, re.MULTILINE)
        is not None
    )


def _is_rocm_smi(text: str) -> bool:
    return re.search(r"=(?: )?(?:Weight|Hops|Link Type) between two GPUs", text) is not None


def _is_hwloc(text: str) -> bool:
    return re.search(r"<!DOCTYPE topology\b|<topology[ >]", text) is not None


def _is_netq(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n")[:1] in ("[", "{") and '"compounded_' in text


def _is_infragraph(text: str) -> bool:
    keys = [rf'^[ "\t]*{key}"?[ \t]*:' for key in ("devices", "instances")]
    return all(re.search(key, text, re.MULTILINE) for key in keys)


def _is_model(text: str) -> bool:
    keys = [rf"^{key}:" for key in ("switches", "blocks")]
    return all(re.search(key, text, re.MULTILINE) for key in keys)


def _is_csv(text: str) -> bool:
    """A header of words and commas: which words, the reader says."""
    lines = (line for line in text.lstrip("\ufeff").split("\n"))
    head = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return re.fullmatch(r"[\w /().-]+(,[\w /().-]*)+\r?", head) is not None


FORMATS = (
    Format(
        "rccl-xml",
        "RCCL topology dump",
        "NCCL_TOPO_DUMP_FILE=rccl.xml with any RCCL program",
        "rccl_xml",
        _is_rccl,
        machine=True,
    ),
    Format("hwloc-xml", "hwloc's XML", "lstopo machine.xml", "hwloc_xml", _is_hwloc, machine=True),
    Format(
        "nccl-xml",
        "NCCL topology dump",
        "NCCL_TOPO_DUMP_FILE=nccl.xml with any NCCL program",
        "nccl_xml",
        _is_xml,
        machine=True,
    ),
    Format(
        "rocm-smi",
        "rocm-smi's tables",
        "rocm-smi --showtopo > topo.txt",
        "rocm_smi",
        _is_rocm_smi,
        machine=True,
    ),
    Format(
        "nvidia-smi",
        "nvidia-smi's matrix",
        "nvidia-smi topo -m > topo.txt",
        "nvidia_smi",
        _is_nvidia_smi,
        machine=True,
    ),
    Format(
        "ibnetdiscover",
        "InfiniBand fabric",
        "ibnetdiscover > fabric.out",
        "ibnetdiscover",
        _is_ibnetdiscover,
        fabric=True,
    ),
    Format(
        "netq",
        "NetQ's graph",
        "NetQ's topologyGraph API (JSON)",
        "netq_json",
        _is_netq,
        fabric=True,
    ),
    Format("infragraph", "InfraGraph", "the tool that wrote it", "infragraph", _is_infragraph),
    Format("model", "a model of racks and blocks", "", "rack_model", _is_model),
    Format(
        "csv",
        "list of links in CSV",
        "your cabling list or LLDP table",
        "links_csv",
        _is_csv,
        fabric=True,
    ),
)


def format_of(text: str) -> Format | None:
    """The format that `text` is in, or None."""
    sample = text[:SAMPLE]
    return next((known for known in FORMATS if known.recognise(sample)), None)


def find_format(name: str) -> Format:
    """The format of that name. Raises `TopologyError` with the nearest name."""
    found = next((known for known in FORMATS if known.name == name), None)
    if found is None:
        names = [known.name for known in FORMATS]
        hint = did_you_mean(name, names) or f"; formats are {', '.join(names)}"
        raise TopologyError(f"no format is called '{name[:60]}'{hint}")
    return found


def settings_of(form: Format) -> tuple[str, ...]:
    """Names of the settings that the format's reader knows."""
    return tuple(setting.name for setting in _reader(form).SETTINGS)


def _reader(form: Format) -> Any:
    """The format's module: `loads(text, values[, machines])`, SETTINGS, and TITLE for errors."""
    return import_module(f"forestcoll.topology.readers.{form.module}")


def read(
    text: str,
    source: str,
    settings: Mapping[str, str] = NO_SETTINGS,
    machines: Machines = NO_MACHINES,
    form: Format | None = None,
) -> Topology | Fabric:
    """The machine or fabric that `text` describes, in the format `form` or the recognised one.

    `machines` looks a machine up in the catalogue.

    Raises `TopologyError`: not recognised, malformed, or lacking what the user must add.
    """
    form = form or format_of(text)
    if form is None:
        listed = ", ".join(f"{known.name} ({known.what})" for known in FORMATS if known.command)
        raise TopologyError(f"{source}: none of the formats that are read: {listed}")
    reader = _reader(form)
    values = check_settings(settings, reader.SETTINGS, source, reader.TITLE)
    found = reader.loads(text, values, *([machines] if form.machine else []))
    assert isinstance(found, Topology | Fabric)
    doubts = doubt_topology(found, "GPUs") if isinstance(found, Topology) else doubt_fabric(found)
    return replace(found, notes=(*found.notes, *doubts)) if doubts else found


def loads(
    text: str,
    source: str,
    settings: Mapping[str, str] = NO_SETTINGS,
    machines: Machines = NO_MACHINES,
) -> Topology:
    """The same as a topology; of a fabric, every host is one rank."""
    found = read(text, source, settings, machines)
    return ranks_of(found) if isinstance(found, Fabric) else found


def ranks_of(fabric: Fabric) -> Topology:
    """Every host of a fabric as one rank, with notes on hosts unlike the others."""
    found = fabric.to_topology()
    doubts = doubt_topology(found, "hosts")
    return replace(found, notes=(*found.notes, *doubts)) if doubts else found
