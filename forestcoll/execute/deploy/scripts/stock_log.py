"""Which trees or rings a library's own log shows, held against those that it was given.

Read are lines of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH (NVIDIA/nccl 5067397c init.cc
1475-1497; ROCm/rccl 0cbce2a init.cc 1642-1652), anywhere among others:

    Trees [0] child/child/child->rank->parent [1] ...     of each rank
    Ring 00 : previous -> rank -> next                    of each rank

A channel says of a rank `1/4->0->-1` (children in order, -1: none) or `7->0->1`.
"""

import re

TREES = re.compile(r"\bTrees((?: \[\d{1,4}\] -?\d+/-?\d+/-?\d+->\d+->-?\d+)+)")
TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)")
RING = re.compile(r"\bRing (\d{1,4}) : (\d+) -> (\d+) -> (\d+)")
RANKS = re.compile(r"\bnRanks 0*(\d+)")


def tree_text(children, rank, parent):
    """What a rank is in a tree."""
    return f"{'/'.join(map(str, sorted(children))) or -1}->{rank}->{parent}"


def ring_texts(ring):
    """(rank, what it is) of all in a ring."""
    ends = zip(ring[-1:] + ring[:-1], ring, ring[1:] + ring[:1], strict=True)
    return [(rank, f"{before}->{rank}->{after}") for before, rank, after in ends]


def said(line, kind):
    """(channel, rank, text) of all that a line says."""
    if kind != "rccl-trees":
        for one in RING.findall(line):
            channel, before, rank, after = map(int, one)
            yield channel, rank, f"{before}->{rank}->{after}"
        return
    trees = TREES.search(line)
    for channel, *ends, rank, parent in TREE.findall(trees[1]) if trees else ():
        children = [child for child in map(int, ends) if child >= 0]
        yield int(channel), int(rank), tree_text(children, int(rank), int(parent))


def read(lines, kind, ranks):
    """Rank -> [{channel: text}, ...]: a report for each communicator of so many ranks."""
    reports = {}
    for line in lines:
        size = RANKS.search(line)
        if size and int(size[1]) != ranks:
            continue
        for channel, rank, text in said(line, kind):
            source = line.partition("NCCL INFO")[0]
            mine = reports.setdefault(rank, {}).setdefault(source, [{}])
            if channel in mine[-1]:
                mine.append({})
            mine[-1][channel] = text
    return {
        rank: [one for each in reports[rank].values() for one in each]
        for rank in sorted(reports)
        if rank < ranks
    }


def compare(lines, kind, channels, least):
    """(whether they are in use, what there is to say, a line each).

    `channels`: for each channel what every rank is in it; the library has them over and over.
    `least`: ranks of which the log must speak, at the least.
    """
    ranks, what = len(channels[0]), "trees" if kind == "rccl-trees" else "rings"
    told, counts = [], set()
    reports = read(lines, kind, ranks)
    for rank, mine in reports.items():
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
