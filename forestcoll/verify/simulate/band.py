"""What a plan does in simulated time, in a few figures: the band that its bandwidth lies in.

Links in practice neither share evenly nor serve strictly in order; a plan is simulated both ways.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from forestcoll.program import Program
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify.simulate.fabric import Latencies, Where
from forestcoll.verify.simulate.options import Options
from forestcoll.verify.simulate.result import Timing
from forestcoll.verify.simulate.simulation import BOTH, DEFAULTS, PIECES, run_each, run_forest

SIZE: Final = 10**9
"""Bytes of a call for which plans state what they reach."""
RANKS: Final = 128
"""Ranks up to which plans are chosen by simulated times, and reports have some; above, by estimates
and links alone."""
FLOWS: Final = 2_000
"""Edges in all trees of a forest up to which one that is alone is simulated for a report."""


@dataclass(frozen=True, slots=True)
class Band:
    """Microseconds of a call of `size` bytes where links serve transfers in order, or share.

    `fill`: microseconds over fair links in which even the busiest of them has nothing to carry, for
    pipelines fill and run dry.
    """

    size: int
    fifo: float
    fair: float
    fill: float
    model: str = ""  # `Options.words`

    @property
    def fifo_algbw(self) -> float:
        """GB/s over links in order."""
        return self.size / self.fifo / 1000

    @property
    def fair_algbw(self) -> float:
        """GB/s over links that share."""
        return self.size / self.fair / 1000

    @property
    def least(self) -> float:
        """GB/s of the worse of both."""
        return min(self.fifo_algbw, self.fair_algbw)

    def share(self, algbw: Fraction) -> float:
        """What the worse of both is of so many GB/s."""
        return self.least / float(algbw)

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "size": self.size,
            "in_order": {"time_us": self.fifo, "algbw": self.fifo_algbw},
            "fair": {"time_us": self.fair, "algbw": self.fair_algbw},
            "fill_us": self.fill,
            "model": self.model,
        }


def longest(program: Program, size: int = SIZE) -> int:
    """Bytes of the longest call up to `size` that the program serves; packets serve short ones."""
    return min(size, program.max_bytes or size)


def band(
    program: Program,
    where: Where,
    size: int = SIZE,
    *,
    links: Topology | Latencies | None = None,
    options: Options = DEFAULTS,
    until: float = math.inf,
) -> Band:
    """The figures of a plan; the arguments are those of `run_each`."""
    has_latencies = links is not None or isinstance(where, Topology)
    model = options.words([(program.style, program.protocol)], latencies=has_latencies)
    fifo, fair = run_each(program, where, size, links=links, options=options, until=until)
    return _band(fifo, fair, model)


def forest_band(
    forest: Forest, size: int = SIZE, *, links: Latencies | None = None, pieces: int = PIECES
) -> Band:
    """The figures of a forest alone, as `run_forest` plays it."""
    fifo, fair = (run_forest(forest, size, links=links, rule=r, pieces=pieces) for r in BOTH)
    return _band(fifo, fair, DEFAULTS.words(latencies=links is not None))


def plan_band(
    program: Program, where: Where, links: Topology | Latencies | None = None
) -> Band | None:
    """Those of a plan for a report, of as many bytes as it serves; None where it takes long."""
    if program.n > RANKS:
        return None
    return band(program, where, longest(program), links=links)


def band_of_trees(forest: Forest, links: Latencies | None, size: int = SIZE) -> Band | None:
    """Those of a forest alone for a report; None where it takes long."""
    flows = sum(len(tree.edges) for tree in forest.trees)
    if forest.n > RANKS or forest.group is not None or flows > FLOWS:
        return None
    return forest_band(forest, size, links=links)


def _band(fifo: Timing, fair: Timing, model: str) -> Band:
    used = max((use.utilisation for use in fair.links), default=0.0)
    return Band(fair.size, fifo.time, fair.time, max(0.0, fair.time * (1 - used)), model)
