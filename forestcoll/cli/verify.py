"""`forestcoll verify`: forests and plans proven right, and plans linted against a runtime."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from forestcoll.cli import directory_lock, files, plan_set
from forestcoll.cli.completion import FileType, WordType
from forestcoll.cli.guard import guarded, size_of
from forestcoll.cli.hints import examples
from forestcoll.cli.messages import complain, print_json, quiet, say, show_progress
from forestcoll.cli.options import HOLDS, json_option
from forestcoll.errors import ForestCollError
from forestcoll.program import Collective

if TYPE_CHECKING:
    from forestcoll.deploy.plans import Plan
    from forestcoll.plans.lint import Report, Told

Entry = dict[str, object]
LISTED_CLASHES = 20


@click.command(
    epilog=examples(
        "forestcoll verify out/",
        "forestcoll verify anybodys.xml --target rccl --collective allreduce",
        "forestcoll verify plans/ --quiet && echo all right",
        "zcat plan.json.gz | forestcoll verify -",
    )
)
@click.argument("sources", nargs=-1, type=FileType(), required=True, metavar="FILE|DIR...")
@click.option(
    "--target",
    type=WordType(tuple(HOLDS)),
    help="Runtime that plans are checked against. Default: by the file's format.",
)
@click.option(
    "--collective",
    "-c",
    type=WordType(tuple(Collective)),
    help="What a plan is meant to do, where it says otherwise or nothing known.",
)
@click.option(
    "--root",
    type=click.IntRange(0),
    metavar="RANK",
    help="Root of a plan that does not say it. Default: found from the data.",
)
@click.option(
    "--place",
    type=WordType(("in", "out", "both")),
    help="Check a plan in place, out of place, or both. Default: what it says.",
)
@click.option(
    "--sms",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="SMs of the GPU: thread blocks that run at once. Default: by the plan's name, else 108.",
)
@click.option(
    "--links", is_flag=True, help="With --json: bandwidth, load and use of every link of a forest."
)
@json_option
def verify(
    sources: tuple[str, ...],
    target: str | None,
    collective: str | None,
    root: int | None,
    place: Literal["in", "out", "both"] | None,
    sms: int | None,
    links: bool,
    as_json: bool,
) -> int:
    """Prove forests and plans right, or list what is wrong.

    Takes anybody's files; "-" is standard input, a directory a plan set (--sizes) or all plans in
    it. Plans are also checked against the rules of the runtime that is to run them, which the
    runtimes themselves do not check; with --target, several of them also for calls that two would
    answer. Exit 1 if any is wrong.
    """
    from forestcoll.compile import verdict as verdicts
    from forestcoll.deploy.plans import offered
    from forestcoll.plans.lint import Told, lint

    if links and not as_json:
        raise click.UsageError("--links is for --json")
    told = Told(None if collective is None else Collective(collective), root, place)
    results: list[Entry] = []
    together: list[Plan] = []
    for source in _expanded(sources, target):
        try:
            if Path(source).is_dir():
                _check_set(Path(source), target)
                results.append(_set(source, as_json))
                continue
            with ExitStack() as guard, show_progress(f"verifying {source}"):
                text = files.read_text(source)
                guard.enter_context(guarded(source, _size(source, text)))
                if verdicts.is_plan(text):
                    report = lint(text, source, target, told=told, sms=sms)
                    entry = _plan(report, as_json)
                    if target is not None and report.program is not None:
                        together.append(offered(source, text, HOLDS[target], report.program))
                else:
                    entry = _forest(text, source, target, told, as_json, links)
        except ForestCollError as error:
            message = str(error) if source in str(error) else f"{source}: {error}"
            entry = {"file": source, "ok": False, "error": message}
            complain(message, 1)
        results.append(entry)
    _say_clashes(together, results, as_json)
    if as_json:
        print_json(results)
    return 0 if all(entry["ok"] for entry in results) else 1


def _size(source: str, text: str) -> int:
    """Bytes that are to be checked: of the file, and of those beside it that it names."""
    if source == "-" or "forestcoll.groups/" not in text[:4096]:
        return len(text)
    beside = [path for path in Path(source).parent.glob("*.json") if f'"{path.name}"' in text]
    return len(text) + size_of(*beside)


def _expanded(sources: tuple[str, ...], target: str | None) -> list[str]:
    """The files and plan sets that are meant: other directories are all plans in them.

    Those are files that end as ours do; where there is none, as the format's do anywhere.
    """
    from forestcoll.compile.formats import FORMATS
    from forestcoll.compile.plan_set import INDEX
    from forestcoll.deploy.plans import plan_files

    found: list[str] = []
    for source in sources:
        path = Path(source)
        if not path.is_dir() or (path / INDEX).is_file() or directory_lock.left_in(path):
            found.append(source)
            continue
        ends = [FORMATS[form] for name, form in HOLDS.items() if target in (None, name)]
        inside = sorted(str(file) for file in plan_files(path, list(dict.fromkeys(ends))))
        found += inside or [source]
    return found


def _say_clashes(plans: list[Plan], results: list[Entry], as_json: bool) -> None:
    """Where two of the plans would answer the same call, or are one for the runtime."""
    from forestcoll.deploy.plans import clashes, namesakes
    from forestcoll.report import lint as words

    pairs = clashes(plans)
    for one, other in pairs[:LISTED_CLASHES]:
        if not as_json:
            say(f"warning: {words.clash(one, other)}")
    if len(pairs) > LISTED_CLASHES and not as_json:
        say(f"and {len(pairs) - LISTED_CLASHES} pairs more that answer the same calls")
    if not as_json:
        for one, other in namesakes(plans):
            say(f"warning: {words.namesakes(one, other)}")
    for entry in results:
        source = entry["file"]
        others = [b.source for a, b in pairs if a.source == source]
        others += [a.source for a, b in pairs if b.source == source]
        if others:
            entry["clashes"] = others


def _check_set(path: Path, target: str | None) -> None:
    """ForestCollError for a directory that holds nothing to verify."""
    from forestcoll.compile.plan_set import INDEX

    left = directory_lock.left_in(path)
    if left:
        raise ForestCollError(f"{path}: {left}")
    if not (path / INDEX).is_file():
        what = "plan" if target is None else f"plan for {target}"
        raise ForestCollError(
            f"{path}: no {INDEX} of a plan set and no {what} in it; name a file, or a directory "
            "with some"
        )


def _set(source: str, as_json: bool) -> Entry:

    size = size_of(*Path(source).glob("*"), *Path(source).glob("*/*"))
    with show_progress(f"verifying {source}"), guarded(source, size):
        lines, figures = plan_set.verify(source)
    if not as_json:
        _say(source, lines)
    return {"file": source, "ok": True, "kind": "plan-set", "proven": lines, "figures": figures}


def _forest(
    text: str, source: str, target: str | None, told: Told, as_json: bool, links: bool
) -> Entry:
    from forestcoll.compile import verdict as verdicts
    from forestcoll.plans.lint import Told

    forest = None
    if verdicts.looks_like_forest(text):
        forest, verdict = verdicts.verify_forest(text, source)
    else:
        verdict = verdicts.verify_text(text, source)
    if target is not None or told != Told():
        raise ForestCollError(f"{source}: a forest; --target and the like are for plans")
    if not as_json:
        _say(source, verdict.lines)
    entry: Entry = {"file": source, "ok": True, "kind": verdict.kind}
    figures = dict(verdict.figures)
    if links and forest is not None:
        figures["links"] = [
            {name: str(value) for name, value in row._asdict().items()} for row in forest.links
        ]
    return {**entry, "proven": list(verdict.lines), "figures": figures}


def _plan(report: Report, as_json: bool) -> Entry:
    from forestcoll.compile import verdict as verdicts
    from forestcoll.report import lint as words

    form = HOLDS[report.target]
    entry = {**words.summary(report), "kind": form}
    proven: list[str] = []
    if report.ok and report.program is not None and report.verified is not None:
        verdict = verdicts.verdict_of(report.program, report.verified, form)
        proven = verdict.lines
        entry |= {"figures": dict(verdict.figures)}
    entry |= {"proven": proven}
    if not report.ok:
        complaint = words.complaint(report)
        entry |= {"error": complaint}
        complain(complaint, 1)
    if as_json:
        return entry
    if report.ok:
        _say(report.source, [*proven, words.target(report), *words.lines(report)])
    else:
        say(f"{report.source}: {words.title(report)}")
        for line in words.lines(report):
            say(f"  {line}")
    return entry


def _say(source: str, lines: list[str]) -> None:
    if quiet():
        return
    say(f"{source}: ok")
    for line in lines:
        say(f"  {line}")
