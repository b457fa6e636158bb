"""The rows of the table: what is solved, how it is measured, what has to come out.

Known values are derived by hand beside the row where the design does not give them. A case is
measured in one of three ways: `Command` (the whole command in a fresh process, forest checked and
written), `Warm` (the solve call in a warm process), `Perturbed` (many commands, counted).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to hold. `must` and `aim`: (seconds, height), None where nothing is asked.

    `algbw`: the known value in GB/s, a fraction, or None: then the forest's own bound has to be
    reached (every bound is proven again by `verify`). `memory`: bytes.
    """

    must: tuple[float | None, int | None] = (None, None)
    aim: tuple[float | None, int | None] = (None, None)
    algbw: str | None = None
    memory: int | None = None
    trees: int | None = None  # a root, where it is known


@dataclass(frozen=True, slots=True)
class Command:
    """`forestcoll synthesize` (or `optimum`) with these options.

    `fabric`: a topology that the catalogue has not, as words for `fabrics.py`. `solve`: the same
    for `warm.py`, where the command may take less than a second: then the solve call counts, and
    otherwise is told beside it.
    """

    options: Sequence[str]
    verb: str = "synthesize"
    fabric: Sequence[str] = ()
    solve: Warm | None = None


@dataclass(frozen=True, slots=True)
class Warm:
    """What `warm.py` is asked."""

    wanted: dict[str, object]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A machine with measured links, solved for each of `seeds`."""

    machine: str
    boxes: int
    per: str
    seeds: int = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `name` is for `--only`."""

    name: str
    what: str
    how: Command | Warm | Perturbed
    goal: Goal = field(default_factory=Goal)


GIB = 1 << 30
_FOREST = ("-c", "allgather", "--format", "forest")


def _catalogue(name: str, *more: str, **settings: object) -> Command:
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return Command(("-t", name, *words, *_FOREST, *more))


def _torus(x: int, y: int, z: int) -> Command:
    """May take less than a second, or not."""
    sides = {"x": x, "y": y, "z": z}
    settings = {side: str(length) for side, length in sides.items()}
    asked = {"topology": "torus-3d", "settings": settings, "collective": "allgather"}
    return replace(_catalogue("torus-3d", **sides), solve=Warm(asked))


def degraded(name: str, boxes: int, seed: int, network_only: bool) -> Command:
    """Three cables out and one NIC at half speed, drawn by `seed`."""
    rng = random.Random(seed)
    places = [(b, i) for b in range(boxes) for i in range(8)]
    cables = [f"box{b}/gpu{i}<->fabric" for b, i in places]
    every = cables if network_only else [*cables, *(_nvlink(b, i) for b, i in places)]
    gone = rng.sample(every, 3)
    slow = rng.choice([cable for cable in cables if cable not in gone])
    words = [word for cable in gone for word in ("--without", cable)]
    return _catalogue(name, *words, "--scale", f"{slow}=1/2", boxes=boxes)


def _nvlink(box: int, gpu: int) -> str:
    return f"box{box}/gpu{gpu}<->box{box}/nvswitch"


def _warm(topology: str, boxes: int, **more: object) -> Warm:
    settings = {"boxes": str(boxes)}
    asked: dict[str, object] = {"topology": topology, "settings": settings}
    return Warm(asked | {"collective": "allgather"} | more)


def _thousand() -> list[Case]:
    """The cases of about a thousand GPUs. A box of the A100 fabric takes in 8 x 25 GB/s and lacks
    the other 1,016 of 1,024 parts: 1,024 x 200 / 1,016 = 25600/127."""
    ten = Goal((10, None), (2, 2), "25600/127", 4 * GIB, 1)
    hurt = Goal((90, None), (15, None), memory=4 * GIB)
    mi250 = Goal((120, None), (20, None), "16384/63", 4 * GIB)
    fat = (30, None), (5, None)
    cases = [
        Case("a100-128", "DGX A100, 128 boxes", _catalogue("dgx-a100", boxes=128), ten),
        Case(
            "h100-128",
            "DGX H100, 128 boxes",
            _catalogue("dgx-h100", boxes=128),
            Goal(ten.must, ten.aim, "51200/127", ten.memory, 1),
        ),
    ]
    for name in ("a100", "h100"):
        for network_only in (False, True):
            which = "network links" if network_only else "links"
            cases.append(
                Case(
                    f"{name}-128-{'network' if network_only else 'links'}-down",
                    f"{name.upper()}, 128 boxes, 3 random {which} out, a NIC at half speed",
                    degraded(f"dgx-{name}", 128, 0, network_only),
                    hurt,
                )
            )
    cases += [
        Case(
            "mi250-64-k1",
            "MI250, 64 boxes, k = 1",
            _catalogue("mi250", "--trees", "1", boxes=64),
            mi250,
        ),
        Case("mi250-64", "MI250, 64 boxes, optimum", _catalogue("mi250", boxes=64), mi250),
        Case(
            "torus-8x8x16",
            "3-D torus 8x8x16",
            _torus(8, 8, 16),
            Goal((5, None), (1, 16), "102400/341", 4 * GIB, 2),
        ),
        # a box of the fat tree takes in 8 x 50 GB/s and lacks 1,016 parts; a leaf far more
        Case(
            "fat-tree-boxes",
            "fat tree 2:1, 128 boxes of 8",
            _catalogue("fat-tree", leaves=8, hosts=16, spines=8, oversubscription=2),
            Goal(*fat, "51200/127", 4 * GIB),
        ),
        # a GPU takes in 50 GB/s and lacks 1,023 parts; a leaf takes in 800 and lacks 992
        Case(
            "fat-tree-gpus",
            "fat tree 2:1, 1,024 lone GPUs",
            _catalogue("fat-tree", leaves=32, hosts=32, gpus=1, spines=16, oversubscription=2),
            Goal(*fat, "51200/1023", 4 * GIB),
        ),
    ]
    return cases


def _larger() -> list[Case]:
    optimum = Command(("-t", "dgx-a100", "--set", "boxes=12500", "-c", "allgather"), "optimum")
    cases = [
        Case(
            "a100-2048",
            "DGX A100, 2,048 boxes = 16,384 GPUs, compact",
            _catalogue("dgx-a100", "--compact", boxes=2048),
            Goal((120, None), (15, None), "409600/2047", 8 * GIB, 1),
        ),
        Case(
            "a100-12500",
            "optimum alone, 12,500 boxes = 100,000 GPUs",
            optimum,
            Goal((10, None), (1, None), "2500000/12499", trees=1),
        ),
    ]
    for seed in range(3):
        cases.append(
            Case(
                f"irregular-{seed}",
                f"random, 256 ranks, degree 8, 1 to 100 GB/s, seed {seed}",
                Command(_FOREST, fabric=("irregular", "--seed", str(seed))),
                Goal((120, None), (20, None)),
            )
        )
    return cases


def _smaller() -> list[Case]:
    return [
        Case(
            "torus-8x8x8",
            "3-D torus 8x8x8",
            _torus(8, 8, 8),
            Goal((3, None), (0.5, None), "153600/511"),
        ),
        Case(
            "a100-8-k1",
            "DGX A100, 8 boxes, k = 1",
            _warm("dgx-a100", 8, trees=1),
            Goal((0.2, None), (0.02, None), "1600/7", trees=1),
        ),
        Case(
            "mi250-2",
            "MI250, 2 boxes, optimum",
            _warm("mi250", 2),
            Goal((0.5, 10), (0.1, 8), "5312/15", trees=83),
        ),
        Case(
            "resolve-cable",
            "16 A100 boxes, again after a cable failed",
            _warm("dgx-a100", 16, failures=_failures("box{}/gpu{}<->fabric")),
            Goal((1, None), algbw="560/3"),
        ),
        Case(
            "resolve-out",
            "the same, one direction (out of a GPU)",
            _warm("dgx-a100", 16, failures=_failures("box{}/gpu{}->fabric")),
            Goal((1, None)),
        ),
        Case(
            "resolve-in",
            "the same, one direction (into a GPU)",
            _warm("dgx-a100", 16, failures=_failures("fabric->box{}/gpu{}")),
            Goal((1, None)),
        ),
        Case(
            "resolve-nvlink",
            "the same, an NVLink cable",
            _warm("dgx-a100", 16, failures=_failures("box{0}/gpu{1}<->box{0}/nvswitch")),
            Goal((1, None), algbw="3200/127"),
        ),
    ]


def _failures(pattern: str) -> list[str]:
    return [pattern.format(box, gpu) for box, gpu in ((0, 3), (5, 1), (15, 7))]


def _allreduce() -> list[Case]:
    half = ("-c", "allreduce", "--format", "forest")
    ranks = ("--ranks", "box*/gpu[0-7]")
    return [
        Case(
            "joint-mi250-2",
            "joint allreduce, dies 0-7 of two MI250 boxes",
            Command(("-t", "mi250", "--set", "boxes=2", *ranks, *half)),
            Goal(algbw="128"),
        ),
        Case(
            "joint-mi250-1",
            "joint allreduce, dies 0-7 of one MI250 box",
            Command(("-t", "mi250", *ranks, *half)),
            Goal(algbw="150"),
        ),
        Case(
            "joint-star",
            "joint allreduce, star with links 80 and 8 x 10",
            Command(half, fabric=("star", "--links", "80,10,10,10,10,10,10,10,10")),
            Goal(algbw="10"),
        ),
    ]


def _heights() -> list[Case]:
    cases = [
        Case(
            f"height-a100-{boxes}",
            f"height, {boxes} A100 box{'es' * (boxes > 1)}",
            _warm("dgx-a100", boxes),
            Goal((None, height), (None, height), algbw),
        )
        for boxes, height, algbw in (
            (1, 1, "2400/7"),
            (2, 2, "1040/3"),
            (4, 2, "800/3"),
            (8, 2, "1600/7"),
        )
    ]
    return [
        *cases,
        Case(
            "height-mi250-1",
            "height, 1 MI250 box",
            _warm("mi250", 1),
            Goal((None, 8), (None, 6), "2400/7", trees=3),
        ),
        Case(
            "height-mi250-2",
            "height, 2 MI250 boxes",
            _warm("mi250", 2),
            Goal((None, 10), (None, 8), "5312/15", trees=83),
        ),
    ]


def _measured() -> list[Case]:
    cases = []
    for machine, boxes, what in (("dgx-a100", 2, "DGX A100 pair"), ("mi250", 1, "one MI250 box")):
        for per in ("cable", "direction"):
            cases.append(
                Case(
                    f"perturbed-{machine}-{per}",
                    f"{what}, every {per} up to 10 % off, 99 % with 8 trees per root",
                    Perturbed(machine, boxes, per),
                    Goal((10, None)),
                )
            )
    return cases


CASES: tuple[Case, ...] = (
    *_thousand(),
    *_larger(),
    *_smaller(),
    *_allreduce(),
    *_heights(),
    *_measured(),
)
"""All rows, in the order of the table."""
