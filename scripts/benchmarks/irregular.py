"""Families of irregular switch fabrics, each made from its seed alone.

    python scripts/benchmarks/irregular.py dragonfly --seed 3 FILE
    python scripts/benchmarks/irregular.py fat-tree FILE --size 4

What is irregular: cables that are out, boxes of different size and generation, rails and adapters
that are missing. `--size` is how many parts the fabric has (racks, pods, groups; then boxes in each
where that may be chosen); the default is the one of the table in docs/reference/speed.md.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from forestcoll.topology import Link, Node, Topology, dumps_topology


class Builder:
    """Nodes and links as they are added, and the random numbers that all choices come from."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = f"{name}-{seed}"
        self.random = random.Random(f"{name} {seed}")
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []

    def switches(self, *names: str) -> tuple[str, ...]:
        self.nodes.update({name: Node("switch") for name in names})
        return names

    def cable(self, u: str, v: str, bandwidth: int, count: int = 1) -> None:
        """Both ways, `count` times that many GB/s."""
        if count:
            self.links.append(Link(u, v, Fraction(bandwidth), count=count))

    def box(self, name: str, gpus: int, inner: int) -> list[str]:
        """GPUs around a switch, GB/s of each into it."""
        members = [f"{name}/gpu{i}" for i in range(gpus)]
        self.nodes.update({gpu: Node("gpu") for gpu in members})
        self.switches(f"{name}/nvswitch")
        for gpu in members:
            self.cable(gpu, f"{name}/nvswitch", inner)
        return members

    def bundles(self, pairs: list[tuple[str, str]], bandwidth: int, count: int, out: float) -> None:
        """`count` cables for each pair, each out with that probability, but never all of them."""
        for u, v in pairs:
            kept = sum(self.random.random() >= out for _ in range(count))
            self.cable(u, v, bandwidth, max(kept, 1))

    def topology(self) -> Topology:
        return Topology(self.name, self.nodes, tuple(self.links))


def fat_tree(seed: int, racks: int = 32) -> Topology:
    """Racks of four boxes on one leaf each, uplinks 2:1, some cables out: one entry a rack."""
    made = Builder("fat-tree", seed)
    leaves = made.switches(*(f"leaf{i}" for i in range(racks)))
    spines = made.switches(*(f"spine{i}" for i in range(8)))
    for i, leaf in enumerate(leaves):
        for b in range(4):
            for gpu in made.box(f"rack{i}-box{b}", 8, 450):
                made.cable(gpu, leaf, 50)
    made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 50, 2, 0.03)
    return made.topology()


def three_tiers(seed: int, pods: int = 8, boxes: int = 4) -> Topology:
    """Pods of four leaves and four aggregating switches, 2:1 below the cores, some cables out."""
    made = Builder("three-tiers", seed)
    cores = made.switches(*(f"core{i}" for i in range(8)))
    for p in range(pods):
        middles = made.switches(*(f"pod{p}-middle{i}" for i in range(4)))
        for q in range(4):
            (leaf,) = made.switches(f"pod{p}-leaf{q}")
            for b in range(boxes):
                for gpu in made.box(f"pod{p}-box{boxes * q + b}", 8, 450):
                    made.cable(gpu, leaf, 50)
            made.bundles([(leaf, middle) for middle in middles], 100, boxes, 0.02)
        made.bundles([(middle, core) for middle in middles for core in cores], 100, 2, 0.02)
    return made.topology()


def mixed_generations(seed: int, boxes: int = 133) -> Topology:
    """Older boxes that share four adapters, some with one missing, and newer ones with eight."""
    made = Builder("mixed-generations", seed)
    leaves = made.switches(*(f"leaf{i}" for i in range(8)))
    spines = made.switches(*(f"spine{i}" for i in range(8)))
    for b in range(boxes):
        if made.random.random() < 0.5:
            for gpu, leaf in zip(made.box(f"box{b}", 8, 450), leaves, strict=True):
                made.cable(gpu, leaf, 50)
            continue
        gpus = made.box(f"box{b}", 8, 300)
        lost = made.random.randrange(4) if b % 10 == 0 else 4
        for i in range(4):
            (pcie,) = made.switches(f"box{b}/pcie{i}")
            for gpu in gpus[2 * i : 2 * i + 2]:
                made.cable(gpu, pcie, 50)
            if i != lost:
                made.cable(pcie, leaves[2 * i + b % 2], 50)
    made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 50, boxes // 8, 0.02)
    return made.topology()


def dragonfly(seed: int, groups: int = 16) -> Topology:
    """Groups of eight routers, all to all, a box at each; cables between groups at random."""
    made = Builder("dragonfly", seed)
    routers = [made.switches(*(f"g{g}-router{r}" for r in range(8))) for g in range(groups)]
    for g, group in enumerate(routers):
        for r, router in enumerate(group):
            for gpu in made.box(f"g{g}-box{r}", 8, 450):
                made.cable(gpu, router, 50)
        made.bundles([(u, v) for r, u in enumerate(group) for v in group[:r]], 50, 2, 0.03)
    each = -(-24 // (groups - 1))
    for g in range(groups):
        for h in range(g):
            for _ in range(each):
                u, v = made.random.choice(routers[g]), made.random.choice(routers[h])
                made.cable(u, v, 100)
    return made.topology()


def _random_regular(made: Builder, nodes: tuple[str, ...], degree: int, bandwidth: int) -> None:
    """Rings over random orders of the nodes: connected, nearly every node with that degree."""
    for _ in range(degree // 2):
        order = list(nodes)
        made.random.shuffle(order)
        for u, v in zip(order, order[1:] + order[:1], strict=True):
            made.cable(u, v, bandwidth)


def random_boxes(seed: int, boxes: int = 128) -> Topology:
    """A box at each switch of a random regular graph."""
    made = Builder("random-boxes", seed)
    switches = made.switches(*(f"switch{i}" for i in range(boxes)))
    for i, switch in enumerate(switches):
        for gpu in made.box(f"box{i}", 8, 450):
            made.cable(gpu, switch, 50)
    _random_regular(made, switches, 8, 100)
    return made.topology()


def random_lone(seed: int, ranks: int = 353) -> Topology:
    """GPUs without boxes, eight at each switch of a random regular graph."""
    made = Builder("random-lone", seed)
    switches = made.switches(*(f"switch{i}" for i in range(-(-ranks // 8))))
    for i in range(ranks):
        made.nodes[f"gpu{i}"] = Node("gpu")
        made.cable(f"gpu{i}", switches[i // 8], 50)
    _random_regular(made, switches, 6, 100)
    return made.topology()


def one_socket(seed: int, boxes: int = 32) -> Topology:
    """Boxes whose adapters all stand on one socket: four of the eight GPUs have none."""
    made = Builder("one-socket", seed)
    leaves = made.switches(*(f"leaf{i}" for i in range(4)))
    spines = made.switches(*(f"spine{i}" for i in range(4)))
    for b in range(boxes):
        for i, gpu in enumerate(made.box(f"box{b}", 8, 450)[:4]):
            made.cable(gpu, leaves[i], 50)
    made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 50, boxes // 2, 0.05)
    return made.topology()


def mi300(seed: int, boxes: int = 48) -> Topology:
    """Boxes of eight GPUs in a full mesh, an adapter at every second, rails with cables out."""
    made = Builder("mi300-network", seed)
    leaves = made.switches(*(f"leaf{i}" for i in range(4)))
    spines = made.switches(*(f"spine{i}" for i in range(4)))
    for b in range(boxes):
        gpus = [f"box{b}/gpu{i}" for i in range(8)]
        made.nodes.update({gpu: Node("gpu") for gpu in gpus})
        for i, gpu in enumerate(gpus):
            for other in gpus[:i]:
                made.cable(other, gpu, 64)
            if i % 2 == 0:
                made.cable(gpu, leaves[i // 2], 100)
    made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 100, boxes // 4, 0.05)
    return made.topology()


def nvl72(seed: int, racks: int = 8) -> Topology:
    """NVL72 racks behind four planes of leaves and spines, some cables out."""
    made = Builder("nvl72-planes", seed)
    for p in range(4):
        leaves = made.switches(*(f"plane{p}-leaf{i}" for i in range(racks)))
        spines = made.switches(*(f"plane{p}-spine{i}" for i in range(4)))
        made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 50, 5, 0.03)
    for r in range(racks):
        for i, gpu in enumerate(made.box(f"rack{r}", 72, 900)):
            made.cable(gpu, f"plane{i % 4}-leaf{r}", 50)
    return made.topology()


def tight_clos(seed: int, pods: int = 4) -> Topology:
    """Three tiers that taper at each of them, some cables out: no link has room to spare."""
    made = Builder("tight-clos", seed)
    cores = made.switches(*(f"core{i}" for i in range(4)))
    for p in range(pods):
        middles = made.switches(*(f"pod{p}-middle{i}" for i in range(2)))
        for q in range(4):
            (leaf,) = made.switches(f"pod{p}-leaf{q}")
            for b in range(2):
                for gpu in made.box(f"pod{p}-box{2 * q + b}", 8, 450):
                    made.cable(gpu, leaf, 50)
            made.bundles([(leaf, middle) for middle in middles], 25, 8, 0.04)
        made.bundles([(middle, core) for middle in middles for core in cores], 25, 8, 0.04)
    return made.topology()


def rails(seed: int, units: int = 4, boxes: int = 16) -> Topology:
    """Scalable units of boxes, a leaf per unit and rail, some leaf-spine cables out."""
    made = Builder("rails", seed)
    spines = made.switches(*(f"spine{i}" for i in range(boxes)))
    for u in range(units):
        leaves = made.switches(*(f"leaf{u}-{r}" for r in range(8)))
        for b in range(boxes):
            for gpu, leaf in zip(made.box(f"su{u}-box{b}", 8, 450), leaves, strict=True):
                made.cable(gpu, leaf, 50)
        for leaf in leaves:
            for spine in spines:
                if made.random.random() >= 0.02:
                    made.cable(leaf, spine, 50)
    return made.topology()


def dead_rails(seed: int, pods: int = 4, boxes: int = 16) -> Topology:
    """Eight rail planes; a pod has lost its leaf of one rail, a box elsewhere an adapter."""
    made = Builder("dead-rails", seed)
    for p in range(8):
        made.switches(*(f"spine{p}-{i}" for i in range(2)))
    pod, rail, box = (made.random.randrange(n) for n in (pods, 8, boxes))
    for p in range(pods):
        for r in range(8):
            if (p, r) != (pod, rail):
                (leaf,) = made.switches(f"leaf{p}-{r}")
                made.bundles([(leaf, f"spine{r}-{i}") for i in range(2)], 25, boxes // 2, 0.0)
        for b in range(boxes):
            for r, gpu in enumerate(made.box(f"pod{p}-box{b}", 8, 300)):
                lost = (p, b, r) == ((pod + 1) % pods, box, (rail + 4) % 8)
                if (p, r) != (pod, rail) and not lost:
                    made.cable(gpu, f"leaf{p}-{r}", 25)
    return made.topology()


def mixed_sizes(seed: int, boxes: int = 60) -> Topology:
    """Boxes of 2, 4 or 8 GPUs with 1, 2 or 4 adapters that they share behind PCIe."""
    made = Builder("mixed-sizes", seed)
    leaves = made.switches(*(f"leaf{i}" for i in range(10)))
    spines = made.switches(*(f"spine{i}" for i in range(4)))
    for b in range(boxes):
        gpus = made.random.choice((2, 4, 8, 8))
        (shared,) = made.switches(f"box{b}/pcie")
        for gpu in made.box(f"box{b}", gpus, 450):
            made.cable(gpu, shared, 50)
        for leaf in made.random.sample(leaves, gpus // 2):
            made.cable(shared, leaf, 50)
    made.bundles([(leaf, spine) for leaf in leaves for spine in spines], 50, boxes // 8, 0.05)
    return made.topology()


def two_sockets(seed: int, boxes: int | None = None) -> Topology:
    """Servers without NVLink: at each of two sockets four GPUs behind a PCIe switch, and adapters.

    By the seed: 96 to 512 GPUs; adapters at one socket or at both, some out; sockets joined by more
    or less; uplinks 2:1; cables out; bridges between pairs of GPUs; an NVSwitch in every third
    server.
    """
    made = Builder("two-sockets", seed)
    draw = made.random
    boxes = boxes or draw.choice((12, 16, 24, 32, 48, 64))
    both, bridges, tapered, mixed = (draw.random() < p for p in (0.7, 0.2, 0.2, 0.25))
    between, lost = draw.choice((20, 40)), draw.choice((0.0, 0.05))
    leaves = made.switches(*(f"leaf{i}" for i in range(boxes // 4)))
    spines = made.switches(*(f"spine{i}" for i in range((8 if both else 4) // (1 + tapered))))
    for b in range(boxes):
        gpus = [f"box{b}/gpu{i}" for i in range(8)]
        if mixed and b % 3 == 0:
            made.box(f"box{b}", 8, 300)
        made.nodes.update({gpu: Node("gpu") for gpu in gpus})
        sockets = made.switches(f"box{b}/pcie0", f"box{b}/pcie1")
        made.cable(*sockets, between)
        for i, gpu in enumerate(gpus):
            made.cable(gpu, sockets[i // 4], 32)
            if bridges and i % 2:
                made.cable(gpus[i - 1], gpu, 50)
        made.cable(sockets[0], leaves[b // 4], 25)
        if both and draw.random() >= lost:
            made.cable(sockets[1], leaves[b // 4], 25)
    for leaf in leaves:
        for spine in spines:
            if draw.random() >= 0.03:
                made.cable(leaf, spine, 25)
    return made.topology()


def torus(seed: int, side: int = 8) -> Topology:
    """A three-dimensional torus of lone GPUs with three cables out: no switches at all."""
    made = Builder("torus", seed)
    places = [(x, y, z) for x in range(side) for y in range(side) for z in range(side)]
    made.nodes.update({f"gpu{x}-{y}-{z}": Node("gpu") for x, y, z in places})
    pairs = [(p, tuple((c + (i == d)) % side for i, c in enumerate(p)))
             for p in places for d in range(3)]  # fmt: skip
    gone = set(made.random.sample(range(len(pairs)), 3))
    for number, (p, q) in enumerate(pairs):
        if number not in gone:
            made.cable("gpu{}-{}-{}".format(*p), "gpu{}-{}-{}".format(*q), 50)
    return made.topology()


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table. `height`, `seconds`: what must be met; `percent`: asked of the solver."""

    title: str
    make: Callable[..., Topology]
    height: int
    seconds: float
    small: tuple[int, ...]  # the sizes for tests
    percent: Fraction | None = None
    reach: Fraction = Fraction(100)  # percent of the optimum that must be reached


FAMILIES = {
    "rails": Family("rail leaves, spine cables out", rails, 2, 1.5, (2, 6)),
    "fat-tree": Family("2:1 fat tree", fat_tree, 3, 10, (3,)),
    "dead-rails": Family("rail planes, a dead rail", dead_rails, 3, 1.5, (2, 6)),
    "mixed-sizes": Family("boxes of 2, 4 and 8 GPUs", mixed_sizes, 3, 1.5, (16,)),
    "three-tiers": Family("three tiers", three_tiers, 3, 10, (2, 2)),
    "mixed-generations": Family("mixed generations", mixed_generations, 3, 12, (20,)),
    "dragonfly": Family("dragonfly", dragonfly, 3, 10, (3,)),
    "random-boxes": Family("random regular graph of boxes", random_boxes, 3, 10, (16,)),
    "random-lone": Family("random regular graph of lone GPUs", random_lone, 2, 4, (96,)),
    "one-socket": Family("adapters on one socket", one_socket, 3, 3, (12,)),
    "mi300": Family(
        "MI300X meshes on a network", mi300, 4, 6, (13,), reach=Fraction(199, 2)
    ),
    "nvl72": Family("NVL72 racks behind planes", nvl72, 3, 30, (2,), Fraction(99), Fraction(99)),
    "tight-clos": Family(
        "tight three-tier Clos", tight_clos, 4, 6, (2,), Fraction(199, 2), Fraction(199, 2)
    ),
    "two-sockets": Family("two-socket PCIe servers", two_sockets, 4, 2, (12,)),
    "torus": Family("torus with failed links", torus, 12, 1, (5,)),
}  # fmt: skip


def make(family: str, seed: int = 0, *sizes: int) -> Topology:
    """A member of a family; the sizes of the table where none are given."""
    return FAMILIES[family].make(seed, *sizes)


def main() -> None:
    """Write one topology file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("family", choices=tuple(FAMILIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, nargs="*", default=())
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    made = make(chosen.family, chosen.seed, *chosen.size)
    chosen.file.write_text(dumps_topology(made), encoding="utf-8")


if __name__ == "__main__":
    main()
