"""What a comparison says: a cell for each competitor, size and rule; who is fastest where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from forestcoll.common.display import Shown
from forestcoll.program import Collective
from forestcoll.study.figures import Figures
from forestcoll.verify.simulate import LinkUse

Kind = Literal["ours", "old", "baseline", "file"]
OURS = "forestcoll"
ALIKE = 1e-3
"""Times that differ by less are the same: ours, or who was fastest before, counts."""


class Entrant(NamedTuple):
    """A competitor: `words` say what it is; `why` what keeps it out, or ""."""

    name: str
    kind: Kind
    words: str
    why: str = ""


@dataclass(frozen=True)
class Cell:
    """One competitor at one size: microseconds, GB/s as nccl-tests counts them, and its plan.

    `rule`: of the links; `percent`: of the bound, of plans that let switches copy and add that of
    those; `busiest`: the links that are used most; `use`: what a file's plan takes of the links of
    a GPU. Without a plan the time is the least that its links allow.
    """

    name: str
    rule: str
    size: int
    time: float
    algbw: float
    busbw: float
    percent: float
    plan: str
    busiest: tuple[LinkUse, ...] = field(repr=False, default=())
    use: str = field(repr=False, default="")


class Lead(NamedTuple):
    """From `low` to `high` bytes `name` is fastest under `rule`; the ends lie between sizes."""

    rule: str
    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Comparison(Shown):
    """Times of all competitors on one machine.

    `bound`: GB/s that no schedule exceeds whose GPUs copy and add; `best`: with what limits it;
    `model`: of the simulation, as `simulate.Options.words` says it. `partial`: cells are missing,
    for it was cut off or is under way.
    """

    name: str  # of the topology
    collective: Collective
    ranks: int
    bound: Fraction
    sizes: tuple[int, ...]
    rules: tuple[str, ...]
    entrants: tuple[Entrant, ...]
    cells: tuple[Cell, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    best: Figures | None = None
    model: str = ""
    partial: bool = False

    def __repr__(self) -> str:
        return (
            f"<Comparison of {self.collective} on {self.name}: {len(self.present)} competitors, "
            f"{len(self.sizes)} sizes, links {', '.join(self.rules)}>"
        )

    @property
    def in_switches(self) -> Fraction | None:
        """GB/s that schedules reach which let switches copy and add, where that is more."""
        return None if self.best is None else self.best.in_switches

    @property
    def present(self) -> list[Entrant]:
        """The competitors that take part."""
        return [entrant for entrant in self.entrants if not entrant.why]

    def cell(self, name: str, size: int, rule: str) -> Cell | None:
        """The cell of a competitor, None where it has no plan for the size."""
        cells = (c for c in self.cells if (c.name, c.size, c.rule) == (name, size, rule))
        return next(cells, None)

    def best_baseline(self, size: int, rule: str) -> Cell | None:
        """The fastest of the baselines' plans."""
        baselines = {e.name for e in self.entrants if e.kind == "baseline"}
        cells = [c for c in self._plans(size, rule) if c.name in baselines]
        return min(cells, key=lambda c: c.time, default=None)

    def _plans(self, size: int, rule: str) -> list[Cell]:
        return [c for c in self.cells if (c.size, c.rule) == (size, rule) and c.plan]

    def speedup(self, size: int, rule: str, name: str = OURS) -> float | None:
        """How many times as fast as the best baseline a competitor is; None: one has no plan."""
        mine, best = self.cell(name, size, rule), self.best_baseline(size, rule)
        return None if mine is None or best is None else best.time / mine.time

    def leads(self, rule: str) -> list[Lead]:
        """Who is fastest from where to where: crossovers lie between."""
        leads: list[Lead] = []
        for size in self.sizes:
            cells = self._plans(size, rule)
            if not cells:
                continue
            least = min(c.time for c in cells) * (1 + ALIKE)
            alike = [c.name for c in cells if c.time <= least]  # ours is the first of all
            if leads and leads[-1].name in alike and OURS not in alike[:1]:
                alike = [leads[-1].name]
            if leads and leads[-1].name == alike[0]:
                leads[-1] = leads[-1]._replace(high=size)
                continue
            low = size
            if leads:
                low = self._crossing(leads[-1], alike[0], size)
                leads[-1] = leads[-1]._replace(high=low)
            leads.append(Lead(rule, alike[0], low, size))
        return leads

    def _crossing(self, last: Lead, name: str, size: int) -> int:
        """Bytes at which `name` overtakes the last leader: times are straight between sizes."""
        a = [self.cell(last.name, s, last.rule) for s in (last.high, size)]
        b = [self.cell(name, s, last.rule) for s in (last.high, size)]
        if None in a or None in b:
            return size
        before, after = (x.time - y.time for x, y in zip(a, b, strict=True) if x and y)
        share = 0.0 if before == after else before / (before - after)
        return round(last.high + min(1.0, max(0.0, share)) * (size - last.high))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Plain values, a row for each cell."""
        kinds = {entrant.name: entrant.kind for entrant in self.entrants}
        for cell in self.cells:
            yield {
                "schedule": cell.name,
                "kind": kinds[cell.name],
                "links": cell.rule,
                "size": cell.size,
                "time_us": cell.time,
                "algbw": cell.algbw,
                "busbw": cell.busbw,
                "percent": cell.percent,
                "speedup": self.speedup(cell.size, cell.rule, cell.name),
                "plan": cell.plan or "none: what links allow",
                "use": cell.use or None,
            }

    def busiest(self, most: int = 3) -> Iterator[dict[str, Any]]:
        """Plain values, a row for each of the links that a competitor uses most at its last size.

        `used`: of the time.
        """
        for rule in self.rules:
            for entrant in self.present:
                mine = [c for c in self.cells if (c.name, c.rule) == (entrant.name, rule)]
                for use in max(mine, key=lambda c: c.size).busiest[:most] if mine else ():
                    yield {
                        "schedule": entrant.name,
                        "links": rule,
                        "link": f"{use.src} -> {use.dst}",
                        "bandwidth": use.bandwidth,
                        "used": use.utilisation,
                    }

    def to_csv(self) -> str:
        """The rows as CSV with a head line."""
        import csv
        import io

        rows = list(self.rows())
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
