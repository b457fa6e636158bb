"""What a run is asked for, of any engine: checked, and turned into the engine's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, PlanError, UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.check import check as check_structure
from forestcoll.execute.result import MODES, Mode, Row, repeat
from forestcoll.execute.sizes import Layout, layout
from forestcoll.program import Pipeline, Program
from forestcoll.program.sizes import Sizes

if TYPE_CHECKING:
    from forestcoll.execute.user_operator import UserOperator

DTYPES = tuple(_engine.type_names())
OPS = tuple(_engine.reduction_names())


class Asked(TypedDict, total=False):
    """What every engine's `run` may be asked for by keyword; `Request.of` has the defaults.

    `root`: of a plan that names none, a rank number. `iterations`: launches of each mode that are
    timed, after `warmup` others. With `check`, the first and the last of them begin with fresh
    data, and every element that they must produce or must leave alone is compared. `timeout`:
    seconds without any progress.
    """

    dtype: str
    op: str
    iterations: int
    warmup: int
    modes: Mode | Iterable[Mode]
    check: bool
    timeout: float
    root: int | None


class Request(NamedTuple):
    """One call of an engine's `run`: what runs, at which size, how often, and what is checked."""

    program: Program
    wanted: int  # bytes, as nccl-tests counts them
    data: Layout  # of the size that is run
    dtype: str
    op: str
    root: int  # -1 without
    modes: tuple[Mode, ...]
    launches: tuple[int, int]  # not timed, timed
    check: bool
    timeout: float  # seconds without any progress
    user: UserOperator | None = None  # in place of `op`

    @staticmethod
    def of(
        program: Program | str | PathLike[str],
        size_bytes: int,
        *,
        dtype: str = "float32",
        op: str = "sum",
        iterations: int = 1,
        warmup: int = 0,
        modes: Mode | Iterable[Mode] = MODES,
        check: bool = True,
        timeout: float = 60.0,
        root: int | None = None,
    ) -> Request:
        """The request, each argument checked: see `Asked`. `size_bytes` is nccl-tests' size."""
        program = program_of(program)
        check_structure(program)
        type_, _ = kind(dtype, op)
        size_bytes = arguments.whole("size_bytes", size_bytes)
        iterations = arguments.whole("iterations", iterations)
        warmup = arguments.whole("warmup", warmup, 0)
        timeout = arguments.positive("timeout", timeout)
        check = arguments.truth("check", check)
        allowed = {"out-of-place": program.out_of_place, "in-place": program.in_place}
        wanted = arguments.words("mode", modes, MODES)
        chosen = tuple(mode for mode in MODES if mode in wanted and allowed[mode])
        if not chosen:
            raise PlanError(f"the plan serves none of these: {', '.join(wanted)}")
        element = _engine.element_bytes(type_)
        data = layout(program, size_bytes, element)
        for r, b, block in program.blocks():
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline) and step.unit_bytes % element:
                    raise PlanError(
                        f"rank {r}, thread block {b}, step {s}: a pipeline unit of "
                        f"{step.unit_bytes} bytes splits elements of {element}"
                    )
        root = root_of(program, root)
        launches = (warmup, iterations)
        return Request(program, size_bytes, data, dtype, op, root, chosen, launches, check, timeout)

    @property
    def kind(self) -> tuple[int, int]:
        """The engine's numbers of the element type and the operation."""
        return kind(self.dtype, self.op)

    @property
    def pattern(self) -> _engine.Pattern:
        """What the inputs hold, and hence the outputs."""
        type_, op = self.kind
        reduces = self.program.collective.reduces and self.user is None
        return type_, op, reduces, self.program.n, type_

    @property
    def average(self) -> bool:
        """Whether sums are divided by the ranks at the end."""
        return self.op == "avg" and self.program.collective.reduces

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the size that is run in place of the wanted one."""
        program, data, notes = self.program, self.data, []
        if data.size != self.wanted:
            notes.append(
                f"{self.wanted} byte{'s are' if self.wanted > 1 else ' is'} not a whole number of "
                f"elements on each rank; ran {data.size} bytes"
            )
        if data.has_padding:
            notes.append(
                f"the plan serves {Sizes.of(program).words(self.dtype, data.element)}; here each "
                f"part of {data.part} element{'s' * (data.part > 1)} was padded to {data.chunks} "
                f"chunks of {data.chunk}"
            )
        low, high = program.min_bytes, program.max_bytes
        if data.size < low or (high and data.size > high):
            notes.append(f"the plan says that it serves {low} to {high or 'any number of'} bytes")
        return tuple(notes)

    def row(
        self,
        mode: Mode,
        fill: Callable[[], None],
        launch: Callable[[int], int],
        compare: Callable[[], int],
    ) -> Row:
        """All launches of a mode (`repeat`); `launch` gives nanoseconds."""
        nanoseconds, wrong = repeat(self.launches, self.check, fill, launch, compare)
        seconds = max(nanoseconds, 1) / self.launches[1] / 1e9
        checked = wrong if self.check else None
        kind = self.dtype, self.op if self.user is None else self.user.name
        return Row.of(self.program, self.data, mode, kind, self.root, seconds, checked)


def program_of(plan: object) -> Program:
    """What a caller gives for a plan: a Program, or the path of a plan file. Raises PlanError."""
    if isinstance(plan, Program):
        return plan
    if isinstance(plan, str | PathLike):
        from forestcoll.plans import read_plan

        return read_plan(plan)
    raise ArgumentError(
        f"plan must be a Program or the path of a plan file, not {arguments.quote(plan)}"
    )


def _index(choices: tuple[str, ...], word: str, what: str) -> int:
    return choices.index(arguments.word(what, word, choices))


def element_bytes(dtype: str) -> int:
    """Bytes of an element of that type, or UnsupportedError."""
    return _engine.element_bytes(_index(DTYPES, dtype, "data type"))


def kind(dtype: str, op: str) -> tuple[int, int]:
    """The engine's numbers of an element type and an operation, or UnsupportedError."""
    return _index(DTYPES, dtype, "data type"), _index(OPS, op, "operation")


def root_of(program: Program, root: int | None) -> int:
    """The root of a run: the plan's, or the given one where the plan says none; -1 without."""
    if not program.collective.has_root:
        if root not in (None, -1):
            raise UnsupportedError(f"{program.collective} has no root")
        return -1
    root = arguments.whole_or_none("root", root, -1)
    if program.root >= 0 and root not in (None, program.root):
        raise PlanError(f"the plan's root is rank {program.root}, not {root}")
    rank = program.root if root is None else root
    if not 0 <= rank < program.n:
        raise PlanError(f"{program.collective}: the root must be a rank from 0 to {program.n - 1}")
    return rank
