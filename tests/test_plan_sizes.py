"""docs/reference/plan-sizes.md: a dozen of its rows are made anew; bold cells are exceptions."""

from __future__ import annotations

import re

import pytest
from artefacts import ROOT
from command_line import script

from forestcoll.program import Collective
from forestcoll.program.sizes import is_power
from forestcoll.topology import catalog

sizes = script("sizes")
PAGE = ROOT / "docs" / "reference" / "plan-sizes.md"


def rows() -> dict[tuple[str, str], list[str]]:
    """(machine, collective) -> the cells of the targets."""
    found = {}
    for line in PAGE.read_text().split("### All")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1].isdecimal():
            found[cells[0], cells[2]] = cells[3:]
    return found


@pytest.mark.parametrize(
    "row",
    """
dgx-a100 boxes=2 allgather mscclpp
dgx-a100 boxes=2 allreduce any
dgx-a100 boxes=2 broadcast rccl
dgx-h100 reduce-scatter msccl
dgx1-v100 allreduce rccl
dgx1-v100 broadcast mscclpp
hypercube reduce msccl
mi250 allgather rccl
dgx1-v100 reduce any
mi300x broadcast msccl
star gpus=9 allreduce any
star gpus=9 allgather msccl
torus-2d allreduce msccl
dgx2-v100 boxes=2 allgather mscclpp
""".strip().splitlines(),
)
def test_rows_are_what_synthesize_takes(row: str) -> None:
    name, *settings, collective, target = row.split()
    topology = catalog.load(name, dict(pair.split("=") for pair in settings))
    found = sizes.serve(topology, Collective(collective), target)
    assert found.fine
    cells = rows()[topology.name, collective]
    assert sizes.cell(found) == cells[sizes.TARGETS.index(target)]


def test_all_machines_up_to_64_ranks_are_there() -> None:
    named = {machine for machine, _ in rows()}
    wanted = [*sizes.machines(64), *sizes.UNEVEN]
    assert named == {catalog.load(name, dict(settings)).name for name, settings in wanted}


def test_exceptions_are_beyond_64_ranks_or_faster_and_explained() -> None:
    exceptions = re.findall(
        r"^\| (\S+) \| (\d+) \| (\S+) \| (\w+) \| (.+) \|$",
        PAGE.read_text().split("### Exceptions")[1].split("### All")[0],
        flags=re.M,
    )
    for _, ranks, _, _, why in exceptions:
        assert (int(ranks) > 64 and len(why) > 20) or "for speed: simulated" in why
    told = {(machine, collective) for machine, _, collective, _, _ in exceptions}
    bold = {key for key, cells in rows().items() if any("**" in cell for cell in cells)}
    assert bold == told


def test_shares_and_parts_of_all_rows() -> None:
    """99 % or more, in parts that are powers of two, few enough for a mebibyte."""
    for (machine, collective), cells in rows().items():
        for cell in cells:
            if "**" in cell or cell == "-":
                continue
            match = re.fullmatch(r"([\d.]+) %, 1/(\d+)", cell)
            assert match is not None, (machine, collective, cell)
            assert float(match[1]) >= 99
            assert is_power(int(match[2])), (machine, collective, cell)
            assert int(match[2]) <= (1 << 20) // 16
