"""The files of a layout: who is where, for frameworks and launchers, and the plans of its groups.

layout.json      ranks and their GPUs; steps, rows, groups, what they reach, which plans are whose
step<i>-<dims>/  forests of groups that run together, or flows, with the proof of all of them; a
                 plan set for all groups whose links differ in the names of GPUs alone
rankfile         Open MPI's: the node of each rank, nodes by number
slurm-hosts.txt  SLURM_HOSTFILE: the host of each rank (srun --distribution=arbitrary)
devices.txt      CUDA_VISIBLE_DEVICES of each host: GPUs in the order of its ranks
hosts.txt        torchrun's --node_rank of each host, where each host has consecutive ranks
dlrover.json     the same for DLRover: {node: group}, groups in the order of their names
mesh.py          a DeviceMesh of ranks that are numbered in the topology's order
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from forestcoll.common.clock import Progress
from forestcoll.compile.formats import Format
from forestcoll.program.rank_placement import Places, places
from forestcoll.program.targets import TargetName
from forestcoll.schedule.layout_file import Job
from forestcoll.schedule.placement_file import FORMAT, INDEX
from forestcoll.study.layout import Layout, StepResult
from forestcoll.study.layout.plans import Files, Plans

FILES = (
    INDEX,
    "layout.svg",
    "rankfile",
    "slurm-hosts.txt",
    "devices.txt",
    "mesh.py",
    "hosts.txt",
    "dlrover.json",
)
"""What lies in the folder itself."""


def folders_of(job: Job) -> list[str]:
    """The folder of each step."""
    dims = [[row.dim for row in step] for step in job.steps]
    return ["-".join([f"step{number}", *own]) for number, own in enumerate(dims)]


def files_of(
    layout: Layout,
    target: TargetName,
    formats: Iterable[Format],
    progress: Progress | None = None,
) -> tuple[dict[str, str], list[str]]:
    """(text of each file, notes). Ctrl-C leaves the plans away that are not made yet."""
    plans = Plans(layout, target, tuple(formats), progress)
    steps = [
        _step(layout, number, step, plans.step(number, folder))
        for number, (step, folder) in enumerate(
            zip(layout.steps, folders_of(layout.job), strict=True)
        )
    ]
    home = places(layout.names, len(layout.names))
    started, why = _launchers(layout, home)
    index = {
        "format": FORMAT,
        "topology": layout.topology.name,
        "mesh" if layout.job.parallel.mesh else "order": layout.job.parallel.order,
        "gpus": layout.names,
        "default_gpus": layout.costs.fabric.graph.rank_names,
        "seconds": str(layout.seconds),
        "default_seconds": None if layout.default is None else str(layout.default),
        "bound_seconds": layout.bound,
        "steps": steps,
    }
    return {INDEX: json.dumps(index, indent=1) + "\n", **started, **plans.texts}, [
        *why,
        *plans.notes,
    ]


def _step(
    layout: Layout, number: int, step: StepResult, plans: Iterable[Files]
) -> dict[str, object]:
    """What layout.json says of a step."""
    graph, cost = layout.costs.fabric.graph, step.cost
    files = iter(plans)
    rows: list[dict[str, object]] = []
    for result in step.rows:
        row = result.row
        groups: list[dict[str, object]] = []
        for way in row.kinds:
            for unit in row.units:
                ranks = list(unit)[:: way[1]]
                gpus = [layout.names[r] for r in ranks]
                groups.append({"ranks": ranks, "gpus": gpus, "files": next(files, {})})
        rows.append(
            {
                "dim": row.traffic.dim,
                "collective": row.traffic.name.partition(":")[2],
                "bytes": row.traffic.size,
                "times": row.traffic.times,
                "algbw": str(result.algbw),
                "default_algbw": None if result.default is None else str(result.default),
                "alone_at_most": result.bound,
                "groups": groups,
            }
        )
    cut = min(cost.sides, key=len, default=frozenset[int]())
    return {
        "step": number,
        "seconds": str(cost.seconds),
        "algbw": str(cost.algbw),
        "bound": str(cost.bound),
        "optimal_placed": cost.algbw == cost.bound,
        "limiting_cut": [graph.names[v] for v in sorted(cut)],
        "rows": rows,
    }


def _launchers(layout: Layout, home: Places) -> tuple[dict[str, str], list[str]]:
    """(files for launchers, notes)."""
    node = {name: i for i, name in enumerate(dict.fromkeys(home.nodes))}
    own: dict[str, list[int]] = {name: [] for name in node}
    for place in home.places:
        own[place.node].append(place.gpu)
    called = {name: name or "localhost" for name in node}
    texts = {
        "rankfile": "".join(
            f"rank {p.rank}=+n{node[p.node]} slot={own[p.node].index(p.gpu)}\n" for p in home.places
        ),
        "slurm-hosts.txt": "".join(f"{called[p.node]}\n" for p in home.places),
        "devices.txt": "".join(
            f"{called[name]}: CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}\n"
            for name, gpus in own.items()
        ),
        "mesh.py": _mesh(layout),
    }
    if not home.plain:
        why = "some hosts' ranks are not consecutive, so torchrun and DLRover cannot start them: "
        return texts, [why + "rankfile and slurm-hosts.txt can"]
    order = list(dict.fromkeys(p.node for p in home.places))
    texts["hosts.txt"] = "".join(
        f"{called[name]}: torchrun --node_rank={i}\n" for i, name in enumerate(order)
    )
    nodes = {called[name]: f"{i:04}" for i, name in enumerate(order)}
    texts["dlrover.json"] = json.dumps(nodes, indent=1) + "\n"
    return texts, []


def _mesh(layout: Layout) -> str:
    """Python that makes a DeviceMesh where ranks are numbered as the topology numbers its GPUs."""
    grid = layout.job.parallel.grids[0]
    names = tuple(n for n, s in reversed(list(zip(grid.names, grid.sizes, strict=True))) if s > 1)
    sizes = tuple(s for s in reversed(grid.sizes) if s > 1)
    return (
        "import torch\n"
        "from torch.distributed.device_mesh import DeviceMesh\n\n"
        "# Ranks as the topology numbers its GPUs; started by rankfile, slurm-hosts.txt or\n"
        f"# hosts.txt they are in place already: init_device_mesh('cuda', {sizes}) does.\n"
        f"ranks = torch.tensor({list(layout.placement)}).reshape{sizes}\n"
        f"mesh = DeviceMesh('cuda', ranks, mesh_dim_names={names})\n"
    )
