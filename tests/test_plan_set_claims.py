"""Every claim of a plan set's index is checked, and a set runs as its runtime would pick plans."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from command_line import as_json
from damages import damage, rows
from graphs import machine
from json_edits import leaves, put

from forestcoll.common.errors import ForestCollError
from forestcoll.common.text_file import seal
from forestcoll.compile import plan_set, verdict
from forestcoll.compile.plan_set.index import digest
from forestcoll.compile.synthesize import synthesize
from forestcoll.schedule import forest_file
from forestcoll.topology import catalog

SETS = {
    "plan_set": ("ring gpus=4", "allreduce", "--sizes", "1K:1G"),
    "plan_set_rounds": ("star gpus=4", "allreduce", "--sizes", "1K:16K"),
    "plan_set_broadcast": ("ring gpus=4", "broadcast", "--root", "gpu1", "--sizes", "1K:1G"),
    "plan_set_alltoall": ("ring gpus=4", "alltoall", "--sizes", "1K:1M"),
}
"""What is damaged by the rows of damages/ with this name."""


@pytest.fixture
def allreduce(compiled: Artefacts) -> Path:
    return compiled(*SETS["plan_set"]).folder


def others(value: Any) -> list[Any]:
    """Values of the same kind that say something else."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2 + 7]
    if isinstance(value, str):
        return [f"{value}x", "", "0"] if not value.isdecimal() else [f"{value}0"]
    return ["gpu2"] if value is None else [["band"]]


def is_right(directory: Path) -> bool:
    try:
        plan_set.check(directory)
    except ForestCollError:
        return False
    return True


@pytest.mark.parametrize("name", ["plan_set", "plan_set_rounds", "plan_set_broadcast"])
def test_no_claim_may_be_another(name: str, compiled: Artefacts, tmp_path: Path) -> None:
    """Every leaf of the index, changed: found by its seal, and most also by what is so.

    Only the seal knows the words of explanation, the multiprocessors (as stated by who made it),
    the estimate's latency (at the least), and into how many parts trees were cut.
    """
    free = {"why", "sms", "latency"}
    made = compiled(*SETS[name])
    directory = made.copy(tmp_path / "set")
    text = (directory / "index.json").read_text()
    assert json.loads(text) == made.summary["index"]
    ignored = any("no runtime looks at the root" in note for note in made.summary["notes"])
    assert ignored == ("root" in " ".join(SETS[name]))
    plan_set.check(directory)
    for path, value in leaves(json.loads(text)):
        lies, changed = others(value), json.loads(text)
        put(changed, path, lies[len(str(path)) % len(lies)])
        (directory / "index.json").write_text(json.dumps(changed))
        assert not is_right(directory), path
        later = "plans" in path and path[path.index("plans") + 1] > 0
        if later or path[-1] in free or path == ("sha256",):
            continue
        (directory / "index.json").write_text(json.dumps(seal(changed)))
        assert not is_right(directory), path


@pytest.mark.parametrize(
    ("name", "change", "message"), [(name, *row) for name in SETS for row in rows(name)]
)
def test_wrong_claims(
    name: str, change: str, message: str, compiled: Artefacts, tmp_path: Path
) -> None:
    """A row changes the folder `d`, its index `f`, of which `r` are the runtimes, `p` plans."""
    d = compiled(*SETS[name]).copy(tmp_path / "set")
    right = json.loads((d / "index.json").read_text())

    def other(*words: str) -> Path:
        return compiled(*words, "--sizes", "1K:1G").folder

    names = {"d": d, "shutil": shutil, "digest": digest, "other": other, "forest_file": forest_file}
    wrong = damage(right, f"r = f['runtimes']; p = r[0]['plans']; {change}", **names)
    if wrong != right:
        (d / "index.json").write_text(json.dumps(seal(wrong)))
    with pytest.raises(ForestCollError, match=message):
        plan_set.check(d)


# ---------------------------------------------------------------------------- whose the graph is


@pytest.mark.parametrize(
    ("name", "settings", "known"),
    [
        ("ring", {"gpus": "4"}, True),
        ("ring", {"gpus": "4", "bandwidth": "100"}, False),
        ("dgx-a100", {"boxes": "2"}, True),
        ("torus-2d", {"x": "2", "y": "3"}, True),
    ],
)
def test_the_catalogue_knows_its_graphs(name: str, settings: dict[str, str], known: bool) -> None:
    made = synthesize(catalog.load(name, settings), "allgather", formats=("forest",))
    found = verdict.verify_text(made.texts["forest"], "it")
    assert found.figures["catalogue"] is known
    note = f"note: the topology is named {made.forest.name}, but its nodes or links differ from the"
    assert any(line.startswith(note) for line in found.lines) is not known


def test_ranks_of_a_catalogued_machine() -> None:
    topology = machine("dgx-a100")
    made = synthesize(topology, "allgather", ranks=topology.gpus[:3], formats=("forest",))
    assert verdict.verify_text(made.texts["forest"], "it").figures["catalogue"] is True


@pytest.mark.parametrize("name", ["mine", "ring-", "ring-0", "ring-1", "ring-4x", "ring-999999999"])
def test_names_that_the_catalogue_does_not_know(name: str) -> None:
    assert catalog.by_name(name, 100) is None


# ------------------------------------------------------------------------------------ run a set


@pytest.mark.parametrize("format", ["msccl-xml", "mscclpp-json"])
def test_every_size_runs_its_plan(allreduce: Path, format: str) -> None:
    words = ("-b", "1K", "-e", "4M", "-f", "4", "--format", format, "--ranks-as", "threads")
    index = json.loads((allreduce / "index.json").read_text())
    runtime = next(r for r in index["runtimes"] if r["format"] == format)
    ran = {}
    for table in as_json("run", allreduce, *words):
        for row in table["rows"]:
            assert row["wrong"] == 0
            ran.setdefault(row["size"], table["plan"])
    assert sorted(ran) == [1 << 10 + 2 * k for k in range(7)]
    for size, plan in ran.items():
        (meant,) = (p["file"] for p in runtime["plans"] if p["min_bytes"] <= size <= p["max_bytes"])
        assert plan == str(allreduce / meant)
