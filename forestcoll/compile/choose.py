"""Choice of a forest: what the front offers, what targets hold, what the caller wishes.

More trees per root are faster only until a runtime cannot hold them. Without wishes the answer is
the exact optimum where its plans fit; else the fewest trees per root that reach ENOUGH of it; else
the best that fits. Where its plans are far slower in simulated time, another forest whose plans are
faster (`rivals`). Where its chunks divide no power of two, the weights of its trees are rounded as
long as ENOUGH is left, unless the exact optimum is asked for. Rates come from the front without any
tree; trees are made only for what is tried, and how many are tried depends on the problem alone, so
that the same call gives the same bytes.

Which of two plans of a forest is better, `search.Judge.better` says; which plan serves which size,
`plan_set/contest.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Literal

from forestcoll.common.clock import Clock
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.budget import Costs, different_trees
from forestcoll.compile.problem import Problem
from forestcoll.compile.request import Request
from forestcoll.program.sizes import Sizes, is_power, most_chunks
from forestcoll.program.targets import PlanFormat, Target
from forestcoll.topology.numbers import percent

if TYPE_CHECKING:
    from forestcoll.compile.rivals import Judged
    from forestcoll.program import Program, Protocol
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver import Optimum
    from forestcoll.solver.front import Front, Point


ENOUGH = Fraction(99, 100)
"""Share of the optimum at which fewer trees per root count for more than the rest."""
NEARLY = Fraction(999, 1000)
"""The same where the optimum itself would take minutes."""
SMALL = 16
"""Every k up to here is a candidate, also one that a smaller k beats: its trees may be lower."""
FEW = 6
TRIES = 48
"""Forests made at most for one list of candidates, on small graphs; FEW on very large ones."""
POWERS = (1, 2, 4, 8, 16, 32, 64)
"""Trees a root that are tried where the rounded optimum does not fit."""


def _relays(forest: Forest) -> bool:
    """Whether some path runs through a GPU that is no rank, which no plan can do."""
    gpu = forest.graph.gpu
    return any(gpu[v] for tree in forest.trees for path in tree.edges for v in path[1:-1])


Programs = dict[PlanFormat, "Program"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The forest that was taken, the program of each format, and what there is to say about it.

    `optimum_trees`: the fewest trees per root known to reach the optimum.
    """

    forest: Forest
    programs: dict[PlanFormat, Program]
    optimum_trees: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Found:
    """A forest whose plans fit. `solved`: the same before its weights were rounded, if they were.

    `programs`: of one instance. `rings`: its trees are rings, `point` is the optimum's.
    """

    point: Point
    solved: Forest
    forest: Forest
    programs: dict[PlanFormat, Program]
    rings: bool = False


class Chooser:
    """Makes forests and their programs until one suits.

    `targets`: per format the target that its program must fit.
    """

    def __init__(
        self,
        problem: Problem,
        targets: Mapping[PlanFormat, Target],
        wishes: Request,
        best: Optimum,
        clock: Clock,
    ) -> None:
        self.problem = problem
        self.graph = problem.graph
        self.collective = problem.collective
        self.targets = {form: wishes.budget.limit_target(t) for form, t in targets.items()}
        self._roomy = tuple(targets.values())
        self._refused: list[Forest] = []  # where there is a budget: what it refused
        self.wishes = wishes
        self.best = best
        self.stage = clock.stage
        self._clock = clock
        self._front: Front | None = None
        self._heights: dict[int, int] = {}  # trees per root -> height, of all that was made
        self._tried: dict[int, str] = {}  # trees per root -> why not
        self._odd: dict[int, Forest] = {}  # trees per root -> what serves no powers of two that fit
        self._made: dict[int, Forest] = {}  # trees per root -> what may be asked for again
        self._relaying = 0  # forests that no plan holds because GPUs that are no ranks relay

    def choose(self) -> Choice:
        """The forest that the wishes ask for.

        Raises PlanError where no plan fits, UnsupportedError where no forest is as is wished.
        """
        if self.wishes.trees != "auto":
            forest = self.forest(self.wishes.trees)
            refusal = self.wishes.refusal(forest)
            if refusal:
                raise UnsupportedError(f"{_words(self.wishes.trees)}: {refusal}")
            programs, short = self._search(forest, self._lower(forest))
            notes = [*self._note_trees(forest), *short]
            return Choice(forest, programs, self._exact().trees, notes)
        quick = self._quick()
        if quick is not None:
            return self._explain(quick, self._judge(quick.forest, quick.programs))
        lowest = self.wishes.lowest
        for points, powers in [(self._low(), False)] if lowest else self._candidates():
            candidate = self._first(points, powers)
            if candidate is not None:
                return self._explain(*self._fastest(candidate))
        raise self._failure()

    @property
    def front(self) -> Front:
        """Rates of all numbers of trees per root."""
        if self._front is None:
            from forestcoll.solver.front import Front

            with self.stage("front"):
                self._front = Front(self.graph, self.collective, self.problem.root, self.best)
        return self._front

    def forest(
        self, trees: int | Literal["auto"], enough: Fraction | None = None, patient: bool = True
    ) -> Forest:
        """The forest with that many trees per root ("auto": the optimum in whole units).

        `enough`, `patient`: see `solver.solve`.
        """
        from forestcoll import solver

        with self.stage("solve"):
            compact = None
            if self.wishes.compact:
                compact = solver.solve_compact(
                    self.graph, self.collective, trees, self.problem.name
                )
            return compact or solver.solve(
                self.graph,
                self.collective,
                self.problem.root,
                trees,
                name=self.problem.name,
                progress=self._clock.report,
                enough=enough or self._enough,
                patient=patient,
            )

    def forest_of(self, point: Point) -> Forest:
        """That of a point of the front."""
        return self.forest("auto" if point.exact else point.trees)

    @property
    def _enough(self) -> Fraction | None:
        """GB/s that the caller is content with, where that is said."""
        least = self.wishes.min_percent
        if least is None or self.collective.two_phases:
            return None
        return least / 100 * self.best.algbw

    def _exact(self) -> Point:
        """The optimum with the fewest trees per root.

        One needs no search for fewer; of large regular graphs the optimum in whole units is taken.
        """
        from forestcoll.solver.front import Point

        if self.best.trees_per_root == 1 or self.wishes.compact:
            return Point(self.best.trees_per_root, self.best.algbw, Fraction(1), exact=True)
        return self.front.exact

    def _quick(self) -> _Found | None:
        """For a forest alone without wishes: the optimum, or next to it, if that takes no minutes.

        Where the optimum's trees are too many to be searched, or are not found, some capacity is
        left unused; then fewer trees are tried.
        """
        from forestcoll.solver.phase_packing import SlowError

        if self.targets or not self.wishes.free or self.wishes.compact:
            return None
        exact = self._exact()
        try:
            solved = self.forest("auto" if exact.exact else exact.trees, patient=False)
            return _Found(exact, solved, solved, {})
        except SlowError:
            self._tried[exact.trees] = "and minutes: --exact"
        near = NEARLY * self.best.algbw
        for point in (exact, *islice(self.front.reaching(NEARLY), FEW)):
            try:
                solved = self.forest(point.trees, near, patient=False)
            except SlowError:
                continue
            return _Found(point, solved, solved, {})
        self._tried.clear()
        return None

    def _candidates(self) -> Iterator[tuple[Iterable[Point], bool]]:
        """What to try: list after list, each in its order, until something suits.

        With a list: whether its plans have to serve powers of two. With a percentage the fewest
        trees come first; with wishes for height or budget alone the best algbw. Without any, what
        is good enough and serves powers of two comes first, then what is good enough with fewer
        trees, then the best.
        """
        if self.wishes.min_percent is not None:
            yield self.front.reaching(self.wishes.min_percent / 100), False
            return
        free = self.wishes.free
        yield [self._exact()], free
        if self.wishes.exact:
            return
        enough = [p for p, _ in zip(self.front.reaching(ENOUGH), range(SMALL), strict=False)]
        if free:
            fewer = (self.front.point(k) for k in POWERS if k < self._exact().trees)
            yield [p for p in fewer if p.share >= ENOUGH], True
            yield enough, True
            yield [self._exact(), *enough], False
        small = [self.front.point(k) for k in range(1, min(SMALL, self._exact().trees) + 1)]
        points = {p.trees: p for p in (*small, *enough, *self.front.points())}
        for some in (points.values(), small[:FEW]):
            yield sorted(some, key=lambda p: (-p.algbw, p.trees)), False

    def _low(self) -> list[Point]:
        """Few trees per root and the optimum, the lowest forests first."""
        exact = self._exact()
        most = max(FEW, min(SMALL, 2048 // len(self.graph.ranks)))
        points = [exact, *(self.front.point(k) for k in range(1, most + 1) if k != exact.trees)]
        forests = []
        for point in points:
            forest = self.forest_of(point)
            forests.append((forest.height, -forest.plain_algbw, point.trees, point))
            if forest.height == 1:
                break
        return [point for *_, point in sorted(forests, key=lambda entry: entry[:3])]

    def _first(self, points: Iterable[Point], powers: bool) -> _Found | None:
        """The first that suits; what surely does not fit costs no try."""
        left = max(FEW, min(TRIES, 4096 // len(self.graph.ranks)))
        for point in points:
            if point.trees in self._tried or (powers and point.trees in self._odd):
                continue
            hopeless = self._hopeless(point.trees)
            if hopeless:
                self._tried[point.trees] = hopeless
                continue
            if left == 0:
                return None
            left -= 1
            candidate = self._fitting(point, powers)
            if candidate is not None:
                return candidate
        return None

    def _fitting(self, point: Point, powers: bool) -> _Found | None:
        """The point's forest, rounded where it can be, and programs that fit, or None.

        `powers`: only where they serve powers of two.
        """
        solved = self._odd.pop(point.trees, None)
        tried = solved is not None  # in its rounded form
        solved = solved or self._made.get(point.trees) or self.forest_of(point)
        self._heights[point.trees] = solved.height
        refusal = self.wishes.refusal(solved)
        if refusal is None:
            rounded = None if tried else self._round(solved)
            for forest in [rounded] if powers else [rounded, solved]:
                if forest is None:
                    continue
                try:
                    return _Found(point, solved, forest, self._lower(forest))
                except PlanError as error:
                    refusal = str(error)
                    if forest is solved:
                        break
            if powers and rounded is not solved:
                self._odd[point.trees] = solved
                return None
            self._relaying += _relays(solved)
            if self._relaying == FEW:  # it is not for the number of trees then
                raise PlanError(refusal)
        self._tried[point.trees] = refusal or ""
        if self.wishes.budget.limits and len(self._refused) < FEW:
            self._refused.append(solved)
        return None

    def _round(self, forest: Forest) -> Forest | None:
        """The forest with weights such that its plans serve powers of two; None: too slow.

        The forest as it is where they do already, or where no such thing is asked for.
        """
        wishes = self.wishes
        if not self.targets or wishes.exact:
            return forest

        algbw = forest.plain_algbw
        least = max(ENOUGH * algbw, min(algbw, ENOUGH * self.best.algbw))
        if wishes.min_percent is not None:
            least = max(least, wishes.min_percent / 100 * self.best.algbw)
        with self.stage("round"):
            limits = tuple(self.targets.values())
            return round_forest(forest, least, limits, wishes.parts, wishes.protocol)

    def _failure(self) -> PlanError | UnsupportedError:
        """The error when nothing suits: the nearest miss, and what would help."""
        least, highest = self.wishes.min_percent, self.wishes.max_height
        what = "" if least is None else f"with {percent(least / 100)} of the optimum or more "
        if highest is not None and self._heights:
            trees, height = min(self._heights.items(), key=lambda item: (item[1], item[0]))
            if height > highest:
                return UnsupportedError(
                    f"no forest {what}whose height is {highest} or less was found; the lowest has "
                    f"{height} ({_words(trees)})"
                )
        trees, reason = min(self._tried.items())
        if self.wishes.free:
            return PlanError(reason)
        kind = PlanError if self.targets else UnsupportedError
        return kind(f"no forest {what}was found that suits; {_words(trees)}: {reason}")

    def _fastest(self, first: _Found) -> tuple[_Found, Judged]:
        """The first choice; or one whose plans are faster where none is wished for."""
        from forestcoll.compile import rivals

        judged = self._judge(first.forest, first.programs)
        if not self.wishes.free:
            return first, judged
        if judged.share >= rivals.SURE:
            return self._try_rings(first, judged)
        candidate, best = (first, judged) if self.wishes.lowest else self._rounds(first, judged)
        if best.share >= rivals.SURE:
            return candidate, self._explain_speed(first, judged, candidate, best)
        point, n = first.point, len(self.graph.ranks)
        others = rivals.points(self.front, self._exact(), self.collective, n, judged.share)
        made = ((p, self.forest_of(p)) for p in others if p.trees != point.trees)
        forests = rivals.distinct(made, first.solved)
        if self.collective.has_root:
            alone = [*forests]
            with self.stage("simulate"):
                forests = rivals.promising(alone, self.best.algbw, judged.share, self.problem.links)
        powers, ahead = self._powers(first), False
        for number, (rival, forest) in enumerate(forests):
            if best.share >= rivals.SURE or (number >= rivals.LOWERED and not ahead):
                break
            self._made[rival.trees] = forest
            self._clock.subject = f"candidate {number + 2} of {len(others) + 1} at most"
            if other := self._fitting(rival, powers):
                theirs = self._judge(other.forest, other.programs)
                leaner = candidate is not first and theirs.blocks <= best.blocks
                ahead = theirs.share > (1 if leaner else rivals.GAIN) * best.share
                candidate, best = (other, theirs) if ahead else (candidate, best)
        self._clock.subject = ""
        return candidate, self._explain_speed(first, judged, candidate, best)

    def _explain_speed(
        self, first: _Found, judged: Judged, candidate: _Found, best: Judged
    ) -> Judged:
        """What was found, with a note where it is not the first choice."""
        from forestcoll.compile.rivals import speed_note

        if candidate is not first:
            trees = first.point.trees
            ours = "rings" if candidate.rings else _words(candidate.point.trees)
            option = "--exact" if candidate.rings and first.point.exact else f"--trees {trees}"
            best.notes.append(speed_note(ours, best, _words(trees), judged, option))
        return best

    def _rounds(self, first: _Found, judged: Judged) -> tuple[_Found, Judged]:
        """The first choice; or rings whose plans are faster, be they below the optimum."""
        from forestcoll.compile import rivals

        candidate, best = first, judged
        least = rivals.RING_GAIN * judged.share
        with self.stage("solve"):
            forests = rivals.rings_of(
                self.graph, self.collective, self.best, self.problem.name, least
            )
        for forest in forests:
            other = self._fit_rings(forest, self._powers(first))
            if other:
                theirs = self._judge(other.forest, other.programs)
                leaner = theirs.blocks <= best.blocks
                if theirs.share > (rivals.RING_GAIN if leaner else rivals.GAIN) * best.share:
                    candidate, best = other, theirs
        return candidate, best

    def _try_rings(self, first: _Found, judged: Judged) -> tuple[_Found, Judged]:
        """The first choice; or rings where a mesh has some whose plans are faster."""
        from forestcoll.compile import rivals

        candidate, best = first, judged
        if judged.share * rivals.RING_GAIN < 1 and not self.wishes.lowest:
            with self.stage("solve"):
                rings = rivals.rings(self.graph, self.collective, self.best, self.problem.name)
            other = rings and self._fit_rings(rings, self._powers(first))
            if other:
                theirs = self._judge(other.forest, other.programs)
                faster = theirs.share > rivals.RING_GAIN * judged.share
                if faster and theirs.blocks <= judged.blocks:
                    candidate, best = other, theirs
        return candidate, self._explain_speed(first, judged, candidate, best)

    def _fit_rings(self, solved: Forest, powers: bool) -> _Found | None:
        """Rings, rounded where they can be, with programs that fit, or None."""
        rounded = self._round(solved)
        for forest in [rounded] if powers else [rounded, solved]:
            if forest is not None:
                try:
                    programs = self._lower(forest)
                    return _Found(self._exact(), solved, forest, programs, rings=True)
                except PlanError:
                    continue
        return None

    def _powers(self, candidate: _Found) -> bool:
        """Whether all its plans serve powers of two."""
        return all(Sizes.of(program).powers for program in candidate.programs.values())

    def _explain(self, candidate: _Found, judged: Judged) -> Choice:
        """The choice with notes: why not the optimum, and which sizes a plan serves."""
        point, forest = candidate.point, candidate.forest
        programs = judged.programs
        notes = [*self._note_trees(forest), *judged.notes]
        exact = self._exact()
        if candidate.solved.plain_algbw < self.best.algbw and not candidate.rings:
            why = self._tried.get(exact.trees)
            share = percent(self._share(candidate.solved))
            notes.append(
                f"{_words(point.trees)}, at most {different_trees(forest)} of a root different: "
                f"{share} of the optimum, which takes {exact.trees} per root"
                + (f" ({why})" if why else "")
            )
        if programs:
            notes += self._sizes(candidate, programs)
        cost = Costs(self.wishes.budget, self._roomy, self._plan).words(
            candidate.solved.plain_algbw, self.best.algbw, self._refused
        )
        if cost:
            notes.append(cost)
        return Choice(forest, programs, exact.trees, notes)

    def _sizes(self, candidate: _Found, programs: Mapping[PlanFormat, Program]) -> list[str]:
        """What rounding did, or why plans serve no powers of two."""

        odd = [p for p in programs.values() if not Sizes.of(p).powers]
        if candidate.forest is not candidate.solved:
            exact = self.wishes.min_percent is None and candidate.point == self._exact()
            option = "--exact" if exact else f"--trees {candidate.point.trees}"
            return [why_rounded(candidate.forest, candidate.solved, option)]
        return [why_odd(Sizes.of(odd[0]))] if odd and not self.wishes.exact else []

    def _share(self, forest: Forest) -> Fraction:
        """Of the optimum."""
        return forest.algbw / self.best.algbw

    def _note_trees(self, forest: Forest) -> list[str]:
        if not self.wishes.compact or forest.group is not None:
            return []
        return ["no compact forest was found here: all trees are written"]

    def _hopeless(self, trees: int) -> str | None:
        """Why no target can hold so many trees per root, as far as their number tells; or None."""
        if not self.targets:
            return None
        from forestcoll.lower import hopeless

        problem, parts = self.problem, trees * self.wishes.parts
        n = len(problem.graph.ranks)
        reasons = (hopeless(t, problem.collective, n, parts) for t in self.targets.values())
        return next((reason for reason in reasons if reason), None)

    def _plan(self, forest: Forest, target: Target) -> Program:
        """The program for one target; PlanError where it cannot hold it."""
        from forestcoll.lower import lower

        wishes = self.wishes
        return lower(forest, target, instances=wishes.parts, protocol=wishes.protocol)

    def _lower(self, forest: Forest) -> Programs:
        """Those for all targets; PlanError where one cannot hold it."""
        with self.stage("lower"):
            return {form: self._plan(forest, target) for form, target in self.targets.items()}

    def _search(self, forest: Forest, programs: Programs) -> tuple[Programs, list[str]]:
        """The fastest programs that these lead to, and where thread blocks do not suffice."""
        if self.wishes.instances != "auto" or not programs:
            return programs, []
        from forestcoll.compile.search import search

        best, notes = {}, []
        with self.stage("lower"):
            for form, program in programs.items():
                best[form], note = search(forest, self.targets[form], program)
                notes += [note] if note else []
        return best, notes

    def _judge(self, forest: Forest, programs: Programs) -> Judged:
        """The fastest programs that these lead to, with what they reach."""
        from forestcoll.compile.rivals import judge

        programs, short = self._search(forest, programs)
        with self.stage("simulate"):
            return judge(forest, programs, short, self.best.algbw, self.problem.links)


def _words(trees: int) -> str:
    return f"{trees} {'tree' if trees == 1 else 'trees'} per root"


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
