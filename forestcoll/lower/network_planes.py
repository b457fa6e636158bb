"""Network planes: on which channels, even or odd, a message between boxes takes the right one.

The runtimes of NCCL's family choose a GPU's network adapter by the channel: of the adapters nearest
to it, a GPU takes the one at place (its device number + the channel) modulo how many there are for
each GPU (NCCL 2.23 src/graph/topo.cc, ncclTopoGetLocalNet). Where every GPU has two adapters, each
with a fabric of its own, the parity of the channel is the only way to say which fabric carries a
message. GPUs that share two adapters take one each; earlier runtimes took the first one on even
channels, so there the parity is that of the plane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Path

Parity = Callable[[Path], int]


def no_parity(path: Path) -> int:
    """-1: any channel will do."""
    return -1


def parity_of(graph: CapacityGraph) -> Parity:
    """What tells, of a tree's path, 0 for even channels, 1 for odd ones, -1 for any."""
    planes = planes_of(graph)
    if not planes:
        return no_parity
    device: dict[int, int] = {}  # number of a GPU in its box
    met: dict[str, int] = defaultdict(int)
    for node in range(graph.n):
        if graph.gpu[node]:
            device[node] = met[graph.box(node)]
            met[graph.box(node)] += 1
    own: dict[int, set[int]] = defaultdict(set)  # planes that a GPU has a link to
    for tail, head in zip(graph.tail, graph.head, strict=True):
        if head in planes:
            own[tail].add(planes[head])

    def parity(path: Path) -> int:
        plane = next((planes[v] for v in path if v in planes), -1)
        if plane >= 0 and len(own[path[0]]) == 2:
            return (plane + device[path[0]]) % 2
        return plane

    return parity


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
