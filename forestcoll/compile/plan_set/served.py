"""Which sizes of a range a plan serves, and up to where."""

from __future__ import annotations

from forestcoll.compile.plan_set.values import LARGEST
from forestcoll.errors import PlanError
from forestcoll.program import Program
from forestcoll.sizes import Sizes
from forestcoll.targets import Target


def check_served(program: Program, target: Target, low: int, high: int) -> None:
    """PlanError where no size of a plan's range divides into its chunks."""
    sizes = Sizes.of(program)
    least = sizes.multiple(1)  # bytes of the smallest elements
    if high // least * least < low:
        raise PlanError(
            f"{target.name}: sizes {low} to {high} bytes hold no multiple of {least} bytes, the "
            f"{sizes.chunks} chunks of the best plan for them; ask for a range with one, such as "
            f"--sizes {low}:{-(-low // least) * least}"
        )


def most_served(program: Program) -> int:
    """The largest size that a program serves."""
    from forestcoll.plans import mscclpp

    most = program.max_bytes or LARGEST
    return min(most, mscclpp.largest_size(program)) if program.style == "onesided" else most
