"""`forestcoll topology ...`: look at topologies."""

from __future__ import annotations

from pathlib import Path

import click

from forestcoll.ui.cli import writing
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, print_json, put, say
from forestcoll.ui.cli.options import (
    edit_options,
    force_option,
    json_option,
    load,
    named_options,
    output_option,
    settings_of,
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


@topology.command("list", epilog=examples("forestcoll topology list"))
@json_option
def list_topologies(as_json: bool) -> None:
    """The catalogue: names, parameters with their defaults."""
    from forestcoll.topology import catalog
    from forestcoll.ui.report import table

    names = catalog.names()
    if as_json:
        print_json([{"name": n, "description": catalog.describe(n)} for n in names])
    else:
        draw(table.columns(("name", "what"), [(n, catalog.describe(n)) for n in names]))


@topology.command(
    epilog=examples(
        "forestcoll topology show dgx-h100 --set boxes=4",
        "forestcoll topology show rail --source > my-rail.yaml",
    )
)
@named_options
@click.option("--source", is_flag=True, help="Print the catalogue's YAML, comments and all.")
@json_option
def show(name: str, pairs: tuple[tuple[str, str], ...], source: bool, as_json: bool) -> None:
    """What a topology is made of."""
    from forestcoll.topology import catalog
    from forestcoll.ui.report import topologies

    if source:
        put(catalog.source(name))
        return
    with guarded(name, size_of(name)):
        expanded = catalog.load(name, settings_of(pairs))  # its notes are in the table
    about = catalog.describe(name) if name.removesuffix(".yaml") in catalog.names() else ""
    if as_json:
        print_json(topologies.summary(expanded, about))
    else:
        draw(topologies.table(expanded, about))


@topology.command(epilog=examples("forestcoll topology check my-machine.yaml"))
@named_options
def check(name: str, pairs: tuple[tuple[str, str], ...]) -> None:
    """Well formed, and every GPU can reach every other?"""
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.topology import check_connected
    from forestcoll.ui.report import topologies

    expanded = load(name, pairs)
    check_connected(expanded)
    CapacityGraph.from_topology(expanded)
    say(f"{name}: ok: {topologies.census(expanded)}; every GPU reaches every other")


@topology.command(
    epilog=examples(
        "forestcoll topology expand dgx-a100 --set boxes=2 -o two.yaml",
        "forestcoll topology expand dgx-a100 --set boxes=2 --without box0/gpu3-fabric",
    )
)
@named_options
@edit_options
@output_option()
@force_option()
def expand(
    name: str,
    pairs: tuple[tuple[str, str], ...],
    without: tuple[str, ...],
    scale: tuple[str, ...],
    output: str,
    force: bool,
) -> None:
    """Write the explicit form: every node and link by itself."""
    from forestcoll.topology import dumps_topology

    if output != "-":
        writing.prepare([Path(output)], force)
    text = dumps_topology(load(name, pairs, without, scale))
    if output == "-":
        put(text)
    else:
        writing.write_all({Path(output): text}, force)
