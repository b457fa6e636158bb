"""RCCL_TREES: the trees of an allreduce that stock RCCL reads from its environment.

`(0(1(2))(3))|(2(1)(0(3)))`: a rank and in brackets what is below it; trees are parted by `|`.
Channel c takes tree c modulo their number, and all channels have equal shares. The parser checks
next to nothing (ROCm/rccl 0cbce2a: rome_models.cc 1251-1332 reads the numbers, connect.cc 118-205
makes every rank's parent and children of them), so what it misreads is refused here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from forestcoll.plans.findings import Findings

VARIABLE = "RCCL_TREES"
MOST_TREES = 63
"""The parser's table has 64 rows, the last of which ends it (graph.h 100), ..."""
MOST_LENGTH = 255
"""... and 256 characters a row; it writes beyond without a word."""
MOST_CHILDREN = 2
"""Kernels are built for two; the parser stores three, and loses its way from the fourth on."""

CHANNELS = 32
"""Channels that the library has work for, as far as multiples of the trees go: equal shares."""

Children = Mapping[int, Sequence[int]]
"""Rank -> the ranks below it, the root first."""
_DIGITS = "0123456789"
_TOKEN = re.compile(r"[()]|[0-9]+|[^()0-9]+")


def dumps(trees: Sequence[Children]) -> str:
    """The variable's value."""
    return "|".join(_text(tree, next(iter(tree))) for tree in trees)


def variables(trees: Sequence[Children]) -> dict[str, str]:
    """The environment that has the library take the trees, each as often as the others."""
    channels = str(len(trees) * max(1, CHANNELS // len(trees)))
    return {
        VARIABLE: dumps(trees),
        "NCCL_ALGO": "allreduce:tree",
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
    }


def _text(tree: Children, rank: int) -> str:
    return f"({rank}{''.join(_text(tree, child) for child in tree[rank])})"


def read(value: str, out: Findings, ranks: int | None = None) -> list[dict[int, list[int]]]:
    """The trees in the variable's value, of `ranks` ranks (None: of as many as are named).

    `out` hears what the library would refuse, misread or not run. Trees that cannot be read are
    left out.
    """
    texts = value.split("|")
    if len(texts) > MOST_TREES:
        out.add("TREES-COUNT", f"{len(texts)} trees")
    trees = [tree for k, text in enumerate(texts) if (tree := _read(text, k, out)) is not None]
    last = max((rank for tree in trees for rank in tree), default=0)
    wanted = set(range(last + 1 if ranks is None else ranks))
    for k, tree in enumerate(trees):
        strange, missing = sorted(set(tree) - wanted), sorted(wanted - set(tree))
        if strange:
            out.add("TREES-RANK", f"tree {k} has rank {strange[0]}, of {len(wanted)} ranks")
        if missing:
            out.add("TREES-MISSING", f"tree {k} lacks rank {missing[0]}")
        for rank, children in tree.items():
            if len(children) > MOST_CHILDREN:
                out.add("TREES-CHILDREN", f"tree {k}: rank {rank} has {len(children)} children")
    return trees


def _read(text: str, number: int, out: Findings) -> dict[int, list[int]] | None:
    """One tree; None, with a finding, where it is none."""
    if len(text) > MOST_LENGTH:
        out.add("TREES-LENGTH", f"tree {number} has {len(text)} characters")
    children: dict[int, list[int]] = {}
    above: list[int] = []
    begun = ended = False  # whether a number has to follow; whether the root's bracket is closed
    seen: Counter[int] = Counter()
    for token in _TOKEN.findall(text):
        if ended or not (token[0] in _DIGITS if begun else token in "()"):
            out.refuse("TREES-SYNTAX", f"tree {number}: {token[:20]!r} is out of place")
            return None
        begun = token == "("
        if token == ")":
            if not above:
                out.refuse("TREES-SYNTAX", f"tree {number}: a bracket closes that none opens")
                return None
            above.pop()
            ended = not above
        elif not begun:
            rank = int(token[:20])
            seen[rank] += 1
            if above:
                children[above[-1]].append(rank)
            children.setdefault(rank, [])
            above.append(rank)
    if not ended:
        out.refuse("TREES-SYNTAX", f"tree {number} does not end")
        return None
    for rank, times in seen.items():
        if times > 1:
            out.refuse("TREES-TWICE", f"tree {number} has rank {rank} {times} times")
            return None
    return children
