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
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from artefacts import Artefacts

from forestcoll.execute import cpu

SOURCES = Path(cpu.__file__).parent / "native"
CLUSTER = SOURCES.with_name("cluster")
REQUIRED = os.environ.get("FORESTCOLL_SANITIZERS") == "required"
LIBRARIES = {
    "thread": ("libtsan.so", f"libclang_rt.tsan-{platform.machine()}.so"),
    "address": ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so"),
}
OPTIONS = {
    "TSAN_OPTIONS": "exitcode=66 halt_on_error=1",
    # Python itself leaves memory behind at its end, and so do extensions.
    "ASAN_OPTIONS": "exitcode=66 detect_leaks=0 abort_on_error=0",
}
PROBE = "int main() { return 0; }\n"
pytestmark = pytest.mark.slow


def missing(reason: str) -> None:
    """Skip, or fail where sanitizers are required."""
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def compile_(*arguments: str | Path) -> None:
    done = subprocess.run(
        [compiler(), *map(str, arguments)], capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not found:
        missing("no C++ compiler")
    return str(found)


def library(sanitizer: str) -> Path:
    """The compiler's runtime of a sanitizer."""
    for name in LIBRARIES[sanitizer]:
        done = subprocess.run(
            [compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            return path
    missing(f"{compiler()} has no shared runtime of -fsanitize={sanitizer}")
    raise AssertionError  # never here


@pytest.fixture(scope="module", params=["thread", "address"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compiled: Artefacts
) -> tuple[str, Path, Path]:
    """(sanitizer, its runtime, an engine that was built with it)."""
    import nanobind

    if not (SOURCES / "engine.cpp").exists():
        missing("the package was installed without its sources")
    sanitizer = str(request.param)
    runtime = library(sanitizer)
    folder = tmp_path_factory.mktemp(sanitizer)
    include = Path(nanobind.include_dir())
    common: list[str | Path] = [
        *("-std=c++20", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-c"),
        *(
            "-I",
            SOURCES,
            "-I",
            CLUSTER,
            "-I",
            include,
            "-I",
            include.parent / "ext" / "robin_map" / "include",
        ),
        *("-I", sysconfig.get_paths()["include"]),
    ]
    checked = ["-g1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizer}"]

    native = [path for path in SOURCES.parent.rglob("*") if path.suffix in (".cpp", ".hpp")]

    bindings = [Path(nanobind.source_dir()) / "nb_combined.cpp", SOURCES / "module.cpp"]
    tested = [path for path in sorted(SOURCES.glob("*.cpp")) if path.stem != "module"]
    tested += sorted(set(CLUSTER.glob("*.cpp")) - {CLUSTER / "ucx.cpp"})  # no part of the engine

    def build(sources: list[Path], target: Path, *flags: str) -> Path:
        """Sources as one, which takes half of the time of one by one."""
        whole = folder / f"{target.stem}.cpp"
        whole.write_text("".join(f'#include "{path}"\n' for path in sources))
        compile_(*common, *flags, "-O0", whole, "-o", target)
        return target

    def build_bindings() -> Path:
        """What is not tested: once for all sanitizers."""
        made_of = (*bindings, *native, Path(__file__))
        return compiled.once("bindings.o", lambda target: build(bindings, target), *made_of)

    def link(engine: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            objects = [
                pool.submit(build, tested, folder / "tested.o", *checked),
                pool.submit(build_bindings),
            ]
        files = [one.result() for one in objects]
        compile_("-shared", f"-fsanitize={sanitizer}", *files, "-o", engine, "-pthread")

    engine = compiled.once(f"engine-{sanitizer}.so", link, *native, Path(__file__))
    return sanitizer, runtime, engine


def run_with(built: tuple[str, Path, Path], what: str) -> subprocess.CompletedProcess[str]:
    _, runtime, engine = built
    script = Path(__file__).with_name("sanitized.py")
    command = [sys.executable, str(script), str(engine), what]
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
        },
    )


@pytest.mark.timeout(900)
def test_a_selection_is_clean(built: tuple[str, Path, Path]) -> None:
    """Threads with both; processes too with AddressSanitizer (the other sees one process only)."""
    done = run_with(built, "right" if built[0] == "thread" else "right-processes")
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr
    assert int(done.stdout.split()[1]) > 30


def test_what_is_not_clean_is_seen(built: tuple[str, Path, Path]) -> None:
    """A plan with a race, a buffer that is too short: else the test above would prove nothing."""
    sanitizer, what, found = {
        "thread": ("ThreadSanitizer", "racing", "data race"),
        "address": ("AddressSanitizer", "overrunning", "heap-buffer-overflow"),
    }[built[0]]
    done = run_with(built, what)
    assert done.returncode == 66, done.stderr[-3000:]
    assert f"{sanitizer}: {found}" in done.stderr
