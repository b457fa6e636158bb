"""The command `layout`: which GPU is which rank of a parallel job, and the plans of its groups."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from forestcoll.compile.formats import formats_of
from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.messages import answer, draw, report, show_progress
from forestcoll.ui.cli.options import (
    FORCE_FILES,
    JSON,
    MACHINE,
    Machine,
    command,
    like,
    output_option,
    place,
)


@command(
    "forestcoll layout job.yaml -t mi250 --relays all -o placed/",
    "forestcoll layout job.yaml -t fat-tree --set oversubscription=2 --json",
)
def layout(
    file: str = place("file", "FILE"),
    machine: Machine = MACHINE,
    ranks: Any = like(
        "ranks", "GPUs of the job, ids or globs, in the order that the search is to beat: all."
    ),
    relays: Any = like("relays", "Which GPUs pass data on for groups that they are not in."),
    target: Any = like("target"),
    output: str | None = output_option(
        "DIR", "Where to write the files. Default: nowhere, a report alone.", None
    ),
    force: bool = FORCE_FILES,
    as_json: bool = JSON,
) -> None:
    """Place a parallel job: which GPU is which rank.

    FILE (forestcoll.layout/1) has the sizes of the dimensions, the order of Megatron-LM or
    DeviceMesh, and what each dimension sends in a step. Written are plan sets for every group,
    proven together, and files for launchers. Ctrl-C ends the search, or the making of plans, and
    writes what is there.
    """
    from forestcoll.schedule import layout_file
    from forestcoll.schedule.placement_file import INDEX, loads

    began = time.perf_counter()
    topology = machine.load()
    job = layout_file.loads(files.read_text(file), file)

    from forestcoll.study.layout import lay_out
    from forestcoll.study.layout.folder import FILES, files_of, folders_of
    from forestcoll.ui.report import synthesis
    from forestcoll.ui.view import groups

    texts: dict[str, str] = {}
    notes = ["nothing is written; --output DIR writes the files"]
    if output is not None:
        files_before = [p for d in folders_of(job) for p in Path(output, d).rglob("*")]
        own = [*(Path(output, name) for name in FILES), *(p for p in files_before if p.is_file())]
        writing.prepare(own, force)
    with show_progress("layout") as progress:
        done = lay_out(topology, job, ranks, relays, progress)
        if output is not None:
            texts, notes = files_of(done, target, formats_of(None, target), progress)
            texts["layout.svg"] = groups.draw(loads(texts[INDEX], output))
    paths = {Path(output or "", name): text for name, text in texts.items()}
    writing.write_all(paths, force)
    result = synthesis.layout(done, time.perf_counter() - began, notes, list(paths))
    answer(as_json, result, draw if output is None else report)
