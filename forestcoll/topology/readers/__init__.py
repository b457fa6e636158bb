"""What other tools write of machines and fabrics, as `Topology` or `Fabric`.

A format is a row of `FORMATS` and a module with its `Reader`; commands, completion, `detect` and
tests ask the rows. Formats are recognised by content. `read` gives what the file describes, a
machine or a fabric; `loads` a topology in either case. Nothing is guessed in silence: what a file
cannot tell stands in `notes`, and what a topology cannot do without is asked for in the error.

Importing this imports no reader, so that the command line may name the formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import DUMP_BYTES

if TYPE_CHECKING:
    from forestcoll.topology import Topology
    from forestcoll.topology.readers.shared import Fabric as Fabric
    from forestcoll.topology.readers.shared import Reader

BLANK = "\ufeff \t\r\n"
_RCCL = re.compile(r"<xgmi\b|<gpu\b[^<>]{0,400}\bgcn=")
SAMPLE = 65_536
"""Characters of a file that are looked at to recognise its format."""
DUMPED = "NCCL dump"
"""What `detect` calls the dump that it has a program of NCCL or RCCL write."""
NO_SETTINGS: Mapping[str, str] = {}


class Format(NamedTuple):
    """A format: its name for `--from`, what it is, how to get such a file, and its module.

    `tool`: what `detect` runs for it, where it runs a program; `knows`: what that says; `kept`: the
    file that `detect --keep` writes.
    """

    name: str
    what: str
    command: str
    reader: str  # module, or module:name where that has several
    recognise: Callable[[str], bool]
    machine: bool = False  # links between GPUs may come from a machine of the catalogue
    fabric: bool = False  # of hosts, whose insides are not in it
    tool: tuple[str, ...] = ()
    knows: str = ""
    kept: str = ""

    @property
    def tool_name(self) -> str:
        """Returns what `detect` calls where it has such a file from."""
        return self.tool[0] if self.tool else DUMPED


def _is_xml(text: str) -> bool:
    return text.lstrip(BLANK).startswith("<")


def _is_nvidia_smi(text: str) -> bool:
    """A header that names GPU0, and a row of relations; escapes may stand between."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    header = re.search(r"^[ \t]*GPU0\b(?:\s|GPU|NIC)", plain, re.MULTILINE)
    return header is not None and (
        re.search(r"^GPU\d+\s+(?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC)\b", plain, re.MULTILINE)
        is not None
    )


def _has_lines(*patterns: str) -> Callable[[str], bool]:
    return lambda text: all(re.search(pattern, text, re.MULTILINE) for pattern in patterns)


def _is_csv(text: str) -> bool:
    """A header of words and commas: which words, the reader says."""
    lines = text.lstrip("\ufeff").split("\n")
    head = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return re.fullmatch(r"[\w /().-]+(,[\w /().-]*)+\r?", head) is not None


FORMATS = (
    Format(
        "rccl-xml",
        "RCCL topology dump",
        "NCCL_TOPO_DUMP_FILE=rccl.xml with any RCCL program",
        "system_xml:RCCL",
        lambda text: _is_xml(text) and _RCCL.search(text) is not None,
        machine=True,
    ),
    Format(
        "hwloc-xml",
        "hwloc's XML",
        "lstopo machine.xml",
        "hwloc_xml",
        _has_lines(r"<!DOCTYPE topology\b|<topology[ >]"),
        machine=True,
        tool=("lstopo", "--of", "xml", "--whole-io"),
        knows="PCIe",
        kept="hwloc.xml",
    ),
    Format(
        "nccl-xml",
        "NCCL topology dump",
        "NCCL_TOPO_DUMP_FILE=nccl.xml with any NCCL program",
        "system_xml:NCCL",
        _is_xml,
        machine=True,
        kept="nccl.xml",
    ),
    Format(
        "rocm-smi",
        "rocm-smi's tables",
        "rocm-smi --showtopo > topo.txt",
        "rocm_smi",
        _has_lines(r"=(?: )?(?:Weight|Hops|Link Type) between two GPUs"),
        machine=True,
        tool=("rocm-smi", "--showtopo"),
        knows="xGMI between GPUs",
        kept="rocm-smi.txt",
    ),
    Format(
        "nvidia-smi",
        "nvidia-smi's matrix",
        "nvidia-smi topo -m > topo.txt",
        "nvidia_smi",
        _is_nvidia_smi,
        machine=True,
        tool=("nvidia-smi", "topo", "-m"),
        knows="NVLink between GPUs",
        kept="nvidia-smi.txt",
    ),
    Format(
        "ibnetdiscover",
        "InfiniBand fabric",
        "ibnetdiscover > fabric.out",
        "ibnetdiscover",
        _has_lines(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-[0-9A-Fa-f]+"'),
        fabric=True,
        tool=("ibnetdiscover",),
        knows="the InfiniBand fabric",
        kept="ibnetdiscover.out",
    ),
    Format(
        "netq",
        "NetQ's graph",
        "NetQ's topologyGraph API (JSON)",
        "netq_json",
        lambda text: text.lstrip(BLANK).startswith(("[", "{")) and '"compounded_' in text,
        fabric=True,
    ),
    Format(
        "infragraph",
        "InfraGraph",
        "the tool that wrote it",
        "infragraph",
        _has_lines(r'^[ "\t]*devices"?[ \t]*:', r'^[ "\t]*instances"?[ \t]*:'),
    ),
    Format(
        "model",
        "a model of racks and blocks",
        "",
        "shared:RACKS",
        _has_lines("^switches:", "^blocks:"),
    ),
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
    """Returns the format that `text` is in, or None."""
    sample = text[:SAMPLE].removeprefix("\ufeff").replace("\r\n", "\n")
    return next((form for form in FORMATS if form.recognise(sample)), None)


def find_format(name: str) -> Format:
    """Returns the format of that name. Raises `TopologyError` with the nearest name."""
    for form in FORMATS:
        if form.name == name:
            return form
    names = [form.name for form in FORMATS]
    hint = did_you_mean(name, names) or f"; formats are {', '.join(names)}"
    raise TopologyError(f"no format is called '{name[:60]}'{hint}")


def settings_of(form: Format) -> tuple[str, ...]:
    """Returns the names of the settings that the format's reader knows."""
    return tuple(setting.name for setting in _reader(form).settings)


def _reader(form: Format) -> Reader:
    module, _, name = form.reader.partition(":")
    reader: Reader = getattr(
        import_module(f"forestcoll.topology.readers.{module}"), name or "READER"
    )
    return reader


def __getattr__(name: str) -> Any:
    if name == "Fabric":
        return import_module("forestcoll.topology.readers.shared").Fabric
    raise AttributeError(f"module 'forestcoll.topology.readers' has no attribute '{name}'")


def read(
    text: str,
    source: str,
    settings: Mapping[str, str] = NO_SETTINGS,
    form: Format | None = None,
) -> Topology | Fabric:
    """Returns the machine or fabric of `text`, in the format `form` or the recognised one.

    Raises `TopologyError`: not recognised, malformed, or lacking what the user must add.
    """
    from forestcoll.topology.readers import shared
    from forestcoll.topology.source import check_size

    check_size(text, DUMP_BYTES, source)
    form = form or format_of(text)
    if form is None:
        listed = ", ".join(f"{row.name} ({row.what})" for row in FORMATS if row.command)
        raise TopologyError(f"{source}: none of the formats that are read: {listed}")
    reader = _reader(form)
    values = shared.check_settings(settings, reader.settings, source, reader.title)
    return shared.add_doubts(reader.loads(text.removeprefix("\ufeff"), values), "GPUs")


def ranks_of(fabric: Fabric) -> Topology:
    """Returns every host of a fabric as one rank, with notes on hosts unlike the others."""
    from forestcoll.topology.readers.shared import add_doubts

    return add_doubts(fabric.to_topology(), "hosts")
