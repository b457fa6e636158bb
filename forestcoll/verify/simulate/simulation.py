"""A plan, or a forest alone, played on the links: how long it takes, and how busy they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.common.arguments import whole
from forestcoll.program import Collective, Program
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify.simulate.code import Coder
from forestcoll.verify.simulate.fabric import Fabric, Latencies, Where, fabric
from forestcoll.verify.simulate.options import RULES, Options, Rule
from forestcoll.verify.simulate.result import LinkUse, Timing
from forestcoll.verify.simulate.trees import straight_links, write_trees

MOST_BYTES = 2**50
PIECES = 64
"""Pieces of each tree of a forest alone."""
DEFAULTS = Options()
"""What plans are chosen by, and every report is made with."""
BOTH: tuple[Rule, ...] = ("fifo", "fair")
"""What links do in practice lies between these."""


def run(
    program: Program,
    topology: Where,
    size: int,
    *,
    rule: Rule | None = None,
    links: Topology | Latencies | None = None,
    options: Options = DEFAULTS,
    timeline: bool = False,
) -> Timing:
    """How long the program takes for `size` bytes, as nccl-tests counts them.

    `topology`: where its ranks are, by their names, else in the order of the GPUs; or the forest
    that it was made of, whose ways are those of its trees. `links`: where rules and latencies of
    that forest's links come from, or microseconds over each of them; without, they are those of
    `options`. `rule`: of all links; None: of each its own. Deterministic.

    Raises PlanError where ranks do not fit, or the program gets stuck.
    """
    (timing,) = run_each(
        program, topology, size, (rule,), links=links, options=options, timeline=timeline
    )
    return timing


def run_each(
    program: Program,
    topology: Where,
    size: int,
    rules: Sequence[Rule | None] = BOTH,
    *,
    links: Topology | Latencies | None = None,
    options: Options = DEFAULTS,
    timeline: bool = False,
    until: float = math.inf,
) -> list[Timing]:
    """The same under several rules, one after the other, for little more than the time of one.

    `until`: microseconds; from the first rule on under which it takes more, times are infinite.
    """
    coder, chunk = coder_of(program, topology, size, rules[0], links, options)
    coder.write(program, chunk)
    timings: list[Timing] = []
    for rule in rules:
        if timings and timings[-1].time > until:
            timings.append(replace(timings[-1], rule=rule))
            continue
        coder.fabric.set_rule(rule)
        timings.append(timing_of(coder, size, rule, program.collective, program.n, timeline, until))
    return timings


def coder_of(
    program: Program,
    topology: Where,
    size: int,
    rule: Rule | None,
    links: Topology | Latencies | None,
    options: Options,
) -> tuple[Coder, Fraction]:
    """What the program can be written to, as `run` has its arguments; and a chunk's bytes."""
    size, first = whole("size", size, 1, MOST_BYTES), program.ranks[0]
    network = fabric(program, topology, rule, options, links)
    return Coder(network, options), Fraction(size, max(1, first.input_chunks, first.output_chunks))


def run_forest(
    forest: Forest,
    size: int,
    *,
    topology: Topology | None = None,
    links: Latencies | None = None,
    rule: Rule | None = None,
    options: Options = DEFAULTS,
    pieces: int = PIECES,
    timeline: bool = False,
) -> Timing:
    """The same for a forest alone: a flow for each edge, every tree in so many `pieces`.

    `topology`: where rules and latencies come from, or `links`: the latencies alone. Over a link
    that it alone sends on, a rank sends all trees at once, as the link's rule is, or piece after
    piece, whatever that is: as is faster.
    """
    size, pieces = whole("size", size, 1, MOST_BYTES), whole("pieces", pieces, 1, 2**20)
    forest = forest.expand()
    in_order, timings = RULES.index("fifo"), []
    for own in ((), straight_links(forest)):
        network = Fabric(forest.graph, topology, forest, options, links, options.hop(None))
        network.set_rule(rule)
        stated = list(network.rules)
        for link in own:
            network.rules[network.number[link]] = in_order
        if not own or network.rules != stated:
            coder = Coder(network, options)
            write_trees(forest, coder, size, pieces)
            timings.append(timing_of(coder, size, rule, forest.collective, forest.n, timeline))
    return min(timings, key=lambda timing: timing.time)


def timing_of(
    coder: Coder,
    size: int,
    rule: Rule | None,
    collective: Collective,
    n: int,
    timeline: bool,
    until: float = math.inf,
) -> Timing:
    """What comes of playing what is written; its figures as `Timing` has them."""
    time, moved, spans, transfers = coder.play(timeline=timeline, until=until)
    algbw = size / time / 1000 if time else float("inf")
    graph = coder.fabric.graph
    links = tuple(
        LinkUse(graph.names[t], graph.names[h], rate, used, used / (rate * 1000 * time or 1))
        for t, h, rate, used in zip(
            graph.tail, graph.head, coder.fabric.bandwidth, moved, strict=True
        )
    )
    busbw = algbw * float(collective.bus_factor(n))
    return Timing(rule, size, time, algbw, busbw, transfers, links, spans)
