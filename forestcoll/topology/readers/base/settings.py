"""What a reader is and what it is given: settings (`--set name=value`) and the file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NoReturn

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import SETTING_LENGTH
from forestcoll.topology import Adapter, Link, Node, Topology, bandwidth, show, slug
from forestcoll.topology.globs import matcher
from forestcoll.topology.source import Place, located

Machines = Callable[[str], Topology]
"""One machine of the catalogue by name, its ports to the network in `adapters`."""


def NO_MACHINES(name: str) -> Topology:
    """Stands in where there is no catalogue to ask."""
    raise TopologyError(f"machine '{name[:60]}' is not known: no catalogue is at hand")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `choices` where only these are allowed, `rate` where it is GB/s."""

    name: str
    about: str
    choices: tuple[str, ...] = ()
    rate: bool = False


@dataclass(slots=True)
class Values(Place):
    """What the settings say of a file, as line 0 of it; any name that the reader knows may be asked
    for."""

    texts: Mapping[str, str]
    machines: Machines = NO_MACHINES

    @property
    def name(self) -> str:
        """Returns the name of what the file describes: the file's."""
        return slug(PurePath(self.source).stem)

    def at(self, line: int) -> Place:
        """Returns a line of the file."""
        return Place(self.source, line)

    def text(self, name: str, default: str = "") -> str:
        """Returns the value as written."""
        return self.texts.get(name, default)

    def rate(self, name: str) -> Fraction | None:
        """Returns GB/s, or None where it is not given."""
        return bandwidth(self.texts[name]) if name in self.texts else None

    def has(self, name: str) -> bool:
        """Returns whether the user set it."""
        return name in self.texts

    def patterns(self, name: str) -> Patterns | None:
        """Returns globs split at commas, or None where it is not given."""
        if name not in self.texts:
            return None
        parts = tuple(part.strip() for part in self.texts[name].split(",") if part.strip())
        if not parts:
            raise self.error(f"{name} is empty; it lists names or globs")
        return Patterns(name, parts)

    def topology(
        self,
        nodes: dict[str, Node],
        links: Iterable[Link],
        adapters: Iterable[Adapter] = (),
        notes: Iterable[str] = (),
        name: str = "",
    ) -> Topology:
        """Returns the topology that the file describes; what is wrong is said of the file."""
        with located(self):
            return Topology(name or self.name, nodes, tuple(links), tuple(adapters), tuple(notes))


@dataclass(frozen=True, slots=True)
class Reader:
    """A format's reader: `title` for errors, and `settings` for what a file cannot tell.

    `loads` gives a `Topology`, or a `Fabric`; raises `TopologyError` with line, reason and cure.
    """

    title: str
    settings: tuple[Setting, ...]
    loads: Callable[[str, Values], Any]


@dataclass(frozen=True, slots=True)
class Patterns:
    """Globs that the user gave for the setting `name`."""

    name: str
    globs: tuple[str, ...]

    def match(self, word: str) -> bool:
        """Returns whether one of them matches."""
        return any(matcher(glob)(word) for glob in self.globs)

    def check(self, words: Sequence[str], source: str) -> None:
        """Raises `TopologyError` for a glob that matches none of `words`."""
        for glob in self.globs:
            if not any(map(matcher(glob), words)):
                hint = did_you_mean(glob, words[:5000])
                raise TopologyError(f"{source}: {self.name}: '{glob[:60]}' matches nothing{hint}")


def check_settings(
    settings: Mapping[str, str],
    settable: Sequence[Setting],
    source: str,
    title: str,
    machines: Machines | None = None,
) -> Values:
    """Returns `settings` as values. Raises `TopologyError` for an unknown name or a wrong value."""
    values = Values(source, 0, dict(settings), machines or NO_MACHINES)
    by_name = {setting.name: setting for setting in settable}
    for name, value in settings.items():
        setting = by_name.get(name)
        if setting is None:
            listed = ", ".join(by_name) or "no settings"
            hint = did_you_mean(name, by_name) or f"; {title} has {listed}"
            raise values.error(f"unknown parameter '{name[:60]}'{hint}")
        if len(value) > SETTING_LENGTH:
            raise values.error(f"{name} is too long {SETTING_LENGTH.note}")
        if setting.choices and value not in setting.choices:
            raise values.error(f"{name}={value[:60]}: it is one of {', '.join(setting.choices)}")
        if setting.rate:
            with located(values, name):
                rate = bandwidth(value)
            if rate <= 0:
                raise values.error(f"{name}={show(rate)} must be more than 0 GB/s")
    return values


def _refuse_racks(text: str, values: Values) -> NoReturn:
    """Says of a model of racks and blocks what it lacks, and what to take instead."""
    raise values.error(
        "a model of switches and blocks for a job scheduler: it says which nodes are near each "
        "other, and has no GPUs, links or bandwidths. Take the machine from the catalogue "
        "(gb200-nvl72 --set boxes=N) or a dump of the fabric (ibnetdiscover, a CSV list)"
    )


RACKS = Reader("a model of racks", (), _refuse_racks)
"""Models of racks and blocks (`switches:` and `blocks:`), as schedulers of jobs take them: refused.
They say which nodes are near each other, for placing jobs, and nothing of links and bandwidths."""
