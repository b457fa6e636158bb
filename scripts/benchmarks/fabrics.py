"""Topologies that the catalogue has not: irregular, star, and machines with measured links.

    python scripts/benchmarks/fabrics.py irregular --ranks 256 --degree 8 --seed 0 FILE
    python scripts/benchmarks/fabrics.py perturbed dgx-a100 --boxes 2 --seed 3 --per cable FILE
    python scripts/benchmarks/fabrics.py star --links 80,10,10,10 FILE

Every one is made from its seed alone, so that a row of the table can be looked at again.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from forestcoll.topology import Link, Node, Topology, catalog, dumps_topology


def irregular(ranks: int, degree: int, seed: int) -> Topology:
    """GPUs with `degree` cables each, no two between the same pair, of 1 to 100 GB/s; connected."""
    rng = random.Random(seed)
    while True:
        pairs = _pairing(rng, ranks, degree)
        if _connected(ranks, pairs):
            break
    names = [f"gpu{i}" for i in range(ranks)]
    links = [Link(names[u], names[v], Fraction(rng.randint(1, 100))) for u, v in sorted(pairs)]
    nodes = {name: Node("gpu") for name in names}
    return Topology(f"irregular-{ranks}-{degree}-{seed}", nodes, tuple(links))


def _pairing(rng: random.Random, ranks: int, degree: int) -> set[tuple[int, int]]:
    """A random simple graph with that degree: ends paired at random, bad pairs exchanged."""
    ends = [v for v in range(ranks) for _ in range(degree)]
    rng.shuffle(ends)
    pairs = [(ends[i], ends[i + 1]) for i in range(0, len(ends), 2)]
    while True:
        seen: set[tuple[int, int]] = set()
        bad = []
        for i, (u, v) in enumerate(pairs):
            pair = (min(u, v), max(u, v))
            if u == v or pair in seen:
                bad.append(i)
            seen.add(pair)
        if not bad:
            return seen
        for i in bad:
            j = rng.randrange(len(pairs))
            (a, b), (c, d) = pairs[i], pairs[j]
            pairs[i], pairs[j] = (a, d), (c, b)


def _connected(ranks: int, pairs: set[tuple[int, int]]) -> bool:
    near: list[list[int]] = [[] for _ in range(ranks)]
    for u, v in pairs:
        near[u].append(v)
        near[v].append(u)
    queue, seen = [0], {0}
    for u in queue:
        for v in near[u]:
            if v not in seen:
                seen.add(v)
                queue.append(v)
    return len(seen) == ranks


def perturbed(name: str, boxes: int, seed: int, per: str) -> Topology:
    """A machine whose links are up to 10 % faster or slower than on paper, two decimals.

    `per`: "cable" changes both directions of a link alike, "direction" each for itself. Parallel
    links are one.
    """
    machine = catalog.load(name, {"boxes": str(boxes)})
    rng = random.Random(seed)
    links: list[Link] = []
    for link in machine.links:
        whole = replace(link, bandwidth=link.bandwidth * link.count, count=1)
        if per == "cable":
            links.append(replace(whole, bandwidth=_measured(whole.bandwidth, rng)))
            continue
        for src, dst in whole.directions():
            measured = _measured(whole.bandwidth, rng)
            links.append(replace(whole, src=src, dst=dst, bandwidth=measured, oneway=True))
    return Topology(f"{machine.name}-{per}-{seed}", machine.nodes, tuple(links))


def _measured(bandwidth: Fraction, rng: random.Random) -> Fraction:
    """In hundredths of a GB/s."""
    return Fraction(round(100 * bandwidth * Fraction(rng.randint(900, 1100), 1000)), 100)


def star(bandwidths: list[int]) -> Topology:
    """GPUs around one switch, each with a link of its own speed."""
    nodes = {f"gpu{i}": Node("gpu") for i in range(len(bandwidths))} | {"switch": Node("switch")}
    links = [Link(f"gpu{i}", "switch", Fraction(b)) for i, b in enumerate(bandwidths)]
    return Topology(f"star-{'-'.join(map(str, bandwidths))}", nodes, tuple(links))


def main() -> None:
    """Write one topology file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("irregular")
    one.add_argument("--ranks", type=int, default=256)
    one.add_argument("--degree", type=int, default=8)
    two = kinds.add_parser("perturbed")
    two.add_argument("name")
    two.add_argument("--boxes", type=int, default=1)
    two.add_argument("--per", choices=("cable", "direction"), default="cable")
    three = kinds.add_parser("star")
    three.add_argument("--links", required=True)
    for kind in (one, two):
        kind.add_argument("--seed", type=int, default=0)
    for kind in (one, two, three):
        kind.add_argument("file", type=Path)
    chosen = parser.parse_args()
    if chosen.kind == "irregular":
        made = irregular(chosen.ranks, chosen.degree, chosen.seed)
    elif chosen.kind == "perturbed":
        made = perturbed(chosen.name, chosen.boxes, chosen.seed, chosen.per)
    else:
        made = star([int(word) for word in chosen.links.split(",")])
    chosen.file.write_text(dumps_topology(made), encoding="utf-8")


if __name__ == "__main__":
    main()
