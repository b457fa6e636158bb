"""What this machine says of itself: run the tools that are there, take the fullest answer.

NCCL's or RCCL's own dump knows links, adapters and rates; hwloc knows PCIe, and NVLink where it was
built with NVML; the matrices of nvidia-smi and rocm-smi know who is linked to whom. `ibnetdiscover`
knows the network: where this machine is one of its hosts, machines like this one are put into all
hosts that have such ports.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from forestcoll.common.errors import ForestCollError, TopologyError, did_you_mean
from forestcoll.common.input_limits import TOPOLOGY_BYTES
from forestcoll.topology import Adapter, Topology, compose, readers
from forestcoll.topology.readers.shared import Fabric, Patterns, list_some

SECONDS = 120
"""What a tool may take; ibnetdiscover asks every switch of a fabric."""
ADAPTERS = Path("/sys/class/infiniband")

DUMP_BY_TORCH = (
    "import torch; n = torch.cuda.device_count(); "
    "t = [torch.ones(1, device=f'cuda:{i}') for i in range(n)]; torch.cuda.nccl.all_reduce(t); "
    "torch.cuda.synchronize()"
)
"""One process, a rank for each GPU: a dump has only the GPUs that take part."""


class Step(NamedTuple):
    """What became of one tool: `text` is what it wrote, "" where there is nothing."""

    tool: str
    said: str
    text: str = ""
    found: Topology | Fabric | None = None


@dataclass(slots=True)
class Detection:
    """All steps, and the topology that came out of them, if any did."""

    steps: list[Step] = field(default_factory=list)
    topology: Topology | None = None
    source: str = ""  # the tool, or tools, that it is from
    advice: str = ""  # what is missing of the network, and what to run where


def detect(
    settings: Mapping[str, str],
    tell: Callable[[str], None] = lambda text: None,
    alone: bool = False,
) -> Detection:
    """Runs every tool that is on the path. `settings` go to the reader that knows them.

    `alone`: this machine, even if the network and its other hosts can be told.
    """
    readable = {name for form in readers.FORMATS for name in readers.settings_of(form)}
    for name in settings:
        if name not in readable:
            hint = did_you_mean(name, readable)
            raise TopologyError(f"no tool's output has a setting '{name[:60]}'{hint}")
    result = Detection()
    tell("NCCL's dump")
    result.steps.append(_dump(settings))
    for form in readers.FORMATS:
        if form.tool:
            tell(form.tool[0])
            result.steps.append(_run(form, settings))
    machines = [(s.found, s.tool) for s in result.steps if isinstance(s.found, Topology)]

    def fullness(machine: tuple[Topology, str]) -> tuple[int, bool, bool, int]:
        """Most GPUs first, then a dump, links, ports."""
        given, tool = machine
        switched = any("hwloc sees it only with" in note for note in given.notes)
        return len(given.gpus), tool == readers.DUMPED, not switched, len(given.adapters)

    if machines:
        fullest, result.source = max(machines, key=fullness)
        result.topology = _add_rates(fullest)
    if result.topology is not None and result.topology.adapters and not alone:
        _add_network(result, result.topology)
    return result


def _add_network(result: Detection, machine: Topology) -> None:
    """The cluster out of the machine and the fabric that was seen, or advice on how to get it."""
    fabric = next((s.found for s in result.steps if isinstance(s.found, Fabric)), None)
    both = "'forestcoll topology import' takes what --keep FOLDER wrote of this machine and the "
    if fabric is None:
        if (ADAPTERS / machine.adapters[0].name).exists():
            result.advice = (
                "the InfiniBand network is not known: run 'ibnetdiscover > fabric.out' as root on "
                f"any node of it; {both}file fabric.out together"
            )
        return
    both += "fabric's file together"
    name = socket.gethostname()
    here = next((h for h in fabric.hosts if h.lower() in (name.lower(), _short(name))), None)
    if here is None:
        result.advice = (
            f"ibnetdiscover sees no host called {name}, but {list_some(fabric.hosts)}: {both}, "
            "with --hosts NAMES for those that are machines like this one"
        )
        return
    alike = _find_alike(fabric, here)
    try:
        chosen = fabric.choose_hosts(Patterns("hosts", tuple(alike)))
        joined = compose.join_fabric(machine, chosen, compose.parse_ports(()))
    except TopologyError as error:
        result.advice = f"machine and network do not fit together ({error}): {both}"
        return
    notes = [
        f"{len(alike)} hosts have ports like this one ({here}) and are taken for machines like it "
        "(--set hosts=NAMES chooses, --alone leaves the network away)"
    ]
    others = [host for host in fabric.hosts if host not in alike]
    if others:
        notes.append(f"{len(others)} hosts have other ports: {list_some(others)} are left out")
    result.topology = replace(joined, name="this-cluster", notes=(*joined.notes, *notes))
    result.source += " and ibnetdiscover"


def _find_alike(fabric: Fabric, here: str) -> list[str]:
    """Hosts that have no other ports than the host `here`, and more than half of its ports."""
    names = {host: {port.name for port in ports} for host, ports in fabric.ports().items()}
    own = names[here]
    return [host for host, some in names.items() if some <= own and 2 * len(some) > len(own)]


def _short(name: str) -> str:
    """A host's name without its domain, in small letters."""
    return name.split(".")[0].lower()


def explain() -> TopologyError:
    """The error that says what to run where, for a machine on which none of the tools answers."""
    error = TopologyError(
        "nothing on this machine tells of GPUs; on a machine that has them run one of these, and "
        "give its file to 'forestcoll topology import FILE -o my.yaml'"
    )
    rows = [(form.what, form.command) for form in readers.FORMATS if form.machine]
    rows.append(("InfiniBand fabric", "ibnetdiscover > fabric.out (as root, on any of its nodes)"))
    error.add_note("\n".join(f"{what:<22}{command}" for what, command in rows))
    return error


def _dump(settings: Mapping[str, str]) -> Step:
    """The dump of NCCL or RCCL, by nccl-tests or PyTorch, whichever is there."""
    name = readers.DUMPED
    perf = shutil.which("all_reduce_perf")
    if perf is not None:
        gpus = _count_gpus()
        words = [perf, "-b", "8", "-e", "8", "-n", "1", "-w", "0", "-g", str(max(1, gpus))]
    elif _has_torch():
        words = [sys.executable, "-c", DUMP_BY_TORCH]
    else:
        return Step(name, "neither all_reduce_perf (nccl-tests) nor PyTorch is here")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dump.xml"
        said = _call(words, {**os.environ, "NCCL_TOPO_DUMP_FILE": str(file)})[1]
        if not file.is_file() or file.stat().st_size > TOPOLOGY_BYTES:
            return Step(name, f"{Path(words[0]).name} wrote no dump{said and f': {said}'}")
        text = file.read_text(encoding="utf-8", errors="replace")
    form = readers.format_of(text)
    return _read(name, text, form or readers.find_format("nccl-xml"), settings)


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _count_gpus() -> int:
    for words in (["nvidia-smi", "-L"], ["rocm-smi", "--showid"]):
        if shutil.which(words[0]) is not None:
            text = _call(words, dict(os.environ))[0]
            numbers = set(re.findall(r"^GPU (\d+):|^GPU\[(\d+)\]", text, re.MULTILINE))
            if numbers:
                return len(numbers)
    return 0


def _run(form: readers.Format, settings: Mapping[str, str]) -> Step:
    name, *options = form.tool
    plain = f"{name}-no-graphics"  # of hwloc: without the libraries of a window
    program = plain if shutil.which(plain) is not None else name
    if shutil.which(program) is None:
        return Step(name, f"not on the path ({form.knows})")
    text, wrong = _call([program, *options], dict(os.environ))
    if wrong:
        return Step(name, f"fails: {wrong}")
    return _read(name, text, form, settings)


def _call(words: Sequence[str], environment: dict[str, str]) -> tuple[str, str]:
    """(what a program wrote, why it failed or "")."""
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=SECONDS, env=environment, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {SECONDS} s"
    except OSError as error:
        return "", error.strerror or str(error)
    text = done.stdout[:TOPOLOGY_BYTES].decode("utf-8", "replace")
    if done.returncode == 0:
        return text, ""
    lines = (done.stderr.decode("utf-8", "replace") + "\n" + text).split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    return "", f"exit code {done.returncode}{first and f', {first[:200]}'}"


def _read(name: str, text: str, form: readers.Format, settings: Mapping[str, str]) -> Step:
    own = {k: v for k, v in settings.items() if k in readers.settings_of(form)}
    try:
        given = readers.read(text, f"this machine ({name})", own, form)
    except ForestCollError as error:
        return Step(name, str(error), text)
    if isinstance(given, Fabric):
        said = (
            f"{len(given.hosts)} hosts, {len(given.switches)} switches, {len(given.cables)} cables"
        )
        return Step(name, said, text, given)
    ports = f"{len(given.adapters)} network ports"
    said = f"{len(given.gpus)} GPUs, {len(given.links)} links, {ports}"
    return Step(name, said, text, replace(given, name="this-machine"))


def _add_rates(topology: Topology) -> Topology:
    """Rates of adapters that the system itself knows, where the tool did not."""
    adapters: list[Adapter] = []
    added = 0
    for adapter in topology.adapters:
        rate = _system_rate(adapter.name) if adapter.bandwidth is None else None
        adapters.append(replace(adapter, bandwidth=rate) if rate is not None else adapter)
        added += rate is not None
    if not added:
        return topology
    note = f"the rates of {added} network ports are the system's ({ADAPTERS})"
    kept = tuple(n for n in topology.notes if "their rates are not in the file" not in n)
    return replace(topology, adapters=tuple(adapters), notes=(*kept, note))


def _system_rate(name: str) -> Fraction | None:
    """GB/s of an RDMA device's first port: "400 Gb/sec (4X NDR)"."""
    if not re.fullmatch(r"[\w.-]{1,60}", name):
        return None
    try:
        text = (ADAPTERS / name / "ports" / "1" / "rate").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = re.match(r"(\d{1,5})(?:\.(\d))? Gb/sec", text)
    return Fraction(f"{match[1]}.{match[2] or 0}") / 8 if match else None


def need(detection: Detection) -> Topology:
    """The topology that was detected. Raises `TopologyError` where there is none."""
    if detection.topology is None:
        raise explain()
    return detection.topology
