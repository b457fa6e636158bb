"""Files: what `--output` means, input of bounded size, the file that is shown or exported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from forestcoll.common import text_file
from forestcoll.common.arguments import Option
from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.common.input_limits import FILE_BYTES
from forestcoll.compile.formats import FORMATS
from forestcoll.compile.request import Request
from forestcoll.ui.cli import messages, writing
from forestcoll.ui.cli.options import EDITS, FORCE, SET, Machine, Several, output_option, place
from forestcoll.ui.cli.process import guard

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.schedule.placement_file import Placement
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.study.routes import Sent
    from forestcoll.topology import Topology
    from forestcoll.ui.report.facts import Result
    from forestcoll.ui.view import Subject

SAMPLE = 65_536
"""Characters of a file that are looked at to know what it is."""


class Destination(NamedTuple):
    """Where `--output` sends which formats: standard output, one file, or files in a directory.

    Without any of them nowhere: what is asked for is a report.
    """

    formats: tuple[Any, ...]
    stdout: bool = False
    file: Path | None = None
    directory: Path | None = None
    suffixes: Mapping[Any, str] = FORMATS

    @property
    def nowhere(self) -> bool:
        """Whether nothing is to be written."""
        return not self.stdout and self.file is None and self.directory is None

    def paths(self, stem: str) -> dict[Any, Path]:
        """Format -> file, for a schedule called `stem` (`dgx-a100-2.allreduce`)."""
        if self.file is not None:
            return {self.formats[0]: self.file}
        if self.directory is not None:
            return {f: self.directory / f"{stem}{self.suffixes[f]}" for f in self.formats}
        return {}


def destination(
    output: str | None,
    asked: Sequence[Any],
    default: Sequence[Any],
    suffixes: Mapping[Any, str] = FORMATS,
) -> Destination:
    """What `--output` means, given the formats `asked` for (none: `default`, or by the suffix).

    None is nowhere; "-" is standard output; an existing directory, a name that ends in "/" and a
    name without a suffix that says otherwise are directories; the rest are files. A contradiction
    is a usage error.
    """
    formats = tuple(dict.fromkeys(asked))
    if output is None:
        return Destination(formats or tuple(default))
    if output == "-":
        if len(formats) != 1:
            raise _contradiction("standard output takes one format: name one with --format")
        return Destination(formats, stdout=True)
    if not output:
        raise _contradiction("the name is empty")
    path = Path(output)
    told = format_of(path.name, suffixes)
    folder = output.endswith("/") or path.is_dir()
    if not folder and told is None:
        if len(formats) != 1 and path.suffix in (".json", ".xml"):
            raise _contradiction(
                f"'{output}' does not say which format it is to hold: name one with --format, "
                f"or end it in {', '.join(suffixes.values())}"
            )
        folder = len(formats) != 1 or not path.suffix
    if folder:
        return Destination(formats or tuple(default), directory=path, suffixes=suffixes)
    if len(formats) > 1:
        raise _contradiction(f"'{output}' is one file, but {len(formats)} formats are asked for")
    if told is not None and formats and formats[0] != told:
        raise _contradiction(
            f"'{output}' is the name of a {told} file, but --format says {formats[0]}"
        )
    return Destination(formats if told is None else (told,), file=path)


def _contradiction(text: str) -> click.UsageError:
    return click.UsageError(f"--output: {text}")


def read_text(name: str) -> str:
    """The text of a file, or of standard input for "-". Raises ForestCollError."""
    return text_file.read_text(name, FILE_BYTES, ForestCollError, stdin=True)


def format_of(name: str, suffixes: Mapping[Any, str] = FORMATS) -> Any:
    """The format that a file name tells, or None."""
    whole = [f for f, suffix in suffixes.items() if name.endswith(suffix)]
    kind = Path(name).suffix
    alike = [f for f, suffix in suffixes.items() if kind and suffix.endswith(kind)]
    return next(iter(whole), alike[0] if len(alike) == 1 else None)


class Job(NamedTuple):
    """What `synthesize` is to make of a request, and where it is written."""

    machine: Machine
    request: Request
    where: Destination
    force: bool
    began: float

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return time.perf_counter() - self.began

    def tell(self, result: Result) -> None:
        """What was made, for machines or for people."""
        messages.answer(result, partial(messages.report, err=self.where.stdout))

    def write_texts(self, texts: Mapping[Any, str], paths: Mapping[Any, Path]) -> dict[Any, Path]:
        """Writes texts by format to standard output or these files; the files that are there."""
        if self.where.stdout:
            messages.put(texts[self.where.formats[0]])
        written = {form: path for form, path in paths.items() if form in texts}
        writing.write_all({path: texts[form] for form, path in written.items()}, self.force)
        return written

    def need_directory(self, option: str) -> None:
        if self.where.directory is None and not self.where.nowhere:
            raise click.UsageError(f"{option} write several files: give --output a directory")

    def write_folder(
        self, texts: Mapping[str, str], earlier: writing.Earlier | None = None
    ) -> list[Path]:
        """Writes the texts into the directory, if there is one; the files there."""
        if self.where.directory is None:
            return []
        paths = {self.where.directory / name: text for name, text in texts.items()}
        writing.write_all(paths, self.force, earlier)
        return list(paths)


class Sink(NamedTuple):
    """Where the one text of a command goes: a file, or standard output (None, "-")."""

    output: str | None
    force: bool

    @property
    def path(self) -> Path | None:
        """The file."""
        return None if self.output in (None, "-") else Path(str(self.output))

    def prepare(self) -> Sink:
        """Raises OutputError before anything is computed in vain."""
        if self.path is not None:
            writing.prepare([self.path], self.force)
        return self

    def write(self, text: str | bytes, said: Callable[[], str] | None = None) -> None:
        """Writes the text; of a file, what `said` returns is said behind its name."""
        if self.path is None:
            messages.put(text)
            return
        writing.write_all({self.path: text}, self.force)
        if said is not None:
            messages.say(f"{self.path}: {said()}")


def sink_option(*about: Any) -> Any:
    """`--output` and `--force`: a `Sink`."""
    return Several({"output": output_option(*about), "force": FORCE}, Sink)


class Source(NamedTuple):
    """The file that is shown or exported, or the name of a topology; what it runs on, if given."""

    file: str
    machine: Machine

    def load(self) -> Subject:
        """The subject in the file, or the topology of that name. Raises ForestCollError."""
        from forestcoll import plans
        from forestcoll.compile import verdict
        from forestcoll.schedule import forest_file
        from forestcoll.solver.alltoall import file as exchanges
        from forestcoll.ui.view import Subject

        source, machine = self.file, self.machine
        if source != "-" and not Path(source).is_file():
            return self._topology()
        text = read_text(source)
        if '"forestcoll.groups/' in text[:4096]:
            raise ForestCollError(f"{source}: several forests at once; name one of the files in it")
        form = re.search(r'"format":\s*"forestcoll\.(\w+)/', text[:4096])
        if form is not None and form[1] not in ("alltoall", "forest", "topology"):
            raise ForestCollError(
                f"{source}: a file of format forestcoll.{form[1]}; give a plan, a forest or a "
                "topology"
            )
        head = text[:SAMPLE].lstrip("\ufeff \t\r\n")
        plan = re.search(r"<algo\b", head) or (head[:1] == "{" and '"gpus"' in text)
        if machine.changed and not machine.topology and (plan or not verdict.is_plan(text)):
            raise click.UsageError(f"{machine.changed} is for a topology")
        if exchanges.looks_like_one(text):
            if machine.topology:
                raise click.UsageError("flows and routes have their links: leave --topology away")
            with guard(source, len(text)):
                subject, name, _ = exchanges.loads(text, source)
            return _exchange(subject, name)
        if not verdict.is_plan(text):
            with guard(source, len(text)):
                forest = forest_file.loads(text, source)
            where, own = machine.load_if_any(), verdict.machine_of(forest.graph, forest.name)
            return Subject(forest.name, "forest", where, forest, machine=own, said=_figures(forest))
        if not plan:
            return self._topology()
        with guard(source, len(text)):
            program = plans.loads(text, source)
        return _plan(program, source, machine.load_if_any())

    def load_placement(self) -> Placement | None:
        """What a layout.json holds, or that of a folder; None of other files."""
        from forestcoll.schedule import placement_file

        path = Path(self.file)
        path = path / placement_file.INDEX if path.is_dir() else path
        if not path.is_file():
            return None
        text = read_text(str(path))
        is_one = '"forestcoll.placement/' in text[:4096]
        return placement_file.loads(text, str(path)) if is_one else None

    def _topology(self) -> Subject:
        from forestcoll.ui.view import Subject

        given = self.machine.topology
        machine = self.machine._replace(topology=self.file)
        whole = (Machine(self.file, {}) if given else machine).load_whole()
        if given is not None:
            raise click.UsageError(f"'{self.file}' is a topology itself: leave --topology away")
        topology = machine.change(whole)
        return Subject(topology.name, "topology", topology, whole=whole)


def _source(file: str | None, topology: str | None, **more: Any) -> Source:
    if file is None and topology is None:
        raise click.UsageError("give a plan, a forest or a topology: FILE, or --topology NAME")
    if file is None:
        file, topology = topology, None
    return Source(str(file), Machine(topology, **more))


SOURCE: Any = Several(
    {
        "file": place("topology", "[FILE|NAME]", required=False),
        "topology": Option(
            "topology",
            "What a plan or forest runs on, with its latencies. Default: the links of the forest "
            "file (of a plan: the one beside it), with the catalogue's latencies where they are "
            "its. Without FILE the topology itself.",
            names="--topology -t",
        ),
        "settings": SET,
    }
    | EDITS,
    _source,
)
"""The argument FILE, `--topology` with `--set` and edits; a topology alone is the subject."""


def _figures(source: Any, program: Program | None = None) -> tuple[tuple[str, str], ...]:
    """What is said of what a forest, flows or routes reach."""
    from forestcoll.study.figures import figures_of
    from forestcoll.ui.report.facts import bandwidth_facts

    figures = bandwidth_facts(figures_of(source, program))
    return tuple(line for fact in figures for line in fact.lines)


def _exchange(exchange: Optimum | Routes, name: str) -> Subject:
    """Flows or routes of an all-to-all."""
    from forestcoll.solver.alltoall.file import word
    from forestcoll.solver.alltoall.routes import Routes, link_loads
    from forestcoll.ui.report.alltoall import paths_of
    from forestcoll.ui.view import Subject
    from forestcoll.ui.view.subject import Exchange

    facts = [("paths", paths_of(exchange))] if isinstance(exchange, Routes) else []
    shown = Exchange(word(exchange.demand), exchange.demand.graph, link_loads(exchange))
    return Subject(name, "exchange", exchange=shown, said=(*_figures(exchange), *facts))


def _plan(program: Program, source: str, topology: Topology | None) -> Subject:
    from forestcoll.compile.alltoall_plans import routes_beside
    from forestcoll.compile.verdict import machine_of
    from forestcoll.study import predict
    from forestcoll.ui.view import Subject

    stem = Path(source).name.partition(".")[0]
    if not program.collective.phases and topology is None:
        routes = routes_beside(Path(source))
        if routes is not None:
            machine = predict.by_routes(program, routes).site.links
            exchange = _exchange(routes, stem)
            return exchange._replace(kind="plan", program=program, machine=machine)
    forest = _forest_beside(program, Path(source), topology)
    where = topology or forest
    name = where.name if where is not None else stem or "plan"
    machine = None if forest is None else machine_of(forest.graph, forest.name)
    said = () if forest is None else _figures(forest, program)
    return Subject(name, "plan", topology, forest, program, machine=machine, said=said)


def _forest_beside(program: Program, plan: Path, topology: Topology | None) -> Forest | None:
    """The forest beside a plan; with a topology, where it is the plan's and has its links."""
    from forestcoll.compile.verdict import has_links_of
    from forestcoll.study import predict

    beside = predict.forest_beside(plan)
    if beside is None:
        return None
    try:
        with guard(beside):
            forest = predict.forest_of(program, beside)
    except PlanError as error:
        if topology is None:
            way = "give the topology with --topology NAME or FILE"
            raise PlanError(f"{error}; {way}") from None
        return None
    return forest if topology is None or has_links_of(forest.graph, topology) else None


def read_sent(
    file: str, machine: Machine, compact: bool = False
) -> tuple[Sent, Topology, Topology]:
    """What a schedule's file sends; the whole fabric, and what the machine's edits leave of it."""
    from forestcoll.study.routes import read

    whole = machine.load_whole()
    left = machine.change(whole)
    with messages.show_progress(f"reading {file}"):
        text = read_text(file)
        with guard(file, len(text)):
            return read(text, file, left, compact), whole, left
