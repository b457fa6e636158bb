"""Which sizes a plan serves, and up to where; which sizes no plan of a runtime serves."""

from __future__ import annotations

from forestcoll.common.errors import PlanError
from forestcoll.compile.plan_set.values import LARGEST, Unserved
from forestcoll.plans import FORMATS
from forestcoll.program import Program
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import PlanFormat, Target


def last_begin(form: PlanFormat, target: Target, low: int, high: int) -> int:
    """The last size at which a plan for `low` to `high` bytes may begin; PlanError: none may.

    What serves that size serves all above.
    """
    last = min(high, FORMATS[form].last_minimum or high)
    if low > last:
        raise PlanError(
            f"{target.name} has no plans for sizes of {low} bytes or more alone: it reads the "
            f"smallest size as 32 bits; begin below {last + 1} bytes"
        )
    return last


def sizes_above(end: int, high: int, target: Target) -> tuple[Unserved, ...]:
    """The sizes up to `high` that the last plan, which serves `end` bytes at most, leaves over."""
    why = f"{target.name} counts bytes in 32 bits: no plan serves larger buffers"
    return (Unserved(end + 1, high, why),) if end < high else ()


def check_range(program: Program, target: Target, low: int, high: int) -> None:
    """PlanError where no size of a plan's range divides into its chunks."""
    sizes = Sizes.of(program)
    least = sizes.multiple(1)  # bytes of the smallest elements
    if high // least * least < low:
        raise PlanError(
            f"{target.name}: sizes {low} to {high} bytes hold no multiple of {least} bytes, the "
            f"{sizes.chunks} chunks of the best plan for them; ask for a range with one, such as "
            f"--sizes {low}:{-(-low // least) * least}"
        )


def largest_call(program: Program) -> int:
    """The largest size that a program serves."""
    from forestcoll.plans import mscclpp

    most = program.max_bytes or LARGEST
    return min(most, mscclpp.largest_size(program)) if program.style == "onesided" else most
