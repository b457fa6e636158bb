"""What pip builds and installs: a clone beside it, and machines without a compiler for it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from artefacts import ROOT
from command_line import Finished, finished

from forestcoll.common import native

IMPORTS = "import importlib; [print(importlib.import_module(m).__file__) for m in {}]"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources, never built; `site` beside them has all that `pip install .` puts there."""
    folder = tmp_path / "clone"
    for name in ("clone", "site"):
        leave = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "forestcoll", tmp_path / name / "forestcoll", ignore=leave)
        shutil.copytree(ROOT / "topologies", tmp_path / name / "topologies")
    for name in native.MODULES:
        built = Path(str(__import__(name, fromlist=["_"]).__file__))
        shutil.copy(built, tmp_path / "site" / Path(*name.split(".")[:-1]))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def python(clone: Path, *words: str, path: list[Path]) -> Finished:
    """Python in the clone, with nothing of this installation but what `path` says."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return finished(sys.executable, "-S", *words, cwd=clone, env=environment)


def test_sources_take_what_is_installed_of_them(clone: Path) -> None:
    site, others = clone.parent / "site", [Path(p) for p in sys.path if p.endswith("-packages")]
    done = python(clone, "-c", IMPORTS.format(native.MODULES), path=[site, *others])
    assert done.stderr == ""
    homes = [Path(line).parent for line in done.stdout.split()]
    assert homes == [site.joinpath(*name.split(".")[:-1]) for name in native.MODULES]
    done = python(
        clone, "-m", "forestcoll", "optimum", "-t", "ring", "-c", "allgather", path=[site, *others]
    )
    assert done.stdout.startswith("optimum     allgather on ring-8, 8 ranks\n"), done.stderr


@pytest.mark.parametrize(
    ("changed", "module"),
    [
        ("graph/kernel/flow.hpp", "forestcoll.graph.kernel._kernel"),
        ("verify/native/columns.hpp", "forestcoll.verify._machine"),
    ],
)
def test_sources_that_are_not_those_installed(clone: Path, changed: str, module: str) -> None:
    """One line, which says where they are and what to do; also where there are none at all."""
    site = clone.parent / "site"
    source = clone / "forestcoll" / changed
    source.write_text(f"{source.read_text(encoding='utf-8')}// changed\n")
    todo = f"run 'pip install -e .' or scripts/quickstart in {clone}"
    start = f"{clone}/forestcoll has no compiled modules for this Python"
    hides = f"{start}, and hides those of other sources in {site}/forestcoll: go elsewhere, or"
    folder = clone.joinpath(*module.split(".")[:-1])
    script = (
        "from forestcoll.common.native import Installed; "
        f"Installed.find_spec({module!r}, [{str(folder)!r}])"
    )
    for path, said in (([site], f"{hides} {todo}"), ([], f"{start}: {todo}")):
        done = python(clone, "-c", script, path=path)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last == f"forestcoll.common.errors.UnsupportedError: {said}"
    others = [Path(p) for p in sys.path if p.endswith("-packages")]
    done = python(
        clone, "-m", "forestcoll", "optimum", "-t", "ring", "-c", "allgather", path=[site, *others]
    )
    assert done.returncode == 1
    assert done.stderr == f"forestcoll: error: {hides} {todo}\n"


# --- compilers ------------------------------------------------------------------------------------


NEEDED = "forestcoll needs a C++20 compiler: g++ 11, clang++ 14, or newer; "
TODO = ": install one (Debian, Ubuntu: apt install g++), or set CXX to it"


def configure(folder: Path, compiler: Path | None, path: str) -> str:
    """The first message of CMake's about an error; empty: there was none."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CXXFLAGS")}
    environment |= {"PATH": path} | ({"CXX": str(compiler)} if compiler else {})
    words = [shutil.which("cmake"), "-G", "Ninja", "-S", ROOT, "-B", folder / "build"]
    done = finished(*words, env=environment)
    return done.stderr.partition("(message):\n")[2].partition("\n")[0].strip()


@pytest.mark.skipif(
    None in map(shutil.which, ("cmake", "ninja", "g++")), reason="cmake, ninja or g++ is missing"
)
def test_no_compiler_or_an_old_one_is_said_in_one_line(tmp_path: Path) -> None:
    """In one folder, as pip does it: what was refused is not kept for the next try."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ninja").symlink_to(str(shutil.which("ninja")))
    old, path = tmp_path / "g++-9", os.environ["PATH"]
    old.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -U__GNUC__ -D__GNUC__=9 "$@"\n')
    old.chmod(0o755)
    none = f"{NEEDED}none at $CXX or on the PATH works{TODO}"
    assert configure(tmp_path, None, str(tools)) == none
    assert configure(tmp_path, tmp_path / "g++", path) == none
    said = configure(tmp_path, old, path)
    assert said.startswith(f"{NEEDED}{old} is GNU 9.")
    assert said.endswith(TODO)
    assert configure(tmp_path, Path(str(shutil.which("g++"))), path) == ""


# --- wheels ---------------------------------------------------------------------------------------


def wheels(*words: str) -> Finished:
    """`scripts/wheels`, which looks at its arguments before anything else."""
    path = os.pathsep.join({str(Path(str(shutil.which(tool))).parent) for tool in ("bash", "sed")})
    environment = {"PATH": path, "PYTHON": "/no/python"}
    command = [str(ROOT / "scripts" / "wheels"), *words]
    return finished(*command, env=environment)


def test_wheels_say_what_they_are_for_and_refuse_other_machines() -> None:
    told = wheels("--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "scripts/wheels [MACHINE ...]" in told.stdout
    assert "#" not in told.stdout
    refused = wheels("x86_64", "mips")
    assert refused.returncode == 1
    assert refused.stderr == "wheels: no machine 'mips': x86_64, aarch64 (scripts/wheels --help)\n"
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert "    scripts/wheels " in page
