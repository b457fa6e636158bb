"""The settings of a reader (`--set name=value`): known names, checked values, clear refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import SETTING_LENGTH
from forestcoll.topology import bandwidth, show


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `choices` where only these are allowed, `rate` where it is GB/s."""

    name: str
    about: str
    choices: tuple[str, ...] = ()
    rate: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """What the settings say; every name that the reader knows can be asked for."""

    texts: Mapping[str, str]
    source: str

    def text(self, name: str, default: str = "") -> str:
        """The value as written."""
        return self.texts.get(name, default)

    def rate(self, name: str) -> Fraction | None:
        """GB/s, or None where it is not given."""
        return bandwidth(self.texts[name]) if name in self.texts else None

    def given(self, name: str) -> bool:
        """Whether the user set it."""
        return name in self.texts

    def patterns(self, name: str) -> Patterns | None:
        """Globs split at commas, or None where it is not given."""
        if name not in self.texts:
            return None
        parts = tuple(part.strip() for part in self.texts[name].split(",") if part.strip())
        if not parts:
            raise TopologyError(f"{self.source}: {name} is empty; it lists names or globs")
        return Patterns(name, parts)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Globs that the user gave for the setting `name`."""

    name: str
    globs: tuple[str, ...]

    def match(self, word: str) -> bool:
        """Whether one of them matches."""
        return any(fnmatchcase(word, glob) for glob in self.globs)

    def check(self, words: Sequence[str], source: str) -> None:
        """Raise `TopologyError` for a glob that matches none of `words`."""
        for glob in self.globs:
            if not any(fnmatchcase(word, glob) for word in words):
                hint = did_you_mean(glob, words[:5000])
                raise TopologyError(f"{source}: {self.name}: '{glob[:60]}' matches nothing{hint}")


def check_settings(
    settings: Mapping[str, str], known: Sequence[Setting], source: str, format_name: str
) -> Values:
    """`settings` as values. Raises `TopologyError` for an unknown name or a wrong value."""
    by_name = {setting.name: setting for setting in known}
    for name, value in settings.items():
        setting = by_name.get(name)
        if setting is None:
            listed = ", ".join(by_name) or "no settings"
            hint = did_you_mean(name, by_name) or f"; {format_name} has {listed}"
            raise TopologyError(f"{source}: unknown parameter '{name[:60]}'{hint}")
        if len(value) > SETTING_LENGTH:
            raise TopologyError(f"{source}: {name} is too long {SETTING_LENGTH.note}")
        if setting.choices and value not in setting.choices:
            raise TopologyError(
                f"{source}: {name}={value[:60]}: it is one of {', '.join(setting.choices)}"
            )
        if setting.rate:
            _check_rate(name, value, source)
    return Values(dict(settings), source)


def _check_rate(name: str, value: str, source: str) -> None:
    try:
        rate = bandwidth(value)
    except TopologyError as error:
        raise TopologyError(f"{source}: {name}: {error}") from None
    if rate <= 0:
        raise TopologyError(f"{source}: {name}={show(rate)} must be more than 0 GB/s")
