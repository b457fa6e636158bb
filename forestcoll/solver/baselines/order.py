"""In which order rings go round, and how wide each of them is.

Rings in a mesh: as many as its links hold at once, and rings cut open where a box has NICs.

Both are small integer programs (OR-tools CP-SAT), with one worker and a limit in steps, not in
seconds: the same every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.baselines.shapes import Ways
from forestcoll.solver.flows.max_flow import push, residual_of
from forestcoll.solver.walks import by_box

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Order = tuple[tuple[int, ...], int]
"""Ranks (nodes) round a ring, and its share of the data."""

TRIES = 200_000
"""Steps of one search for a ring."""


def ring_orders(graph: CapacityGraph, ways: Ways, packed: bool = True) -> Iterator[list[Order]]:
    """Sets of rings that a library might use, those in rank order first.

    `packed`: as many as own links hold, too, where there are ways between all ranks. Raises
    UnsupportedError where the links make no ring.
    """
    members = boxes_of(graph)
    direct = _all_linked(graph.ranks, ways)
    sets = [orders for orders in _by_boxes(graph, members, ways, direct, packed) if orders]
    if not sets:
        sets = [_along_links(graph, ways)]
    yield from sets


def _by_boxes(
    graph: CapacityGraph, members: list[list[int]], ways: Ways, direct: bool, packed: bool
) -> Iterator[list[Order]]:
    if direct:
        yield box_orders(members)
    yield rail_orders(members, ways)
    inside = links_inside(graph.ranks, ways, graph.links) if packed else {}
    if not direct or inside:
        yield open_orders(graph, members, ways)
    if direct and len(members) == 1:
        yield pack_cycles(graph.ranks, inside)
        if len({*map(len, ways.values())}) > 1:  # some have links of their own, others share some
            yield cycles(graph, ways)


def boxes_of(graph: CapacityGraph) -> list[list[int]]:
    """The ranks of every box, in rank order."""
    return list(by_box(graph, graph.ranks).values())


def rail_orders(boxes: list[list[int]], ways: Ways) -> list[Order]:
    """Box after box, from each to the GPU of the same number in the next: along a rail.

    A ring that enters a box by one GPU must leave it by another, so that the rail changes from box
    to box: 0, 1, 0, 1, ..., and once 2 where the number of boxes is odd. The k-th order is k rails
    on: all of them together enter and leave every box by every GPU once. Rails that some box lacks
    are passed over. None where boxes are not alike, have too few rails, or are meshes inside. It is
    what NCCL makes of rails: each channel keeps to one NIC's switch from box to box (NCCL_CROSS_NIC
    = 2, its default, looks for that first).
    """
    size, count = len(boxes[0]), len(boxes)
    if count < 2 or any(len(members) != size for members in boxes):
        return []
    if not all(_all_linked(members, ways) for members in boxes):
        return []
    turns = [(box, (box + 1) % count) for box in range(count)]
    rails = [k for k in range(size) if all((boxes[a][k], boxes[b][k]) in ways for a, b in turns)]
    if len(rails) < 2 + count % 2:
        return []
    entered = [box % 2 for box in range(count)]
    if count % 2:
        entered[-1] = 2
    orders = []
    for k in range(len(rails)):
        order: list[int] = []
        for box, members in enumerate(boxes):
            first = members[rails[(entered[box] + k) % len(rails)]]
            last = members[rails[(entered[(box + 1) % count] + k) % len(rails)]]
            between = [rank for rank in members if rank not in (first, last)]
            order += [first, *between, last]
        orders.append((tuple(order), 1))
    return orders


def box_orders(boxes: list[list[int]]) -> list[Order]:
    """Box after box; in the k-th order every box is entered by its k-th GPU and left by the one
    before it, so that all orders together use every GPU's way out of the box once."""
    count = max(map(len, boxes)) if len(boxes) > 1 else 1
    orders = []
    for k in range(count):
        order: list[int] = []
        for members in boxes:
            turn = k % len(members)
            order += members[turn:] + members[:turn]
        orders.append((tuple(order), 1))
    return orders


def open_orders(graph: CapacityGraph, boxes: list[list[int]], ways: Ways) -> list[Order]:
    """Rings cut open where a box's GPUs have ways out, and joined from box to box.

    For boxes whose GPUs are a mesh, or do not all have a way out. None where some box has none.
    """
    if len(boxes) < 2:
        return []
    outward = _ways_out(graph, ways, graph.links)
    inside = [links_inside(members, ways, graph.links) for members in boxes]
    best: list[Order] = []
    widths = {*outward.values(), *(w for links in inside for w in links.values())}
    for width in sorted(widths - {0}):
        rooms = {rank: w // width for rank, w in outward.items()}
        rings = [
            _open_rings(members, rooms, ways, {pair: w // width for pair, w in links.items()})
            for members, links in zip(boxes, inside, strict=True)
        ]
        count = min(map(len, rings))
        if count * width <= sum(share for _, share in best):
            continue
        orders = [sum((paths[k] for paths in rings), ()) for k in range(count)]
        best = [(o, width) for o in orders if all(pair in ways for pair in pairwise((*o, o[0])))]
    return best


def _open_rings(
    members: list[int], rooms: Mapping[int, int], ways: Ways, inside: Arcs
) -> list[tuple[int, ...]]:
    """Paths through all GPUs of a box, which begin and end where there are ways out.

    `rooms`: paths that may begin, and end, at a rank; `inside`: that may take a link. In a mesh
    they are rings through the box and what lies outside of it, or through a large box, cut open.
    """
    if not inside and _all_linked(members, ways):
        ports = [rank for rank in members for _ in range(rooms[rank])]
        ends = zip(ports, ports[1:] + ports[:1], strict=True)
        return [
            (a, *(rank for rank in members if rank not in (a, b)), b) for a, b in ends if a != b
        ]
    outside = -1
    doors = {pair: rooms[r] for r in members for pair in ((outside, r), (r, outside))}
    open_rings = pack_cycles((outside, *members), _with_room({**inside, **doors}))
    paths = [order[1:] for order, share in open_rings for _ in range(share)]
    return paths or cut_open(pack_cycles(members, _with_room(inside)), rooms)


def _with_room(arcs: Arcs) -> Arcs:
    return {pair: units for pair, units in arcs.items() if units}


def links_inside(members: Sequence[int], ways: Ways, capacity: Arcs) -> Arcs:
    """(rank, rank) -> what the link between the two carries, in a mesh."""
    return {
        (u, v): capacity[u, v] for u in members for v in members if len(ways.get((u, v), ())) == 2
    }


def rings_inside(members: Sequence[int], ways: Ways, capacity: Arcs) -> list[tuple[int, ...]]:
    """Rings through all GPUs of a box: one in their order, or along the links of a mesh, if any."""
    if _all_linked(members, ways):
        return [tuple(members)]
    return [order for order, _ in pack_cycles(members, links_inside(members, ways, capacity))]


def _all_linked(members: Sequence[int], ways: Ways) -> bool:
    return all((u, v) in ways for u in members for v in members if u != v)


def _ways_out(graph: CapacityGraph, ways: Ways, capacity: Arcs) -> dict[int, int]:
    """Per rank the units of capacity by which it reaches other boxes, and they reach it."""
    out, into = dict.fromkeys(graph.ranks, 0), dict.fromkeys(graph.ranks, 0)
    for (u, v), path in ways.items():
        if graph.box(u) != graph.box(v):
            width = min(capacity[step] for step in pairwise(path))
            out[u], into[v] = max(out[u], width), max(into[v], width)
    return {rank: min(out[rank], into[rank]) for rank in graph.ranks}


def _along_links(graph: CapacityGraph, ways: Ways) -> list[Order]:
    """Rings through all ranks along the links: as wide as they can be in all, else one by one."""
    capacity = graph.links
    mesh = all(len(path) == 2 for path in ways.values())
    rings = pack_cycles(graph.ranks, links_inside(graph.ranks, ways, capacity)) if mesh else []
    return list(rings) or cycles(graph, ways)


def cycles(graph: CapacityGraph, ways: Ways) -> list[Order]:
    """Rings through all ranks along links that are still free, the widest first.

    The share of each is what its narrowest link has left. Where the search finds no other, one that
    is there goes the other way round as well. Raises UnsupportedError: there is none.
    """
    link = graph.numbers
    free = list(graph.capacity)
    hops = {pair: [link[step] for step in pairwise(path)] for pair, path in ways.items()}
    rings: list[Order] = []
    while True:
        best: Order = (), 0
        for width in sorted(set(free), reverse=True):
            if width <= best[1]:
                break
            usable = {p: len(own) for p, own in hops.items() if min(free[k] for k in own) >= width}
            back = (ring[::-1] for ring, _ in rings)
            free_back = (ring for ring in back if usable.keys() >= {*_round(ring)})
            order = _cycle(graph.ranks, usable) or next(free_back, None)
            if order is None:
                continue
            # several hops of a ring may share a link
            used = Counter(k for pair in _round(order) for k in hops[pair])
            share = min(free[k] // times for k, times in used.items()) or int(not rings)
            best = max(best, (order, share), key=itemgetter(1))
        if not best[1]:
            break
        rings.append(best)
        for pair in _round(best[0]):
            for k in hops[pair]:
                free[k] -= best[1]
    if not rings:
        raise UnsupportedError("the links make no ring through all ranks")
    return rings


def _round(order: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(order, order[1:] + order[:1], strict=True)


def _cycle(ranks: tuple[int, ...], usable: Arcs) -> tuple[int, ...] | None:
    """A cycle through all ranks, by search; None where there is none, or none was found.

    `usable`: the ways, and how many links each has; short ones are tried first.
    """
    out: dict[int, list[int]] = {u: [] for u in ranks}
    for u, v in sorted(usable):
        out[u].append(v)
    import networkx as nx  # it takes long to import, and is for baselines alone

    # where all ways lead through one rank there is none, which the search would not find out
    if not (all(out.values()) and nx.is_biconnected(nx.Graph([*usable]))):
        return None
    first, path, used = ranks[0], [ranks[0]], {ranks[0]}
    stack = [iter(_shortest_first(out, first, used, usable))]
    for _ in range(TRIES):
        if len(path) == len(ranks) and first in out[path[-1]]:
            return tuple(path)
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            used.discard(path.pop())
            if not stack:
                return None
            continue
        path.append(node)
        used.add(node)
        stack.append(iter(_shortest_first(out, node, used, usable)))
    return None


def _shortest_first(
    out: dict[int, list[int]], node: int, used: set[int], usable: Arcs
) -> list[int]:
    """Where to go on, by short ways first, and the hardest to reach later."""
    nexts = [v for v in out[node] if v not in used]
    return sorted(nexts, key=lambda v: (usable[node, v], sum(w not in used for w in out[v])))


RANKS = 16
"""Ranks up to which rings are packed together; above, they are sought one by one."""
STEPS = 3.0
"""CP-SAT's deterministic time of one search: some seconds."""

Arcs = Mapping[tuple[int, int], int]
"""(rank, rank) -> units that the link between them carries."""
Ring = tuple[tuple[int, ...], int]
"""Ranks round a ring, and the units that it takes of each of its links."""


def pack_cycles(ranks: Sequence[int], arcs: Arcs) -> list[Ring]:
    """Rings through all ranks that fit on the arcs together, of one width: the most in all.

    Empty where there is none, or the mesh is larger than RANKS.
    """
    best: list[Ring] = []
    if not 3 <= len(ranks) <= RANKS:
        return best
    number = {rank: i for i, rank in enumerate(ranks)}
    for width in sorted(set(arcs.values()), reverse=True):
        rooms = {pair: units // width for pair, units in arcs.items() if units >= width}
        most = _most(ranks, rooms)
        while most * width > sum(share for _, share in best):
            rings = _cycles(tuple((number[u], number[v], r) for (u, v), r in rooms.items()), most)
            if rings:
                best = [(tuple(ranks[i] for i in order), width) for order in rings]
                break
            most -= 1
    return best


def _most(ranks: Sequence[int], rooms: Arcs) -> int:
    """Rings that could enter and leave every set of ranks."""
    first, limit = ranks[0], sum(rooms.values())
    ways = [way for rank in ranks[1:] for way in ((first, rank), (rank, first))]
    return min(push(residual_of(rooms, ranks), *way, limit) for way in ways)


@lru_cache(maxsize=1024)
def _cycles(arcs: tuple[tuple[int, int, int], ...], count: int) -> list[list[int]]:
    """So many rings, each arc (from, to, room) in as many of them as it has room for.

    Ranks are numbered from 0, so that alike boxes ask once. Empty: none was found.
    """
    from ortools.sat.python import cp_model

    model, solver = cp_model.CpModel(), _solver()
    rings = [[(u, v, model.new_bool_var("")) for u, v, _ in arcs] for _ in range(count)]
    for ring in rings:
        model.add_circuit(ring)
    for (*_, room), *taken in zip(arcs, *rings, strict=True):
        model.add(sum(used for *_, used in taken) <= room)
    # that there are none shows a hundred times sooner where rings come in the order in which they
    # leave the rank of fewest links, for they are alike
    links, ordered = Counter(u for u, *_ in arcs), model.clone()
    rank = min(links, key=lambda u: links[u])
    for one, other in pairwise(sum(v * used for u, v, used in r if u == rank) for r in rings):
        ordered.add(one <= other)
    if solver.solve(ordered) == cp_model.INFEASIBLE:
        return []
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    orders = []
    for ring in rings:
        after = {u: v for u, v, used in ring if solver.value(used)}
        order = [0]
        while len(order) < len(after):
            order.append(after[order[-1]])
        orders.append(order)
    return orders


def cut_open(rings: Sequence[Ring], rooms: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Paths that begin where a box is entered and end where it is left, each a ring without a link.

    A ring of `k` units is cut open at up to `k` places; a rank begins and ends `rooms` paths at
    most. As many as there can be, those that begin at the first ranks first.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    cuts = {
        (ring, place): model.new_int_var(0, units, "")
        for ring, (order, units) in enumerate(rings)
        for place in range(len(order))
    }
    for ring, (order, units) in enumerate(rings):
        model.add(sum(cuts[ring, place] for place in range(len(order))) <= units)
    for rank, room in rooms.items():
        for shift in (0, 1):  # a path begins here, or the one that begins next ends here
            here = [
                cut for (ring, place), cut in cuts.items() if rings[ring][0][place - shift] == rank
            ]
            model.add(sum(here) <= room)
    model.maximize(sum(cuts.values()))
    solver = _solver()
    if not cuts or solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    paths = []
    for (ring, place), cut in cuts.items():
        order = rings[ring][0]
        paths += [order[place:] + order[:place]] * solver.value(cut)
    return sorted(paths)


def _solver() -> cp_model.CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = STEPS
    solver.parameters.catch_sigint_signal = False  # it would leave no handler behind, not ours
    return solver
