"""The main job: topology in, proven schedule out, every element of every plan right."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest
from graphs import machine
from real_files import FOLDER, real
from stored_schedules import stored
from test_golden import check_share

from forestcoll import plans
from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import verify_text
from forestcoll.execute import cpu
from forestcoll.lower import serve
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology, catalog, loads_topology
from forestcoll.ui.cli import main

ORACLE = "nccl-xml/oracle/H100-topology.xml"
THREE_LEVELS = """
format: forestcoll.topology/1
name: three-levels
nodes:
  gpu{0..7}: {kind: gpu}
  leaf{0..3}: {kind: switch}
  spine{0..1}: {kind: switch}
  core: {kind: switch}
links:
  - {for: {i: 0..7}, src: "gpu{i}", dst: "leaf{i // 2}", bandwidth: 100}
  - {for: {i: 0..3}, src: "leaf{i}", dst: "spine{i // 2}", bandwidth: 60}
  - {src: "spine{0..1}", dst: core, bandwidth: 40}
"""
"""Eight GPUs under four leaves under two spines under one core, thinner towards the core."""


def topology(name: str) -> Topology:
    """A catalogue machine with its settings ("dgx-a100 boxes=2"), the dump, or the switch tree."""
    if name == "three-levels":
        return loads_topology(THREE_LEVELS)
    if name == "oracle":
        return catalog.load(real(ORACLE), {})
    return machine(name)


SMALL = ["oracle", "three-levels"]  # test_execute_catalog has the catalogue's machines
DUMPED = (Collective.ALLREDUCE, Collective.ALLGATHER)  # the same fabric as others
DTYPES = itertools.cycle(["float32", "float16", "int32", "bfloat16", "float64", "int8", "int64"])
OPS = itertools.cycle(["sum", "max", "prod", "min"])
CASES = [
    pytest.param(n, c, next(DTYPES), next(OPS), id=f"{n}-{c}")
    for n in SMALL
    for c in BY_TREES
    if n != "oracle" or c in DUMPED
]
CASES.append(
    pytest.param("rail boxes=2 gpus=2 rails=2", Collective.ALLGATHER, "float32", "sum", id="boxes")
)


def made(name: str, collective: Collective) -> tuple[Forest, dict[str, Program]]:
    """The forest, and its programs as they are read from the plans; of stored ones see golden."""
    found = synthesize(topology(name), collective)
    forest = found.forest
    assert forest.bound is not None
    check_share(found)
    if forest.trees_per_root == found.optimum.trees_per_root:  # not rounded
        assert forest.algbw >= found.optimum.algbw
        assert forest.algbw == forest.bound.algbw or forest.bound.algbw > found.optimum.algbw
    programs: dict[str, Program] = {
        form: plans.loads(found.texts[form], form) for form in plans.FORMATS
    }
    assert programs == found.programs
    return forest, programs


@pytest.mark.parametrize(("name", "collective", "dtype", "op"), CASES)
def test_every_plan_proves_itself_and_runs(
    name: str, collective: Collective, dtype: str, op: str
) -> None:
    first, *settings = name.split()
    known = stored(first, dict(s.split("=", 1) for s in settings), collective)
    forest, programs = known or made(name, collective)
    assert forest.bound is not None
    assert verify_text(forest_file.dumps(forest), "forest").kind == "forest"
    ranks = forest.n
    for program in programs.values():
        chunks = max(max(r.input_chunks, r.output_chunks) for r in program.ranks)
        even = chunks * 8 * ranks
        # an allgather's ports read its input from one place: a plan for each kind of calls
        every = [program] if program.in_place else [program, serve(program, in_place=True)]
        for size in (even, 8 * (7777 // ranks * ranks + 3 * ranks), 8 * ranks):
            modes = []
            for plan in every:
                done = cpu.run(plan, size, dtype=dtype, op=op)
                modes += [row.mode for row in done.rows]
                assert done.wrong == 0, done.mismatches[:3]
            assert sorted(modes) == ["in-place", "out-of-place"]


def dump_of_eight() -> str:
    """NCCL's dump of a box: eight GPUs on four NVSwitches by 18 links, each with two ports."""
    lines = ['<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">']
    for gpu in range(8):
        pci = 'link_speed="32.0 GT/s PCIe" link_width="16"'
        lines += [
            f'<pci busid="0000:{gpu}0:00.0" class="0x060400" {pci}>',
            f'<pci busid="0000:{gpu}1:00.0" class="0x030200" {pci}>',
            f'<gpu dev="{gpu}" sm="90" rank="{gpu}" gdr="1">',
            *(
                f'<nvlink target="0000:9{switch}:00.0" count="{4 + (switch + gpu) % 2}" '
                'tclass="0x068000"/>'
                for switch in range(4)
            ),
            "</gpu></pci>",
            f'<pci busid="0000:{gpu}2:00.0" class="0x020000" {pci}><nic>',
            *(
                f'<net name="mlx5_{2 * gpu + port}" dev="{2 * gpu + port}" '
                f'speed="180000" port="{port + 1}" guid="0x{gpu + 1}" maxconn="131072" gdr="1"/>'
                for port in (0, 1)
            ),
            "</nic></pci></pci>",
        ]
    return "\n".join([*lines, "</cpu></system>\n"])


@pytest.mark.slow
def test_from_a_dump_to_plans_of_two_boxes_on_rails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command; and the proof and the run of what it wrote."""
    path, out = tmp_path / "node.xml", tmp_path / "out"
    path.write_text(dump_of_eight())
    given = ["-t", str(path), "--set", "boxes=2", "--set", "fabric=rail", "-c", "allgather"]
    given += ["--trees", "2"]  # what it takes for speed; without that it takes a while to say so
    assert main(["synthesize", *given, "--output", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    topology = catalog.load(str(path), {"boxes": "2", "fabric": "rail"})
    if (FOLDER / ORACLE).exists():
        oracle = catalog.load(FOLDER / ORACLE, {"boxes": "2", "fabric": "rail"})
        assert sorted(oracle.rates().values()) == sorted(topology.rates().values())
    # What the others have goes into a GPU by NVLink and two ports.
    assert Fraction(told["bound"]) == (Fraction("370.8") + 45) * 16 / 15
    assert Fraction(told["algbw"]) >= Fraction(told["bound"]) * 95 / 100
    files = sorted(out.iterdir())
    assert len(files) == 3
    assert main(["verify", *map(str, files)]) == 0
    for file in files[1:]:
        assert main(["run", str(file), "-b", "64K", "-e", "64K", "--check", "1"]) == 0
