"""Calls that the libraries' own tools timed, one by one.

- nccl-tests and rccl-tests, as text or JSON (`-J`): a row a size (NVIDIA/nccl-tests a0b82b2
  src/util.cu). Of JSON the first rank of each process is listed alone.
- The inspector (NVIDIA/nccl 5067397c plugins/profiler/inspector): an object for each call of each
  rank, of all communicators; files of several processes may stand one after the other.
- The example profiler (plugins/profiler/example): events for a browser's trace viewer.

Lines of others may stand between, and the last one may be cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import MEASURED_RANKS

Pair = tuple[int, int]
_ROW = re.compile(
    r"(?m)^[ \t]*(\d+)[ \t]+\d+[ \t]+\S+[ \t]+(\S+)[ \t]+-?\d+[ \t]+([\d.e+]+)[ \t]+[\d.e+]+[ \t]+"
    r"([\d.e+]+)[ \t]+(?:\d+|N/A)"
)
RINGS = frozenset({"allreduce", "allgather", "reducescatter", "broadcast", "reduce"})
"""Collectives whose bus bandwidth is what a ring of all ranks carries, from each to the next."""


class Call(NamedTuple):
    """One timed call: bytes as nccl-tests counts them, microseconds, bus bandwidth in GB/s.

    `algorithm`, `protocol`: lower case, "" unknown; `channels`: 0 unknown.
    """

    collective: str
    size: int
    us: float
    busbw: float
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


@dataclass(slots=True)
class Run:
    """What a tool timed among ranks (`hosts`: of each, "" unknown).

    `rates`: best GB/s from rank to rank, where calls were of pairs.
    """

    tool: str
    hosts: Sequence[str]
    calls: list[Call] = field(default_factory=list)
    rates: dict[Pair, float] = field(default_factory=dict)

    def add(self, pair: Pair, rate: float) -> None:
        """What went from a rank to another."""
        if pair[0] != pair[1] and rate:
            self.rates[pair] = max(rate, self.rates.get(pair, 0.0))

    def add_ring(self, ranks: Sequence[int], rate: float) -> None:
        """Each of the ranks sends to the next; on several hosts the ways between those limit it."""
        hosts = {self.hosts[rank] for rank in ranks}
        for rank, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            if len(hosts) == 1 or self.hosts[rank] != self.hosts[other]:
                self.add((rank, other), rate)


def number(value: object) -> float:
    """A positive number; 0 for none."""
    try:
        size = float(str(value))
    except ValueError:
        return 0.0
    return size if 0 < size < 1e15 else 0.0


def nccl_tests(text: str, source: str) -> Run:
    """The text that nccl-tests print; what NCCL says of its environment is looked for in it."""
    text = re.sub(r"(?m)^\[\d+,\d+\]<std\w+>: ?", "", text)  # mpirun --tag-output
    header = re.findall(r"(?m)^#\s+Rank\s+(\d{1,6})\s+.*?\bon\s+(\S+)\s+device\b", text)
    hosts = {int(rank): host for rank, host in header}
    rows = _ROW.findall(text)
    named = re.search(r"(?m)^# Collective test starting: (\w+)", text)
    sums = any(redop != "none" for _, redop, *_ in rows)
    tool = named[1] if named else "all_reduce_perf" if sums else "sendrecv_perf"
    values = dict(re.findall(r"\b(NCCL_\w+) set by environment to ([\w:;^,]+)", text))
    timed = [(int(size), number(us), number(rate)) for size, _, us, rate in rows]
    return _run(tool, [hosts[rank] for rank in sorted(hosts)], timed, values, source)


def nccl_tests_json(text: str, source: str) -> Run:
    """The file that nccl-tests write with `-J`."""
    value = read_json(text, source)
    config, results = value.get("config"), value.get("results")
    words, env = value.get("args"), value.get("env")
    devices = _of(config, "devices")
    if not (isinstance(devices, list) and isinstance(results, list) and isinstance(words, list)):
        raise TopologyError(f"{source}: nccl-tests: no args, config.devices and results in it")
    per_process = int(number(_of(config, "nthreads")) * number(_of(config, "ngpus"))) or 1
    _check(per_process * len(devices), "nccl-tests", source)
    hosts = [str(_of(one, "hostname")) for one in devices for _ in range(per_process)]
    rows = []
    for row in results:
        sides = [_of(row, side) for side in ("out_of_place", "in_place")]
        if any(number(_of(side, "nwrong")) for side in sides):
            raise TopologyError(f"{source}: wrong results at {_of(row, 'size')} bytes")
        times = [(number(_of(one, "time")), number(_of(one, "bus_bw"))) for one in sides]
        best = min((one for one in times if one[0]), default=(0.0, 0.0))
        rows.append((int(number(_of(row, "size"))), *best))
    pairs = (str(word).partition("=") for word in (env if isinstance(env, list) else []))
    values = {name: value for name, _, value in pairs}
    return _run(str(words[0] if words else "").rpartition("/")[2], hosts, rows, values, source)


def _run(
    tool: str,
    hosts: list[str],
    rows: Sequence[tuple[int, float, float]],
    values: Mapping[str, str],
    source: str,
) -> Run:
    """A run of nccl-tests: rows of (bytes, us, GB/s), under that environment."""
    _check(len(hosts), tool, source)
    name = tool.removesuffix("_perf").replace("_", "")
    algorithm, protocol = (_choice(values, name, key) for key in ("NCCL_ALGO", "NCCL_PROTO"))
    limits = {values.get(f"NCCL_{end}_NCHANNELS", "") for end in ("MIN", "MAX")}
    channels = int(number(limits.pop())) if len(limits) == 1 else 0
    calls = [Call(name, *row, algorithm, protocol, channels) for row in rows if row[0] and row[1]]
    return Run(tool, hosts, calls)


def _choice(values: Mapping[str, str], collective: str, name: str) -> str:
    """The one algorithm or protocol that the variable leaves a collective."""
    for part in values.get(name, "").lower().split(";"):
        head, _, words = part.strip().rpartition(":")
        if head in ("", collective) and re.fullmatch(r"\w+", words):
            return words
    return ""


def inspector(text: str, source: str) -> Run:
    """Sends from rank to rank; where there are none, collectives of communicators in one host.

    Ranks are those of the largest communicator; others are mapped to them by their processes.
    """
    calls = []
    members: dict[tuple[str, int], tuple[str, object]] = {}  # rank of a communicator: its process
    sizes: dict[str, int] = {}
    for call in _objects(text, r'\{\s*"header"\s*:'):
        head, data = call.get("header"), call.get("metadata")
        rank, ranks, name = _of(head, "rank"), _of(head, "n_ranks"), str(_of(head, "id"))
        if type(rank) is type(ranks) is int and 0 <= rank < ranks:
            sizes[name] = ranks
            members[name, rank] = str(_of(data, "hostname")), _of(data, "pid")
            calls.append((name, rank, _of(head, "nnodes"), call))
    largest = max(sizes, key=lambda name: sizes[name], default="")
    ranks = sizes.get(largest, 0)
    _check(ranks, "inspector", source)
    world = {process: rank for (name, rank), process in members.items() if name == largest}
    if len(world) < sum(name == largest for name, _ in members):
        world = {}  # several ranks a process: others cannot be mapped

    def place(name: str, rank: int) -> int:
        return rank if name == largest else world.get(members.get((name, rank), ("", None)), -1)

    for name, size in sizes.items():
        if size == ranks and place(name, 0) < 0:
            raise TopologyError(
                f"{source}: inspector: two communicators of {ranks} ranks and none of all: give "
                "the lines of one of them"
            )
    run = Run("inspector", [members.get((largest, k), ("", 0))[0] for k in range(ranks)])
    rings: dict[str, float] = {}
    for name, rank, nodes, call in calls:
        coll, sent = call.get("coll_perf"), call.get("p2p_perf")
        peer = _of(sent, "p2p_peer")
        if str(_of(coll, "coll")).lower() in RINGS and nodes == 1:
            rings[name] = max(rings.get(name, 0.0), number(_of(coll, "coll_busbw_gbs")))
        if type(peer) is int and 0 <= peer < sizes[name]:
            ends = place(name, rank), place(name, peer)
            pair = ends if _of(sent, "p2p") == "Send" else (ends[1], ends[0])
            run.add(pair, number(_of(sent, "p2p_algobw_gbs")) if min(ends) >= 0 else 0)
    for name, rate in [] if run.rates else rings.items():
        ring = [place(name, rank) for rank in range(sizes[name])]
        if min(ring) >= 0:
            run.add_ring(ring, rate)
    return run


def profiler(text: str, source: str) -> Run:
    """Sends from rank to rank, and collectives with the algorithm that each took."""
    began: dict[tuple[object, ...], dict[str, Any]] = {}
    timed = []
    for event in _objects(text, r'\{\s*"name"\s*:'):
        key = tuple(event.get(name) for name in ("cat", "name", "pid", "tid", "id"))
        if event.get("ph") == "b":
            began[key] = event
        elif key in began and key[0] in ("COLL", "P2P"):
            start = began.pop(key)
            us = number(event.get("ts")) - number(start.get("ts"))
            timed += [(start, start.get("args"), us)] if us > 0 else []
    ends = [_of(args, name) for _, args, _ in timed for name in ("Rank", "Peer")]
    ranks = 1 + max((end for end in ends if type(end) is int), default=0)
    _check(ranks, "profiler", source)
    run = Run("profiler", [""] * ranks)
    for event, args, us in timed:
        name, pair = str(event.get("name")), (_of(args, "Rank"), _of(args, "Peer"))
        size = int(number(_of(args, "Count")) * _bytes(str(_of(args, "Datatype"))))
        if name == "Send" and type(pair[0]) is type(pair[1]) is int and min(pair) >= 0:
            run.add(pair, size / us / 1000)
        elif event.get("cat") == "COLL" and size:
            size *= ranks if name in ("AllGather", "ReduceScatter") else 1
            algorithm, protocol = (str(_of(args, key)).lower() for key in ("Algorithm", "Protocol"))
            channels = int(number(_of(args, "nChannels")))
            run.calls.append(Call(name.lower(), size, us, 0.0, algorithm, protocol, channels))
    return run


def _check(ranks: int, tool: str, source: str) -> None:
    if ranks < 2:
        raise TopologyError(f"{source}: {tool}: calls of {ranks} ranks in it; two are needed")
    if ranks > MEASURED_RANKS:
        raise TopologyError(f"{source}: {tool}: {ranks:,} ranks {MEASURED_RANKS.note}")


def _bytes(datatype: str) -> int:
    """Of an element: the first number of `ncclFloat16` is its bits."""
    bits = re.search(r"\d+", datatype)
    return int(bits[0]) // 8 if bits else 0


def _of(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _objects(text: str, sign: str) -> Iterator[dict[str, Any]]:
    """The objects of JSON that begin with the sign, whatever stands between them."""
    decoder, end = json.JSONDecoder(), 0
    for start in re.finditer(sign, text):
        if start.start() < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue  # cut off
        if isinstance(value, dict):
            yield value


def read_json(text: str, source: str) -> dict[str, Any]:
    """The one object that a text is. TopologyError if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{source}: not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise TopologyError(f"{source}: not a JSON object")
    return value


READERS = (
    (r'"(coll|p2p)_perf"\s*:', inspector),
    (r'"cat"\s*:\s*"(COLL|P2P|GROUP|PROXY)', profiler),
    (r'"nccl_version"\s*:|"bus_bw"\s*:', nccl_tests_json),
    (r"(?m)^(?:\[\d+,\d+\]<std\w+>: ?)?#\s+Rank\s+\d+\s", nccl_tests),
)
"""How each is known."""


def read(text: str, source: str) -> Run:
    """What `text` says, of whichever tool. TopologyError where it is of none."""
    reader = next((reader for sign, reader in READERS if re.search(sign, text)), None)
    if reader is None:
        raise TopologyError(f"{source}: not the output of nccl-tests, an inspector or a profiler")
    return reader(text, source)
