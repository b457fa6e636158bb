"""Budget: limits below those of a target, and what they cost.

In words: `200 of 208 GB/s: 32 channels; 64 would give 204.8`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common import arguments
from forestcoll.common.errors import PlanError
from forestcoll.program.targets import Target

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest

WORDS = {
    "trees": "different trees per root",
    "channels": "channels",
    "blocks": "thread blocks",
    "operations": "operations per thread block",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits below those of the targets; None: no limit of its own."""

    trees: int | None = None  # different trees of a root, in each phase
    channels: int | None = None  # as in `Target`
    blocks: int | None = None  # thread blocks of a rank
    operations: int | None = None  # steps of a thread block, as in `Target`

    @staticmethod
    def of(value: object) -> Budget:
        """A Budget, or one of a mapping such as {"trees": 8}; ArgumentError else."""
        if isinstance(value, Mapping):
            unknown = [str(name) for name in value if name not in WORDS]
            if unknown:
                arguments.word("limit of a budget", unknown[0], WORDS)
            return Budget.of(Budget(**value))
        arguments.instance("budget", value, Budget, ", nor a mapping such as {'trees': 8}")
        assert isinstance(value, Budget)
        for name in WORDS:
            arguments.whole_or_none(f"budget: {name}", getattr(value, name))
        return value

    def limit_target(self, target: Target) -> Target:
        """`target` with these limits where they are lower."""
        blocks = min(target.thread_blocks, self.blocks or target.thread_blocks)
        channels = min(target.channels, self.channels or target.channels)
        steps = min(target.steps, self.operations or target.steps)
        if (blocks, channels, steps) == (target.thread_blocks, target.channels, target.steps):
            return target
        name = f"{target.name} within the budget"
        return replace(target, name=name, thread_blocks=blocks, channels=channels, steps=steps)

    @property
    def limits(self) -> dict[str, int]:
        """Name -> limit, of those that are given."""
        return {name: limit for name in WORDS if (limit := getattr(self, name)) is not None}


def different_trees(forest: Forest) -> int:
    """The largest number of different trees that a root has in one phase."""
    counts = Counter((forest.orbit(tree.root), tree.phase) for tree in forest.trees)
    return max(counts.values(), default=0)


Lower = Callable[["Forest", Target], "Program"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What asks how dear a budget was: the same forests without one of its limits.

    `targets` are those without any budget; `lower` makes a plan.
    """

    budget: Budget
    targets: tuple[Target, ...]
    lower: Lower

    def words(self, taken: Fraction, best: Fraction, refused: Iterable[Forest]) -> str | None:
        """`"200 of 208 GB/s: 32 channels; 64 would give 204.8"`, or None where nothing was lost.

        `taken` is the algbw within the budget, `best` the largest there is; `refused` are forests
        that are faster and did not fit. The next larger budget that helps is told, one limit being
        lifted alone, or all of them where no single one is enough.
        """
        limits = self.budget.limits
        if taken == best or not limits:
            return None
        quick = {algbw: f for f in refused if (algbw := f.plain_algbw) > taken}
        faster = sorted(quick.values(), key=lambda forest: forest.plain_algbw)
        said = ", ".join(f"{limit} {_count_words(name, limit)}" for name, limit in limits.items())
        text = f"{_number(taken)} of {_number(best)} GB/s: {said}"
        lifted = [
            (name, *step) for name in limits if (step := self._step((name,), faster)) is not None
        ]
        for name, needs, algbw in lifted:
            unit = "" if len(limits) == 1 else f" {_count_words(name, needs[name])}"
            text += f"; {needs[name]}{unit} would give {_number(algbw)}"
        if not lifted and len(limits) > 1:
            step = self._step(tuple(limits), faster)
            if step is not None:
                needs, algbw = step
                more = " and ".join(f"{n} {_count_words(name, n)}" for name, n in needs.items())
                text += f"; {more} would give {_number(algbw)}"
        return text

    def _step(
        self, names: tuple[str, ...], faster: Iterable[Forest]
    ) -> tuple[Mapping[str, int], Fraction] | None:
        """The least of these limits at which a faster forest fits, and its algbw."""
        options = []
        for forest in faster:
            needs = self._needs(names, forest)
            if needs is not None:
                options.append((tuple(needs.values()), -forest.plain_algbw, forest, needs))
        if not options:
            return None
        _, _, forest, needs = min(options, key=lambda option: option[:2])
        if len(names) == 1 and names[0] != "trees":
            needs = {names[0]: self._least(names[0], needs[names[0]], forest)}
        return needs, forest.plain_algbw

    def _needs(self, names: tuple[str, ...], forest: Forest) -> dict[str, int] | None:
        """What the forest takes of the lifted limits where it keeps the others, or None."""
        from forestcoll.lower import usage

        budget = replace(self.budget, **dict.fromkeys(names))
        different = different_trees(forest)
        if budget.trees is not None and different > budget.trees:
            return None
        try:
            used = [usage(self.lower(forest, budget.limit_target(t))) for t in self.targets]
        except PlanError:
            return None
        figures = {
            "trees": different,
            "channels": max((u.channels for u in used), default=0),
            "blocks": max((u.thread_blocks for u in used), default=0),
            "operations": max((u.steps for u in used), default=0),
        }
        limits = self.budget.limits
        return {name: max(figures[name], limits[name]) for name in names}

    def _least(self, name: str, enough: int, forest: Forest) -> int:
        """The smallest limit at which the forest still fits: programs use more where they may."""
        low = self.budget.limits[name]  # does not fit, `enough` does
        while enough - low > 1:
            middle = (low + enough) // 2
            budget = replace(self.budget, **{name: middle})
            try:
                for target in self.targets:
                    self.lower(forest, budget.limit_target(target))
                enough = middle
            except PlanError:
                low = middle
        return enough


def _count_words(name: str, count: int) -> str:
    words = WORDS[name]
    if count != 1:
        return words
    return words.replace("trees", "tree").replace("operations", "operation").removesuffix("s")


def _number(value: Fraction) -> str:
    """GB/s with at most three decimals, `"204.8"`."""
    thousandths = round(value * 1000)
    whole, rest = divmod(thousandths, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
