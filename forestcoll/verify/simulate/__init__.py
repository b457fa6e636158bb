"""The time that a plan takes, by events: messages, slots, signals, thread blocks, shared links.

`run` plays a Program on a Topology (or on the graph of its Forest, over the ways of its trees),
`run_forest` a forest alone. What is modelled:

    links          share by max-min fairness ("fair"), the same in proportion to the transfers'
                   bytes ("weighted"), or serve one transfer after the other ("fifo"). A link's rule
                   stands in the topology file; else messages queue at links that leave a box, and
                   the others are fair. `rule` overrides all
    switches       pass a transfer on as it arrives, or when all of it is there
    latency        of every link, and of signals: what a hop costs besides is the protocol's (HOP)
    thread blocks  do one instruction after the other, at a limited rate if asked
    runtimes       message sizes, slots, slices, proxies, pipelines, packets, NVLS

Times are multiples of 2^-28 microseconds, so that what happens at once by the plan does so in
floats: with no latency and unlimited blocks, they are those of the fluid limit but for that. Who is
served first of those that come at once is told by who began first. What is not modelled: kernel
launch, caches, PCIe below what the topology says, congestion control.

The way there: simulation.py (a plan or a forest in, a `Timing` of result.py out), code.py (what
thread blocks do, as columns), native/fifo.cpp and native/onesided.cpp (what one does next),
native/sharing.cpp (who shares a link), native/engine.cpp (events: here time passes). calendar.py:
when which bytes are read and written.
"""

from __future__ import annotations

from forestcoll.verify.simulate.band import (
    RANKS,
    SIZE,
    Band,
    band,
    band_of_trees,
    forest_band,
    longest,
    plan_band,
)
from forestcoll.verify.simulate.calendar import Calendar, Entry, Overlap, calendar, overlap, produce
from forestcoll.verify.simulate.fabric import Where
from forestcoll.verify.simulate.options import (
    HOP,
    KINDS,
    RULE_WORDS,
    RULES,
    Options,
    Rule,
    Switching,
)
from forestcoll.verify.simulate.result import LinkUse, Span, Timing
from forestcoll.verify.simulate.simulation import (
    BOTH,
    DEFAULTS,
    MOST_BYTES,
    PIECES,
    run,
    run_each,
    run_forest,
)

__all__ = [
    "BOTH",
    "DEFAULTS",
    "HOP",
    "KINDS",
    "MOST_BYTES",
    "PIECES",
    "RANKS",
    "RULES",
    "RULE_WORDS",
    "SIZE",
    "Band",
    "Calendar",
    "Entry",
    "LinkUse",
    "Options",
    "Overlap",
    "Rule",
    "Span",
    "Switching",
    "Timing",
    "Where",
    "band",
    "band_of_trees",
    "calendar",
    "forest_band",
    "longest",
    "overlap",
    "plan_band",
    "produce",
    "run",
    "run_each",
    "run_forest",
]
