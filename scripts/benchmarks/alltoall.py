"""The optimum of all-to-all on catalogue fabrics: exact values, and how long each takes.

    python scripts/benchmarks/alltoall.py [--most RANKS]

Every value is solved, proven by flows and link lengths, and compared with the number in this file;
exit 1 where one differs. Random direct graphs have no such number: flows have to reach the proven
bound but for a millionth.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction

import networkx as nx

from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.topology import Link, Node, Topology, catalog
from forestcoll.topology.edit import edit


@dataclass(frozen=True)
class Case:
    """A fabric, what is out, and its optimum in GB/s of algbw."""

    name: str
    settings: dict[str, object]
    algbw: str
    ranks: int
    without: tuple[str, ...] = field(default=())
    uneven: bool = False
    """Every cable up to 10 % slower, each by its own amount."""

    def __str__(self) -> str:
        named = " ".join(f"{key}={value}" for key, value in self.settings.items())
        out = f" without {', '.join(self.without)}" if self.without else ""
        if len(self.without) > 3:
            out = f" without {len(self.without)} cables"
        uneven = ", every cable of its own bandwidth" if self.uneven else ""
        return f"{self.name} {named}{out}{uneven}".replace("  ", " ").strip()

    @property
    def long(self) -> bool:
        """Whether it takes seconds: nothing is alike."""
        return self.uneven or self.without == LINKS

    def topology(self) -> Topology:
        """The fabric."""
        made = catalog.load(self.name, self.settings)
        if self.without:
            made = edit(made, self.without, [])
        if self.uneven:
            dice = random.Random(0)
            links = [
                replace(
                    link, bandwidth=link.bandwidth * Fraction(10_000 - dice.randrange(1001), 10_000)
                )
                for link in made.links
            ]
            made = replace(made, links=tuple(links))
        return made


def _nics(*boxes: int) -> tuple[str, ...]:
    return tuple(f"box{b}/gpu0-fabric" for b in boxes)


def _torus(x: int, y: int, z: int) -> dict[str, object]:
    return {"x": x, "y": y, "z": z}


def _tree(leaves: int, hosts: int, gpus: int) -> dict[str, object]:
    shape = {"leaves": leaves, "hosts": hosts, "gpus": gpus, "spines": 8, "oversubscription": 2}
    return dict(shape)


CLOS = {"leaves": 16, "hosts": 8, "gpus": 1, "spines": 4, "oversubscription": 2}
NICS = tuple(f"box{b}/gpu{g}-fabric" for b, g in ((0, 3), (2, 0), (2, 5), (5, 1), (9, 7), (14, 2)))
CABLES = tuple(f"leaf{a}-spine{b}" for a, b in ((1, 0), (3, 3), (4, 1), (8, 2), (9, 2), (15, 0)))
LINKS = ("gpu0-gpu16", "gpu5-gpu6", "gpu33-gpu37", "gpu50-gpu66", "gpu81-gpu97", "gpu120-gpu124")

CASES = (
    Case("dgx1-v100", {}, "75", 8),
    Case("dgx1-v100", {"boxes": 2}, "25/2", 16),
    Case("dgx-a100", {}, "2400/7", 8),
    Case("dgx-a100", {"boxes": 2}, "50", 16),
    Case("dgx-a100", {"boxes": 8}, "200/7", 64),
    Case("dgx-a100", {"boxes": 128}, "3200/127", 1024),
    Case("dgx-a100", {"boxes": 2048}, "51200/2047", 16384),
    Case("dgx-a100", {"boxes": 12500}, "312500/12499", 100000),
    Case("dgx-a100", {"boxes": 2}, "175/4", 16, _nics(0)),
    Case("dgx-a100", {"boxes": 128}, "2800/127", 1024, _nics(0)),
    Case("dgx-a100", {"boxes": 128}, "2800/127", 1024, _nics(0, 1, 2)),
    Case("dgx-a100", {"boxes": 128}, "25600/1023", 1024, ("box0/gpu0-box0/nvswitch",)),
    Case("dgx-h100", {"boxes": 128}, "6400/127", 1024),
    Case("mi250", {}, "75", 16),
    Case("mi250", {"boxes": 2}, "32", 32),
    Case("mi250", {"boxes": 8}, "128/7", 128),
    Case("mi250", {"boxes": 64}, "1024/63", 1024),
    Case("mi250", {"boxes": 8}, "120/7", 128, _nics(0)),
    Case("mi250", {"boxes": 64}, "320/21", 1024, _nics(0)),
    Case("mi300x", {}, "512", 8),
    Case("mi300x", {"boxes": 2}, "100", 16),
    Case("gb200-nvl72", {}, "64800/71", 72),
    Case("gb200-nvl72", {"boxes": 8}, "400/7", 576),
    Case("torus-3d", _torus(3, 3, 3), "150", 27),
    Case("torus-3d", _torus(4, 4, 4), "100", 64),
    Case("torus-3d", _torus(8, 8, 8), "50", 512),
    Case("torus-3d", _torus(8, 8, 16), "25", 1024),
    Case("torus-3d", _torus(3, 3, 3), "425/3", 27, ("gpu0-gpu1",)),
    Case("torus-3d", _torus(4, 4, 4), "775/8", 64, ("gpu0-gpu1",)),
    Case("hypercube", {"dimension": 6}, "100", 64),
    Case("ring", {"gpus": 16}, "25", 16),
    Case("fat-tree", _tree(32, 4, 8), "800/31", 1024),
    Case("fat-tree", _tree(32, 32, 1), "800/31", 1024),
    Case("fat-tree", _tree(32, 32, 1), "700/31", 1024, ("leaf0-spine0",)),
    Case("rail", {"boxes": 128, "oversubscription": 2}, "6400/127", 1024),
    Case("rail", {"boxes": 128, "spine": 0}, "6400/127", 1024),
    Case("dragonfly", {"groups": 9, "routers": 4, "gpus": 2}, "3600/71", 72),
    Case("dragonfly", {"groups": 33, "routers": 8, "gpus": 4}, "10560/211", 1056),
    # nothing or little alike
    Case("dgx-a100", {"boxes": 16}, "20", 128, NICS),
    Case("mi250", {"boxes": 8}, "120/7", 128, _nics(0, 1, 2)),
    Case("fat-tree", CLOS, "20", 128, CABLES),
    Case("torus-3d", _torus(8, 4, 4), "775/16", 128, LINKS),
    Case("torus-3d", _torus(8, 4, 4), "60061/1280", 128, uneven=True),
    Case("dgx-a100", {"boxes": 16}, "74639/3000", 128, uneven=True),
    Case("fat-tree", CLOS, "2459/100", 128, uneven=True),
)
RANDOM = ((128, 4), (128, 6))
"""GPUs, and links of each, of 25 GB/s."""
GAP = Fraction(1, 10**6)


def draw(gpus: int, links: int) -> Topology:
    """A random direct graph."""
    cables = sorted(tuple(sorted(pair)) for pair in nx.random_regular_graph(links, gpus, 1).edges)
    return Topology(
        name=f"random-{gpus}-{links}",
        nodes={f"gpu{i}": Node("gpu") for i in range(gpus)},
        links=tuple(Link(f"gpu{u}", f"gpu{v}", Fraction(25)) for u, v in cables),
    )


def solve_random(gpus: int, links: int) -> bool:
    """A line of the table; whether the flows reach the bound but for GAP."""
    began = time.process_time()
    demand = uniform(draw(gpus, links))
    loaded = time.process_time()
    best = solve(demand)
    took = time.process_time() - loaded
    gap = 1 - best.algbw / best.bound
    said = str(best.algbw)
    if gap:
        said = f"{float(best.algbw):.9g}, at most {float(gap):.1e} below the optimum"
    print(
        f"| random direct graph, {links} links a GPU | {gpus} | {said} | {len(best.flows)} | "
        f"{loaded - began:.2f} s | {took:.2f} s |",
        flush=True,
    )
    return gap <= GAP


def main() -> int:
    """A line a case: ranks, algbw, sources of the program, seconds of the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100_000, help="ranks of the largest case")
    most = parser.parse_args().most
    wrong = 0
    print("| fabric | ranks | algbw GB/s | flows | load | optimum |\n|---|---|---|---|---|---|")
    for case in CASES:
        if case.ranks > most:
            continue
        began = time.process_time()
        demand = uniform(case.topology())
        loaded = time.process_time()
        best = solve(demand)
        took = time.process_time() - loaded
        right = best.algbw == Fraction(case.algbw) and len(demand.graph.ranks) == case.ranks
        wrong += not right
        found = str(best.algbw) if right else f"{best.algbw} INSTEAD OF {case.algbw}"
        print(
            f"| {case} | {case.ranks} | {found} | {len(best.flows)} | {loaded - began:.2f} s | "
            f"{took:.2f} s |",
            flush=True,
        )
    wrong += sum(not solve_random(gpus, links) for gpus, links in RANDOM if gpus <= most)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
