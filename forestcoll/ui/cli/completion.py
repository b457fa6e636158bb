"""Shell completion, by click's own way, and the types of options that know what may follow.

eval "$(_FORESTCOLL_COMPLETE=bash_source forestcoll)"       bash (4.4 or newer)
eval "$(_FORESTCOLL_COMPLETE=zsh_source forestcoll)"        zsh
_FORESTCOLL_COMPLETE=fish_source forestcoll | source        fish
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from forestcoll.common.errors import ForestCollError, did_you_mean

if TYPE_CHECKING:
    from forestcoll.topology import Topology

    ParamType = click.ParamType[Any]
    _Choice = click.Choice[Any]
else:
    ParamType = click.ParamType  # generic in the newest click only
    _Choice = click.Choice

VARIABLE = "_FORESTCOLL_COMPLETE"
"""In the environment: what a shell asks (`bash_source`: its script; `bash_complete`: the words)."""
SHELLS = ("bash", "zsh", "fish")
NOTHING: Mapping[str, str] = MappingProxyType({})
STOCK = {
    "nccl": "; stock NCCL loads no schedules: msccl-executor-nccl, in its place, runs MSCCL XML "
    "('msccl'), MSCCL++ its JSON ('mscclpp'), and forestcoll.torch.install serves PyTorch"
}
"""What is not there for NCCL as NVIDIA ships it, and the ways that are."""
MOST_RANKS = 1_000
"""Ids of GPUs that are offered."""


def answer(cli: click.Group) -> int | None:
    """The exit code of having answered a shell; None where no shell asks."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    shell, _, what = asked.partition("_")
    if shell not in SHELLS or what not in ("source", "complete"):
        raise click.ClickException(
            f"{VARIABLE}={asked}: is none of {', '.join(f'{s}_source' for s in SHELLS)}"
        )
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "forestcoll", VARIABLE, asked)


class WordType(_Choice):
    """One of a few words; an error names the nearest, whatever its case and underscores.

    `ways`: words that people ask for in vain, and what to do instead.
    """

    def __init__(self, choices: Sequence[str], ways: Mapping[str, str] = NOTHING) -> None:
        super().__init__(choices)
        self.ways = ways

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word, or a usage error."""
        if value in self.choices:
            return value
        known = [str(choice) for choice in self.choices]
        listed = ", ".join(f"'{word}'" for word in known)
        hint = self.ways.get(str(value).lower()) or did_you_mean(str(value), known)
        return self.fail(f"'{value}' is not one of {listed}{hint}", param, ctx)


class RuleType(WordType):
    """A rule of links; "fifo" is the older word for "in-order"."""

    def __init__(self) -> None:
        super().__init__(("fair", "in-order", "weighted"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The rule as the simulation calls it."""
        if value in ("fifo", "in-order"):
            return "fifo"
        return super().convert(value, param, ctx)


class FileType(ParamType):
    """A file's name; the shell completes it."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Files, by the shell's own way."""
        return [CompletionItem(incomplete, type="file")]


class TopologyType(ParamType):
    """A name of the catalogue, or a file."""

    name = "NAME|FILE"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The catalogue's names, and files."""
        from forestcoll.topology import catalog

        # Files first: where bash meets them, it forgets what came before.
        return [CompletionItem(incomplete, type="file"), *_begun(catalog.names(), incomplete)]


class RanksType(ParamType):
    """GPUs by their ids, separated by commas."""

    name = "ID,..."

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ids of the topology that is named earlier on the line."""
        topology = _topology(ctx)
        before, comma, _ = incomplete.rpartition(",")
        given = set(before.split(","))
        gpus = () if topology is None else topology.gpus[:MOST_RANKS]
        return _begun([f"{before}{comma}{g}" for g in gpus if g not in given], incomplete)


class SettingType(ParamType):
    """`name=value`."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """(name, value), or a usage error."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.strip() or not text.strip():
            self.fail(f"'{value}' is not of the form name=value, such as boxes=2")
        return name.strip(), text.strip()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Parameters of the topology that is named earlier on the line."""
        from forestcoll.topology import catalog

        try:
            parameters = catalog.heading(_named(ctx)).parameters
        except ForestCollError:
            return []
        return _begun([f"{p.name}={p.default}" for p in parameters], incomplete)


def _begun(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _named(ctx: click.Context) -> str:
    """The topology's name that stands on the line, or the empty string."""
    return str(ctx.params.get("topology") or ctx.params.get("name") or "")


def _topology(ctx: click.Context) -> Topology | None:
    """The topology that the line asks for so far, if there is one."""
    from forestcoll.topology import catalog

    pairs = [pair for pair in ctx.params.get("pairs") or () if isinstance(pair, tuple)]
    try:
        return catalog.load(_named(ctx), dict(pairs))
    except (ForestCollError, OSError):
        return None
