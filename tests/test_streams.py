"""Standard streams that are closed, full or unread, and signals from the first import on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import finished
from stored_schedules import SCHEDULES

from forestcoll.ui.cli import process as signals

SYNTHESIZE = ("synthesize", "-t", "ring", "-c", "allgather")


def shell(line: str, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`line` in bash, where $F is the program and $1, $2 ... are `words`."""
    program = f"{sys.executable} -m forestcoll"
    return subprocess.run(
        ["bash", "-c", line.replace("$F", program), "bash", *words],
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )


ROWS = """
1 $F optimum -t ring -c allgather >&- # standard output is closed; > /dev/null throws results away
1 $F --help >&- # standard output is closed; > /dev/null throws results away
1 $F doctor >&- # standard output is closed; > /dev/null throws results away
0 $F optimum -t ring -c allgather 2>&- | grep "allgather on ring-8" >/dev/null #
1 $F optimum -t no -c reduce 2>&- #
2 $F optimum --nothing 2>&- #
1 $F optimum -t ring -c allgather <&- >&- 2>&- #
1 $F verify - <&- # -: standard input is closed; name a file
1 $F optimum -t ring -c allgather >/dev/full # No space left on device
1 $F --help >/dev/full # No space left on device
1 $F --version >/dev/full # No space left on device
1 $F topology show ring --source >/dev/full # No space left on device
1 $F synthesize -t ring -c allgather --format forest -o - -q >/dev/full # No space left on device
"""
"""An exit code, a line of bash, and the error."""


@pytest.mark.parametrize("row", ROWS.strip().splitlines())
def test_streams_that_are_closed_or_full(row: str) -> None:
    code, _, rest = row.partition(" ")
    line, _, error = rest.partition(" #")
    found = shell(f"set -o pipefail; {line}")
    said = f"forestcoll: error:{error}\n" if error else ""
    assert (found.returncode, found.stdout, found.stderr.decode()) == (int(code), b"", said)


def test_no_file_becomes_a_closed_stream(tmp_path: Path) -> None:
    """Else what is said later would be written into it."""
    line = '$F "$@" -o "$0/x.forest.json" --json 2>&- <&- >"$0/said"'
    assert shell(line.replace("$0", str(tmp_path)), *SYNTHESIZE).returncode == 0
    assert shell('$F verify "$1"', str(tmp_path / "x.forest.json")).returncode == 0
    assert (tmp_path / "said").read_text().startswith("{")


def test_standard_input_twice() -> None:
    found = shell("$F synthesize -t ring -c allgather --format forest -o - | $F verify - -")
    assert found.returncode == 1
    assert found.stdout.startswith(b"-: ok")
    assert b"forestcoll: error: -: the file is empty" in found.stderr
    assert b"Traceback" not in found.stderr


def test_nobody_reads() -> None:
    line = '$F synthesize -t ring -c allgather --format msccl-xml -o - | true; echo "${PIPESTATUS}"'
    found = shell(line)
    assert found.stdout.split()[-1:] in ([b"141"], [b"0"])  # 0: written before `true` ended
    assert b"Traceback" not in found.stderr
    assert b"Exception" not in found.stderr


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    for more in ((), ("--json", "--force")):
        found = shell('$F "$@"', *SYNTHESIZE, "-o", f"{folder}/", *more)
        assert (found.returncode, found.stderr) == (0, b"")
        said = b"".join(found.stdout.split())  # a table breaks long lines
        assert b"\\udcff\\udcfe/ring-8.allgather.msccl.xml" in said
        assert len(os.listdir(folder)) == 3
    found = shell('$F verify "$1"/*; $F verify "$1"/none; $F deploy "$1" --runtime msccl', folder)
    assert found.stdout.count(b": ok") == 3
    assert b"Traceback" not in found.stderr
    found = shell('$F "$@"', *SYNTHESIZE, "-o", f"{folder}/")
    assert found.returncode == 1
    assert b"exists already" in found.stderr


def test_names_that_the_locale_has_no_letters_for(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "format: forestcoll.topology/1\nname: near\nnodes:\n  nähe: {kind: gpu}\n"
        "  ferne: {kind: gpu}\nlinks:\n  - {src: nähe, dst: ferne, bandwidth: 1}\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (
        ("topology", "expand", str(tmp_path / "t.yaml")),
        ("synthesize", "-t", str(tmp_path / "t.yaml"), "-c", "allgather", "--format", "forest"),
        ("optimum", "-t", str(tmp_path / "t.yaml"), "-c", "allgather", "--json"),
    ):
        more = ("-o", "-") if words[0] == "synthesize" else ()
        found = shell('$F "$@"', *words, *more, **plain)
        assert found.returncode == 0, found.stderr
        assert b"Traceback" not in found.stderr


AT_IMPORT = """
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.Signals[number])
module, number = sys.argv[1:3]
sys.meta_path.insert(0, Finder())
from forestcoll.__main__ import main
sys.argv[1:] = sys.argv[3:]
sys.exit(main())
"""


MODULES = """
click forestcoll.ui.cli.synthesize forestcoll.plans numpy numpy._core.overrides: INT 130 interrupted
forestcoll.graph.kernel._kernel: TERM 143 terminated
yaml: HUP 129 hung up
"""


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (module, told)
        for row in MODULES.strip().splitlines()
        for names, _, told in [row.partition(": ")]
        for module in names.split()
    ],
)
def test_a_signal_during_imports(module: str, told: str) -> None:
    name, code, said = told.split(" ", 2)
    plan = SCHEDULES / "dgx-a100-1" / "allgather.msccl.xml"
    words = [sys.executable, "-c", AT_IMPORT, module, f"SIG{name}", "run", plan, "--size", "1K"]
    found = finished(*words)
    assert (found.returncode, found.stdout, found.stderr) == (
        int(code),
        "",
        f"forestcoll: {said}\n",
    )


# ------------------------------------------------------------------------------------- in a process


@pytest.fixture
def stops() -> signals.Stops:
    return signals.Stops()


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*signals.WORDS, signal.SIGALRM)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_second_signal_is_no_news(stops: signals.Stops) -> None:
    """`timeout` signals the process and its group; what it unwinds must not be cut off."""
    stops.listen()
    with pytest.raises(signals.Stopped) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert stops.first is caught.value


def test_a_late_second_signal_ends_what_hangs() -> None:
    text = (
        "import signal, time\nfrom forestcoll.ui.cli import process as signals\n"
        "signals.REPEAT_SECONDS = 0.0\nstops = signals.Stops(); stops.listen()\n"
        "try: signal.raise_signal(signal.SIGTERM)\n"
        "except KeyboardInterrupt: time.sleep(0.01); signal.raise_signal(signal.SIGTERM)\n"
    )
    found = subprocess.run([sys.executable, "-c", text], timeout=60)
    assert found.returncode == -signal.SIGTERM


def test_a_finalizer_does_not_swallow_the_signal(stops: signals.Stops) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def drop() -> None:
        thing = Finalized()
        del thing
        for _ in range(1000):
            time.sleep(0.01)

    stops.listen()
    with pytest.raises(signals.Stopped):
        drop()


@pytest.mark.parametrize("number", list(signals.WORDS), ids=str)
def test_held_signals_come_afterwards(number: signal.Signals, stops: signals.Stops) -> None:
    stops.listen()
    done = []

    def work(check: bool) -> None:
        with signals.hold() as held:
            signal.raise_signal(number)
            done.append(1)
            if check:
                held.check()
            done.append(2)

    with pytest.raises(signals.Stopped):
        work(check=False)
    assert done == [1, 2]
    stops.first = None
    with pytest.raises(signals.Stopped):
        work(check=True)
    assert done == [1, 2, 1]


def test_threads_hold_nothing() -> None:
    found: list[object] = []

    def work(note: Callable[[object], None]) -> None:
        with signals.hold() as held:
            note(held.numbers)

    thread = threading.Thread(target=work, args=(found.append,))
    thread.start()
    thread.join()
    assert found == [[]]
