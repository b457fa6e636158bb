"""Operators of users: C functions `void op(void *acc, const void *in, size_t n)`, acc = acc op in.

They have to be associative, no more: `acc` is what arrives at a rank, or an instruction's first
source, `in` what is there. So a plan gives the same every time, its replay too.
"""

from __future__ import annotations

import ctypes
from _ctypes import CFuncPtr
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.contents import SHOWN, Buffers, Bytes, Contents
from forestcoll.execute.result import Mode
from forestcoll.verify.dataflow import Dataflow


class UserOperator(NamedTuple):
    """Its name in results, the function of n elements, and what the plan does with it."""

    name: str
    function: CFuncPtr
    flow: Dataflow | None = None

    @staticmethod
    def of(op: object) -> UserOperator | None:
        """Of "LIBRARY:SYMBOL" or a function of ctypes; None: it is none of them.

        UnsupportedError: there is no such library, or it has no such symbol.
        """
        if isinstance(op, CFuncPtr):
            return UserOperator("user", op)
        library, _, symbol = str(op).rpartition(":")
        if not library:
            return None
        try:
            return UserOperator(str(op), ctypes.CDLL(library)[symbol])
        except (OSError, AttributeError) as error:
            raise UnsupportedError(f"operator {op}: {error}") from error

    @property
    def address(self) -> int:
        """Of the function, for the engine."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def combine(self, acc: Bytes, other: Bytes, count: int) -> Bytes:
        """A new array: one, and the other added to it."""
        total = acc.copy()
        self.function(total.ctypes, other.ctypes, ctypes.c_size_t(count))
        return total


@dataclass(slots=True)
class Replayed(Contents):
    """Of a user's operator: what must come out is a plain replay of the plan with it."""

    user: UserOperator | None = None

    def compare(self, buffers: Sequence[Buffers], mode: Mode) -> int:
        """Wrong elements of all outputs that the collective defines."""
        del mode
        wrong, data = 0, self.data
        for rank, expected in self.replay().items():
            size = data.part * data.element
            parts = (each.reshape(-1, data.stride) for each in (buffers[rank].output, expected))
            got, wanted = (each[:, :size].reshape(-1, data.element) for each in parts)
            places = np.flatnonzero((got != wanted).any(axis=1))
            wrong += places.size
            self.mismatches += [
                f"rank {rank}, output element {k}: expected bytes {wanted[k].tobytes().hex()}, got "
                f"{got[k].tobytes().hex()}"
                for k in places[:SHOWN]
            ]
        return wrong

    def replay(self) -> dict[int, Bytes]:
        """The outputs of the ranks that are here."""
        assert self.user is not None
        flow, inputs = self.user.flow, []
        assert flow is not None
        for rank, sizes in enumerate(self.program.ranks):
            inputs.append(np.zeros(sizes.input_chunks * self.data.chunk_bytes, np.uint8))
            for start, first, count in self.input_parts():
                address = inputs[-1].ctypes.data + start
                _engine.fill(self.pattern, rank, first, count, address, self.threads)
        values: list[Bytes] = []
        grain = self.data.chunk_bytes // flow.grain
        for value in flow.values:
            sources = [values[k] for k in value.made_from]
            if len(sources) == 2:
                count = sources[0].size // self.data.element
                values.append(self.user.combine(sources[0], sources[1], count))
            else:
                begin = value.start * grain
                own = inputs[value.rank][begin : begin + value.length * grain]
                values.append(sources[0] if sources else own)
        outputs = {rank: flow.outputs[rank] for rank in self.ranks}
        return {r: np.concatenate([values[k] for k in own]) for r, own in outputs.items() if own}
