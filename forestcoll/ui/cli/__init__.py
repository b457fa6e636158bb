"""The command line. Everything heavy is imported inside the commands: `--help` must be quick.

This package alone prints and decides exit codes: 0 fine, 1 wrong input or failed check, 2 usage,
130 interrupted (128 + the signal's number), 141 nobody reads the output any more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import click

import forestcoll
from forestcoll.common.errors import ForestCollError
from forestcoll.common.garbage_collection import THRESHOLD
from forestcoll.ui.cli import hints, messages, process
from forestcoll.ui.cli.compare import advise, compare, degrade, lab
from forestcoll.ui.cli.export import deploy, export, routes, view
from forestcoll.ui.cli.options import add_common
from forestcoll.ui.cli.run import measure, run
from forestcoll.ui.cli.synthesize import doctor, front, layout, optimum, synthesize
from forestcoll.ui.cli.timing import calendar, time
from forestcoll.ui.cli.topology import topology
from forestcoll.ui.cli.verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, after running the command in `arguments` (default: the process's own)."""
    if arguments is not None:
        return _run(arguments, own=False)
    gc.set_threshold(*THRESHOLD)
    closed = process.open_standard_files()
    stops = process.Stops()
    stops.listen()
    if "standard output" in closed:
        return messages.complain("standard output is closed; > /dev/null throws results away", 1)
    try:
        code = _run(sys.argv[1:], own=True)
    except BaseException:
        if stops.first is None:
            raise
        # what was cut off by the signal came out as another error (an import does that)
        code = messages.complain(process.WORDS[stops.first.number], stops.first.code, kind="")
    stops.leave()
    gc.freeze()  # Python looks for cycles once more on its way out: in vain
    return code if stops.first is None else stops.first.code


def _run(words: Sequence[str], own: bool) -> int:
    """The exit code; `own`: the process is there for this command.

    The one place that turns exceptions into messages: one line on standard error.
    """
    try:
        answered = hints.answer(cli) if own else None
        if answered is not None:
            return answered
        # Not cli.main(): it has ways of its own with Ctrl-C and broken pipes.
        with cli.make_context("forestcoll", list(words)) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as wanted:
        return _flush(wanted.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "forestcoll"
        said = " ".join(hints.message(error).split()).removesuffix(".")
        return messages.complain(f"{said}{hints.of_usage(error, words)} (see '{where} --help')", 2)
    except click.ClickException as error:
        return messages.complain(error.format_message(), 1)
    except ForestCollError as error:
        return _flush(messages.complain(str(error), 1, notes=getattr(error, "__notes__", ())))
    except BrokenPipeError:
        process.settle()
        return 141
    except OSError as error:
        process.settle()
        name = f"{error.filename}: " if error.filename else ""
        return messages.complain(f"{name}{error.strerror or error}", 1)
    except MemoryError:
        return messages.complain(
            "out of memory; a smaller topology, size or tree count needs less", 1
        )
    except process.Stopped as stopped:
        return _flush(messages.complain(process.WORDS[stopped.number], stopped.code, kind=""))
    except KeyboardInterrupt:
        return _flush(messages.complain("interrupted", 130, kind=""))


def _flush(code: int) -> int:
    """The exit code, once what was printed is out; a reader who has left is no further error."""
    error = process.settle()
    if error is None or code:
        return code
    if isinstance(error, BrokenPipeError):
        return 141
    return messages.complain(error.strerror or str(error), 1)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": hints.WIDTH},
    epilog=hints.examples(
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather",
        "forestcoll synthesize -t dgx-a100 --set boxes=2 -c allreduce -o out/",
        "forestcoll verify out/",
        "forestcoll run out/dgx-a100-2.allreduce.mscclpp.json --size 64M",
        "",
        "Completion: a line in ~/.bashrc (zsh: zsh_source, in ~/.zshrc)",
        'eval "$(_FORESTCOLL_COMPLETE=bash_source forestcoll)"',
        "fish: _FORESTCOLL_COMPLETE=fish_source forestcoll | source",
    ),
)
@click.version_option(forestcoll.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Compile a topology into a proven bandwidth-optimal collective schedule, and run it."""


add_common(cli)
for command in (
    *(advise, synthesize, optimum, front, layout, verify, doctor, compare, degrade, lab),
    *(run, measure, time, calendar, view, export, routes, deploy, topology),
):
    cli.add_command(command)
