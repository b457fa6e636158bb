"""The README's table of results and its picture: what a test can know without making the plans."""

from __future__ import annotations

import re
from fractions import Fraction
from xml.etree import ElementTree

import pytest
from command_line import script

import forestcoll
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver import baselines
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit

readme = script("readme")


def rows() -> list[list[str]]:
    text = readme.README.read_text()
    table = text.split(readme.BEGIN)[1].split(readme.END)[0].strip().splitlines()
    assert "\n".join(table[:2]) == readme.HEAD
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


@pytest.mark.parametrize("place", range(len(readme.CASES)))
def test_a_row_has_todays_figures(place: int) -> None:
    """Bounds and baselines are those of now; plans are held by the tests of plans' times."""
    case, cells = readme.CASES[place], rows()[place]
    assert cells[:2] == [case.words, str(case.collective)]
    topology = edit(catalog.load(case.machine, dict(case.settings)), case.without)
    best = forestcoll.optimum(topology, case.collective, ranks=case.ranks)
    assert cells[5] == f"{float(best.bound.algbw):.1f}"
    graph = CapacityGraph.from_topology(topology, ranks=case.ranks)
    rings = baselines.forests("rings", graph, case.collective)[0].plain_algbw
    assert cells[2] == f"{float(rings):.1f}"
    value, name = re.fullmatch(r"([\d.]+) \(([\w-]+)\)", cells[3]).groups()  # type: ignore[union-attr]
    assert value == f"{float(baselines.forests(name, graph, case.collective)[0].plain_algbw):.1f}"
    plan = Fraction(cells[4])
    assert plan <= Fraction(cells[5])
    assert cells[6] == f"{float(plan / Fraction(cells[2])):.2f} x"
    assert cells[7] == f"{float(plan / Fraction(value)):.2f} x"


def test_the_plans_figure_is_what_synthesize_reports() -> None:
    """With the latencies of the links, as everywhere."""
    case, cells = readme.CASES[0], rows()[0]
    topology = edit(catalog.load(case.machine, dict(case.settings)), case.without)
    form = "mscclpp-json"
    made = forestcoll.synthesize(topology, case.collective, target="mscclpp", formats=form)
    assert cells[4] == f"{made.bands[form].least:.1f}"
    assert readme.measure(case).plan == made.bands[form].least


def test_there_are_no_more_rows() -> None:
    assert len(rows()) == len(readme.CASES)


def test_the_picture_shows_the_figures_of_the_table() -> None:
    drawn = next(place for place, case in enumerate(readme.CASES) if case.drawn)
    cells = rows()[drawn]
    root = ElementTree.parse(readme.PICTURE).getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {cells[2], cells[4], cells[5]} <= texts
    assert cells[0] in texts
