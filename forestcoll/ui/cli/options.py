"""Options that commands share, and the problem that they state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forestcoll.compile import formats
from forestcoll.compile.budget import Budget
from forestcoll.program import BY_TREES, REDUCTIONS, Collective, targets
from forestcoll.ui.cli import messages
from forestcoll.ui.cli.completion import FileType, RanksType, SettingType, TopologyType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.value_types import (
    BudgetType,
    InstancesType,
    PercentType,
    SizeType,
    TreesType,
)

COLLECTIVES = tuple(c.value for c in BY_TREES)
ROOTED = tuple(c.value for c in Collective if c.rooted)
ALLTOALL = ("alltoall", "alltoallv")
"""What sends something else to every rank: flows, no trees."""
ROUTES = "routes"
"""The format of an all-to-all's paths, as the forest is that of trees."""
PARTED = tuple(c.value for c in Collective if c.weighable)
"""The collectives whose ranks may have parts of different size."""
FORMATS = tuple(formats.FORMATS)
TARGETS = ("any", *targets.TARGETS)
HOLDS = {name: target.format for name, target in targets.TARGETS.items()}
"""The plan format that each target reads."""
PROTOCOLS = ("Simple", "LL", "LL128")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
OPS = REDUCTIONS
BYTES = "Bytes as nccl-tests counts them: K, M, G are powers of 1024."

F = TypeVar("F", bound=Callable[..., object])

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import Relays
    from forestcoll.topology import Topology


@dataclass(frozen=True, slots=True)
class Problem:
    """What `optimum` and `synthesize` are asked to solve."""

    topology: str
    settings: dict[str, str]
    collective: str
    root: str | None
    ranks: list[str] | None
    relays: Relays
    without: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    shares: list[str] | None = None
    groups: tuple[tuple[str, ...], ...] = ()

    def load(self) -> Topology:
        """The expanded topology, with what `--without` and `--scale` change."""
        return _load(self.topology, self.settings, self.without, self.scale)


def load(
    name: str,
    pairs: tuple[tuple[str, str], ...],
    without: tuple[str, ...] = (),
    scale: tuple[str, ...] = (),
) -> Topology:
    """The topology of that name or file, as `--set`, `--without` and `--scale` ask for it.

    What a dump could not tell, and was assumed, is said.
    """
    return _load(name, settings_of(pairs), without, scale)


def _load(
    name: str, settings: dict[str, str], without: tuple[str, ...], scale: tuple[str, ...]
) -> Topology:
    from forestcoll.topology import catalog

    with guarded(name, size_of(name)):
        topology = catalog.load(name, settings)
    for text in topology.notes:
        messages.note(text)
    if not without and not scale:
        return topology
    from forestcoll.topology.edit import edit, parse_scale

    return edit(topology, without, [parse_scale(text) for text in scale])


def settings_of(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """`--set` options as a mapping; the same name twice is a usage error."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise click.UsageError(f"--set {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found


def _entries(option: str, texts: tuple[str, ...]) -> list[str] | None:
    """What all uses of an option list, split at commas; None where it is not given."""
    if not texts:
        return None
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise click.UsageError(f"{option} '{','.join(texts)}' has an empty entry")
    return parts


def _groups(texts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """`--groups` options: groups split at semicolons, their ranks at commas."""
    found = [
        tuple(entry.strip() for entry in group.split(",")) for t in texts for group in t.split(";")
    ]
    if not all(entry for group in found for entry in group):
        raise click.UsageError(f"--groups '{';'.join(texts)}' has an empty entry")
    return tuple(found)


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def set_option(command: F) -> F:
    """`--set`."""
    return click.option(
        "--set",
        "pairs",
        multiple=True,
        type=SettingType(),
        help="Parameter of the topology: boxes=2.",
    )(command)


def named_options(command: Callable[..., object]) -> Callable[..., object]:
    """The argument NAME|FILE, or the same by `--topology`; and `--set`."""

    @functools.wraps(command)
    def with_name(name: str | None, topology: str | None, **given: Any) -> object:
        if (name is None) == (topology is None):
            raise click.UsageError("give one topology: NAME|FILE, or --topology NAME|FILE")
        return command(name=name or topology, **given)

    return _stack(
        click.argument("name", type=TopologyType(), metavar="[NAME|FILE]", required=False),
        click.option("--topology", "-t", type=TopologyType(), help="The same as the argument."),
        set_option,
    )(with_name)


def edit_options(command: F) -> F:
    """`--without` and `--scale`: links down or slowed."""
    return _stack(
        click.option(
            "--without",
            multiple=True,
            metavar="NODE|LINK",
            help="Leave out a node, a link (a-b), one direction of it (a->b), or all that a glob "
            "matches ('box*/gpu0-fabric'). Repeatable.",
        ),
        click.option(
            "--scale",
            multiple=True,
            metavar="LINK=FACTOR",
            help="Links that are slower, exactly: box0/gpu3-fabric=0.5, 'box0/*->fabric=17/18'. "
            "Repeatable.",
        ),
    )(command)


def _problem_of(
    *,
    topology: str,
    pairs: tuple[tuple[str, str], ...],
    collective: str,
    root: str | None,
    ranks: tuple[str, ...],
    relays: Relays,
    without: tuple[str, ...],
    scale: tuple[str, ...],
    shares: tuple[str, ...],
    groups: tuple[str, ...],
) -> Problem:
    """The problem that these options state; a usage error where they contradict each other."""
    if root is not None and collective not in ROOTED:
        raise click.UsageError(f"--root is for broadcast and reduce; {collective} has none")
    if shares and collective not in PARTED:
        raise click.UsageError(f"--shares is for {' and '.join(PARTED)}, not for {collective}")
    problem = Problem(
        topology=topology,
        settings=settings_of(pairs),
        collective=collective,
        root=root,
        ranks=_entries("--ranks", ranks),
        relays=relays,
        without=without,
        scale=scale,
        shares=_entries("--shares", shares),
        groups=_groups(groups),
    )
    if groups and (ranks or shares):
        raise click.UsageError("--groups names all ranks: leave --ranks and --shares away")
    return problem


STATED = tuple(name for name in _problem_of.__annotations__ if name != "return")
"""The options that state a problem."""


def _statement_options(collective: Callable[[F], F]) -> Callable[[F], F]:
    """The options that state a problem, `collective` among them."""
    return _stack(
        click.option(
            "--topology",
            "-t",
            type=TopologyType(),
            required=True,
            help="Catalogue name, topology YAML, or what a machine or fabric says of itself.",
        ),
        set_option,
        edit_options,
        collective,
        click.option(
            "--root",
            type=RanksType(),
            metavar="ID|RANK",
            help="Root of broadcast, reduce; default rank 0.",
        ),
        click.option(
            "--ranks",
            type=RanksType(),
            multiple=True,
            metavar="ID,...",
            help="Take part: ids or globs ('box0/*'), in rank order. Default: every GPU.",
        ),
        click.option(
            "--relays",
            type=WordType(("none", "idle", "all")),
            default="none",
            show_default=True,
            help="Which GPUs that are not ranks may forward data.",
        ),
        click.option(
            "--shares",
            multiple=True,
            metavar="N,...|ID=N,...",
            help="Parts of different size (allgatherv, reduce-scatterv): one a rank, or by id "
            "('*=1,box0/*=3'). 0 is allowed. Forests only.",
        ),
        click.option(
            "--groups",
            multiple=True,
            metavar="ID,...;ID,...",
            help="Several groups that do this at once and share the links: 'box0/*;box1/*'. All "
            "get the same algbw, as much as there is.",
        ),
    )


def problem_options(
    command: Callable[..., object],
    collective: str | None = None,
    collectives: tuple[str, ...] = COLLECTIVES,
) -> Callable[..., object]:
    """What is to be done on what, as a `Problem`: the options of `optimum` and `synthesize`.

    `collective`: the default; without, the option must be given. `collectives`: what it may be.
    """

    @functools.wraps(command)
    def with_problem(**given: Any) -> object:
        return command(problem=_problem_of(**{name: given.pop(name) for name in STATED}), **given)

    needed: dict[str, Any] = {"required": True}
    if collective is not None:
        needed = {"default": collective, "show_default": True}
    return _statement_options(
        click.option("--collective", "-c", type=WordType(collectives), **needed)
    )(with_problem)


def choice_options(command: F) -> F:
    """Which point of the front to take."""
    return _stack(
        click.option(
            "--trees",
            type=TreesType(),
            default="auto",
            show_default=True,
            help="Trees per root. auto: the optimum; where a plan's target cannot hold it, the "
            "fewest that reach 99 % of it, or the best that fits.",
        ),
        click.option(
            "--min-percent",
            type=PercentType(),
            metavar="P",
            help="The fewest trees per root that reach P percent of the optimum.",
        ),
        click.option(
            "--exact",
            is_flag=True,
            help="The optimum as it is, though its plans serve no power of two, or a large forest "
            "takes minutes. Default: shares rounded so that plans do, where that costs 1 % at "
            "most; forests at 99.9 % of the optimum where more is not found quickly.",
        ),
        click.option(
            "--max-height",
            type=click.IntRange(1, 1_000_000),
            metavar="H",
            help="The best forest found whose trees are at most H hops high.",
        ),
        click.option(
            "--budget",
            type=BudgetType(),
            default=Budget(),
            metavar="NAME=N,...",
            help="Limits below the target's: trees (different ones per root), channels, blocks "
            "(thread blocks per rank), operations (per thread block). "
            "trees=8,channels=16,blocks=32,operations=48",
        ),
    )(command)


def plan_options(command: F) -> F:
    """How the plans are made from the trees."""
    return _stack(
        click.option(
            "--instances",
            type=InstancesType(),
            default="auto",
            show_default=True,
            metavar="N|auto",
            help="Cut every tree into N equal parts on channels of their own, for more thread "
            "blocks at work; auto: as few as keep the links busy.",
        ),
        click.option(
            "--protocol",
            type=WordType(PROTOCOLS),
            help="How messages are sent: LL for few bytes, LL128 for some, Simple for many. "
            "Default: Simple, or what the collective needs instead.",
        ),
        click.option(
            "--nvls",
            type=WordType(("in-place", "out-of-place")),
            help="Let the switch copy and add (MSCCL++ only), for such calls.",
        ),
        click.option(
            "--place",
            type=WordType(("in-place", "out-of-place")),
            help="Calls that the MSCCL++ plan serves, one kind a plan; MSCCL XML serves both. "
            "Default: in place, but allgather and reduce-scatter out of place.",
        ),
        click.option(
            "--sms",
            type=click.IntRange(1, 4096),
            metavar="N",
            help="Multiprocessors of the GPU: a rank's thread blocks must all run at once. "
            "Default: those of the catalogue's machine, else an A100's 108.",
        ),
    )(command)


def size_option(default: str, text: str) -> Callable[[F], F]:
    """`--size`, given once."""
    return click.option("--size", type=SizeType(), default=default, show_default=True, help=text)


def sizes_option(default: str) -> Callable[[F], F]:
    """`--size`, given as often as wanted; `default` is what the command takes without."""
    text = f"{BYTES} Repeatable. Default: {default}."
    return click.option("--size", "sizes", type=SizeType(), multiple=True, help=text)


def signal_option(command: F) -> F:
    """`--signal`, None where it is not given."""
    return click.option(
        "--signal",
        type=click.FloatRange(0, 1e6),
        metavar="US",
        help="Microseconds of a signal, a flag or a message's announcement besides its links'. "
        "Default: 0.6 of LL, 1.9 of LL128, 3.4 of Simple, 0.5 of MSCCL++; of trees alone none.",
    )(command)


def output_option(
    metavar: str = "FILE|-", text: str = "Default: standard output."
) -> Callable[[F], F]:
    """`--output`, standard output by default."""
    return click.option("--output", "-o", type=FileType(), default="-", metavar=metavar, help=text)


def force_option(what: str = "the file") -> Callable[[F], F]:
    """`--force`."""
    return click.option("--force", is_flag=True, help=f"Overwrite {what}.")


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")(
        command
    )
