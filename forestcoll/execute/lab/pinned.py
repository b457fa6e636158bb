"""Pinned routes on the lab's fabric: SRv6 in the kernel, ECMP, and a cut link with its bypass.

Every path of an edge is a TCP flow of its own, in each of its planes, between aliases of the two
hosts: of a block of addresses whose routes carry segment lists (`encap seg6 mode encap.red`, at the
switches `seg6local End` and `End.X` with the flavor next-csid, at hosts `End.DT6`), or of one that
switches route by the shortest ways, hashing flows over equal ones by addresses and ports. Flows
send in proportion to their weights, all at once; the slowest counts.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from itertools import pairwise, zip_longest
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import NamedTuple

from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute.lab.network import Network, batch, inside, scale_of
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.routes.fabric import DECAPSULATION, Fabric
from forestcoll.solver.routes.repair import Repair, repair
from forestcoll.solver.routes.segments import Edge, segments_of
from forestcoll.topology.edit import edit, take_apart
from forestcoll.verify.segments import address

DRAWS = 6
MOST_FLOWS = 256
PORT = 5_000
PATIENCE = 20.0
SEGMENTS, HASHED = "fd00", "fd03"
"""Blocks of the hosts' aliases: with segment lists, and without."""
_SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/seg6_enabled": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",  # addresses and ports
    "net/ipv6/ip_nonlocal_bind": "1",  # aliases are a route to lo
}
_NEAR = "fe80::1"  # whoever is at the other end of a link


Hop = tuple[str, str]
"""Ids of a node and the next one."""


class Flow(NamedTuple):
    """`path`: ids of all nodes from host to host; `weight`: its part of the data."""

    path: tuple[str, ...]
    plane: int
    weight: Fraction


class Trial(NamedTuple):
    """A run. `seconds`: of the slowest flow; `rates`: bits a second of each; `replaced`: seconds
    that changing routes took."""

    name: str
    seconds: float
    rates: tuple[float, ...]
    replaced: float = 0.0


class Report(NamedTuple):
    """`predicted`: seconds of pinned flows; `mended`: with the link cut; `link`: bits a second of
    the slowest link between switches."""

    flows: int
    predicted: float
    mended: float
    link: float
    cut: Hop
    trials: tuple[Trial, ...]


def flows_of(edges: Sequence[Edge], total: int, fabric: Fabric) -> list[Flow]:
    """Every path in each of its planes. Raises UnsupportedError where they are too many."""
    values, flows = fabric.plane_values, []
    for edge in edges:
        ways = [(plane, way) for way in edge.ways for plane in way.planes]
        for plane, way in sorted(ways, key=lambda each: each[0]):
            path = tuple(node.format(**values[plane]) for node in way.nodes)
            flows.append(Flow(path, plane, Fraction(way.weight, total * len(way.planes))))
    if len(flows) > MOST_FLOWS:
        raise UnsupportedError(f"{len(flows):,} flows; the lab takes {MOST_FLOWS}: fewer GPUs")
    return flows


def lacking() -> str:
    """Why this kernel cannot route by segments; empty if it can."""
    if not Path("/proc/sys/net/ipv6/conf/all/seg6_enabled").exists():
        return "the kernel has no SRv6 (CONFIG_IPV6_SEG6_LWTUNNEL)"
    return ""


def measure(
    fabric: Fabric,
    edges: Sequence[Edge],
    total: int,
    rate: float,
    seconds: float,
    progress: Callable[[str, float], None] = lambda name, done: None,
) -> Report:
    """Pinned flows, `DRAWS` times ECMP, and pinned flows around the fullest link, which is cut.

    `rate` as in `Wishes`; `seconds`: what the pinned flows should take. Raises UnsupportedError
    where this machine cannot.
    """
    if reason := lacking():
        raise UnsupportedError(reason)
    left = take_apart(fabric.left)
    graph = CapacityGraph.from_topology(left)
    scale = scale_of(graph, rate)
    flows = flows_of(edges, total, fabric)
    loads, switches = _loads(flows), fabric.switches.keys()
    between = {hop: load for hop, load in loads.items() if {*hop} <= switches}
    if not between:
        raise UnsupportedError("no edge goes from leaf to leaf: nothing to pin")
    cut = max(between, key=lambda hop: (between[hop], hop))
    repaired = repair(Fabric(fabric.whole, edit(fabric.left, ["<->".join(cut)])), edges, total)
    bits = {ends: float(bandwidth * scale) for ends, bandwidth in left.rates().items()}
    size = seconds / max(float(load) / bits[hop] for hop, load in loads.items())
    trials = []
    with Network(graph, scale) as network:
        lab = _Lab(network, fabric, flows)
        for k, name in enumerate(["pinned", *(f"ECMP {k + 1}" for k in range(DRAWS))]):
            progress(f"measuring {name}", k / (DRAWS + 2))
            trials.append(lab.run(name, HASHED if k else SEGMENTS, flows, size))
        progress("measuring bypass", (DRAWS + 1) / (DRAWS + 2))
        around, mended = lab.bypass(cut, repaired)
        trials.append(lab.run("cut, bypass", SEGMENTS, around, size, mended))
    after = max(float(load) / bits[hop] for hop, load in _loads(around).items())
    link = min(bits[hop] for hop in between)
    return Report(len(flows), seconds, after * size, link, cut, tuple(trials))


def _loads(flows: Sequence[Flow]) -> dict[Hop, Fraction]:
    loads: dict[Hop, Fraction] = defaultdict(Fraction)
    for flow in flows:
        for hop in pairwise(flow.path):
            loads[hop] += flow.weight
    return loads


class _Lab:
    """Addresses and routes of a network that is up."""

    def __init__(self, network: Network, fabric: Fabric, flows: Sequence[Flow]) -> None:
        self.network, self.fabric, names = network, fabric, network.graph.names
        self.switches, self.number = fabric.switches, network.graph.node_of
        self.hosts = sorted({flow.path[k] for flow in flows for k in (0, -1)})
        near = network.near.items()
        self.wire = {(names[a], names[b]): wire for a, wires in near for b, wire in wires.items()}
        self.near = {names[node]: [names[peer] for peer in wires] for node, wires in near}
        for name, lines in self._lines().items():
            self._set(name, lines)
        self.flows = flows
        self._pin(dict(enumerate(flows)))

    def _set(self, node: str, lines: list[str]) -> None:
        with inside(self.network.fds[self.number[node]]):
            batch("ip", lines)

    def _via(self, here: str, there: str) -> str:
        return f"via {_NEAR} dev {self.wire[here, there].name}"

    def _alias(self, block: str, plane: int, host: str, flow: int) -> str:
        return f"{block}:{plane:x}:{self.hosts.index(host):x}:{flow:x}::1"

    def _lines(self) -> dict[str, list[str]]:
        """What `ip` is told at every node, once."""
        lines: dict[str, list[str]] = {}
        for name in self.near:
            with inside(self.network.fds[self.number[name]]):
                for setting, value in _SETTINGS.items():
                    (Path("/proc/sys") / setting).write_text(value)
            mine = lines[name] = []
            for other in self.near[name]:
                wire = self.wire[name, other]
                mine.append(
                    f"neigh replace {_NEAR} lladdr {wire.mac(self.number[other])} "
                    f"dev {wire.name} nud permanent"
                )
            if name in self.switches:
                mine += self._switch_lines(name)
            elif name in self.hosts:
                mine += self._host_lines(name)
        for number, host in enumerate(self.hosts):
            for name, line in self._ecmp_lines(number, host):
                lines[name].append(line)
        return lines

    def _switch_lines(self, name: str) -> Iterator[str]:
        form, values = self.switches[name]
        plane = self.fabric.plane(form, values)
        any_wire = self.wire[name, self.near[name][0]].name
        own = address(plane, (self.fabric.segment(form, values),))
        local = "encap seg6local action"
        yield f"route replace {own}/48 {local} End flavors next-csid dev {any_wire}"
        for other in self.near[name]:
            if other in self.switches:
                far, theirs = self.switches[other]
                segment = address(plane, (self.fabric.segment(far, theirs),))
                yield f"route replace {segment}/48 {self._via(name, other)}"
            elif other in self.hosts:
                host = f"fd02::{self.hosts.index(other) + 1:x}"
                path = (other, name, other)
                port = address(plane, segments_of(self.fabric, path)[1:2])
                yield f"route replace {host}/128 {self._via(name, other)}"
                end = f"{local} End.X nh6 {host} flavors next-csid"
                yield f"route replace {port}/48 {end} dev {self.wire[name, other].name}"

    def _host_lines(self, name: str) -> Iterator[str]:
        number = self.hosts.index(name)
        yield f"addr add fd02::{number + 1:x}/128 dev lo"
        for other in self.near[name]:
            if other not in self.switches:
                continue
            plane, wire = self.fabric.plane(*self.switches[other]), self.wire[name, other].name
            off = address(plane, (DECAPSULATION,))
            yield f"route replace {off}/48 encap seg6local action End.DT6 table 255 dev {wire}"
            yield f"route replace {address(plane, (0,))}/32 {self._via(name, other)}"
            yield f"route replace {HASHED}:{plane:x}::/32 {self._via(name, other)}"
            for block in (SEGMENTS, HASHED):
                yield f"route replace local {block}:{plane:x}:{number:x}::/48 dev lo"

    def _ecmp_lines(self, number: int, host: str) -> Iterator[Hop]:
        """Per switch a route to the host: over all neighbours that are nearer to it."""
        far = layer = {host: 0}
        while layer:
            reached = {n: step + 1 for here, step in layer.items() for n in self.near[here]}
            layer = {n: reached[n] for n in reached.keys() & self.switches.keys() - far.keys()}
            far = far | layer
        for name in far.keys() - {host}:
            plane = self.fabric.plane(*self.switches[name])
            ways = [n for n in self.near[name] if far.get(n, far[name]) < far[name]]
            hops = " ".join(f"nexthop {self._via(name, n)}" for n in ways)
            yield name, f"route replace {HASHED}:{plane:x}:{number:x}::/48 {hops}"

    def _pin(self, flows: Mapping[int, Flow]) -> None:
        """The routes of flows by their numbers, there and back."""
        lines: dict[str, list[str]] = defaultdict(list)
        for number, flow in flows.items():
            for path in (flow.path, flow.path[::-1]):
                to = self._alias(SEGMENTS, flow.plane, path[-1], number)
                segments = address(flow.plane, segments_of(self.fabric, path))
                wire = self.wire[path[0], path[1]].name
                via = f"encap seg6 mode encap.red segs {segments} dev {wire}"
                lines[path[0]].append(f"route replace {to}/128 {via}")
        for host, mine in lines.items():
            self._set(host, mine)

    def bypass(self, cut: Hop, repaired: Repair) -> tuple[list[Flow], float]:
        """Cuts the link; the flows on their new paths, and how long changing routes took."""
        after = flows_of(repaired.edges, repaired.total, self.fabric)
        self._set(cut[0], [f"link set {self.wire[cut].name} down"])
        start = time.perf_counter()
        pairs = enumerate(zip_longest(after, (flow.path for flow in self.flows)))
        self._pin({k: flow for k, (flow, path) in pairs if flow is not None and flow.path != path})
        return after, time.perf_counter() - start

    def run(
        self, name: str, block: str, flows: Sequence[Flow], size: float, replaced: float = 0.0
    ) -> Trial:
        """All flows at once; `size`: bits of all data."""
        amounts = [max(1, int(size * flow.weight / 8)) for flow in flows]
        left, ends = [*amounts], [0.0] * len(flows)
        try:
            with ExitStack() as stack, DefaultSelector() as selector:
                for k, flow in enumerate(flows):
                    near, far = (self._alias(block, flow.plane, flow.path[e], k) for e in (0, -1))
                    listener, peer = (
                        stack.enter_context(self._socket(flow.path[e])) for e in (-1, 0)
                    )
                    listener.bind((far, PORT + k))
                    listener.listen(1)
                    peer.bind((near, 0))
                    peer.connect((far, PORT + k))
                    other = stack.enter_context(listener.accept()[0])
                    for end, event in ((other, EVENT_READ), (peer, EVENT_WRITE)):
                        end.setblocking(False)
                        selector.register(end, event, (k, end))
                start = time.perf_counter()
                while selector.get_map():
                    ready = selector.select(PATIENCE)
                    if not ready:
                        raise ExecutionError(f"{name}: no flow gets on")
                    for key, event in ready:
                        k, end = key.data
                        if event == EVENT_WRITE:
                            left[k] -= end.send(bytes(min(left[k], 1 << 16)))
                            if not left[k]:
                                selector.unregister(end)
                                end.shutdown(socket.SHUT_WR)
                        elif not end.recv(1 << 16):
                            selector.unregister(end)
                            ends[k] = time.perf_counter()
        except OSError as error:
            raise ExecutionError(f"{name}: {error}") from None
        rates = [8 * n / (end - start) for n, end in zip(amounts, ends, strict=True)]
        return Trial(name, max(ends) - start, tuple(rates), replaced)

    def _socket(self, host: str) -> socket.socket:
        """A socket of that host."""
        with inside(self.network.fds[self.number[host]]):
            peer = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        peer.settimeout(PATIENCE)
        return peer
