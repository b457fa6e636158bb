"""The native engine under ThreadSanitizer and AddressSanitizer: built for it, run on a selection.

Where the compiler lacks them the tests are skipped, unless FORESTCOLL_SANITIZERS=required (as in
.ci/run): then they fail.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from artefacts import Artefacts
from native import BINDINGS, NATIVE, SOURCES, bindings, compile_, engine_sources, library, object_of

OPTIONS = {
    "TSAN_OPTIONS": "exitcode=66 halt_on_error=1",
    # Python itself leaves memory behind at its end, and so do extensions.
    "ASAN_OPTIONS": "exitcode=66 detect_leaks=0 abort_on_error=0",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["thread", "address"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compiled: Artefacts
) -> tuple[str, Path, Path]:
    """(sanitizer, its runtime, an engine that was built with it)."""
    sanitizer = str(request.param)
    runtime = library(sanitizer)
    folder = tmp_path_factory.mktemp(sanitizer)
    *nanobind, module = BINDINGS  # in the module, what only it includes: a GPU's relay
    checked = ["-g1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizer}"]

    def link(engine: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            objects = [
                pool.submit(object_of, [*engine_sources(), module], folder / "tested.o", *checked),
                pool.submit(bindings, compiled, folder, nanobind),
            ]
        files = [one.result() for one in objects]
        compile_("-shared", f"-fsanitize={sanitizer}", *files, "-o", engine, "-pthread")

    engine = compiled.once(f"engine-{sanitizer}.so", link, *NATIVE, Path(__file__))
    return sanitizer, runtime, engine


def run_with(
    built: tuple[str, Path, Path], *what: str, **more: str
) -> subprocess.CompletedProcess[str]:
    _, runtime, engine = built
    script = Path(__file__).with_name("sanitized.py")
    command = [sys.executable, str(script), str(engine), *what]
    if setarch := shutil.which("setarch"):  # ThreadSanitizer wants addresses where it expects them
        command = [setarch, platform.machine(), "--addr-no-randomize", *command]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
        env=os.environ
        | OPTIONS
        | {
            "LD_PRELOAD": str(runtime),
            "PYTHONPATH": str(SOURCES.parents[2]),
            "PYTHONMALLOC": "malloc",
            "OPENBLAS_NUM_THREADS": "1",
        }
        | more,
    )


@pytest.mark.timeout(900)
def test_a_selection_is_clean(built: tuple[str, Path, Path]) -> None:
    """Threads with both; processes too with AddressSanitizer (the other sees one process only)."""
    done = run_with(built, "right" if built[0] == "thread" else "right-processes")
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr
    assert int(done.stdout.split()[1]) > 30


@pytest.mark.timeout(900)
def test_rings_and_relays_are_clean(
    built: tuple[str, Path, Path], compiled: Artefacts, tmp_path: Path
) -> None:
    """GPUs of two nodes on the stand-in, whose engine is built with the sanitizer, too."""
    from forestcoll.execute.gpu.compiler import HEADERS, SOURCE

    flags = ["-g1", "-fno-omit-frame-pointer", "-O0", f"-fsanitize={built[0]}", "-shared", "-fPIC"]
    stand_in = Path(__file__).parent / "fixtures" / "emulated_gpu"

    def make(target: Path) -> None:
        compile_("-std=c++20", *flags, "-I", stand_in, "-x", "c++", SOURCE, "-o", target, "-lrt")

    made_of = SOURCE, *HEADERS, stand_in / "cuda_runtime.h", Path(__file__)
    gpus = compiled.once(f"emulated-gpu-{built[0]}.so", make, *made_of)
    quiet = tmp_path / "suppressions"  # of threads that end, of a library that was loaded late
    quiet.write_text("race:dl_deallocate_tls\n")
    options = f"{OPTIONS['TSAN_OPTIONS']} suppressions={quiet}"
    done = run_with(built, "rings", str(gpus), TSAN_OPTIONS=options)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr
    assert int(done.stdout.split()[1]) > 10


def test_what_is_not_clean_is_seen(built: tuple[str, Path, Path]) -> None:
    """A plan with a race, a buffer that is too short: else the test above would prove nothing."""
    sanitizer, what, found = {
        "thread": ("ThreadSanitizer", "racing", "data race"),
        "address": ("AddressSanitizer", "overrunning", "heap-buffer-overflow"),
    }[built[0]]
    done = run_with(built, what)
    assert done.returncode == 66, done.stderr[-3000:]
    assert f"{sanitizer}: {found}" in done.stderr
