"""`forestcoll calendar`: which bytes of a plan are ready when, and which are needed when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.files import Sink
from forestcoll.ui.cli.messages import answer, note, show_progress
from forestcoll.ui.cli.options import (
    BYTES,
    FORCE,
    JSON,
    ORDER,
    PRODUCER,
    TILES,
    Machine,
    command,
    machine_option,
    option,
    output_option,
    place,
)
from forestcoll.ui.cli.times import predict, rules_of

if TYPE_CHECKING:
    from forestcoll.verify.simulate import Rule


@command(
    "forestcoll calendar out/mi250-1.allreduce.mscclpp.json -t mi250 --size 64M",
    "forestcoll calendar PLAN --size 1M --rule fair --json > calendar.json",
    "forestcoll calendar PLAN --tiles 16 --rows 0",
    "forestcoll calendar PLAN --order tiles.txt --producer 900 -o ordered.json",
)
def calendar(
    plan: str = place("file", "PLAN"),
    machine: Machine = machine_option(
        "What the plan runs on, as for 'forestcoll time'.", edits=True, required=False
    ),
    size: int = option("size", BYTES, "1G"),
    rule: Rule | None = option(
        "rule", "How transfers meet on all links. Default: each link's own.", None
    ),
    shown: int = option(
        range(100_001), "How many rows of each buffer to list.", 4, "N", names="--rows"
    ),
    order: str | None = ORDER,
    tiles: int | None = TILES,
    producer: float | None = PRODUCER,
    output: str | None = output_option(
        "FILE|-", "Where the plan with tiles goes, in the format of PLAN.", None
    ),
    force: bool = FORCE,
    as_json: bool = JSON,
) -> int:
    """List which bytes of a plan are ready when, and which are needed when, by rank.

    An output's bytes are ready when the rank has them for good, an input's are needed when somebody
    reads them first. From the simulation of 'forestcoll time'; --json has all rows.
    """
    from forestcoll import plans
    from forestcoll.program.tiles import read_order
    from forestcoll.program.tiles import tiles as tile
    from forestcoll.ui.report import runs
    from forestcoll.verify import simulate, verify

    topology, sink = machine.load_if_any(), Sink.of(output, force)
    text = files.read_text(plan)
    program = plans.loads(text, plan)
    taken = read_order(files.read_text(order), order) if order else range(tiles or 0)
    site = predict(program, plan, topology).site
    if site.note:
        note(site.note)
    with show_progress(f"simulating {plan}"):
        gain = None
        if taken:
            gain = simulate.overlap(
                program, site.where, size, taken, producer=producer, rule=rule, links=site.links
            )
            program = tile(program, taken)
            verify(program)
        dates = simulate.calendar(program, site.where, size, rule=rule, links=site.links)
    title = f"{program.collective} on {program.name or plan}, {program.n} ranks"
    kinds = [(program.style, program.protocol)]
    model = simulate.DEFAULTS.words(kinds, rules_of((rule,)), site.links is not None)
    if output is not None:
        try:
            written = plans.dumps(program, plans.detect(text, plan))
        except PlanError as error:
            raise PlanError(f"{len(taken)} tiles: {error}, or fewer tiles") from error
        sink.write(written, None if as_json else lambda: f"{len(taken)} tiles")
    if output != "-":
        answer(as_json, runs.calendar(title, dates, model, shown, gain))
    return 0
