"""`optimum` of an all-to-all or all-to-all-v."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.cli import files, writing
from forestcoll.cli.options import ALLTOALL, Problem
from forestcoll.cli.talk import draw, print_json, put, show_progress

if TYPE_CHECKING:
    from forestcoll.alltoall.demand import Demand
    from forestcoll.topology import Topology


def optimum(
    problem: Problem, matrix: str | None, output: str | None, force: bool, as_json: bool
) -> None:
    """The optimum of an all-to-all with its proof, written to `output` where that is given."""
    if as_json and output == "-":
        raise click.UsageError("--json and '--output -' both want standard output")
    began = time.perf_counter()
    asked = demand_options(problem, matrix)
    topology = problem.load()

    from forestcoll.alltoall import file, flows
    from forestcoll.report import alltoall as words

    path = None
    if output is not None and output != "-":
        path = path_of(output, f"{topology.name}.{problem.collective}")
        writing.prepare([path], force)
    demand = demand_of(topology, problem, asked)
    loaded = time.perf_counter()
    with show_progress("optimum"):
        best = flows.solve(demand)
    timings = {"load": loaded - began, "solve": time.perf_counter() - loaded}
    if output == "-":
        put(file.dumps(best, topology.name))
        return
    if path is not None:
        writing.write_all({path: file.dumps(best, topology.name)}, force)
    if as_json:
        print_json(words.optimum_summary(best, topology.name, timings, path))
    else:
        draw(words.optimum_table(best, topology.name, timings, path))


def path_of(output: str, stem: str) -> Path:
    """The all-to-all file that `--output` means: one, or `stem` in a directory."""
    from forestcoll.alltoall.file import SUFFIX

    path = Path(output)
    if output.endswith("/") or path.is_dir() or not path.suffix:
        return path / f"{stem}{SUFFIX}"
    return path


def demand_options(problem: Problem, matrix: str | None) -> str | None:
    """The text of `--matrix`, which an alltoallv needs and nothing else has."""
    if problem.collective not in ALLTOALL:
        return None
    if (matrix is None) == (problem.collective == "alltoallv"):
        raise click.UsageError(
            "-c alltoallv needs --matrix FILE: a line a rank, the bytes it sends to each rank"
            if matrix is None
            else "--matrix is for -c alltoallv"
        )
    if matrix is not None and problem.groups:
        raise click.UsageError("--groups go with -c alltoall; a matrix may have zeros instead")
    return None if matrix is None else files.read_text(matrix)


def demand_of(topology: Topology, problem: Problem, matrix: str | None) -> Demand:
    """What the options ask to send; `matrix` is the text of a file."""
    from forestcoll.alltoall import demand
    from forestcoll.alltoall.matrix import parse

    if problem.groups:
        return demand.grouped(topology, problem.groups, problem.relays)
    if matrix is None:
        return demand.uniform(topology, problem.ranks, problem.relays)
    return demand.ragged(topology, parse(matrix, "--matrix"), problem.ranks, problem.relays)
