"""What the runtimes can hold: messages of RCCL are shorter than those of msccl-executor-nccl."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hand_forests import chain, of_shape, star
from notation import parse
from programs import lines, ring_allreduce

from forestcoll.common.errors import PlanError
from forestcoll.lower import lower
from forestcoll.plans import dumps, read_plan
from forestcoll.plans.lint import lint
from forestcoll.program import Collective, Program, Protocol
from forestcoll.program.targets import (
    MSCCL,
    RCCL,
    TARGETS,
    Target,
    message_slots,
    most_bytes,
    runtime_of,
)
from forestcoll.ui import cli
from forestcoll.verify import verify

GIB = 2**30
SHORT: dict[Protocol, tuple[int, int]] = {"LL": (16_384, 32_768), "LL128": (50_176, 576_000)}
"""Bytes of a message in RCCL and in msccl-executor-nccl."""


def exchange(chunks: int, most: int, protocol: Protocol) -> Program:
    """Two ranks send all they have before they take the other's, and add that up."""
    c, text = f"0:{chunks}", ["allreduce fifo places=in"]
    for peer in (1, 0):
        text += [f"rank {chunks} {chunks} {chunks}\nblock recv={peer} send={peer}\nsend i{c}"]
        text += [f"recv -> s{c}\nreduce s{c} -> i{c}"]
    return replace(parse(lines(text)), protocol=protocol, max_bytes=most)


def test_messages_of_each_runtime() -> None:
    """A step of the buffer, of 8: lines a thread, threads, bytes of a line, and what is data."""
    assert RCCL.messages.ll == 8 * 256 * 16 // 2
    assert MSCCL.messages.ll == 8 * 512 * 16 // 2
    assert RCCL.messages.ll128 == 28 * 256 * 8 // 8 * 7
    assert MSCCL.messages.ll128 == 120 * 640 * 8 // 16 * 15
    assert RCCL.messages.simple == MSCCL.messages.simple == (4 << 20) // 8 * 4


@pytest.mark.parametrize("protocol", SHORT)
def test_rounds_end_where_the_runtimes_messages_do(protocol: Protocol) -> None:
    short, long = SHORT[protocol]
    assert most_bytes(RCCL, protocol, 1) == short * 65_536
    assert most_bytes(RCCL, protocol, 3) == 3 * short * 65_536
    most = long * 65_536
    assert most_bytes(MSCCL, protocol, 1) == (most if most < 2**35 else 0)
    assert most_bytes(RCCL, "Simple", 1) == most_bytes(MSCCL, "Simple", 1) == 0
    assert most_bytes(RCCL, "LL", 1) == GIB


def test_the_narrowest_runtime_that_can_run_it_decides() -> None:
    """RCCL has neither fused steps nor more than 64 thread blocks."""
    plain = lower(of_shape(Collective.ALLREDUCE, 3, chain), RCCL)
    fused = ring_allreduce(3)
    assert runtime_of(plain) is RCCL
    assert runtime_of(fused) is MSCCL
    first = plain.ranks[0]
    many = replace(plain, ranks=(replace(first, thread_blocks=first.thread_blocks * 65),))
    assert runtime_of(many) is MSCCL
    assert message_slots(replace(plain, protocol="LL")) == (16_384, 8)
    assert message_slots(replace(fused, protocol="LL")) == (32_768, 8)
    assert message_slots(replace(plain, protocol="LL"), MSCCL) == (32_768, 8)
    assert message_slots(plain) == (2 << 20, 2)


@pytest.mark.parametrize("protocol", SHORT)
def test_what_needs_longer_messages_than_rccls_gets_stuck_there(protocol: Protocol) -> None:
    """16 chunks in pieces of one fill 8 places, in pieces of two or more they fit."""
    short, long = SHORT[protocol]
    program = exchange(16, 16 * short, protocol)
    for target in (None, RCCL):
        with pytest.raises(PlanError, match="deadlock: rank"):
            verify(program, target=target)
    assert long >= 2 * short
    verify(program, target=MSCCL)
    verify(replace(program, max_bytes=8 * short), target=RCCL)


@pytest.mark.parametrize("protocol", SHORT)
def test_lint_counts_with_the_targets_messages(protocol: Protocol) -> None:
    text = dumps(exchange(16, 16 * SHORT[protocol][0], protocol), "msccl-xml")
    told = {name: lint(text, "plan", name) for name in ("msccl", "rccl")}
    assert told["msccl"].ok
    assert [f.rule for f in told["rccl"].findings if f.severity == "error"] == ["RUN-DEADLOCK"]
    assert not lint(text, "plan").ok  # RCCL could run it, so it is guessed


@pytest.mark.parametrize("name", ["msccl", "rccl"])
def test_plans_say_how_far_their_runtime_counts(name: str) -> None:
    made = of_shape(Collective.ALLREDUCE, 2, chain)
    target: Target = TARGETS[name]
    program = lower(made, target, protocol="LL")
    assert program.max_bytes == most_bytes(runtime_of(program), "LL", 2)
    text = dumps(program, "msccl-xml", target)
    assert not lint(text, "plan", name).counts["warning"]
    beyond = replace(program, max_bytes=most_bytes(target, "LL", 2) + 2)
    report = lint(dumps(beyond, "msccl-xml", target), "plan", name)
    assert [f.rule for f in report.findings if f.severity == "warning"] == ["XML-ROUNDS"]


def test_a_star_for_both_runtimes_keeps_to_rccls_rounds() -> None:
    """Sends and receives alone: RCCL takes the plan too, whatever it was made for."""
    made = of_shape(Collective.BROADCAST, 3, star)
    for target in (MSCCL, RCCL):
        assert lower(made, target, protocol="LL").max_bytes == GIB


def test_plan_sets_end_within_the_rounds(tmp_path: Path) -> None:
    command = ["synthesize", "-t", "star", "--set", "gpus=5", "-c", "broadcast"]
    command += ["--sizes", "1K:4G"]
    assert cli.main([*command, "--target", "rccl", "-o", str(tmp_path)]) == 0
    assert cli.main(["verify", str(tmp_path)]) == 0
    plans = json.loads((tmp_path / "index.json").read_text())["runtimes"][0]["plans"]
    for plan in plans:
        program = read_plan(tmp_path / plan["file"])
        chunks = program.ranks[0].input_chunks
        most = most_bytes(RCCL, program.protocol, chunks)
        assert not most or program.max_bytes <= most


@pytest.mark.parametrize("name", ["rccl-ll-pieces", "rccl-ll128-pieces"])
def test_plans_that_rccl_would_not_finish_are_refused(name: str) -> None:
    path = Path(__file__).parents[2] / "shared" / "defects" / f"{name}.xml"
    if not path.is_file():
        pytest.skip("the defects' files are not here")
    text = path.read_text()
    assert "deadlock" in str(lint(text, "plan", "rccl").findings[0])
    assert lint(text, "plan", "msccl").ok
