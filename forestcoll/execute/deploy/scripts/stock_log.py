"""Which trees or rings a library's own log shows, held against those that it was given.

Read are lines of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH (NVIDIA/nccl 5067397c init.cc
1475-1497, rings.cc; ROCm/rccl 0cbce2a init.cc 1642-1652), anywhere among others:

    Trees [0] child/child/child->rank->parent [1] ...     of each rank
    Ring 00 : previous -> rank -> next                    of each rank
    Channel 00/08 :    0 1 2 3                            of rank 0: the whole ring

A channel says of a rank `1/4->0->-1` (children in order, -1: none) or `7->0->1`.
"""

import re

TREES = re.compile(r"\bTrees((?: \[\d{1,4}\] -?\d+/-?\d+/-?\d+->\d+->-?\d+)+)")
TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)")
RING = re.compile(r"\bRing (\d{1,4}) : (\d+) -> (\d+) -> (\d+)")
WHOLE = re.compile(r"\bChannel (\d{1,4})/\d+ :((?: +\d+)+) *$")
RANKS = re.compile(r"\bnRanks 0*(\d+)")
LONGEST = 8192
"""Characters of a line that is looked at."""


def tree_text(children, rank, parent):
    """What a rank is in a tree."""
    return f"{'/'.join(map(str, sorted(children))) or -1}->{rank}->{parent}"


def ring_texts(ring):
    """(rank, what it is) of all in a ring."""
    ends = zip(ring[-1:] + ring[:-1], ring, ring[1:] + ring[:1], strict=True)
    return [(rank, f"{before}->{rank}->{after}") for before, rank, after in ends]


def said(line, kind, ranks):
    """(channel, rank, text) of all that a line says; of a whole ring, if it has all ranks."""
    if kind == "rccl-trees":
        trees = TREES.search(line)
        for channel, *ends, rank, parent in TREE.findall(trees[1]) if trees else ():
            children = [child for child in map(int, ends) if child >= 0]
            yield int(channel), int(rank), tree_text(children, int(rank), int(parent))
    elif one := RING.search(line):
        channel, before, rank, after = map(int, one.groups())
        yield channel, rank, f"{before}->{rank}->{after}"
    elif whole := WHOLE.search(line):
        ring = [*map(int, whole[2].split())]
        for rank, text in ring_texts(ring) if len(ring) == ranks else ():
            yield int(whole[1]), rank, text


def read(lines, kind, ranks):
    """Rank -> [{channel: text}, ...]: a report for each communicator of so many ranks.

    What rank 0 says of another counts where that says nothing itself.
    """
    reports = {}
    for line in lines:
        size = RANKS.search(line)
        if len(line) > LONGEST or (size and int(size[1]) != ranks):
            continue
        foreign = kind != "rccl-trees" and not RING.search(line)
        for channel, rank, text in said(line, kind, ranks):
            mine = reports.setdefault((rank, foreign, line.partition("NCCL INFO")[0]), [{}])
            if channel in mine[-1]:
                mine.append({})
            mine[-1][channel] = text
    by_rank, speak = {}, {rank for rank, foreign, _ in reports if not foreign}
    for rank, foreign, source in sorted(reports):
        if not foreign or rank not in speak:
            by_rank.setdefault(rank, []).extend(reports[rank, foreign, source])
    return by_rank


def compare(lines, kind, channels, least):
    """(whether they are in use, what there is to say, a line each).

    `channels`: for each channel what every rank is in it; the library has them over and over.
    `least`: ranks of which the log must speak, at the least.
    """
    ranks, what = len(channels[0]), "trees" if kind == "rccl-trees" else "rings"
    told, counts = [], set()
    reports = read(lines, kind, ranks)
    for rank, mine in reports.items():
        if rank >= ranks:
            told.append(f"rank {rank}: the {what} are of {ranks} ranks")
            continue
        differ = [
            [c for c in sorted(one) if one[c] != channels[c % len(channels)][rank]] for one in mine
        ]
        if all(differ):
            c = differ[0][0]
            wanted = channels[c % len(channels)][rank]
            told.append(f"rank {rank}: channel {c} is {mine[0][c]}, not {wanted}")
        counts |= {len(one) for one, wrong in zip(mine, differ, strict=True) if not wrong}
    missing = [rank for rank in range(ranks) if rank not in reports]
    if ranks - len(missing) < least:
        told.append(
            f"rank {missing[0]}: no line about its {what} "
            "(NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH)"
        )
    uneven = sorted(count for count in counts if count % len(channels))
    if uneven:
        told.append(f"{uneven[0]} channels over {len(channels)} {what}: shares are not equal")
    good = f"{what} in use: {max(counts, default=0)} channels at {ranks - len(missing)} ranks"
    return not told, told or [good]
