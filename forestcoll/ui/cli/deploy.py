"""`forestcoll deploy`: plans onto a runtime, with a proof that it used them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import OutputError
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import STOCK, FileType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, print_json, report, show_progress
from forestcoll.ui.cli.options import force_option, json_option

if TYPE_CHECKING:
    from forestcoll.execute.deploy.runtimes import Runtime

NAMES = ("mscclpp", "msccl", "rccl", "torch")


@click.command(
    epilog=examples(
        "forestcoll deploy out/dgx-a100-2.allreduce.mscclpp.json --runtime mscclpp -o deployed/",
        "forestcoll deploy plans/ --runtime rccl",
        "bash deployed/run.sh python train.py",
    )
)
@click.argument("plans", nargs=-1, type=FileType(), required=True, metavar="PLAN|DIR...")
@click.option("--runtime", type=WordType(NAMES, STOCK), required=True, help="Who runs the plans.")
@click.option(
    "--output",
    "-o",
    type=FileType(),
    metavar="DIR",
    help="Write plans, environment, checks and run.sh there. Default: only say what is needed.",
)
@force_option("files")
@json_option
def deploy(
    plans: tuple[str, ...], runtime: Runtime, output: str | None, force: bool, as_json: bool
) -> None:
    """Make a runtime use plans, and prove that it did.

    Takes plan files, or folders of them. With --output, a folder that is copied to every node:
    run.sh starts a command (by default a check of every element) with the plans switched on, and
    fails where the runtime's log does not show them at work.
    """
    from forestcoll.execute import deploy as deployment
    from forestcoll.ui.report import deploy as words

    folder = None if output is None else Path(output)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is no directory")
    size = size_of(*plans, *(file for folder in plans for file in Path(folder).glob("*")))
    with show_progress("reading plans"), guarded("the plans", size):
        made = deployment.deploy([Path(p) for p in plans], runtime)
    written: list[Path] = []
    if folder is not None:
        texts = {folder / name: text for name, text in made.files.items()}
        names = {p.name for p in texts}
        writing.write_all(texts, force, partial(_check_alone, folder / "plans", names))
        written = list(texts)
    if as_json:
        print_json(words.summary(made, written))
        return
    say = report if written else draw  # what is needed is the result where nothing is written
    say(words.served(made))
    say(words.facts(made, written))


def _check_alone(plans: Path, ours: set[str]) -> dict[Path, str]:
    """OutputError if other files lie among the plans: runtimes read every file that is there.

    The earlier files that go: none.
    """
    others = [p.name for p in plans.glob("*") if p.name not in ours] if plans.is_dir() else []
    if others:
        raise OutputError(
            f"{plans}: holds {others[0]} too, and runtimes load every file of the folder; "
            "take another folder or remove it"
        )
    return {}
