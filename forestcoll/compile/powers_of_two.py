"""Powers of two: forests rounded so that their plans serve them, and what to say about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.program.sizes import Sizes, is_power, most_chunks

if TYPE_CHECKING:
    from forestcoll.program import Protocol
    from forestcoll.program.targets import Target
    from forestcoll.schedule.forest import Forest


def round_forest(
    forest: Forest,
    least: Fraction,
    targets: Collection[Target],
    instances: int = 1,
    protocol: Protocol | None = None,
) -> Forest | None:
    """The forest with weights such that plans of the targets serve powers of two.

    The forest as it is where they do so already; None where no such weights reach `least` GB/s.
    Raises PlanError where no plan can be made of the forest.
    """
    if is_power(units_of(forest, targets)):
        return forest
    from forestcoll.solver.rounding import round_to_power

    most = min(most_chunks(forest.n), *(target.chunks for target in targets)) // instances
    # few bytes want few chunks
    best = least if protocol == "LL" else forest.plain_algbw
    return round_to_power(forest, best, least, most)


def units_of(forest: Forest, targets: Iterable[Target]) -> int:
    """Chunks of a plan per part of the data: of all of it, or of each rank's.

    Raises PlanError where no plan can be made of the forest.
    """
    from forestcoll.lower.layout import layout, no_parity, parity_of

    fifo = any(target.style == "fifo" for target in targets)
    chunks = layout(forest, 1, parity_of(forest.graph) if fifo else no_parity).chunks
    return chunks // forest.collective.parts(forest.n)


def why_rounded(forest: Forest, solved: Forest, option: str) -> str:
    """What the weights of `solved` were rounded to, and what these bring: `option` asks for them.

    Rounded weights of few rings may fit the links better than the rings' own: nothing is offered.
    """
    parts = forest.collective.parts(forest.n)
    unit = "the data" if parts == 1 else "a rank's part"
    rounded = (
        f"shares are rounded to 1/{forest.total // parts} of {unit}, so that every power of two is "
        "served"
    )
    algbw = float(solved.plain_algbw)
    more = 100 * float(solved.plain_algbw / forest.plain_algbw - 1)
    if more <= 0:
        return rounded
    units = units_of(solved, ())
    return f"{rounded}; {option} takes 1/{units} and {algbw:.6g} GB/s ({more:.2f} % more)"


def why_odd(sizes: Sizes) -> str:
    """Why plans of a default choice serve no powers of two."""
    return (
        f"no power of two is served ({sizes.words()}): no weights of its trees in powers of two "
        "that fit reach 99 % of its algbw"
    )
