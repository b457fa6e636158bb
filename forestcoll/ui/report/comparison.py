"""Comparisons and advice as facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.study.advice import LIBRARY, WORTH
from forestcoll.study.comparison.outcome import OURS
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    Part,
    Rows,
    grid,
    limit,
    line,
    machine,
    notes,
    same,
    switches,
    texts,
)
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from forestcoll.study.advice import Advice, State, Way
    from forestcoll.study.comparison.outcome import Comparison

COLUMNS = ["size", "time", "algbw", "busbw", "of bound", "plan", "best baseline", "time", "faster"]
USED = ["schedule", "busiest link", "GB/s", "used"]
OTHERS = ["schedule", "size", "time", "algbw", "of bound", "ours", "it takes"]


def heading(result: Comparison) -> list[Fact]:
    """What is compared, and what no schedule exceeds."""
    title = f"{result.collective} on {result.name}, {words.plural(result.ranks, 'rank')}"
    return [
        *machine(topology=result.name, collective=result.collective.value, ranks=result.ranks),
        line("compare", title),
        Fact("bound", result.bound, words.rate),
        *_limits(result),
        same("model", result.model),
        *machine(sizes=result.sizes, rules=result.rules),
    ]


def _limits(result: Comparison) -> list[Fact]:
    """What bounds all of them, and what switches could do."""
    why = limit(result.best) if result.best else ""
    return [same("bottleneck", why or None), switches(result.in_switches)]


def advice(result: Advice, machine_words: str) -> list[Part]:
    """What to do about a machine; `machine_words`: the options of a command that name it."""
    compared = result.comparison
    title = f"{compared.collective} on {compared.name}, {words.plural(compared.ranks, 'rank')}"
    head = [
        *machine(topology=compared.name, collective=compared.collective.value),
        *machine(ranks=compared.ranks, nothing_to_gain=result.nothing),
        line("advise", title),
        same("verdict", _verdict(result)),
        Fact("bound", compared.bound, words.rate),
        *machine(bound_decimal=float(compared.bound)),
        *_limits(compared),
    ]
    rows_measured = []
    for one in result.measured:
        below = f"below what the links allow: {one.us / one.expected:.2f} times as long"
        rows_measured.append(
            [
                Fact("size", one.size, words.size, "measured"),
                Fact("us", one.us, words.duration, "time"),
                Fact("expected_us", one.expected, words.duration, "by the links"),
                Fact("slow", one.slow, below if one.slow else "as the links allow", ""),
            ]
        )
    said = compared.collective.value, machine_words
    rows_ways, steps = [], []
    for way in result.ways:
        commands = _commands(way, *said) if way.serves else []
        steps += [line(way.name, text) for text in commands]
        rows_ways.append(
            [
                same("name", way.name, "way"),
                Fact("serves", way.serves, "yes" if way.serves else "no", "here"),
                Fact(
                    "what", way.why, way.why.partition(";")[0].partition(": take")[0], "what it is"
                ),
                *machine(commands=commands),
            ]
        )
    return [
        head,
        Rows("states", [_state(state) for state in result.states], range(1, 6)),
        Rows("sizes", [_gain(result, k) for k in range(len(result.gains))], (1, 2, 4, 5, 6)),
        Rows("measured", rows_measured, range(4)),
        Rows("ways", rows_ways, ()),
        steps,
        [same("model", compared.model), *notes(compared.notes)],
    ]


def _verdict(result: Advice) -> str:
    """In a sentence."""
    there = [gain for gain in result.gains if gain.name]
    if not there:
        return "nothing to compare: the library's ways have no plans here"
    least, most = min(gain.least for gain in there), max(gain.most for gain in there)
    span = "times as fast as what the library does itself"
    if not result.nothing:
        worth = [f"{words.size(g.size)} ({g.least:.2f} x)" for g in there if g.least >= WORTH]
        rest = [words.size(gain.size) for gain in there if gain.least < WORTH]
        text = f"worth it for calls of {', '.join(worth)}: at least so many {span}"
        return f"{text}; nothing to gain at {', '.join(rest)}" if rest else text
    lost = [state for state in result.states[1:] if (state.gain or 0) > WORTH]
    text = f"nothing to gain while all works: plans are {least:.2f} to {most:.2f} {span}"
    if lost:
        hardest = max(lost, key=lambda state: state.gain or 0)
        assert hardest.failure is not None
        text += (
            f"; without {hardest.failure.failure.name} links allow "
            f"{words.decimal(hardest.gain or Fraction(), 2)} times what it takes"
        )
    return text


def _state(state: State) -> list[Fact]:
    """A row of what the links allow."""
    hardest = state.failure
    fails = "as it is" if hardest is None else f"without {hardest.failure.name}"
    looked = None if hardest is None else [hardest.looked, hardest.of]
    part = "{} of {}".format(*looked) if looked and looked[0] != looked[1] else ""
    bound = "none" if state.bound is None else words.decimal(state.bound, 1)
    library = []
    for name in LIBRARY:
        algbw = next((one.algbw for one in state.reached if one.name == name), None) or None
        library.append(Fact(name, algbw, words.decimal(algbw, 1) if algbw else "-"))
    return [
        Fact(
            "failure",
            None if hardest is None else hardest.failure.name,
            fails,
            "by the links, GB/s",
        ),
        Fact("bound", state.bound, bound),
        *library,
        Fact("gain", state.gain, lambda gain: f"{words.decimal(gain, 2)} x", "bound over best"),
        Fact("classes", looked, part, "worst of"),
        Fact("reason", state.reason or None),
        line("see it with", "" if hardest is None else hardest.failure.options),
    ]


def _gain(result: Advice, k: int) -> list[Fact]:
    """A row of a size, of the cells of the rule under which ours gains less."""
    compared, gain = result.comparison, result.gains[k]
    size, rule = gain.size, gain.rule or compared.rules[0]
    mine, best = compared.cell(OURS, size, rule), compared.best_baseline(size, rule)
    gains = dict.fromkeys(f"{each:.2f}" for each in (gain.least, gain.most))
    return [
        Fact("size", size, words.size),
        *machine(rule=rule, time_us=mine and mine.time, plan=mine and mine.plan),
        *machine(library=best and best.name, library_us=best and best.time),
        line("plan", "" if mine is None else words.duration(mine.time)),
        Fact("percent", mine and mine.percent, "{:.0f} %".format, "of bound"),
        line("", "" if mine is None else mine.plan),
        line("library", "" if best is None else words.duration(best.time)),
        line("", "" if best is None else best.name),
        Fact("gain", [gain.least, gain.most], " - ".join(gains) + " x" if gain.name else ""),
        same("reason", gain.reason or None, "because"),
    ]


def _commands(way: Way, collective: str, machine_words: str) -> list[str]:
    """What is typed next."""
    if way.name in ("rccl-trees", "nccl-graph"):
        return [f"forestcoll export {machine_words} --to {way.name} -o stock/"]
    target = "any" if way.name == "torch" else way.name
    return [
        f"forestcoll synthesize {machine_words} -c {collective} --target {target} "
        f"--sizes 1K:1G -o plans/",
        f"forestcoll deploy plans/ --runtime {way.name} -o deployed/",
    ]


def body(result: Comparison, busiest: int = 2) -> list[Part]:
    """For each rule of links ours beside the best baseline, and everybody's algbw.

    For machines all cells, who is fastest from where to where, and links that are used most.
    """
    leads = [lead for rule in result.rules for lead in result.leads(rule)]
    parts: list[Part] = [
        _rows(
            "schedules",
            (
                {"schedule": e.name, "kind": e.kind, "is": e.words, "refused": e.why or None}
                for e in result.entrants
            ),
        ),
        _rows("rows", result.rows()),
        _rows(
            "fastest",
            ({"links": x.rule, "schedule": x.name, "from": x.low, "to": x.high} for x in leads),
        ),
        _rows("busiest", result.busiest()),
    ]
    for rule in result.rules:
        parts += [
            texts("links", [_RULES[rule]]),
            ours(result, rule),
            grid(OTHERS, _others(result, rule), range(1, 6)),
            everybody(result, rule),
            texts(
                "fastest",
                (f"{x.name}, {about(x.low)} to {about(x.high)}" for x in leads if x.rule == rule),
            ),
            grid(USED, _busiest(result, rule, busiest), (2, 3)),
        ]
    refused = [(e.name, e.why) for e in result.entrants if e.why]
    partial = "cut off before all was played: what is missing is left out"
    parts += [
        grid(("not here", "why"), refused, ()),
        [Fact("partial", result.partial, partial * result.partial), *notes(result.notes)],
    ]
    return parts


def rows(result: Comparison, seen: set[tuple[str, int]], names: Sequence[str]) -> Rows:
    """What is known and not `seen` yet, a row for each schedule and size; adds it to `seen`.

    `names`: of all schedules that may come.
    """
    rows_made = []
    for name, size in dict.fromkeys((cell.name, cell.size) for cell in result.cells):
        if (name, size) not in seen:
            cells = [cell for r in result.rules if (cell := result.cell(name, size, r)) is not None]
            rates = []
            for cell in cells:  # without a plan what its links allow at most
                least, rate = (
                    ("", f"{cell.algbw:.4g}") if cell.plan else ("> ", f"< {cell.algbw:.3g}")
                )
                rates += [f"{least}{cell.time:.1f}", rate]
            rows_made.append([name, words.size(size), *rates, cells[0].plan or "what links allow"])
    heads = ["schedule", "size"]
    wide = [max(map(len, (*names, "schedule"))), 8]
    for rule in result.rules:
        heads += [f"{RULE_WORDS[rule]}, us", "GB/s"]
        wide += [len(heads[-2]), 6]
    table = grid([*heads, "plan"], rows_made, range(1, len(heads)))
    table = replace(table, wide=[*wide, 16], headed=not seen)
    seen.update((cell.name, cell.size) for cell in result.cells)
    return table


_RULES = {
    "fair": "fair: transfers share a link evenly",
    "fifo": "in order: a link serves one transfer after the other",
    "weighted": "weighted: transfers share a link in proportion to their bytes",
}


def ours(result: Comparison, rule: str) -> Rows:
    """Ours beside the best baseline, a row a size."""
    rows = []
    for size in result.sizes:
        mine, best = result.cell(OURS, size, rule), result.best_baseline(size, rule)
        times = result.speedup(size, rule)
        own, other = ["no plan", "", "", "", ""], ["", ""]
        if mine:
            rates = [f"{mine.algbw:.4g}", f"{mine.busbw:.4g}", f"{mine.percent:.1f} %"]
            own = [words.duration(mine.time), *rates, mine.plan]
        if best:
            other = [best.name, words.duration(best.time)]
        faster = "" if times is None else f"{times:.2f} x"
        rows.append([words.size(size), *own, *other, faster])
    return grid(COLUMNS, rows, (1, 2, 3, 4, 7, 8))


def _others(result: Comparison, rule: str) -> Iterator[list[str]]:
    """Old plans and files, with how many times as fast ours is, and what they take of the links."""
    for entrant in result.present:
        for size in result.sizes if entrant.kind in ("old", "file") else ():
            cell, mine = result.cell(entrant.name, size, rule), result.cell(OURS, size, rule)
            if cell is not None:
                ours = "" if mine is None else f"{cell.time / mine.time:.2f} x"
                own = [words.duration(cell.time), f"{cell.algbw:.4g}", f"{cell.percent:.1f} %"]
                yield [entrant.name, words.size(size), *own, ours, cell.use]


def everybody(result: Comparison, rule: str) -> Rows:
    """Everybody's algbw, a row each."""
    heads = ["algbw, GB/s", *map(words.size, result.sizes)]
    rows = []
    for entrant in result.present:
        cells = [result.cell(entrant.name, size, rule) for size in result.sizes]
        rates = [f"{'' if c.plan else '< '}{c.algbw:.3g}" if c else "-" for c in cells]
        rows.append([entrant.name, *rates])
    return grid(heads, rows)


def _rows(key: str, rows: Iterable[Mapping[str, object]]) -> Rows:
    """Rows for machines alone."""
    return Rows(key, [machine(**row) for row in rows])


def about(size: int) -> str:
    """Bytes in two or three digits where they are no round number: where lines cross."""
    if len(words.size(size)) <= len("1023 GiB") or size < 1024:
        return words.size(size)
    step = (size.bit_length() - 1) // 10
    return f"about {size / 1024**step:.3g} {' KMGT'[step]}iB"


def _busiest(result: Comparison, rule: str, most: int) -> Iterator[list[str]]:
    if not result.cells:
        return
    best = result.best_baseline(max(result.sizes), rule)
    shown = {e.name for e in result.present if e.kind != "baseline"}
    shown |= {best.name} if best is not None else set()
    for row in result.busiest(most):
        if row["links"] == rule and row["schedule"] in shown:
            rate, used = f"{row['bandwidth']:.4g}", f"{100 * row['used']:.1f} %"
            yield [row["schedule"], row["link"], rate, used]
