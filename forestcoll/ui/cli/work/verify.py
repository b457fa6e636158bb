"""What `forestcoll verify` does: file by file what is proven, what is wrong, what it reaches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from forestcoll.common.errors import ForestCollError
from forestcoll.compile import verdict as verdicts
from forestcoll.compile.formats import FORMATS
from forestcoll.execute.deploy import stock as library
from forestcoll.execute.deploy.plans import Plan, clashes, namesakes, offer, plan_files
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.plans import stock
from forestcoll.plans.lint import Report, Told, lint
from forestcoll.program import Program
from forestcoll.schedule.forest import Forest
from forestcoll.solver.stock.spanning_trees import algbw_of
from forestcoll.study import predict
from forestcoll.study.figures import figures_of
from forestcoll.topology import Topology
from forestcoll.ui.cli import files
from forestcoll.ui.cli.messages import (
    as_json,
    complain,
    draw,
    note,
    print_json,
    quiet,
    say,
    show_progress,
)
from forestcoll.ui.cli.options import HOLDS
from forestcoll.ui.cli.process import guard
from forestcoll.ui.cli.writing import explain_remains
from forestcoll.ui.report import facts, plans, words
from forestcoll.verify import simulate

Entry = dict[str, object]
LISTED_CLASHES = 20


def _is_bundle(path: Path) -> bool:
    from forestcoll.study.degrade.bundle import INDEX

    return (path / INDEX).is_file()


@dataclass
class Verifier:
    """What is asked for, and said so far; `topology`: what files are simulated on, if asked."""

    target: str | None
    told: Told
    sms: int | None
    topology: Topology | None
    simulated: bool
    links: bool
    noted: set[str] = field(default_factory=set)
    given: dict[str, str] = field(default_factory=dict)  # source -> text, of stock libraries
    together: list[Plan] = field(default_factory=list)  # of one runtime

    def run(self, sources: Sequence[str], log: str | None) -> int:
        """The exit code, once all is said."""
        results: list[Entry] = []
        for source in [*self._expand(sources)]:
            try:
                entry = self._folder(source) if Path(source).is_dir() else self._file(source)
            except ForestCollError as error:
                message = str(error) if source in str(error) else f"{source}: {error}"
                entry = {"file": source, "ok": False, "error": message}
                complain(message, 1)
            results.append(entry)
        self._say_clashes(results)
        if log is not None:
            results.append(self._compare_log(log))
        if as_json():
            print_json(results)
        return 0 if all(entry["ok"] for entry in results) else 1

    def note(self, source: str, text: str) -> None:
        """Something to know of a file; what is so for any file is said once."""
        general = text == predict.NO_LATENCIES
        if text and not (general and text in self.noted):
            self.noted.add(text)
            note(text if source in text or general else f"{source}: {text}")

    def right(self, source: str, kind: str, said: Sequence[str], **more: object) -> Entry:
        """A file that is right, with what is said of it."""
        if not quiet():
            for line in (f"{source}: ok", *(f"  {text}" for text in said)):
                say(line)
        return {"file": source, "ok": True, "kind": kind, **more}

    def _file(self, source: str) -> Entry:
        """What is proven of one file, said; a plan for the target is kept."""
        forest = None
        with ExitStack() as stack, show_progress(f"verifying {source}"):
            text = files.read_text(source)
            named: list[Path] = []  # what lies beside it
            if source != "-" and "forestcoll.groups/" in text[:4096]:
                beside = Path(source).parent.glob("*.json")
                named += [path for path in beside if f'"{path.name}"' in text]
            stack.enter_context(guard(source, len(text), *named))
            kind = stock.kind_of(text)
            is_plan = kind is None and verdicts.is_plan(text)
            if is_plan:
                report = lint(text, source, self.target, told=self.told, sms=self.sms)
                if self.target is not None and report.program is not None:
                    form = HOLDS[self.target]
                    self.together.append(offer(source, text, form, report.program))
            elif kind is None and verdicts.looks_like_forest(text):
                forest, verdict = verdicts.verify_forest(text, source)
            elif kind is None:
                verdict = verdicts.verify_text(text, source)
            if not is_plan and (self.target is not None or self.told != Told()):
                what = "a forest" if kind is None else stock.WORDS[kind]
                raise ForestCollError(f"{source}: {what}; --target and the like are for plans")
            if kind is not None:  # of a stock library: with what its links allow it
                topology = self.topology
                ranks = None if topology is None else len(topology.gpus)
                report, proven, trees, _ = stock.lint(text, source, kind, ranks)
                self.given[source] = text
                if topology is not None and trees and report.ok:
                    algbw = algbw_of(CapacityGraph.from_topology(topology), trees)
                    over = f"algbw {words.rate(algbw)} over the links of {topology.name}"
                    proven = [*proven, over]
                return self._say_report(report, kind, proven)
        return self._say_plan(report) if is_plan else self._say_forest(source, verdict, forest)

    def _compare_log(self, log: str) -> Entry:
        """Whether a library's log shows what the files gave it."""
        if not self.given:
            raise click.UsageError("--log is for RCCL_TREES and NCCL_GRAPH_FILE's")
        ok, lines = library.compare(library.read(self.given.items()), files.read_text(log))
        if ok:
            return self.right(log, "log", lines, told=lines)
        for line in lines:
            complain(f"{log}: {line}", 1)
        return {"file": log, "ok": ok, "kind": "log", "told": lines}

    def _expand(self, sources: Sequence[str]) -> Iterator[str]:
        """The files and plan sets that are meant: other directories are all plans in them.

        Those are files that end as ours do; where there is none, as the format's do anywhere.
        """
        for source in sources:
            path = Path(source)
            if not path.is_dir():
                yield source
                continue
            from forestcoll.compile.plan_set import INDEX

            if _is_bundle(path):
                members = [str(file) for file in sorted(path.glob("*/*"))]
                ends = tuple(FORMATS.values())
                yield from (source, *(file for file in members if file.endswith(ends)))
                continue
            inside: list[str] = []
            if not (path / INDEX).is_file() and not explain_remains(path):
                asked = [form for name, form in HOLDS.items() if self.target in (None, name)]
                suffixes = [FORMATS[form] for form in dict.fromkeys(asked)]
                inside = sorted(map(str, plan_files(path, suffixes, self.target is None)))
            yield from inside or [source]

    def _say_clashes(self, results: list[Entry]) -> None:
        """Where two of the plans would answer the same call, or are one for the runtime."""
        pairs = clashes(self.together)
        for one, other in pairs[:LISTED_CLASHES]:
            say(f"warning: {plans.clash(one, other)}")
        if len(pairs) > LISTED_CLASHES:
            say(f"and {len(pairs) - LISTED_CLASHES} pairs more that answer the same calls")
        for one, other in namesakes(self.together):
            say(f"warning: {plans.namesakes(one, other)}")
        for entry in results:
            source = entry["file"]
            others = [b.source for a, b in pairs if a.source == source]
            others += [a.source for a, b in pairs if b.source == source]
            if others:
                entry["clashes"] = others

    def _folder(self, source: str) -> Entry:
        """A plan set, or records of a bundle, whose forests and plans are files of their own."""
        path = Path(source)
        if _is_bundle(path):
            from forestcoll.study.degrade.bundle import check_bundle

            lines = check_bundle(path)
            return self.right(source, "bundle", lines, proven=lines)
        from forestcoll.compile import plan_set

        left = explain_remains(path)
        if left:
            raise ForestCollError(f"{path}: {left}")
        if not (path / plan_set.INDEX).is_file():
            what = "plan" if self.target is None else f"plan for {self.target}"
            raise ForestCollError(
                f"{path}: no {plan_set.INDEX} of a plan set and no {what} in it; name a file, or a "
                "directory with some"
            )
        inside = [*path.glob("*"), *path.glob("*/*")]
        with show_progress(f"verifying {source}"), guard(source, *inside):
            verdict = plan_set.check(path)
        rows, text = [], ""
        try:
            with show_progress(f"simulating {source}"), guard(source, *inside):
                for plan in verdict.plans if self.simulated else ():
                    low, high = plan.stated.min_bytes, plan.stated.max_bytes
                    made_from = plan.graph if plan.made_from is None else plan.made_from
                    site = predict.site_with(plan.program, made_from, self.topology)
                    ends = plan_set.ends_of(plan.program, site.where, site.links, low, high)
                    if ends is not None:
                        own = plan.format, low, high, plan.program, plan.made_from, ends
                        rows.append(plans.Row(*own))
                        text = text or site.note
        except ForestCollError as error:
            rows, text = [], f"not simulated: {error}"
        self.note(source, text)
        played, model = plans.simulation_rows(rows) or None, plans.set_model(rows)
        about = {"figures": verdict.figures, "simulated": played, "model": model.value}
        entry = self.right(source, "plan-set", verdict.lines, proven=verdict.lines, **about)
        if rows:
            say("")
            draw(([facts.line("us, GB/s", plans.SIMULATED), model], plans.plans(rows)))
            say("")
        return entry

    def _say_forest(self, source: str, verdict: verdicts.Verdict, forest: Forest | None) -> Entry:
        lines, figures, more = list(verdict.lines), dict(verdict.figures), Entry()
        if forest is not None:
            said, reached, more["simulated"] = self._reach(source, forest)
            lines += said
            figures |= reached
            if self.links:
                figures["links"] = [
                    {name: str(value) for name, value in row._asdict().items()}
                    for row in forest.links
                ]
        more |= {"proven": list(verdict.lines), "figures": figures}
        return self.right(source, verdict.kind, lines, **more)

    def _say_plan(self, report: Report) -> Entry:
        form, entry = HOLDS[report.target], Entry()
        proven: list[str] = []
        more: list[str] = []
        if report.program is not None and report.verified is not None:
            verdict = verdicts.verdict_of(report.program, report.verified, form)
            proven, reached = verdict.lines, dict(verdict.figures)
            entry["figures"] = reached
            if report.ok:
                more, allowed, entry["simulated"] = self._reach(report.source, report.program)
                reached |= allowed
        return {**self._say_report(report, form, proven, more), **entry}

    def _say_report(
        self, report: Report, kind: str, proven: Sequence[str], more: Sequence[str] = ()
    ) -> Entry:
        """What is wrong with a file, or what is right: `proven`, and `more` for people."""
        lines = plans.lines(report)
        entry = {**facts.as_json(plans.findings(report)), "kind": kind, "proven": list(proven)}
        if report.ok:
            self.right(report.source, kind, [*proven, *more, plans.target(report), *lines])
            return entry
        entry["error"] = plans.complaint(report)
        if as_json() or not sys.stdout.isatty():  # on a terminal it stands in the list below
            complain(entry["error"], 1)
        say(f"{report.source}: {plans.title(report)}")
        for line in (*proven, *lines):
            say(f"  {line}")
        return entry

    def _reach(self, source: str, what: Program | Forest) -> tuple[list[str], Entry, Entry | None]:
        """What a plan or the trees of a forest reach: in words, by the links alone, and simulated.

        A note where they cannot be simulated, or their links are unknown.
        """
        if quiet() and not as_json():
            return [], {}, None
        beside = predict.forest_beside(Path(source))
        band, figures, text = None, None, ""
        try:
            with show_progress(f"simulating {source}"), guard(source, source, beside):
                if not isinstance(what, Program):
                    figures = figures_of(what)
                    if self.simulated and what.n <= simulate.RANKS:
                        where = self.topology or verdicts.machine_of(what.graph, what.name)
                        band = simulate.band_of_trees(what, where.latencies() if where else None)
                        text = predict.NO_LATENCIES if band and where is None else ""
                else:
                    path = Path(source)
                    site, figures, text = predict.figures_of_file(what, path, self.topology)
                    if self.simulated and site is not None:
                        band = simulate.plan_band(what, site.where, site.links)
        except ForestCollError as error:
            band, text = None, f"not simulated: {error}"
        if self.simulated:
            self.note(source, text)
        lines, is_plan = [], isinstance(what, Program)
        if figures is not None and is_plan:
            lines.append(f"allowed by links: {facts.rate_words(figures)}")
        if figures is not None and figures.bound is not None:
            lines.append(f"bottleneck: {facts.limit(figures)}")
        if band is not None:
            said = words.band(band) if is_plan else f"{words.rates(band)}, the trees alone"
            lines += [f"simulated {said}", f"model: {band.model}"]
        played = None if band is None else band.summary()
        return lines, facts.as_json(facts.bandwidth_facts(figures)), played
