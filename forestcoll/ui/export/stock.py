"""What stock NCCL and RCCL take without a plan: trees of a box, rings on rails, to be sourced."""

from __future__ import annotations

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape, file_name
from forestcoll.plans.stock import trees as rccl
from forestcoll.plans.stock.graph import Channel, dumps
from forestcoll.program.targets import RCCL, library_on
from forestcoll.solver.stock.rails import choose
from forestcoll.solver.stock.spanning_trees import Packing, pack
from forestcoll.topology.numbers import percent
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.report import words
from forestcoll.ui.view import Subject


def rccl_trees(subject: Subject, settings: Settings) -> Files:
    """The one file, a shell's. UnsupportedError where RCCL has no trees of such a machine."""
    graph = subject.graph()
    boxes = {graph.box(rank) for rank in graph.ranks}
    if len(boxes) > 1:
        raise UnsupportedError(
            f"{subject.name}: {len(boxes)} boxes; RCCL_TREES are those of one box"
        )
    packing = pack(graph, rccl.MOST_TREES, rccl.MOST_CHILDREN)
    variables = rccl.variables([tree.children for tree in packing.trees])
    lines = [f"# {line}" if line else "#" for line in _explain(subject.name, packing)]
    lines += [f"export {name}='{text}'" for name, text in variables.items()]
    return {f"{file_name(subject.name)}.rccl-trees.env": ("\n".join(lines) + "\n").encode()}


def _explain(name: str, packing: Packing) -> list[str]:
    """What the trees reach, what nothing exceeds, and the proof of that."""
    bound, mesh, trees = packing.bound, packing.mesh, packing.trees
    depths = " to ".join(str(depth) for depth in sorted({trees[0].depth, trees[-1].depth}))
    gpus = f"GPU {{0..{mesh.n - 1}}} of the box is rank {{0..{mesh.n - 1}}}"
    prices = [
        f"  {' - '.join(map(escape, ends))}: {words.exact(price)}"
        for ends, price in zip(mesh.ends, bound.prices, strict=True)
        if price
    ]
    return [
        f"Trees of an allreduce on {escape(name)}, for stock RCCL in one box: {gpus}.",
        f"{words.plural(len(trees), 'tree')} of {words.exact(packing.share)} GB/s each, "
        f"{depths} hops deep: algbw {words.rate(packing.algbw)}",
        f"bound {words.rate(bound.algbw)} for spanning trees of any shares, any number of "
        f"children: {percent(packing.algbw / bound.algbw)} of it",
        "Proof: at these prices of a GB/s over a link, both ways, every spanning tree of 1 GB/s",
        f"costs 1 at least, and all that the links carry costs {words.exact(bound.algbw)}:",
        *prices,
        "With NCCL_DEBUG=INFO every rank's line 'Trees [0] ...' shows the trees in use.",
    ]


def nccl_graph(subject: Subject, settings: Settings) -> Files:
    """A file for each box, and the environment. UnsupportedError where boxes share no channel."""
    topology = subject.topology
    assert topology is not None  # which alone is taken (FORMATS)
    rails = choose(topology, subject.whole or topology)
    # RCCL has PXN switched off; where nothing is known, the worst is said
    intra = "NVL" if rails.direct else "SYS"
    inter = "PXN" if rails.direct and library_on(topology.name) is not RCCL else "SYS"
    stem = file_name(subject.name)
    files: dict[str, bytes] = {}
    for k in range(len(rails.boxes)):
        numbers = {rank: dev for dev, rank in enumerate(sorted(rails.channels[0].orders[k]))}
        channels = [
            Channel(tuple((numbers[rank], rank) for rank in one.orders[k]), one.devices[k])
            for one in rails.channels
        ]
        files[f"{stem}.{k}.nccl-graph.xml"] = dumps(channels, rails.speed, intra, inter).encode()
    hops = len(rails.boxes) * len(rails.channels)
    total = words.rate(rails.speed * len(rails.channels))
    lines = [
        f"# Rings on {escape(subject.name)}, {len(rails.boxes)} boxes, for stock NCCL and RCCL:",
        f"# {words.plural(len(rails.channels), 'channel')} of {words.exact(rails.speed)} GB/s over "
        f"the adapters, {total} in all; {rails.changes} of {hops} hops between boxes change rail.",
        f"# Box k ({', '.join(map(escape, rails.boxes[:4]))}, ...) reads file k: NODE_RANK or "
        "SLURM_NODEID says k.",
        "# Adapters have the numbers of the library's own list ('Using [0]...' with "
        "NCCL_DEBUG=INFO), which leaves out those that are down.",
        'export NCCL_GRAPH_FILE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/'
        f'{stem}.${{NODE_RANK:-${{SLURM_NODEID:-0}}}}.nccl-graph.xml"',
        "export NCCL_CROSS_NIC=0",
    ]
    return {**files, f"{stem}.nccl-graph.env": ("\n".join(lines) + "\n").encode()}
