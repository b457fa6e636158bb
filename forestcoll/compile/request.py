"""Request: what is asked for. One field is one option: its type, range, words, default and help.

The command line makes its options of the fields, Python's functions their keywords (`keywords`),
and both refuse the same contradictions (`CONFLICTS`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from forestcoll.common import arguments
from forestcoll.common.arguments import Auto, Conflict, Option
from forestcoll.common.errors import ArgumentError, PlanError, UnsupportedError
from forestcoll.compile.budget import Budget, different_trees
from forestcoll.compile.formats import (
    FORMATS,
    PLACES,
    PROTOCOLS,
    TARGET_NAMES,
    Place,
    formats_of,
    seat,
    targets_of,
)
from forestcoll.compile.problem import Problem, Shares, topology_of
from forestcoll.program import BY_TREES, Collective, Protocol
from forestcoll.program.targets import TARGETS, PlanFormat, Target, TargetName, sms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forestcoll.graph.capacity_graph import Relays
    from forestcoll.schedule.forest import Forest
    from forestcoll.topology import Topology

ROUTES: Final = "routes"
"""The format of an all-to-all's paths, as the forest is that of trees."""
STOCK: Final = {
    "nccl": "; stock NCCL loads no schedules: msccl-executor-nccl, in its place, runs MSCCL XML "
    "('msccl'), MSCCL++ its JSON ('mscclpp'), and forestcoll.torch.install serves PyTorch"
}
"""What is not there for NCCL as NVIDIA ships it, and the ways that are."""
STATED = "optimum synthesize front degrade"
"""The commands that state a problem."""


def entries(name: str, texts: tuple[str, ...]) -> list[str] | None:
    """Returns what all uses of an option list, split at commas; None where it is not given."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise ArgumentError(f"{name} '{','.join(texts)}' has an empty entry")
    return parts or None


def _groups(name: str, texts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    groups = [group.split(",") for text in texts for group in text.split(";")]
    if not all(entry.strip() for group in groups for entry in group):
        raise ArgumentError(f"{name} '{';'.join(texts)}' has an empty entry")
    return tuple(tuple(entry.strip() for entry in group) for group in groups)


def _option(*about: Any, takers: str = "synthesize", **more: Any) -> Any:
    option = Option(*about, takers=takers, **more)  # type: ignore[misc]
    return field(default=option.default, metadata={"option": option})


def _as_it_is(name: str, value: Any) -> Any:
    return value


_of_problem = partial(_option, takers=STATED, check=_as_it_is)
"""An option that states the problem: `Problem.of` checks it on the topology."""


def _percent(name: str, value: object) -> Fraction | None:
    return None if value is None else arguments.percent(name, value)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; what is not said is for the compiler to choose.

    Raises ArgumentError for a value that is none, UnsupportedError for what contradicts itself.
    """

    collective: Collective | str | None = _of_problem(
        tuple(c.value for c in BY_TREES),
        names="--collective -c",
        required=True,
    )
    root: str | int | None = _of_problem(
        "ranks", "Root of broadcast, reduce; default rank 0.", None, "ID|RANK"
    )
    ranks: str | Sequence[str] | None = _of_problem(
        "ranks",
        "Take part: ids or globs ('box0/*'), in rank order. Default: every GPU.",
        None,
        "ID,...",
        many=entries,
    )
    relays: Relays = _of_problem(
        ("none", "idle", "all"),
        "Which GPUs that are not ranks may forward data.",
        "none",
    )
    shares: Shares | None = _of_problem(
        None,
        "Parts of different size (allgatherv, reduce-scatterv): one a rank, or by id "
        "('*=1,box0/*=3'). 0 is allowed. Forests only. Of an allreduce, plans too, how much each "
        "rank sums: '*=1' evenly. Default: what is fastest.",
        None,
        "N,...|ID=N,...",
        many=entries,
    )
    groups: tuple[tuple[str, ...], ...] = _of_problem(
        None,
        "Several groups that do this at once and share the links: 'box0/*;box1/*'. All "
        "get the same algbw, as much as there is.",
        (),
        "ID,...;ID,...",
        many=_groups,
    )
    trees: int | Literal["auto"] = _option(
        Auto(10**9 - 1),
        "Trees per root. auto: the optimum; where a plan's target cannot hold it, the "
        "fewest that reach 99 % of it, or the best that fits.",
        "auto",
    )
    min_percent: Fraction | None = _option(
        "percent",
        "The fewest trees per root that reach P percent of the optimum.",
        None,
        "P",
        check=_percent,
    )
    exact: bool = _option(
        bool,
        "The optimum as it is, though its plans serve no power of two, or a large forest "
        "takes minutes. Default: shares rounded so that plans do, where that costs 1 % at "
        "most; forests at 99.9 % of the optimum where more is not found quickly.",
        False,
    )
    max_height: int | None = _option(
        range(1, 1_000_001),
        "The best forest found whose trees are at most H hops high.",
        None,
        "H",
    )
    budget: Budget = _option(
        "budget",
        "Limits below the target's: trees (different ones per root), channels, blocks "
        "(thread blocks per rank), operations (per thread block). "
        "trees=8,channels=16,blocks=32,operations=48",
        Budget(),
        "NAME=N,...",
        check=lambda _, value: Budget.of(value),
    )
    units: int | None = _option(
        range(1, 1025),
        "alltoall: equal units of every pair, each on one path. Default: the fewest that reach "
        "99 % of the optimum (--min-percent), at most 8.",
        None,
        "K",
    )
    spread: bool = _option(
        bool,
        "alltoall between boxes: every block leaves over all NICs of its box, so that blocks of "
        "any size take at most 1 + 2 NIC / NVLink times the best.",
        False,
    )
    reduction_order: Literal["recorded", "uniform", "binary"] = _option(
        ("recorded", "uniform", "binary"),
        "In which order sums are made. recorded: as is fastest, and told; uniform: one order for "
        "all of the data; binary: ((0+1)+(2+3))+..., the same bits for 1, 2, 4, ... groups. Both "
        "cost bandwidth.",
        "recorded",
    )
    instances: int | Literal["auto"] = _option(
        Auto(1024),
        "Cut every tree into N equal parts on channels of their own, for more thread "
        "blocks at work; auto: as few as keep the links busy.",
        "auto",
        "N|auto",
    )
    protocol: Protocol | None = _option(
        PROTOCOLS,
        "How messages are sent: LL for few bytes, LL128 for some, Simple for many. "
        "Default: Simple, or what the collective needs instead.",
    )
    nvls: Place | None = _option(
        PLACES, "Let the switch copy and add (MSCCL++ only), for such calls."
    )
    place: Place | None = _option(
        PLACES,
        "Calls that the MSCCL++ plan serves, one kind a plan; MSCCL XML serves both. "
        "Default: in place, but allgather and reduce-scatter out of place.",
    )
    sms: int | None = _option(
        range(1, 4097),
        "Multiprocessors of the GPU: a rank's thread blocks must all run at once. "
        "Default: those of the catalogue's machine, else an A100's 108.",
        None,
        "N",
    )
    compact: bool | None = _option(
        bool,
        "A few trees and the symmetries that make the others, or every tree. Default: compact "
        "above 2048 ranks, with --format forest.",
        names="--compact/--whole",
    )
    target: TargetName = _option(
        ("any", *TARGETS),
        "Runtime that the plans must fit.",
        "any",
        check=lambda name, value: arguments.word(name, value, TARGET_NAMES),
        ways=STOCK,
    )
    formats: Any = _option(
        (*FORMATS, ROUTES),
        "What to write (repeatable). Default: the forest and every plan that the target reads; "
        "of an alltoall its routes and plans.",
        names="--format",
        many=lambda _, words: tuple(dict.fromkeys(words)) or None,
        check=_as_it_is,
        old=("--to",),
    )
    sizes: tuple[int, int] | None = _option(
        "sizes",
        "A plan set: a plan for each range of sizes from LOW to HIGH bytes (1K:8G), and an index "
        "that says which one serves what.",
        None,
        "LOW:HIGH",
    )

    others: tuple[Path, ...] = _option(
        "file",
        "--sizes: a plan of either format of anybody's that takes part; the set has it where it is "
        "fastest. Repeatable.",
        (),
        "FILE",
        names="--with",
        many=lambda _, files: files,
        check=arguments.paths,
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.take(name, getattr(self, name)))
        if self.formats is not None:
            object.__setattr__(self, "formats", self.files)
        self._refuse(self.values)

    def _refuse(self, values: Mapping[str, Any]) -> None:
        text = arguments.refusal(CONFLICTS, values, OPTIONS)
        if text is not None:
            raise UnsupportedError(arguments.in_python(text))

    @property
    def values(self) -> dict[str, Any]:
        """Name -> value of every field, and of what a conflict may ask besides."""
        limits = self.budget.channels or self.budget.blocks or self.budget.operations
        return {name: getattr(self, name) for name in OPTIONS} | {"limits_of_plans": limits}

    @property
    def is_alltoall(self) -> bool:
        """Whether every rank sends something else to every rank."""
        return str(self.collective) in ("alltoall", "alltoallv")

    @property
    def files(self) -> tuple[Any, ...]:
        """The formats to make: those asked for, or all of the schedule that the target reads."""
        return formats_of(self.formats, self.target, ROUTES if self.is_alltoall else "forest")

    @property
    def forest_alone(self) -> bool:
        """Whether no plan is made of the forest."""
        return self.files == ("forest",)

    @property
    def free(self) -> bool:
        """Whether nothing is asked of the forest: number of trees, share, height or budget."""
        asked = (self.trees, self.min_percent, self.exact, self.max_height, self.budget)
        free = asked == ("auto", None, False, None, Budget())
        return free and self.reduction_order == "recorded"

    @property
    def lowest(self) -> bool:
        """Whether plans are for few bytes: the lowest trees, whatever is faster for many."""
        return self.protocol == "LL" and self.min_percent is None

    @property
    def parts(self) -> int:
        """Instances of the plans that are judged; "auto" adds more to the one that is taken."""
        return 1 if self.instances == "auto" else self.instances

    def refusal(self, forest: Forest) -> str | None:
        """Why the forest is not what is asked for, or None."""
        if self.max_height is not None and forest.height > self.max_height:
            return f"its height is {forest.height} hops, over {self.max_height}"
        most = different_trees(forest)
        if self.budget.trees is not None and most > self.budget.trees:
            return f"a root has {most} different trees, over {self.budget.trees}"
        return None

    def problem(self, topology: Topology) -> Problem:
        """The problem on that topology; UnsupportedError, TopologyError where there is none."""
        stated = (self.collective, self.root, self.ranks, self.relays, self.shares)
        return Problem.of(topology, *stated)  # type: ignore[arg-type]

    def multiprocessors(self, name: str) -> int:
        """Multiprocessors of a GPU of the topology of that name that may run at once."""
        return self.sms or sms_of(name)

    def targets(self, name: str) -> dict[PlanFormat, Target]:
        """The target of each plan format, on the GPUs of the topology of that name."""
        return targets_of(self.files, self.target, self.multiprocessors(name))

    def seat(self, problem: Problem) -> tuple[Request, list[str]]:
        """The request without plans whose runtimes refuse the ranks, and why they do."""
        wanted = self.targets(problem.name)
        left, notes = seat(wanted, problem.graph, problem.name, self.target == "any")
        kept = tuple(form for form in self.files if form == "forest" or form in left)
        return replace(self, formats=kept), notes

    def check(self, problem: Problem) -> None:
        """PlanError, UnsupportedError where what is asked for cannot be made of the problem."""
        plans = [form for form in self.files if form != "forest"]
        if problem.graph.shares and plans and problem.collective.has_parts:
            raise PlanError(
                f"{' and '.join(plans)} cannot hold parts of different size: every rank's buffers "
                "are alike there; --format forest writes the schedule"
            )
        self._refuse(self.values | {"forest_alone": self.forest_alone})


OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(Request)
}
"""Name -> option, for every field of a request."""
STATEMENT: Final = ("root", "ranks", "relays", "shares")
"""The fields besides the collective that state a problem in Python."""
IN_PYTHON: Final = tuple(
    name
    for name in OPTIONS
    if name not in ("collective", "groups", "units", "spread", "sizes", "others")
)
"""The fields that `synthesize` takes in Python; the others have functions of their own."""

CONFLICTS: Final = (
    Conflict(
        "root",
        "collective!=broadcast,reduce",
        "--root is for broadcast and reduce; {collective} has none",
        STATED,
    ),
    Conflict(
        "shares",
        "collective!=allgather,reduce-scatter,allreduce",
        "--shares is for allgather, reduce-scatter and allreduce, not for {collective}",
        STATED,
    ),
    Conflict("groups", "ranks shares", "--groups names all ranks: leave --ranks and --shares away"),
    Conflict(
        "collective=alltoall",
        "trees exact max_height budget instances nvls place sms compact",
        "{option} is not for -c alltoall: leave it away",
        "synthesize",
    ),
    Conflict(
        "collective=alltoall sizes",
        "units spread min_percent protocol groups formats=routes",
        "--sizes chooses routes and protocols by itself: leave --units, --min-percent, --spread, "
        "--protocol, --groups and --format routes away",
    ),
    Conflict(
        "collective!=alltoall",
        "units spread formats=routes",
        "--units, --spread and --format routes are for -c alltoall",
    ),
    Conflict(
        "sizes",
        "trees min_percent exact max_height protocol compact nvls groups shares",
        "--sizes chooses trees and protocols by itself: leave --trees, --min-percent, --exact, "
        "--max-height, --protocol, --compact, --nvls, --groups and --shares away",
    ),
    Conflict(
        "others !sizes",
        "",
        "--with is for --sizes: 'forestcoll compare --with' compares a plan with a single one",
        "synthesize",
    ),
    Conflict(
        "units",
        "min_percent",
        "--units and --min-percent both say how many units: give one",
    ),
    Conflict(
        "spread",
        "units min_percent",
        "--spread has as many units as a box has GPUs: leave others away",
    ),
    Conflict(
        "collective=alltoall",
        "formats=forest",
        "no forest carries an alltoall: --format routes has its paths",
    ),
    Conflict(
        "reduction_order=uniform,binary",
        "collective=allgather,broadcast,alltoall",
        "--reduction-order is for sums: {collective} makes none",
    ),
    Conflict(
        "reduction_order=uniform,binary",
        "trees min_percent exact max_height budget shares groups compact nvls sizes",
        "--reduction-order uniform and binary choose the trees themselves: leave {option} away",
    ),
    Conflict("nvls", "place", "--nvls says the place already: leave --place away"),
    Conflict(
        "nvls",
        "shares trees min_percent exact max_height budget protocol compact instances!=auto,1",
        "--nvls goes without other wishes: the switch leaves no choice",
    ),
    Conflict(
        "trees",
        "min_percent",
        "--trees and --min-percent both say how many trees per root: give one of them",
    ),
    Conflict(
        "exact",
        "trees min_percent",
        "--exact asks for the optimum: leave --trees and --min-percent away",
    ),
    Conflict(
        "compact !forest_alone",
        "",
        "--compact is for the forest alone, as a plan needs every tree: add --format forest",
    ),
    Conflict(
        "forest_alone",
        "limits_of_plans",
        "--budget: channels, blocks and operations limit plans; only a forest is asked",
        "synthesize",
    ),
    Conflict(
        "forest_alone",
        "instances protocol place sms",
        "--instances, --protocol, --place and --sms are for plans; only a forest is asked",
        "synthesize",
    ),
    Conflict(
        "groups",
        "min_percent exact max_height protocol sms place nvls budget",
        "--groups go with --trees and --instances only, not with other wishes",
    ),
)
"""What contradicts itself, whoever asks; rows for a command are the command line's alone."""

P = ParamSpec("P")
R = TypeVar("R")


def keywords(
    *names: str,
) -> Callable[[Callable[Concatenate[Topology, Request, P], R]], Callable[..., R]]:
    """Gives a function of a topology and a request the arguments of Python's public functions.

    Those are `(topology, collective, *, root=None, ...)`: a Topology, a name of the catalogue or a
    file; a collective, or a Request; and of the fields of a request those of these names.
    """

    def decorate(function: Callable[Concatenate[Topology, Request, P], R]) -> Callable[..., R]:
        @wraps(function)
        def call(topology: Any, collective: Any, *more: Any, **given: Any) -> R:
            asked = {name: given.pop(name) for name in names if name in given}
            request = collective
            if not isinstance(collective, Request):
                request = Request(collective, **asked)
            elif asked:
                raise TypeError(f"the request says {', '.join(asked)} already")
            return function(topology_of(topology), request, *more, **given)

        first, second, *own = inspect.signature(function).parameters.values()
        only = inspect.Parameter.KEYWORD_ONLY
        stated = [inspect.Parameter(n, only, default=OPTIONS[n].default) for n in names]
        places = [each for each in own if each.kind is not only]
        second = second.replace(name="collective", annotation="Collective | str | Request")
        ordered = [first, second, *places, *stated, *(each for each in own if each.kind is only)]
        call.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return call

    return decorate
