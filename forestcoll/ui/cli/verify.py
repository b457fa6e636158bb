"""`forestcoll verify`: forests and plans proven right, and plans linted against a runtime."""

from __future__ import annotations

from typing import Literal

import click

from forestcoll.compile.request import STOCK
from forestcoll.program import Collective
from forestcoll.ui.cli.messages import as_json, quiet
from forestcoll.ui.cli.options import (
    HOLDS,
    Machine,
    command,
    flag,
    like,
    machine_option,
    option,
    place,
)


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
    from forestcoll.ui.cli.work.verify import Verifier

    told = Told(None if collective is None else Collective(collective), root, place)
    simulated = not no_simulate and (as_json() or not quiet())
    where = machine.load_if_any()
    return Verifier(target, told, sms, where, simulated, links).run(sources, log)
