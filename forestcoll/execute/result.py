"""What an engine measured: rows of nccl-tests' table, the same for every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forestcoll.execute.sizes import Layout
    from forestcoll.program import Program

Mode = Literal["out-of-place", "in-place"]
MODES: tuple[Mode, ...] = ("out-of-place", "in-place")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of nccl-tests' table. GB/s of 10^9 bytes; `wrong`: elements, None if not checked."""

    mode: Mode
    size: int  # bytes
    count: int  # elements
    dtype: str
    op: str  # "none" where nothing is added
    root: int  # -1 where there is none
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None
    wire: str  # the type in which data travel
    wire_bytes: int  # of all data in that type, padding included
    predicted_us: float | None = None  # on the machine that the plan is for

    @staticmethod
    def of(
        program: Program,
        data: Layout,
        mode: Mode,
        kind: tuple[str, str],
        root: int,
        seconds: float,
        wrong: int | None,
    ) -> Row:
        """The row of launches that took so many seconds each. `kind`: element type, operation."""
        dtype, op = kind
        algbw, collective = data.size / seconds / 1e9, program.collective
        busbw = algbw * float(collective.bus_factor(program.n))
        op = op if collective.reduces else "none"
        measured = seconds * 1e6, algbw, busbw, wrong
        travels = dtype, data.parts * data.stride
        return Row(mode, data.size, data.count, dtype, op, root, *measured, *travels)

    @property
    def prediction_percent(self) -> float | None:
        """Percent of the predicted bandwidth that was reached; None without a prediction."""
        return None if self.predicted_us is None else 100 * self.predicted_us / self.time_us


def repeat(
    launches: tuple[int, int],
    check: bool,
    fill: Callable[[], None],
    launch: Callable[[int], float],
    compare: Callable[[], int],
) -> tuple[float, int]:
    """What launches (not timed, timed) take together, and the most that `compare` counts as wrong.

    `launch` is given how many went before it. The first and the last one begin with fresh data, and
    are compared if there is to be a `check`.
    """
    elapsed, wrong, (warmup, iterations) = 0.0, 0, launches
    for k in range(warmup + iterations):
        fresh = k in (0, warmup + iterations - 1)
        if fresh:
            fill()
        took = launch(k)
        elapsed += took if k >= warmup else 0
        if fresh and check:
            wrong = max(wrong, compare())
    return elapsed, wrong


@dataclass(frozen=True, slots=True)
class RunResult:
    """The table, what a user should know about the sizes, and the first wrong elements in words."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = "; ".join(
            f"{row.mode} {row.size} bytes in {row.time_us:.2f} us, "
            f"{'not checked' if row.wrong is None else f'{row.wrong} wrong'}"
            for row in self.rows
        )
        return f"<RunResult: {rows}>"

    def with_predictions(self, microseconds: Callable[[int], float]) -> RunResult:
        """The same with predictions by size."""
        rows = tuple(replace(row, predicted_us=microseconds(row.size)) for row in self.rows)
        return replace(self, rows=rows)

    @property
    def wrong(self) -> int:
        """Wrong elements of all rows."""
        return sum(row.wrong or 0 for row in self.rows)
