"""The index of a plan set: which file serves which sizes, calls and operations, and what none does.

docs/plans.md describes the file. Plans lie in a directory of their own for each runtime: the
loaders of MSCCL XML parse every file of theirs, and give up at the first that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from forestcoll.common.errors import PlanError
from forestcoll.common.text_file import check_seal, digest, dump_record, seal
from forestcoll.compile.plan_set.values import Entry, Plans, PlanSet
from forestcoll.lower import usage
from forestcoll.plans import FORMATS, home_of
from forestcoll.program import Collective, Protocol
from forestcoll.program.sizes import BLOCK, Sizes
from forestcoll.program.targets import PlanFormat
from forestcoll.schedule.forest_file.model import Model
from forestcoll.solver.alltoall.routes import Routes

if TYPE_CHECKING:
    from forestcoll.schedule.forest import Forest

INDEX = "index.json"
FORMAT: Final = "forestcoll.plan-set/1"
TYPES: Final = "all that the runtime has"
FORESTS = "forests"
FOREST_SUFFIX = ".forest.json"
ROUTES = "routes"


class _Model(Model):
    model_config = ConfigDict(strict=True)


class Multiple(_Model):
    """What a size has to be a multiple of: elements of the whole data, or bytes."""

    unit: Literal["elements", "bytes"]
    count: int = Field(ge=1)

    @property
    def sizes(self) -> Sizes:
        """The sizes that it stands for."""
        return Sizes("fifo" if self.unit == "elements" else "onesided", 1, self.count, block=1)


class ForestFile(_Model):
    """A forest that plans were made from."""

    file: str
    sha256: str
    algbw: str  # GB/s, a fraction
    height: int
    trees_per_root: int


class RoutesFile(_Model):
    """Routes of an all-to-all that plans were made from."""

    file: str
    sha256: str
    algbw: str  # GB/s, a fraction
    hops: int
    units: int


class PlanFile(_Model):
    """A plan, the sizes that it serves (bytes, both inclusive), and what it takes."""

    file: str
    sha256: str
    forest: str | None  # its file; of an all-to-all that of its routes; None: of neither
    protocol: Protocol
    min_bytes: int = Field(ge=0)
    max_bytes: int = Field(ge=1)
    multiple: Multiple
    thread_blocks: int
    steps: int
    channels: int
    instances: int
    latency: str  # us, of the estimate
    algbw: str  # GB/s, of the estimate


class NotServed(_Model):
    """Sizes from `min_bytes` to `max_bytes` (None: and all above) that no plan serves, and why."""

    min_bytes: int
    max_bytes: int | None
    why: str


class Runtime(_Model):
    """The plans of one format, in their own directory, sizes ascending."""

    format: PlanFormat
    directory: str
    target: str
    in_place: bool
    out_of_place: bool
    operations: tuple[str, ...]  # of reductions; empty where nothing is added up
    types: str
    lookup: str
    plans: tuple[PlanFile, ...]
    not_served: tuple[NotServed, ...]


class Index(_Model):
    """All of the file."""

    format: Literal["forestcoll.plan-set/1"]
    topology: str
    collective: str
    ranks: int
    root: str | None
    sms: int = Field(ge=1)  # multiprocessors of a GPU: a rank's thread blocks must run at once
    min_bytes: int
    max_bytes: int
    forests: tuple[ForestFile, ...] = ()
    routes: tuple[RoutesFile, ...] = ()  # of an all-to-all in place of forests
    runtimes: tuple[Runtime, ...]
    sha256: str = ""  # of all of the above: `text_file.seal`


def files_of(plan_set: PlanSet) -> dict[str, str]:
    """Path below the set's directory -> text, of every file; the index comes last."""
    stem = f"{plan_set.name}.{plan_set.collective}"
    files: dict[str, str] = {}
    sources = dict(_source_files(plan_set, stem))
    files |= {file: text for file, (_, text) in sources.items()}
    names = {id(source): file for file, (source, _) in sources.items()}
    runtimes = []
    for plans in plan_set.plans:
        listed = []
        for number, entry in enumerate(plans.entries):
            word = entry.program.protocol.lower()
            file = f"{plans.format}/{stem}.{number:02d}.{word}{FORMATS[plans.format].suffix}"
            files[file] = entry.text
            source = names.get(id(entry.origin))
            listed.append(_plan(file, entry, source, plans))
        runtimes.append(_runtime(plan_set, plans, tuple(listed)))
    index = Index(
        format=FORMAT,
        topology=plan_set.name,
        collective=plan_set.collective.value,
        ranks=plan_set.plans[0].entries[0].program.n,
        root=plan_set.root,
        sms=plan_set.sms,
        min_bytes=plan_set.low,
        max_bytes=plan_set.high,
        forests=tuple(
            _forest_file(file, source, text)
            for file, (source, text) in sources.items()
            if not isinstance(source, Routes)
        ),
        routes=tuple(
            _routes_file(file, source, text)
            for file, (source, text) in sources.items()
            if isinstance(source, Routes)
        ),
        runtimes=tuple(runtimes),
    )
    files[INDEX] = dump_record(seal(index.model_dump()))
    return files


def loads(text: str, source: str, *, sealed: bool = True) -> Index:
    """The index of that text; PlanError with the place of what is wrong.

    `sealed`: as it was made. One that is to be replaced may be of a version that sealed none.
    """
    try:
        index = Index.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise PlanError(f"{source}: {where}: {first['msg']}") from None
    if sealed:
        check_seal(index.model_dump(), source, PlanError, "; make the set again")
    return index


def multiple_of(format: PlanFormat, chunks: int) -> Multiple:
    """What the runtime's sizes have to be a multiple of, for a plan of so many chunks."""
    unit = FORMATS[format].unit
    return Multiple(unit=unit, count=chunks * (1 if unit == "elements" else BLOCK))


def _source_files(
    plan_set: PlanSet, stem: str
) -> Iterator[tuple[str, tuple[Forest | Routes, str]]]:
    from forestcoll.schedule import forest_file
    from forestcoll.solver.alltoall import file as routes_file

    for number, source in enumerate(plan_set.sources):
        if isinstance(source, Routes):
            name = f"{ROUTES}/{stem}.{number:02d}{routes_file.ROUTES_SUFFIX}"
            yield name, (source, routes_file.dumps(source, plan_set.name))
        else:
            name = f"{FORESTS}/{stem}.{number:02d}{FOREST_SUFFIX}"
            yield name, (source, forest_file.dumps(source))


def _forest_file(file: str, forest: Forest, text: str) -> ForestFile:
    return ForestFile(
        file=file,
        sha256=digest(text),
        algbw=str(forest.algbw),
        height=forest.height,
        trees_per_root=forest.trees_per_root,
    )


def _routes_file(file: str, routes: Routes, text: str) -> RoutesFile:
    return RoutesFile(
        file=file,
        sha256=digest(text),
        algbw=str(routes.algbw),
        hops=routes.hops,
        units=routes.units,
    )


def _plan(file: str, entry: Entry, source: str | None, plans: Plans) -> PlanFile:
    used = usage(entry.program)
    line = entry.candidate.line
    return PlanFile(
        file=file,
        sha256=digest(entry.text),
        forest=source,
        protocol=entry.program.protocol,
        min_bytes=entry.low,
        max_bytes=entry.high,
        multiple=multiple_of(plans.format, chunks_of(entry)),
        thread_blocks=used.thread_blocks,
        steps=used.steps,
        channels=used.channels,
        instances=used.instances,
        latency=str(line.latency),
        algbw=str(Fraction(line.algbw)),
    )


def chunks_of(entry: Entry) -> int:
    """Chunks of the whole data of a plan."""
    first = entry.program.ranks[0]
    return max(first.input_chunks, first.output_chunks)


def gaps(
    low: int, high: int, first: int, multiple: Multiple, end: int
) -> list[tuple[int, int | None, str]]:
    """(from, to or None, why): sizes in bytes that no plan of a runtime serves, ascending.

    The set is for `low` to `high`; the first plan begins at `first` and serves multiples of
    `multiple`, the last one ends at `end`.
    """
    outside = "outside of --sizes"
    unserved: list[tuple[int, int | None, str]] = [(1, low - 1, outside)] if low > 1 else []
    if multiple.count > first:
        why = f"fewer than the {multiple.count} {multiple.unit} that the first plan needs"
        unserved.append((first, multiple.count - 1, why))
    if end < high:
        unserved.append((end + 1, high, "beyond what the runtime's plans serve"))
    return [*unserved, (high + 1, None, outside)]


def _runtime(plan_set: PlanSet, plans: Plans, listed: tuple[PlanFile, ...]) -> Runtime:
    first = plans.entries[0]
    _, in_place, out_of_place = home_of(plans.format).offer(first.text, first.program)
    reduces = Collective(plan_set.collective).reduces
    why = {(gap.low, gap.high): gap.why for gap in plans.unserved}
    multiple, end = multiple_of(plans.format, chunks_of(first)), plans.entries[-1].high
    missing = [
        NotServed(min_bytes=low, max_bytes=high, why=why.get((low, high), text))
        for low, high, text in gaps(plan_set.low, plan_set.high, first.low, multiple, end)
    ]
    return Runtime(
        format=plans.format,
        directory=plans.format,
        target=plans.target.name,
        in_place=in_place,
        out_of_place=out_of_place,
        operations=FORMATS[plans.format].operations if reduces else (),
        types=TYPES,
        lookup=FORMATS[plans.format].lookup,
        plans=listed,
        not_served=tuple(missing),
    )
