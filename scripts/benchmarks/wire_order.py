"""Whether a GPU sees what an adapter puts into its memory in the order in which it was put.

    scripts/bench --wire-order [--rounds N] [--bytes N] [--stand-in] [--broken]

A pattern, then a flag, both written over UCX into the GPU's memory; a kernel waits for the flag and
compares every word: ten million rounds, 16 under way. The exit code is 1 where any was wrong, 2
where it cannot be run. Only a card and an adapter that have passed may have their flags written by
the adapter, which nothing in this version does. The endpoint is one of this process to itself, over
the network alone: data goes out by the adapter and comes back by it. Relaxed order on PCIe and
several rails are turned off, as they would have to be.

`--stand-in`: on processors, with the tests' stand-in for the GPU's runtime, which shows that the
check itself works. `--broken`: the flag goes first; the check has to find that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.cluster import ucx
from forestcoll.execute.gpu import compiler

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("wire_order.cu")
STAND_IN = ROOT / "tests" / "fixtures" / "emulated_gpu"
KINDS = {"": 0, "cuda": 1, "hip": 3}
"""Memory of a stand-in, of CUDA, of ROCm, as UCX numbers them."""


def build(target: Path, stand_in: bool) -> int:
    """The kind of memory that the program at `target` uses. UnsupportedError: what is missing."""
    library, headers = ucx.find_library(), ucx.find_headers()
    if library is None or headers is None:
        raise UnsupportedError("UCX and its headers are not here (Debian: libucx-dev)")
    there = compiler.find_platform()
    words = [f"-I{headers}", f"-I{compiler.SOURCE.parent}"]
    if stand_in:
        command = [shutil.which(os.environ.get("CXX", "c++")) or "c++", "-std=c++20", "-O2"]
        command += [f"-I{STAND_IN}", "-x", "c++", str(SOURCE), "-x", "none", "-pthread", "-lrt"]
        platform = ""
    elif there is None:
        raise UnsupportedError("no GPU is seen; --stand-in tries the check without one")
    else:
        platform, architectures = there
        found = compiler.find_compiler(platform)
        if found is None:
            raise UnsupportedError(f"no compiler for {platform}")
        command = [w for w in found.command(architectures, target) if w != "-shared"]
        command = [*command[: command.index("-o")], str(SOURCE)]
    place = Path(library)
    named = [f"-L{place.parent}", f"-l:{place.name}"]
    command += [*words, "-o", str(target), *named]
    done = subprocess.run(command, env=os.environ | {"HIP_PLATFORM": "amd"}, check=False)
    if done.returncode:
        raise UnsupportedError("it cannot be compiled")
    return KINDS[platform]


def main(arguments: list[str] | None = None) -> int:
    """0: every round was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000_000)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--broken", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.rounds < 1 or asked.bytes < 8 or asked.bytes % 8:
        parser.error("--rounds from 1 on, --bytes a multiple of 8")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "wire_order"
        try:
            kind = build(program, asked.stand_in)
        except UnsupportedError as error:
            print(error, file=sys.stderr)
            return 2
        words = [str(program), str(asked.rounds), str(asked.bytes), str(kind)]
        order = {"UCX_IB_PCI_RELAXED_ORDERING": "no", "UCX_MAX_RMA_RAILS": "1"}
        given = {"UCX_TLS": "^self,shm"} | dict(os.environ) | order
        if "/" in (library := ucx.find_library() or ""):
            given["LD_LIBRARY_PATH"] = str(Path(library).parent)
        words.append("broken" if asked.broken else "right")
        done = subprocess.run(words, env=given, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return 2
    print(done.stdout.strip())
    return int(not done.stdout.rstrip().endswith(" wrong 0"))


if __name__ == "__main__":
    sys.exit(main())
