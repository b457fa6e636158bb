"""`forestcoll topology import, compose, ...`: what real machines say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from forestcoll.topology import readers
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import FileType, SettingType, TopologyType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, note, print_json, put, report, say, show_progress
from forestcoll.ui.cli.options import (
    force_option,
    json_option,
    load,
    output_option,
    set_option,
    settings_of,
)
from forestcoll.ui.cli.topology import topology
from forestcoll.ui.cli.value_types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.topology import Topology

F = TypeVar("F", bound=Callable[..., object])

FORMATS = tuple(form.name for form in readers.FORMATS if form.command)
NETWORKS = ("single", "rail", "fat-tree")

__all__ = ["topology"]


def fabric_options(command: F) -> F:
    """Which hosts of a fabric, and which port is which."""
    command = click.option(
        "--ports",
        metavar="NAME,...",
        help="Use these network ports of the machine alone: names or globs.",
    )(command)
    command = click.option(
        "--port",
        "port_map",
        multiple=True,
        metavar="NAME=TARGET",
        help="A port of the fabric is this port of the machine (mlx5_3=nic0), serves these GPUs "
        "(HCA-1=gpu0+gpu1), or is not used (=none). NAME may be a glob, or a|b. Repeatable.",
    )(command)
    return click.option(
        "--hosts",
        metavar="NAME,...",
        help="Hosts of the fabric that take part: names or globs. Default: all.",
    )(command)


@topology.command(
    "import",
    epilog=examples(
        "forestcoll topology import H100-topology.xml -o my.yaml",
        "forestcoll topology import ndv5-topo.xml --machine dgx-h100",
        "forestcoll topology import nccl.xml fabric.out --hosts 'dgx*' -o cluster.yaml",
    ),
)
@click.argument("sources", nargs=-1, required=True, type=FileType(), metavar="FILE...")
@click.option(
    "--from", "form", type=WordType(FORMATS), help="The first file's format. Default: recognised."
)
@click.option(
    "--machine",
    metavar="NAME",
    help="Catalogue entry whose links between GPUs stand in for those that the file lacks.",
)
@set_option
@fabric_options
@output_option()
@force_option()
def import_(
    sources: tuple[str, ...],
    form: str | None,
    machine: str | None,
    pairs: tuple[tuple[str, str], ...],
    hosts: str | None,
    port_map: tuple[str, ...],
    ports: str | None,
    output: str,
    force: bool,
) -> None:
    """A topology file from what other tools write of a machine, a fabric, or one of each.

    Read are NCCL's and RCCL's topology XML, nvidia-smi topo -m, rocm-smi --showtopo, hwloc XML,
    InfraGraph, ibnetdiscover, CSV lists of links, NetQ's graph (docs/real-machines.md).
    """
    from forestcoll.topology import import_topology

    _prepare(output, force)
    settings = _with_options(pairs, machine=machine, hosts=hosts, ports=ports)
    with guarded(sources[0], size_of(*sources)):
        found = import_topology.import_files(sources, settings, form or "", port_map)
    _finish(found, f"forestcoll topology import {' '.join(sources)}", output, force)


@topology.command(
    epilog=examples(
        "forestcoll topology compose H100-topology.xml --fabric rail --boxes 4 -o cluster.yaml",
        "forestcoll topology compose dgx-h100 --fabric fabric.out --hosts 'dgx*' \\",
        "    --port 'HCA-1|mlx5_0=gpu0+gpu1' --port 'HCA-2|mlx5_1=gpu2+gpu3'",
    )
)
@click.argument("machine", type=TopologyType(), metavar="FILE|NAME")
@click.option(
    "--fabric",
    default="single",
    show_default=True,
    metavar="KIND|FILE",
    help="single (one switch), rail, fat-tree, or the file of a fabric: ibnetdiscover, CSV, NetQ.",
)
@click.option("--boxes", type=click.IntRange(1, 100_000), metavar="N", help="How many machines.")
@set_option
@fabric_options
@output_option()
@force_option()
def compose(
    machine: str,
    fabric: str,
    boxes: int | None,
    pairs: tuple[tuple[str, str], ...],
    hosts: str | None,
    port_map: tuple[str, ...],
    ports: str | None,
    output: str,
    force: bool,
) -> None:
    """A cluster: one machine (a dump, or a name of the catalogue) many times on a network.

    --set takes the settings of the machine's file, of the fabric's, and of the network: rails,
    spine, hosts_per_leaf, spines, oversubscription.
    """
    from forestcoll.topology import import_topology

    if fabric in NETWORKS and boxes is None:
        raise click.UsageError(f"--fabric {fabric} takes --boxes: how many machines")
    if fabric in NETWORKS and hosts:
        raise click.UsageError(f"--hosts is for a fabric's file, not for --fabric {fabric}")
    _prepare(output, force)
    settings = _with_options(
        pairs, boxes=None if boxes is None else str(boxes), hosts=hosts, ports=ports
    )
    with guarded(machine, size_of(machine, fabric)):
        found = import_topology.compose_cluster(machine, fabric, settings, port_map)
    _finish(found, f"forestcoll topology compose {machine} --fabric {fabric}", output, force)


@topology.command(
    epilog=examples(
        "forestcoll topology diff mine.yaml dump.xml",
        "forestcoll topology diff dgx-h100 dump.xml --set-a boxes=2 --set-b boxes=2",
    )
)
@click.argument("one", type=TopologyType(), metavar="A")
@click.argument("two", type=TopologyType(), metavar="B")
@click.option(
    "--set-a", "pairs_a", multiple=True, type=SettingType(), help="Parameter of A: boxes=2."
)
@click.option("--set-b", "pairs_b", multiple=True, type=SettingType(), help="Parameter of B.")
@json_option
def diff(
    one: str,
    two: str,
    pairs_a: tuple[tuple[str, str], ...],
    pairs_b: tuple[tuple[str, str], ...],
    as_json: bool,
) -> int:
    """Nodes, links, bandwidths that differ between two topologies, by name, alike ones together.

    Exit code 0: they are equal; 1: they differ. The topologies' own names do not count.
    """
    from forestcoll.topology.difference import compare, group
    from forestcoll.ui.report import difference

    sides = [load(one, pairs_a), load(two, pairs_b)]
    groups = group(compare(*sides))
    if as_json:
        print_json(difference.summary(groups))
    elif groups:
        draw(difference.table(groups))
    else:
        say(f"{one} and {two} are equal: {len(sides[0].gpus)} GPUs, the same nodes and links")
    return 1 if groups else 0


@topology.command(
    epilog=examples(
        "forestcoll topology detect -o this.yaml",
        "forestcoll topology detect --keep dumps/ -o this.yaml",
    )
)
@set_option
@click.option(
    "--keep", type=FileType(), metavar="FOLDER", help="Keep what the tools wrote, a file each."
)
@click.option(
    "--alone", is_flag=True, help="This machine, even if ibnetdiscover shows its cluster."
)
@output_option()
@force_option()
def detect(
    pairs: tuple[tuple[str, str], ...], keep: str | None, alone: bool, output: str, force: bool
) -> None:
    """The topology of this machine and its cluster, from the tools that it has.

    Runs, where they are on the path: an NCCL program that dumps the topology (nccl-tests or
    PyTorch), lstopo, nvidia-smi, rocm-smi, ibnetdiscover. Where ibnetdiscover (as root) shows this
    machine as one of its hosts, hosts with the same ports are taken for machines like it, and the
    cluster is what comes out. Without any tool, it says what to run where.
    """
    from forestcoll.topology import detect as detecting
    from forestcoll.ui.report import table

    kept_as = {form.tool_name: form.kept for form in readers.FORMATS if form.kept}
    files = {tool: Path(keep) / name for tool, name in kept_as.items()} if keep else {}
    writing.prepare([*files.values(), *([Path(output)] if output != "-" else [])], force)
    with show_progress("detecting") as progress:
        found = detecting.detect(settings_of(pairs), lambda name: progress(name, 0.0), alone)
    draw(table.facts([(step.tool, step.said) for step in found.steps]), err=True)
    kept = {files[s.tool]: s.text for s in found.steps if s.text and s.tool in files}
    if kept:
        writing.write_all(kept, force)
    _finish(detecting.need(found), "forestcoll topology detect", output, force)
    note(f"taken from {found.source}")
    if found.advice:
        note(found.advice)


@topology.command(
    epilog=examples(
        "nvbandwidth -t device_to_device_memcpy_read_ce > nvbandwidth.txt",
        "forestcoll topology calibrate dump.xml --measured nvbandwidth.txt -o real.yaml",
    )
)
@click.argument("name", type=TopologyType(), metavar="NAME|FILE")
@set_option
@click.option(
    "--measured",
    required=True,
    type=FileType(),
    metavar="FILE",
    help="Output of nvbandwidth, p2pBandwidthLatencyTest, sendrecv_perf (nccl-tests, rccl-tests) "
    "or 'forestcoll measure'.",
)
@click.option(
    "--tolerance",
    type=FiniteRange(0, 100),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Links this close to the median of their kind get the median.",
)
@output_option()
@force_option()
def calibrate(
    name: str,
    pairs: tuple[tuple[str, str], ...],
    measured: str,
    tolerance: float,
    output: str,
    force: bool,
) -> None:
    """The topology with its links at what was measured, nominal beside measured.

    A link's rate is the median over the pairs of GPUs that it limits, so single odd pairs change
    nothing and are named. Links that no measured pair shows take the rate of their kind.
    """
    from forestcoll.topology import read_text
    from forestcoll.topology.calibrate import calibrate as fit
    from forestcoll.topology.calibrate import loads_measured
    from forestcoll.ui.report import calibration

    _prepare(output, force)
    nominal = load(name, pairs)
    with guarded(measured, size_of(measured)):
        found = fit(nominal, loads_measured(read_text(measured), measured), tolerance / 100)
    report(calibration.table(found), err=output == "-")
    for text in [*found.notes, *calibration.odd_pairs(found)]:
        note(text)
    command = f"forestcoll topology calibrate {name} --measured {measured}"
    _write(found.topology, command, output, force)


def _with_options(pairs: tuple[tuple[str, str], ...], **options: str | None) -> dict[str, str]:
    """`--set` and options that stand for a setting; the same twice is a usage error."""
    settings = settings_of(pairs)
    for name, value in options.items():
        if value is None:
            continue
        if name in settings:
            raise click.UsageError(f"--{name} and --set {name}= are the same: give one of them")
        settings[name] = value
    return settings


def _prepare(output: str, force: bool) -> None:
    if output != "-":
        writing.prepare([Path(output)], force)


def _finish(found: Topology, command: str, output: str, force: bool) -> None:
    """Says what was assumed, and writes the file."""
    for text in found.notes:
        note(text)
    _write(found, command, output, force)


def _write(found: Topology, command: str, output: str, force: bool) -> None:
    from forestcoll.topology import import_topology
    from forestcoll.ui.report import topologies

    text = import_topology.dump_with_notes(found, command)
    if output == "-":
        put(text)
        return
    writing.write_all({Path(output): text}, force)
    say(f"{output}: {found.name}: {topologies.census(found)}")
