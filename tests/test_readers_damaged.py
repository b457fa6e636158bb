"""Damaged dumps give a topology or one clear error: no traceback, no flood of memory or time.

`python tests/test_readers_damaged.py 200` runs that many copies of every real file and of the small
ones here, and prints the worst; the tests take a few, from a seed that they print.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from pathlib import Path

import pytest
from dump_mutations import mutate
from real_files import FOLDER
from test_readings import text_of

from forestcoll.common.errors import ForestCollError
from forestcoll.topology import catalog
from forestcoll.topology.calibrate import calibrate, load_measurement

SECONDS, MEMORY = 10, 2**30

SETTINGS = {  # what lets a reader come as far as it can
    "ibnetdiscover": {"unnamed": "each"},
    "nvidia-smi-topo": {"nvlink": "20", "pcie_rate": "12", "socket_rate": "10"},
    "netq-topologyGraph.json": {"rate": "50"},
    "sonic_lab_links.csv": {"hosts": "vnut-tg-01,vnut-l2snk-tg,str-*"},
}

MEASURED = {
    fact: text_of("measured", fact)
    for fact in (
        "p2p bandwidth latency test",
        "sendrecv of nccl tests",
        *(f"a small file of {form}" for form in ("nvbandwidth", "own", "json")),
    )
}
SMALL = {
    "mesh.xml": text_of("nccl-xml", "mesh of nvlinks"),
    "two-sockets.xml": text_of("nccl-xml", "pcie is taken where there is no nvlink"),
    "infragraph.yaml": text_of("infragraph", "slips infragraph"),
}


def files() -> list[tuple[str, bytes]]:
    """(name, content) of everything to damage."""
    found = [(name, text.encode()) for name, text in SMALL.items()]
    if FOLDER.is_dir():
        real = [p for p in sorted(FOLDER.rglob("*")) if p.is_file() and p.suffix != ".md"]
        found += [(str(path.relative_to(FOLDER)), path.read_bytes()) for path in real]
    return found


def settings_of(name: str) -> dict[str, str]:
    found = (SETTINGS[part] for part in Path(name).parts if part in SETTINGS)
    return dict(next(found, {}))


def read_damaged(name: str, data: bytes, seed: str, folder: Path) -> tuple[str, float]:
    """(what came out, processor seconds); raises whatever should not come out."""
    words, damaged = mutate(data, seed)
    path = folder / "damaged"
    path.write_bytes(damaged)
    began = time.process_time()
    try:
        topology = catalog.load(path, settings_of(name))
    except ForestCollError as error:
        message = str(error)
        assert message.strip(), (name, seed, words)
        assert len(message) < 1500, (name, seed, words, message[:300])
        assert "Traceback" not in message
        said = message
    else:
        assert topology.gpus
        said = f"{len(topology.gpus)} GPUs"
    seconds = time.process_time() - began
    assert seconds < SECONDS, (name, seed, words, seconds)
    return said, seconds


def peak() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("name", [name for name, _ in files()])
def test_a_few_damaged_copies(name: str, tmp_path: Path) -> None:
    seed = os.environ.get("FORESTCOLL_SEED") or str(random.randrange(10**6))
    print(f"FORESTCOLL_SEED={seed}")
    data = dict(files())[name]
    before = peak()
    for number in range(5):
        read_damaged(name, data, f"{name} {seed} {number}", tmp_path)
    assert peak() - before < MEMORY


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_damaged_measurements(name: str) -> None:
    seed = os.environ.get("FORESTCOLL_SEED") or str(random.randrange(10**6))
    print(f"FORESTCOLL_SEED={seed}")
    for number in range(40):
        words, damaged = mutate(MEASURED[name].encode(), f"{name} {seed} {number}")
        began = time.process_time()
        try:
            found = load_measurement(damaged.decode("utf-8", "replace"), "m")
            calibrate(catalog.machine("dgx-h100"), found)
        except ForestCollError as error:
            assert str(error).strip(), words  # noqa: PT017, not raising is fine too
        assert time.process_time() - began < SECONDS, words


def run_all(copies: int, folder: Path) -> None:
    """All of them, with what they cost."""
    worst: list[tuple[float, str]] = []
    read = refused = 0
    for name, data in files():
        for number in range(copies):
            seed = f"{name} all {number}"
            said, seconds = read_damaged(name, data, seed, folder)
            read, refused = read + said.endswith(" GPUs"), refused + (not said.endswith(" GPUs"))
            worst = sorted([*worst, (seconds, seed)], reverse=True)[:5]
            assert peak() < MEMORY, (seed, peak())
    print(f"{read} read, {refused} refused, peak {peak() >> 20} MiB, slowest {worst}")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run_all(int(sys.argv[1]), Path(folder))
