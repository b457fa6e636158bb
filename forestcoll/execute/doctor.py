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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.builds import cache_folder
from forestcoll.execute.sizes import machine_memory

if TYPE_CHECKING:
    from forestcoll.execute.gpu.compiler import Platform

OK, MISSING, ABSENT = "ok", "MISSING", "-"
"""States of a finding: there; needed and not there; not there, and only some features want it."""

PACKAGES = ("click", "networkx", "numpy", "ortools", "pydantic", "PyYAML", "rich")
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    state: str
    found: str


def examine() -> list[Finding]:
    """All findings, the needed ones first. Runs `--version` of compilers; imports nothing heavy."""
    return [
        _python(),
        _native("kernel", "forestcoll.graph.kernel._kernel"),
        _native("engine", "forestcoll.execute._engine"),
        *map(_package, PACKAGES),
        _catalogue(),
        _compiler(),
        _gpu_compiler("nvcc", "cuda", "NVIDIA GPUs"),
        _gpu_compiler("hipcc", "hip", "AMD GPUs"),
        _gpu(),
        _torch(),
        _ucx(),
        _lab(),
        _machine(),
    ]


def _python() -> Finding:
    enough = sys.version_info >= (3, 11)
    version = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    return Finding(
        "Python", OK if enough else MISSING, version if enough else f"{version}; needs 3.11"
    )


def _native(name: str, module: str) -> Finding:
    what = f"native {name}"
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        return Finding(what, MISSING, f"install again (pip install .): {error}")
    return Finding(what, OK, str(loaded.__file__))


def _package(name: str) -> Finding:
    try:
        return Finding(name, OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, MISSING, f"not installed; pip install {name}")


def _catalogue() -> Finding:
    from forestcoll.topology import catalog

    names = catalog.names()
    if not names:
        return Finding("catalogue", MISSING, "no topology files are installed")
    return Finding("catalogue", OK, f"{len(names)} topologies")


def _compiler() -> Finding:
    what = "C++ compiler"
    path = next((p for p in map(shutil.which, COMPILERS) if p), None)
    if path is None:
        return Finding(what, ABSENT, "not found (only for building from source)")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(what, ABSENT, f"{path} does not run: {error}")
    return Finding(what, OK, _version_words(path, done.stdout))


def _gpu_compiler(name: str, kind: Platform, purpose: str) -> Finding:
    """What the GPU engine would call, and what that says of itself when called so."""
    from forestcoll.execute.gpu import compiler

    compiler_there = compiler.find_compiler(kind)
    if compiler_there is None:
        return Finding(name, ABSENT, f"not found (only for {purpose})")
    if not compiler_there.version:
        return Finding(name, ABSENT, f"{compiler_there.path} does not run")
    return Finding(name, OK, _version_words(compiler_there.path, compiler_there.version))


def _ucx() -> Finding:
    """Whether processes can reach each other over UCX."""
    from forestcoll.execute.cluster import ucx

    library = ucx.find_library()
    if library is None:
        return Finding("UCX", ABSENT, "not found (only for run --wire ucx)")
    try:
        words = f"{ucx.version(library)} ({library})"
    except UnsupportedError as error:
        return Finding("UCX", ABSENT, str(error))
    headers = ucx.find_headers()
    if headers is None:
        return Finding("UCX", ABSENT, f"{words}, but its headers are missing: it is compiled here")
    return Finding("UCX", OK, f"{words}, headers in {headers}")


def _version_words(path: str, version: str) -> str:
    """A path, with the telling line of what its `--version` prints."""
    lines = [line.strip() for line in version.splitlines() if line.strip()]
    line = next((line for line in lines if "release" in line.lower()), lines[0] if lines else "")
    return f"{path} ({line})" if line else path


def _gpu() -> Finding:
    """Whether the GPU engine can run, and what it lacks if not."""
    from forestcoll.execute.gpu import compiler

    platform_there = compiler.find_platform()
    if platform_there is None:
        return Finding("GPU engine", ABSENT, "no GPU is seen (nvidia-smi, rocm_agent_enumerator)")
    kind, architectures = platform_there
    names = ", ".join(architectures)
    if compiler.find_compiler(kind) is None:
        lacks = "nvcc (CUDA toolkit)" if kind == "cuda" else "hipcc (ROCm)"
        return Finding(
            "GPU engine", ABSENT, f"{names}, but {lacks} is missing: it is compiled here"
        )
    return Finding("GPU engine", OK, f"{names}; compiled on first use into {cache_folder()}")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", ABSENT, "not installed (only for the torch engine and the lab)")
    known = _package("torch")
    return known if known.state == OK else Finding("torch", OK, "of unknown version")


def _lab() -> Finding:
    """Whether `forestcoll lab` can run; all that it lacks, not only the first."""
    from forestcoll.execute.lab import lacking

    reason = lacking()
    if importlib.util.find_spec("torch") is None:
        reason = "; ".join(filter(None, (reason, "the lab needs PyTorch")))
    if reason:
        return Finding("fabric lab", ABSENT, reason)
    return Finding("fabric lab", OK, "root, ip, tc, network namespaces, torch")


def _machine() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory, told = machine_memory(), ""
    if {"MemTotal", "MemAvailable"} <= memory.keys():
        total, free = (memory[name] / 2**30 for name in ("MemTotal", "MemAvailable"))
        told = f", {total:.1f} GiB memory, {free:.1f} free"
    return Finding("machine", OK, f"{platform.machine()}, {cores} cores{told}")
