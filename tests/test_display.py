"""How values show themselves: in notebooks, as tables, graphs and figures."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from artefacts import ROOT
from command_line import finished
from graphs import machine

import forestcoll
from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program.targets import MSCCLPP, RCCL
from forestcoll.solver import baselines
from forestcoll.verify import verify

SCRIPTS = ROOT / "scripts"
MACHINE = machine("rail boxes=2 gpus=2 rails=2")


def forest() -> forestcoll.Forest:
    return baselines.forests("hierarchical", CapacityGraph.from_topology(MACHINE))[0]


def test_a_topology_and_a_forest_are_drawings() -> None:
    for value in (MACHINE, forest()):
        found = value._repr_mimebundle_()
        ET.fromstring(found["image/svg+xml"])
        assert found["text/plain"] == repr(value)
        assert "<svg" in found["text/html"]


def test_large_ones_are_tables() -> None:
    found = machine("dgx-a100 boxes=64")._repr_mimebundle_()
    assert "image/svg+xml" not in found
    assert "<td>512</td>" in found["text/html"]


def test_a_program_is_a_table_of_its_ranks() -> None:
    program = lower(forest(), RCCL)
    html = program._repr_mimebundle_()["text/html"]
    ET.fromstring(html)
    assert html.count("<tr>") == 1 + program.n
    assert "box1/gpu1" in html


@pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda target: target.name)
def test_the_graph_of_a_program_has_what_the_verifier_counts(target) -> None:  # type: ignore[no-untyped-def]
    program = lower(forest(), target)
    moved = program.to_networkx()
    whole = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
    loads = {pair: load * whole for pair, load in verify(program).loads.items()}
    assert {(a, b): chunks for a, b, chunks in moved.edges(data="chunks")} == loads
    assert moved.nodes[3]["name"] == "box1/gpu1"


def test_tables_of_pandas() -> None:
    pytest.importorskip("pandas")
    topology, trees = MACHINE, forest()
    assert len(topology.to_pandas()) == topology.to_networkx().number_of_edges()
    table = trees.to_pandas()
    assert list(table.columns) == ["src", "dst", "bandwidth", "load", "percent"]
    assert table["percent"].max() == 100
    program = lower(trees, RCCL)
    rows = program.to_pandas()
    assert len(rows) == sum(1 for _ in program.instructions())
    assert set(rows["rank"]) == set(range(program.n))


def test_figures_have_title_unit_and_legend() -> None:
    pytest.importorskip("matplotlib")
    topology, trees = MACHINE, forest()
    for figure, unit in (
        (topology.plot(), "bandwidth of a link (GB/s)"),
        (trees.plot(dark=True, width=6), "how busy a link is (%)"),
        (trees.plot(tree=0), "tree 0, hops in time"),
    ):
        assert unit in figure.axes[0].get_title(loc="left")
        assert figure.axes[1].get_ylabel() == unit
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GPU", "switch"]
    with pytest.raises(UnsupportedError, match="there is no figure of a Program"):
        lower(trees, RCCL).plot()
    with pytest.raises(UnsupportedError, match="a fabric alone has no trees"):
        topology.plot(tree=0)


def test_figures_are_pictures_in_notebooks() -> None:
    """Without `%matplotlib inline`, whose formatter is not there then."""
    pytest.importorskip("matplotlib")
    png = MACHINE.plot(width=4)._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == 400  # dots wide


def test_values_import_nothing_that_draws() -> None:
    names = ("schedule.forest", "topology", "program")
    code = "\n".join(f"import forestcoll.{name}" for name in names)
    code += "\nimport sys; print(*sys.modules)"
    done = finished(sys.executable, "-c", code, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"matplotlib", "pandas", "forestcoll.ui.report", "forestcoll.ui.view"}


def test_the_notebook_is_its_script() -> None:
    jupytext = pytest.importorskip("jupytext")
    script = jupytext.read(SCRIPTS / "compare.py")
    notebook = json.loads((SCRIPTS / "compare.ipynb").read_text())
    cells = [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]]
    assert cells == [(c.cell_type, c.source) for c in script.cells]


BYTES = 400_000
"""Of the notebook with what its cells show; a picture has some 100,000."""


def shown(cell: Any) -> list[tuple[list[str], str]]:
    """Of each output its MIME types and its text, which is the same on every machine."""
    outputs = cell.get("outputs", ())
    kinds = [o.get("data", {"stream": o.get("text")}) for o in outputs]
    return [(sorted(k), "".join(k.get("text/plain", k.get("stream", "")))) for k in kinds]


def read_notebook() -> Any:
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(SCRIPTS / "compare.ipynb", as_version=4)


def test_the_notebook_shows_what_its_cells_make() -> None:
    """All cells that end in a value or print; the figure is a picture, not its name."""
    cells = [cell for cell in read_notebook().cells if cell.cell_type == "code"]
    assert all(shown(cell) for cell in cells)
    drawn = {cell.source: kinds for cell in cells for kinds, _ in shown(cell)}
    # repositories' web pages leave SVG out
    drawings = [kinds for source, kinds in drawn.items() if ".plot(" in source]
    assert len(drawings) == 3
    assert all("image/png" in kinds for kinds in drawings)
    assert "text/html" in drawn[next(s for s in drawn if s.endswith("made.forest"))]
    assert "jointly 128 GB/s, the allgather's trees both ways 104" in json.dumps(cells)
    assert (SCRIPTS / "compare.ipynb").stat().st_size < BYTES


@pytest.mark.slow
def test_the_notebook_shows_what_is_stored(request: pytest.FixtureRequest) -> None:
    """Run from top to bottom; `--update-golden` stores what the cells show."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored, notebook = read_notebook(), read_notebook()
    client = nbclient.NotebookClient(
        notebook, timeout=170, kernel_name="python3", record_timing=False
    )
    client.execute()
    if request.config.getoption("--update-golden"):
        notebook.metadata = stored.metadata  # not this Python's version
        nbformat.write(notebook, SCRIPTS / "compare.ipynb")
        return
    for before, now in zip(stored.cells, notebook.cells, strict=True):
        assert shown(now) == shown(before), now.source
