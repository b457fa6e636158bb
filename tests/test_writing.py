"""Files appear whole or not at all, and nobody else's are lost, wherever a run ends."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forestcoll.common.errors import OutputError
from forestcoll.ui import cli
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.writing import STAGING

CALLS = ("mkdir", "rmdir", "link", "replace", "unlink", "open", "close")
"""What the writer asks of the system."""


@contextmanager
def at_call(number: int, act: Callable[[], None], after: bool = False) -> Iterator[list[str]]:
    """Do something before (or after) the call of that number; yields the calls so far."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in CALLS}

    def watched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            mine = len(calls) == number
            if mine and not after:
                act()
            try:
                return real[name](*arguments, **options)
            finally:
                if mine and after:
                    act()

        return call

    try:
        for name in CALLS:
            setattr(os, name, watched(name))
        yield calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def tree(folder: Path) -> dict[str, str]:
    """All that lies below, hidden or not; of folders the names alone."""
    return {
        str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in folder.rglob("*")
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


OLD = {"a": "old a", "deep/b": "old b", "extra": "old extra", "index": "old index", "mine": "mine"}
NEW = {"a": "new a", "deep/b": "new b", "more/c": "new c", "index": "new index"}
AFTER = {**NEW, "deep": "", "more": "", "mine": "mine"}
either_start = pytest.mark.parametrize("start", [{}, OLD], ids=["fresh", "over-a-set"])


def put(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write(folder: Path, force: bool = True) -> None:
    """NEW over OLD, whose `extra` goes and whose `mine` is not the set's."""
    known = {folder / "extra": digest(OLD["extra"]), folder / "mine": digest("another's")}
    texts = {folder / name: text for name, text in NEW.items()}
    writing.write_all(texts, force, lambda: known)


def whole_set(start: Mapping[str, str]) -> dict[str, str]:
    """What lies in the folder after a write that came to its end."""
    return AFTER if start else {**NEW, "deep": "", "more": ""}


def in_child(act: Callable[[], None]) -> int:
    """The exit code of a process that does it; 1 where it may not write."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except OutputError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, folder: Path) -> int:
    """The exit code of a process that writes there, and is killed at that call."""

    def act() -> None:
        with at_call(number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            write(folder)

    return in_child(act)


def all_calls(folder: Path, start: Mapping[str, str]) -> int:
    put(folder, start)
    with at_call(0, lambda: None) as calls:
        write(folder)
    return len(calls)


def takes(folder: Path) -> None:
    """A file can be written there."""
    writing.write_all({folder / "a": "1"}, force=False)
    assert tree(folder) == {"a": "1"}


def refuses(words: str, *paths: Path, force: bool = False) -> None:
    with pytest.raises(OutputError, match=words):
        writing.write_all(dict.fromkeys(paths, "1"), force)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "WAIT_SECONDS", 0.1)


# ------------------------------------------------------------------------------ without trouble


def test_whole_files_and_folders_and_nothing_else(tmp_path: Path) -> None:
    a, b = tmp_path / "new" / "deep" / "a", tmp_path / "new" / "b"
    writing.write_all({a: "älpha\n", b: "beta\n"}, force=False)
    assert tree(tmp_path / "new") == {"deep": "", "deep/a": "älpha\n", "b": "beta\n"}
    assert a.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.write_text("old")
    with pytest.raises(OutputError, match="b: exists already; --force overwrites it"):
        writing.write_all({a: "new", b: "new"}, force=False)
    assert tree(tmp_path) == {"b": "old"}
    writing.write_all({a: "new", b: "new"}, force=True)
    assert tree(tmp_path) == {"a": "new", "b": "new"}


def test_an_earlier_set_is_replaced_and_what_has_changed_stays(tmp_path: Path) -> None:
    put(tmp_path, OLD)
    write(tmp_path)
    assert tree(tmp_path) == AFTER


def test_what_can_never_be_a_file(tmp_path: Path) -> None:
    """And a link that leads nowhere is taken."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refuses("exists already", tmp_path / "link")
    refuses("is a directory", tmp_path, force=True)
    refuses("is not a directory", tmp_path / "file" / "x", force=True)
    refuses("not a regular file", Path("/dev/null"), force=True)
    assert tree(tmp_path) == {"file": "", "link": ""}


def test_force_replaces_a_link_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years")
    (tmp_path / "link").symlink_to("thesis")
    writing.write_all({tmp_path / "link": "plan", tmp_path / "b": ""}, force=True)
    assert tree(tmp_path) == {"thesis": "years", "link": "plan", "b": ""}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refuses("Permission denied", tmp_path / "a")


def test_no_way_through_links_within_a_set(tmp_path: Path) -> None:
    put(tmp_path, {"out/x": "", "home/key": "secret"})
    (tmp_path / "out" / "lnk").symlink_to(tmp_path / "home")
    texts = {tmp_path / "out" / "lnk" / "new": "1", tmp_path / "out" / "index": "2"}
    with pytest.raises(OutputError, match="lnk is a symbolic link; files of one set lie in one"):
        writing.write_all(texts, force=True)
    named = {tmp_path / "out" / "lnk" / "key": digest("secret"), tmp_path / "home/key": "secret"}
    named |= {tmp_path / "out" / ".." / "home" / "key": digest("secret")}
    writing.write_all({tmp_path / "out" / "index": "2"}, force=True, earlier=lambda: named)
    assert (tmp_path / "home" / "key").read_text() == "secret"
    # the folder itself may be given through a link
    (tmp_path / "short").symlink_to(tmp_path / "home")
    writing.write_all({tmp_path / "short" / "x" / "y": "1", tmp_path / "short" / "z": "2"}, False)
    assert (tmp_path / "home" / "x" / "y").read_text() == "1"


# ------------------------------------------------------------------------- stopped at every call


def everywhere(
    tmp_path: Path, start: Mapping[str, str], stop: Callable[[Path, int], None]
) -> Iterator[tuple[int, Path]]:
    """(call, folder) after `stop(folder, call)`, for every call of a write, in fresh folders."""
    last = all_calls(tmp_path / "count" / "out", start)
    assert last > 20
    for number in range(1, last + 1):
        folder = tmp_path / str(number) / "out"
        put(folder, start)
        stop(folder, number)
        yield number, folder


@either_start
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_anywhere_leaves_all_or_nothing(
    tmp_path: Path, start: dict[str, str], signal_number: signal.Signals
) -> None:
    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    def stop(folder: Path, number: int) -> None:
        before = tree(folder)
        raised = False
        with at_call(number, lambda: signal.raise_signal(signal_number), after=number % 2 == 0):
            try:
                write(folder)
            except KeyboardInterrupt:
                raised = True
        assert raised, f"call {number}: the signal was lost"
        whole = whole_set(start)
        found = tree(folder)
        assert found in (before, whole), f"call {number}"
        ends.add(found == whole)

    ends: set[bool] = set()
    old = signal.signal(signal_number, raise_it)
    try:
        for number, folder in everywhere(tmp_path, start, stop):
            assert not (folder / STAGING).exists(), f"call {number}"
    finally:
        signal.signal(signal_number, old)
    assert ends == {True, False}


@either_start
def test_an_error_anywhere_leaves_nothing_behind(tmp_path: Path, start: dict[str, str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def stop(folder: Path, number: int) -> None:
        before = tree(folder)
        try:
            with at_call(number, full):
                write(folder)
        except OutputError as error:
            told.add(str(error).split(" ", 1)[0] + str(error).rpartition(":")[2])
        left = {k: v for k, v in tree(folder).items() if not k.startswith(STAGING)}
        if left.keys() >= {"extra", "more"}:
            del left["extra"]  # could not be read: it stays
        whole = whole_set(start)
        assert left in (before, whole), f"call {number}"

    told: set[str] = set()
    for _ in everywhere(tmp_path, start, stop):
        pass
    assert told == {"cannot No space left on device"}


def recovered(folder: Path) -> dict[str, str]:
    """What lies there after another write, less what it wrote."""
    writing.write_all({folder / "other": "1"}, force=False)
    found = tree(folder)
    assert found.pop("other") == "1"
    return found


@pytest.mark.forks
@either_start
def test_the_next_run_recovers_from_a_kill_anywhere(tmp_path: Path, start: dict[str, str]) -> None:
    """Killed at call k; the next run that writes anything there first undoes what was begun."""
    seen: set[tuple[str, bool]] = set()

    def stop(folder: Path, number: int) -> None:
        before, whole = tree(folder), whole_set(start)
        assert killed_at(number, folder) == -signal.SIGKILL
        seen.add(("left", (folder / STAGING / "journal.json").exists()))
        seen.add(("said", bool(writing.explain_remains(folder))))
        found = recovered(folder)
        assert found in (before, whole), f"call {number}"
        seen.add(("whole", found == whole))

    for _ in everywhere(tmp_path, start, stop):
        pass
    assert len(seen) == 6


@pytest.mark.forks
def test_recovery_itself_may_be_killed_anywhere(tmp_path: Path) -> None:
    put(tmp_path / "out", OLD)
    before = tree(tmp_path / "out")
    last = all_calls(tmp_path / "count", OLD)
    for first in range(last // 2, last, 9):
        for second in range(1, 60, 4):
            folder = tmp_path / f"{first}-{second}"
            put(folder, OLD)
            for number in (first, second):
                killed_at(number, folder)
            assert recovered(folder) in (before, AFTER), f"calls {first} and {second}"


# ------------------------------------------------------------------------------------- two runs


@pytest.mark.parametrize("force", [False, True])
def test_another_run_in_between(tmp_path: Path, force: bool) -> None:
    """At every call of run A: run B writes a set of its own there, and A is interrupted."""

    def other(folder: Path) -> Callable[[], None]:
        def run_b() -> None:
            writing.WAIT_SECONDS = 0.0
            writing.write_all({folder / "a": "B's a", folder / "index": "B's index"}, force)

        def act() -> None:
            theirs.append(in_child(run_b))
            raise KeyboardInterrupt

        return act

    mine = {"a": "A's a", "deep/b": "A's b", "index": "A's index"}
    ends = []
    for number in range(1, 200):
        folder = tmp_path / str(number) / "out"
        theirs: list[int] = []
        with at_call(number, other(folder)) as calls:
            try:
                writing.write_all({folder / k: text for k, text in mine.items()}, force)
                done = True
            except (KeyboardInterrupt, OutputError):
                done = False
        if not theirs:
            assert len(calls) < number
            break
        found = tree(folder.parent)
        if theirs == [0]:  # B has its whole set, whatever became of A
            assert found["out/a"] == "B's a"
            assert found["out/index"] == "B's index"
        elif not done:
            assert found == {} or found["out/index"] == "A's index"
        ends.append((theirs[0], done))
    assert {code for code, _ in ends} == {0, 1}


def test_two_runs_at_once_without_force(tmp_path: Path) -> None:
    """One of many gets its set, the others the error; none is mixed from two."""
    runs = 8
    for turn in range(4):
        folder = tmp_path / str(turn) / "out"
        children = []
        for run in range(runs):
            child = os.fork()
            if child == 0:
                try:
                    writing.write_all(
                        {folder / f"deep/{k}": f"{run}" for k in range(5)}
                        | {folder / "index": f"{run}"},
                        force=False,
                    )
                except OutputError as error:
                    os._exit(1 if "exists already" in str(error) else 2)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
        assert sorted(codes) == [0] + [1] * (runs - 1)
        texts = set(tree(folder).values()) - {""}
        assert texts == {str(codes.index(0))}


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_another_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refuses("another run is writing there; try again when it has", tmp_path / "a")
    threading.Timer(0.3, os.close, [held]).start()
    monkeypatch.setattr(writing, "WAIT_SECONDS", 20.0)
    takes(tmp_path)


def own(folder: Path, process: int, host: str) -> Path:
    """The staging folder of a process on that host."""
    owner = folder / STAGING / "owner.json"
    owner.parent.mkdir(exist_ok=True)
    owner.write_text(json.dumps({"process": process, "host": host}))
    return owner


@pytest.mark.usefixtures("impatient")
def test_a_run_of_another_host_is_not_taken_for_dead(tmp_path: Path) -> None:
    owner = own(tmp_path, 5, "elsewhere")
    refuses(r"process 5 on elsewhere .*if it is gone, remove .*owner", tmp_path / "a")
    owner.unlink()
    takes(tmp_path)


@pytest.mark.usefixtures("impatient")
def test_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the process that the staging folder names has to be gone."""

    def refuse(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    host = os.uname().nodename
    own(tmp_path, os.getppid(), host)
    refuses(f"process {os.getppid()} on {host} is writing there", tmp_path / "a")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    own(tmp_path, child.pid, host)
    takes(tmp_path)


@either_start
def test_where_files_have_one_name_only(
    tmp_path: Path, start: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path, start)
    write(tmp_path)
    assert tree(tmp_path) == whole_set(start)
    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path, force=False)
    with pytest.raises(OutputError, match="another program has just made it"):
        writing.place(tmp_path / "a", tmp_path / "index", replaces=False)
    assert (tmp_path / "index").read_text() == NEW["index"]


def test_a_file_that_appears_in_the_last_moment_stays(tmp_path: Path) -> None:
    texts = {tmp_path / name: name for name in "abc"}
    real = os.link

    def late(source: Path, target: Path, **options: Any) -> None:
        if target.name == "b":
            target.write_text("somebody's")
        real(source, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(OutputError, match="b: another program has just made it; nothing is"):
            writing.write_all(texts, force=False)
    assert tree(tmp_path) == {"b": "somebody's"}


# --------------------------------------------------------------------------------- lying journals


@pytest.mark.parametrize(
    "lie",
    [
        {"path": "../home/key"},
        {"path": "lnk/key"},
        {"path": "/etc/hostname"},
        {"new": "../../home/key"},
        {"old": "../x"},
        {"old": ""},
        {"more": 1},
    ],
)
def test_a_journal_that_names_other_places(tmp_path: Path, lie: dict[str, Any]) -> None:
    put(tmp_path, {"home/key": "secret", f"out/{STAGING}/old-0": "x"})
    (tmp_path / "out" / "lnk").symlink_to(tmp_path / "home")
    change = {"path": "a", "new": "new-0", "sha256": digest("secret"), "old": "old-0", **lie}
    journal = {"format": writing.FORMAT, "changes": [change], "folders": []}
    (tmp_path / "out" / STAGING / "journal.json").write_text(json.dumps(journal))
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"journal\.json: is no journal of this version"):
        writing.write_all({tmp_path / "out" / "b": "1"}, force=True)
    assert tree(tmp_path) == before


# ------------------------------------------------------------------------------- the command line


COMMAND = ("synthesize", "-t", "ring", "--set", "gpus=4", "-c", "allgather")
SET = (*COMMAND, "--sizes", "1K:1M")
SLOW = """
import os, signal, sys, time
real = os.link
def link(source, target, **options):
    real(source, target, **options)
    print("placed", target, flush=True)
    time.sleep(0.4)
os.link = link
from forestcoll.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"),
     (signal.SIGHUP, 129, "hung up")],
)  # fmt: skip
def test_a_signal_between_renames(tmp_path: Path, number: int, code: int, word: str) -> None:
    """The set is whole, the exit code is the signal's, and a run that waited says `exists`."""
    out = tmp_path / "out"
    words = [sys.executable, "-c", SLOW, *COMMAND, "-o", f"{out}/"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        assert first.stdout.readline().startswith("placed")
        second = subprocess.Popen(
            [sys.executable, "-m", "forestcoll", *COMMAND, "-o", f"{out}/"], stderr=pipe, text=True
        )
        time.sleep(0.05)
        first.send_signal(number)
        said = first.stderr.read()
        assert first.wait(60) == code
    assert said == f"forestcoll: {word}\n"
    _, error = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "exists already; --force overwrites it" in error
    assert sorted(p.name for p in out.iterdir()) == [
        f"ring-4.allgather.{suffix}" for suffix in ("forest.json", "msccl.xml", "mscclpp.json")
    ]


def test_nohup_is_left_alone(tmp_path: Path) -> None:
    words = ["nohup", sys.executable, "-c", SLOW, *COMMAND, "-o", f"{tmp_path}/out/"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=-3, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("placed")
        process.send_signal(signal.SIGHUP)
        process.stdout.read()
        assert process.wait(60) == 0


def test_an_old_index_that_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--sizes --force` takes nothing away but the earlier set's own forests and plans."""
    out = tmp_path / "set"
    words = (*SET, "-o", f"{out}/")
    assert cli.main(words) == 0
    forest = next((out / "forests").iterdir())
    put(tmp_path, {"home/x.forest.json": "key", "set/thesis.txt": "years"})
    put(out, {"forests/mine.forest.json": "mine", "forests/other.txt": "", "plain": ""})
    (out / "lnk").symlink_to(tmp_path / "home")
    (out / "forests" / "lnk.forest.json").symlink_to(tmp_path / "home" / "x.forest.json")
    index = json.loads((out / "index.json").read_text())
    entry = index["forests"][0]
    for name, text in (
        ("thesis.txt", "years"), ("lnk/x.forest.json", "key"), ("../home/x.forest.json", "key"),
        ("forests/lnk.forest.json", "key"), ("forests/mine.forest.json", "another's"),
        ("forests/other.txt", ""), ("forests/../plain", ""),
        (str(tmp_path / "home" / "x.forest.json"), "key"),
    ):  # fmt: skip
        index["forests"].append({**entry, "file": name, "sha256": digest(text)})
    index["forests"].append({**entry, "file": "forests/gone.forest.json"})
    put(out, {"forests/gone.forest.json": forest.read_text(), "index.json": json.dumps(index)})
    assert cli.main((*words, "--force")) == 0, capsys.readouterr().err
    assert (tmp_path / "home" / "x.forest.json").read_text() == "key"
    for name in ("thesis.txt", "plain", "lnk", "forests/mine.forest.json", "forests/other.txt"):
        assert (out / name).exists(), name
    assert (out / "forests" / "lnk.forest.json").is_symlink()
    assert not (out / "forests" / "gone.forest.json").exists()


def test_a_changed_plan_is_not_taken_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "set"
    words = (*SET, "-o", f"{out}/", "--force")
    assert cli.main(words) == 0
    plan = next((out / "msccl-xml").iterdir())
    plan.write_text(plan.read_text() + "<!-- measured -->")
    before = tree(out)
    capsys.readouterr()
    assert cli.main(words) == 1
    assert "is not the file that the set in" in capsys.readouterr().err
    assert tree(out) == before


def test_a_set_that_a_killed_run_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`verify` says what to do; the next `synthesize` gives its whole set."""
    out = tmp_path / "set"
    words = (*SET, "-o", f"{out}/")
    killed = SLOW.replace("time.sleep(0.4)", "os.kill(os.getpid(), signal.SIGKILL)")
    process = subprocess.run([sys.executable, "-c", killed, *words], capture_output=True)
    assert process.returncode == -signal.SIGKILL
    assert cli.main(("verify", str(out))) == 1
    assert "the next command that writes into this folder undoes" in capsys.readouterr().err
    assert cli.main(words) == 0
    assert cli.main(("verify", str(out))) == 0
    assert not (out / STAGING).exists()
    shutil.rmtree(out)
