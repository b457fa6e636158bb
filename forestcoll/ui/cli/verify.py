"""`forestcoll verify`: forests and plans proven right, and plans linted against a runtime."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.request import STOCK
from forestcoll.program import Collective
from forestcoll.ui.cli import files
from forestcoll.ui.cli.messages import complain, draw, note, print_json, quiet, say, show_progress
from forestcoll.ui.cli.options import (
    HOLDS,
    JSON,
    Machine,
    command,
    flag,
    like,
    machine_option,
    option,
    place,
)
from forestcoll.ui.cli.process import guard, size_of
from forestcoll.ui.cli.writing import explain_remains

if TYPE_CHECKING:
    from forestcoll.compile.plan_set import Proven
    from forestcoll.compile.verdict import Verdict
    from forestcoll.execute.deploy.plans import Plan
    from forestcoll.plans import stock
    from forestcoll.plans.lint import Report, Told
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.study.figures import Figures
    from forestcoll.topology import Topology
    from forestcoll.ui.report.plans import Row
    from forestcoll.verify.simulate import Band

Entry = dict[str, object]
LISTED_CLASHES = 20


@command(
    "forestcoll verify out/",
    "forestcoll verify anybodys.xml --target rccl --collective allreduce",
    "forestcoll verify plans/ --quiet && echo all right",
    "zcat plan.json.gz | forestcoll verify -",
    "forestcoll verify anybodys.xml --topology dgx-a100 --set boxes=2",
)
def verify(
    sources: tuple[str, ...] = place("file", "FILE|DIR...", many=True),
    target: str | None = option(
        tuple(HOLDS),
        "Runtime that plans are checked against. Default: by the file's format.",
        ways=STOCK,
    ),
    collective: str | None = option(
        tuple(c.value for c in Collective),
        "What a plan is meant to do, where it says otherwise or nothing known.",
        names="--collective -c",
    ),
    root: int | None = option(
        click.IntRange(0),
        "Root of a plan that does not say it. Default: found from the data.",
        None,
        "RANK",
    ),
    place: Literal["in", "out", "both"] | None = option(
        ("in", "out", "both"),
        "Check a plan in place, out of place, or both. Default: what it says.",
    ),
    sms: int | None = like(
        "sms",
        "SMs of the GPU: thread blocks that run at once. Default: by the plan's name, else 108.",
    ),
    machine: Machine = machine_option(
        "What plans and forests are simulated on, over the ways of the forest file beside a plan "
        "where it has these links. Default: the links of the forest, or of the forest or routes "
        "file beside a plan, with the catalogue's latencies where they are its links.",
        required=False,
    ),
    no_simulate: bool = flag(
        "Leave out what plans and forests reach in simulated time: for 64 ranks that may take as "
        "long as the proof. More ranks are never simulated."
    ),
    links: bool = flag("With --json: bandwidth, load and use of every link of a forest."),
    log: str | None = option(
        "file",
        "What stock NCCL or RCCL printed of all ranks with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=INIT,GRAPH: whether the files' trees or rings are in use.",
    ),
    as_json: bool = JSON,
) -> int:
    """Prove forests and plans right, or list what is wrong.

    Takes anybody's files; "-" is standard input, a directory a plan set (--sizes), a bundle
    (degrade) or all plans in it. Plans are also checked against the rules of the runtime that is to
    run them, which the runtimes themselves do not check; with --target, several of them also for
    calls that two would answer. What is right is simulated at 1 GB where its links are known. Files
    for stock NCCL and RCCL (NCCL_GRAPH_FILE, RCCL_TREES) are checked against what these would not
    survive. Exit 1 if any is wrong.
    """
    from forestcoll.plans.lint import Told

    shown = _Shown(
        machine.load_if_any(), not no_simulate and (as_json or not quiet()), links, as_json
    )
    told = Told(None if collective is None else Collective(collective), root, place)
    results: list[Entry] = []
    together: list[Plan] = []
    for source in _expand(sources, target):
        try:
            if Path(source).is_dir():
                if _is_bundle(Path(source)):
                    results.append(_bundle(source, as_json))
                    continue
                _check_set(Path(source), target)
                results.append(_set(source, shown))
                continue
            entry = _file(source, target, told, sms, shown, together)
        except ForestCollError as error:
            message = str(error) if source in str(error) else f"{source}: {error}"
            entry = {"file": source, "ok": False, "error": message}
            complain(message, 1)
        results.append(entry)
    _say_clashes(together, results, as_json)
    if log is not None:
        results.append(_compare_log(log, shown))
    if as_json:
        print_json(results)
    return 0 if all(entry["ok"] for entry in results) else 1


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is said of files that are right; `topology`: what they are simulated on, if asked."""

    topology: Topology | None
    simulated: bool
    links: bool
    as_json: bool
    noted: set[str] = field(default_factory=set)
    stock: dict[str, str] = field(default_factory=dict)  # source -> text, of stock libraries

    def note(self, source: str, text: str) -> None:
        """Something to know of a file; what is so for any file is said once."""
        from forestcoll.study.predict import NO_LATENCIES

        if text == NO_LATENCIES and text in self.noted:
            return
        self.noted.add(text)
        note(text if source in text or text == NO_LATENCIES else f"{source}: {text}")


def _file(
    source: str,
    target: str | None,
    told: Told,
    sms: int | None,
    shown: _Shown,
    together: list[Plan],
) -> Entry:
    """What is proven of one file, said; a plan for `target` is added to `together`."""
    from forestcoll.compile import verdict as verdicts
    from forestcoll.plans import stock
    from forestcoll.plans.lint import lint

    with ExitStack() as stack, show_progress(f"verifying {source}"):
        text = files.read_text(source)
        stack.enter_context(guard(source, _size(source, text)))
        kind = stock.kind_of(text)
        if kind is not None:
            _refuse_told(source, stock.WORDS[kind], target, told)
            return _stock(text, source, kind, shown)
        is_plan = verdicts.is_plan(text)
        if not is_plan:
            forest, verdict = _forest(text, source, target, told)
        else:
            report = lint(text, source, target, told=told, sms=sms)
            if target is not None and report.program is not None:
                from forestcoll.execute.deploy.plans import offer

                together.append(offer(source, text, HOLDS[target], report.program))
    if not is_plan:
        return _say_forest(source, verdict, forest, shown)
    return _say_plan(report, shown)


def _stock(text: str, source: str, kind: stock.Kind, shown: _Shown) -> Entry:
    """A file for a stock library: what is wrong with it, and what its links allow it."""
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.plans import stock
    from forestcoll.solver.stock.spanning_trees import algbw_of
    from forestcoll.ui.report import words

    topology = shown.topology
    ranks = None if topology is None else len(topology.gpus)
    report, proven, trees, _ = stock.lint(text, source, kind, ranks)
    shown.stock[source] = text
    if topology is not None and trees and report.ok:
        algbw = algbw_of(CapacityGraph.from_topology(topology), trees)
        proven = [*proven, f"algbw {words.rate(algbw)} over the links of {topology.name}"]
    return _say_report(report, kind, shown, proven)


def _compare_log(log: str, shown: _Shown) -> Entry:
    """Whether a library's log shows what the files gave it."""
    from forestcoll.execute.deploy import stock

    if not shown.stock:
        raise click.UsageError("--log is for RCCL_TREES and NCCL_GRAPH_FILE's")
    ok, lines = stock.compare(stock.read(shown.stock.items()), files.read_text(log))
    if not shown.as_json and ok:
        _say(log, lines)
    for line in () if ok else lines:
        complain(f"{log}: {line}", 1)
    return {"file": log, "ok": ok, "kind": "log", "told": lines}


def _size(source: str, text: str) -> int:
    """Bytes that are to be checked: of the file, and of those beside it that it names."""
    if source == "-" or "forestcoll.groups/" not in text[:4096]:
        return len(text)
    beside = [path for path in Path(source).parent.glob("*.json") if f'"{path.name}"' in text]
    return len(text) + size_of(*beside)


def _expand(sources: tuple[str, ...], target: str | None) -> list[str]:
    """The files and plan sets that are meant: other directories are all plans in them.

    Those are files that end as ours do; where there is none, as the format's do anywhere.
    """
    names: list[str] = []
    for source in sources:
        path = Path(source)
        if not path.is_dir():
            names.append(source)
            continue
        from forestcoll.compile.formats import FORMATS
        from forestcoll.compile.plan_set import INDEX
        from forestcoll.execute.deploy.plans import plan_files

        if _is_bundle(path):
            members = [str(file) for file in sorted(path.glob("*/*"))]
            names += [source, *(file for file in members if file.endswith(tuple(FORMATS.values())))]
            continue
        if (path / INDEX).is_file() or explain_remains(path):
            names.append(source)
            continue
        ends = [FORMATS[form] for name, form in HOLDS.items() if target in (None, name)]
        inside = sorted(str(file) for file in plan_files(path, list(dict.fromkeys(ends))))
        names += inside or [source]
    return names


def _is_bundle(path: Path) -> bool:
    from forestcoll.study.degrade.bundle import INDEX

    return (path / INDEX).is_file()


def _bundle(source: str, as_json: bool) -> Entry:
    """What is so of the bundle's records; its forests and plans are files of their own."""
    from forestcoll.study.degrade.bundle import check_bundle

    lines = check_bundle(Path(source))
    if not as_json:
        _say(source, lines)
    return {"file": source, "ok": True, "kind": "bundle", "proven": lines}


def _say_clashes(plans: list[Plan], results: list[Entry], as_json: bool) -> None:
    """Where two of the plans would answer the same call, or are one for the runtime."""
    from forestcoll.execute.deploy.plans import clashes, namesakes
    from forestcoll.ui.report import plans as words

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

    left = explain_remains(path)
    if left:
        raise ForestCollError(f"{path}: {left}")
    if not (path / INDEX).is_file():
        what = "plan" if target is None else f"plan for {target}"
        raise ForestCollError(
            f"{path}: no {INDEX} of a plan set and no {what} in it; name a file, or a directory "
            "with some"
        )


def _set(source: str, shown: _Shown) -> Entry:
    from forestcoll.compile import plan_set
    from forestcoll.ui.report import plans as words
    from forestcoll.ui.report.facts import line

    size = size_of(*Path(source).glob("*"), *Path(source).glob("*/*"))
    with show_progress(f"verifying {source}"), guard(source, size):
        verdict = plan_set.check(Path(source))
    rows = _simulate_set(source, verdict.plans, shown, size)
    if not shown.as_json:
        _say(source, verdict.lines)
        if rows:
            say("")
            draw(([line("us, GB/s", words.SIMULATED), words.set_model(rows)], words.plans(rows)))
            say("")
    told = {"simulated": words.simulation_rows(rows) if rows else None}
    told |= {"model": words.set_model(rows).value}
    proven = {"proven": verdict.lines, "figures": verdict.figures}
    return {"file": source, "ok": True, "kind": "plan-set", **proven, **told}


def _simulate_set(source: str, proven: list[Proven], shown: _Shown, size: int) -> list[Row]:
    """The plans of a set with what they reach; a note, and none, where that is not simulated."""
    if not shown.simulated:
        return []
    try:
        with show_progress(f"simulating {source}"), guard(source, size):
            rows, text = _play(proven, shown.topology)
    except ForestCollError as error:
        rows, text = [], f"not simulated: {error}"
    if text:
        shown.note(source, text)
    return [row for row in rows if row.ends is not None]


def _play(proven: list[Proven], topology: Topology | None) -> tuple[list[Row], str]:
    """The plans with what they reach in simulated time, as `synthesize` has it, and a note."""
    from forestcoll.compile.plan_set import ends_of
    from forestcoll.study import predict
    from forestcoll.ui.report.plans import Row

    rows, text = [], ""
    for plan in proven:
        low, high = plan.stated.min_bytes, plan.stated.max_bytes
        source = plan.graph if plan.made_from is None else plan.made_from
        site = predict.site_with(plan.program, source, topology)
        ends = ends_of(plan.program, site.where, site.links, low, high)
        rows.append(Row(plan.format, low, high, plan.program, plan.made_from, ends))
        text = text or site.note if ends else text
    return rows, text


def _forest(
    text: str, source: str, target: str | None, told: Told
) -> tuple[Forest | None, Verdict]:
    from forestcoll.compile import verdict as verdicts

    forest = None
    if verdicts.looks_like_forest(text):
        forest, verdict = verdicts.verify_forest(text, source)
    else:
        verdict = verdicts.verify_text(text, source)
    _refuse_told(source, "a forest", target, told)
    return forest, verdict


def _refuse_told(source: str, what: str, target: str | None, told: Told) -> None:
    """ForestCollError where options of plans are given with another file."""
    from forestcoll.plans.lint import Told

    if target is not None or told != Told():
        raise ForestCollError(f"{source}: {what}; --target and the like are for plans")


def _say_forest(source: str, verdict: Verdict, forest: Forest | None, shown: _Shown) -> Entry:
    from forestcoll.ui.report import facts, words

    lines = list(verdict.lines)
    entry: Entry = {"file": source, "ok": True, "kind": verdict.kind}
    figures = dict(verdict.figures)
    if forest is not None:
        band, rates = _figures_of(source, shown, forest)
        figures |= facts.as_json(facts.bandwidth_facts(rates))
        if rates is not None and rates.bound is not None:
            lines.append(f"bottleneck: {facts.limit(rates)}")
        entry["simulated"] = None if band is None else band.summary()
        if band is not None:
            lines += [f"simulated {words.rates(band)}, the trees alone", f"model: {band.model}"]
        if shown.links:
            figures["links"] = [
                {name: str(value) for name, value in row._asdict().items()} for row in forest.links
            ]
    if not shown.as_json:
        _say(source, lines)
    return {**entry, "proven": list(verdict.lines), "figures": figures}


def _say_plan(report: Report, shown: _Shown) -> Entry:
    from forestcoll.compile import verdict as verdicts
    from forestcoll.ui.report import facts, words

    form = HOLDS[report.target]
    entry: Entry = {}
    proven: list[str] = []
    more: list[str] = []
    if report.program is not None and report.verified is not None:
        verdict = verdicts.verdict_of(report.program, report.verified, form)
        proven = verdict.lines
        entry |= {"figures": dict(verdict.figures)}
        if report.ok:
            band, figures = _figures_of(report.source, shown, report.program)
            more = [] if figures is None else [f"allowed by links: {facts.rate_words(figures)}"]
            if figures is not None and figures.bound is not None:
                more.append(f"bottleneck: {facts.limit(figures)}")
            if band is not None:
                more += [f"simulated {words.band(band)}", f"model: {band.model}"]
            entry["figures"] = {**verdict.figures, **facts.as_json(facts.bandwidth_facts(figures))}
            entry |= {"simulated": None if band is None else band.summary()}
    return {**_say_report(report, form, shown, proven, more), **entry}


def _say_report(
    report: Report, kind: str, shown: _Shown, proven: Sequence[str], more: Sequence[str] = ()
) -> Entry:
    """What is wrong with a file, or what is right: `proven`, and `more` for people."""
    from forestcoll.ui.report import facts, plans

    entry = {**facts.as_json(plans.findings(report)), "kind": kind, "proven": list(proven)}
    if not report.ok:
        complaint = plans.complaint(report)
        entry |= {"error": complaint}
        if shown.as_json or not sys.stdout.isatty():  # on a terminal it stands in the list below
            complain(complaint, 1)
    if shown.as_json:
        return entry
    if report.ok:
        _say(report.source, [*proven, *more, plans.target(report), *plans.lines(report)])
    else:
        say(f"{report.source}: {plans.title(report)}")
        for line in (*proven, *plans.lines(report)):
            say(f"  {line}")
    return entry


def _figures_of(
    source: str, shown: _Shown, what: Program | Forest
) -> tuple[Band | None, Figures | None]:
    """What a plan or the trees of a forest reach, simulated and by the links alone.

    A note where they cannot be simulated, or their links are unknown.
    """
    if quiet() and not shown.as_json:
        return None, None
    from forestcoll.program import Program
    from forestcoll.study import predict
    from forestcoll.study.figures import figures_of
    from forestcoll.verify import simulate

    beside = predict.forest_beside(Path(source))
    size = size_of(source, *([beside] if beside else []))
    band, figures, text = None, None, ""
    try:
        with show_progress(f"simulating {source}"), guard(source, size):
            if not isinstance(what, Program):
                figures = figures_of(what)
                if shown.simulated:
                    band, text = predict.forest_band_of(what, shown.topology)
            else:
                site, figures, text = predict.figures_of_file(what, Path(source), shown.topology)
                if shown.simulated and site is not None:
                    band = simulate.plan_band(what, site.where, site.links)
    except ForestCollError as error:
        band, text = None, f"not simulated: {error}"
    if text and shown.simulated:
        shown.note(source, text)
    return band, figures


def _say(source: str, lines: list[str]) -> None:
    if quiet():
        return
    say(f"{source}: ok")
    for line in lines:
        say(f"  {line}")
