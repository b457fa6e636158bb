"""The calendar: which bytes are ready when, and which are needed when."""

from __future__ import annotations

from pathlib import Path

import pytest
from artefacts import ROOT
from command_line import as_json
from notation import parse
from test_simulate import EXACT, fabric

from forestcoll import plans
from forestcoll.common.errors import ForestCollError
from forestcoll.program import Program
from forestcoll.program.tiles import read_order, tiles
from forestcoll.study import predict
from forestcoll.verify import simulate, verify
from forestcoll.verify.simulate import Calendar, Entry, Options

FREE = Options(latency=0, signal=0)
MIB = 2**20
SIGNAL = 2.5
"""Microseconds: the end of a MSCCL++ plan may be a signal that frees a buffer."""
SLICE = 2 * MIB
"""Of a message of MSCCL's protocol Simple."""
STORED = sorted(
    path
    for plans_of in ("dgx-a100-2/*", "dgx1-v100-1/*", "mi250-1/all*")
    for path in (ROOT / "schedules").glob(f"{plans_of}.ms*")
)


def covered(entries: tuple[Entry, ...]) -> list[tuple[int, int]]:
    """The parts that entries cover, by offset; those that adjoin are one. None overlap."""
    parts: list[tuple[int, int]] = []
    for offset, count, _ in sorted(entries):
        assert not parts or parts[-1][1] <= offset
        start = parts.pop()[0] if parts and parts[-1][1] == offset else offset
        parts.append((start, offset + count))
    return parts


def at(entries: tuple[Entry, ...], offset: int) -> float:
    """The time of one byte."""
    (us,) = (e.us for e in entries if e.offset <= offset < e.offset + e.bytes)
    return us


def of(program: Program, path: Path, size: int) -> Calendar:
    site = predict.beside(program, path)[0]
    assert site is not None
    return simulate.calendar(program, site.site.where, size, links=site.site.links)


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_byte_is_ready_once_and_the_last_at_the_end(path: Path) -> None:
    """And no byte of a result is ready before all that it is made of was needed.

    XML cuts messages of 16 MiB into slices; of the other format a size is as good as another.
    """
    program = plans.loads(path.read_text(), str(path))
    prediction = predict.beside(program, path)[0]
    assert prediction is not None
    for size in (MIB,) if path.suffix == ".json" else (16 * MIB,):
        found = of(program, path, size)
        site = prediction.site
        assert found.time == simulate.run(program, site.where, size, links=site.links).time
        last = max(entry.us for entries in found.outputs for entry in entries)
        assert found.time - SIGNAL < last <= found.time
        if path.name.endswith("xml"):
            assert last == found.time
        n, collective = program.n, program.collective
        parts, taken = collective.output_parts(n), collective.input_parts(n)
        whole = size // max(parts, taken)
        special = collective.definition.root
        for rank in range(n):
            has = {side: special != side or rank == program.root for side in ("source", "target")}
            assert covered(found.outputs[rank]) == [(0, parts * whole)] * has["target"]
            assert covered(found.inputs[rank]) == [(0, taken * whole)] * has["source"]
            for entries in (found.outputs[rank], found.inputs[rank]):
                assert list(entries) == sorted(entries, key=lambda e: (e.us, e.offset))
        if collective.reduces and parts == taken and special == "none":
            for offset in range(0, size, size // 64 + 1):
                needed = max(at(entries, offset) for entries in found.inputs)
                assert all(at(entries, offset) > needed for entries in found.outputs)


CHAIN = """
broadcast fifo root=0
rank 2 2
block send=1
send i0:2
rank 2 2
block recv=0
recv -> o0:2
"""


def chain(size: int = 8 * SLICE, produced: tuple[tuple[int, float], ...] = ()) -> Calendar:
    """Of two chunks that go over a link of 100 GB/s, slice after slice of both."""
    topology = fabric("gpu0-switch,gpu1-switch")
    return simulate.calendar(parse(CHAIN), topology, size, options=FREE, produced=produced)


def test_slices_of_chunks_are_ready_one_after_another() -> None:
    found, each = chain(), SLICE / 100_000  # microseconds of a slice
    spans = [(chunk * 4 + k) * SLICE for k in range(4) for chunk in range(2)]
    assert [entry.offset for entry in found.outputs[1]] == spans
    ready = [entry.us for entry in found.outputs[1]]
    # a slice of both chunks is in one step: the step's messages are noted one by one
    assert ready == pytest.approx([each * (k + 1) for k in range(8)], rel=EXACT)
    assert found.inputs[1] == ()
    needed = [entry.us for entry in found.inputs[0]]
    assert needed == pytest.approx([max(0.0, each * (k - 2 + 1)) for k in range(8)], abs=each)


def test_what_is_not_produced_is_not_read() -> None:
    """The first slice of the second chunk waits for the producer, and all behind it does."""
    size, each = 8 * SLICE, SLICE / 100_000
    late = 100 * each
    found = chain(produced=((size // 2, 0.0), (size, late)))
    ready = {entry.offset // SLICE: entry.us for entry in found.outputs[1]}
    assert ready[0] == pytest.approx(each, rel=EXACT)
    assert ready[4] == pytest.approx(late + each, rel=EXACT)
    assert found.time == pytest.approx(late + 7 * each, rel=EXACT)
    assert all(entry.us >= late for entry in found.inputs[0] if entry.offset >= size // 2)


def test_the_command_says_what_the_simulation_says() -> None:
    path = ROOT / "schedules/mi250-1/allreduce.mscclpp.json"
    told = as_json("calendar", str(path), "--size", "1M", "--rule", "fair")
    timed = as_json("time", str(path), "--size", "1M", "--rule", "fair")
    assert told["time_us"] == timed["timings"][0]["time_us"]
    assert max(row["ready_us"] for rows in told["outputs"] for row in rows) == told["time_us"]
    assert [len(told[name]) for name in ("outputs", "inputs")] == [16, 16]


def test_a_plan_without_room_for_its_input_has_no_producer() -> None:
    program = parse(CHAIN.replace("root=0", "root=0 places=in"))
    with pytest.raises(ForestCollError, match="in place alone"):
        simulate.calendar(program, fabric("gpu0-switch,gpu1-switch"), MIB, produced=((MIB, 1.0),))


@pytest.mark.parametrize(("suffix", "rule"), [("msccl.xml", "fair"), ("mscclpp.json", "fifo")])
def test_what_is_finished_first_goes_first(suffix: str, rule: simulate.Rule) -> None:
    """On DGX-1, 8 tiles, a producer as long as the plan: the bound, and beside it no order."""
    path = ROOT / f"schedules/dgx1-v100-1/allreduce.{suffix}"
    program = plans.read_plan(path)
    prediction = predict.beside(program, path)[0]
    assert prediction is not None
    site, order = prediction.site, [k ^ 5 for k in range(8)]
    found = simulate.overlap(program, site.where, 2**30, order, rule=rule, links=site.links)
    t, n = found.plan, len(order)
    assert found.producer == t
    assert found.bound == pytest.approx(t + t / n + found.latency)
    assert found.ordered <= 1.05 * found.bound
    assert found.unordered >= 1.3 * found.ordered
    # what no order beats: the last tile comes after the producer; of slices of different lengths
    # it may take a little less than its share of the plan
    assert found.ordered > 0.999 * (t + t / n)


@pytest.mark.parametrize("suffix", ["msccl.xml", "mscclpp.json"])
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce"])
def test_tiles_in_any_order_are_proven(name: str, suffix: str) -> None:
    program = plans.read_plan(ROOT / f"schedules/dgx-a100-1/{name}.{suffix}")
    tiled = tiles(program, (2, 0, 1))
    proven, once = verify(tiled), verify(program)
    assert (proven.collective, proven.root, proven.modes) == (
        once.collective,
        once.root,
        once.modes,
    )
    assert proven.chunks == 3 * once.chunks
    assert verify(tiles(program, (0,))) == once


def test_an_order_is_read_as_lines_or_pairs() -> None:
    assert read_order("8 8\n0 4\n\n4 4\n", "f") == (2, 3, 0, 1)
    assert read_order("[[8, 4], [0, 8]]", "f") == (2, 0, 1)


def test_the_plan_with_tiles_is_written_and_right(tmp_path: Path) -> None:
    order, made = tmp_path / "order", tmp_path / "made.mscclpp.json"
    order.write_text("524288 524288\n0 524288\n")
    plan = str(ROOT / "schedules/dgx-a100-1/allreduce.mscclpp.json")
    told = as_json("calendar", plan, "--order", str(order), "--size", "1M", "-o", str(made))
    gain = told["overlap"]
    assert gain["tiles"] == 2
    assert gain["plan"] == as_json("time", plan, "--size", "1M")["timings"][0]["time_us"]
    (checked,) = as_json("verify", str(made), "--no-simulate")
    assert checked["ok"]
    assert plans.read_plan(made) == tiles(plans.read_plan(Path(plan)), (1, 0))
