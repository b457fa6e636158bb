"""Layout files: parallel dimensions of a job, what each sends in a step, what is kept together.

format     "forestcoll.layout/1"
sizes      {dimension: ranks}; Megatron-LM's are tp, cp, dp, pp (ep: 1)
order      "tp-cp-ep-dp-pp": Megatron-LM's, the first varies fastest (the default)
mesh       [pp, dp, tp] in place of it: torch's DeviceMesh, the last varies fastest, any names
expert     {tp, ep}: Megatron-LM's second grid; its dimensions are called etp, ep, edp
traffic    [{dim, collective, bytes, times, with}, ...]: `bytes` of a call as nccl-tests counts
           them, `times` a step (1). `dim` may be several: "dp-cp". `collective` as on the
           command line, or sendrecv: each stage to the next and back. Without `with` a row has
           the links to itself; `with: pp` (or "pp:sendrecv"): it runs while that row does
placement  "search" (the default) or "fixed": the fabric's order of GPUs is kept
keep       {tp: box}: each group's GPUs are of one box
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from forestcoll.common.errors import UnsupportedError, did_you_mean
from forestcoll.program import Collective
from forestcoll.program.parallel import DENSE, Parallelism, device_mesh, megatron
from forestcoll.program.sizes import parse_size
from forestcoll.topology.source import Table, Text, Value, parse_yaml

FORMAT = "forestcoll.layout/1"
KEYS = ("format", "sizes", "order", "mesh", "expert", "traffic", "placement", "keep")
ROW = ("dim", "collective", "bytes", "times", "with")
SENDRECV = "sendrecv"
CARRIED = ("allreduce", "allgather", "reduce-scatter", "alltoall", SENDRECV)
WORLD = 2**20
"""Ranks at most."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What groups of a dimension send in a step; `size` bytes a call, as nccl-tests counts them.

    `collective`: None is sendrecv, each stage to the next and back.
    """

    dim: str
    collective: Collective | None
    size: int
    times: int = 1

    @property
    def name(self) -> str:
        """As `with` calls it."""
        return f"{self.dim}:{self.collective or SENDRECV}"

    @property
    def total(self) -> int:
        """Bytes a step."""
        return self.size * self.times


@dataclass(frozen=True, slots=True)
class Job:
    """A layout file. `steps`: rows of traffic that run together, one after another."""

    parallel: Parallelism
    steps: tuple[tuple[Traffic, ...], ...]
    placement: Literal["search", "fixed"] = "search"
    keep: tuple[str, ...] = ()

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """All rows."""
        return tuple(row for step in self.steps for row in step)

    def groups(self, dim: str) -> list[tuple[int, ...]]:
        """Groups of ranks of a dimension, or of several ("tp-dp"), that have more than one rank."""
        return [group for group in self.parallel.groups(dim) if len(group) > 1]


def loads(text: str, source: str = "<text>") -> Job:
    """The job that a layout file states; TopologyError with file and line where it is wrong."""
    table = parse_yaml(text, source, "layout")
    table.check_keys("layout", KEYS, ("format", "sizes", "traffic"))
    kind = table.text("format", "")
    if kind is not None and kind.text.strip() != FORMAT:
        raise kind.error(f"format is '{kind.text.strip()[:60]}', not '{FORMAT}'")
    parallel = _parallel(table)
    rows = table.items["traffic"].as_list("traffic")
    if not rows:
        raise table.key("traffic").error("traffic: there is none")
    read = [_row(row.as_table("traffic"), parallel) for row in rows]
    beside = [row.text("with", "traffic") for row in rows if isinstance(row, Table)]
    placement = _word(table, "placement", ("search", "fixed"))
    return Job(parallel, _steps(read, beside), placement, _keep(table, parallel))  # type: ignore[arg-type]


def _word(table: Table, key: str, choices: Sequence[str]) -> str:
    value = table.text(key, "")
    word = choices[0] if value is None else value.text.strip()
    if value is not None and word not in choices:
        raise value.error(f"{key} is {' or '.join(choices)}, not '{word[:40]}'")
    return word


def _whole(value: Value, what: str) -> int:
    text = value.as_text(what)
    word = text.text.strip()
    if not (word.isascii() and word.isdecimal() and len(word) <= 7 and int(word)):
        raise text.error(f"{what} must be a whole number from 1, not '{word[:40]}'")
    return int(word)


def _parallel(table: Table) -> Parallelism:
    """The grids; what the generators refuse is said with the line of the key that states it."""
    given = table.items["sizes"].as_table("sizes")
    sizes = {name: _whole(value, f"sizes: {name}") for name, value in given.items.items()}
    where = "mesh" if "mesh" in table.items else "order" if "order" in table.items else "sizes"
    for one, other in (("mesh", "order"), ("mesh", "expert")):
        if one in table.items and other in table.items:
            raise table.key(other).error(f"{other} does not go with mesh: leave one of them away")
    if where == "mesh":
        entries = table.items["mesh"].as_list("mesh")
        names = [entry.as_text("mesh").text.strip() for entry in entries]
        if sorted(names) != sorted(sizes):
            raise table.key("mesh").error("mesh must have each dimension of sizes once")
        bad = [name for name in names if "-" in name or ":" in name]
        if bad:
            raise table.key("mesh").error(f"'{bad[0][:40]}': no name of a dimension has '-' or ':'")
        parallel = device_mesh(names, [sizes[name] for name in names])
    else:
        given.check_keys("sizes", DENSE)
        if sizes.pop("ep", 1) > 1:
            raise given.key("ep").error("ep is of the experts' grid: write expert: {tp: 1, ep: N}")
        order = table.text("order", "")
        try:
            words = "tp-cp-ep-dp-pp" if order is None else order.text.strip()
            expert = _expert(table, sizes.get("tp", 1))
            parallel = megatron(**sizes, order=words, expert=expert)
        except UnsupportedError as error:
            where = "expert" if str(error).startswith("expert") else where
            raise table.key(where).error(str(error)) from None
    if not 2 <= parallel.world <= WORLD:
        raise given.error(f"sizes: {parallel.world} ranks; a job has 2 to {WORLD:,}")
    return parallel


def _expert(table: Table, tp: int) -> tuple[int, int] | None:
    if "expert" not in table.items:
        return None
    given = table.items["expert"].as_table("expert")
    given.check_keys("expert", ("tp", "ep"), ("ep",))
    sizes = {name: _whole(value, f"expert: {name}") for name, value in given.items.items()}
    return sizes.get("tp", tp), sizes["ep"]


def _row(row: Table, parallel: Parallelism) -> Traffic:
    row.check_keys("traffic", ROW, ("dim", "collective", "bytes"))
    dim, kind, size = (row.items[key].as_text(f"traffic: {key}") for key in ROW[:3])
    _check_dim(dim, parallel)
    word = kind.text.strip()
    if word not in CARRIED:
        hint = did_you_mean(word, CARRIED) or f"; it is one of {', '.join(CARRIED)}"
        raise kind.error(f"traffic: no collective is called '{word[:40]}'{hint}")
    try:
        number = parse_size(size.text)
    except ValueError as error:
        raise size.error(f"traffic: bytes: {error}") from None
    times = _whole(row.items["times"], "traffic: times") if "times" in row.items else 1
    collective = None if word == SENDRECV else Collective(word)
    return Traffic(dim.text.strip(), collective, number, times)


def _check_dim(dim: Text, parallel: Parallelism) -> None:
    try:
        groups = parallel.groups(dim.text.strip())
    except UnsupportedError as error:
        raise dim.error(str(error)) from None
    if len(groups) == parallel.world:
        raise dim.error(f"a group of '{dim.text.strip()}' is one rank, which has nobody to send to")


def _steps(
    rows: Sequence[Traffic], beside: Sequence[Text | None]
) -> tuple[tuple[Traffic, ...], ...]:
    """Rows that `with` joins make one step; the first row of each gives the order of steps."""
    home = list(range(len(rows)))
    for number, other in enumerate(beside):
        if other is None:
            continue
        word = other.text.strip()
        named = [i for i, row in enumerate(rows) if i != number and word in (row.dim, row.name)]
        if len(named) != 1:
            which = "no other row" if not named else f"{len(named)} rows"
            names = ", ".join(dict.fromkeys(row.name for row in rows))
            raise other.error(f"traffic: with: {which} of '{word[:40]}'; name one of {names}")
        if Collective.ALLTOALL in (rows[number].collective, rows[named[0]].collective):
            raise other.error("traffic: with: an all-to-all has the links to itself")
        old, new = home[number], home[named[0]]
        home = [new if h == old else h for h in home]
    first = {h: i for i, h in reversed(list(enumerate(home)))}
    return tuple(
        tuple(row for row, h in zip(rows, home, strict=True) if h == which)
        for which in sorted(first, key=first.__getitem__)
    )


def _keep(table: Table, parallel: Parallelism) -> tuple[str, ...]:
    if "keep" not in table.items:
        return ()
    given = table.items["keep"].as_table("keep")
    for name, value in given.items.items():
        where = value.as_text("keep")
        if where.text.strip() != "box":
            raise where.error(f"keep: {name[:40]} can be kept in a box, not '{where.text[:40]}'")
        _check_dim(Text(given.source, given.lines[name], name), parallel)
    return tuple(given.items)


def weights(step: Sequence[Traffic]) -> list[Fraction]:
    """What the rows of a step have of the common rate: their bytes, the largest as 1."""
    most = max(row.total for row in step)
    return [Fraction(row.total, most) for row in step]
