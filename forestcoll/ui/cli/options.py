"""Options: how commands declare them, those that commands share, and what goes with what.

A command is a function whose parameters have options as their defaults: the parameter's name is the
option's. `command` makes click's command of it.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from forestcoll.common import arguments
from forestcoll.common.arguments import Conflict, Option
from forestcoll.common.errors import ArgumentError, ForestCollError
from forestcoll.compile import request as requests
from forestcoll.compile.request import OPTIONS, Request
from forestcoll.program import BY_TREES, targets
from forestcoll.ui.cli import hints, messages
from forestcoll.ui.cli.process import guard
from forestcoll.ui.cli.types import FiniteRange, type_of

if TYPE_CHECKING:
    from forestcoll.topology import Topology

COLLECTIVES: Final = tuple(c.value for c in BY_TREES)
ALLTOALL: Final = ("alltoall", "alltoallv")
"""What sends something else to every rank: flows, no trees."""
HOLDS: Final = {name: target.format for name, target in targets.TARGETS.items()}
"""The plan format that each target reads."""
BYTES: Final = "Bytes as nccl-tests counts them: K, M, G are powers of 1024."


class Several(NamedTuple):
    """Options that together are one argument of a command: `make` is given their values."""

    options: Mapping[str, Option]
    make: Callable[..., Any]


def flag(text: str, names: str | None = None, default: Any = False) -> Any:
    """An option that is given or not."""
    return Option(bool, text, default, names=names)


def option(
    kind: Any,
    text: str | None = None,
    default: Any = None,
    metavar: str | None = None,
    **about: Any,
) -> Any:
    """An option with a value."""
    return Option(kind, text, default, metavar, **about)


def each(kind: Any, text: str, metavar: str | None = None, names: str | None = None) -> Any:
    """An option that may be given more than once: a tuple of values."""
    return Option(kind, text, (), metavar, names, many=lambda _, values: values)


def place(kind: Any, metavar: str, *, many: bool = False, required: bool = True) -> Any:
    """An argument that has its place instead of a name."""
    keep = (lambda _, values: values) if many else None
    return Option(kind, None, None, metavar, "", many=keep, required=required)


def like(name: str, text: str | None = None, **about: Any) -> Any:
    """The option of that field of a request, with another help."""
    return OPTIONS[name]._replace(help=text or OPTIONS[name].help, **about)


def settings_of(name: str, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """`--set` options as a mapping; the same name twice is an error."""
    settings: dict[str, str] = {}
    for key, value in pairs:
        if key in settings:
            raise ArgumentError(f"{name} {key} is given twice: {settings[key]} and {value}")
        settings[key] = value
    return settings


def load(name: str, settings: Mapping[str, str]) -> Topology:
    """The topology of that name or file, as `--set` asks for it.

    What a dump could not tell, and was assumed, is said.
    """
    from forestcoll.topology import catalog

    with guard(name):
        topology = catalog.load(name, settings)
    for text in topology.notes:
        messages.note(text)
    return topology


class Machine(NamedTuple):
    """The topology that a command is given; None where it may be left away."""

    topology: str | None
    settings: Mapping[str, str]
    without: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()

    @property
    def changed(self) -> str:
        """The first option given that says what the topology is to be like, or ""."""
        options = {"--set": self.settings, "--without": self.without, "--scale": self.scale}
        return next((name for name, values in options.items() if values), "")

    @property
    def words(self) -> str:
        """The options that name it, as a shell takes them."""
        pairs = [("-t", self.topology or "")]
        pairs += [("--set", f"{name}={value}") for name, value in self.settings.items()]
        pairs += [("--without", text) for text in self.without]
        pairs += [("--scale", text) for text in self.scale]
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in pairs)

    def load_whole(self) -> Topology:
        """The expanded topology, without what `--without` and `--scale` change."""
        return load(self.topology or "", self.settings)

    def change(self, whole: Topology) -> Topology:
        """What `--without` and `--scale` leave of it."""
        if not self.without and not self.scale:
            return whole
        from forestcoll.topology.edit import edit, parse_scale

        return edit(whole, self.without, [parse_scale(text) for text in self.scale])

    def load(self) -> Topology:
        """The expanded topology as all options ask for it."""
        return self.change(self.load_whole())

    def load_if_any(self) -> Topology | None:
        """The same, None where no topology is given."""
        return None if self.topology is None else self.load()


SET: Any = Option(
    "setting", "Parameter of the topology: boxes=2.", {}, names="--set", many=settings_of
)
EDITS: Final = {
    "without": each(
        None,
        "Leave out a node, a link (a-b), one direction of it (a->b), or all that a glob "
        "matches ('box*/gpu0-fabric'). Repeatable.",
        "NODE|LINK",
    ),
    "scale": each(
        None,
        "Links that are slower, exactly: box0/gpu3-fabric=0.5, 'box0/*->fabric=17/18'. Repeatable.",
        "LINK=FACTOR",
    ),
}
"""Links down or slowed."""


def machine_option(text: str, *, edits: bool = False, required: bool = True) -> Any:
    """`--topology` and `--set`; with `edits` also `--without` and `--scale`: a `Machine`."""
    name = Option("topology", text, names="--topology -t", required=required)
    return Several({"topology": name, "settings": SET} | (EDITS if edits else {}), Machine)


def _one_of(name: str | None, topology: str | None, **more: Any) -> Machine:
    if (name is None) == (topology is None):
        raise click.UsageError("give one topology: NAME|FILE, or --topology NAME|FILE")
    return Machine(name or topology, **more)


NAMED: Final = {
    "name": place("topology", "[NAME|FILE]", required=False),
    "topology": Option("topology", "The same as the argument.", names="--topology -t"),
    "settings": SET,
}
MACHINE: Any = machine_option(
    "Catalogue name, topology YAML, or what a machine or fabric says of itself.", edits=True
)
NAMED_MACHINE: Any = Several(NAMED, _one_of)
"""The argument NAME|FILE, or the same by `--topology`; and `--set`."""
EDITED_MACHINE: Any = Several(NAMED | EDITS, _one_of)


def request_options(command: str, **changes: Mapping[str, Any]) -> Any:
    """The fields of a request that a command takes; `changes` of options by their names."""
    taken = {name: one for name, one in OPTIONS.items() if command in one.takers.split()}
    changed = {name: one._replace(**changes.get(name, {})) for name, one in taken.items()}
    return Several(changed, Request)


FORCE: Any = flag("Overwrite the file.")
FORCE_FILES: Any = flag("Overwrite files.")
SIGNAL: Any = option(
    FiniteRange(0, 1e6),
    "Microseconds of a signal, a flag or a message's announcement besides its links'. "
    "Default: 0.6 of LL, 1.9 of LL128, 3.4 of Simple, 0.5 of MSCCL++; of trees alone none.",
    None,
    "US",
)
ORDER: Any = option(
    "file",
    "In which order a producer finishes its input: lines 'offset bytes', or a JSON list of such "
    "pairs. Tiles of the data go through the plan in this order.",
)
TILES: Any = option(
    range(1, 257), "The same for so many equal tiles from the first byte on.", None, "N"
)
PRODUCER: Any = option(
    FiniteRange(0, 1e9),
    "Microseconds that the producer takes. Default: as long as the plan.",
    None,
    "US",
)


def output_option(
    metavar: str = "FILE|-", text: str = "Default: standard output.", default: Any = "-"
) -> Any:
    """`--output`."""
    return Option("file", text, default, metavar, "--output -o")


CONFLICTS: Final = (
    Conflict("explain", "groups", "--explain is for one group: leave --groups away"),
    *requests.CONFLICTS,
    Conflict(
        "collective!=alltoall,alltoallv",
        "matrix output force",
        "--matrix, --output and --force are for alltoall and alltoallv; 'forestcoll synthesize "
        "-c {collective}' writes a forest with its proof",
        "optimum",
    ),
    Conflict(
        "as_json",
        "output=-",
        "--json and '--output -' both want standard output",
        "optimum synthesize calendar",
    ),
    Conflict("explain", "output=-", "--explain and '--output -' both want standard output"),
    Conflict("matrix", "groups", "--groups go with -c alltoall; a matrix may have zeros instead"),
    Conflict(
        "",
        "groups shares",
        "degrade looks at one group with equal parts: leave --groups away",
        "degrade",
    ),
    Conflict("!bundle", "formats target dask", "--format, --target and --dask are of --bundle DIR"),
    Conflict("plans", "rates", "--plans needs trees, --rates makes none: give one of them"),
    Conflict("groups", "", "there is no front of several groups: leave --groups away", "front"),
    Conflict("as_csv", "as_json", "--csv or --json, not both"),
    Conflict(
        "other",
        "without scale",
        "--on names the broken machine: leave --without and --scale away",
    ),
    Conflict("topology", "forest", "--topology and --forest both say what to expect: give one"),
    Conflict(
        "topology",
        "no_simulate",
        "--topology is for the simulation: leave --no-simulate away",
    ),
    Conflict("settings", "!topology", "--set is for a --topology", "run time verify calendar"),
    Conflict("!topology", "without scale", "{option} is for a --topology", "calendar"),
    Conflict(
        "order", "tiles", "--order and --tiles both say which tiles: give one", "calendar view"
    ),
    Conflict("!order !tiles", "producer output", "{option} is for --order or --tiles", "calendar"),
    Conflict("!order !tiles", "producer consumer", "{option} is for --order or --tiles", "view"),
    Conflict("links", "!as_json", "--links is for --json", "verify"),
    Conflict("gpus", "engine!=gpu", "--gpus is for --engine gpu"),
    Conflict("engine=torch", "depth ranks_as", "{option} is for --engine cpu"),
    Conflict("engine!=cpu", "hosts wire epilogue", "{option} is for --engine cpu"),
    Conflict(
        "engine!=cpu",
        "wire_dtype accumulate",
        "{option} is for --engine cpu: others, and the runtimes (MSCCL, RCCL, MSCCL++), "
        "move and add --dtype as it is; in Python forestcoll.torch.all_reduce takes both",
    ),
    Conflict(
        "collective=allgather,broadcast,alltoall",
        "op=prod,min,max,avg accumulate",
        "--op and --accumulate are for sums: {collective} makes none",
        "run",
    ),
    Conflict("style=onesided", "depth", "--depth is for MSCCL XML: MSCCL++ has no fifos", "run"),
    Conflict("!low !high", "factor step", "-f and -i say how to go from -b to -e: give those too"),
    Conflict(
        "routes",
        "collective matrix plan against size",
        "--routes measures flows alone: leave {option} away",
        "lab",
    ),
    Conflict("size", "low high", "--size and -b or -e both say which sizes: give one", "run"),
    Conflict("factor", "step", "-f and -i both say how to go on: give one"),
    Conflict(
        "fabric=single,rail,fat-tree !boxes",
        "",
        "--fabric {fabric} takes --boxes: how many machines",
    ),
    Conflict(
        "fabric=single,rail,fat-tree",
        "hosts",
        "--hosts is for a fabric's file, not for --fabric {fabric}",
    ),
)
"""What contradicts itself in a command line; a request's own contradictions are among them."""


def refuse(values: Mapping[str, Any], command: str, options: Mapping[str, Option]) -> None:
    """A usage error where the values of a command's options contradict each other."""
    text = arguments.refusal(CONFLICTS, values, options, command)
    if text is not None:
        raise click.UsageError(text)


def check_files(request: Request, command: str) -> None:
    """The same, once it is known which files are made."""
    refuse(request.values | {"forest_alone": request.forest_alone}, command, OPTIONS)


def usage(make: Callable[..., Any], *values: Any, **more: Any) -> Any:
    """What `make` makes of options; what it refuses is a usage error."""
    try:
        return make(*values, **more)
    except ForestCollError as error:
        raise click.UsageError(str(error)) from None


def _parameter(name: str, option: Option) -> click.Parameter:
    """Click's parameter of an option."""
    kind, many = option.kind, option.many is not None
    if option.names == "":
        return click.Argument(
            [name],
            type=type_of(kind),
            metavar=option.metavar,
            required=option.required,
            nargs=-1 if many else 1,
        )
    names = (option.names or arguments.option_name(name)).split()
    if kind is bool:
        shown: Any = {"default": option.default} if "/" in names[0] else {"is_flag": True}
        return click.Option([*names, name], help=option.help, **shown)
    told = isinstance(option.default, str | int | float) and option.default != "-"
    unset = many or option.required or option.default is None
    return click.Option(
        [*names, name],
        type=type_of(kind, option.ways),
        required=option.required,
        show_default=told,
        multiple=many,
        metavar=option.metavar,
        help=option.help,
        **({} if unset else {"default": option.default}),
    )


def add_common(command: click.Command, json: bool = False) -> None:
    """`--quiet` for a command or a group, and `--json`; and help that is not too wide."""
    command.context_class = hints.HelpContext
    words = "Say what is wrong and what was asked for, no more: no notes, reports, progress."
    options = [("--json", "Machine-readable, on stdout."), ("--quiet -q", words)]
    command.params += [
        click.Option(
            names.split(), is_flag=True, expose_value=False, callback=messages.let_hold, help=text
        )
        for names, text in options[not json :]
    ]


class Command(click.Command):
    """A command of options that are stated as `Option`s."""

    options: Mapping[str, Option]


def command(
    *examples: str, name: str | None = None, into: click.Group | None = None, json: bool = True
) -> Callable[[Callable[..., Any]], Command]:
    """Makes a command of a function whose parameters have options as defaults.

    Its help is the docstring, then the `examples`; `json`: it has a result. Values that contradict
    each other are refused before the function is called.
    """

    def declare(function: Callable[..., Any]) -> Command:
        names = function.__code__.co_varnames  # every parameter has an option as its default
        declared = dict(zip(names, function.__defaults__ or (), strict=False))
        options: dict[str, Option] = {}
        for key, one in declared.items():
            options |= one.options if isinstance(one, Several) else {key: one}
        called = name or function.__name__

        def run(**given: Any) -> Any:
            for key, one in options.items():
                if one.many is not None:
                    shown = (one.names or arguments.option_name(key)).split()[0]
                    given[key] = usage(one.many, shown, given[key])
            refuse(given | {"as_json": messages.as_json()}, called, options)
            values = {}
            for key, one in declared.items():
                if isinstance(one, Several):
                    values[key] = usage(one.make, **{n: given[n] for n in one.options})
                else:
                    values[key] = given[key]
            return function(**values)

        new_command = Command(
            called,
            callback=run,
            params=[_parameter(key, one) for key, one in options.items()],
            help=inspect.cleandoc(function.__doc__ or ""),
            epilog=hints.examples(*examples),
        )
        new_command.options = options
        add_common(new_command, json)
        if into is not None:
            into.add_command(new_command)
        return new_command

    return declare


restate = partial(usage, replace)
"""The request with other fields; what contradicts itself then is a usage error."""
