"""Pages of docs/reference that come out of the program: commands, topologies, rules of lint.

Exit code 1 where a page differs; `--write` writes them, and the table of docs/python.md.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from forestcoll.common.arguments import Auto
from forestcoll.compile.request import IN_PYTHON, OPTIONS
from forestcoll.plans.rule_catalogue import RULES
from forestcoll.topology import catalog
from forestcoll.ui.cli import cli

DOCS = Path(__file__).parents[1] / "docs"
WIDE = 100_000  # characters of a line: texts are not folded


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Lines of a table in Markdown; `|` in a cell is escaped."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def commands() -> str:
    """Every command: what it does, its usage, its options, examples."""
    lines = ["# Commands", "", "What `forestcoll COMMAND --help` prints, for all commands."]
    for path, command in sorted(walk(cli, ())):
        name = " ".join(["forestcoll", *path])
        settings = {**cli.context_settings, "max_content_width": WIDE}  # a command keeps its --help
        with click.Context(command, info_name=name, **settings) as context:
            usage = " ".join([name, *command.collect_usage_pieces(context)])
            lines += ["", f"## {' '.join(path)}", "", f"    {usage}", ""]
            lines += [inspect.cleandoc(command.help or "").replace("\b\n", "")]
            rows = [
                [f"`{record[0]}`", record[1]]
                for each in command.get_params(context)
                if (record := each.get_help_record(context)) and "--help" not in each.opts
            ]
            lines += ["", *table(["option", ""], rows)] if rows else []
    return "\n".join(lines) + "\n"


def walk(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of all commands but groups."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))
        else:
            yield (*path, name), command


def topologies() -> str:
    """The catalogue: description and parameters of each topology."""
    lead = (
        "`forestcoll topology show NAME` says what a topology is made of, `--source` prints its "
        "file with the sources of its bandwidths. `--set NAME=VALUE` sets a parameter."
    )
    lines = ["# The catalogue", "", lead]
    for name in catalog.names():
        heading = catalog.heading(name)
        topology = catalog.load(name)
        gpus, others = len(topology.gpus), len(topology.nodes) - len(topology.gpus)
        size = f"{gpus} GPUs, {others} {'switch' if others == 1 else 'switches'}"
        lines += ["", f"## {name}", "", f"{heading.description}; {size} as it stands.", ""]
        rows = [[f"`{p.name}`", str(p.default), p.description or ""] for p in heading.parameters]
        lines += table(["parameter", "default", ""], rows)
    return "\n".join(lines) + "\n"


GROUPS: Mapping[str, str] = {
    "XML": "MSCCL XML (targets `msccl` and `rccl`)",
    "RCCL": "RCCL only",
    "MPP": "MSCCL++ JSON (target `mscclpp`)",
    "TREES": "`RCCL_TREES` (stock RCCL)",
    "GRAPH": "`NCCL_GRAPH_FILE` (stock NCCL and RCCL)",
    "RUN": "The symbolic run (all targets)",
}
"""Headings of the rules, by what their names begin with."""


def rules() -> str:
    """Every rule of lint: severity, what has to hold, the cure."""
    lead = (
        "[What lint looks at](../check.md#what-lint-looks-at) says how rules are used. Sources: "
        "the loaders and kernels of Azure/msccl-executor-nccl c6f6b36, ROCm/rccl 0cbce2a, "
        "microsoft/mscclpp 1f5f065d and NVIDIA/nccl 5067397c."
    )
    lines = ["# The rules of lint", "", lead]
    for group, heading in GROUPS.items():
        rows = [
            [f"`{rule.name}`", rule.severity, rule.what, rule.cure or "in the message"]
            for rule in RULES.values()
            if rule.name.partition("-")[0] == group
        ]
        lines += ["", f"## {heading}", ""]
        lines += table(["rule", "severity", "what has to hold", "cure"], rows)
    return "\n".join(lines) + "\n"


def python() -> str:
    """docs/python.md with the table of `synthesize`'s arguments."""
    rows = []
    for name in IN_PYTHON:
        option = OPTIONS[name]
        kind = option.kind
        words = ", ".join(f"`{word}`" for word in kind) if isinstance(kind, tuple) else ""
        if isinstance(kind, range):
            words = f"{kind.start} to {kind.stop - 1:,}"
        elif isinstance(kind, Auto):
            words = f"`auto`, 1 to {kind.most:,}"
        told = words or (option.metavar or "").replace("|", " or ") or "True, False"
        rows.append([f"`{name}`", told, option.help])
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    before, start, rest = page.partition("<!-- arguments -->\n")
    _, end, after = rest.partition("<!-- end -->")
    lines = "\n".join(table(["argument", "values", ""], rows))
    return f"{before}{start}{lines}\n{end}{after}"


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/topologies.md": topologies,
    "reference/rules.md": rules,
    "python.md": python,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    stale = []
    for name, text in PAGES.items():
        page = DOCS / name
        if write:
            page.write_text(text(), encoding="utf-8")
        elif page.read_text(encoding="utf-8") != text():
            stale.append(name)
    for name in stale:
        print(f"docs/{name} is not what the program says: {Path(__file__).name} --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
