"""What is drawn or exported: a plan, a forest or a topology, and what lies beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import file_name
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.link_table import LinkTable
from forestcoll.program import Program
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify.simulate import (
    RANKS,
    Band,
    Calendar,
    Options,
    Timing,
    Where,
    band,
    band_of_trees,
    calendar,
    run,
    run_forest,
)
from forestcoll.verify.simulate.fabric import graph_of

NO_ORDER = "flows and routes say no order of messages; the plans of the routes do"
Kind = Literal["plan", "forest", "topology", "exchange"]


class Exchange(NamedTuple):
    """Flows or routes of an all-to-all: what links carry, in no order of time.

    `links`: a row for each link of the graph.
    """

    collective: str
    graph: CapacityGraph
    links: LinkTable


class Subject(NamedTuple):
    """`kind` is what the file holds; of what lies beside it, whatever is known.

    `topology` is the one that was given with the file, or the file itself; `machine` one that is
    known to have the file's links, for their latencies; `whole`: the topology before its links were
    taken out or slowed. `said`: its figures in the words of all commands (name, text).
    """

    name: str
    kind: Kind
    topology: Topology | None = None
    forest: Forest | None = None
    program: Program | None = None
    exchange: Exchange | None = None
    machine: Topology | None = None
    whole: Topology | None = None
    said: tuple[tuple[str, str], ...] = ()

    @property
    def links(self) -> LinkTable | None:
        """What each link carries, of a forest or an exchange."""
        if self.exchange is not None and self.program is None:
            return self.exchange.links
        return None if self.forest is None else self.forest.links

    @property
    def title(self) -> str:
        """`allgather on dgx-a100-2`; the name alone of a topology."""
        if self.program is not None:
            return f"{self.program.collective} on {self.name}"
        if self.exchange is not None:
            return f"{self.exchange.collective} on {self.name}"
        return self.name if self.forest is None else f"{self.forest.collective} on {self.name}"

    @property
    def stem(self) -> str:
        """`allgather.dgx-a100-2`: the title as the beginning of a file's name."""
        return file_name(self.title.replace(" on ", "."))

    def graph(self) -> CapacityGraph:
        """The links: the forest's where there is one. UnsupportedError where none are known.

        Links of simulated runs have its numbers.
        """
        if self.forest is not None:
            return self.forest.graph
        if self.exchange is not None and self.topology is None:
            return self.exchange.graph
        if self.topology is None:
            raise UnsupportedError(
                f"{self.name}: a plan does not say which links there are, and no file of its "
                "forest or routes lies beside it; give the topology with --topology NAME or FILE"
            )
        if self.program is not None:
            return graph_of(self.program, self.topology)
        return CapacityGraph.from_topology(self.topology)

    def _where(self) -> Where:
        return self.forest or self.topology or self.graph()

    def band(self, size: int) -> Band | None:
        """What so many bytes reach, as reports have it; None where it takes long, or is nothing."""
        links = self.topology or self.machine
        if self.program is not None and self.program.n <= RANKS:
            return band(self.program, self._where(), size, links=links)
        if self.program is None and self.forest is not None:
            return band_of_trees(self.forest, None if links is None else links.latencies(), size)
        return None

    def simulate(self, size: int, *, options: Options | None = None, pieces: int = 1) -> Timing:
        """A simulated run of so many bytes, with its time line. UnsupportedError of a topology.

        Of a forest alone every tree is cut into so many `pieces`.
        """
        options, links = options or Options(), self.topology or self.machine
        if self.program is not None:
            where = self._where()
            timing = run(self.program, where, size, links=links, options=options, timeline=True)
            return _renumber(timing, self.graph())
        if self.exchange is not None:
            raise UnsupportedError(f"{self.name}: {NO_ORDER}")
        if self.forest is None:
            raise UnsupportedError(f"{self.name}: a topology does nothing that could be simulated")
        return run_forest(
            self.forest,
            size,
            topology=links,
            options=options,
            pieces=pieces,
            timeline=True,
        )

    def calendar(self, size: int, produced: Sequence[tuple[int, float]]) -> Calendar:
        """Of a plan, behind those who make its input; `timing` as `simulate` gives it."""
        assert self.program is not None
        where, links = self._where(), self.topology or self.machine
        dates = calendar(self.program, where, size, links=links, produced=produced, timeline=True)
        return replace(dates, timing=_renumber(dates.timing, self.graph()))


def _renumber(timing: Timing, graph: CapacityGraph) -> Timing:
    """The same run with its links in the order of a graph that has the same ones."""
    names = graph.names
    order = {(names[t], names[h]): e for e, (t, h) in enumerate(graph.ends)}
    place = [order[use.src, use.dst] for use in timing.links]
    if place == list(range(len(place))):
        return timing
    by_place = dict(zip(place, timing.links, strict=True))
    links = tuple(by_place[e] for e in range(len(place)))
    spans = tuple(
        replace(span, links=tuple(place[link] for link in span.links)) for span in timing.timeline
    )
    return replace(timing, links=links, timeline=spans)
