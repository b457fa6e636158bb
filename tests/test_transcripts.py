"""What pages show of a terminal is what is printed, command after command in one folder.

`--update-golden` writes what is printed into the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import real_files
import transcripts
from transcripts import ROOT, Shell, Step

DOCS = (str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))
PAGES = ("README.md", "examples/README.md", *DOCS)
SHOWING = [page for page in PAGES if "```console" in (ROOT / page).read_text()]
TOGETHER = ("README.md", "docs/tour.md")
"""In one folder: the second goes on with what the first one's commands wrote."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "pages",
    [TOGETHER, *((page,) for page in SHOWING if page not in TOGETHER)],
    ids=lambda pages: " and ".join(pages),
)
def test_page(pages: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shell = Shell(tmp_path)
    said: dict[str, list[str]] = {}
    for page in pages:
        path = ROOT / page
        text = path.read_text()
        stated = transcripts.steps(text)
        assert stated
        lend(page, shell)
        for step in stated:
            if MADE_UP & set(step.command.split()):
                said[step.command] = list(step.printed)
            elif step.command not in said:
                said[step.command] = shell.run(step.command)
        printed = [said[step.command] for step in stated]
        for lines in printed:
            assert not any("Traceback" in line for line in lines), lines
        if request.config.getoption("--update-golden"):
            path.write_text(transcripts.restated(text, printed))
            continue
        for step, lines in zip(stated, printed, strict=True):
            assert transcripts.agree(lines, step.printed), "\n".join([f"$ {step.command}", *lines])
    if "README.md" in pages:
        quick_start(shell, set(said))


def quick_start(shell: Shell, said: set[str]) -> None:
    """What scripts/quickstart runs; its schedule is the one that the README's commands made."""
    make, *rest = transcripts.quickstart()
    folder = next(word for word in make.split() if word.endswith(".out/"))
    assert make.replace(folder, "out/").replace(" --force", "") in said
    (shell.folder / folder).symlink_to("out")
    printed = shell.run("\n".join(["set -e", *rest]))
    assert sum("0 OK" in line for line in printed) == 2, printed


def test_pages_together_are_there_and_no_command_of_a_page_runs_twice() -> None:
    assert set(TOGETHER) <= set(SHOWING)
    for page in SHOWING:
        commands = [s.command for s in transcripts.steps((ROOT / page).read_text())]
        assert len(commands) == len(set(commands)), page


LENT = {
    "H100-topology.xml": "nccl-xml/oracle/H100-topology.xml",
    "dgx-ndr-fabric.out": "ibnetdiscover/dgx-ndr-fabric.out",
}
"""Real machines' files that docs/machines.md shows, and where they lie if they are at hand."""
MADE_UP = {"nvbandwidth.txt"}
"""Files of that page which lie nowhere: their commands are left out."""


def lend(page: str, shell: Shell) -> None:
    """The real machines' files that a page shows; skips the test where they are not at hand."""
    for name, path in LENT.items() if page == "docs/machines.md" else ():
        (shell.folder / name).symlink_to(real_files.real(path))


def test_files_that_the_pages_name_are_there() -> None:
    """What commands read is made by one before them, or lies in examples/ or schedules/."""

    for page in SHOWING:
        for step in transcripts.steps((ROOT / page).read_text()):
            for name in re.findall(r"(?:examples|schedules)/[\w./-]+", step.command):
                assert (ROOT / name).exists(), (page, name)


def test_quickstart_and_the_tour_do_not_meet() -> None:
    commands = transcripts.quickstart()
    assert len(commands) == 5
    folder = next(word for word in commands[0].split() if word.endswith(".out/"))
    for name in ("README.md", "docs/tour.md"):
        page = (ROOT / name).read_text()
        assert not any(folder in step.command for step in transcripts.steps(page))
        assert ".venv/bin/activate" in page
    assert ".venv/bin/activate" in (ROOT / "scripts" / "quickstart").read_text()


PAGE = """text
```console
$ a \\
  b
time 1 s: load 2 s
one
$ c
two
...
```
```console
$ d
```
"""


def test_transcripts_are_read_compared_and_written() -> None:
    assert transcripts.steps(PAGE) == [
        Step("a \\\n  b", ("time 1 s: load 2 s", "one")),
        Step("c", ("two", "...")),
        Step("d", ()),
    ]
    assert transcripts.agree(["time 3 ms", "one"], ("time 1 s: load 2 s", "one"))
    folded = ["time  9 s: load 7 s,", "              verify 2 s", "one"]
    assert transcripts.agree(folded, ("time 1 s: load 2 s", "one"))
    assert not transcripts.agree(["time 3 ms", "two"], ("time 1 s: load 2 s", "one"))
    assert transcripts.agree(["two", "three"], ("two", "..."))
    same = [["time 3 ms", "one"], ["two", "more"], []]
    assert transcripts.restated(PAGE, same) == PAGE
    other = transcripts.restated(PAGE, [["time 3 ms", "uno"], ["due", "more"], ["tre"]])
    assert other == PAGE.replace("time 1 s: load 2 s\none", "time 3 ms\nuno").replace(
        "two", "due"
    ).replace("$ d\n", "$ d\ntre\n")


ROW = (
    "      1048576        524288  bfloat16     sum    -1  {}  0.227  0.4       {}  {}  3.3  0.6  0"
)


NOT_IN_PLACE = (
    "      1048576         16384   float32    none    -1  {}    0.222    0.208       {}"
    "           -        -        -     N/A"
)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("time          935.6 ms: load 30 ms", "time          1.2 s", True),
        ("# Avg bus bandwidth    : 0.7", "# Avg bus bandwidth    : 12", True),
        (ROW.format("4609.96", 0, "3148.90"), ROW.format("  99.96", 0, "  48.90"), True),
        (ROW.format("4609.96", 0, "3148.90"), ROW.format("4609.96", 1, "3148.90"), False),
        (NOT_IN_PLACE.format("4609.96", 0), NOT_IN_PLACE.format("9.96", 0), True),
        (NOT_IN_PLACE.format("4609.96", 0), NOT_IN_PLACE.format("9.96", 3), False),
        ("algbw       1040/3 (346.667) GB/s", "algbw       1041/3 (347) GB/s", False),
    ],
)
def test_only_what_differs_from_run_to_run_is_masked(one: str, other: str, alike: bool) -> None:
    assert (transcripts.masked(one) == transcripts.masked(other)) is alike
