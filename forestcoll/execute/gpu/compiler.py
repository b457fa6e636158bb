"""The native half of the GPU engine, compiled on first use and kept.

`NVCC` and `HIPCC` name other compilers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.builds import build, cache_folder

Platform = Literal["cuda", "hip"]
HERE = Path(__file__).parent
SOURCE = HERE / "engine.cu"
HEADERS = (
    *(HERE / f"{name}.hpp" for name in ("device", "layer", "ring")),
    *(HERE.parent / "native" / f"{name}.hpp" for name in ("interpreter", "tables", "elements")),
)


COMPILERS = {
    "cuda": ("NVCC", "nvcc", "/usr/local/cuda/bin/nvcc", "the CUDA toolkit"),
    "hip": ("HIPCC", "hipcc", "/opt/rocm/bin/hipcc", "ROCm"),
}
"""Variable that names another one, name, usual place, and what it is a part of."""


class Compiler(NamedTuple):
    """A compiler for GPUs. `version`: what it says of itself; `quick`: slow code, compiled soon."""

    platform: Platform
    path: str
    version: str
    quick: bool = False

    def command(self, architectures: Sequence[str], target: Path) -> list[str]:
        """The command that builds the library for the architectures (`sm_90`, `gfx90a`)."""
        # Some headers of HIP cannot be compiled without any optimisation.
        level = "-O3" if not self.quick else {"cuda": "-O0", "hip": "-O1"}[self.platform]
        common = ["-std=c++20", level, "-shared"]
        if self.platform == "cuda":
            codes = [
                option
                for name in architectures
                for option in ("-gencode", f"arch={name.replace('sm_', 'compute_')},code={name}")
            ]
            device = ["-Ofc=max"] if self.quick else []  # CUDA 12.9 knows it: a third of the time
            own = [*common, *device, "-Xcompiler", "-fPIC", *codes]
        else:
            # What is not copied to where it is called is compiled once, in a sixth of the time.
            device = ["-fno-inline"] if self.quick else []
            codes = [f"--offload-arch={name}" for name in architectures]
            own = [*common, *device, "-fPIC", "-x", "hip", *codes]
        return [self.path, *own, "-o", str(target), str(SOURCE)]


def find_compiler(platform: Platform) -> Compiler | None:
    """The platform's compiler, or None."""
    variable, name, usual, _ = COMPILERS[platform]
    path = shutil.which(os.environ.get(variable, name)) or shutil.which(usual)
    if path is None:
        return None
    return Compiler(platform, path, _version(path))


def find_platform() -> tuple[Platform, list[str]] | None:
    """The platform of this machine's GPUs and their architectures; None: no GPU is seen."""
    capabilities = _lines("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if capabilities:
        return "cuda", sorted({f"sm_{line.strip().replace('.', '')}" for line in capabilities})
    agents = _lines("rocm_agent_enumerator")
    names = sorted({line.strip() for line in agents if line.startswith("gfx") and line != "gfx000"})
    return ("hip", names) if names else None


def library(platform: Platform, architectures: Sequence[str]) -> Path:
    """The built library, from the cache or freshly compiled.

    Raises UnsupportedError without a compiler, ExecutionError with its words where it fails.
    """
    compiler = find_compiler(platform)
    if compiler is None:
        variable, name, _, of = COMPILERS[platform]
        raise UnsupportedError(
            f"the GPU engine is compiled on first use and {name} ({of}) is not found; install it, "
            f"or name it in {variable}"
        )
    return compile_library(compiler, architectures, cache_folder())


def compile_library(compiler: Compiler, architectures: Sequence[str], folder: Path) -> Path:
    """As `library`, with this compiler and cache. Several processes may do so at once."""
    return build(
        "the GPU engine",
        compiler.version,
        partial(compiler.command, architectures),
        (SOURCE, *HEADERS),
        folder,
        _environment(),
    )


@cache
def _version(path: str) -> str:
    return "\n".join(_lines(path, "--version"))


def _environment() -> dict[str, str]:
    """Else hipcc is a mere front of nvcc's where it finds that, and bears its version."""
    return {**os.environ, "HIP_PLATFORM": "amd"}


def _lines(*command: str) -> list[str]:
    """What a command prints; nothing where it does not exist or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def find_library() -> Path:
    """The native half for this machine's GPUs, built if it is not there yet.

    Raises UnsupportedError where there is no GPU, or no compiler for it.
    """
    platform_there = find_platform()
    if platform_there is None:
        raise UnsupportedError(
            "no GPU is seen (neither nvidia-smi nor rocm_agent_enumerator names one); "
            "--engine cpu needs none"
        )
    return library(*platform_there)
