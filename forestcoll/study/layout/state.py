"""A placement under search: the least that it costs, kept up to date as two ranks trade GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forestcoll.study.layout.costs import GIGA, NEVER, Costs, Placement, Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Before = tuple[int, int, list[Floats], list[tuple[Floats, list[int], Floats]]]

SLOPE = 0.02
"""What the mean over groups and cuts counts beside the largest: it leads over plateaus."""
SLICE = 32
"""Units whose data over cuts are added up at once."""
DEAR = 20
"""Times the default's slowest that what cannot be served counts, so that a search gets past it."""


class State:
    """`gpus[r]` is the GPU of rank r. `bound` and `score` are seconds.

    Per step, `times` has a number for each unit of its rows, and `loads` for each cut: seconds
    that the unit takes alone, and that the cut takes to let all of the step's data leave.
    """

    def __init__(self, costs: Costs, placement: Sequence[int]) -> None:
        import numpy as np

        self.costs = costs
        self.gpus = np.array(placement)
        self.times = [
            [np.array([self._time(row, unit) for unit in row.units]) for row in step]
            for step in costs.steps
        ]
        self.refresh()
        served = [t for rows in self.times for times in rows for t in times.tolist() if t < NEVER]
        self.dear = DEAR * max(served, default=1.0)
        self.kept = [costs.job.groups(dim) for dim in costs.job.keep]
        self.home = [_home(groups, len(placement)) for groups in self.kept]
        self.torn = [
            np.array([self._tears(group) for group in groups], dtype=float) for groups in self.kept
        ]

    def refresh(self) -> None:
        """Counts what crosses cuts anew, as there are more of them."""
        import numpy as np

        fabric = self.costs.fabric
        self.limits = fabric.leaving * GIGA
        self.loads: list[Floats] = []
        for step in self.costs.steps:
            load = np.zeros(len(fabric.leaving))
            for row in step:
                for start in range(0, len(row.units), SLICE):
                    numbers = range(start, min(start + SLICE, len(row.units)))
                    load += self._load(row, numbers)
            self.loads.append(load)

    @property
    def placement(self) -> Placement:
        """Per rank its GPU."""
        return tuple(self.gpus.tolist())

    @property
    def bound(self) -> float:
        """Seconds that the placement takes at least; `NEVER` and more where it cannot be."""
        return self._sum(0.0, NEVER)

    @property
    def score(self) -> float:
        """What a search makes smaller: the bound, and some of the mean."""
        return self._sum(SLOPE, self.dear)

    def _sum(self, slope: float, never: float) -> float:
        import numpy as np

        total = 0.0
        for own, load in zip(self.times, self.loads, strict=True):
            over = load / self.limits
            rows = [np.minimum(times, never) for times in own]
            worst = max(float(times.max()) for times in rows)
            total += max(worst, float(over.max()) if over.size else 0.0)
            if slope:
                total += slope * sum(float(times.mean()) for times in rows)
                total += slope * (float(over.mean()) if over.size else 0.0)
        for torn in self.torn:
            total += never * (float(torn.max()) + slope * float(torn.mean()))
        return total

    def swap(self, a: int, b: int) -> Before:
        """Ranks a and b trade GPUs; what `undo` takes to put everything back."""
        touched = [
            [list(dict.fromkeys((*row.of[a], *row.of[b]))) for row in step]
            for step in self.costs.steps
        ]
        before: list[Floats] = list(self.loads)
        self.loads = [load.copy() for load in before]
        self._count(touched, -1.0)
        self.gpus[a], self.gpus[b] = self.gpus[b], self.gpus[a]
        self._count(touched, 1.0)
        old: list[tuple[Floats, list[int], Floats]] = []
        for step, units, times in zip(self.costs.steps, touched, self.times, strict=True):
            for row, numbers, own in zip(step, units, times, strict=True):
                old.append((own, numbers, own[numbers]))
                own[numbers] = [self._time(row, row.units[number]) for number in numbers]
        for groups, home, torn in zip(self.kept, self.home, self.torn, strict=True):
            numbers = [home[rank] for rank in (a, b) if home[rank] >= 0]
            old.append((torn, numbers, torn[numbers]))
            torn[numbers] = [self._tears(groups[number]) for number in numbers]
        return a, b, before, old

    def undo(self, before: Before) -> None:
        """As it was before that trade, the last one."""
        a, b, self.loads, old = before
        self.gpus[a], self.gpus[b] = self.gpus[b], self.gpus[a]
        for values, numbers, had in old:
            values[numbers] = had

    def is_idle(self, a: int, b: int) -> bool:
        """Whether no group tells these ranks apart."""
        return all(row.of[a] == row.of[b] for _, row in self.costs.rows())

    def _count(self, touched: list[list[list[int]]], sign: float) -> None:
        for number, (step, units) in enumerate(zip(self.costs.steps, touched, strict=True)):
            for row, numbers in zip(step, units, strict=True):
                if numbers:
                    self.loads[number] += sign * self._load(row, numbers)

    def _load(self, row: Row, numbers: Sequence[int]) -> Floats:
        """Bytes that units of a row send over each cut."""
        import numpy as np

        members = self.gpus[np.array([row.units[number] for number in numbers])]
        held = self.costs.fabric.inside[:, members].sum(axis=2)
        crossing: Floats = self.costs.crossing(row, held, members.shape[1]).sum(axis=1)
        return crossing * row.total

    def _time(self, row: Row, unit: Sequence[int]) -> float:
        rate = self.costs.alone(row, self.gpus[list(unit)].tolist())
        return row.total / (rate * GIGA) if rate else NEVER

    def _tears(self, group: Sequence[int]) -> float:
        box = self.costs.fabric.box
        return float(len({box[g] for g in self.gpus[list(group)].tolist()}) > 1)


def _home(groups: Sequence[Sequence[int]], count: int) -> list[int]:
    """Per rank the number of its group; -1: it is in none."""
    home = [-1] * count
    for number, group in enumerate(groups):
        for rank in group:
            home[rank] = number
    return home
