"""What others publish, run here beside ours: solvers by graphs, plans by simulated times.

    python scripts/benchmarks/peers.py [--forestcoll DIR] [--tacos DIR] [--msccl-tools DIR]
                                       [--rccl DIR] [--mscclpp DIR] [--sizes SIZES] [--write]

Each DIR is a checkout of the user's, or stands in the environment: PEER_FORESTCOLL
(liangyuRain/ForestColl), PEER_TACOS (astra-sim/tacos), PEER_MSCCL_TOOLS (microsoft/msccl-tools),
PEER_RCCL (ROCm/rccl), PEER_MSCCLPP (microsoft/mscclpp). None of it is copied, and where a folder is
missing a row says so. Solvers run on graphs that theirs and ours are given alike; plans that
programs of theirs write are compared with our plan sets: `forestcoll compare --against none`.
`--write` puts the tables into docs/reference/peers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
from times import ROOT, put

import forestcoll
from forestcoll.common.errors import ForestCollError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import optimum, solve
from forestcoll.study.comparison.play import parse_sizes
from forestcoll.topology import Topology, catalog
from forestcoll.ui.report import words
from forestcoll.verify.simulate import RULE_WORDS

PAGE = ROOT / "docs" / "reference" / "peers.md"
SIZES = "1K:1G"
LIMIT = 600
"""Seconds that a program of theirs may take."""
ALIKE = 1.01
PIECES = (1, 2, 4, 8)
"""Chunks of each rank that TACOS is asked for: the fastest counts."""


@dataclass(frozen=True, slots=True)
class Solved:
    """An allgather on a graph: GB/s, seconds, and hops of the highest tree (TACOS tells none)."""

    algbw: float
    seconds: float
    height: int | None


class PeerError(Exception):
    """A program of theirs did not do what it was asked for."""


def called(command: Sequence[str], text: str = "", **environment: str) -> str:
    """What a program of theirs prints."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"did not end in {LIMIT} s") from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise PeerError("".join(last).strip()[:160] or f"ended with {done.returncode}")
    return done.stdout


# --- solvers

PUBLISHED = """
import contextlib, json, sys, time
import networkx as nx
from pipeline_allgather import optimal_pipeline_spanning_trees, spanning_trees_to_xml
import topologies, xml.etree.ElementTree as ET
graph, gpus = getattr(topologies, sys.argv[1])(int(sys.argv[2]))
begin = time.process_time()
with contextlib.redirect_stdout(sys.stderr):
    (U, k), (trees, counts) = optimal_pipeline_spanning_trees(graph, compute_nodes=gpus)
seconds = time.process_time() - begin
algo = ET.fromstring(spanning_trees_to_xml(trees, counts, k))
height = max(int(tree.get("height")) for tree in algo)
name = lambda node: "/".join(map(str, node)).replace("-", "x")
links = [(name(u), name(v), data["capacity"]) for u, v, data in graph.edges(data=True)]
print(json.dumps([len(gpus) * k / U, seconds, height, list(map(name, gpus)), links]))
"""
"""Runs the published code on a machine of its own, and tells the graph."""

DRIVER = """
#include <chrono>
#include <iostream>
#include <tacos/collective/all_gather.h>
#include <tacos/synthesizer/synthesizer.h>
#include <tacos/topology/topology.h>
struct Read : tacos::Topology {
  Read() {
    int ranks, links, a, b;
    double bandwidth, latency;
    std::cin >> ranks >> links;
    setNpusCount_(ranks);
    while (links-- > 0) {
      std::cin >> a >> b >> bandwidth >> latency;
      connect_(a, b, bandwidth, latency);
    }
  }
};
int main() {
  const Read topology;
  int pieces;
  double bytes;
  std::cin >> pieces >> bytes;
  const auto begin = std::chrono::steady_clock::now();
  const auto count = topology.npusCount();
  const auto collective = tacos::AllGather(count, pieces);
  const auto time = tacos::Synthesizer().solve(topology, collective, bytes / (count * pieces));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::cout << time << " " << seconds.count() << std::endl;
}
"""
"""Reads links of any graph, in GiB/s and microseconds; theirs build shapes alone."""

MACHINES = (
    ("a100_topology", 1),
    ("a100_topology", 2),
    ("mi250_topology", 1),
    ("mi250_topology", 2),
)
"""Of the published code, with boxes."""
DIRECT = ("ring", "hypercube", "torus-2d", "dgx1-v100", "mi250")
"""Machines whose GPUs are joined by links alone, as TACOS asks for."""
BYTES = 2**30


def solved_by_us(topology: Topology) -> Solved:
    """The optimum, and its trees."""
    begin = time.process_time()
    graph = CapacityGraph.from_topology(topology)
    best = optimum(graph, Collective.ALLGATHER)
    forest = solve(graph, Collective.ALLGATHER, name=topology.name)
    return Solved(float(best.algbw), time.process_time() - begin, forest.height)


def published(folder: Path) -> Iterator[list[str]]:
    """The published ForestColl code on its own machines, and ours on the same graphs."""
    for name, boxes in MACHINES:
        label = f"{name}-{boxes}"
        try:
            command = [sys.executable, "-c", PUBLISHED, name, str(boxes)]
            text = called(command, PYTHONPATH=str(folder))
        except PeerError as error:
            yield ["ForestColl (published)", label, str(error), *[""] * 5]
            continue
        algbw, seconds, height, gpus, links = json.loads(text)
        graph = nx.DiGraph(name=label)
        graph.add_nodes_from(gpus, kind="gpu")
        for tail, head, bandwidth in links:
            for node in {tail, head} - {*gpus}:
                graph.add_node(node, kind="switch")
            graph.add_edge(tail, head, bandwidth=bandwidth)
        theirs, ours = Solved(algbw, seconds, height), solved_by_us(Topology.from_networkx(graph))
        yield ["ForestColl (published)", label, *both(theirs, ours)]


def tacos(folder: Path) -> Iterator[list[str]]:
    """TACOS on machines without switches; its time for many bytes, as GB/s."""
    with tempfile.TemporaryDirectory() as place:
        driver, program = Path(place, "driver.cpp"), str(Path(place, "tacos"))
        driver.write_text(DRIVER, encoding="utf-8")
        sources = [str(s) for s in sorted(folder.glob("src/*/*.cpp"))]
        include = f"-I{folder / 'include'}"
        command = ["c++", "-std=c++17", "-O2", include, f"{include}/tacos", str(driver), *sources]
        try:
            called([*command, "-o", program])
        except PeerError as error:
            yield ["TACOS", "", f"does not compile: {error}", *[""] * 5]
            return
        for name in DIRECT:
            topology = catalog.load(name)
            try:
                theirs = max(
                    (_tacos(program, topology, pieces) for pieces in PIECES),
                    key=lambda solved: solved.algbw,
                )
            except PeerError as error:
                yield ["TACOS", topology.name, str(error), *[""] * 5]
                continue
            yield ["TACOS", topology.name, *both(theirs, solved_by_us(topology))]


def _tacos(program: str, topology: Topology, pieces: int) -> Solved:
    graph, links = CapacityGraph.from_topology(topology), topology.latencies()
    lines = [f"{len(graph.ranks)} {len(graph.tail)}"]
    for e, (tail, head) in enumerate(graph.ends):
        rate = float(graph.bandwidth(e)) * 1e9 / 2**30
        lines.append(f"{tail} {head} {rate} {float(links[graph.names[tail], graph.names[head]])}")
    text = called([program], "\n".join([*lines, f"{pieces} {BYTES}"]))
    microseconds, seconds = map(float, text.split())
    return Solved(BYTES / microseconds / 1000, seconds, None)


def both(theirs: Solved, ours: Solved) -> list[str]:
    """The cells of a row: theirs and ours by turns."""
    return [
        f"{theirs.algbw:.2f}",
        f"{ours.algbw:.2f}",
        f"{theirs.seconds:.2f}",
        f"{ours.seconds:.2f}",
        "" if theirs.height is None else str(theirs.height),
        str(ours.height),
    ]


# --- plans


@dataclass(frozen=True, slots=True)
class Written:
    """A plan that a program of theirs writes, or a file; for a machine of the catalogue."""

    file: str
    machine: str
    collective: Collective
    arguments: tuple[str, ...] = ()
    boxes: int = 1


REDUCE, GATHER, EXCHANGE = Collective.ALLREDUCE, Collective.ALLGATHER, Collective.ALLTOALL
TOOLS = (
    Written("allreduce_1step.py", "dgx-a100", REDUCE, ("8", "1")),
    Written("allreduce_a100_allpairs.py", "dgx-a100", REDUCE, ("8", "1")),
    Written("allreduce_a100_allpairs.py", "dgx-a100", REDUCE, ("8", "2", "--protocol", "LL128")),
    Written("allreduce_a100_ring.py", "dgx-a100", REDUCE, ("8", "8", "3")),
    Written("allreduce_a100_ring.py", "dgx-a100", REDUCE, ("8", "8", "3", "--protocol", "Simple")),
    Written("allreduce_binomial_tree.py", "dgx-a100", REDUCE, ("8", "2", "4")),
    Written("allreduce_recursive_doubling_halving.py", "dgx-a100", REDUCE, ("8", "4")),
    Written("allgather_allpairs.py", "dgx-a100", GATHER, ("8", "1")),
    Written("allgather_recursive_doubling.py", "dgx-a100", GATHER, ("8", "4")),
    Written("allgather_ring.py", "dgx-a100", GATHER, ("8", "8", "2")),
    Written("alltoall_allpairs.py", "dgx-a100", EXCHANGE, ("8", "1")),
    Written("alltoall_a100_two_step.py", "dgx-a100", EXCHANGE, ("2", "8"), 2),
    Written("alltoall_a100_three_step.py", "dgx-a100", EXCHANGE, ("2", "8", "1"), 2),
    Written("hierarchical_allreduce.py", "dgx-a100", REDUCE, ("8", "2", "1"), 2),
    Written("allreduce_dgx1.py", "dgx1-v100", REDUCE, ("1", "2")),
)
EXAMPLES = tuple(
    Written(f"single_node/{file}", "dgx-h100", collective, arguments)
    for file, collective, gpus in (
        ("allgather.py", GATHER, False),
        ("allgather_pkt.py", GATHER, True),
        ("allgather_ring.py", GATHER, True),
        ("allreduce.py", REDUCE, True),
        ("allreduce_pkt.py", REDUCE, True),
        ("allreduce_naivy.py", REDUCE, True),
        ("allreduce_pipeline.py", REDUCE, False),
        ("allreduce_nvls_zero_copy.py", REDUCE, True),
        ("alltoall/alltoall.py", EXCHANGE, True),
        ("alltoall/alltoall_pkt.py", EXCHANGE, True),
        ("alltoall/alltoall_ring.py", EXCHANGE, True),
    )
    for arguments in [("--name", "plan", *(("--num_gpus", "8") if gpus else ()))]
)
SHIPPED = tuple(
    Written(f"{file}.xml", "mi300x", collective)
    for collective, files in (
        (
            REDUCE,
            (
                "allreduce-allpairs-8n-ll-32tb",
                "allreduce-allpairs-8n-ll-64tb",
                "allreduce-allpairs-8n-simple",
            ),
        ),
        (
            EXCHANGE,
            tuple(
                f"alltoall-8n-{sizes}"
                for sizes in ("0-9kb", "9kb-190kb", "190kb-512kb", "512kb-7mb", "7mb-43mb")
            ),
        ),
    )
    for file in files
)
STUB = """
import runpy, sys, types
package = types.ModuleType("mscclpp")
package.__path__ = [sys.argv[1]]
sys.modules["mscclpp"] = package
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Their language of plans is Python alone; the package around it loads CUDA."""


def text_of_tool(folder: Path, plan: Written) -> str:
    """What an example of msccl-tools prints."""
    script = folder / "examples" / "mscclang" / plan.file
    return called([sys.executable, str(script), *plan.arguments], PYTHONPATH=str(folder))


def text_of_example(folder: Path, plan: Written) -> str:
    """What an example of MSCCL++ prints."""
    package = folder / "python" / "mscclpp"
    script = package / "language" / "tests" / plan.file
    return called([sys.executable, "-c", STUB, str(package), str(script), *plan.arguments])


def text_of_file(folder: Path, plan: Written) -> str:
    """What RCCL ships."""
    return (folder / "tools" / "msccl-algorithms" / plan.file).read_text(encoding="utf-8")


@cache
def machine(plan: Written) -> Topology:
    """The machine that a plan is for."""
    return catalog.load(plan.machine, {} if plan.boxes == 1 else {"boxes": str(plan.boxes)})


def compared(
    peer: str, plans: Sequence[Written], text_of: Callable[[Path, Written], str], sizes: str
) -> Callable[[Path], Iterator[list[str]]]:
    """Gives rows of plans: how many cells (a size, a rule of links) are whose, and the worst."""

    def rows(folder: Path) -> Iterator[list[str]]:
        for plan in plans:
            label = " ".join((plan.file, *plan.arguments)).replace(" --name plan", "")
            start = [peer, label, machine(plan).name, str(plan.collective)]
            try:
                yield [*start, *_cells(text_of(folder, plan), plan, sizes)]
            except (PeerError, ForestCollError, OSError) as error:
                yield [*start, f"not compared: {_short(error)}", "", "", ""]

    return rows


def _short(error: Exception) -> str:
    return str(error).splitlines()[0].rsplit("/", 1)[-1][:160].replace("|", "\\|")


def _cells(text: str, plan: Written, sizes: str) -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "plan")
        file.write_text(text, encoding="utf-8")
        found = forestcoll.compare(
            machine(plan), plan.collective, sizes=parse_sizes(sizes), files=[file], against=()
        )
    cells = [cell for cell in found.cells if cell.name == file.name]
    ratios = []
    for cell in cells:
        ours = found.cell("forestcoll", cell.size, cell.rule)
        ratios.append((float("inf") if ours is None else ours.time / cell.time, cell))
    if not ratios:
        return ["serves none of the sizes", "", "", ""]
    worst, at = max(ratios, key=lambda pair: pair[0])
    return [
        str(sum(ratio < 1 / ALIKE for ratio, _ in ratios)),
        str(sum(1 / ALIKE <= ratio <= ALIKE for ratio, _ in ratios)),
        str(sum(ratio > ALIKE for ratio, _ in ratios)),
        f"{worst:.2f} ({words.size(at.size)}, {RULE_WORDS[at.rule]})",
    ]


# --- tables

PLAYED = ("ours faster", "alike", "theirs faster", "ours takes at most, times as long")
Rows = Callable[[Path], Iterator[list[str]]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    solvers: dict[str, Rows] = {"forestcoll": published, "tacos": tacos}
    for name in ("forestcoll", "tacos", "msccl-tools", "rccl", "mscclpp"):
        variable = f"PEER_{name.upper().replace('-', '_')}"
        default = os.environ.get(variable)
        parser.add_argument(f"--{name}", type=Path, default=default and Path(default))
    parser.add_argument("--sizes", default=SIZES, help="as those of compare")
    parser.add_argument("--write", action="store_true", help="into docs/reference/peers.md")
    asked = vars(parser.parse_args())
    plans: dict[str, Rows] = {
        "msccl-tools": compared("msccl-tools", TOOLS, text_of_tool, asked["sizes"]),
        "rccl": compared("RCCL", SHIPPED, text_of_file, asked["sizes"]),
        "mscclpp": compared("MSCCL++", EXAMPLES, text_of_example, asked["sizes"]),
    }
    heads = {
        "peers-solvers": (
            solvers,
            ("peer", "graph", "theirs, GB/s", "ours", "theirs, s", "ours", "hops", "ours"),
        ),
        "peers-plans": (
            plans,
            (*["peer", "plan", "machine", "collective"], *PLAYED),
        ),
    }
    for place, (peers, head) in heads.items():
        rows = []
        for name, make in peers.items():
            folder = asked[name.replace("-", "_")]
            if folder is None or not folder.is_dir():
                blank = [""] * (len(head) - 2)
                rows.append([name, "no folder given" if folder is None else "no folder", *blank])
                continue
            for row in make(folder):
                rows.append(row)
                print(*row, sep=" | ", file=sys.stderr, flush=True)
        text = table(head, rows)
        print(text, "\n")
        if asked["write"]:
            put(PAGE, place, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
