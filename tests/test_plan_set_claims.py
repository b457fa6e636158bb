"""Every claim of a plan set's index is checked, and a set runs as its runtime would pick plans."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_edits import leaves, put

from forestcoll.common.errors import ForestCollError
from forestcoll.common.text_file import seal
from forestcoll.compile import plan_set, verdict
from forestcoll.compile.plan_set.index import digest, files_of
from forestcoll.compile.synthesize import synthesize
from forestcoll.schedule import forest_file
from forestcoll.topology import catalog
from forestcoll.ui import cli

K = 1 << 10


def write_set(directory: Path, name: str, collective: str, **how: Any) -> Path:
    first, *pairs = name.split()
    topology = catalog.load(first, dict(p.split("=", 1) for p in pairs))
    made = plan_set.make(topology, collective, K, 1 << 30, **how)
    for file, text in files_of(made).items():
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text(text)
    return directory


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("a") / "set", "ring gpus=4", "allreduce")


@pytest.fixture(scope="module")
def broadcast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("b") / "set", "ring gpus=4", "broadcast", root="gpu1")


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("c") / "set", "star gpus=4", "allreduce")


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


def test_no_claim_may_be_another(allreduce: Path, broadcast: Path, tmp_path: Path) -> None:
    """Every leaf of the index, changed: found by its seal, and most also by what is so.

    Only the seal knows the words of explanation, the multiprocessors (as stated by who made it),
    the estimate's latency (at the least), and into how many parts trees were cut.
    """
    free = {"why", "sms", "latency"}
    for number, right in enumerate((allreduce, broadcast)):
        directory = tmp_path / str(number)
        shutil.copytree(right, directory)
        text = (directory / "index.json").read_text()
        known = json.loads(text)
        plan_set.check(directory)
        for path, value in leaves(known):
            lies = others(value)
            for lie in lies:
                changed = json.loads(text)
                put(changed, path, lie)
                (directory / "index.json").write_text(json.dumps(changed))
                with pytest.raises(ForestCollError):
                    plan_set.check(directory)
            if path[-1] in free or ("plans" in path and path[path.index("plans") + 1] > 0):
                continue
            changed = json.loads(text)
            put(changed, path, lies[len(str(path)) % len(lies)])
            if path == ("sha256",):
                continue
            (directory / "index.json").write_text(json.dumps(seal(changed)))
            assert not is_right(directory), path


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        index = json.loads((directory / "index.json").read_text())
        change(index)
        (directory / "index.json").write_text(json.dumps(seal(index)))

    return apply


def foreign(directory: Path, star: Path) -> None:
    """The forest of another machine, by its own words the right one, in the place of ours."""
    index = json.loads((directory / "index.json").read_text())
    stated = index["forests"][0]
    text = next((star / "forests").iterdir()).read_text().replace('"star-4"', '"ring-4"')
    (directory / stated["file"]).write_text(text)
    forest = forest_file.loads(text)
    stated |= {"sha256": digest(text), "algbw": str(forest.algbw), "height": forest.height}
    stated["trees_per_root"] = forest.trees_per_root
    (directory / "index.json").write_text(json.dumps(seal(index)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edited(lambda i: i.update(root="gpu0")), "the root is none; index.json says gpu0"),
        (edited(lambda i: i.update(topology="star-4")), "the topology is ring-4; index.json says"),
        (edited(lambda i: i["runtimes"][0].update(target="any")),
         "one of msccl, rccl: the target is msccl; index.json says any"),
        (edited(lambda i: i["runtimes"][1].update(target="rccl")), "one of mscclpp: the target"),
        (edited(lambda i: i["runtimes"][1].update(operations=["sum", "band"])),
         "the list of operations is sum; index.json says sum, band"),
        (edited(lambda i: i["runtimes"][0].update(not_served=[])),
         "what is not served .bytes. is 1, 1023, 1073741825, none; index.json says nothing"),
        (edited(lambda i: i["runtimes"][0]["not_served"][0].update(why=" ")), "without a reason"),
        (edited(lambda i: i["runtimes"][0]["plans"][0].update(latency="0")), "estimated latency"),
        (edited(lambda i: i["runtimes"][0]["plans"][0].update(latency="1/0")), "estimated latency"),
        (edited(lambda i: i["forests"].append({**i["forests"][0], "file": "forests/x"})),
         "the forest without a plan is none; index.json says forests/x"),
        (edited(lambda i: i["forests"].append(i["forests"][0])), "the number of times that a file"),
        (edited(lambda i: i.update(forests=[], runtimes=[])), "the number of"),
    ],
)  # fmt: skip
def test_wrong_claims(
    damage: Callable[[Path], None], words: str, allreduce: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "set"
    shutil.copytree(allreduce, directory)
    damage(directory)
    with pytest.raises(ForestCollError, match=words):
        plan_set.check(directory)


def test_plans_of_another_machine(allreduce: Path, star: Path, tmp_path: Path) -> None:
    directory = tmp_path / "set"
    shutil.copytree(allreduce, directory)
    foreign(directory, star)
    with pytest.raises(ForestCollError, match=r"no plan of forests/ring-4\.allreduce\.00"):
        plan_set.check(directory)


def test_plans_of_another_root(broadcast: Path, tmp_path: Path) -> None:
    assert json.loads((broadcast / "index.json").read_text())["root"] == "gpu1"
    other = write_set(tmp_path / "other", "ring gpus=4", "broadcast", root="gpu2")
    shutil.rmtree(other / "msccl-xml")
    shutil.copytree(broadcast / "msccl-xml", other / "msccl-xml")
    index = json.loads((other / "index.json").read_text())
    ours = json.loads((broadcast / "index.json").read_text())
    for plan, mine in zip(index["runtimes"][0]["plans"], ours["runtimes"][0]["plans"], strict=True):
        plan["sha256"] = mine["sha256"]
    (other / "index.json").write_text(json.dumps(seal(index)))
    with pytest.raises(ForestCollError, match=r"root|broadcast"):
        plan_set.check(other)


# ---------------------------------------------------------------------------- whose the graph is


@pytest.mark.parametrize(
    ("name", "settings", "scale", "known"),
    [
        ("ring", {"gpus": "4"}, "1", True),
        ("ring", {"gpus": "4", "bandwidth": "100"}, "1", False),
        ("dgx-a100", {"boxes": "2"}, "1", True),
        ("torus-2d", {"x": "2", "y": "3"}, "1", True),
    ],
)
def test_the_catalogue_knows_its_graphs(
    name: str, settings: dict[str, str], scale: str, known: bool
) -> None:
    made = synthesize(catalog.load(name, settings), "allgather", formats=("forest",))
    found = verdict.verify_text(made.texts["forest"], "it")
    assert found.figures["catalogue"] is known
    note = f"note: the topology is named {made.forest.name}, but its nodes or links differ from the"
    assert any(line.startswith(note) for line in found.lines) is not known


def test_ranks_of_a_catalogued_machine() -> None:
    topology = catalog.load("dgx-a100", {})
    made = synthesize(topology, "allgather", ranks=topology.gpus[:3], formats=("forest",))
    assert verdict.verify_text(made.texts["forest"], "it").figures["catalogue"] is True


@pytest.mark.parametrize("name", ["mine", "ring-", "ring-0", "ring-1", "ring-4x", "ring-999999999"])
def test_names_that_the_catalogue_does_not_know(name: str) -> None:
    assert catalog.by_name(name, 100) is None


# ------------------------------------------------------------------------------------ run a set


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_size_runs_its_plan(allreduce: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for format in ("msccl-xml", "mscclpp-json"):
        code, out, _ = call(
            capsys, "run", str(allreduce), "-b", "1K", "-e", "4M", "-f", "4", "--json",
            "--format", format, "--ranks-as", "threads",
        )  # fmt: skip
        assert code == 0
        index = json.loads((allreduce / "index.json").read_text())
        runtime = next(r for r in index["runtimes"] if r["format"] == format)
        ran = {}
        for table in json.loads(out):
            for row in table["rows"]:
                assert row["wrong"] == 0
                ran.setdefault(row["size"], table["plan"])
        assert sorted(ran) == [K << 2 * k for k in range(7)]
        for size, plan in ran.items():
            (meant,) = [
                p["file"] for p in runtime["plans"] if p["min_bytes"] <= size <= p["max_bytes"]
            ]
            assert plan == str(allreduce / meant)


def test_the_tables_of_a_set_name_their_plans(
    allreduce: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(
        capsys, "run", str(allreduce), "--size", "1K", "--size", "1001", "--size", "1G", "-c", "0"
    )
    assert code == 1
    assert "no msccl-xml plan of the set serves 1001 bytes: outside of --sizes" in err
    code, out, err = call(
        capsys, "run", str(allreduce), "--size", "1K", "--size", "8193", "-c", "0"
    )
    assert code == 0
    assert f"# {allreduce}/msccl-xml/ring-4.allreduce.00.ll.msccl.xml\n# allreduce, 4 ranks" in out
    assert "8193 bytes are no multiple of 16: the runtime uses its own algorithm" in err
    assert "Allowed by links" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--size", "2G"), "serves 2147483648 bytes: outside of --sizes"),
        (("--size", "8"), "serves 8 bytes: outside of --sizes"),
    ],
)
def test_sizes_that_a_set_does_not_serve(
    words: tuple[str, ...], message: str, allreduce: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "run", str(allreduce), *words)
    assert code == 1
    assert message in err


def test_folders_that_cannot_run(
    allreduce: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "run", str(tmp_path))
    assert (code, "as a directory has no index.json of a plan set" in err) == (1, True)
    plan = next((allreduce / "msccl-xml").iterdir())
    code, _, err = call(capsys, "run", str(plan), "--format", "msccl-xml")
    assert (code, "--format is for a plan set, a folder" in err) == (2, True)
    directory = tmp_path / "set"
    shutil.copytree(allreduce, directory)
    shutil.rmtree(directory / "mscclpp-json")
    edited(lambda i: i["runtimes"].pop())(directory)
    code, _, err = call(capsys, "run", str(directory), "--format", "mscclpp-json")
    assert (code, "the set has no plans for mscclpp-json; it has msccl-xml" in err) == (1, True)
    plan = directory / "msccl-xml" / plan.name
    plan.write_text(plan.read_text() + "\n")
    code, _, err = call(capsys, "run", str(directory), "-b", "1K", "-e", "1G", "-f", "1024")
    assert (code, "SHA-256 differs" in err) == (1, True)
