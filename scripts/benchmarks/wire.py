"""What the wires between processes reach from one network namespace to another, by turns.

    scripts/bench --wire [--size BYTES] [--repeat N] [--write]

One stream of iperf3 with writes of 256 KiB; a plan that sends in slices of 256 KiB over sockets;
`ucx_perftest` with active messages of 256 KiB over TCP, and the plan over UCX, which UCX_TLS=tcp
keeps on the link; both with UCX's error handling. Needs root, iperf3 and, for the last two, UCX's
tools (Debian: ucx-utils). The exit code is 1 where sockets are below 80 % of iperf3, or UCX below
90 % of its own tool. `--write` puts the table into docs/run.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median

from times import ROOT, put

from forestcoll.execute.lab.network import Network, address, inside
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.routes import routes
from forestcoll.topology import catalog

PAGE = ROOT / "docs" / "run.md"
PLACE = "wire"
LEAST = {"sockets": ("iperf3", 0.8), "ucx": ("ucx_perftest", 0.9)}
"""What each wire is held against, and the share that it has to reach."""
PORT = "24601"
SLICE = 256 << 10


@dataclass(frozen=True)
class Link:
    """Two namespaces, and the size that is sent from the first to the second."""

    network: Network
    plan: Path
    size: int

    def start(self, end: int, *words: str, **variables: str) -> subprocess.Popen[str]:
        """A command at one of the ends."""
        with inside(self.network.fds[self.network.graph.ranks[end]]):
            return subprocess.Popen(
                words, env=os.environ | variables, text=True, stdout=-1, stderr=-1
            )

    def pair(self, server: list[str], client: list[str], **variables: str) -> str:
        """What the client prints, once the server listens."""
        listener = self.start(1, *server, **variables)
        try:
            time.sleep(1.0)
            return finish(self.start(0, *client, **variables))
        finally:
            listener.kill()
            listener.communicate()

    def iperf3(self) -> float:
        words = ["-c", address(1), "-p", PORT, "-l", str(SLICE), "-n", str(self.size), "--json"]
        told = json.loads(self.pair(["iperf3", "-s", "-1", "-p", PORT], ["iperf3", *words]))
        return float(told["end"]["sum_received"]["bits_per_second"]) / 8e9

    def ucx_perftest(self) -> float:
        common = ["ucx_perftest", "-e", "-p", PORT]
        count = str(max(1, self.size // SLICE))
        words = ["-t", "ucp_am_bw", "-s", str(SLICE), "-n", count, "-w", "50"]
        text = self.pair(common, [*common, address(1), *words], UCX_TLS="tcp")
        (line,) = re.findall(r"^Final:.*$", text, re.MULTILINE)
        return float(line.split()[5]) * 2**20 / 1e9  # MB/s overall

    def plan_over(self, wire: str) -> float:
        words = [str(self.plan), "--size", str(self.size), "-n", "3", "-c", "0", "--json"]
        given = {"WORLD_SIZE": "2", "MASTER_ADDR": address(0), "FORESTCOLL_PORT": PORT}
        both = [
            self.start(
                rank,
                *(sys.executable, "-m", "forestcoll", "run", *words, "--wire", wire),
                **given,
                RANK=str(rank),
                UCX_TLS="tcp",
            )
            for rank in range(2)
        ]
        first, _ = map(finish, both)
        return max(float(row["algbw"]) for row in json.loads(first)["rows"])


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, process.args))}: {err or out}")
    return out


def measure(link: Link, repeat: int) -> dict[str, float]:
    """GB/s of each, medians."""
    tests: dict[str, Callable[[], float]] = {
        "iperf3": link.iperf3,
        "sockets": lambda: link.plan_over("sockets"),
    }
    if shutil.which("ucx_perftest"):
        tests["ucx_perftest"] = link.ucx_perftest
        tests["ucx"] = lambda: link.plan_over("ucx")
    reached: dict[str, list[float]] = {name: [] for name in tests}
    for _ in range(repeat):
        for name, test in tests.items():
            reached[name].append(test())
            print(f"{name}: {reached[name][-1]:.3f} GB/s", file=sys.stderr)
    return {name: median(values) for name, values in reached.items()}


def main() -> int:
    """The table; 1 where a wire is too slow."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256 << 20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    graph = CapacityGraph.from_topology(catalog.load("star", {"gpus": "2"}))
    with tempfile.TemporaryDirectory() as folder:
        words = ["-t", "star", "--set", "gpus=2", "-c", "broadcast", "--target", "mscclpp"]
        command = [sys.executable, "-m", "forestcoll", "synthesize", *words, "-q", "-o", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (plan,) = Path(folder).rglob("*.mscclpp.json")
        rate = Fraction(100_000_000_000) / graph.bandwidth(0)
        with Network(graph, rate) as network:
            network.route(routes(graph))
            reached = measure(Link(network, plan, asked.size), asked.repeat)
    lines = ["| | GB/s | share |", "|---|---|---|"]
    slow = False
    for name, rate_reached in reached.items():
        share = ""
        if name in LEAST:
            of, least = LEAST[name]
            part = rate_reached / reached[of]
            share, slow = f"{part:.0%} of {of}", slow or part < least
        lines.append(f"| {name} | {rate_reached:.2f} | {share} |")
    table = "\n".join(lines)
    print(table)
    if asked.write:
        put(PAGE, PLACE, table)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
