"""Plans of a layout's groups: one set for all groups that have alike links to themselves.

Forests of groups that run together, or the flows of an all-to-all, say what each group takes of
each link. On these links alone its plans are made, for every size: whatever each group runs of its
set, all of them together keep to the links.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from forestcoll.common.clock import Progress
from forestcoll.common.errors import ForestCollError
from forestcoll.compile.formats import FORMATS, Format
from forestcoll.compile.plan_set import LARGEST, files_of, make
from forestcoll.compile.request import Request
from forestcoll.compile.together import GroupsProblem, synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import least_in_orbits, link_images
from forestcoll.program import Collective
from forestcoll.program.targets import TargetName, sms_of
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.groups.forests import form, reserve
from forestcoll.study.layout import Layout
from forestcoll.topology import Link, Node, Topology

RELAYED = "no runtime passes data on at GPUs of other groups"
Files = dict[str, list[str]]
"""Of a group, by format: those of a plan set from the least bytes to the most."""


@dataclass
class Plans:
    """`texts` by file, as far as they were made; `stopped`: Ctrl-C came, nothing more is made."""

    layout: Layout
    target: TargetName
    formats: tuple[Format, ...]
    progress: Progress | None = None
    texts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    _sets: dict[object, Files] = field(default_factory=dict)

    def step(self, number: int, folder: str) -> list[Files]:
        """The files of each group of a step, in the order of `Costs.views`."""
        files: list[Files] = []
        try:
            if not self.stopped:
                self._make(number, folder, files)
        except KeyboardInterrupt:
            self.stopped = True
        except ForestCollError as error:
            self.notes.append(f"{folder}: no plans: {error}")
        if self.stopped:
            bare = [str(g) for g, own in enumerate(files) if not own.keys() - {"forest"}]
            of = f" of groups {', '.join(bare)}" if files else ""
            self.notes += [f"{folder}: interrupted: no plans{of}"] if bare or not files else []
        return files

    def _make(self, number: int, folder: str, files: list[Files]) -> None:
        name, groups = self.layout.topology.name, self._groups(number, folder)
        shared = max(Counter(gpu for _, graph in groups for gpu in graph.rank_names).values())
        stems = [f"{folder}/{name}-group{g}.{kind}" for g, (kind, _) in enumerate(groups)]
        forests = [f"{stem}{FORMATS['forest']}" for stem in stems]
        files += [{"forest": [file]} if file in self.texts else {} for file in forests]
        sms = sms_of(name) // shared
        keys = [None if kind.has_root else (form(graph)[0], kind, sms) for kind, graph in groups]
        wanted = list(dict.fromkeys(key for key in keys if key and key not in self._sets))
        for own, key, stem, (kind, graph) in zip(files, keys, stems, groups, strict=True):
            if key in wanted and key not in self._sets:
                where = f"{folder}, plans {1 + wanted.index(key)} of {len(wanted)}"
                self._sets[key] = self._set(stem, kind, graph, sms, where)
            own |= self._sets.get(key, {})

    def _groups(self, number: int, folder: str) -> list[tuple[Collective, CapacityGraph]]:
        """(collective, its links) of each group; what proves them all together is written."""
        costs, name = self.layout.costs, self.layout.topology.name
        cost = self.layout.steps[number].cost
        if cost.exchange is not None:
            self.texts[f"{folder}/{name}.alltoall{file.SUFFIX}"] = file.dumps(cost.exchange, name)
            return [(Collective.ALLTOALL, graph) for graph in links_of_groups(cost.exchange, name)]
        views = costs.views(number, self.layout.placement)
        asked = GroupsProblem(
            name,
            costs.fabric.graph,
            [list(view.graph.ranks) for view in views],
            [view.root for view in views],
            [view.collective for view in views],
            costs.relays,
            self.layout.topology.latencies(),
            [view.weight for view in views],
        )
        joint = synthesize(asked, formats=("forest",), progress=self.progress, shares=cost.shares)
        self.texts |= {f"{folder}/{file}": text for file, text in joint.texts.items()}
        self.notes += [f"{folder}: {text}" for text in joint.notes]
        return [(forest.collective, forest.graph) for forest in joint.done.forests]

    def _set(
        self, stem: str, kind: Collective, graph: CapacityGraph, sms: int, where: str
    ) -> Files:
        """Plans of every size for a group and those like it; a note says why there are none."""
        formats = tuple(form for form in self.formats if form != "forest")
        tell, relayed = self.progress, len(graph.ranks) < sum(graph.gpu)
        if not formats:
            return {}
        try:
            request = Request(
                kind, ranks=graph.rank_names, target=self.target, formats=formats, sms=sms
            )
            name = stem.rpartition("/")[2].removesuffix(f".{kind}")
            names, whole = graph.names, self.layout.topology
            latencies, rules, links = whole.latencies(), whole.rules(), list[Link]()
            for e, (u, v) in enumerate(graph.ends):
                ends, bandwidth = (names[u], names[v]), graph.bandwidth(e)
                rule = rules.get(ends)
                links.append(Link(*ends, bandwidth, latencies[ends], oneway=True, rule=rule))
            nodes = {
                v: Node("gpu" if gpu else "switch") for v, gpu in zip(names, graph.gpu, strict=True)
            }
            machine = Topology(name[:100], nodes, tuple(links))
            plans = make(
                machine,
                request,
                1,
                LARGEST,
                progress=tell and (lambda stage, share: tell(f"{where}: {stage}", share)),
            )
        except ForestCollError as error:
            why = f"{RELAYED}; without --relays there are" if relayed else error
            self.notes.append(f"{stem}: no plans: {why}")
            return {}
        texts = files_of(plans)
        self.texts |= {f"{stem}/{file}": text for file, text in texts.items()}
        self.notes += [f"{stem}: {text}" for text in plans.notes]
        if relayed:
            rate = f"{float(plans.bound):.4g} GB/s"
            self.notes.append(f"{stem}: {rate}: {RELAYED}, as the forest does")
        return {
            form: [f"{stem}/{file}" for file in texts if file.startswith(f"{form}/")]
            for form in formats
        }


def links_of_groups(best: Optimum, name: str) -> list[CapacityGraph]:
    """What each group of an all-to-all takes of each link (GB/s), all within the links together.

    `best` has the flow of one rank of each orbit: its images, on the average over all symmetries,
    are the others'. TopologyError where the amounts have no common unit.
    """
    demand, folding = best.demand, best.folding
    graph, ends = demand.graph, [*demand.graph.ends]
    links = len(ends)
    home = {graph.ranks[i]: g for g, group in enumerate(demand.groups) for i in group}
    maps = []
    for image in folding.generators:
        moved = np.array([home[image[graph.ranks[group[0]]]] for group in demand.groups])
        on_links = link_images(graph, np.asarray(image), name)
        maps.append((moved[:, None] * links + on_links[None, :]).ravel())
    orbit = least_in_orbits(len(demand.groups) * links, maps).reshape(-1, links)
    sizes = np.bincount(orbit.ravel())
    amounts = dict[int, Fraction]()
    for source, images, flow in zip(folding.sources, folding.images, best.flows, strict=True):
        for e, amount in flow.items():
            o = int(orbit[home[source], e])
            amounts[o] = amounts.get(o, Fraction(0)) + images * amount / int(sizes[o])
    taken, out = [Fraction(0)] * links, []
    for group, own in zip(demand.groups, orbit.tolist(), strict=True):
        loads = {e: amounts[o] for e, o in enumerate(own) if o in amounts}
        for e, amount in loads.items():
            taken[e] += amount
        ranks = tuple(graph.ranks[i] for i in group)
        bandwidths = {ends[e]: amount * graph.unit for e, amount in loads.items()}
        out.append(reserve(replace(graph, ranks=ranks), bandwidths, name)[0])
    if any(amount > c for amount, c in zip(taken, graph.capacity, strict=True)):
        raise RuntimeError("internal error: the groups' flows do not fit the links together")
    return out
