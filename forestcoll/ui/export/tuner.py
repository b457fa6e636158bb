"""A table for NVIDIA's example tuner plugin: what a call of some size takes, by measured sweeps.

The plugin takes the first row that fits a call and is no choice that the library excludes
(NVIDIA/nccl 5067397c plugins/tuner/example/plugin.c). A call without a row, and one whose row says
-1 channels, gets one channel alone: the plugin begins with 1, and src/enqueue.cc takes its word. So
all sizes have rows, all rows have channels, and the last ones are for everything else, other
communicators of the job as well. It takes names that it does not know for ring and Simple, and
reads 255 characters of a line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isqrt
from statistics import median

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape, file_name
from forestcoll.topology.calibrate.calls import RINGS, read
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.view import Subject

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
    """The one file. UnsupportedError without measurements, or where they miss their choice."""
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
