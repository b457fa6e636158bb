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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from forestcoll.common.clock import Clock
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.budget import Costs, different_trees
from forestcoll.compile.problem import Problem, Start
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
    from forestcoll.verify.simulate import Band


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
WHOLE = 8_192
"""Ranks up to which all trees are made where no compact forest is found."""


def _relays(forest: Forest) -> bool:
    """Whether some path runs through a GPU that is no rank, which no plan can do."""
    gpu = forest.graph.gpu
    return any(gpu[v] for tree in forest.trees for path in tree.edges for v in path[1:-1])


Programs = dict[PlanFormat, "Program"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The forest that was taken, the program of each format, and what there is to say about it.

    `optimum_trees`: the fewest trees per root known to reach the optimum. `bands`: of programs that
    were played for a report already.
    """

    forest: Forest
    programs: dict[PlanFormat, Program]
    optimum_trees: int
    notes: list[str]
    bands: Mapping[PlanFormat, Band] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Held:
    """A start whose plans fit. `forest`: its own, be it that weights are rounded.

    `programs`: of one instance.
    """

    start: Start
    forest: Forest
    programs: dict[PlanFormat, Program]


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
        self._relaying = 0  # forests that no plan holds because GPUs that are no ranks relay

    def choose(self) -> Choice:
        """The forest that the wishes ask for.

        Raises PlanError where no plan fits, UnsupportedError where no forest is as is wished.
        """
        if self.wishes.reduction_order != "recorded":
            return self._choose_by_order()
        if self.wishes.trees != "auto":
            forest = self.forest(self.wishes.trees)
            refusal = self.wishes.refusal(forest)
            if refusal:
                raise UnsupportedError(f"{_words(self.wishes.trees)}: {refusal}")
            judged = self._judge(forest, self._lower(forest))
            return self._choice(forest, judged, [])
        quick = self._quick()
        if quick is not None:
            return self._explain(quick, None)
        lowest = self.wishes.lowest
        for points, powers in [(self._low(), False)] if lowest else self._candidates():
            candidate = self._first(points, powers)
            if candidate is not None:
                return self._explain(*self._fastest(candidate))
        raise self._failure()

    def _choose_by_order(self) -> Choice:
        """The fastest forest that adds up as is wished, and what that costs."""
        from forestcoll.solver.baselines.sums import forests

        order, problem = self.wishes.reduction_order, self.problem
        free = replace(self.wishes, reduction_order="recorded")
        with self.stage("solve"):
            candidates = forests(self.graph, self.collective, problem.root, problem.name, order)
        refusal = PlanError("")
        for forest in candidates:
            try:
                programs = self._lower(forest)
            except PlanError as error:
                refusal = error
                continue
            judged = self._judge(forest, programs)
            other = Chooser(problem, self.targets, free, self.best, self._clock).choose()
            note = self._price(self._choice(forest, judged, []), other)
            return self._choice(forest, judged, [note])
        raise refusal

    def _price(self, ours: Choice, other: Choice) -> str:
        """What the order costs against recorded sums: GB/s of the links, and simulated time."""
        from forestcoll.verify.order import digest_of
        from forestcoll.verify.simulate import plan_band

        links, words = self.problem.links, []
        rates = [choice.forest.plain_algbw for choice in (ours, other)]
        with self.stage("simulate"):
            for form, program in ours.programs.items():
                bands = [
                    plan_band(p, choice.forest, links)
                    for choice, p in ((ours, program), (other, other.programs[form]))
                ]
                if bands[0] and bands[1]:
                    mine, theirs = (max(b.fifo, b.fair) for b in bands if b)
                    words.append(f"{form} {mine:.0f} us against {theirs:.0f} us")
        return (
            f"order of sums {digest_of(ours.forest)[:16]}, {self.wishes.reduction_order}: "
            f"{float(rates[0]):.6g} GB/s of {float(rates[1]):.6g} recorded "
            f"({percent(rates[0] / rates[1])})" + "".join(f"; {text}" for text in words)
        )

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
            compact = self.wishes.compact and solver.solve_compact(
                self.graph, self.collective, trees, self.problem.name
            )
            n = len(self.graph.ranks)
            if compact is None and self.problem.root is None and n > WHOLE:
                raise UnsupportedError(
                    f"no compact forest of these {n:,} GPUs was found, and all trees have "
                    f"{n * (n - 1):,} hops or more: --whole makes them, 'forestcoll optimum' says "
                    "how fast they would be"
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

    def _quick(self) -> _Held | None:
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
            return _Held(_start(exact, solved), solved, {})
        except SlowError:
            self._tried[exact.trees] = "and minutes: --exact"
        near = NEARLY * self.best.algbw
        for point in chain([exact], islice(self.front.reaching(NEARLY), FEW)):
            try:
                solved = self.forest(point.trees, near, patient=False)
            except SlowError:
                continue
            return _Held(_start(point, solved), solved, {})
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
        enough = list(islice(self.front.reaching(ENOUGH), SMALL))
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

    def _first(self, points: Iterable[Point], powers: bool) -> _Held | None:
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

    def _fitting(self, point: Point, powers: bool) -> _Held | None:
        """The point's forest, rounded where it can be, and programs that fit, or None.

        `powers`: only where they serve powers of two.
        """
        solved = self._odd.pop(point.trees, None)
        tried = solved is not None  # in its rounded form
        solved = solved or self.forest_of(point)
        self._heights[point.trees] = solved.height
        refusal = self.wishes.refusal(solved)
        if refusal is None:
            rounded = None if tried else self._round(solved)
            held = self._hold(_start(point, solved), [rounded] if powers else [rounded, solved])
            if isinstance(held, _Held):
                return held
            refusal = held
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

    def _hold(self, start: Start, forms: Sequence[Forest | None]) -> _Held | str:
        """The first of the forms of its forest whose programs fit; else why the last does not."""
        refusal = ""
        for number, forest in enumerate(forms):
            if forest is not None and forest not in forms[:number]:
                try:
                    return _Held(start, forest, self._lower(forest))
                except PlanError as error:
                    refusal = str(error)
        return refusal

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

    def _fastest(self, first: _Held) -> tuple[_Held, Judged | None]:
        """The first choice; or the start whose plans are fastest, where none is wished for."""
        judged = self._judge(first.forest, first.programs)
        if not self.wishes.free or judged is None or not judged.sizes:
            return first, judged
        from forestcoll.compile.rivals import improve, speed_note
        from forestcoll.compile.search import GAIN, STARTS, climb

        ready = self._ready(first, judged)
        left = enumerate(ready, 2)

        def offers(best: tuple[_Held, Judged]) -> Iterator[tuple[_Held, Judged]]:
            """Of the starts that are left those that may be faster, STARTS at most."""
            may = (
                (number, held, plain)
                for number, (most, held, plain) in left
                if most > GAIN * best[1].share and plain.may_beat(best[1])
            )
            for number, held, plain in islice(may, STARTS):
                self._clock.subject = f"candidate {number} of {len(ready) + 1} at most"
                with self.stage("lower"):
                    theirs = improve(plain)
                yield held, theirs

        taken, best = climb((first, judged), offers, lambda a, b: a[1].is_faster(b[1]))
        self._clock.subject = ""
        if taken is not first:
            point, option = first.start.point, "--exact"
            if point is not None and (taken.start.point is not None or not point.exact):
                option = f"--trees {point.trees}"
            best.notes.append(speed_note(taken.start.name, best, first.start.name, judged, option))
        return taken, best

    def _ready(self, first: _Held, judged: Judged) -> list[tuple[float, _Held, Judged]]:
        """The other starts that fit: with the share that each may reach, and its plain plans.

        Those whose plain plans make the short call fastest come first: what thread blocks leave of
        links and hops.
        """
        from forestcoll.compile.rivals import shares

        powers = all(Sizes.of(program).powers for program in first.programs.values())
        tried, ready = [shares(first.forest)], []
        for most, start in self._starts(first, judged):
            rounded = self._round(start.forest)
            forms = [rounded] if powers else [rounded, start.forest]
            new = [form for form in forms if form is not None and shares(form) not in tried]
            held = self._hold(start, new)
            if isinstance(held, _Held):
                tried.append(shares(held.forest))
                ready.append((most, held, self._plain(held.forest, held.programs)))
        with self.stage("lower"):
            return sorted(ready, key=lambda entry: -entry[2].algbw(judged.sizes[0]))

    def _starts(self, first: _Held, judged: Judged) -> list[tuple[float, Start]]:
        """Other starts that may be faster, with the share that each may reach."""
        from forestcoll.compile import rivals
        from forestcoll.compile.search import FAR, GAIN, Bound

        least, phases = GAIN * judged.share, len(self.problem.collective.phases)
        most = judged.most_share(Bound(self.best.algbw, phases, Fraction(0)))
        starts: list[Start] = []
        if not (self.problem.collective.has_root or self.wishes.lowest) and most > least:
            with self.stage("baselines"):
                starts += rivals.others(self.problem, self.best, packed=False)
        if judged.slowest < FAR:
            points = rivals.points(self.front, self._exact(), self.problem, least)
            starts += [_start(p, self.forest_of(p)) for p in points if p != first.start.point]
            with self.stage("solve"):
                starts += rivals.take_turns(self.problem, self.best, least)
        return rivals.promising(starts, judged, self.problem.links)

    def _explain(self, candidate: _Held, judged: Judged | None) -> Choice:
        """The choice with notes: why not the optimum, and which sizes a plan serves."""
        start, forest = candidate.start, candidate.forest
        notes, exact = [], self._exact()
        if start.forest.plain_algbw < self.best.algbw and start.point is not None:
            why = self._tried.get(exact.trees)
            share = percent(start.forest.algbw / self.best.algbw)
            notes.append(
                f"{start.name}, at most {different_trees(forest)} of a root different: "
                f"{share} of the optimum, which takes {exact.trees} per root"
                + (f" ({why})" if why else "")
            )
        if judged:
            notes += self._sizes(candidate, judged.programs)
        cost = Costs(self.wishes.budget, self._roomy, self._plan).words(
            start.forest.plain_algbw, self.best.algbw, self._refused
        )
        if cost:
            notes.append(cost)
        return self._choice(forest, judged, notes)

    def _choice(self, forest: Forest, judged: Judged | None, notes: list[str]) -> Choice:
        notes = [*self._note_trees(forest), *(judged.notes if judged else []), *notes]
        if judged:
            from forestcoll.compile.rivals import finish_plans

            with self.stage("lower"):
                judged = finish_plans(judged)
        plans = (judged.programs, judged.bands) if judged else ({}, {})
        return Choice(forest, plans[0], self._exact().trees, notes, plans[1])

    def _sizes(self, candidate: _Held, programs: Mapping[PlanFormat, Program]) -> list[str]:
        """What rounding did, or why plans serve no powers of two."""

        odd = [p for p in programs.values() if not Sizes.of(p).powers]
        point, solved = candidate.start.point, candidate.start.forest
        if candidate.forest is not solved:
            exact = self.wishes.min_percent is None and point in (None, self._exact())
            option = "--exact" if exact or point is None else f"--trees {point.trees}"
            return [why_rounded(candidate.forest, solved, option)]
        return [why_odd(Sizes.of(odd[0]))] if odd and not self.wishes.exact else []

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

    def _judge(self, forest: Forest, programs: Programs) -> Judged | None:
        """The fastest programs that these lead to, with what they reach; None: there are none."""
        if not programs:
            return None
        from forestcoll.compile.rivals import improve

        plain = self._plain(forest, programs)
        if self.wishes.instances != "auto":
            return plain
        with self.stage("lower"):
            return improve(plain)

    def _plain(self, forest: Forest, programs: Programs) -> Judged:
        """These programs as they are."""
        from forestcoll.compile.rivals import judge

        with self.stage("lower"):
            return judge(forest, programs, self.targets, self.best.algbw, self.problem.links)


def _start(point: Point, forest: Forest) -> Start:
    """That of the front's forest of so many trees per root."""
    return Start(forest, _words(point.trees), point)


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
