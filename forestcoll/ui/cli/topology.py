"""`forestcoll topology ...`: look at topologies, make them of what machines say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ArgumentError
from forestcoll.topology import readers
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.files import Sink, sink_option
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import (
    answer,
    draw,
    note,
    put,
    report,
    say,
    show_progress,
)
from forestcoll.ui.cli.options import (
    EDITED_MACHINE,
    NAMED_MACHINE,
    SET,
    Machine,
    add_common,
    command,
    each,
    flag,
    load,
    option,
    place,
    usage,
)
from forestcoll.ui.cli.process import guard
from forestcoll.ui.cli.types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.topology import Topology

Settings = dict[str, str]

FORMATS = tuple(form.name for form in readers.FORMATS if form.command)
SINK: Any = sink_option()
HOSTS: Any = option(
    None, "Hosts of the fabric that take part: names or globs. Default: all.", None, "NAME,..."
)
PORT: Any = each(
    None,
    "A port of the fabric is this port of the machine (mlx5_3=nic0), serves these GPUs "
    "(HCA-1=gpu0+gpu1), or is not used (=none). NAME may be a glob, or a|b. Repeatable.",
    "NAME=TARGET",
)
PORTS: Any = option(
    None, "Use these network ports of the machine alone: names or globs.", None, "NAME,..."
)


@click.group(
    epilog=examples(
        "forestcoll topology list",
        "forestcoll topology show dgx-h100 --set boxes=4",
        "forestcoll topology check my-machine.yaml",
    )
)
def topology() -> None:
    """Look at topologies: the catalogue's and your own."""


add_common(topology)


@command("forestcoll topology list", name="list", into=topology)
def list_topologies() -> None:
    """The catalogue: names, parameters with their defaults."""
    from forestcoll.topology import catalog
    from forestcoll.ui.report.facts import Rows, same

    about = {name: catalog.describe(name) for name in catalog.names()}
    rows = [[same("name", n), same("description", text, "what")] for n, text in about.items()]
    answer(Rows("", rows, right=()))


@command(
    "forestcoll topology show dgx-h100 --set boxes=4",
    "forestcoll topology show rail --source > my-rail.yaml",
    into=topology,
)
def show(
    machine: Machine = NAMED_MACHINE,
    source: bool = flag("Print the catalogue's YAML, comments and all."),
) -> None:
    """What a topology is made of."""
    from forestcoll.topology import catalog
    from forestcoll.ui.report import topologies

    name = machine.topology or ""
    if source:
        put(catalog.source(name))
        return
    with guard(name):
        expanded = catalog.load(name, machine.settings)  # its notes are in the table
    about = catalog.describe(name) if name.removesuffix(".yaml") in catalog.names() else ""
    answer(topologies.topology_facts(expanded, about))


@command("forestcoll topology check my-machine.yaml", into=topology, json=False)
def check(machine: Machine = NAMED_MACHINE) -> None:
    """Well formed, and every GPU can reach every other?"""
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.topology import check_connected
    from forestcoll.ui.report import topologies

    expanded = machine.load()
    check_connected(expanded)
    CapacityGraph.from_topology(expanded)
    census = topologies.census(expanded)
    say(f"{machine.topology}: ok: {census}; every GPU reaches every other")


@command(
    "forestcoll topology expand dgx-a100 --set boxes=2 -o two.yaml",
    "forestcoll topology expand dgx-a100 --set boxes=2 --without box0/gpu3-fabric",
    into=topology,
    json=False,
)
def expand(machine: Machine = EDITED_MACHINE, sink: Sink = SINK) -> None:
    """Write the explicit form: every node and link by itself."""
    from forestcoll.topology import dumps_topology

    sink.prepare()
    sink.write(dumps_topology(machine.load()))


@command(
    "forestcoll topology import H100-topology.xml -o my.yaml",
    "forestcoll topology import ndv5-topo.xml --machine dgx-h100",
    "forestcoll topology import nccl.xml fabric.out --hosts 'dgx*' -o cluster.yaml",
    name="import",
    into=topology,
    json=False,
)
def import_(
    sources: tuple[str, ...] = place("file", "FILE...", many=True),
    form: str | None = option(
        FORMATS, "The first file's format. Default: recognised.", names="--from"
    ),
    machine: str | None = option(
        None,
        "Catalogue entry whose links between GPUs stand in for those that the file lacks.",
        None,
        "NAME",
    ),
    settings: Settings = SET,
    hosts: str | None = HOSTS,
    port: tuple[str, ...] = PORT,
    ports: str | None = PORTS,
    sink: Sink = SINK,
) -> None:
    """A topology file from what other tools write of a machine, a fabric, or one of each.

    Read are NCCL's and RCCL's topology XML, nvidia-smi topo -m, rocm-smi --showtopo, hwloc XML,
    InfraGraph, ibnetdiscover, CSV lists of links, NetQ's graph (docs/machines.md).
    """
    from forestcoll.topology import import_topology

    sink.prepare()
    given = usage(_with_options, settings, machine=machine, hosts=hosts, ports=ports)
    with guard(sources[0], *sources):
        imported = import_topology.import_files(sources, given, form or "", port)
    _finish(imported, f"forestcoll topology import {' '.join(sources)}", sink)


@command(
    "forestcoll topology compose H100-topology.xml --fabric rail --boxes 4 -o cluster.yaml",
    "forestcoll topology compose dgx-h100 --fabric fabric.out --hosts 'dgx*' \\",
    "    --port 'HCA-1|mlx5_0=gpu0+gpu1' --port 'HCA-2|mlx5_1=gpu2+gpu3'",
    into=topology,
    json=False,
)
def compose(
    machine: str = place("topology", "FILE|NAME"),
    fabric: str = option(
        None,
        "single (one switch), rail, fat-tree, or the file of a fabric: ibnetdiscover, CSV, NetQ.",
        "single",
        "KIND|FILE",
    ),
    boxes: int | None = option(range(1, 100_001), "How many machines.", None, "N"),
    settings: Settings = SET,
    hosts: str | None = HOSTS,
    port: tuple[str, ...] = PORT,
    ports: str | None = PORTS,
    sink: Sink = SINK,
) -> None:
    """A cluster: one machine (a dump, or a name of the catalogue) many times on a network.

    --set takes the settings of the machine's file, of the fabric's, and of the network: rails,
    spine, hosts_per_leaf, spines, oversubscription.
    """
    from forestcoll.topology import import_topology

    sink.prepare()
    number = None if boxes is None else str(boxes)
    given = usage(_with_options, settings, boxes=number, hosts=hosts, ports=ports)
    with guard(machine, machine, fabric):
        cluster = import_topology.compose_cluster(machine, fabric, given, port)
    _finish(cluster, f"forestcoll topology compose {machine} --fabric {fabric}", sink)


@command(
    "forestcoll topology diff mine.yaml dump.xml",
    "forestcoll topology diff dgx-h100 dump.xml --set-a boxes=2 --set-b boxes=2",
    into=topology,
)
def diff(
    one: str = place("topology", "A"),
    two: str = place("topology", "B"),
    set_a: Settings = SET._replace(help="Parameter of A: boxes=2.", names="--set-a"),
    set_b: Settings = SET._replace(help="Parameter of B.", names="--set-b"),
) -> int:
    """Nodes, links, bandwidths that differ between two topologies, by name, alike ones together.

    Exit code 0: they are equal; 1: they differ. The topologies' own names do not count.
    """
    from forestcoll.topology.difference import compare, group
    from forestcoll.ui.report import topologies

    sides = [load(one, set_a), load(two, set_b)]
    groups = group(compare(*sides))
    answer(topologies.differences(groups))
    if not groups:
        say(f"{one} and {two} are equal: {len(sides[0].gpus)} GPUs, the same nodes and links")
    return 1 if groups else 0


@command(
    "forestcoll topology detect -o this.yaml",
    "forestcoll topology detect --keep dumps/ -o this.yaml",
    into=topology,
    json=False,
)
def detect(
    settings: Settings = SET,
    keep: str | None = option("file", "Keep what the tools wrote, a file each.", None, "FOLDER"),
    alone: bool = flag("This machine, even if ibnetdiscover shows its cluster."),
    sink: Sink = SINK,
) -> None:
    """The topology of this machine and its cluster, from the tools that it has.

    Runs, where they are on the path: an NCCL program that dumps the topology (nccl-tests or
    PyTorch), lstopo, nvidia-smi, rocm-smi, ibnetdiscover. Where ibnetdiscover (as root) shows this
    machine as one of its hosts, hosts with the same ports are taken for machines like it, and the
    cluster is what comes out. Without any tool, it says what to run where.
    """
    from forestcoll.topology import detect as detecting
    from forestcoll.ui.report.facts import line

    kept_as = {form.tool_name: form.kept for form in readers.FORMATS if form.kept}
    files = {tool: Path(keep) / name for tool, name in kept_as.items()} if keep else {}
    writing.prepare([*files.values(), *([sink.path] if sink.path else [])], sink.force)
    with show_progress("detecting") as progress:
        seen = detecting.detect(settings, lambda name: progress(name, 0.0), alone)
    draw([line(step.tool, step.said) for step in seen.steps], err=True)
    kept = {files[s.tool]: s.text for s in seen.steps if s.text and s.tool in files}
    writing.write_all(kept, sink.force)
    _finish(detecting.need(seen), "forestcoll topology detect", sink.prepare())
    note(f"taken from {seen.source}")
    if seen.advice:
        note(seen.advice)


@command(
    "nvbandwidth -t device_to_device_memcpy_read_ce > nvbandwidth.txt",
    "forestcoll topology calibrate dump.xml --measured nvbandwidth.txt -o real.yaml",
    into=topology,
    json=False,
)
def calibrate(
    name: str = place("topology", "NAME|FILE"),
    settings: Settings = SET,
    measured: str = option(
        "file",
        "Output of nvbandwidth, p2pBandwidthLatencyTest, nccl-tests or rccl-tests (text or JSON), "
        "NCCL's inspector or example profiler, or 'forestcoll measure'.",
        required=True,
    ),
    tolerance: float = option(
        FiniteRange(0, 100),
        "Links this close to the median of their kind get the median.",
        5.0,
        "PERCENT",
    ),
    sink: Sink = SINK,
) -> None:
    """The topology with its links at what was measured, nominal beside measured.

    A link's rate is the median over the pairs of GPUs that it limits, so single odd pairs change
    nothing and are named. Links that no measured pair shows take the rate of their kind.
    """
    from forestcoll.topology import read_text
    from forestcoll.topology.calibrate import calibrate as fit
    from forestcoll.topology.calibrate import load_measurement
    from forestcoll.ui.report import topologies

    sink.prepare()
    nominal = load(name, settings)
    with guard(measured):
        fitted = fit(nominal, load_measurement(read_text(measured), measured), tolerance / 100)
    report(topologies.calibration(fitted), err=sink.path is None)
    notes = (*fitted.notes, *topologies.odd_pairs(fitted))
    command = f"forestcoll topology calibrate {name} --measured {measured}"
    _finish(fitted.topology, command, sink, notes)


def _with_options(settings: Mapping[str, str], **options: str | None) -> Settings:
    """`--set` and options that stand for a setting; the same twice is an error."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name in settings:
            raise ArgumentError(f"--{name} and --set {name}= are the same: give one of them")
    return {**settings, **given}


def _finish(
    result: Topology, command: str, sink: Sink, notes: tuple[str, ...] | None = None
) -> None:
    """Says what was assumed (the topology's `notes`, where no others are given), and writes it."""
    from forestcoll.topology import import_topology
    from forestcoll.ui.report import topologies

    for text in result.notes if notes is None else notes:
        note(text)
    text = import_topology.dump_with_notes(result, command)
    sink.write(text, lambda: f"{result.name}: {topologies.census(result)}")
