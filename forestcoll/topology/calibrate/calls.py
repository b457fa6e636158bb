"""What tools measured between GPUs, and the calls that libraries' own tools timed, one by one.

- nvbandwidth, as text or JSON: the tests from device to device, one way; where several were run,
  the best of each pair. The arrow of the title says which way a row reads.
- p2pBandwidthLatencyTest (CUDA samples): the matrices "Unidirectional P2P=Enabled" and the latency
  with P2P enabled; row to column.
- nccl-tests and rccl-tests, as text or JSON (`-J`): a row a size (NVIDIA/nccl-tests a0b82b2
  src/util.cu). Of JSON the first rank of each process is listed alone. sendrecv_perf: every rank to
  the next, all at once, the best size; on several hosts between those alone. Collectives in one
  host by their bus bandwidth.
- The inspector (NVIDIA/nccl 5067397c plugins/profiler/inspector): an object for each call of each
  rank, of all communicators; files of several processes may stand one after the other.
- The example profiler (plugins/profiler/example): events for a browser's trace viewer.
- `forestcoll measure`: JSON, each pair by itself.

Lines of others may stand between calls, and the last one may be cut off. Calls of pairs: the best
of each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import DUMP_BYTES, MEASURED_RANKS

Pair = tuple[int, int]
_ROW = re.compile(
    r"(?m)^[ \t]*(\d+)[ \t]+\d+[ \t]+\S+[ \t]+(\S+)[ \t]+-?\d+[ \t]+([\d.e+]+)[ \t]+[\d.e+]+[ \t]+"
    r"([\d.e+]+)[ \t]+(\d+|N/A)(?:(?:[ \t]+[\d.e+]+){3}[ \t]+(\d+|N/A))?"
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
        if pair[0] != pair[1] and min(pair) >= 0 and rate:
            self.rates[pair] = max(rate, self.rates.get(pair, 0.0))

    def add_ring(self, ranks: Sequence[int], rate: float) -> None:
        """Each of the ranks sends to the next; on several hosts the ways between those limit it."""
        if min(ranks) < 0:
            return  # of others
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


def whole(value: object) -> int:
    """A whole number from 0 on; -1 for none."""
    return value if type(value) is int and value >= 0 else -1


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
    for size, *_, wrong, also in rows:
        if number(wrong) or number(also):
            raise TopologyError(f"{source}: wrong results at {size} bytes")
    timed = [(int(size), number(us), number(rate)) for size, _, us, rate, *_ in rows]
    return _run(tool, [hosts[rank] for rank in sorted(hosts)], timed, values, source)


def nccl_tests_json(text: str, source: str) -> Run:
    """The file that nccl-tests write with `-J`."""
    value = _flat(read_json(text, source))
    devices, results, words = (value.get(key) for key in ("config.devices", "results", "args"))
    if not (isinstance(devices, list) and isinstance(results, list) and isinstance(words, list)):
        raise TopologyError(f"{source}: nccl-tests: no args, config.devices and results in it")
    each = int(number(value.get("config.nthreads")) * number(value.get("config.ngpus"))) or 1
    _check(each * len(devices), "nccl-tests", source)
    hosts = [str(_flat(one).get("hostname")) for one in devices for _ in range(each)]
    rows = []
    for row in map(_flat, results):
        size, sides = int(number(row.get("size"))), ("out_of_place", "in_place")
        if any(number(row.get(f"{side}.nwrong")) for side in sides):
            raise TopologyError(f"{source}: wrong results at {size} bytes")
        times = [
            (number(row.get(f"{side}.time")), number(row.get(f"{side}.bus_bw"))) for side in sides
        ]
        rows.append((size, *min((one for one in times if one[0]), default=(0.0, 0.0))))
    values = dict(str(word).partition("=")[::2] for word in value.get("env") or ())
    return _run(str(next(iter(words), "")).rpartition("/")[2], hosts, rows, values, source)


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
    """The algorithm or protocol that the variable leaves a collective; "" of several."""
    head, _, word = values.get(name, "").lower().rpartition(":")
    return word if head in ("", collective) else ""


def inspector(text: str, source: str) -> Run:
    """Sends from rank to rank; where there are none, collectives of communicators in one host.

    Ranks are those of the largest communicator; others are mapped to them by their processes.
    """
    calls: list[tuple[str, int, dict[str, Any]]] = []
    members: dict[tuple[str, int], tuple[str, str]] = {}  # rank of a communicator: host, process
    sizes: dict[str, int] = {}
    for call in _objects(text, r'\{\s*"header"\s*:'):
        name, rank = str(call.get("header.id")), whole(call.get("header.rank"))
        if 0 <= rank < whole(call.get("header.n_ranks")):
            sizes[name] = call["header.n_ranks"]
            host, process = (str(call.get(f"metadata.{key}")) for key in ("hostname", "pid"))
            members[name, rank] = host, process
            calls.append((name, rank, call))
    largest = max(sizes, key=lambda name: sizes[name], default="")
    ranks = sizes.get(largest, 0)
    _check(ranks, "inspector", source)
    own = {rank: member for (name, rank), member in members.items() if name == largest}
    world = {member: rank for rank, member in own.items()}
    if len(world) < len(own):
        world = {}  # several ranks a process: others cannot be mapped

    def place(name: str, rank: int) -> int:
        return rank if name == largest else world.get(members.get((name, rank), ("", "")), -1)

    if any(size == ranks and place(name, 0) < 0 for name, size in sizes.items()):
        raise TopologyError(
            f"{source}: inspector: two communicators of {ranks} ranks and none of all: give the "
            "lines of one of them"
        )
    run = Run("inspector", [own.get(rank, ("", ""))[0] for rank in range(ranks)])
    rings: dict[str, float] = {}
    for name, rank, call in calls:
        peer = whole(call.get("p2p_perf.p2p_peer"))
        if 0 <= peer < sizes[name]:
            pair = place(name, rank), place(name, peer)
            sent = call.get("p2p_perf.p2p") == "Send"
            run.add(pair if sent else pair[::-1], number(call.get("p2p_perf.p2p_algobw_gbs")))
        elif call.get("header.nnodes") == 1 and str(call.get("coll_perf.coll")).lower() in RINGS:
            rings[name] = max(rings.get(name, 0), number(call.get("coll_perf.coll_busbw_gbs")))
    for name, rate in [] if run.rates else rings.items():
        run.add_ring([place(name, rank) for rank in range(sizes[name])], rate)
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
            timed.append((start, number(event.get("ts")) - number(start.get("ts"))))
    ends = [whole(call.get(f"args.{key}")) for call, _ in timed for key in ("Rank", "Peer")]
    ranks = 1 + max(ends, default=0)
    _check(ranks, "profiler", source)
    run = Run("profiler", [""] * ranks)
    for call, us in timed:
        name, bits = call.get("name"), re.search(r"\d+", str(call.get("args.Datatype")))
        size = int(number(call.get("args.Count"))) * int(bits[0] if bits else 0) // 8
        if name == "Send" and us > 0:
            pair = whole(call.get("args.Rank")), whole(call.get("args.Peer"))
            run.add(pair, size / us / 1000)
        elif call.get("cat") == "COLL" and us > 0:
            size *= ranks if name in ("AllGather", "ReduceScatter") else 1
            algorithm, protocol = (
                str(call.get(f"args.{key}")).lower() for key in ("Algorithm", "Protocol")
            )
            channels = whole(call.get("args.nChannels"))
            run.calls.append(Call(str(name).lower(), size, us, 0, algorithm, protocol, channels))
    return run


def _check(ranks: int, tool: str, source: str) -> None:
    if ranks < 2:
        raise TopologyError(f"{source}: {tool}: calls of {ranks} ranks in it; two are needed")
    if ranks > MEASURED_RANKS:
        raise TopologyError(f"{source}: {tool}: {ranks:,} ranks {MEASURED_RANKS.note}")


def _flat(value: object) -> dict[str, Any]:
    """An object whose objects are names with a dot; {} where it is none."""
    flat = dict(value) if isinstance(value, dict) else {}
    for name, one in [*flat.items()]:
        if isinstance(one, dict):
            flat |= {f"{name}.{key}": each for key, each in one.items()}
    return flat


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
        yield _flat(value)


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
        raise TopologyError(
            f"{source}: not the output of nvbandwidth, p2pBandwidthLatencyTest, nccl-tests, "
            "rccl-tests, NCCL's inspector or example profiler, or 'forestcoll measure'"
        )
    return reader(text, source)


FORMAT = "forestcoll.measured/1"


@dataclass(slots=True)
class Measured:
    """GB/s and microseconds from rank to rank; `tool` says what measured it."""

    tool: str
    ranks: int
    rates: dict[Pair, float] = field(default_factory=dict)
    latencies: dict[Pair, float] = field(default_factory=dict)
    together: bool = False  # all pairs at once, so that they share what they share


def load_measurement(text: str, source: str) -> Measured:
    """What `text` says, in the format that it is recognised to be in.

    Raises `TopologyError` for another format, a matrix cut off, and where nothing was measured.
    """
    if len(text) > DUMP_BYTES:
        raise TopologyError(f"{source}: larger than {DUMP_BYTES // 2**20} MiB {DUMP_BYTES.note}")
    reader = next((way for sign, way in MATRICES if re.search(sign, text)), None)
    measured = reader(text, source) if reader else _pairs_of(read(text, source), source)
    if not measured.rates:
        raise TopologyError(f"{source}: {measured.tool}: no bandwidth between two GPUs in it")
    if measured.ranks > MEASURED_RANKS:
        raise TopologyError(f"{source}: {measured.ranks:,} ranks {MEASURED_RANKS.note}")
    return measured


def dump_measurement(measured: Measured) -> str:
    """The same as a file of our own format."""
    pairs = [
        {"from": i, "to": j, "GB/s": rate, "us": measured.latencies.get((i, j))}
        for (i, j), rate in sorted(measured.rates.items())
    ]
    value = {"format": FORMAT, "tool": measured.tool, "ranks": measured.ranks, "pairs": pairs}
    return json.dumps(value, indent=1) + "\n"


# Matrices

Matrix = tuple[str, dict[Pair, float], int]
"""Its title, values by row and column, size."""


def _matrices(text: str, source: str) -> Iterator[Matrix]:
    """Every matrix of a text: a line of numbers 0 1 2 ..., rows."""
    lines = text.split("\n")
    index = 0
    title = ""  # the last line that is not empty
    while index < len(lines):
        heads = [word for word in lines[index].split() if word not in ("D\\D", "GPU", "CPU")]
        size = len(heads)
        if size == 0 or heads != [str(k) for k in range(size)] or size > MEASURED_RANKS:
            title = lines[index] if lines[index].strip() else title
            index += 1
            continue
        unit = re.search(r"\((?!GB)\w+/s\)", title)
        if unit is not None:
            raise TopologyError(f"{source}:{index}: {unit[0]} where GB/s are expected")
        values: dict[Pair, float] = {}
        for row in range(size):
            index += 1
            words = lines[index].split() if index < len(lines) else []
            if len(words) != size + 1 or words[0] != str(row):
                raise TopologyError(
                    f"{source}:{index + 1}: row {row} of '{title.strip()[:60]}' is cut off or no "
                    f"row: {size} values are expected"
                )
            for column, word in enumerate(words[1:]):
                number = _number(word)
                if number is not None and row != column:
                    values[row, column] = number
        yield title, values, size
        title = lines[index]
        index += 1


def _number(word: str) -> float | None:
    """A positive number; None for N/A and the like."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 < number < 1e9 else None


def _best(rates: dict[Pair, float], values: dict[Pair, float], back: bool = False) -> None:
    """Keeps the best of each pair; `back`: rows are receivers."""
    for (i, j), value in values.items():
        pair = (j, i) if back else (i, j)
        rates[pair] = max(value, rates.get(pair, 0.0))


def _nvbandwidth(
    matrices: Callable[[str, str], Iterator[Matrix]], text: str, source: str
) -> Measured:
    measured = Measured("nvbandwidth", 0)
    for title, values, size in matrices(text, source):
        if not re.search(r"GPU\(\w+\)\s*(->|<-|<->)\s*GPU\(\w+\)", title):
            continue  # between a GPU and the processor
        measured.ranks = max(measured.ranks, size)
        if "atency" in title:
            measured.latencies |= {pair: value / 1000 for pair, value in values.items()}  # from ns
        elif "<->" not in title and "idirectional" not in title:
            _best(measured.rates, values, "<-" in title)
    return measured


def _json_matrices(text: str, source: str) -> Iterator[Matrix]:
    tests = read_json(text, source).get("nvbandwidth")
    cases = tests.get("testcases") if isinstance(tests, dict) else None
    if not isinstance(cases, list):
        raise TopologyError(f"{source}: nvbandwidth: no list of testcases in it")
    for case in cases:
        matrix = case.get("bandwidth_matrix") if isinstance(case, dict) else None
        if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
            continue
        if any(len(row) != len(matrix) for row in matrix) or len(matrix) > MEASURED_RANKS:
            continue
        numbers = {
            (i, j): _number(str(cell))
            for i, row in enumerate(matrix)
            for j, cell in enumerate(row)
            if i != j
        }
        values = {pair: number for pair, number in numbers.items() if number is not None}
        yield str(case.get("bandwidth_description", "")), values, len(matrix)


def _p2p_test(text: str, source: str) -> Measured:
    measured = Measured("p2pBandwidthLatencyTest", 0)
    for title, values, size in _matrices(text, source):
        measured.ranks = max(measured.ranks, size)
        if "P2P=Enabled" not in title:
            continue
        if "atency" in title:
            measured.latencies |= values
        elif title.lstrip().startswith("Unidirectional"):
            _best(measured.rates, values)
    return measured


def _pairs_of(run: Run, source: str) -> Measured:
    """Calls of a library as what went between pairs of its ranks."""
    names = {call.collective for call in run.calls if call.busbw}
    as_rings = names <= ({"sendrecv"} if len({*run.hosts}) > 1 else RINGS | {"sendrecv"})
    if names and as_rings and not run.rates:
        run.add_ring(range(len(run.hosts)), max(call.busbw for call in run.calls))
    if not run.rates:
        raise TopologyError(
            f"{source}: {run.tool}: no bandwidth between two GPUs in it: sends tell that "
            "(sendrecv_perf), and collectives that go round in one host"
        )
    return Measured(run.tool, len(run.hosts), run.rates, together=True)


def _own(text: str, source: str) -> Measured:
    value = read_json(text, source)
    ranks, pairs = value.get("ranks"), value.get("pairs")
    if value.get("format") != FORMAT or not isinstance(ranks, int) or not isinstance(pairs, list):
        raise TopologyError(f"{source}: not a file of format '{FORMAT}' with ranks and pairs")
    measured = Measured(str(value.get("tool", "forestcoll measure"))[:60], ranks)
    for place, entry in enumerate(pairs):
        one, two = (entry.get("from"), entry.get("to")) if isinstance(entry, dict) else (0, None)
        if not (type(one) is type(two) is int and 0 <= one < ranks and 0 <= two < ranks):
            raise TopologyError(f"{source}: pairs[{place}]: 'from' and 'to' must be two ranks")
        pair = one, two
        rate, late = (_number(str(entry.get(key))) for key in ("GB/s", "us"))
        if pair[0] != pair[1] and rate is not None:
            measured.rates[pair] = rate
        if pair[0] != pair[1] and late is not None:
            measured.latencies[pair] = late
    return measured


MATRICES: tuple[tuple[str, Callable[[str, str], Measured]], ...] = (
    (r'"format"\s*:\s*"forestcoll\.measured/', _own),
    (r'"nvbandwidth"\s*:', partial(_nvbandwidth, _json_matrices)),
    (r"P2P=(Enabled|Disabled)", _p2p_test),
    (r"memcpy (CE|SM) .{0,200}GPU\(", partial(_nvbandwidth, _matrices)),
)
