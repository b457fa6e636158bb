"""Choice of a packer for one phase: which suits which fabric, which of two results is kept."""

from __future__ import annotations

from forestcoll.graph.capacity_graph import CapacityGraph, require_size
from forestcoll.graph.symmetry.components import find_structures
from forestcoll.schedule.forest import Tree, all_images, scan
from forestcoll.solver.compact.forests import pack_compact
from forestcoll.solver.fixed_trees import Fit, floors
from forestcoll.solver.flows.joint import Joint
from forestcoll.solver.packing import pack, pack_quickly, prefer, spread_evenly
from forestcoll.solver.shallow.boxes import has_gates
from forestcoll.solver.shallow.rehanging import Wanted, pack_irregular, suits
from forestcoll.solver.task import PATIENT, Packed, Task

LITTLE = 1
"""Heights above the lower bound that are worth a search where links are dealt out beforehand, and
that are near enough where trees were packed quickly."""
QUICK_PARENTS = 1_000_000
"""Parents in all trees above which what was packed quickly below one tier of switches stays."""
BOTH_WAYS = 256
"""Ranks up to which a fabric that can be packed by orbits is packed in general, too."""


class SlowError(Exception):
    """Only packers that take minutes, and make tall trees, are left."""


def pack_phase(task: Task, fit: Fit, patient: bool = True) -> Packed:
    """Broadcast trees of `task` that `fit`, or twice as many a root, at its algbw or more.

    Regular fabrics with several tiers of switches are packed by orbits: removing those switches is
    slow and makes tall trees. Irregular ones are searched for low trees, and so are first those
    whose boxes hang together by switches that lead out; others are packed in general. Raises
    SlowError instead of that where many ranks make it slow, unless `patient`. With many roots,
    paths are dealt out over parallel switches; chains from one root are better as they are.
    """
    k, ranks, deal = fit.trees, len(fit.links.ranks), task.root is None
    trees = _pack_quickly(task, fit)
    if trees is not None:
        deal &= ranks <= BOTH_WAYS
    elif suits(task.given, task.root):
        trees = pack_irregular(Wanted.of(task, 2 * k, fit.algbw))  # more room for whole numbers
        if trees is not None:
            k, deal = 2 * k, False
        elif not patient and ranks > PATIENT:
            raise SlowError
    if trees is None:
        trees = pack(fit.links, fit.capacity, task.supply(k))
    return Packed(spread_evenly(task.given, trees) if deal else trees, k * task.roots, fit.algbw)


def _pack_quickly(task: Task, fit: Fit) -> list[Tree] | None:
    """The trees by what suits the fabric; None where only the general packers are left."""
    k, links, capacity = fit.trees, fit.links, fit.capacity
    supply, ranks = task.supply(k), set(links.ranks)
    few = len(ranks) <= BOTH_WAYS
    tiers = any(u not in ranks and v not in ranks for u, v in links.ends)
    packed = low = quick = None
    height = 0
    if suits(task.given, task.root) and has_gates(task.given):
        wanted = Wanted.of(task, k, fit.algbw)
        low = pack_irregular(wanted)
        if low is not None and scan(links, low)[1] <= wanted.least + LITTLE:
            return low
    if tiers and task.root is None and not links.shares:
        packed = pack_compact(links, k, capacity)
    if packed is not None:
        height = scan(links, packed[0])[1]
    if not suits(task.given, task.root):
        low = pack(links, capacity, supply) if packed is not None and few else None
    else:
        if not tiers:
            height, quick = pack_quickly(links, capacity, supply) or (0, None)
            many = sum(supply) * len(ranks) > QUICK_PARENTS
            if quick is not None and (many or find_structures(links)):
                return quick
        good = quick is not None or (packed is not None and not few)
        if not good or height > 2 + LITTLE * (not tiers):
            wanted = Wanted.of(task, k, fit.algbw)
            low = low or (pack_irregular(wanted) if not good or height > wanted.least else None)
    if packed is not None:
        if low is not None and scan(links, low)[1] < height:
            return low  # the others need not be written out
        quick = all_images(links, *packed)
    packings = [trees for trees in (low, quick) if trees is not None]
    return prefer(links, packings) if packings else None


def pack_part(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree]:
    """Broadcast trees, `supply[v]` of them from node v, at most `capacity[e]` over link e.

    For the part of the links that one phase of a joint allreduce has, or one of several groups.
    """
    require_size(capacity, 1)
    require_size(supply, 1)
    if suits(graph, None) and sum(map(bool, supply)) > 1:
        low = pack_irregular(Wanted(graph, capacity, supply), LITTLE)
        if low is not None:
            return low
    return pack(graph, capacity, supply)


def pack_both(graph: CapacityGraph, joint: Joint) -> tuple[list[Tree], list[Tree]] | None:
    """Trees of a joint allreduce, low ones: (reduce, on the reversed graph; broadcast), or None.

    What the linear program leaves of a link is given to the broadcasts, and what these leave to the
    reductions: trees need not follow the few links that its vertex happens to use.
    """
    if not suits(graph, None):
        return None
    supply = list(joint.supply)
    u = sum(supply) * graph.unit / joint.algbw
    room = floors(u, graph.capacity)
    first = [c - taken for c, taken in zip(room, joint.carried[1], strict=True)]
    out = pack_irregular(Wanted(graph, first, supply), LITTLE)
    if out is None:
        return None
    loads = scan(graph, out, copying=False)[2]
    if loads is None:
        return None
    second = [c - load for c, load in zip(room, loads, strict=True)]
    back = pack_irregular(Wanted(graph.reverse(), second, supply), LITTLE)
    return None if back is None else (back, out)
