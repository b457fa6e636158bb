"""What this installation has and what it lacks: the findings of `forestcoll doctor`."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.builds import cache_folder
from forestcoll.execute.sizes import machine_memory

if TYPE_CHECKING:
    from forestcoll.execute.gpu.compiler import Platform

OK, MISSING, ABSENT = "ok", "MISSING", "-"
"""States of a finding: there; needed and not there; not there, and only some features want it."""

PACKAGES = ("click", "networkx", "numpy", "ortools", "pydantic", "PyYAML", "rich")
COMPILERS = ("c++", "g++", "clang++")


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    state: str
    found: str


Said = tuple[str, str]
"""State and words of a finding."""


def examine() -> list[Finding]:
    """All findings, the needed ones first. Runs `--version` of compilers; imports nothing heavy."""
    rows = [
        ("Python", _python()),
        ("native kernel", _native("forestcoll.graph.kernel._kernel")),
        ("native engine", _native("forestcoll.execute._engine")),
        *((name, _package(name)) for name in PACKAGES),
        ("catalogue", _catalogue()),
        ("C++ compiler", _compiler()),
        ("nvcc", _gpu_compiler("cuda", "NVIDIA GPUs")),
        ("hipcc", _gpu_compiler("hip", "AMD GPUs")),
        ("GPU engine", _gpu()),
        ("torch", _torch()),
        ("UCX", _ucx()),
        ("fabric lab", _lab()),
        ("machine", _machine()),
    ]
    return [Finding(what, *said) for what, said in rows]


def _python() -> Said:
    enough = sys.version_info >= (3, 11)
    version = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    return (OK, version) if enough else (MISSING, f"{version}; needs 3.11")


def _native(module: str) -> Said:
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        return MISSING, f"install again (pip install .): {error}"
    return OK, str(loaded.__file__)


def _package(name: str) -> Said:
    try:
        return OK, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING, f"not installed; pip install {name}"


def _catalogue() -> Said:
    from forestcoll.topology import catalog

    names = catalog.names()
    if not names:
        return MISSING, "no topology files are installed"
    return OK, f"{len(names)} topologies"


def _compiler() -> Said:
    path = next((p for p in map(shutil.which, COMPILERS) if p), None)
    if path is None:
        return ABSENT, "not found (only for building from source)"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ABSENT, f"{path} does not run: {error}"
    return OK, _version_words(path, done.stdout)


def _gpu_compiler(kind: Platform, purpose: str) -> Said:
    """What the GPU engine would call, and what that says of itself when called so."""
    from forestcoll.execute.gpu import compiler

    compiler_there = compiler.find_compiler(kind)
    if compiler_there is None:
        return ABSENT, f"not found (only for {purpose})"
    if not compiler_there.version:
        return ABSENT, f"{compiler_there.path} does not run"
    return OK, _version_words(compiler_there.path, compiler_there.version)


def _ucx() -> Said:
    """Whether processes can reach each other over UCX."""
    from forestcoll.execute.cluster import ucx

    library = ucx.find_library()
    if library is None:
        return ABSENT, "not found (only for run --wire ucx)"
    try:
        words = f"{ucx.version(library)} ({library})"
    except UnsupportedError as error:
        return ABSENT, str(error)
    headers = ucx.find_headers()
    if headers is None:
        return ABSENT, f"{words}, but its headers are missing: it is compiled here"
    return OK, f"{words}, headers in {headers}"


def _version_words(path: str, version: str) -> str:
    """A path, with the telling line of what its `--version` prints."""
    lines = [line.strip() for line in version.splitlines() if line.strip()]
    line = next((line for line in lines if "release" in line.lower()), lines[0] if lines else "")
    return f"{path} ({line})" if line else path


def _gpu() -> Said:
    """Whether the GPU engine can run, and what it lacks if not."""
    from forestcoll.execute.gpu import compiler

    platform_there = compiler.find_platform()
    if platform_there is None:
        return ABSENT, "no GPU is seen (nvidia-smi, rocm_agent_enumerator)"
    kind, architectures = platform_there
    names = ", ".join(architectures)
    if compiler.find_compiler(kind) is None:
        lacks = "nvcc (CUDA toolkit)" if kind == "cuda" else "hipcc (ROCm)"
        return ABSENT, f"{names}, but {lacks} is missing: it is compiled here"
    return OK, f"{names}; compiled on first use into {cache_folder()}"


def _torch() -> Said:
    if importlib.util.find_spec("torch") is None:
        return ABSENT, "not installed (only for the torch engine and the lab)"
    known = _package("torch")
    return known if known[0] == OK else (OK, "of unknown version")


def _lab() -> Said:
    """Whether `forestcoll lab` can run; all that it lacks, not only the first."""
    from forestcoll.execute.lab import lacking

    reason = lacking()
    if importlib.util.find_spec("torch") is None:
        reason = "; ".join(filter(None, (reason, "the lab needs PyTorch")))
    if reason:
        return ABSENT, reason
    return OK, "root, ip, tc, network namespaces, torch"


def _machine() -> Said:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory, told = machine_memory(), ""
    if {"MemTotal", "MemAvailable"} <= memory.keys():
        total, free = (memory[name] / 2**30 for name in ("MemTotal", "MemAvailable"))
        told = f", {total:.1f} GiB memory, {free:.1f} free"
    return OK, f"{platform.machine()}, {cores} cores{told}"
