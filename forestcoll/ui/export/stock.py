"""What stock NCCL and RCCL take without a plan: trees of a box, rings on rails, to be sourced; and
a table for NCCL's example tuner plugin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isqrt
from statistics import median

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape, file_name
from forestcoll.plans.stock import trees as rccl
from forestcoll.plans.stock.graph import Channel, dumps
from forestcoll.program.targets import RCCL, library_on
from forestcoll.solver.stock.rails import choose
from forestcoll.solver.stock.spanning_trees import Packing, pack
from forestcoll.topology.calibrate.calls import RINGS, read
from forestcoll.topology.numbers import percent
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.report import words
from forestcoll.ui.view import Subject


def rccl_trees(subject: Subject, settings: Settings) -> Files:
    """The one file, a shell's. UnsupportedError where RCCL has no trees of such a machine."""
    graph = subject.graph()
    boxes = set(graph.boxes)
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


# --- a table for NCCL's example tuner plugin ------------------------------------------------------


ALGORITHMS = ("tree", "ring", "nvls", "pat", "nvls_tree", "collnet_direct", "collnet_chain")
PROTOCOLS = ("ll", "ll128", "simple")
LAST = 2**64 - 1
HOW = (
    "tables are made of sweeps: give --measured files of nccl-tests' -J, each run with NCCL_ALGO, "
    "NCCL_PROTO and NCCL_MIN_NCHANNELS=NCCL_MAX_NCHANNELS set"
)

Choice = tuple[str, str, int]
"""Algorithm, protocol, channels."""
Times = Mapping[int, Mapping[Choice, list[float]]]
"""Bytes -> choice -> microseconds."""


def nccl_tuner(subject: Subject, settings: Settings) -> Files:
    """The one file: what a call of some size takes, by measured sweeps.

    The plugin takes the first row that fits a call and is no choice that the library excludes
    (NVIDIA/nccl 5067397c plugins/tuner/example/plugin.c). A call without a row, and one whose row
    says -1 channels, gets one channel alone: the plugin begins with 1, and src/enqueue.cc takes its
    word. So all sizes have rows, all rows have channels, and the last ones are for everything else,
    other communicators of the job as well. It takes names that it does not know for ring and
    Simple, and reads 255 characters of a line.

    UnsupportedError without measurements, or where they miss their choice.
    """
    topology = subject.topology
    assert topology is not None  # which alone is taken (FORMATS)
    ranks, hosts = len(topology.gpus), len({gpu.rpartition("/")[0] for gpu in topology.gpus})
    times: dict[str, dict[int, dict[Choice, list[float]]]] = {}
    for source, text in settings.measured:
        run = read(text, source)
        if len(run.hosts) != ranks:
            raise UnsupportedError(f"{source}: {len(run.hosts)} ranks; {subject.name} has {ranks}")
        hosts = len({*run.hosts}) if all(run.hosts) else hosts
        for call in run.calls:
            plain = call.algorithm.replace("_", "")
            algorithm = next((one for one in ALGORITHMS if one.replace("_", "") == plain), "")
            if not algorithm or call.protocol not in PROTOCOLS or not call.channels:
                said = f"{call.algorithm or '?'}, {call.protocol or '?'}, {call.channels or '?'}"
                raise UnsupportedError(f"{source}: algorithm, protocol, channels: {said}; {HOW}")
            choice = algorithm, call.protocol, call.channels
            if call.collective in RINGS:
                by_size = times.setdefault(call.collective, defaultdict(lambda: defaultdict(list)))
                by_size[call.size][choice].append(call.us)
    if not times:
        raise UnsupportedError(f"{subject.name}: {HOW}")
    most = max(c for of in times.values() for choices in of.values() for _, _, c in choices)
    missing = ", ".join(sorted(RINGS - set(times)))
    lines = [
        f"# {escape(subject.name)}: collective,from,to,algorithm,protocol,channels,nodes,ranks",
        "# NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=<this file>",
        f"# not measured, ring and Simple at all sizes: {missing or 'other communicators'}",
    ]
    for name in sorted(times):
        for low, high, choice in _rows(times[name]):
            algorithm, protocol, channels = choice
            lines.append(f"{name},{low},{high},{algorithm},{protocol},{channels},{hosts},{ranks}")
    lines += [f"{name},0,{LAST},ring,simple,{most},-1,-1" for name in sorted(RINGS)]
    return {f"{file_name(subject.name)}.nccl-tuner.csv": ("\n".join(lines) + "\n").encode()}


def _rows(times: Times) -> Iterator[tuple[int, int, Choice]]:
    """(from, to, the fastest choice) over all sizes; borders in the middle of measured ones."""
    sizes = sorted(times)
    best = [min(times[size], key=lambda one: (median(times[size][one]), one)) for size in sizes]
    low = 0
    for k, choice in enumerate(best):
        if k + 1 < len(best) and best[k + 1] == choice:
            continue
        high = isqrt(sizes[k] * sizes[k + 1]) if k + 1 < len(best) else LAST
        yield low, high, choice
        low = high + 1
