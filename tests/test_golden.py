"""schedules/: what is stored there proves itself, and is what synthesize writes today."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from random_graphs import ask_stranger, needs_stranger
from stored_schedules import MACHINES, SCHEDULES

from forestcoll.compile.formats import FORMATS
from forestcoll.compile.synthesize import Synthesis, synthesize
from forestcoll.compile.verdict import verify_text
from forestcoll.program import BY_TREES, Collective
from forestcoll.program.sizes import Sizes
from forestcoll.topology import catalog

CASES = [(machine, collective) for machine in MACHINES for collective in BY_TREES]
PROVEN = ("dgx1-v100-1",)
"""Machines whose plans are proven as files, too; `synthesize` proves each plan that it writes."""
FORESTS = [SCHEDULES / machine / f"{collective}.forest.json" for machine, collective in CASES]


@pytest.mark.parametrize(("machine", "collective"), CASES, ids=lambda x: str(x))
def test_synthesis_gives_the_stored_bytes(
    machine: str, collective: Collective, request: pytest.FixtureRequest
) -> None:
    """And the plans, which were proven when written, serve every power of two."""
    name, settings = MACHINES[machine]
    made = synthesize(catalog.load(name, settings), collective)
    assert made.name == machine
    folder = SCHEDULES / machine
    for form, text in made.texts.items():
        file = folder / f"{collective}{FORMATS[form]}"
        if request.config.getoption("--update-golden"):
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert file.read_text() == text, (
            f"{file.name} of {machine} has changed: look at why, then --update-golden"
        )
    for program in made.programs.values():
        sizes = Sizes.of(program)
        assert sizes.powers
        assert all(sizes.serves(size, 8) for size in (1 << 20, 16 << 20, 1 << 30))
    check_share(made)


def check_share(made: Synthesis) -> None:
    """The forest reaches the optimum, or 99 % of it so that it is rounded or fits, or says why not.

    A forest "for speed" has plans that are faster than those of the optimum by more than the links
    that it gives up.
    """
    share = made.forest.algbw / made.optimum.algbw
    told = [note for note in made.notes if "for speed" in note]
    if not told:
        assert share >= Fraction(99, 100)
        return
    rates = re.search(
        r"plans of them reach ([\d.]+) and ([\d.]+) GB/s, of \d+ trees? per root ([\d.]+) and "
        r"([\d.]+)",
        told[0],
    )
    assert rates is not None
    short, long, *slower = (float(rate) for rate in rates.groups())
    assert short * long >= slower[0] * slower[1]  # as printed, rounded
    assert share >= Fraction(95, 100)


@pytest.mark.parametrize(
    "path",
    FORESTS + [f for m in PROVEN for f in sorted((SCHEDULES / m).glob("*.ms*"))],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_stored_schedules_prove_themselves(path: Path) -> None:
    verdict = verify_text(path.read_text(), path.name)
    if verdict.kind == "forest" and "allreduce" not in path.name:
        share = Fraction(verdict.figures["algbw"]) / Fraction(verdict.figures["bound"])
        assert share >= Fraction(99, 100)


@needs_stranger
@pytest.mark.parametrize("path", FORESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_stored_forests_pass_the_independent_check(path: Path) -> None:
    collective = path.name.removesuffix(".forest.json")
    asked = ["--collective", collective]
    if collective in ("allgather", "reduce-scatter"):
        bound = Fraction(json.loads(path.read_text())["bound"]["algbw"])
        asked += ["--at-least", str(bound * Fraction(99, 100))]
    ask_stranger(path, *asked)
