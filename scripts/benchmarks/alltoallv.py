"""Blocks of any size between boxes: the static plan, direct sending, two levels, and the bound.

    python scripts/benchmarks/alltoallv.py [--count MATRICES] [--write]

Times are counted on the links, as shares of what each GPU and each box has to send and to take in
at least, for random matrices of each kind, on two and four DGX H100 boxes. "two-level" is Tutel's:
first inside the boxes to the GPU in the target's place, then, when all have that, over the network.
Exit 1 where the static plan takes longer than its factor, or 1.02 times the bound on the average.
`--write` puts the table between the marks of docs/alltoall.md.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.spread import Boxes, boxes_of, least_time, spread, waits
from forestcoll.topology import catalog

PAGE = Path(__file__).parents[2] / "docs" / "alltoall.md"
MARKS = "<!-- alltoallv.py --write -->", "<!-- end of alltoallv.py -->"
BOXES = (2, 4)
MEAN = Fraction(102, 100)
EXPERTS, TOKENS, TOP = 256, 4096, 8

Matrix = list[list[int]]
Make = Callable[[int, random.Random], Matrix]


def experts(n: int, dice: random.Random) -> Matrix:
    """4,096 tokens of a rank, each to 8 of 256 experts, liked in Zipf's proportions."""
    s = dice.uniform(0.4, 1.2)
    weights = [1 / (1 + place) ** s for place in dice.sample(range(EXPERTS), EXPERTS)]
    table = []
    for _ in range(n):
        row = [0] * n
        for expert in dice.choices(range(EXPERTS), weights, k=TOKENS * TOP // 16):
            row[expert * n // EXPERTS] += 16
        table.append(row)
    return table


def hot_receiver(n: int, dice: random.Random) -> Matrix:
    """One rank is sent a hundred times as much."""
    hot = dice.randrange(n)
    return [[dice.randint(1, 1000) * (100 if j == hot else 1) for j in range(n)] for _ in range(n)]


def hot_sender(n: int, dice: random.Random) -> Matrix:
    """One rank sends a hundred times as much."""
    hot = dice.randrange(n)
    return [[dice.randint(1, 1000) * (100 if i == hot else 1) for _ in range(n)] for i in range(n)]


def permutation(n: int, dice: random.Random) -> Matrix:
    """Every rank sends to one other."""
    order = dice.sample(range(n), n)
    return [[dice.randint(1, 1000) * (order[i] == j) for j in range(n)] for i in range(n)]


def sparse(n: int, dice: random.Random) -> Matrix:
    """One block in five."""
    return [[dice.randint(1, 1000) * (dice.random() < 0.2) for _ in range(n)] for _ in range(n)]


def heavy_tails(n: int, dice: random.Random) -> Matrix:
    """Pareto's sizes."""
    return [[int(1000 * dice.paretovariate(1.1)) for _ in range(n)] for _ in range(n)]


def even(n: int, dice: random.Random) -> Matrix:
    """All alike."""
    return [[dice.randint(900, 1000) for _ in range(n)] for _ in range(n)]


KINDS: dict[str, Make] = {
    "even": even,
    "experts, Zipf 0.4 to 1.2": experts,
    "hot receiver": hot_receiver,
    "hot sender": hot_sender,
    "permutation": permutation,
    "one block in five": sparse,
    "heavy tails (Pareto 1.1)": heavy_tails,
}


def direct_time(boxes: Boxes, matrix: Sequence[Sequence[int]]) -> Fraction:
    """Nanoseconds of each block straight to its rank: over NVLink in the box, else over its NIC."""
    home = _home(boxes)
    inside, outside = _loads(matrix, lambda i, j: [(i, j)], home)
    return max(Fraction(inside) / boxes.inside, Fraction(outside) / boxes.network)


def two_level_time(boxes: Boxes, matrix: Sequence[Sequence[int]]) -> Fraction:
    """The same of two levels, one after the other."""
    home = _home(boxes)
    size = len(boxes.members[0])

    def hops(i: int, j: int) -> list[tuple[int, int]]:
        mate = home[i] * size + j % size
        return [(i, mate), (mate, j)]

    inside, outside = _loads(matrix, hops, home)
    return Fraction(inside) / boxes.inside + Fraction(outside) / boxes.network


def _home(boxes: Boxes) -> list[int]:
    return [b for b, members in enumerate(boxes.members) for _ in members]


def _loads(
    matrix: Sequence[Sequence[int]],
    hops: Callable[[int, int], list[tuple[int, int]]],
    home: list[int],
) -> tuple[int, int]:
    """The most bytes that any NVLink carries one way, and any NIC."""
    n = len(matrix)
    load = [[0] * n for _ in range(4)]  # NVLink out, in; NIC out, in
    for i in range(n):
        for j in range(n):
            for a, b in hops(i, j):
                if a != b:
                    which = 0 if home[a] == home[b] else 2
                    load[which][a] += matrix[i][j]
                    load[which + 1][b] += matrix[i][j]
    return max(*load[0], *load[1]), max(*load[2], *load[3])


Ratios = tuple[list[Fraction], list[Fraction], list[Fraction]]


def measure(boxes: int, make: Make, count: int) -> tuple[Fraction, Ratios]:
    """(factor that is promised, ratios to the bound of the static plan, direct, two-level)."""
    found = spread(solve(uniform(catalog.load("dgx-h100", {"boxes": boxes}))))
    known = boxes_of(found.graph)
    dice = random.Random(boxes)
    ratios: Ratios = ([], [], [])
    for _ in range(count):
        matrix = make(len(found.graph.ranks), dice)
        for i, row in enumerate(matrix):
            row[i] = 0
        least = least_time(found.demand, known, matrix)
        if not least:
            continue
        times = waits(found, matrix)[0], direct_time(known, matrix), two_level_time(known, matrix)
        for ratio, each in zip(ratios, times, strict=True):
            ratio.append(each / least)
    return known.factor, ratios


def words(ratios: Sequence[Fraction]) -> str:
    """`"1.003 / 1.12"`: mean and worst."""
    return f"{float(sum(ratios) / len(ratios)):.3f} / {float(max(ratios)):.2f}"


def main() -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="matrices of all kinds together")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = parser.parse_args()
    lines = [
        "| matrices, mean / worst over the bound | static plan | sent directly | two-level |",
        "|---|---|---|---|",
    ]
    every: list[Fraction] = []
    wrong = []
    each = -(-asked.count // (len(KINDS) * len(BOXES)))
    for name, make in KINDS.items():
        mine: Ratios = ([], [], [])
        for boxes in BOXES:
            factor, ratios = measure(boxes, make, each)
            for known, new in zip(mine, ratios, strict=True):
                known += new
            if max(ratios[0]) > factor:
                wrong.append(f"{name}, {boxes} boxes: {float(max(ratios[0])):.3f} > {factor}")
        lines.append(f"| {name} | {' | '.join(map(words, mine))} |")
        every += mine[0]
    lines.append(f"| all {len(every)} | {words(every)} | | |")
    if sum(every) / len(every) > MEAN:
        wrong.append(f"{float(sum(every) / len(every)):.3f} on the average, more than {MEAN}")
    text = "\n".join(lines)
    if asked.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        _, after = rest.split(MARKS[1])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")
    else:
        print(text)
    for line in wrong:
        print(f"alltoallv.py: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
