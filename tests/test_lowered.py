"""Forests by hand and what they are lowered to: the rows of rows/lowered.txt.

    NAME: COLLECTIVE TARGET ranks=6 boxes=2 shape=star   one tree a root (and phase) of that shape
    $ 2 broadcast -1 0 0                                 or trees: weight, phase, each rank's parent
    TARGET steps=20, TARGET.sms=304                      a target with other limits; of such a GPU
    instances=3 protocol=LL unit_bytes=4096              what lowering is asked for

Each is proven (hand_forests.py). Below a row stand what its fullest rank takes, and of every rank
chunks of input, output and scratch, its semaphores, and its thread blocks: of XML where from and
to, of MSCCL++ its channels; then its steps. `send:71` sends 71 chunks, `copy after 3` waits for
steps of three other thread blocks, `65536{put, copy}` is a pipeline in slices of so many bytes.
`--update-golden` writes what is lowered now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from edits import Row, check_rows
from hand_forests import chain, forest, of_shape, proven, star, tree

from forestcoll.lower import usage
from forestcoll.program import Collective, Pipeline, Step, ThreadBlock
from forestcoll.program.targets import TARGETS

ASKED = ("instances", "protocol", "unit_bytes")
SHAPES = {"chain": chain, "star": star}


def lowered(row: Row) -> Any:
    """The program of a row."""
    name, *words = row.options
    given: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        given[key] = int(text) if text.isdigit() else text
    ranks, boxes, shape = given.pop("ranks"), given.pop("boxes", 1), given.pop("shape", "")
    collective, trees = Collective(row.base), []
    for line in row.edits:
        weight, phase, *parents = line.split()
        trees.append(tree(phase, int(weight), list(map(int, parents))))  # type: ignore[arg-type]
    if shape:
        made = of_shape(collective, ranks, SHAPES[shape], boxes)
    else:
        made = forest(collective, ranks, trees, boxes)
    asked = {key: given.pop(key) for key in ASKED if key in given}
    name, _, sms = name.partition(".sms=")
    target = TARGETS[name].on(int(sms)) if sms else TARGETS[name]
    return proven(made, replace(target, **given), **asked)


def step_text(step: Step) -> str:
    if isinstance(step, Pipeline):
        return f"{step.unit_bytes}{{{steps_text(step.body)}}}"
    counts = {ref.count for ref in (*step.src, *step.dst)} - {1}
    after = f" after {len(step.after)}" if step.after else ""
    return f"{step.op}{''.join(f':{count}' for count in sorted(counts))}{after}"


def in_runs(texts: Iterable[str]) -> list[str]:
    """Equal neighbours once."""
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return [text if times == 1 else f"{times} x {text}" for text, times in runs]


def steps_text(steps: Iterable[Step]) -> str:
    return ", ".join(in_runs(map(step_text, steps)))


def block_text(block: ThreadBlock) -> str:
    kinds = Counter(channel.kind for channel in block.channels)
    ends = [f"{count} {kind}" for kind, count in kinds.items()]
    if block.recv >= 0:
        ends.append(f"from {block.recv}")
    if block.send >= 0:
        ends.append(f"to {block.send}")
    number = f" on {block.channel}" if block.channel else ""
    return f"[{' '.join(ends)}{number}] {steps_text(block.steps)}"


def say(row: Row) -> Iterator[str]:
    program = lowered(row)
    used = usage(program)
    figures = f"{used.thread_blocks} thread blocks, {used.steps} steps, {used.channels} channels"
    yield f"{program.protocol}: {figures}, scratch {used.scratch}"
    if "halves" in program.extra:
        yield program.extra["halves"]
    alike: dict[str, list[int]] = defaultdict(list)
    for number, rank in enumerate(program.ranks):
        chunks = f"{rank.input_chunks} {rank.output_chunks} {rank.scratch_chunks}"
        blocks = in_runs(map(block_text, rank.thread_blocks))
        text = "\n    ".join([f"{chunks} {list(rank.semaphores)}", *blocks])
        alike[text].append(number)
    for text, numbers in alike.items():
        yield from f"rank {' '.join(map(str, numbers))}: {text}".split("\n")


def test_lowered(request: pytest.FixtureRequest) -> None:
    check_rows("lowered.txt", say, request)
