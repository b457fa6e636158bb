"""A fabric of network namespaces: one a GPU and one a switch, joined by shaped veth pairs.

Namespaces have no names: this process holds them open, and they are gone with their links when it
and the ranks in them are, however that comes about. Nothing is left to clean up, not even after
kill -9. (To look into one while it is there: nsenter --net=/proc/PID/fd/FD, see `Network.fds`.)
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.routes import Pair, Routes

CLONE_NEWNET = 0x40000000
PACKET_SECONDS = 0.02
"""How long a packet may take on the slowest link: larger ones have less overhead."""
PACKETS = (1500, 9000)
"""Bytes of a packet, least and most."""
BURST_SECONDS = 0.1
"""What a link that was idle may make up for: it has its bandwidth on average over this time. So
what hosts take to react, which grows with nothing, does not count as bandwidth lost."""
QUEUE = 4 << 20
"""Bytes that wait for a link before packets are dropped; senders fill less than that."""
SEND_BUFFER, RECEIVE_BUFFER = 256 << 10, 1 << 20
"""Of a socket. Much in flight hides that processes wait for a processor; too much delays others."""
SLOWEST = 200_000
"""Bits a second that every link must have."""
GATEWAY = "169.254.0.1"
_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    # Nothing is lost here, so that its window just grows; others (bbr) slow down to look around.
    "net/ipv4/tcp_congestion_control": "reno",
}


def lacking() -> str:
    """Why this machine cannot build a fabric, and what to do; empty if it can."""
    if not Path("/proc/self/ns/net").exists():
        return "the lab needs Linux with network namespaces"
    reasons = []
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        reasons.append(f"the lab needs {' and '.join(missing)} (Debian: iproute2)")
    if os.geteuid() != 0:
        reasons.append(
            "the lab makes network namespaces and links, which takes root: run it with sudo"
        )
    if reasons:
        return "; ".join(reasons)
    return _works()


def _works() -> str:
    """What the kernel says against it; nothing is left of the attempt."""
    try:
        with inside(None):
            batch("ip", ["link add v0 type veth peer name v1"])
            batch("tc", ["qdisc add dev v0 root tbf rate 1mbit burst 3000 limit 10000"])
    except (OSError, ExecutionError) as error:
        return f"the lab cannot make namespaces, veth links and tbf queues here: {error}"
    return ""


DEFAULT_RATE = 60.0
"""Mbit/s that all ranks take in, a processor: little enough that processors are not what limits."""
MORE = 4
"""Times the default rate, for a link that would be too slow to measure."""


def scale_of(graph: CapacityGraph, rate: float) -> Fraction:
    """Bits a second for each GB/s, where all ranks take in `rate` Mbit/s together.

    Without a rate the default, or up to MORE times that where the slowest link needs it.
    """
    wanted = int((rate or DEFAULT_RATE * len(os.sched_getaffinity(0))) * 1e6)
    into = sum(graph.bandwidth(e) for e, head in enumerate(graph.head) if head in graph.ranks)
    scale, slowest = Fraction(wanted) / into, graph.unit * min(graph.capacity)
    return scale if rate else max(scale, min(SLOWEST / slowest, MORE * scale))


def address(rank: int) -> str:
    """The address of a rank."""
    return f"10.77.{rank // 250}.{rank % 250 + 1}"


class VethPair(NamedTuple):
    """A link and its way back, as one veth pair: node `a`'s end is `l<number>`, so is `b`'s."""

    number: int
    a: int
    b: int
    there: int  # bits a second from a to b; 0: no such link
    back: int

    @property
    def name(self) -> str:
        """Of both ends."""
        return f"l{self.number}"

    def mac(self, node: int) -> str:
        """Of the end at `node`."""
        end = 1 if node == self.a else 2
        return f"02:fc:{self.number >> 16 & 255:02x}:{self.number >> 8 & 255:02x}:" + (
            f"{self.number & 255:02x}:{end:02x}"
        )


def veth_pairs(graph: CapacityGraph, scale: Fraction) -> list[VethPair]:
    """The graph's links, `scale` bits a second for each GB/s."""
    rates = {
        (tail, head): int(graph.bandwidth(e) * scale) for e, (tail, head) in enumerate(graph.ends)
    }
    pairs = sorted({(min(pair), max(pair)) for pair in rates})
    return [
        VethPair(k, a, b, rates.get((a, b), 0), rates.get((b, a), 0))
        for k, (a, b) in enumerate(pairs)
    ]


class Table(NamedTuple):
    """What one node does with packets: by destination rank, or by source and destination."""

    to: dict[int, int]  # rank -> next node
    between: dict[Pair, int]  # exceptions


def tables(routes: Routes) -> dict[int, Table]:
    """Every node's table, such that packets between any two ranks take their way."""
    steps: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for (i, j), path in routes.ways.items():
        for here, there in pairwise(path):
            steps[here][j][i] = there
    result = {}
    for node, by_target in steps.items():
        to, between = {}, {}
        for j, by_source in by_target.items():
            to[j] = Counter(by_source.values()).most_common(1)[0][0]
            between.update({(i, j): there for i, there in by_source.items() if there != to[j]})
        result[node] = Table(to, between)
    return result


class Network:
    """The fabric of a graph, while the `with` lasts.

    `scale`: bits a second for each GB/s. Raises UnsupportedError where this machine cannot,
    ExecutionError where `ip` or `tc` refuse.
    """

    def __init__(self, graph: CapacityGraph, scale: Fraction) -> None:
        reason = lacking()
        if reason:
            raise UnsupportedError(reason)
        self.graph, self.wires = graph, veth_pairs(graph, scale)
        slowest = min(rate for w in self.wires for rate in (w.there, w.back) if rate)
        if slowest < SLOWEST:
            raise UnsupportedError(
                f"the slowest link would have {slowest / 1e6:.3g} Mbit/s: too slow to measure; "
                "choose a higher --rate, or links that differ less"
            )
        least, most = PACKETS
        self.packet = max(least, min(most, int(slowest * PACKET_SECONDS / 8)))
        self.fds: list[int] = []  # of each node's namespace, and of `control`
        self._rank = graph.rank_of
        self.near: dict[int, dict[int, VethPair]] = defaultdict(dict)  # node -> peer -> their link
        for w in self.wires:
            self.near[w.a][w.b] = self.near[w.b][w.a] = w

    def __enter__(self) -> Network:
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def space(self, rank: int) -> str:
        """A path by which a process of root can enter a rank's namespace."""
        return self._path(self.graph.ranks[rank])

    @property
    def control(self) -> str:
        """The same of a namespace besides the fabric, where ranks tell each other how they are."""
        return self._path(self.graph.n)

    def _path(self, number: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fds[number]}"

    def route(self, routes: Routes) -> None:
        """Let packets between any two ranks take these ways; earlier ones are forgotten."""
        routing_tables = tables(routes)
        for node in range(self.graph.n):
            lines = self._table(node, routing_tables.get(node, Table({}, {})))
            with inside(self.fds[node]):
                batch("ip", lines)

    def counters(self) -> dict[tuple[int, int], int]:
        """Bytes that have gone over each link (node, node) so far, with all headers."""
        counters = {}
        for node in range(self.graph.n):
            peers = {wire.name: peer for peer, wire in self.near[node].items()}
            with inside(self.fds[node]):
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            for line in lines:
                name, _, numbers = line.strip().partition(":")
                if name in peers:
                    counters[node, peers[name]] = int(numbers.split()[8])
        return counters

    def _build(self) -> None:
        for _ in range(self.graph.n + 1):
            with inside(None):
                self.fds.append(os.open(_OWN, os.O_RDONLY))
        for wire in self.wires:
            there = self._path(wire.b)
            with inside(self.fds[wire.a]):
                batch(
                    "ip",
                    [
                        f"link add {wire.name} mtu {self.packet} address {wire.mac(wire.a)} "
                        f"type veth peer name {wire.name} mtu {self.packet} "
                        f"address {wire.mac(wire.b)} netns {there}"
                    ],
                )
        for node in range(self.graph.n):
            with inside(self.fds[node]):
                self._set_up(node)
        with inside(self.fds[-1]):
            batch("ip", ["link set lo up"])

    def _set_up(self, node: int) -> None:
        settings = dict(_SETTINGS)
        for which, size in (("rmem", RECEIVE_BUFFER), ("wmem", SEND_BUFFER)):
            settings[f"net/ipv4/tcp_{which}"] = f"4096 {size} {size}"
        for name, value in settings.items():
            path = Path("/proc/sys") / name
            if path.exists():
                path.write_text(value)
        lines, queues = ["link set lo up", "addr flush dev lo"], []
        if node in self._rank:
            lines.append(f"addr add {address(self._rank[node])}/32 dev lo")
        for peer, wire in self.near[node].items():
            lines.append(f"link set {wire.name} up")
            lines.append(
                f"neigh replace {GATEWAY} lladdr {wire.mac(peer)} dev {wire.name} nud permanent"
            )
            rate = wire.there if node == wire.a else wire.back
            if rate:
                burst = max(2 * self.packet + 100, int(rate * BURST_SECONDS / 8))
                queues.append(
                    f"qdisc replace dev {wire.name} root tbf rate {rate}bit "
                    f"burst {burst} limit {QUEUE}"
                )
        batch("ip", lines)
        batch("tc", queues)

    def _table(self, node: int, table: Table) -> list[str]:
        by_peer = self.near[node]
        source = f" src {address(self._rank[node])}" if node in self._rank else ""
        lines = ["route flush scope global", "rule flush"]
        lines += ["rule add pref 32766 lookup main"]
        for rank, there in sorted(table.to.items()):
            name = by_peer[there].name
            lines.append(
                f"route replace {address(rank)}/32 via {GATEWAY} dev {name} onlink{source}"
            )
        for there in sorted(set(table.between.values())):
            wire = by_peer[there]
            lines.append(
                f"route replace default via {GATEWAY} dev {wire.name} onlink "
                f"table {1000 + wire.number}"
            )
        for (i, j), there in sorted(table.between.items()):
            lines.append(
                f"rule add pref 1000 from {address(i)} to {address(j)} "
                f"lookup {1000 + by_peer[there].number}"
            )
        return lines

    def _close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


# --- namespaces -----------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_OWN = "/proc/thread-self/ns/net"


def _ask(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), function)


def enter(fd: int) -> None:
    """Move the calling thread into a network namespace."""
    _ask("setns", fd, CLONE_NEWNET)


@contextmanager
def inside(fd: int | None) -> Iterator[None]:
    """The calling thread in a namespace (None: a new one) for a while.

    Processes that it starts are there too.
    """
    home = os.open(_OWN, os.O_RDONLY)
    try:
        if fd is None:
            _ask("unshare", CLONE_NEWNET)
        else:
            enter(fd)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)


def batch(tool: str, lines: list[str]) -> None:
    """Commands of `ip` or `tc`, all at once, in the namespace of the calling thread."""
    if not lines:
        return
    done = subprocess.run(
        [tool, "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise ExecutionError(f"{tool} refused: {said}")
