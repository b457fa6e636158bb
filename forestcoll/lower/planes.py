"""Two network planes: which of them a link between boxes runs over, and so on which channels it goes.

A GPU with two network adapters uses one of them a channel: the runtimes of NCCL's family take the
adapters in turn, so that even channels leave by the first and odd ones by the second (NCCL
src/graph/topo.cc, ncclTopoGetLocalNet: the adapter's place is the GPU's plus channel modulo the
adapters a GPU). Where each adapter leads to a fabric of its own, the parity of the channel is the
only way to say which fabric carries a message.
"""

from __future__ import annotations

from collections import defaultdict

from forestcoll.graph import CapacityGraph


def planes_of(graph: CapacityGraph) -> dict[int, int]:
    """Per switch outside of all boxes its plane, 0 or 1; empty unless there are exactly two.

    A plane is what hangs together outside of the boxes. With one, or more than two (rails), the
    adapter follows from the GPU, and channels say nothing.
    """
    boxes = {graph.box(rank) for rank in graph.ranks}
    if len(boxes) < 2 or "" in boxes:
        return {}
    outside = {v for v in range(graph.n) if not graph.gpu[v] and graph.box(v) not in boxes}
    near: dict[int, set[int]] = defaultdict(set)
    entrances = set()
    for tail, head in zip(graph.tail, graph.head, strict=True):
        if tail in outside and head in outside:
            near[tail].add(head)
            near[head].add(tail)
        elif tail in outside:
            entrances.add(tail)
        elif head in outside:
            entrances.add(head)
    found: dict[int, int] = {}
    plane = 0
    for switch in sorted(entrances):
        if switch in found:
            continue
        found[switch] = plane
        reached = [switch]
        for node in reached:
            for other in sorted(near[node] - found.keys()):
                found[other] = plane
                reached.append(other)
        plane += 1
    return found if plane == 2 else {}
