"""C++ that tests build: engines with other flags or a changed source, and programs of their own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import nanobind
import pytest
from artefacts import Artefacts

from forestcoll.execute import cpu

SOURCES = Path(cpu.__file__).parent / "native"
CLUSTER = SOURCES.with_name("cluster")
NATIVE = [path for path in SOURCES.parent.rglob("*") if path.suffix in (".cpp", ".hpp")]
REQUIRED = os.environ.get("FORESTCOLL_SANITIZERS") == "required"
LIBRARIES = {
    "thread": ("libtsan.so", f"libclang_rt.tsan-{platform.machine()}.so"),
    "address": ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so"),
}
BINDINGS = [Path(nanobind.source_dir()) / "nb_combined.cpp", SOURCES / "module.cpp"]
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


def object_of(sources: list[Path], target: Path, *flags: str) -> Path:
    """Sources compiled as one, which takes half of the time of one by one."""
    include = Path(nanobind.include_dir())
    whole = target.with_suffix(".cpp")
    whole.write_text("".join(f'#include "{path}"\n' for path in sources))
    common = ["-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-c", "-O0", "-I", include]
    robin = include.parent / "ext" / "robin_map" / "include"
    python = sysconfig.get_paths()["include"]
    compile_(*FLAGS, *common, "-I", robin, "-I", python, *flags, whole, "-o", target)
    return target


def bindings(compiled: Artefacts, folder: Path, sources: list[Path] = BINDINGS) -> Path:
    """An engine's bindings: once for all engines."""
    name = f"bindings-{len(sources)}.o"

    def make(target: Path) -> None:
        object_of(sources, folder / name).rename(target)

    return compiled.once(name, make, *sources, *NATIVE, Path(__file__))
