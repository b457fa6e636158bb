"""C++ that tests build: engines with other flags or a changed source, and programs of their own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nanobind
import pytest
from artefacts import Artefacts

from forestcoll.execute import cpu

SOURCES = Path(cpu.__file__).parent / "native"
CLUSTER = SOURCES.with_name("cluster")
FAR = CLUSTER / "far.cpp"
UNKIND = Path(__file__).with_name("unkind.cpp")
NATIVE = [path for path in SOURCES.parent.rglob("*") if path.suffix in (".cpp", ".hpp")]
REQUIRED = os.environ.get("FORESTCOLL_SANITIZERS") == "required"
LIBRARIES = {
    "thread": ("libtsan.so", f"libclang_rt.tsan-{platform.machine()}.so"),
    "address": ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so"),
}
BINDINGS = [Path(nanobind.source_dir()) / "nb_combined.cpp", SOURCES / "module.cpp"]
OPTIONS = {
    "TSAN_OPTIONS": "exitcode=66 halt_on_error=1",
    # Python itself leaves memory behind at its end, and so do extensions.
    "ASAN_OPTIONS": "exitcode=66 detect_leaks=0 abort_on_error=0",
}
FLAGS: list[str | Path] = ["-std=c++20", "-I", SOURCES, "-I", CLUSTER]


def missing(reason: str) -> None:
    """Skip, or fail where sanitizers are required."""
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not found:
        missing("no C++ compiler")
    return str(found)


def compile_(*arguments: str | Path) -> None:
    done = subprocess.run(
        [compiler(), *map(str, arguments)], capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


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


def engine_sources() -> list[Path]:
    """What an engine is made of besides its bindings."""
    if not (SOURCES / "engine.cpp").exists():
        missing("the package was installed without its sources")
    sources = [path for path in sorted(SOURCES.glob("*.cpp")) if path.stem != "module"]
    return sources + sorted(set(CLUSTER.glob("*.cpp")) - {CLUSTER / "ucx.cpp"})


def joined(sources: list[Path], target: Path) -> Path:
    """One source for all, which takes half of the time of one by one; it lies beside `target`."""
    whole = target.with_suffix(".cpp")
    whole.write_text("".join(f'#include "{path}"\n' for path in sources))
    return whole


def object_of(sources: list[Path], target: Path, *flags: str) -> Path:
    """Sources compiled as one."""
    include = Path(nanobind.include_dir())
    common = ["-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-c", "-O0", "-I", include]
    robin = include.parent / "ext" / "robin_map" / "include"
    python = sysconfig.get_paths()["include"]
    compile_(
        *FLAGS, *common, "-I", robin, "-I", python, *flags, joined(sources, target), "-o", target
    )
    return target


def engine(compiled: Artefacts, folder: Path, place: Path, sanitizer: str, far: Path = FAR) -> None:
    """An engine with a sanitizer, `far` in the place of far.cpp; all else is compiled once."""
    checked = ["-g1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizer}"]
    nanobind_, module = BINDINGS  # in the module, what only it includes: a GPU's relay
    rest = [*(path for path in engine_sources() if path != FAR), module, UNKIND]

    def kept(name: str, sources: list[Path], *flags: str) -> Path:
        def make(target: Path) -> None:
            object_of(sources, folder / name, *flags).rename(target)

        return compiled.once(name, make, *sources, *NATIVE, UNKIND, Path(__file__))

    with ThreadPoolExecutor(2) as pool:
        objects = [
            pool.submit(kept, f"engine-{sanitizer}.o", rest, *checked),
            pool.submit(kept, "nanobind.o", [nanobind_]),
            pool.submit(object_of, [far], folder / "far.o", *checked),
        ]
    files = [one.result() for one in objects]
    compile_("-shared", f"-fsanitize={sanitizer}", *files, "-o", place, "-pthread", "-ldl")


def run_sanitized(
    sanitizer: str, engine: Path, *what: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`python sanitized.py ENGINE WHAT` with the sanitizer's runtime; `more`: environment."""
    script = Path(__file__).with_name("sanitized.py")
    command = [sys.executable, str(script), str(engine), *what]
    if setarch := shutil.which("setarch"):  # ThreadSanitizer wants addresses where it expects them
        command = [setarch, platform.machine(), "--addr-no-randomize", *command]
    kept = {
        "LD_PRELOAD": str(library(sanitizer)),
        "PYTHONPATH": str(SOURCES.parents[2]),
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
        env=os.environ | OPTIONS | kept | more,
    )
