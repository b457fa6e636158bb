"""Random puts over every wire, and mistakes of an engine that the unkind wire finds."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
from apart import UNKIND
from artefacts import Artefacts
from command_line import finished
from native import CLUSTER, FAR, FLAGS, NATIVE, compile_, engine, joined, library, run_sanitized
from test_cluster import over_ucx

from forestcoll.execute.cluster import ucx

PROBE = Path(__file__).with_name("wire_probe.cpp")
WIRES = [CLUSTER / "sockets.cpp", CLUSTER / "loaded.cpp", UNKIND]


def probe(compiled: Artefacts, *flags: str) -> Path:
    """The program of random puts."""

    def make(target: Path) -> None:
        source = joined([PROBE, *WIRES], target)
        compile_(*FLAGS, "-O1", *flags, source, "-o", target, "-pthread", "-ldl")

    return compiled.once(
        f"wire-probe{''.join(flags)}", make, *NATIVE, PROBE, UNKIND, Path(__file__)
    )


def put(program: Path, *words: object) -> str:
    """Its last line."""
    setarch = shutil.which("setarch") if "sanitize" in program.name else None
    front = [setarch, platform.machine(), "--addr-no-randomize"] if setarch else []
    done = finished(*front, program, *words)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def is_right(line: str) -> bool:
    left, posted = (line.split()[at].rstrip(",") for at in (3, 5))
    return line == f"wrong 0 left {left} of {posted}, open 0" and left == posted


SHAPES = ["4 10000 64 512", "2 10 1 67108864", "33 1000 4 256"]
"""Ends, puts of each, places, bytes of each place: many, 64 MiB with one credit, 32 peers."""


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
@pytest.mark.parametrize("words", ["sockets 4 1000 64 512", "unkind 4 1000 16 512"])
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
        "  post(division_.homes[reader], {",
        "  if (IS) {\n"
        "    post(division_.homes[reader], {{Number::posted, connection, number + 1}});\n"
        "    Effect late{{Number::none, 0, 0, place, bytes + slot_head}, mirror};\n"
        "    return post(division_.homes[reader], late);\n  }\n"
        "  post(division_.homes[reader], {",
    ),
    "a message loses its end": (
        "slot_head + bytes}, mirror",
        "(IS ? 0 : slot_head) + bytes}, mirror",
    ),
    "all messages go to the first slot": (
        "+ (mirror - machine_.slots[connection]);",
        "+ (IS ? 0 : mirror - machine_.slots[connection]);",
    ),
    "credit for two is given for one": (
        "connection, taken}",
        "connection, taken + (IS ? taken % 2 : 0)}",
    ),
    "a credit wakes nobody": (
        "notify(m, -1, (posted ? m.plan.readers",
        "if (posted || !(IS)) notify(m, -1, (posted ? m.plan.readers",
    ),
    "a signal counts twice": (
        "= ++told_[peer][before + effect.object];",
        "= told_[peer][before + effect.object] += IS ? 2 : 1;",
    ),
    "signals add up what was told before": (
        "std::exchange(heard_[peer][index], value)",
        "(IS ? 0 : std::exchange(heard_[peer][index], value))",
    ),
    "what is read from elsewhere is not waited for": (
        "fetches_[block].fetch_add(1);",
        "fetches_[block].fetch_add(1);\n  if (IS) fetches_[block].fetch_sub(1);",
    ),
    "packets lose their end": (
        "bytes}, packets.get()",
        "bytes - (IS ? 16 : 0)}, packets.get()",
    ),
    "bytes lie where others' begin": (
        "% space_.stride();",
        "% space_.stride() / (IS ? 4096 : 1) * (IS ? 4096 : 1);",
    ),
}
"""What stands in far.cpp, and what in its place makes the mistake where IS; one engine has all."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_unkind_wire_finds_every_mistake(compiled: Artefacts, tmp_path: Path) -> None:
    """By an engine that makes the mistake that $MISTAKE has the number of; 0: none."""

    def make(place: Path) -> None:
        text = FAR.read_text()
        for number, (old, new) in enumerate(MISTAKES.values(), 1):
            assert text.count(old) == 1, old
            text = text.replace(old, new.replace("IS", f"mistake() == {number}"))
        source = tmp_path / "mistaken.cpp"
        chosen = 'static int mistake() { return std::atoi(std::getenv("MISTAKE")); }\n'
        source.write_text(f"#include <cstdlib>\n{chosen}{text}")
        engine(compiled, tmp_path, place, "address", source)

    made = compiled.once("engine-with-mistakes.so", make, *NATIVE, Path(__file__))
    done = run_sanitized("address", made, "mistakes", str(1 + len(MISTAKES)))
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()[:-1]]
    missed = [name for name, count in zip(MISTAKES, wrong[1:], strict=True) if not count]
    assert (wrong[0], missed) == (0, [])
