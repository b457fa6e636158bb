"""The type in which data travel, where it is not the caller's, and in which ranks add them up.

A plan runs unchanged: its buffers hold elements of the wire's type, into which the engine converts
what the caller has, and from which it makes the result. An element of `fp8` is a block: 32 values
of 8 bits (e4m3) and the power of two that they are multiples of, 33 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from forestcoll.common import arguments
from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.contents import Buffers, Bytes
from forestcoll.execute.request import DTYPES, Request
from forestcoll.execute.sizes import PACKET_BYTES, Layout, has_packets, layout
from forestcoll.execute.tables import Tables

FP8 = "fp8"
FLOATS = ("float32", "float16", "bfloat16")
WIRES = (*FLOATS, FP8)
ACCUMULATES = ("float32",)


class WireType(NamedTuple):
    """What the plan's buffers hold: the element's number for the engine, its bytes and values."""

    name: str
    type: int
    element: int
    values: int
    converts: bool
    accumulates: bool  # beyond the type's own width

    @staticmethod
    def of(request: Request, wire: str | None, accumulate: str | None) -> tuple[Request, WireType]:
        """The request, its data cut as the wire needs it. UnsupportedError: it does not go."""
        name = request.dtype if wire is None else arguments.word("wire", wire, WIRES)
        if accumulate is not None:
            arguments.word("accumulate", accumulate, ACCUMULATES)
        converts = name != request.dtype
        if (converts or accumulate) and request.dtype not in FLOATS:
            what = f"wire {name}" if converts else f"accumulate {accumulate}"
            raise UnsupportedError(
                f"{what}: for data of {', '.join(FLOATS)}, not of {request.dtype}"
            )
        number = (*DTYPES, FP8).index(name)
        values = _engine.element_values(number)
        if values > 1 and has_packets(request.program):
            raise UnsupportedError(
                f"wire {name}: the plan's packets (LL) are cut at 16 bytes, which splits blocks of "
                f"{_engine.element_bytes(number)}; take a plan of the Simple protocol"
            )
        element = _engine.element_bytes(number)
        exact = accumulate is not None and name != accumulate
        made = WireType(name, number, element, values, converts, exact)
        if not converts:
            return request, made
        own = request.data.element
        whole = PACKET_BYTES // element if has_packets(request.program) else values
        data = layout(request.program, request.wanted, own, whole)
        return request._replace(data=data), made

    def lay_out(self, data: Layout) -> Layout:
        """How the caller's data lie in the plan's buffers."""
        chunk, part = data.chunk // self.values, -(-data.part // self.values)
        return replace(data, element=self.element, chunk=chunk, part=part)

    def notes(self, request: Request) -> tuple[str, ...]:
        """What a user should know of blocks that chunks do not divide into."""
        if self.values == 1 or not request.data.has_padding:
            return ()
        return (f"{self.name} goes in blocks of {self.values} values, so chunks are whole blocks",)

    def cut(self, tables: Tables) -> Tables:
        """With units of pipelines that are whole elements."""
        loops = [
            (*loop[:3], max(loop[3] // self.element, 1) * self.element) for loop in tables.loops
        ]
        return replace(tables, loops=loops) if self.converts else tables

    def passages(
        self,
        request: Request,
        own: Sequence[Buffers],
        plan: Sequence[Buffers],
        ranks: Sequence[int],
    ) -> tuple[list[_engine.Passage], list[_engine.Passage]]:
        """What is converted before a launch, and after it: only what the collective defines."""
        if not self.converts:
            return [], []
        element, origin = request.data.element, request.program.collective.origin

        def passage(mine: Bytes, theirs: Bytes, divides: bool) -> _engine.Passage:
            return mine.ctypes.data, theirs.ctypes.data, mine.nbytes // element, divides

        return (
            [passage(own[r].input, plan[r].input, False) for r in ranks],
            [
                passage(own[r].output, plan[r].output, request.average)
                for r in ranks
                if origin(r, request.root, 0) is not None
            ],
        )

    def exact(self, plan: Sequence[Buffers], ranks: Sequence[int]) -> list[tuple[int, int]]:
        """Memory of each rank whose sums stay float32 as well: what overlaps counts once."""
        areas = []
        for r, buffers in enumerate(plan if self.accumulates else ()):
            three = [
                (each.ctypes.data, each.nbytes if r in ranks else 0)
                for each in (buffers.input, buffers.output, buffers.scratch)
            ]
            user = max(three[:2], key=lambda area: area[1])
            for k in range(2):
                inside = user[0] <= three[k][0] < user[0] + user[1]
                if three[k] is not user and inside:
                    three[k] = (0, 0)
            areas += three
        return areas
