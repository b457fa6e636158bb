"""Bundles of plans: no claim of their records may be another, and a killed run goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from graphs import machine
from json_edits import leaves, put

from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.common.text_file import seal
from forestcoll.program import Collective
from forestcoll.study.degrade.bundle import (
    INDEX,
    NOTE,
    Made,
    Request,
    check_bundle,
    folder_of,
    make,
    make_bundle,
)
from forestcoll.study.degrade.failures import Failure, list_failures
from forestcoll.study.degrade.losses import Workload
from forestcoll.ui.cli import main, writing
from forestcoll.ui.cli.writing import STAGING

REQUEST = Request(
    Workload(machine("star gpus=4"), Collective.ALLGATHER), ("forest", "mscclpp-json")
)
FAILURES = list_failures(REQUEST.workload.topology)[3:6]  # of a cable and of two GPUs
MACHINE = ["degrade", "-t", "star", "--set", "gpus=4", "-c", "allgather", "--dask", "none"]


def write(texts: Any) -> None:
    writing.write_all(texts, force=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "bundle"
    make_bundle(REQUEST, FAILURES, folder, write)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same, which a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def made() -> dict[Failure, Made]:
    return {failure: make(REQUEST, failure) for failure in FAILURES}


def other(value: Any) -> object:
    if isinstance(value, str):
        return "1234567" if value != "1234567" else ""
    return value * 2 + 1 if isinstance(value, int | float) else {"x": 1} if value == {} else "x"


def edit(path: Path, change: Callable[[dict[str, Any]], object], *, sealed: bool) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(seal(record) if sealed else record))


def test_a_bundle_is_verified_with_its_files(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(whole), "--no-simulate"]) == 0
    out = capsys.readouterr().out
    assert f"{whole}: ok\n  allgather on star-4: 3 failures, files for 2 of them\n" in out
    assert out.count(".forest.json: ok\n") == out.count(".mscclpp.json: ok\n") == 2


@pytest.mark.parametrize("record", [INDEX, *(f"{folder_of(f)}/{NOTE}" for f in FAILURES)])
def test_no_claim_of_a_bundle_may_be_another(record: str, folder: Path) -> None:
    """Every leaf of a record, changed: refused by verify, and by the run that would go on."""
    text = (folder / record).read_text()
    check_bundle(folder)
    places = list(leaves(json.loads(text)))
    assert len(places) > 8
    for path, value in places:
        changed = json.loads(text)
        put(changed, path, other(value))
        (folder / record).write_text(json.dumps(changed))
        with pytest.raises(ForestCollError):
            check_bundle(folder)
        with pytest.raises(ForestCollError):
            make_bundle(REQUEST, FAILURES, folder, write)


def test_an_edited_figure_does_not_come_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = folder / folder_of(FAILURES[1]) / NOTE
    edit(note, lambda n: n.update(algbw="1234567"), sealed=False)
    with pytest.raises(ForestCollError, match=r"failure.json: was changed after it was made"):
        make_bundle(REQUEST, FAILURES, folder, write)
    assert main(["verify", str(folder), "--no-simulate"]) == 1
    assert "failure.json: was changed after it was made" in capsys.readouterr().err
    assert "1234567" not in (folder / INDEX).read_text()


def test_a_new_seal_does_not_make_it_true(whole: Path, folder: Path) -> None:
    """Index and record agree and are sealed: the forest, and the failure, say otherwise."""
    note = folder / folder_of(FAILURES[1]) / NOTE
    edit(note, lambda n: n.update(algbw="1234567"), sealed=True)
    with pytest.raises(ForestCollError, match=r"failure.json is not what bundle.json says of it"):
        check_bundle(folder)
    record = json.loads(note.read_text())
    edit(folder / INDEX, lambda i: i["failures"][1].update(record), sealed=True)
    with pytest.raises(ForestCollError, match=r"its algbw is 75; failure.json says 1234567"):
        check_bundle(folder)
    for one, two in ((1, 2), (2, 1)):  # the folder of one failure in the place of another
        shutil.rmtree(folder / folder_of(FAILURES[two]))
        shutil.copytree(whole / folder_of(FAILURES[one]), folder / folder_of(FAILURES[two]))
    with pytest.raises(ForestCollError, match="made for another problem"):
        make_bundle(REQUEST, FAILURES, folder, write)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": "forestcoll.bundle/1"}'])
def test_records_that_are_none_are_refused(text: str, folder: Path) -> None:
    (folder / INDEX).write_text(text)
    with pytest.raises(ForestCollError, match=r"bundle.json: (is no record|was changed)"):
        check_bundle(folder)
    for wrong in ({}, {"failures": 1}, {"failures": [{}]}, {"failures": [{"folder": 1}]}):
        record = seal({"format": "forestcoll.bundle/1", "problem": "x", **wrong})
        (folder / INDEX).write_text(json.dumps(record))
        with pytest.raises(ForestCollError, match=r"bundle.json: is no index of a bundle"):
            check_bundle(folder)


def test_a_bundle_refuses_what_it_did_not_make(folder: Path) -> None:
    other_formats = REQUEST._replace(formats=("forest", "msccl-xml"))
    with pytest.raises(ForestCollError, match="made for another problem or other formats"):
        make_bundle(other_formats, FAILURES, folder, write)
    one = folder / folder_of(FAILURES[1])
    next(path for path in one.iterdir() if path.name != NOTE).write_text("{}")
    with pytest.raises(ForestCollError, match="a file in it was changed"):
        make_bundle(REQUEST, FAILURES, folder, write)


@pytest.mark.slow
def test_a_cluster_makes_the_same_bundle(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from forestcoll.study.degrade import dask_cluster

    make_bundle(REQUEST, FAILURES, tmp_path / "there", write, dask_cluster.spread)
    for path in whole.rglob("*.json"):
        there = tmp_path / "there" / path.relative_to(whole)
        assert there.read_bytes() == path.read_bytes()


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from forestcoll.study.degrade import dask_cluster

    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.5)
    message = r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"
    with pytest.raises(UnsupportedError, match=message):
        list(dask_cluster.spread(REQUEST, FAILURES[:1], "tcp://127.0.0.1:9"))


# --- runs that were killed ------------------------------------------------------------------------


def test_a_bundle_goes_on_where_it_was(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut_off(texts: Any) -> None:
        if any(tmp_path.rglob(NOTE)):
            raise Cut
        write(texts)

    with pytest.raises(Cut):
        make_bundle(REQUEST, FAILURES, tmp_path, cut_off)
    assert not (tmp_path / INDEX).exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert make_bundle(REQUEST, FAILURES, tmp_path, write)["resumed"] == 1
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert make_bundle(REQUEST, FAILURES, tmp_path, write)["resumed"] == len(FAILURES)
    for failure in FAILURES:
        folder = tmp_path / folder_of(failure)
        note = json.loads((folder / NOTE).read_text())
        assert set(note["files"]) == {path.name for path in folder.iterdir()} - {NOTE}
        assert (note["algbw"] is None) == bool(note["reason"])


def die_at(count: int, run: Callable[[], object]) -> bool:
    """Whether a run in a process of its own ended by itself, not at its n-th change of files."""
    child = os.fork()
    if child == 0:
        left = [count]

        def counted(does: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*words: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return does(*words, **more)

            return wrapped

        try:
            for name in ("mkdir", "link", "replace", "unlink", "rmdir"):
                setattr(os, name, counted(getattr(os, name)))
            run()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return code == 0


@pytest.mark.forks
def test_a_killed_run_goes_on(whole: Path, made: dict[Failure, Made], tmp_path: Path) -> None:
    """Killed at each change that it makes to the files, and again while it goes on."""

    def spread(_: Request, todo: Iterable[Failure]) -> Iterator[tuple[Failure, Made]]:
        return iter([(failure, made[failure]) for failure in todo])

    def run(folder: Path) -> Callable[[], object]:
        def go_on() -> object:
            for failure in FAILURES:
                writing.prepare([folder / folder_of(failure) / NOTE], force=True)
            return make_bundle(REQUEST, FAILURES, folder, write, spread)

        return go_on

    def texts(folder: Path) -> dict[str, str]:
        files = (path for path in folder.rglob("*") if path.is_file() and STAGING not in path.parts)
        return {str(path.relative_to(folder)): path.read_text("utf-8") for path in files}

    count, ended = 0, False
    while not ended:
        count += 1
        folder = tmp_path / str(count)
        ended = die_at(count, run(folder))
        die_at(count % 7 + 1, run(folder))
        run(folder)()
        assert texts(folder) == texts(whole)
        assert not list(folder.rglob(STAGING)) or not ended
        check_bundle(folder)
    assert count > 30


@pytest.mark.parametrize("count", [2, 5, 7, 9, 11])
def test_the_command_goes_on(count: int, tmp_path: Path) -> None:
    command = [*MACHINE, "--format", "forest", "--kinds", "gpu", "--bundle", str(tmp_path / "b")]
    assert not die_at(count, lambda: main(command))
    assert main(command) == 0
    assert len(check_bundle(tmp_path / "b")) == 1
