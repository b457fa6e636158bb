"""What tools measured between GPUs: nvbandwidth, p2pBandwidthLatencyTest, libraries, our own.

- nvbandwidth, as text or JSON: the tests from device to device, one way; where several were run,
  the best of each pair. The arrow of the title says which way a row reads.
- p2pBandwidthLatencyTest (CUDA samples): the matrices "Unidirectional P2P=Enabled" and the latency
  with P2P enabled; row to column.
- nccl-tests and rccl-tests, the inspector, the example profiler (`calls`): sendrecv_perf, every
  rank to the next, all at once, the best size; on several hosts between those alone. Collectives in
  one host by their bus bandwidth. Calls of pairs: the best of each.
- `forestcoll measure`: JSON, each pair by itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import DUMP_BYTES, MEASURED_RANKS
from forestcoll.topology.calibrate import calls
from forestcoll.topology.calibrate.calls import RINGS, Pair, Run, read_json

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
    reader = next((read for sign, read in READERS if re.search(sign, text)), None)
    measured = reader(text, source) if reader else _pairs_of(calls.read(text, source), source)
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


READERS: tuple[tuple[str, Callable[[str, str], Measured]], ...] = (
    (r'"format"\s*:\s*"forestcoll\.measured/', _own),
    (r'"nvbandwidth"\s*:', partial(_nvbandwidth, _json_matrices)),
    (r"P2P=(Enabled|Disabled)", _p2p_test),
    (r"memcpy (CE|SM) .{0,200}GPU\(", partial(_nvbandwidth, _matrices)),
)
