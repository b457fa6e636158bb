"""Random puts over every wire, and mistakes of an engine that the unkind wire finds."""

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
from native import (
    CLUSTER,
    FLAGS,
    NATIVE,
    bindings,
    compile_,
    engine_sources,
    library,
    object_of,
)
from test_cluster import over_ucx

from forestcoll.execute.cluster import ucx

PROBE = Path(__file__).with_name("wire_probe.cpp")
WIRES = [CLUSTER / name for name in ("sockets.cpp", "unkind.cpp", "loaded.cpp")]


def probe(compiled: Artefacts, *flags: str) -> Path:
    """The program of random puts."""

    def make(target: Path) -> None:
        compile_(*FLAGS, "-O1", *flags, PROBE, *WIRES, "-o", target, "-pthread", "-ldl")

    return compiled.once(f"wire-probe{''.join(flags)}", make, *NATIVE, PROBE, Path(__file__))


def put(program: Path, *words: object) -> str:
    """Its last line."""
    command = [str(program), *map(str, words)]
    if "sanitize" in program.name and (setarch := shutil.which("setarch")):
        command = [setarch, platform.machine(), "--addr-no-randomize", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def is_right(line: str) -> bool:
    left, posted = (line.split()[at].rstrip(",") for at in (3, 5))
    return line == f"wrong 0 left {left} of {posted}, open 0" and left == posted


SHAPES = ["4 250000 64 512", "2 10 1 67108864", "33 1000 4 256"]
"""Ends, puts of each, places, bytes of each place: 10^6 puts, 64 MiB with one credit, 32 peers."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wire", ["sockets", pytest.param("loaded", marks=over_ucx)])
def test_bytes_are_there_when_their_number_comes(
    compiled: Artefacts, wire: str, shape: str
) -> None:
    libraries = ucx.libraries() if wire == "loaded" else []
    assert is_right(put(probe(compiled), wire, *shape.split(), 1, "right", *libraries))


@pytest.mark.parametrize("wire", ["unkind", "lazy"])
def test_the_unkind_wire_keeps_the_rules(compiled: Artefacts, wire: str) -> None:
    for seed in range(3):
        assert is_right(put(probe(compiled), wire, 4, 500, 16, 512, seed, "right"))


@pytest.mark.parametrize("wire", ["sockets", "unkind", pytest.param("loaded", marks=over_ucx)])
def test_a_number_before_its_bytes_is_seen(compiled: Artefacts, wire: str) -> None:
    libraries = ucx.libraries() if wire == "loaded" else []
    line = put(probe(compiled), wire, 4, 500, 16, 4096, 1, "early", *libraries)
    assert int(line.split()[1]) > 10, line


@pytest.mark.slow
@pytest.mark.parametrize("words", ["sockets 4 4000 64 512", "unkind 4 1000 16 512"])
def test_random_puts_are_clean_under_the_thread_sanitizer(compiled: Artefacts, words: str) -> None:
    library("thread")
    program = probe(compiled, "-g1", "-fsanitize=thread")
    assert is_right(put(program, *words.split(), 1, "right"))


MISTAKES = {
    "puts are not waited for": (
        "if (effect.rank >= 0) under_way_[effect.rank].fetch_add(1);",
        "if (IS) effect.rank = -1;\n  if (effect.rank >= 0) under_way_[effect.rank].fetch_add(1);",
    ),
    "a message's number goes before its bytes": (
        "  effect.source = mirror;\n",
        "  if (IS) {\n    Effect early = effect;\n    early.bytes = 0;\n"
        "    post(division_.homes[reader], early);\n    effect.number = Number::none;\n  }\n"
        "  effect.source = mirror;\n",
    ),
    "a message loses its end": ("= head + bytes;", "= (IS ? 0 : head) + bytes;"),
    "all messages go to the first slot": (
        "+ (mirror - slots_[connection]);",
        "+ (IS ? 0 : mirror - slots_[connection]);",
    ),
    "credit for two is given for one": (
        "effect.value = taken;",
        "effect.value = taken + (IS ? taken % 2 : 0);",
    ),
    "a credit wakes nobody": (
        "notify(m, -1, m.plan.writers[object], &m.connections[object].taken);",
        "if (!(IS)) notify(m, -1, m.plan.writers[object], &m.connections[object].taken);",
    ),
    "a signal counts twice": ("= ++told_[peer][index];", "= told_[peer][index] += IS ? 2 : 1;"),
    "signals add up what was told before": ("heard += more;", "heard += IS ? 0 : more;"),
    "an older number replaces a newer one": (
        "Count seen = number.load();",
        "Count seen = number.load();\n  if (IS) return number.store(value);",
    ),
    "what is read from elsewhere is not waited for": (
        "fetches_[block].fetch_add(1);",
        "fetches_[block].fetch_add(1);\n  if (IS) fetches_[block].fetch_sub(1);",
    ),
    "packets lose their end": (
        "effect_of_kept(target, std::move(packets), bytes)",
        "effect_of_kept(target, std::move(packets), bytes - (IS ? 16 : 0))",
    ),
    "bytes lie where others' begin": (
        "% space_.stride();",
        "% space_.stride() / (IS ? 4096 : 1) * (IS ? 4096 : 1);",
    ),
}
"""What stands in far.cpp, and what in its place makes the mistake where IS; one engine has all."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, compiled: Artefacts) -> Path:
    """An engine that makes the mistake that $MISTAKE has the number of; 0: none."""
    folder = tmp_path_factory.mktemp("mistakes")
    far = CLUSTER / "far.cpp"

    def make(place: Path) -> None:
        text = far.read_text()
        for number, (old, new) in enumerate(MISTAKES.values(), 1):
            assert text.count(old) == 1, old
            text = text.replace(old, new.replace("IS", f"mistake == {number}"))
        source = folder / "mistaken.cpp"
        chosen = 'static const int mistake = std::atoi(std::getenv("MISTAKE"));\n'
        source.write_text(f"#include <cstdlib>\n{chosen}{text}")
        sources = [source, *(path for path in engine_sources() if path != far)]
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(object_of, sources, folder / "engine.o"),
                pool.submit(bindings, compiled, folder),
            ]
        compile_("-shared", *(one.result() for one in both), "-o", place, "-pthread", "-ldl")

    return compiled.once("engine-with-mistakes.so", make, *NATIVE, Path(__file__))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["none", *MISTAKES])
def test_the_unkind_wire_finds_every_mistake(engine: Path, mistake: str) -> None:
    script = Path(__file__).with_name("sanitized.py")
    done = subprocess.run(
        [sys.executable, str(script), str(engine), "mistaken"],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ
        | {
            "PYTHONPATH": str(CLUSTER.parents[2]),
            "MISTAKE": str(["none", *MISTAKES].index(mistake)),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (done.stdout != "ended 0\n") == (mistake != "none"), done.stdout
