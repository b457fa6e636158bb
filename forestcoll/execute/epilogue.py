"""Epilogues: what the CPU engine does once to each complete sum, before any other rank has it.

Steps by name, one after the other, as in "avg,scale=0.5,bias,dropout=0.1" or "avg,adam=0.001"; they
calculate in float32. Where they go, the proof says (verify/owners.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.contents import Memory
from forestcoll.execute.request import DTYPES, Request
from forestcoll.execute.wire import FLOATS, WireType
from forestcoll.program import RECEIVES, Instruction, Pipeline, Program
from forestcoll.program.program import where
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.owners import owners

STEPS = ("scale", "avg", "cast", "bias", "dropout", "adam")
"""In the order of engine.hpp's `Work`."""
BIASES = 1000
"""Columns of the bias."""
FLOAT_MAX = 3.4e38
State = npt.NDArray[np.float32]


def parse(text: str, ranks: int) -> list[tuple[int, float]]:
    """The steps as the engine has them. UnsupportedError says which is none."""
    steps: list[tuple[int, float]] = []
    for part in str(text).split(","):
        name, sign, value = part.partition("=")
        number = float(ranks) if name in ("avg", "bias") and not sign else _number(name, value)
        if number is None or (name == "adam" and STEPS.index(name) in dict(steps)):
            raise UnsupportedError(
                f"epilogue: {part!r} is none of scale=NUMBER, avg, cast={'|'.join(FLOATS)}, bias, "
                "dropout=SHARE, adam=RATE (once)"
            )
        steps.append((STEPS.index(name), number))
    return steps


def _number(name: str, value: str) -> float | None:
    """What stands behind a step's name; None: nothing that it takes."""
    if name == "cast" and value in FLOATS:
        return float(DTYPES.index(value))
    try:
        number = float(value)
    except ValueError:
        return None
    sane = {"scale": True, "dropout": 0 <= number < 1, "adam": number > 0}
    return number if sane.get(name) and abs(number) < FLOAT_MAX else None


class Epilogue(NamedTuple):
    """Of one run: `work` on the live state, `expected` on another, for the comparison.

    A state has the number of launches, the bias, and Adam's weights, means, and means of squares.
    """

    work: _engine.Epilogue
    expected: _engine.Epilogue
    states: tuple[State, State]

    @staticmethod
    def of(text: str, request: Request, wire: WireType, memory: Memory) -> Epilogue:
        """Of the steps in `text`; the live state is in `memory` that all ranks see.

        UnsupportedError: it does not go with the request's type or operation, or with its plan.
        """
        program, data = request.program, request.data
        steps = parse(text, program.n)
        if request.dtype not in FLOATS:
            raise UnsupportedError(f"epilogue: for {', '.join(FLOATS)}, not for {request.dtype}")
        if wire.converts or wire.accumulates or request.user:
            raise UnsupportedError(
                "epilogue: not with a wire of another type, accumulate, nor a user's operator"
            )
        if request.average:
            raise UnsupportedError("epilogue: avg divides behind it: take sum, and avg in it")
        if not program.collective.reduces:
            raise UnsupportedError(f"epilogue: {program.collective} adds nothing up")
        completes = list(_completes(program))
        count = data.parts * data.part if "adam" in text else 0
        live, other = (memory(0, 4 * (1 + BIASES + 3 * count)).view(np.float32) for _ in range(2))
        work, expected = (
            _engine.Epilogue(steps, (data.part, padded), state.ctypes.data, count, completes)
            for state, padded in ((live, data.stride // data.element), (other, data.part))
        )
        return Epilogue(work, expected, (live, other))

    def reset(self) -> None:
        """The states as they begin; what is expected, is that of the first launch."""
        for number, state in enumerate(self.states):
            k = np.arange(state.size - 1)
            state[0], state[1:] = number, (k * 37 % 61 - 30) / 32
            squares = state[state.size - (k.size - BIASES) // 3 :]
            np.abs(squares, out=squares)


def _completes(program: Program) -> Iterator[int]:
    """Of each instruction of the tables (tables.py) the first chunk that it completes, or -1.

    UnsupportedError: an epilogue cannot go there.
    """
    flow = dataflow(program)
    try:
        owners(flow)
    except UnsupportedError as error:
        raise UnsupportedError(f"epilogue: {error}") from error
    parts: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for place, start, length in flow.completions:
        parts.setdefault(place, []).append((start, start + length))
    for r, b, block in program.blocks():
        for s, step in enumerate(block.steps):
            if isinstance(step, Pipeline):
                yield -1
            for at, i in enumerate(step.body):
                place = r, b, s, at
                begin = _begin(r, i, parts[place], flow.grain) if place in parts else -1
                if begin is None:
                    raise UnsupportedError(
                        f"epilogue: {where(r, b, s, i.op)} completes sums that are not all of "
                        "its operand, in one piece of this rank's memory"
                    )
                yield begin


def _begin(rank: int, i: Instruction, parts: list[tuple[int, int]], grain: int) -> int | None:
    """The chunk of the data that the instruction's operand begins with; None: there is none."""
    operand = i.src[0] if i.op in RECEIVES else i.dst[0]
    begin = Fraction(parts[0][0], grain) - Fraction(operand.count * i.part[0], i.part[1])
    whole = (parts[-1][1] - parts[0][0]) * i.part[1] == operand.count * grain
    adjoin = all(one[1] == other[0] for one, other in pairwise(parts))
    fits = whole and adjoin and operand.rank in (None, rank) and begin.denominator == 1
    return int(begin) if fits else None
