"""The pages hold together: links lead somewhere, and pages of fields name all fields that exist."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from artefacts import ROOT
from click.testing import CliRunner

from forestcoll.compile.verdict import verify_text
from forestcoll.ui.cli import cli

sys.path.insert(0, str(ROOT / "scripts"))
import reference_pages as reference  # type: ignore[import-not-found]

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What `#...` may name in a page: its headings as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), (page.name, target)
        if anchor:
            assert anchor in anchors(there), (page.name, target)


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    named = re.findall(r"^\| \[[^]]*\]\(([\w/-]+\.md)\)", index, flags=re.MULTILINE)
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert sorted(named) == sorted(there)
    assert sum("/" not in name for name in named) == 10


def test_the_forest_of_the_page_is_right_and_every_field_explained() -> None:
    page = (DOCS / "reference" / "forest-file.md").read_text()
    example = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert example
    assert any("optimal" in line for line in verify_text(example[1], "example").lines)
    schema = json.loads((ROOT / "forestcoll" / "schedule" / "forest.schema.json").read_text())
    fields = set(schema["properties"])
    for model in schema["$defs"].values():
        fields |= set(model.get("properties", ()))
    missing = {f for f in fields if not re.search(rf'[`"\[ .]{f}[`"\]\[ ]', page)}
    assert missing == set()


@pytest.mark.parametrize("page", reference.PAGES)
def test_what_the_program_says_stands_in_the_reference(
    page: str, request: pytest.FixtureRequest
) -> None:
    """`--update-golden` writes the pages, as `scripts/reference_pages.py --write`."""
    text = reference.PAGES[page]()
    if request.config.getoption("--update-golden"):
        (DOCS / page).write_text(text)
    assert (DOCS / page).read_text() == text


PLAN = "schedules/dgx-a100-1/allreduce.mscclpp.json"
JSON = f"""
optimum -t dgx-h100 -c allreduce
optimum -t dgx-a100 -c allgather --explain
optimum -t dgx-a100 -c allgather --groups box0/gpu[0-3];box0/gpu[4-7]
synthesize -t ring -c allreduce -o FOLDER/one
synthesize -t dgx-a100 -c allgather --sizes 1K:1M -o FOLDER/set
front -t ring --plans
degrade -t dgx-a100 -c allgather
time {PLAN} --size 1M
compare -t ring --sizes 1M --against rings
verify {PLAN}
verify schedules/dgx-a100-1/allreduce.forest.json --links
run {PLAN} --size 1M
deploy {PLAN} --runtime=mscclpp -o FOLDER/d
doctor
"""
OPEN = {"seconds", "environment", "index", "plans_by_target", "gpu_in", "gpu_out", "files"}
"""Objects whose keys are data, or documented elsewhere."""


def fields(value: object) -> Iterator[str]:
    """The keys of all objects in a JSON value, but for objects whose keys are data."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in OPEN:
                yield from fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner)


def section(page: str, command: str) -> str:
    """What the page says of a command, and of all."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    by_heading = dict(zip(parts[1::2], parts[2::2], strict=True))
    return by_heading["Shared fields"] + by_heading[command]


@pytest.mark.parametrize("line", JSON.strip().splitlines())
def test_every_json_field_stands_on_its_page(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = section((DOCS / "reference" / "json.md").read_text(), line.split()[0])
    formats = {"msccl-xml", "mscclpp-json", "forest", "msccl", "rccl", "mscclpp"}
    asked = line.replace("FOLDER", str(tmp_path)).split()
    done = CliRunner().invoke(cli, [*asked, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    printed = set(fields(json.loads(done.stdout))) - formats
    assert {f for f in printed if f"`{f}`" not in said} == set()
